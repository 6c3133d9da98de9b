# Oracle: the run on one rank, unsharded, without recomputation.
import pytest

from running import base_flags, run_strata, run_strata_raw

LORA = dict(use_peft=True, lora_r=3, lora_dropout=0.0, lora_target_modules="all-linear")


# What is kept or computed again depends on the family's layers, not on what trains.
@pytest.mark.parametrize("mode,settings", [("selective", {}), ("full", LORA)], ids=["whole", "lora"])
@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "phi3", "smollm3", "granite", "gemma",
                                    "gemma3", "gpt2", "bigcode"])
def test_ranks_compute_what_one_computes(inputs, tmp_path, family, mode, settings):
    def losses(name, world, rows, **flags):
        return run_strata(base_flags(inputs.model(family), inputs.data("messages", train=96),
                                     tmp_path / name, **{**settings, **flags, "max_steps": 5,
                                     "per_device_train_batch_size": rows}), world).losses

    expected = losses("one", 1, 6, sharding_strategy="NO_SHARD", activation_checkpointing="none")
    assert expected[0] - expected[-1] > 0.01
    found = losses(mode, 3, 2, activation_checkpointing=mode)
    assert max(abs(a - b) for a, b in zip(found, expected)) < 1e-5


def test_layers_are_wrapped_by_the_name_of_their_class(inputs, tmp_path):
    flags = base_flags(inputs.model("qwen3"), inputs.data("messages"), tmp_path / "out", max_steps=1)
    run_strata({**flags, "fsdp_transformer_layer_cls_to_wrap": "Qwen3DecoderLayer"}, 2)
    run = run_strata_raw({**flags, "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}, 2)
    assert run.returncode == 2
    assert "Qwen3DecoderLayer" in run.text
