# Oracle: transformers' Trainer over encoders with the same flags on the same rows; what transformers draws for a head that the
# files lack; the run on one rank for runs on several; the uninterrupted run; the run that keeps everything.
import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

import classification_reference
import trl_reference
from running import base_flags, run_strata, run_strata_raw, strata
from tiny_encoder import MODELS, save_encoder

STEPS = 10
LORA = dict(use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0, learning_rate=2e-2)
EVALUATED = dict(eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=4)


@pytest.fixture
def encoder(inputs):
    """Folders of encoders, by names of MODELS."""
    def make(name, drops=0.0):
        folder = inputs.folder / f"encoder-{name}-{drops}"
        return folder if folder.exists() else save_encoder(folder, name, drops)
    return make


def flags_of(inputs, model, output, kind="labelled", train=40, **flags):
    return base_flags(model, inputs.data(kind, train=train), output,
                      **{"max_steps": STEPS, "learning_rate": 5e-3, "gradient_checkpointing": False, **flags})


FIGURES = ("accuracy", "f1", "mse", "matthews_correlation", "pearson", "spearmanr", "combined_score")


def compare(found, expected):
    for ours, theirs, prefix, at in trl_reference.steps_beside(found, expected):
        for key in [prefix + "loss", *(f"eval_{figure}" for figure in FIGURES if f"eval_{figure}" in theirs)]:
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, at)
        for key in ("grad_norm", "learning_rate", "epoch"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=2e-3, abs_tol=1e-9), (key, at)
    losses = [row["loss"] for row in expected if "loss" in row]
    assert max(losses) - min(losses) > 0.05, "the reference did not learn"


CASES = {
    **{name: dict(model=name) for name in MODELS},
    "decayed_with_eval": dict(EVALUATED, weight_decay=0.1, gradient_accumulation_steps=2),
    # The last step of an epoch has a batch of two texts and one of one: each text counts as much.
    "uneven_batches": dict(EVALUATED, train=39, gradient_accumulation_steps=2, max_steps=11),
    "numbers": dict(EVALUATED, kind="labelled_numbers"),
    "several_labels": dict(EVALUATED, kind="labelled_lists", model="roberta"),
    "texts_are_cut": dict(EVALUATED, max_length=6, model="roberta"),
    "lora": LORA,
    "lora_roberta": dict({**LORA, **EVALUATED}, model="roberta"),
    "lora_of_all_layers": dict(LORA, lora_target_modules="all-linear"),
    "lora_of_all_layers_roberta": dict(LORA, lora_target_modules="all-linear", model="xlm_roberta"),
    "lora_distilbert": dict(LORA, lora_target_modules=["q_lin", "lin1"], model="distilbert"),
    "lora_modernbert": dict(LORA, lora_target_modules=["Wqkv", "Wo", "Wi"], model="modernbert"),
    "lora_modernbert_new_head": dict(LORA, lora_target_modules=["Wqkv", "Wi"], model="modernbert_body",
                                     lora_modules_to_save=["head.dense", "head.norm"]),
    "lora_eurobert": dict(LORA, lora_target_modules=["q_proj", "up_proj"], model="eurobert", lora_modules_to_save=["dense"]),
    "ia3": dict(use_peft=True, peft_type="IA3", learning_rate=1e-1),
    # What begins anew trains whole: PEFT does so where it is told to.
    "lora_new_pooler": dict(LORA, model="bert_mlm", lora_modules_to_save=["bert.pooler.dense"]),
    # Those of the head train with it, as a module that is saved.
    "biases": dict(LORA, bias="all"),
    "biases_of_a_new_pooler": dict(LORA, bias="all", model="bert_mlm", lora_modules_to_save=["bert.pooler.dense"]),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, encoder, tmp_path, name):
    settings = dict(CASES[name])
    flags = flags_of(inputs, encoder(settings.pop("model", "bert")), tmp_path / "out", seed=7, **settings)
    run = run_strata(flags, recipe="classify")
    compare(run.state["log_history"], classification_reference.log_history(flags))


@pytest.mark.parametrize("settings", [{}, LORA, dict(LORA, fsdp_cpu_ram_efficient_loading=True)],
                         ids=["full", "lora", "rank_0_reads"])
