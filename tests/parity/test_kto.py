# Oracle: TRL's KTOTrainer with the same flags on the same files: loss, gradient norm, divergence, rewards, log-probabilities
# and mean logits of every step; the run on one rank for a run on two; the uninterrupted run.
import functools
import math
import random
import re

import pytest

import tiny_llama
import trl_reference
from reference_runs import expect_alike, expect_resumed_to_the_bit
from running import base_flags, run_program, run_strata, run_strata_raw, strata

STEPS = 12
LORA = dict(use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0,
            lora_target_modules=["q_proj", "v_proj", "down_proj"], learning_rate=2e-2)
EVALUATED = dict(eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=4)
CASES = {
    "full": {},
    "full_accumulated": dict(gradient_accumulation_steps=2, beta=0.5, weight_decay=0.1),
    # The 14th batch of the first epoch is one row, whose divergence is that of its own answer.
    "last_batch_of_one_row": dict(per_device_train_batch_size=3, max_steps=16),
    # Evaluations take the neighbours of training batches, in batches of their own.
    "lora_with_eval": dict(LORA, **EVALUATED),
    "lora_checkpointed": dict(LORA, gradient_checkpointing=True, per_device_train_batch_size=4),
    "the_table_is_an_option_there": dict(LORA, precompute_ref_log_probs=True, precompute_ref_batch_size=3),
    "weights": dict(desirable_weight=0.6, undesirable_weight=1.7, beta=0.3),
    "apo_zero_unpaired": dict(LORA, loss_type="apo_zero_unpaired", desirable_weight=1.3, **EVALUATED),
    "apo_zero_unpaired_of_single_rows": dict(loss_type="apo_zero_unpaired", per_device_train_batch_size=1,
                                             train_sampling_strategy="random"),
    "moving_reference": dict(sync_ref_model=True, ref_model_sync_steps=4, beta=0.3, **EVALUATED),
    "tied_chat": dict(model="tied", kind="rated_chat"),
    "capped_logits": dict(model="gemma2"),
    "mixture": dict(model="qwen3_moe", router_aux_loss_coef=0.3, learning_rate=2e-3),
    "nf4": dict(LORA, load_in_4bit=True, model="wide"),
    "int8": dict(LORA, load_in_8bit=True, model="wide"),
    # Answers are cut behind each prompt anew.
    "short_rows": dict(LORA, max_length=12),
    "pairs_taken_apart": dict(kind="preference", train=6, max_steps=7),
}
FIGURES = ["entropy", "num_tokens", "kl", "rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen",
           "logps/rejected", "logits/chosen", "logits/rejected"]


def flags_of(inputs, output, model="plain", kind="rated", train=40, **flags):
    return base_flags(inputs.model(model), inputs.data(kind, train=train), output,
                      **{"max_steps": STEPS, "learning_rate": 5e-3, "gradient_checkpointing": False, **flags})


def compare(found, expected):
    for ours, theirs, prefix, at in trl_reference.steps_beside(found, expected):
        balance = [prefix + "aux_loss"] if prefix + "aux_loss" in theirs else []
        # A batch without a kind of answers says nothing of it.
        assert {name for name in FIGURES if prefix + name in ours} == {name for name in FIGURES if prefix + name in theirs}, at
        for key in [prefix + "loss", *(prefix + name for name in FIGURES if prefix + name in theirs), *balance]:
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, at)
        for key in ("grad_norm", "learning_rate", "epoch"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=2e-3, abs_tol=1e-9), (key, at)
    rewards = [row[key] for row in expected for key in ("rewards/chosen", "rewards/rejected") if key in row]
    assert max(map(abs, rewards)) > 0.05, "the reference did not learn"


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, tmp_path, name):
    flags = flags_of(inputs, tmp_path / "out", **CASES[name])
    run = run_strata(flags, recipe="kto")
    compare(run.state["log_history"], trl_reference.log_history(flags, "KTO"))


def test_the_cases_cover_what_is_rare(inputs, tmp_path):
    """Batches of one kind alone, of one row, and a divergence that is more than its bound of 0."""
    history = trl_reference.log_history(flags_of(inputs, tmp_path, **CASES["full"]), "KTO")
    kinds = {(("rewards/chosen" in row), ("rewards/rejected" in row)) for row in history if "kl" in row}
    assert kinds == {(True, False), (False, True), (True, True)}
    found = [row["kl"] for row in history if "kl" in row]
    assert found[0] == 0 and max(found) > 0.1


