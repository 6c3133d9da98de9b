# Oracle: TRL's RewardTrainer with the same flags on the same files: loss, gradient norm and figures of every
# step; transformers' and PEFT's classes for the files; the run on one rank for runs on several; the
# uninterrupted run.
import json
import math
import shutil

import pytest
import safetensors.torch
import torch

import trl_reference
from running import base_flags, run_program, run_strata, run_strata_raw, strata
from tiny_llama import make_rows, write_rows

STEPS = 10
LORA = dict(use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0,
            lora_target_modules=["q_proj", "v_proj", "down_proj"], learning_rate=2e-2)
CASES = {
    "full": {},
    "full_accumulated": dict(gradient_accumulation_steps=2, weight_decay=0.1),
    "centred": dict(center_rewards_coefficient=0.3),
    "lora": LORA,
    "lora_checkpointed_with_eval": dict(LORA, gradient_checkpointing=True, eval_strategy="steps", eval_steps=5,
                                        per_device_eval_batch_size=4),
    "lora_of_all_layers": dict(LORA, lora_target_modules="all-linear"),
    "lora_with_its_dropout_off": dict(LORA, lora_dropout=0.5),
    "dora": dict(LORA, use_dora=True),
    "ia3": dict(use_peft=True, peft_type="IA3", learning_rate=1e-1),
    "chat": dict(LORA, kind="preference_chat"),
    "some_rows_are_too_long": dict(max_length=40),
    "nf4": dict(LORA, load_in_4bit=True, model="wide"),
    "no_token_for_padding": dict(model="llama2"),
    **{name: dict(model=name) for name in ("tied", "odd", "mistral", "qwen2", "qwen3", "phi3", "smollm3", "gemma",
                                           "gemma2", "olmo2", "olmo3", "glm", "glm4", "qwen3_moe", "qwen2_moe",
                                           "deepseek_v2", "deepseek_v3")},
    **{name: dict(model=name, learning_rate=2e-4) for name in ("qwen3_5", "qwen3_next")},
    # Steep: at 5e-3 eight steps make 1e-3 out of how processors round.
    **{name: dict(model=name, learning_rate=1e-3) for name in ("mixtral", "gemma3")},
    **{name: dict(model=name, learning_rate=5e-4) for name in ("gpt_oss", "hunyuan_v1_moe")},
    **{name: dict(model=name) for name in ("seed_oss", "helium", "minicpm3", "olmo", "arcee", "exaone4", "hunyuan", "ministral3")},
    # The bias of a final norm moves both rewards alike: only a centred loss says where they are.
    "gpt2": dict(model="gpt2", center_rewards_coefficient=0.3),
    "opt": dict(model="opt", center_rewards_coefficient=0.3),
    "opt_350m": dict(model="opt_350m", center_rewards_coefficient=0.3),
    **{name: dict(model=name, center_rewards_coefficient=0.3)
       for name in ("gpt", "starcoder2", "phi", "persimmon", "stablelm", "nemotron", "gptj", "gpt_neo", "falcon", "falcon_40b", "bloom", "mpt")},
    "gpt_neox": dict(model="gpt_neox", center_rewards_coefficient=0.3),
    "bigcode": dict(model="bigcode", center_rewards_coefficient=0.3),
}
FIGURES = ["num_tokens", "min_reward", "mean_reward", "max_reward", "accuracy", "margin"]