@pytest.mark.parametrize("name", ["bert", "bert_mlm", "roberta", "modernbert", "deberta", "electra", "eurobert"])
def test_a_new_head_is_that_of_transformers_on_every_world_size(inputs, encoder, tmp_path, name, settings):
    from transformers import AutoModelForSequenceClassification, set_seed

    folder = encoder(name)  # draws, too
    set_seed(5)
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    expected = {key: value.detach() for key, value in model.named_parameters() if "classifier" in key or "pooler" in key or key.startswith("dense.")}
    targets = {"lora_target_modules": "all-linear"} if settings and name in ("modernbert", "eurobert") else {}  # PEFT has no default
    for world in (1, 2, 3):
        flags = flags_of(inputs, encoder(name), tmp_path / str(world), seed=5,
                         **{**settings, **targets, "learning_rate": 0, "max_steps": 1})
        run = run_strata(flags, world=world, recipe="classify")
        saved = load_file(run.folder / ("adapter_model.safetensors" if settings else "model.safetensors"))
        for key, value in expected.items():
            # The pooler of a base that has one stays the base's.
            if not settings or "classifier" in key or name in ("bert_mlm", "deberta", "eurobert"):
                assert torch.equal(saved[("base_model.model." if settings else "") + key], value), key


def test_the_result_gives_what_the_run_said(inputs, encoder, tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = run_strata(flags_of(inputs, encoder("bert"), tmp_path / "out", **EVALUATED), recipe="classify")
    model = AutoModelForSequenceClassification.from_pretrained(run.folder).eval()
    assert type(model).__name__ == "BertForSequenceClassification"
    assert not any(name.startswith("cls.") for name in load_file(run.folder / "model.safetensors"))
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    rows = classification_reference.read(inputs.data("labelled") / "test.jsonl")
    with torch.no_grad():
        told = [model.config.id2label[int(model(**tokenizer(row["text"], return_tensors="pt")).logits[0].argmax())] for row in rows]
    accuracy = sum(name == row["label"] for name, row in zip(told, rows)) / len(rows)
    assert accuracy == pytest.approx([row for row in run.history if "eval_accuracy" in row][-1]["eval_accuracy"])
    again = run_strata(flags_of(inputs, run.folder, tmp_path / "again", max_steps=1, learning_rate=0), recipe="classify")
    before, after = (load_file(one.folder / "model.safetensors") for one in (run, again))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name,settings", [
    ("bert", {}), ("roberta", LORA), ("modernbert", {}), ("eurobert", {}), ("bert", dict(sharding_strategy="NO_SHARD")),
    ("bert", dict(fsdp_transformer_layer_cls_to_wrap="BertLayer")),
    ("xlm_roberta", dict(fsdp_transformer_layer_cls_to_wrap="XLMRobertaLayer,XLMRobertaEmbeddings"))],
    ids=["full", "lora", "modernbert", "eurobert", "copies", "class", "classes"])
def test_ranks_equal_one(inputs, encoder, tmp_path, name, settings):
    one = {**settings, "per_device_train_batch_size": 6, "sharding_strategy": None}
    alone = run_strata(flags_of(inputs, encoder(name), tmp_path / "alone", train=42, **one), recipe="classify")
    dealt = run_strata(flags_of(inputs, encoder(name), tmp_path / "dealt", train=42, **settings), world=3, recipe="classify")
    for ours, theirs in zip(dealt.history, alone.history, strict=True):
        for key in ("loss", "grad_norm", "accuracy"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, ours, theirs)


@pytest.mark.parametrize("mode", ["attention", "selective", "full"])
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_recomputation_repeats_what_was_dropped(inputs, encoder, tmp_path, name, mode):
    folder = encoder(name, drops=0.2)
    kept = run_strata(flags_of(inputs, folder, tmp_path / "kept"), recipe="classify")
    again = run_strata(flags_of(inputs, folder, tmp_path / "again", activation_checkpointing=mode, gradient_checkpointing=None),
                       recipe="classify")
    assert again.history == kept.history
    undropped = run_strata(flags_of(inputs, encoder(name), tmp_path / "undropped"), recipe="classify")
    assert undropped.losses != kept.losses


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_a_resumed_run_is_equal_to_the_bit(inputs, encoder, tmp_path, settings):
    flags = dict(save_strategy="steps", save_steps=5, logging_steps=4, **settings)
    folder = encoder("bert_mlm", drops=0.1)
    whole = run_strata(flags_of(inputs, folder, tmp_path / "whole", **flags), world=2, recipe="classify")
    resumed = tmp_path / "resumed"
    shutil.copytree(whole.folder, resumed, ignore=shutil.ignore_patterns("checkpoint-10", "*model*", "adapter*"))
    (resumed / "latest").write_text("checkpoint-5\n")
    found = run_strata(flags_of(inputs, folder, resumed, resume_from_checkpoint="true", **flags), world=2, recipe="classify")
    assert found.history == whole.history
    name = "adapter_model.safetensors" if settings else "model.safetensors"
    assert (found.folder / name).read_bytes() == (whole.folder / name).read_bytes()


