# Oracle: the run on one rank that keeps all activations, and the one without noise.
import pytest

from running import base_flags, run_strata

NOISE = dict(neftune_noise_alpha=20.0)
# Rows of one length, so that noise is as strong in every micro-batch.
PACKED = dict(packing=True, packing_strategy="wrapped", max_length=32)
LORA = dict(use_peft=True, lora_r=3, lora_dropout=0.1, lora_target_modules="all-linear")


def train(inputs, folder, world=1, rows=6, model="plain", **flags):
    return run_strata(base_flags(inputs.model(model), inputs.data("messages", train=96), folder, **{
        **PACKED, "max_steps": 4, "per_device_train_batch_size": rows, **flags}), world)


@pytest.mark.parametrize("settings", [{}, LORA, dict(model="gpt2")], ids=["whole", "lora", "gpt2"])
def test_ranks_draw_what_one_draws(inputs, tmp_path, settings):
    expected = train(inputs, tmp_path / "one", activation_checkpointing="none", **NOISE, **settings).losses
    silent = train(inputs, tmp_path / "silent", activation_checkpointing="none", **settings).losses
    assert all(abs(a - b) > 1e-4 for a, b in zip(expected, silent))
    found = train(inputs, tmp_path / "three", 3, 2, activation_checkpointing="full", **NOISE, **settings).losses
    assert found == pytest.approx(expected, abs=1e-5)


def test_resuming_draws_what_the_run_drew(inputs, tmp_path):
    whole = train(inputs, tmp_path / "whole", save_strategy="steps", save_steps=2, **NOISE)
    again = train(inputs, tmp_path / "whole", save_strategy="steps", save_steps=2,
                  resume_from_checkpoint=tmp_path / "whole" / "checkpoint-2", **NOISE)
    assert again.losses == whole.losses


def test_another_seed_draws_other_noise(inputs, tmp_path):
    same_data = dict(data_seed=5, **NOISE)
    one = train(inputs, tmp_path / "one", seed=1, **same_data).losses
    other = train(inputs, tmp_path / "other", seed=2, **same_data).losses
    assert all(abs(a - b) > 1e-4 for a, b in zip(one, other))


def test_evaluation_has_no_noise(inputs, tmp_path):
    def first_evaluation(name, **flags):
        run = train(inputs, tmp_path / name, eval_strategy="steps", eval_steps=4, eval_on_start=True, **flags)
        return next(row["eval_loss"] for row in run.history if "eval_loss" in row)

    assert first_evaluation("noise", **NOISE) == first_evaluation("silent")