@pytest.fixture
def scorer(inputs):
    """Folders of models that give rewards, by the name of the model that they are made of."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    def make(name):
        folder = inputs.folder / f"scorer-{name}"
        if folder.exists():
            return folder
        tokenizer = AutoTokenizer.from_pretrained(inputs.model(name))
        model = AutoModelForSequenceClassification.from_pretrained(inputs.model(name), num_labels=1)
        with torch.no_grad():
            model.score.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(3))
        # What TRL's disable_dropout does not reach.
        for key in {"helium": ["attention_dropout"], "olmo": ["attention_dropout"], "bigcode": ["attn_pdrop"], "gpt_neox": ["attention_dropout"], "opt": ["dropout"],
                    "opt_350m": ["dropout"], "seed_oss": ["residual_dropout", "attention_dropout"],
                    "starcoder2": ["residual_dropout", "attention_dropout", "embedding_dropout"],
                    "falcon": ["hidden_dropout"], "falcon_40b": ["hidden_dropout"], "bloom": ["hidden_dropout"]}.get(name, []):
            setattr(model.config, key, 0.0)
        if tokenizer.pad_token is not None:
            model.config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder
    return make


def flags_of(inputs, model, output, kind="preference", train=40, **flags):
    return base_flags(model, inputs.data(kind, train=train), output,
                      **{"max_steps": STEPS, "learning_rate": 5e-3, "gradient_checkpointing": False, **flags})


def compare(found, expected, figures=FIGURES):
    for ours, theirs, prefix, at in trl_reference.steps_beside(found, expected):
        for key in [prefix + "loss", *(prefix + name for name in figures)]:
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, at)
        for key in ("grad_norm", "learning_rate", "epoch"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=2e-3, abs_tol=1e-9), (key, at)
    margins = [row["margin"] for row in expected if "margin" in row]
    assert max(margins) - min(margins) > 0.05, "the reference did not learn"


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, scorer, tmp_path, name):
    settings = dict(CASES[name])
    flags = flags_of(inputs, scorer(settings.pop("model", "plain")), tmp_path / "out", **settings)
    run = run_strata(flags, recipe="reward")
    compare(run.state["log_history"], trl_reference.log_history(flags, "Reward"))


@pytest.mark.parametrize("name", ["plain", "tied", "gpt2", "llama2", "gemma3"])
def test_a_new_head_is_that_of_the_reference(inputs, tmp_path, name):
    """Out of a model that predicts tokens: the values that transformers draws under the same seed, and what
    they are trained to; the folder that is left gives what the run said."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    flags = flags_of(inputs, inputs.model(name), tmp_path / "out", eval_strategy="steps", eval_steps=STEPS,
                     per_device_eval_batch_size=9, seed=7)
    run = run_strata(flags, recipe="reward")
    compare(run.state["log_history"], trl_reference.log_history(flags, "Reward"))

    model = AutoModelForSequenceClassification.from_pretrained(run.folder)
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    assert model.num_labels == 1 and model.config.pad_token_id == tokenizer.pad_token_id is not None
    assert "lm_head.weight" not in safetensors.torch.load_file(run.folder / "model.safetensors")
    rows = [json.loads(line) for line in (inputs.data("preference") / "test.jsonl").open()]
    texts = [row["prompt"] + row[side] + tokenizer.eos_token for row in rows for side in ("chosen", "rejected")]
    rows = [[tokenizer(text, return_tensors="pt") for text in texts[i:i + 2]] for i in range(0, len(texts), 2)]
    kept = [text for row in rows for text in row if all(one["input_ids"].numel() <= 64 for one in row)]
    with torch.no_grad():
        found = torch.stack([model(**text).logits[0, 0] for text in kept])
    last = run.history[-1] if "eval_mean_reward" in run.history[-1] else run.history[-2]
    assert found.mean().item() == pytest.approx(last["eval_mean_reward"], rel=1e-4, abs=1e-5)
    assert found.min().item() == pytest.approx(last["eval_min_reward"], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name,settings", [("odd", {}), ("odd", LORA), ("wide", dict(LORA, load_in_4bit=True)),
                                           ("wide", dict(LORA, load_in_8bit=True, fsdp_cpu_ram_efficient_loading=True))],
                         ids=["full", "lora", "nf4", "int8_rank_0_reads"])
def test_a_new_head_is_the_same_on_every_world_size(inputs, tmp_path, name, settings):
    from transformers import AutoModelForSequenceClassification, set_seed

    folder = inputs.model(name)  # making it draws, too
    set_seed(5)
    expected = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).score.weight
    for world in (1, 2, 3):
        flags = flags_of(inputs, inputs.model(name), tmp_path / str(world), seed=5,
                         **{**settings, "learning_rate": 0, "max_steps": 1})
        run = run_strata(flags, world=world, recipe="reward")
        file = "adapter_model.safetensors" if settings else "model.safetensors"
        saved = safetensors.torch.load_file(run.folder / file)
        head = saved["base_model.model.score.weight" if settings else "score.weight"]
        assert torch.equal(head, expected.detach())
    assert 0.01 < head.std().item() < 0.04  # initializer_range is 0.02


