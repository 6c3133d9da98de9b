# Oracle: TRL's ORPOTrainer and CPOTrainer with the same flags on the same files: loss, gradient norm, rewards and
# log-probabilities of every step; the run on one rank for a run on three; the uninterrupted run.
import json
import math
import shutil

import pytest

import tiny_llama
import trl_reference
from reference_runs import expect_alike
from running import base_flags, run_program, run_strata, run_strata_raw, strata

STEPS = 8
LORA = dict(use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0,
            lora_target_modules=["q_proj", "v_proj", "down_proj"], learning_rate=2e-2)
EVALUATED = dict(eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=4)
# A mean over the tokens of a step is that of its micro-batch where it has one.
CASES = {
    "orpo": ("orpo", {}),
    "orpo_lora_with_eval": ("orpo", dict(LORA, beta=0.6, **EVALUATED)),
    "orpo_of_single_pairs": ("orpo", dict(per_device_train_batch_size=1, learning_rate=1e-2, weight_decay=0.1)),
    "orpo_tied": ("orpo", dict(model="tied")),
    "orpo_short_rows": ("orpo", dict(LORA, max_length=40)),
    "orpo_nf4": ("orpo", dict(LORA, load_in_4bit=True, model="wide")),
    "cpo": ("cpo", {}),
    "cpo_lora_with_eval": ("cpo", dict(LORA, **EVALUATED)),
    "cpo_smoothed": ("cpo", dict(label_smoothing=0.2, beta=0.4, cpo_alpha=0.3)),
    "hinge": ("cpo", dict(loss_type="hinge", cpo_alpha=0.5)),
    "ipo": ("cpo", dict(loss_type="ipo", beta=0.5)),
    "simpo": ("cpo", dict(LORA, loss_type="simpo", beta=2.0, simpo_gamma=1.0, cpo_alpha=0.0)),
    "simpo_accumulated": ("cpo", dict(loss_type="simpo", cpo_alpha=0.0, gradient_accumulation_steps=2)),
    "simpo_beside_the_likelihood": ("cpo", dict(loss_type="simpo", model="odd", label_smoothing=0.1)),
    "alphapo": ("cpo", dict(loss_type="alphapo", alpha=0.25, beta=2.0)),
    "capped_logits": ("cpo", dict(model="gemma2", loss_type="ipo", alpha=-0.3)),
}
FIGURES = ["num_tokens", "rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen",
           "logps/rejected", "nll_loss"]
ODDS = ["log_odds_ratio", "log_odds_chosen"]


def flags_of(inputs, output, model="plain", kind="preference", train=40, **flags):
    return base_flags(inputs.model(model), inputs.data(kind, train=train), output,
                      **{"max_steps": STEPS, "learning_rate": 5e-3, "gradient_checkpointing": False, **flags})


def compare(found, expected, names, without_nll):
    for ours, theirs, prefix, at in trl_reference.steps_beside(found, expected):
        for name in names:
            # The reference counts neither tokens nor, where it has no weight, the likelihood.
            if name == "num_tokens" or (without_nll and name == "nll_loss"):
                continue
            assert math.isclose(ours[prefix + name], theirs[prefix + name], rel_tol=1e-3, abs_tol=1e-4), (name, at)
        assert math.isclose(ours[prefix + "loss"], theirs[prefix + "loss"], rel_tol=1e-3, abs_tol=1e-4), at
        for key in ("grad_norm", "learning_rate", "epoch"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=2e-3, abs_tol=1e-9), (key, at)
    assert max(abs(row["grad_norm"]) for row in expected if "grad_norm" in row) > 0.1, "the reference did not learn"


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, tmp_path, name):
    recipe, settings = CASES[name]
    flags = flags_of(inputs, tmp_path / "out", **settings)
    run = run_strata(flags, recipe=recipe)
    without_nll = settings.get("cpo_alpha") == 0.0 or settings.get("loss_type") == "alphapo"
    compare(run.state["log_history"], trl_reference.log_history(flags, recipe.upper()), FIGURES + ODDS * (recipe == "orpo"),
            without_nll)


# 42 pairs: the last step of an epoch has as many as the others, so that no rank's batch is filled up.
@pytest.mark.parametrize("recipe, settings", [("orpo", {}), ("cpo", dict(LORA, gradient_accumulation_steps=2, sharding_strategy="ZERO2"))],
                         ids=["orpo", "cpo_lora_accumulated"])
