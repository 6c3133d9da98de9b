# Oracle: TRL's DPOTrainer with the same flags on the same files: loss, gradient norm, rewards and
# log-probabilities of every step; the run on one rank for runs on several; the uninterrupted run.
import functools
import math
import re
import shutil
import types

import pytest
import safetensors.torch

import trl_reference
from reference_runs import expect_alike, expect_resumed_to_the_bit
from running import PROGRAM, base_flags, output_files, run_program, run_strata, run_strata_raw, strata

STEPS = 12
LORA = dict(use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0,
            lora_target_modules=["q_proj", "v_proj", "down_proj"], learning_rate=2e-2)
# 40 pairs: every micro-batch is full, as it must be where the reference weighs micro-batches alike.
CASES = {
    "full": {},
    "full_accumulated": dict(gradient_accumulation_steps=2, beta=0.5, weight_decay=0.1),
    "lora": LORA,
    "lora_checkpointed_with_eval": dict(LORA, gradient_checkpointing=True, eval_strategy="steps", eval_steps=5,
                                        per_device_eval_batch_size=4),
    "lora_with_its_dropout_off": dict(LORA, lora_dropout=0.5),
    "tied": dict(model="tied"),
    "capped_logits": dict(model="gemma2"),
    "one_head_odd_sizes": dict(model="odd"),
    "nf4": dict(LORA, load_in_4bit=True, model="wide"),
    "int8": dict(LORA, load_in_8bit=True, model="wide"),
    # The loss that balances experts is over the tokens of both answers, beside that of pairs.
    "mixture": dict(model="qwen3_moe", router_aux_loss_coef=0.3, learning_rate=2e-3),
    "mixture_accumulated_with_eval": dict(LORA, model="qwen2_moe", router_aux_loss_coef=0.2, learning_rate=5e-3,
                                          lora_target_modules=["q_proj", "v_proj"], gradient_accumulation_steps=2,
                                          eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=3),
    "mixtral": dict(model="mixtral", router_aux_loss_coef=0.1, learning_rate=1e-3),
    "ia3": dict(use_peft=True, peft_type="IA3", learning_rate=1e-1),
    "chat": dict(LORA, kind="preference_chat"),
    "short_rows": dict(max_length=24),
    "hinge": dict(loss_type="hinge", beta=0.3),
    "ipo": dict(loss_type="ipo", beta=0.2),
    "exo_pair": dict(loss_type="exo_pair", label_smoothing=0.1),
    "nca_pair": dict(loss_type="nca_pair"),
    "robust": dict(loss_type="robust", label_smoothing=0.2),
    "sppo_hard": dict(loss_type="sppo_hard", beta=0.5),
    "apo_zero": dict(loss_type="apo_zero"),
    "apo_down": dict(loss_type="apo_down"),
    "discopop": dict(loss_type="discopop", discopop_tau=0.1),
    "sigmoid_norm": dict(loss_type="sigmoid_norm", beta=2.0),
    "bco_pair": dict(loss_type="bco_pair", beta=0.3),
    # Micro-batches of 5 pairs, which one order sorts; a last one of an evaluation of fewer.
    "aot": dict(loss_type="aot", beta=0.3, label_smoothing=0.2, per_device_train_batch_size=5, gradient_accumulation_steps=2),
    "aot_with_eval": dict(LORA, loss_type="aot", ld_alpha=0.4, eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=4),
    "aot_unpaired": dict(loss_type="aot_unpaired", beta=0.3, label_smoothing=0.1, per_device_train_batch_size=5,
                         eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=3),
    "aot_of_one_pair": dict(loss_type=["aot", "aot_unpaired"], per_device_train_batch_size=1),
    "several_of_batches": dict(LORA, loss_type=["aot", "bco_pair", "aot_unpaired", "sft"], loss_weights=[0.5, 0.3, 0.2, 0.1],
                               per_device_train_batch_size=4),
    "weighted": dict(use_weighting=True, beta=0.5),
    "weighted_lora_with_eval": dict(LORA, use_weighting=True, loss_type=["ipo", "bco_pair"], loss_weights=[0.4, 0.6], beta=0.3,
                                    ld_alpha=0.4, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=5,
                                    per_device_eval_batch_size=4),
    "weighted_capped_logits": dict(model="gemma2", use_weighting=True, beta=0.5),
    "moving_reference": dict(sync_ref_model=True, ref_model_sync_steps=4, beta=0.3, eval_strategy="steps", eval_steps=4,
                             per_device_eval_batch_size=4),
    "moving_reference_accumulated": dict(sync_ref_model=True, ref_model_sync_steps=5, ref_model_mixup_alpha=0.3, beta=0.3,
                                         gradient_accumulation_steps=2, loss_type="aot", ld_alpha=0.5, weight_decay=0.1),
    # The prompt is cut as a whole: an answer's first token counts for its length, and nothing predicts it.
    "ipo_by_the_ends_of_answers": dict(loss_type="ipo", beta=0.2, max_length=6, truncation_mode="keep_end"),
    "sigmoid_norm_by_the_ends_of_answers": dict(loss_type="sigmoid_norm", beta=2.0, max_length=6,
                                                truncation_mode="keep_end"),
    # A mean over the tokens of a step is that of its micro-batch where it has one.
    "with_sft": dict(LORA, loss_type=["sigmoid", "sft"], loss_weights=[0.7, 0.3]),
    "long_answers_count_less": dict(ld_alpha=0.4),
    "long_answers_do_not_count": dict(LORA, ld_alpha=0.0, loss_type="ipo", beta=0.2, per_device_eval_batch_size=4,
                                      eval_strategy="steps", eval_steps=5),
    "long_answers_count_less_but_for_sft": dict(ld_alpha=0.4, loss_type=["sigmoid", "sft"], loss_weights=[0.7, 0.3]),
    "forward_kl": dict(f_divergence_type="forward_kl", learning_rate=1e-3),
    "js_divergence": dict(f_divergence_type="js_divergence"),
    "alpha_divergence": dict(f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.3),
}
FIGURES = ["entropy", "mean_token_accuracy", "num_tokens", "rewards/chosen", "rewards/rejected",
           "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]


def flags_of(inputs, output, model="plain", kind="preference", train=40, **flags):
    return base_flags(inputs.model(model), inputs.data(kind, train=train), output,
                      **{"max_steps": STEPS, "learning_rate": 5e-3, **flags})


def compare(found, expected):
    for ours, theirs, prefix, at in trl_reference.steps_beside(found, expected):
        # Of a model that is still its own reference the last bit would decide.
        ties = abs(theirs[prefix + "rewards/margins"]) < 1e-4
        balance = [prefix + "aux_loss"] if prefix + "aux_loss" in theirs else []
        if theirs[prefix + "rewards/margins"] == 0:
            assert ours[prefix + "rewards/accuracies"] == theirs[prefix + "rewards/accuracies"], at
        for key in [prefix + "loss", *(prefix + name for name in FIGURES), *balance]:
            if ties and key.endswith("accuracies"):
                continue
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, at)
        for key in ("grad_norm", "learning_rate", "epoch"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=2e-3, abs_tol=1e-9), (key, at)
    margins = [row["rewards/margins"] for row in expected if "rewards/margins" in row]
    assert max(map(abs, margins)) > 0.05, "the reference did not learn"


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, tmp_path, name):
    settings = {"gradient_checkpointing": False, **CASES[name]}
    flags = flags_of(inputs, tmp_path / "out", **settings)
    run = run_strata(flags, recipe="dpo")
    compare(run.state["log_history"], trl_reference.log_history(flags, "DPO"))