def test_a_continued_adapter_is_its_own_reference(inputs, tmp_path):
    first = run_strata(flags_of(inputs, tmp_path / "first", **LORA), recipe="kto")
    flags = flags_of(inputs, tmp_path / "out", adapter_name_or_path=str(first.folder), learning_rate=2e-2)
    run = run_strata(flags, recipe="kto")
    assert run.history[0]["kl"] == pytest.approx(0, abs=1e-4)
    compare(run.state["log_history"], trl_reference.log_history(flags, "KTO"))


@pytest.fixture(scope="module")
def two_answers(tmp_path_factory):
    """Rows whose answers are two in turn: the neighbours' are the same in batches of 2 and of 4."""
    folder, rng = tmp_path_factory.mktemp("two_answers"), random.Random(5)
    answers = [" " + tiny_llama.sentence(rng) for _ in range(2)]
    for split, count in (("train", 40), ("test", 8)):
        tiny_llama.write_rows(folder / f"{split}.jsonl", [
            {"prompt": tiny_llama.sentence(rng), "completion": answers[i % 2], "label": rng.random() < 0.5}
            for i in range(count)])
    return folder


@pytest.mark.parametrize("settings", [dict(EVALUATED, per_device_eval_batch_size=2, gradient_accumulation_steps=2),
                                      dict(gradient_accumulation_steps=2, sharding_strategy="ZERO2")],
                         ids=["full_with_eval", "zero2"])
def test_two_ranks_equal_one(inputs, two_answers, tmp_path, settings):
    """The divergence is the mean over all ranks."""
    one = {**settings, "per_device_train_batch_size": 4, "sharding_strategy": None}
    if "per_device_eval_batch_size" in one:
        one["per_device_eval_batch_size"] = 4
    alone, dealt = [run_strata({**flags_of(inputs, tmp_path / str(world), **flags), "dataset_name": two_answers}, world,
                               recipe="kto") for world, flags in ((1, one), (2, settings))]
    assert any(row.get("kl", 0) > 0.05 for row in alone.history)
    expect_alike(dealt, alone, FIGURES)


@pytest.mark.parametrize("settings, has_table", [({}, True), (dict(LORA, lora_dropout=0.3, disable_dropout=False), False)],
                         ids=["full_table_kept", "lora_table_lost"])
def test_a_resumed_run_is_equal_to_the_bit(inputs, tmp_path, settings, has_table):
    expect_resumed_to_the_bit(functools.partial(flags_of, inputs), "kto", "49 answers", tmp_path, settings, has_table)


def test_the_best_checkpoint_by_a_figure(inputs, tmp_path):
    """Also where an evaluation has no such answers."""
    data = tmp_path / "data"
    tiny_llama.save_data(data, "rated")
    rows = [dict(row, label=True) for row in tiny_llama.make_rows("rated", 4)]
    tiny_llama.write_rows(data / "test.jsonl", rows)
    flags = dict(flags_of(inputs, tmp_path / "out", max_steps=4, **EVALUATED), dataset_name=data, eval_steps=2,
                 save_strategy="steps", save_steps=2, metric_for_best_model="rewards/rejected", load_best_model_at_end=True)
    run = run_strata(flags, recipe="kto")
    evaluations = [row for row in run.history if "eval_loss" in row]
    assert evaluations and all("eval_rewards/chosen" in row and "eval_rewards/rejected" not in row for row in evaluations)
    assert "evaluation: none of 4 answers is undesirable: what sets them apart is not learnt" in run.text


@pytest.mark.parametrize("desirable, weights, said", [
    (30, {}, "30 desirable and 10 undesirable answers with the weights 1 and 1: one kind outweighs the other; set "
             "--desirable_weight from 0.33 to 0.44, or --undesirable_weight from 2.26 to 3, not both"),
    (30, dict(undesirable_weight=2.5), ""), (20, {}, ""),
], ids=["outweighed", "weighed", "as_many"])
def test_unequal_kinds_are_told(inputs, tmp_path, desirable, weights, said):
    """Oracle: the bounds of TRL's warning, from the paper's equation 8."""
    rows = [dict(row, label=i < desirable) for i, row in enumerate(tiny_llama.make_rows("rated", 40))]
    tiny_llama.write_rows(tmp_path / "train.jsonl", rows)
    flags = dict(flags_of(inputs, tmp_path / "out", max_steps=1, **weights), dataset_name=tmp_path, splits="train")
    text = run_strata(flags, recipe="kto").text
    assert said in text and ("outweighs" in text) == bool(said), text