def test_ranks_equal_one(inputs, tmp_path, recipe, settings):
    """The same pairs in a step, however they are dealt: the likelihood is a mean over the tokens of all."""
    one = {**settings, "per_device_train_batch_size": 6, "sharding_strategy": None}
    alone = run_strata(flags_of(inputs, tmp_path / "alone", train=42, **one), recipe=recipe)
    dealt = run_strata(flags_of(inputs, tmp_path / "dealt", train=42, **settings), world=3, recipe=recipe)
    expect_alike(dealt, alone, [name for name in FIGURES if name != "rewards/accuracies"])


@pytest.mark.parametrize("recipe, settings", [("orpo", dict(LORA, lora_dropout=0.3, disable_dropout=False)), ("cpo", {})],
                         ids=["orpo_lora", "cpo"])
def test_a_resumed_run_is_equal_to_the_bit(inputs, tmp_path, recipe, settings):
    flags = dict(save_strategy="steps", save_steps=4, eval_strategy="steps", eval_steps=3, logging_steps=3, **settings)
    whole = run_strata(flags_of(inputs, tmp_path / "whole", **flags), world=2, recipe=recipe)
    assert "reference" not in whole.text and not (whole.folder / "reference_log_probs.table").exists()
    resumed = tmp_path / "resumed"
    shutil.copytree(whole.folder, resumed, ignore=shutil.ignore_patterns(f"checkpoint-{STEPS}", "*model*", "adapter*"))
    (resumed / "latest").write_text("checkpoint-4\n")
    found = run_strata(flags_of(inputs, resumed, resume_from_checkpoint="true", **flags), world=2, recipe=recipe)
    assert found.history == whole.history
    name = "adapter_model.safetensors" if settings else "model.safetensors"
    assert (found.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_recomputation_changes_nothing(inputs, tmp_path):
    runs = [run_strata(flags_of(inputs, tmp_path / mode, activation_checkpointing=mode, gradient_checkpointing=None, max_steps=3),
                       recipe="orpo").history for mode in ("none", "selective", "full")]
    assert runs[0] == runs[1] == runs[2]


def test_the_plan_counts_both_answers(inputs):
    words = ["--model_name_or_path", inputs.model("plain"), "--cpu", "--max_length", "64", "--per_device_train_batch_size", "2"]
    for recipe in ("orpo", "cpo"):
        said = strata("plan", recipe, *words)
        assert "256 tokens" in said and "evaluate" not in said, said


def test_preview_shows_the_prompt_as_trained(inputs):
    """Of the preferred answer, where the recipe learns it."""
    def trained(recipe):
        said = strata("preview", recipe, "--model_name_or_path", inputs.model("plain"), "--dataset_name", inputs.data("preference"))
        return int(said.split("of which ")[1].split(" ")[0].replace(",", ""))
    assert trained("orpo") > trained("cpo") == trained("dpo")


def test_a_prompt_that_must_not_be_learnt_is_not(inputs, tmp_path):
    """A message with `train` false stays without a label; a rejected answer that begins with one is refused."""
    def rows_with(prompt, answer):
        data = tmp_path / f"{prompt}{answer}".replace("'", "").replace(" ", "")
        data.mkdir(exist_ok=True)
        rows = [{"prompt": [{"role": "user", "content": f"say {i}", **prompt}],
                 "chosen": [{"role": "assistant", "content": f"it is {i}"}],
                 "rejected": [{"role": "assistant", "content": "no", **answer}]} for i in range(4)]
        tiny_llama.write_rows(data / "train.jsonl", rows)
        return dict(flags_of(inputs, tmp_path / "out", model="tied", max_steps=1), dataset_name=data, splits="train")
    learnt, unlearnt, dpo = [run_strata(rows_with({"train": trains}, {"train": True}), recipe=recipe).history[0]
                             for trains, recipe in ((True, "orpo"), (False, "orpo"), (True, "cpo"))]
    assert len({learnt["nll_loss"], unlearnt["nll_loss"], dpo["nll_loss"]}) == 3, "the prompt whole, without its message, not at all"
    assert learnt["logps/chosen"] == pytest.approx(unlearnt["logps/chosen"], rel=1e-6)
    refused = run_strata_raw(rows_with({}, {"train": False}), recipe="orpo")
    assert refused.returncode == 1 and 'found a "rejected" that begins with a message that is not learnt' in refused.stderr


def test_an_answer_that_is_certain_is_learnt(inputs, tmp_path):
    """Its odds are infinite, and so would be what is learnt of them; the reference ends with nan."""
    data = tmp_path / "data"
    data.mkdir()
    tiny_llama.write_rows(data / "train.jsonl", [{"prompt": "p", "chosen": "", "rejected": "no"}] * 4)
    flags = dict(flags_of(inputs, tmp_path / "out", max_steps=40, learning_rate=5e-2, max_grad_norm=0, lr_scheduler_type="constant"),
                 dataset_name=data, splits="train")
    steps = [row for row in run_strata(flags, recipe="orpo").history if "loss" in row]
    assert len(steps) == 40 and steps[-1]["logps/chosen"] == 0
    assert all(math.isfinite(value) for row in steps for value in row.values())


def test_rewards_beyond_fp32_end_the_run(inputs, tmp_path):
    run = run_strata_raw(flags_of(inputs, tmp_path / "out", max_steps=2, alpha=5.0), recipe="cpo")
    assert run.returncode == 1 and "step 1: found a" in run.stderr and "expected a finite one" in run.stderr, run.text


def test_the_scripts_of_both(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", max_steps=1)
    run = run_program(flags, recipe="examples/scripts/orpo.py", world=2)
    assert "orpo.py: running the built-in recipe orpo in its place" in run.stderr and "log_odds_chosen" in run.history[0]
    run = run_program({**flags, "output_dir": tmp_path / "cpo"}, recipe="examples/scripts/cpo.py", world=2)
    assert "cpo.py: running the built-in recipe cpo in its place" in run.stderr and "log_odds_chosen" not in run.history[0]
    refused = run_strata_raw(flags, recipe="simpo")
    assert refused.returncode == 2 and "run strata cpo --loss_type simpo --cpo_alpha 0" in refused.stderr, refused.text


BAD = {
    "two_losses": ("cpo", dict(loss_type=["sigmoid", "ipo"]), "found 2 losses (sigmoid, ipo), expected one of"),
    "an_unknown_loss": ("cpo", dict(loss_type="simpoo"), "did you mean simpo?"),
    "a_loss_beside_a_reference": ("cpo", dict(loss_type="robust"), "found robust, a loss of the recipe dpo, expected one of sigmoid, "
                                                                   "hinge, ipo, simpo, alphapo; correct it, or run strata dpo"),
    "a_loss_of_ratings": ("cpo", dict(loss_type="kto"), "a loss of the recipe kto"),
    "a_loss_of_odds": ("cpo", dict(loss_type="orpo"), "correct it, or run strata orpo"),
    "without_a_reference": ("dpo", dict(loss_type="simpo"), "found simpo, a loss of the recipe cpo"),
    "without_ratings": ("kto", dict(loss_type="simpo"), "correct it, or run strata cpo"),
    "beside_texts": ("sft", dict(loss_type="simpo"), "found simpo with the recipe sft, expected nll; remove it, or run strata cpo"),
    "beta_of_nothing": ("orpo", dict(beta=0), "with it nothing is learnt of preferences; raise it, or run strata sft"),
    "a_loss_of_cpo": ("orpo", dict(loss_type="simpo"), "--loss_type: found with the recipe orpo, expected a setting of it; remove it, or "
                                                       "run strata cpo"),
    "a_setting_of_dpo": ("cpo", dict(ld_alpha=0.3), "--ld_alpha: found with the recipe cpo, expected a setting of it; remove it, or "
                                                    "run strata dpo"),
    "a_setting_of_cpo": ("sft", dict(alpha=16), "expected a setting of it; remove it, or run strata cpo; that of LoRA is lora_alpha"),
    "a_weight_below_0": ("cpo", dict(cpo_alpha=-1), '--cpo_alpha: found "-1", expected a number of at least 0'),
    "prompts": ("orpo", dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=2), "expected an adapter of layers; use LORA"),
    "one_token": ("orpo", dict(max_length=1), "expected at least 2"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_named(inputs, tmp_path, name):
    recipe, settings, message = BAD[name]
    run = run_strata_raw(flags_of(inputs, tmp_path / "out", **settings), recipe=recipe)
    assert run.returncode == 2 and message in run.stderr, run.text


@pytest.mark.parametrize("settings, message", [
    (dict(simpo_gamma=1.0), "simpo_gamma: has no effect; loss_type is neither simpo nor alphapo"),
    (dict(loss_type="hinge", label_smoothing=0.1), "label_smoothing: has no effect; loss_type is hinge"),
    (dict(loss_type="alphapo", cpo_alpha=0.5), "cpo_alpha: has no effect; loss_type alphapo means simpo with a cpo_alpha of 0"),
])
def test_what_does_nothing_is_told(inputs, tmp_path, settings, message):
    assert message in run_strata(flags_of(inputs, tmp_path / "out", max_steps=1, **settings), recipe="cpo").text