@pytest.mark.parametrize("name", ["bert", "bert_mlm", "roberta", "distilbert", "modernbert", "modernbert_body", "deberta", "albert", "eurobert", "deberta_1"])
def test_an_adapter_is_read_and_merged(inputs, encoder, tmp_path, name):
    """By PEFT over the same base, and as a whole model by transformers: each tells what the run told."""
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    targets = {"distilbert": ["q_lin", "lin1"], "modernbert": ["Wqkv", "dense"],
               "modernbert_body": ["Wqkv", "Wo"], "eurobert": ["q_proj", "o_proj"], "deberta_1": ["in_proj", "dense"], "deberta": ["query_proj", "dense"], "albert": ["query", "ffn", "pooler"]}.get(
                   name, ["query", "dense"])
    run = run_strata(flags_of(inputs, encoder(name), tmp_path / "out", **{**LORA, **EVALUATED}, lora_target_modules=targets),
                     recipe="classify")
    told = [row for row in run.history if "eval_loss" in row][-1]["eval_loss"]
    saved = load_file(run.folder / "adapter_model.safetensors")
    began_anew = [key for key in saved if ("pooler.dense.weight" in key or ".head." in key or key.endswith("model.dense.weight")) and "lora" not in key]
    assert bool(began_anew) == (name in ("bert_mlm", "modernbert_body", "deberta", "eurobert", "deberta_1")), began_anew
    text = strata("merge-adapter", run.folder, tmp_path / "merged")
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    kept = load_file(tmp_path / "merged" / "model.safetensors")
    assert not any(key.startswith(("cls.", "lm_head.", "vocab_", "decoder.")) for key in kept), text
    base = AutoModelForSequenceClassification.from_pretrained(encoder(name), num_labels=3)
    assert "classifier" in PeftConfig.from_pretrained(run.folder).modules_to_save
    tokenizer = AutoTokenizer.from_pretrained(run.folder)
    rows = classification_reference.read(inputs.data("labelled") / "test.jsonl")
    labels = merged.config.label2id
    for model in (merged, PeftModel.from_pretrained(base, run.folder)):
        model.eval()
        with torch.no_grad():
            losses = [torch.nn.functional.cross_entropy(model(**tokenizer(row["text"], return_tensors="pt")).logits.float(),
                                                        torch.tensor([labels[row["label"]]])) for row in rows]
        assert float(sum(losses)) / len(losses) == pytest.approx(told, abs=1e-4)


@pytest.mark.parametrize("name,bias", [("bert", "all"), ("roberta", "none"), ("modernbert_body", "none")])
def test_a_continued_adapter_brings_its_head(inputs, encoder, tmp_path, name, bias):
    """Oracle: PEFT's model, whose adapter it is; the base has no head."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.manual_seed(3)
    saved = ["classifier", *(["head.dense", "head.norm"] if name == "modernbert_body" else [])]
    model = get_peft_model(AutoModelForSequenceClassification.from_pretrained(encoder(name), num_labels=3), LoraConfig(
        task_type="SEQ_CLS", bias=bias, target_modules=["Wqkv" if name == "modernbert_body" else "query"], modules_to_save=saved))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    model.eval().save_pretrained(tmp_path / "start")
    run = run_strata(flags_of(inputs, encoder(name), tmp_path / "out", **EVALUATED, adapter_name_or_path=tmp_path / "start",
                              learning_rate=1e-30, max_steps=5), recipe="classify")
    tokenizer, names = AutoTokenizer.from_pretrained(run.folder), ["long", "middle", "short"]
    with torch.no_grad():
        losses = [torch.nn.functional.cross_entropy(model(**tokenizer(row["text"], return_tensors="pt")).logits,
                                                    torch.tensor([names.index(row["label"])])).item()
                  for row in classification_reference.read(inputs.data("labelled") / "test.jsonl")]
    assert [row for row in run.history if "eval_loss" in row][-1]["eval_loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-4)


def test_a_layer_that_ends_like_a_saved_one_has_no_branch(inputs, encoder, tmp_path):
    """Oracle: PEFT, which saves "pre_classifier" for "classifier" and loads no adapter with a branch beside that."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    flags = flags_of(inputs, encoder("distilbert"), tmp_path / "out", **{**LORA, "max_steps": 1}, lora_target_modules="all-linear")
    run = run_strata(flags, recipe="classify")
    base = AutoModelForSequenceClassification.from_pretrained(encoder("distilbert"), num_labels=3)
    loaded = PeftModel.from_pretrained(base, run.folder)
    saved = load_file(run.folder / "adapter_model.safetensors")
    assert torch.equal(loaded.base_model.model.pre_classifier.weight, saved["base_model.model.pre_classifier.weight"])
    assert not any("pre_classifier" in name and "lora" in name for name in saved)
    found = run_strata_raw({**flags, "lora_target_modules": ["q_lin", "pre_classifier"], "output_dir": tmp_path / "bad"}, recipe="classify")
    assert found.returncode == 2 and 'target_modules: found "pre_classifier", expected other layers: it trains whole' in found.stderr