def test_a_base_in_8_bits_is_its_own_reference(inputs, tmp_path):
    """Training decodes its weights and evaluations quantise activations, those of the reference as well."""
    flags = flags_of(inputs, tmp_path, model="wide", load_in_8bit=True, eval_strategy="steps", eval_on_start=True, max_steps=1, **LORA)
    evaluation, first = run_strata(flags, recipe="dpo").history[:2]
    for prefix, row in (("eval_", evaluation), ("", first)):
        assert [row[f"{prefix}rewards/{kind}"] for kind in ("chosen", "rejected")] == pytest.approx([0, 0], abs=1e-6)


def test_a_continued_adapter_is_its_own_reference(inputs, tmp_path):
    first = run_strata(flags_of(inputs, tmp_path / "first", **LORA), recipe="dpo")
    flags = flags_of(inputs, tmp_path / "out", adapter_name_or_path=str(first.folder), learning_rate=2e-2)
    run = run_strata(flags, recipe="dpo")
    assert run.history[0]["rewards/margins"] == pytest.approx(0, abs=1e-5)
    compare(run.state["log_history"], trl_reference.log_history(flags, "DPO"))


# 42 pairs: the last step of an epoch has as many as the others, so that no rank's batch is filled up.
@pytest.mark.parametrize("settings", [
    {}, dict(LORA), dict(LORA, loss_type=["sigmoid", "sft"], gradient_accumulation_steps=2),
    dict(sharding_strategy="NO_SHARD"), dict(use_weighting=True, loss_type="bco_pair"),
    dict(sync_ref_model=True, ref_model_sync_steps=3, eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=3),
], ids=["full", "lora", "lora_sft_accumulated", "copies", "weighted", "moving_reference"])
def test_ranks_equal_one(inputs, tmp_path, settings):
    """The same pairs in a step, however they are dealt."""
    one = {**settings, "per_device_train_batch_size": 6, "sharding_strategy": None}
    if "per_device_eval_batch_size" in settings:
        one["per_device_eval_batch_size"] *= 3
    alone = run_strata(flags_of(inputs, tmp_path / "alone", train=42, **one), recipe="dpo")
    dealt = run_strata(flags_of(inputs, tmp_path / "dealt", train=42, **settings), world=3, recipe="dpo")
    expect_alike(dealt, alone, ["rewards/margins", "logps/chosen"])