# 42 pairs: the last step of an epoch has as many as the others, so that no rank's batch is filled up.
@pytest.mark.parametrize("settings", [{}, LORA, dict(gradient_accumulation_steps=2), dict(sharding_strategy="NO_SHARD"),
                                      dict(sharding_strategy="SHARD_GRAD_OP", center_rewards_coefficient=0.1)],
                         ids=["full", "lora", "accumulated", "copies", "gathered"])
def test_ranks_equal_one(inputs, scorer, tmp_path, settings):
    """The same pairs in a step, however they are dealt: the lowest reward is that of all ranks."""
    settings = {**settings, "max_length": 128}  # of all rows
    one = {**settings, "per_device_train_batch_size": 6, "sharding_strategy": None}
    alone = run_strata(flags_of(inputs, scorer("plain"), tmp_path / "alone", train=42, **one), recipe="reward")
    dealt = run_strata(flags_of(inputs, scorer("plain"), tmp_path / "dealt", train=42, **settings), world=3, recipe="reward")
    for ours, theirs in zip(dealt.history, alone.history, strict=True):
        for key in ("loss", "grad_norm", *FIGURES):
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, ours, theirs)


@pytest.mark.parametrize("mode", ["attention", "selective", "full"])
def test_recomputation_changes_nothing(inputs, scorer, tmp_path, mode):
    kept = run_strata(flags_of(inputs, scorer("plain"), tmp_path / "kept", **LORA), recipe="reward")
    again = run_strata(flags_of(inputs, scorer("plain"), tmp_path / "again", **LORA, activation_checkpointing=mode,
                                gradient_checkpointing=None), recipe="reward")
    assert again.history == kept.history


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_a_resumed_run_is_equal_to_the_bit(inputs, tmp_path, settings):
    flags = dict(save_strategy="steps", save_steps=5, eval_strategy="steps", eval_steps=4, logging_steps=4, **settings)
    whole = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "whole", **flags), world=2, recipe="reward")
    resumed = tmp_path / "resumed"
    shutil.copytree(whole.folder, resumed, ignore=shutil.ignore_patterns("checkpoint-10", "*model*", "adapter*"))
    (resumed / "latest").write_text("checkpoint-5\n")
    found = run_strata(flags_of(inputs, inputs.model("plain"), resumed, resume_from_checkpoint="true", **flags), world=2,
                       recipe="reward")
    assert found.history == whole.history
    name = "adapter_model.safetensors" if settings else "model.safetensors"
    assert (found.folder / name).read_bytes() == (whole.folder / name).read_bytes()


def test_bf16_stays_near_fp32(inputs, scorer, tmp_path):
    settings = {**LORA, "learning_rate": 5e-3}
    exact = run_strata(flags_of(inputs, scorer("plain"), tmp_path / "exact", **settings), recipe="reward")
    rounded = run_strata(flags_of(inputs, scorer("plain"), tmp_path / "rounded", **{**settings, "bf16": True}), recipe="reward")
    for ours, theirs in zip(rounded.history, exact.history, strict=True):
        assert math.isclose(ours["loss"], theirs["loss"], abs_tol=0.05)