def test_a_new_pooler_stays_plain_over_codes(inputs, encoder, tmp_path):
    flags = flags_of(inputs, encoder("bert_mlm"), tmp_path / "out", load_in_4bit=True, **LORA)
    run = run_strata(flags, recipe="classify")
    saved = load_file(run.folder / "adapter_model.safetensors")
    assert saved["base_model.model.bert.pooler.dense.weight"].shape == (32, 32)
    assert min(run.losses) < run.losses[0] - 0.02


def test_an_adapter_without_its_new_pooler_is_refused(inputs, encoder, tmp_path):
    run = run_strata(flags_of(inputs, encoder("bert_mlm"), tmp_path / "out", max_steps=1, **LORA), recipe="classify")
    config = json.loads((run.folder / "adapter_config.json").read_text())
    config["modules_to_save"] = ["classifier", "score"]
    (run.folder / "adapter_config.json").write_text(json.dumps(config))
    found = run_strata_raw(flags_of(inputs, encoder("bert_mlm"), tmp_path / "next", max_steps=1,
                                    adapter_name_or_path=run.folder), recipe="classify")
    assert found.returncode == 2 and 'found an adapter without "bert.pooler.dense", which its base lacks, too' in found.stderr


@pytest.mark.parametrize("recipe,kind", [("sft", "text"), ("dpo", "preference"), ("reward", "preference")])
def test_other_recipes_refuse_an_encoder(inputs, encoder, tmp_path, recipe, kind):
    run = run_strata_raw(base_flags(encoder("bert"), inputs.data(kind), tmp_path / "out", max_steps=1), recipe=recipe)
    assert run.returncode == 2
    assert f'found an encoder (model_type "bert"), which predicts no tokens, for the recipe {recipe}' in run.stderr
    assert "run strata classify instead" in run.stderr


def test_what_an_encoder_does_not_do_is_said(inputs, encoder, tmp_path):
    text = strata("chat", "--model_name_or_path", encoder("bert"), "--prompt", "the cat", code=2)
    assert "found an encoder, which predicts no tokens" in text
    for settings, message in ((dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=2), "PROMPT_TUNING"),
                              (dict(sequence_parallel_size=2), "sequence_parallel_size")):
        run = run_strata_raw(flags_of(inputs, encoder("bert"), tmp_path / "out", **settings), world=2, recipe="classify")
        assert run.returncode != 0 and message in run.stderr, run.stderr


@pytest.mark.parametrize("name", ["roberta", "xlm_roberta"])
def test_another_token_of_padding_would_move_positions(inputs, encoder, tmp_path, name):
    """Of families whose positions count from it: whoever loads the result would count from another."""
    flags = flags_of(inputs, encoder(name), tmp_path / "out", max_steps=1)
    for world in (1, 2):
        run = run_strata_raw({**flags, "pad_token": "</s>"}, world, recipe="classify")
        assert run.returncode == 2
        assert "pad_token: found token 2 in the tokenizer, expected 1 (pad_token_id of config.json), from which the model's" in run.stderr
    run = run_strata({**flags, "pad_token": "<pad>"}, recipe="classify")
    assert json.loads((run.folder / "config.json").read_text())["pad_token_id"] == 1


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_counts_an_encoder(encoder, name):
    """Its parameters are those of transformers; the memory stands beside what is measured in tests/dist/test_memory_plan.py."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(encoder(name), num_labels=5)
    text = strata("plan", "classify", "--model_name_or_path", encoder(name), "--max_length", "32", "--num_labels", "5", "--cpu",
                  "--per_device_train_batch_size", "2", "--dataset_name", encoder(name) / "none", "--output_dir", encoder(name) / "out")
    count = sum(weight.numel() for weight in model.parameters())
    assert f" {count} parameters, {count} trained" in text