@pytest.mark.parametrize("world, loss", [(2, "aot"), (3, "aot_unpaired")])
def test_ranks_compare_the_pairs_of_their_micro_batches(inputs, tmp_path, world, loss):
    """As TRL's ranks do: each of them is a micro-batch of the run on one, whose step has as many of them. All pairs of a step in
    one micro-batch are another loss."""
    def flags(name, **more):
        return flags_of(inputs, tmp_path / name, train=42, loss_type=loss, beta=1.0, max_steps=6, per_device_eval_batch_size=4, **more)

    dealt = run_strata(flags("dealt", per_device_train_batch_size=7), world=world, recipe="dpo")
    alone = run_strata(flags("alone", per_device_train_batch_size=7, gradient_accumulation_steps=world), recipe="dpo")
    expect_alike(dealt, alone, ["rewards/margins", "logps/chosen"])
    together = run_strata(flags("together", per_device_train_batch_size=7 * world), recipe="dpo")
    assert any(abs(ours["loss"] - theirs["loss"]) > 1e-3 for ours, theirs in zip(together.history, alone.history))


def test_a_micro_batch_of_one_pair_compares_nothing(inputs, tmp_path):
    flags = dict(max_steps=2, per_device_train_batch_size=1)
    run = run_strata(flags_of(inputs, tmp_path / "aot", loss_type="aot", **flags), recipe="dpo")
    assert "aot compares the pairs of a rank's micro-batch, which has only one" in run.text
    expect_alike(run, run_strata(flags_of(inputs, tmp_path / "sigmoid", **flags), recipe="dpo"), ["rewards/margins"])