@pytest.mark.parametrize("name", ["plain", "tied", "gpt2"])
def test_an_adapter_loads_in_peft_and_merges(inputs, tmp_path, name):
    """PEFT's model and the folder of merge-adapter give each text the same reward."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    settings = {**LORA, "lora_target_modules": "all-linear"}
    run = run_strata(flags_of(inputs, inputs.model(name), tmp_path / "out", **settings), recipe="reward")
    config = json.loads((run.folder / "adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_CLS" and config["modules_to_save"] == ["classifier", "score"]
    assert not any("score" in target for target in config["target_modules"])
    base = AutoModelForSequenceClassification.from_pretrained(inputs.model(name), num_labels=1)
    peft = PeftModel.from_pretrained(base, run.folder)
    strata("merge-adapter", run.folder, tmp_path / "merged")
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert "lm_head.weight" not in safetensors.torch.load_file(tmp_path / "merged" / "model.safetensors")
    ids = torch.tensor([[5, 9, 30, 4]])
    with torch.no_grad():
        expected = peft(ids).logits
        assert torch.allclose(merged(ids).logits, expected, atol=1e-5)
    assert expected.abs().max() > 1e-3
    again = run_strata(flags_of(inputs, tmp_path / "merged", tmp_path / "again", max_steps=1), recipe="reward")
    assert again.losses


def test_a_continued_adapter_equals_the_reference(inputs, scorer, tmp_path):
    first = run_strata(flags_of(inputs, scorer("plain"), tmp_path / "first", **LORA), recipe="reward")
    flags = flags_of(inputs, scorer("plain"), tmp_path / "out", adapter_name_or_path=str(first.folder), learning_rate=2e-2)
    run = run_strata(flags, recipe="reward")
    compare(run.state["log_history"], trl_reference.log_history(flags, "Reward"))


def test_a_continued_adapter_brings_its_head(inputs, tmp_path):
    """Oracle: the adapter's file, over a base that has no head."""
    first = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "first", **{**LORA, "max_steps": 2}), recipe="reward")
    flags = flags_of(inputs, inputs.model("plain"), tmp_path / "out", adapter_name_or_path=first.folder, learning_rate=1e-30, max_steps=1)
    found, expected = (safetensors.torch.load_file(run.folder / "adapter_model.safetensors")
                       for run in (run_strata(flags, recipe="reward"), first))
    assert found.keys() == expected.keys() and "base_model.model.score.weight" in found
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-7)


def test_an_adapter_of_another_recipe_is_refused(inputs, tmp_path):
    words = run_strata(base_flags(inputs.model("plain"), inputs.data("text"), tmp_path / "words", max_steps=1, **LORA))
    rewards = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "rewards", **{**LORA, "max_steps": 1}),
                         recipe="reward")
    for adapter, recipe, kind, expected in ((words, "reward", "preference", "without a layer of rewards"),
                                            (rewards, "dpo", "preference", "with a layer of rewards")):
        run = run_strata_raw(base_flags(inputs.model("plain"), inputs.data(kind), tmp_path / "out", max_steps=1,
                                        adapter_name_or_path=str(adapter.folder)), recipe=recipe)
        assert run.returncode == 2 and f"found an adapter {expected}" in run.stderr, run.stderr


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_another_recipe_does_not_go_on_from_its_checkpoints(inputs, tmp_path, settings):
    """Of a tied model all weights that sft needs are there, trained for something else."""
    flags = flags_of(inputs, inputs.model("tied"), tmp_path / "out", save_strategy="steps", save_steps=1,
                     **{**settings, "max_steps": 1})
    run = run_strata(flags, recipe="reward")
    name = "adapter_model.safetensors" if settings else "model.safetensors"
    before = (run.folder / name).read_bytes()
    other = run_strata_raw(base_flags(inputs.model("tied"), inputs.data("text"), run.folder, resume_from_checkpoint="true",
                                      **{**settings, "max_steps": 1}))
    assert other.returncode == 2 and "saved by the recipe reward, with the recipe sft" in other.stderr, other.stderr
    assert (run.folder / name).read_bytes() == before


@pytest.mark.parametrize("name", ["plain", "tied"])
def test_a_checkpoint_converts_to_a_reward_model(inputs, tmp_path, name):
    """The run's own result: its weights, and what config.json says of them, though the base is of another class."""
    run = run_strata(flags_of(inputs, inputs.model(name), tmp_path / "out", save_strategy="steps", save_steps=1, max_steps=1),
                     recipe="reward")
    strata("convert", run.folder / "checkpoint-1", tmp_path / "converted", "--to", "safetensors")
    result, converted = (json.loads((folder / "config.json").read_text()) for folder in (run.folder, tmp_path / "converted"))
    assert converted["architectures"] == ["LlamaForSequenceClassification"] and converted["id2label"] == result["id2label"]
    ours, theirs = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (tmp_path / "converted", run.folder))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    strata("convert", run.folder / "checkpoint-1", tmp_path / "codes", "--to", "bnb-4bit")
    again = run_strata(flags_of(inputs, tmp_path / "codes", tmp_path / "again", **{**LORA, "max_steps": 1}), recipe="reward")
    assert again.losses