def test_the_plan_counts_the_pass_beside(inputs):
    """Every step gathers the units once more for it; the reference is asked before the first step, whatever the loss."""
    words = ["--model_name_or_path", inputs.model("plain"), "--cpu", "--max_length", "64", "--per_device_train_batch_size", "2",
             "--num_processes", "2"]
    said = [strata("plan", "kto", *words, "--loss_type", loss) for loss in ("kto", "apo_zero_unpaired")]
    assert all("128 tokens" in text and "evaluate" in text for text in said), said
    sent = [float(re.search(r"wire +([\d.]+) MB sent", text)[1]) for text in said]
    assert sent[0] > 1.2 * sent[1]


def test_preview_shows_both_documents(inputs, tmp_path):
    said = strata("preview", "kto", "--model_name_or_path", inputs.model("plain"), "--dataset_name", inputs.data("rated"))
    assert "-- desirable, " in said and "-- undesirable, " in said and "-- another row's answer, looked at for kl and not trained, " in said, said
    said = strata("preview", "kto", "--model_name_or_path", inputs.model("plain"), "--dataset_name", inputs.data("rated"),
                  "--loss_type", "apo_zero_unpaired")
    assert "-- undesirable, " in said and "another row" not in said, said


def test_a_line_of_trl(inputs, tmp_path):
    """That of its script's page, with the flags that stand there."""
    flags = dict(model_name_or_path=inputs.model("wide"), dataset_name=inputs.data("rated_chat"), per_device_train_batch_size=4,
                 max_steps=2, learning_rate=5e-7, lr_scheduler_type="cosine", gradient_accumulation_steps=1, eval_steps=500,
                 output_dir=tmp_path / "out", warmup_steps=0.1, logging_first_step=True, use_peft=True, load_in_4bit=True,
                 lora_target_modules="all-linear", lora_r=16, lora_alpha=16, bf16=False)
    run = run_program(flags, recipe="trl/scripts/kto.py", world=2)
    assert "trl/scripts/kto.py: running the built-in recipe kto in its place" in run.stderr
    assert run.history[0]["kl"] == pytest.approx(0, abs=1e-3) and run.history[0]["loss"] == pytest.approx(0.5, abs=1e-4)


BAD = {
    "a_loss_of_pairs": (dict(loss_type="hinge"), "found hinge, a loss of the recipe dpo, expected one of kto, apo_zero_unpaired"),
    "an_unknown_loss": (dict(loss_type="apo_zero_unpared"), "did you mean apo_zero_unpaired?"),
    "two_losses": (dict(loss_type=["kto", "apo_zero_unpaired"]), "found 2 losses (kto, apo_zero_unpaired), expected one"),
    "beta_of_nothing": (dict(beta=0), "with it nothing is learnt"),
    "weights_of_nothing": (dict(desirable_weight=0, undesirable_weight=0), "with both nothing is learnt"),
    "a_weight_below_0": (dict(desirable_weight=-1), '--desirable_weight: found "-1", expected a number of at least 0'),
    "another_order": (dict(train_sampling_strategy="random"), "--train_sampling_strategy: found random with the loss kto"),
    "batches_of_one": (dict(per_device_train_batch_size=1), "--per_device_train_batch_size: found 1 with the loss kto"),
    "a_setting_of_sft": (dict(packing=True), "--packing: found with the recipe kto, expected a setting of it"),
    "a_setting_of_dpo": (dict(ld_alpha=0.3), "--ld_alpha: found with the recipe kto, expected a setting of it; remove it, or run "
                                             "strata dpo"),
    "another_end": (dict(truncation_mode="keep_end"), "--truncation_mode: found with the recipe kto"),
    "a_base_that_moves": (dict(LORA, sync_ref_model=True), "expected a fully trained model"),
    "answers_while_evaluating": (dict(generate_during_eval=True), "evaluation computes the loss and the rewards"),
    "an_adapter_that_is_not_the_base": (dict(LORA, init_lora_weights="false"),
                                        "found false with the recipe kto, expected an adapter that starts as the base"),
    "prompts": (dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=2),
                "expected an adapter that starts as the base"),
    "one_token": (dict(max_length=1), "expected at least 2 for rated answers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_named(inputs, tmp_path, name):
    settings, message = BAD[name]
    run = run_strata_raw(flags_of(inputs, tmp_path / "out", **settings), recipe="kto")
    assert run.returncode == 2 and message in run.stderr, run.text