@pytest.mark.parametrize("mode", ["attention", "selective", "full"])
def test_recomputation_changes_nothing(inputs, tmp_path, mode):
    kept = run_strata(flags_of(inputs, tmp_path / "kept", gradient_checkpointing=False, **LORA), recipe="dpo")
    again = run_strata(flags_of(inputs, tmp_path / "again", activation_checkpointing=mode, **LORA), recipe="dpo")
    assert again.history == kept.history


@pytest.mark.parametrize("settings", [{}, dict(LORA, lora_dropout=0.3, disable_dropout=False)], ids=["full", "lora"])
@pytest.mark.parametrize("has_table", [True, False], ids=["table_kept", "table_lost"])
def test_a_resumed_run_is_equal_to_the_bit(inputs, tmp_path, settings, has_table):
    expect_resumed_to_the_bit(functools.partial(flags_of, inputs), "dpo", "49 pairs", tmp_path, settings, has_table)


@pytest.mark.parametrize("steps, settings", [(4, {}), (3, dict(sharding_strategy="NO_SHARD", optim="adafactor")),
                                             (5, dict(bf16=True, zero_stage=2))], ids=["amid_its_steps", "as_it_moves", "copies"])
def test_a_reference_that_moves_is_resumed_to_the_bit(inputs, tmp_path, steps, settings):
    """It is a part of checkpoint-6, and asked about the same rows together."""
    flags = dict(sync_ref_model=True, ref_model_sync_steps=steps, save_strategy="steps", save_steps=6, eval_strategy="steps",
                 eval_steps=4, logging_steps=4, per_device_eval_batch_size=4, **settings)
    whole = run_strata(flags_of(inputs, tmp_path / "whole", **flags), world=2, recipe="dpo")
    assert f"reference: follows the model every {steps} steps" in whole.text
    assert "reference_log_probs.table" not in output_files(whole.folder)
    resumed = tmp_path / "resumed"
    shutil.copytree(whole.folder, resumed, ignore=shutil.ignore_patterns("checkpoint-12", "*model*"))
    (resumed / "latest").write_text("checkpoint-6\n")
    found = run_strata(flags_of(inputs, resumed, resume_from_checkpoint="true", **flags), world=2, recipe="dpo")
    assert found.history == whole.history
    assert (found.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    if settings:
        return
    # On another number of ranks, with the same rows a step.
    (resumed / "latest").write_text("checkpoint-6\n")
    shutil.rmtree(resumed / "checkpoint-12")
    other = run_strata(flags_of(inputs, resumed, resume_from_checkpoint="true", **{**flags, "per_device_train_batch_size": 4}),
                       recipe="dpo")
    # Figures of an evaluation are means over batches, which are others.
    other, whole = (types.SimpleNamespace(history=[row for row in run.history if "loss" in row]) for run in (other, whole))
    expect_alike(other, whole, ["rewards/margins", "logps/chosen"])


def test_a_reference_that_moves_is_another_run(inputs, tmp_path):
    """Taken whole it is the model: rewards begin at 0 behind every step. A share of nothing is a reference that stays."""
    def run(name, **more):
        return run_strata(flags_of(inputs, tmp_path / name, beta=0.3, max_steps=5, **more), recipe="dpo").history

    stays = run("stays")
    assert run("of_nothing", sync_ref_model=True, ref_model_sync_steps=2, ref_model_mixup_alpha=0) == stays
    taken = run("taken", sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=1)
    assert all(abs(row["rewards/margins"]) < 1e-5 for row in taken), taken
    assert abs(stays[-1]["rewards/margins"]) > 0.05


def test_a_reference_that_moves_needs_its_own_checkpoint(inputs, tmp_path):
    flags = dict(save_strategy="steps", save_steps=3)
    run_strata(flags_of(inputs, tmp_path / "out", **{**flags, "max_steps": 3}), recipe="dpo")
    again = run_strata_raw(flags_of(inputs, tmp_path / "out", resume_from_checkpoint="true", sync_ref_model=True, **flags), recipe="dpo")
    assert again.returncode == 1 and "sync_ref_model true (was false)" in again.stderr, again.text


def test_a_table_of_other_rows_is_not_taken(inputs, tmp_path):
    flags = dict(save_strategy="steps", save_steps=6, **LORA)
    run_strata(flags_of(inputs, tmp_path / "out", **flags), recipe="dpo")
    again = run_strata(flags_of(inputs, tmp_path / "out", train=44, resume_from_checkpoint="true", **{**flags, "max_steps": 14}),
                       recipe="dpo")
    assert "reference: log-probabilities of 28 pairs" in again.text


@pytest.mark.parametrize("settings, asked, more", [({}, 12, 12), (dict(gradient_accumulation_steps=2), 24, 16),
                                                   (dict(train_sampling_strategy="sequential"), 12, 12), (dict(max_steps=11), 40, 0)],
                         ids=["random", "accumulated", "sequential", "an_epoch_and_more"])
def test_only_rows_that_the_steps_take_are_asked_for(inputs, tmp_path, settings, asked, more):
    """A run that goes on for longer asks about the others, of the model before the first step: the steps are those of one run."""
    flags = dict(LORA, lr_scheduler_type="constant", save_strategy="steps", save_steps=3, **{"max_steps": 3, **settings})
    short = run_strata(flags_of(inputs, tmp_path / "out", **flags), world=2, recipe="dpo")
    assert f"reference: log-probabilities of {asked} pairs by the model as it starts" in short.text
    longer = dict(flags, max_steps=flags["max_steps"] + 3)
    whole = run_strata(flags_of(inputs, tmp_path / "whole", **longer), world=2, recipe="dpo")
    found = run_strata(flags_of(inputs, tmp_path / "out", resume_from_checkpoint="true", **longer), world=2, recipe="dpo")
    told = re.search(r"reference: log-probabilities of (\d+) pairs", found.text)
    assert (int(told[1]) if told else 0) == more
    for ours, theirs in zip(found.history, whole.history, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            if key in ("loss", "grad_norm", *FIGURES):
                assert math.isclose(ours[key], theirs[key], rel_tol=1e-4, abs_tol=1e-5), (key, ours, theirs)


@pytest.mark.parametrize("damage", [lambda table: b"nothing", lambda table: table[:20], lambda table: table[:-8] + b"\x7f" * 8])
def test_a_damaged_table_is_made_again(inputs, tmp_path, damage):
    flags = dict(save_strategy="steps", save_steps=6, **LORA)
    whole = run_strata(flags_of(inputs, tmp_path / "whole", **flags), recipe="dpo")
    resumed = tmp_path / "resumed"
    shutil.copytree(whole.folder, resumed, ignore=shutil.ignore_patterns("checkpoint-12", "adapter*"))
    (resumed / "latest").write_text("checkpoint-6\n")
    table = resumed / "reference_log_probs.table"
    table.write_bytes(damage(table.read_bytes()))
    found = run_strata(flags_of(inputs, resumed, resume_from_checkpoint="true", **flags), recipe="dpo")
    assert "reference_log_probs.table" in found.text and "its log-probabilities are computed again" in found.text
    assert found.history == whole.history


def test_dropout_changes_the_run_only_where_it_is_wanted(inputs, tmp_path):
    runs = {wants: run_strata(flags_of(inputs, tmp_path / str(wants), **{**LORA, "lora_dropout": 0.5},
                                       disable_dropout=not wants), recipe="dpo").history for wants in (True, False)}
    plain = run_strata(flags_of(inputs, tmp_path / "plain", **LORA), recipe="dpo").history
    assert runs[False] == plain
    assert runs[True] != plain


def test_bf16_stays_near_fp32(inputs, tmp_path):
    exact = run_strata(flags_of(inputs, tmp_path / "exact", **LORA), recipe="dpo")
    rounded = run_strata(flags_of(inputs, tmp_path / "rounded", **{**LORA, "bf16": True}), recipe="dpo")
    for ours, theirs in zip(rounded.history, exact.history, strict=True):
        assert math.isclose(ours["loss"], theirs["loss"], abs_tol=0.05)
        assert math.isclose(ours["grad_norm"], theirs["grad_norm"], rel_tol=0.15)


def test_the_result_loads_in_peft(inputs, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run = run_strata(flags_of(inputs, tmp_path / "out", **LORA), recipe="dpo")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(inputs.model("plain")), run.folder)
    saved = safetensors.torch.load_file(run.folder / "adapter_model.safetensors")
    assert saved and model.peft_config["default"].r == 4
    assert "reference_log_probs.table" in output_files(run.folder)


def test_the_plan_counts_both_answers(inputs):
    words = ["--model_name_or_path", inputs.model("plain"), "--cpu", "--max_length", "64",
             "--per_device_train_batch_size", "2"]
    assert "256 tokens" in strata("plan", "dpo", *words)


BAD = {
    "weights_of_compared_pairs": (dict(loss_type=["sigmoid", "aot"], use_weighting=True),
                                  "--use_weighting: found true with the loss aot, expected a loss of single pairs"),
    "weights_of_tokens": (dict(loss_type=["sigmoid", "sft"], use_weighting=True), "found true with the loss sft, expected a loss of pairs"),
    "a_divergence_of_a_batch": (dict(loss_type="aot", f_divergence_type="forward_kl"),
                                "expected a loss of the difference between the two rewards"),
    "an_unknown_loss": (dict(loss_type="sigmoit"), "did you mean sigmoid?"),
    "weights_of_other_losses": (dict(loss_type=["sigmoid", "sft"], loss_weights=[1]), "found 1 of them for 2 losses"),
    "weights_that_are_no_numbers": (dict(loss_type=["sigmoid", "sft"], loss_weights=["1", "x"]), 'found "x", expected numbers'),
    "a_loss_without_its_share": (dict(loss_type="exo_pair"), "found exo_pair without label_smoothing"),
    "a_divergence_of_another_loss": (dict(loss_type="nca_pair", f_divergence_type="forward_kl"),
                                     "expected a loss of the difference between the two rewards"),
    "beta_of_nothing": (dict(beta=0), "with it nothing is learnt"),
    "a_setting_of_sft": (dict(packing=True), "--packing: found with the recipe dpo, expected a setting of it; "
                                             "remove it, or run strata sft"),
    "a_base_that_moves": (dict(LORA, sync_ref_model=True),
                          "--sync_ref_model: found true with --use_peft true, expected a fully trained model"),
    "a_table_that_moves_by_another_word": (dict(precompute_ref_log_probs="yes", sync_ref_model=True), "expected it without"),
    "an_adapter_that_goes_on_beside_it": (dict(adapter_name_or_path="somewhere", sync_ref_model=True),
                                          "found true with use_peft true (implied by --adapter_name_or_path), expected a fully trained model"),
    "a_table_that_moves": (dict(precompute_ref_log_probs=True, sync_ref_model=True),
                           "found true with --precompute_ref_log_probs true, expected it without"),
    "a_reference_in_files": (dict(sync_ref_model=True, offload_param_device="nvme", offload_param_nvme_path="/tmp"),
                             "found true with --offload_param_device nvme, expected weights and state in memory"),
    "steps_of_nothing": (dict(sync_ref_model=True, ref_model_sync_steps=0), '--ref_model_sync_steps: found "0"'),
    "more_than_the_model": (dict(sync_ref_model=True, ref_model_mixup_alpha=1.5), '--ref_model_mixup_alpha: found "1.5"'),
    "an_adapter_that_is_not_the_base": (dict(LORA, init_lora_weights="false"), "expected an adapter that starts as the base"),
    "vectors_that_are_not_the_base": (dict(use_peft=True, peft_type="VERA", init_weights="false"),
                                      "expected an adapter that starts as the base"),
    "an_infinite_weight": (dict(loss_weights=["inf"]), 'found "inf", expected numbers'),
    "a_file_of_another_recipe": (dict(config="RECIPE"), "found sft for the command dpo, expected the same; run strata sft"),
    "prompts": (dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=2),
                "expected an adapter that starts as the base"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_named(inputs, tmp_path, name):
    settings, message = BAD[name]
    if settings.get("config"):
        (tmp_path / "run.yaml").write_text("recipe: sft\n")
        settings = dict(config=tmp_path / "run.yaml")
    run = run_strata_raw(flags_of(inputs, tmp_path / "out", **settings), recipe="dpo")
    assert run.returncode == 2 and message in run.stderr, run.text


@pytest.mark.parametrize("flag,value,message", [
    ("beta", 0.2, "found with the recipe sft, expected a setting of it; remove it, or run strata dpo"),
    ("disable_dropout", False, "found with the recipe sft, expected a setting of it; remove it, or run strata dpo"),
    ("loss_type", "dft", "found dft with the recipe sft, expected nll; remove it"),
    ("truncation_mode", "keep_end", "found keep_end with the recipe sft, expected keep_start; remove it"),
])
def test_sft_has_no_such_settings(inputs, tmp_path, flag, value, message):
    flags = base_flags(inputs.model("plain"), inputs.data("prompt"), tmp_path / "out", **{flag: value})
    run = run_strata_raw(flags)
    assert run.returncode == 2 and f"--{flag}: {message}" in run.stderr


def test_a_file_that_is_checked_alone_names_its_recipe(tmp_path):
    """`strata config check` has no command's name to tell the recipe by."""
    file = tmp_path / "run.yaml"
    file.write_text("beta: 0.2\n")
    said = strata("config", "check", file, code=2)
    assert said.strip().endswith("remove it, or run strata dpo (a file says so with recipe: dpo)"), said
    file.write_text("beta: 0.2\nrecipe: dpo\npadding_value: 0\nis_encoder_decoder: false\n")
    said = strata("config", "check", file)
    assert "(padding_value): has no effect here; nothing is ever padded here" in said and "is_encoder" not in said, said


def test_one_weight_of_the_usual_loss(inputs, tmp_path):
    half, whole = [run_strata(flags_of(inputs, tmp_path / name, max_steps=1, **more), recipe="dpo").history[0]
                   for name, more in (("half", dict(loss_weights=[0.5])), ("whole", {}))]
    assert half["loss"] == pytest.approx(whole["loss"] / 2)


def test_another_loss_is_told_when_a_run_goes_on(inputs, tmp_path):
    flags = dict(save_strategy="steps", save_steps=6, **LORA)
    run_strata(flags_of(inputs, tmp_path / "out", **{**flags, "max_steps": 6}), recipe="dpo")
    again = run_strata(flags_of(inputs, tmp_path / "out", resume_from_checkpoint="true", beta=0.5, loss_type="hinge", **flags),
                       recipe="dpo")
    assert "beta" in again.text and "loss_type" in again.text
    assert "reference: log-probabilities of 12 pairs" in again.text, "those of six steps more"


def test_an_encoder_is_refused(tmp_path):
    import tiny_t5

    model = tiny_t5.save_t5(tmp_path / "t5")
    run = run_strata_raw(base_flags(model, tmp_path, tmp_path / "out"), recipe="dpo")
    assert run.returncode == 2 and "encoder" in run.stderr


def test_a_script_called_dpo_is_the_recipe(inputs, tmp_path):
    run = run_program(flags_of(inputs, tmp_path / "out", max_steps=1), recipe="examples/dpo.py", world=2)
    assert "examples/dpo.py: running the built-in recipe dpo in its place" in run.stderr
    assert "rewards/margins" in run.history[0]