def test_a_head_of_several_labels_merges_to_a_classifier(inputs, tmp_path):
    """PEFT's adapter of a classifier: no file says what its labels are called."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = AutoModelForSequenceClassification.from_pretrained(inputs.model("plain"), num_labels=3)
    peft = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", target_modules=["q_proj"]))
    peft.save_pretrained(tmp_path / "adapter")
    strata("merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", inputs.model("plain"))
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert merged.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    ids = torch.tensor([[5, 9, 30, 4]])
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, peft.eval()(ids).logits, atol=1e-5)


def test_where_a_mask_comes_first_types_are_those_of_weights(inputs, tmp_path):
    """Old files of GPT-2 hold attention's masks, whose names come before those of weights. Oracle: the file without."""
    settings = {**LORA, "lora_target_modules": "all-linear"}
    run = run_strata(flags_of(inputs, inputs.model("gpt2"), tmp_path / "out", max_steps=2, **settings), recipe="reward")
    base = tmp_path / "base"
    shutil.copytree(inputs.model("gpt2"), base)
    weights = safetensors.torch.load_file(base / "model.safetensors")
    masks = {f"transformer.h.{layer}.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8).tril() for layer in range(2)}
    assert min(weights | masks) in masks or "lm_head.weight" in weights
    weights.pop("lm_head.weight", None)
    safetensors.torch.save_file(weights | masks, base / "model.safetensors", metadata={"format": "pt"})
    for name, folder in (("plain", inputs.model("gpt2")), ("masked", base)):
        strata("merge-adapter", run.folder, tmp_path / name, "--base_model", folder)
    plain, masked = (safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("plain", "masked"))
    assert masked["score.weight"].dtype == torch.float32
    assert all(torch.equal(masked[name], value) for name, value in plain.items())
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "masked")]
    assert configs[0]["dtype"] == configs[1]["dtype"] == "float32"


def test_the_token_for_padding_has_an_effect(inputs, tmp_path):
    run = run_strata(flags_of(inputs, inputs.model("llama2"), tmp_path / "out", pad_token="<unk>", max_steps=1),
                     recipe="reward")
    assert "pad_token" not in run.stderr
    assert json.loads((run.folder / "config.json").read_text())["pad_token_id"] == 0


def test_documents_of_one_token_and_the_same_answers(inputs, scorer, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"chosen": "", "rejected": "a cat"}, {"chosen": "mat", "rejected": "mat"}, *[
        {"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]}
        for row in make_rows("preference", 18)]]
    write_rows(data / "train.jsonl", rows)
    write_rows(data / "test.jsonl", rows)
    flags = base_flags(scorer("plain"), data, tmp_path / "out", max_steps=STEPS, gradient_checkpointing=False)
    run = run_strata(flags, recipe="reward")
    compare(run.state["log_history"], trl_reference.log_history(flags, "Reward"))


def test_the_commands_that_know_recipes(inputs, tmp_path):
    words = ["--model_name_or_path", inputs.model("plain"), "--max_length", "64", "--per_device_train_batch_size", "2"]
    assert "256 tokens" in strata("plan", "reward", *words, "--cpu")
    shown = strata("preview", "reward", *words, "--dataset_name", inputs.data("preference"))
    assert "chosen" in shown and "rejected" in shown
    flags = flags_of(inputs, inputs.model("plain"), tmp_path / "out", max_steps=1)
    run = run_program(flags, recipe="trl/scripts/reward.py", world=2)
    assert "running the built-in recipe reward in its place" in run.text
    text = strata("chat", "--model_name_or_path", run.folder, code=2)
    assert "found a model that gives texts a reward" in text and "AutoModelForSequenceClassification" in text
    sft = run_strata_raw(base_flags(run.folder, inputs.data("text"), tmp_path / "sft"))
    assert sft.returncode != 0 and "found a model that gives texts a reward for the recipe sft" in sft.stderr
    pairs = [*map(str, ("--model_name_or_path", run.folder, "--train_file", inputs.data("preference") / "train.jsonl"))]
    said = strata("seq2seq", *pairs, "--text_column", "prompt", "--summary_column", "chosen", "--output_dir", tmp_path / "t5", code=2)
    assert "run strata reward instead" in said


@pytest.mark.parametrize("column", ["question", "query", "input", "system"])
def test_a_question_beside_whole_texts_is_not_lost(inputs, tmp_path, column):
    """Intel/orca_dpo_pairs: the model would learn of answers without what they answer."""
    rows = [{column: "the cat", "chosen": "sat", "rejected": "went"}] * 4
    asked = [{column: "the cat", "chosen": "the cat sat", "rejected": "the cat went"}] * 4
    for name, lines in (("rows", rows), ("asked", asked)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    bad = run_strata_raw(flags_of(inputs, inputs.model("plain"), tmp_path / "bad", dataset_name=tmp_path / "rows.jsonl"), recipe="reward")
    assert bad.returncode == 1 and f'rows.jsonl:1: found a text in "{column}" with which "chosen" and "rejected" do not begin' in bad.stderr
    flags = flags_of(inputs, inputs.model("plain"), tmp_path / "good", dataset_name=tmp_path / "asked.jsonl", max_steps=1)
    assert run_strata(flags, recipe="reward").state["global_step"] == 1


BAD = {
    "a_family_without_a_class": (dict(model="granite"), 'found model_type "granite" for the recipe reward'),
    "a_mixture_without_a_class": (dict(model="glm4_moe"), 'found model_type "glm4_moe" for the recipe reward'),
    "a_task_of_another_recipe": (dict(LORA, lora_task_type="CAUSAL_LM"), "found causal_lm with the recipe reward, expected seq_cls"),
    "rows_that_are_cut": (dict(long_rows="truncate"), "found truncate with the recipe reward, expected drop"),
    "rows_before_the_prompt": (dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=2),
                               "found PROMPT_TUNING with the recipe reward"),
    "a_setting_of_dpo": (dict(beta=0.3), "--beta: found with the recipe reward, expected a setting of it"),
    "a_setting_of_sft": (dict(packing=True), "--packing: found with the recipe reward, expected a setting of it"),
    "balanced_experts": (dict(model="qwen3_moe", router_aux_loss_coef=0.1), "found 0.1 with the recipe reward, expected none: nothing balances the "
                         "experts of such a model"),
    "pairs_that_are_all_too_long": (dict(max_length=2), "found no pair to train on in"),
    "the_layer_that_is_gone": (dict(LORA, lora_modules_to_save=["lm_head"]), "expected names such as score, embed_tokens"),
    "a_metric_of_dpo": (dict(metric_for_best_model="rewards/margins", eval_strategy="steps", eval_steps=5),
                        "expected a metric that evaluations report"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_it_does_not_do_is_said(inputs, tmp_path, name):
    settings, message = BAD[name]
    settings = dict(settings)
    flags = flags_of(inputs, inputs.model(settings.pop("model", "plain")), tmp_path / "out", **settings)
    run = run_strata_raw(flags, recipe="reward")
    assert run.returncode != 0 and message in run.stderr, run.stderr


def test_a_target_that_trains_whole_is_said(inputs, tmp_path):
    flags = flags_of(inputs, inputs.model("plain"), tmp_path / "out", **{**LORA, "lora_target_modules": ["q_proj", "score"], "max_steps": 1})
    assert "target_modules: score has no branch, it trains whole" in run_strata(flags, recipe="reward").text


def test_margins_and_several_labels_are_refused(inputs, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    data = tmp_path / "data"
    data.mkdir()
    write_rows(data / "train.jsonl", [{**row, "margin": 0.5} for row in make_rows("preference", 8)])
    run = run_strata_raw(base_flags(inputs.model("plain"), data, tmp_path / "out"), recipe="reward")
    assert run.returncode != 0 and 'found a column "margin"' in run.stderr

    folder = tmp_path / "three"
    AutoModelForSequenceClassification.from_pretrained(inputs.model("plain"), num_labels=3).save_pretrained(folder)
    AutoTokenizer.from_pretrained(inputs.model("plain")).save_pretrained(folder)
    run = run_strata_raw(flags_of(inputs, folder, tmp_path / "labels"), recipe="reward")
    assert run.returncode != 0 and "of 3 labels, expected a model that gives one number" in run.stderr
