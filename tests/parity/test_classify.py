# Oracle: transformers' Trainer over AutoModelForSequenceClassification with the same flags on the same rows: loss, gradient
# norm and figures of every step; scikit-learn's metrics; transformers' and PEFT's classes for the files; the run on one rank
# for runs on several; the uninterrupted run.
import json
import math
import shutil

import pytest
import safetensors.torch
import torch

import classification_reference
import trl_reference
from classification_reference import labels_of, read
from running import base_flags, run_strata, run_strata_raw, strata
from tiny_encoder import save_encoder

STEPS = 10
LORA = dict(use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0,
            lora_target_modules=["q_proj", "v_proj", "down_proj"], learning_rate=2e-2)
EVALUATED = dict(eval_strategy="steps", eval_steps=5, per_device_eval_batch_size=4)
CASES = {
    "full": {},
    "full_accumulated_with_eval": dict(EVALUATED, gradient_accumulation_steps=2, weight_decay=0.1),
    # The last step of an epoch has a batch of two texts and one of one: each text counts as much.
    "uneven_batches": dict(EVALUATED, train=39, gradient_accumulation_steps=2, max_steps=11),
    "lora": LORA,
    "lora_checkpointed_with_eval": dict(LORA, gradient_checkpointing=True, **EVALUATED),
    "lora_of_all_layers": dict(LORA, lora_target_modules="all-linear"),
    "dora": dict(LORA, use_dora=True),
    "vera": dict(use_peft=True, peft_type="VERA", lora_r=4, lora_target_modules=["q_proj", "v_proj"], learning_rate=1e-1),
    "ia3": dict(use_peft=True, peft_type="IA3", learning_rate=1e-1),
    "whole_numbers": dict(EVALUATED, kind="labelled_ids"),
    "several_labels": dict(EVALUATED, kind="labelled_lists"),
    "several_labels_by_lora": dict(LORA, kind="labelled_lists"),
    "numbers": dict(EVALUATED, kind="labelled_numbers"),
    "numbers_by_lora": dict(LORA, kind="labelled_numbers"),
    "whole_numbers_as_numbers": dict(EVALUATED, kind="labelled_ids", do_regression=True, learning_rate=1e-3),
    "smoothed": dict(EVALUATED, label_smoothing_factor=0.1),
    "texts_are_cut": dict(EVALUATED, max_length=6),
    "no_token_for_padding": dict(EVALUATED, model="llama2"),
    **{name: dict(model=name) for name in ("tied", "mistral", "qwen2", "qwen3", "phi3", "gemma", "gemma2", "olmo2", "glm4")},
    **{name: dict(model=name, learning_rate=1e-3) for name in ("mixtral", "gemma3", "gpt_oss")},
    **{name: dict(model=name) for name in ("gpt2", "opt", "phi", "falcon", "bloom", "gpt_neox")},
}
FIGURES = {"eval_accuracy", "eval_f1", "eval_mse"}
# What Trainer's model drops, and base_flags' models do not.
DROPS = {"opt": ["dropout"], "gpt_neox": ["attention_dropout", "hidden_dropout"], "falcon": ["hidden_dropout", "attention_dropout"],
         "bloom": ["hidden_dropout", "attention_dropout"],
         "phi": ["resid_pdrop", "embd_pdrop"], "gpt2": ["resid_pdrop", "embd_pdrop", "attn_pdrop"]}


def undropped(inputs, name):
    """The model's folder, without dropout."""
    folder = inputs.folder / f"undropped-{name}"
    if name not in DROPS:
        return inputs.model(name)
    if not folder.exists():
        shutil.copytree(inputs.model(name), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **{key: 0.0 for key in DROPS[name]}}))
    return folder


def flags_of(inputs, model, output, kind="labelled", train=40, **flags):
    return base_flags(model, inputs.data(kind, train=train), output,
                      **{"max_steps": STEPS, "learning_rate": 5e-3, "gradient_checkpointing": False, **flags})


def compare(found, expected):
    for ours, theirs, prefix, at in trl_reference.steps_beside(found, expected):
        keys = [prefix + "loss", *(key for key in FIGURES if key in theirs)]
        for key in keys:
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, at)
        for key in ("grad_norm", "learning_rate", "epoch"):
            if key in theirs:
                assert math.isclose(ours[key], theirs[key], rel_tol=2e-3, abs_tol=1e-9), (key, at)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, tmp_path, name):
    settings = dict(CASES[name])
    flags = flags_of(inputs, undropped(inputs, settings.pop("model", "plain")), tmp_path / "out", **settings)
    run = run_strata(flags, recipe="classify")
    expected = classification_reference.log_history(flags)
    compare(run.state["log_history"], expected)
    losses = [row["loss"] for row in expected if "loss" in row]
    assert max(losses) - min(losses) > 0.05, "the reference did not learn"


@pytest.mark.parametrize("settings", [{"load_in_4bit": True}, {"load_in_8bit": True}], ids=["nf4", "int8"])
def test_over_a_base_of_codes_equals_the_reference(inputs, tmp_path, settings):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = inputs.folder / "classifier-wide"
    if not folder.exists():
        tokenizer = AutoTokenizer.from_pretrained(inputs.model("wide"))
        model = AutoModelForSequenceClassification.from_pretrained(inputs.model("wide"), num_labels=3)
        with torch.no_grad():
            model.score.weight.normal_(0, 0.3, generator=torch.Generator().manual_seed(3))
        names = ["long", "middle", "short"]
        model.config.id2label, model.config.label2id = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
        model.config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    flags = flags_of(inputs, folder, tmp_path / "out", **LORA, **settings)
    run = run_strata(flags, recipe="classify")
    compare(run.state["log_history"], classification_reference.log_history(flags))


def told_by(model, inputs, kind="labelled"):
    """The reference's values for the rows of the evaluation, and those rows."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(inputs.model("plain"))
    rows = read(inputs.data(kind) / "test.jsonl")
    with torch.no_grad():
        return torch.stack([model(**tokenizer(row["text"], return_tensors="pt")).logits[0] for row in rows]), rows


def accuracy_of(values, rows, config):
    told = [config.id2label[int(i)] for i in values.argmax(-1)]
    return sum(name == str(row["label"]) for name, row in zip(told, rows)) / len(rows)


def last_evaluation(run):
    return [row for row in run.history if "eval_loss" in row][-1]


@pytest.mark.parametrize("kind", ["labelled", "labelled_ids"])
def test_the_result_gives_what_the_run_said(inputs, tmp_path, kind):
    """transformers loads the folder, knows the names of the labels, and is as often right."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    run = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "out", kind=kind, **EVALUATED), recipe="classify")
    model = AutoModelForSequenceClassification.from_pretrained(run.folder)
    names = labels_of(read(inputs.data(kind) / "train.jsonl") + read(inputs.data(kind) / "test.jsonl"))
    assert [model.config.id2label[i] for i in range(model.num_labels)] == names
    assert model.config.problem_type == "single_label_classification"
    assert model.config.pad_token_id == AutoTokenizer.from_pretrained(run.folder).pad_token_id is not None
    assert "lm_head.weight" not in safetensors.torch.load_file(run.folder / "model.safetensors")
    values, rows = told_by(model, inputs, kind)
    assert accuracy_of(values, rows, model.config) == pytest.approx(last_evaluation(run)["eval_accuracy"])


@pytest.mark.parametrize("settings", [LORA, dict(use_peft=True, peft_type="IA3", learning_rate=1e-1)], ids=["lora", "ia3"])
def test_an_adapter_loads_in_peft_and_merges(inputs, tmp_path, settings):
    """PEFT's model and the folder of merge-adapter tell what the run did, the latter under the labels' names."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    run = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "out", **settings, **EVALUATED), recipe="classify")
    config = json.loads((run.folder / "adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_CLS" and config["modules_to_save"] == ["classifier", "score"]
    base = AutoModelForSequenceClassification.from_pretrained(inputs.model("plain"), num_labels=3)
    strata("merge-adapter", run.folder, tmp_path / "merged")
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert merged.config.id2label == {0: "long", 1: "middle", 2: "short"}
    expected, rows = told_by(PeftModel.from_pretrained(base, run.folder), inputs)
    values, _ = told_by(merged, inputs)
    assert torch.allclose(values, expected, atol=1e-5) and expected.abs().max() > 1e-3
    assert accuracy_of(values, rows, merged.config) == pytest.approx(last_evaluation(run)["eval_accuracy"])
    again = run_strata(flags_of(inputs, tmp_path / "merged", tmp_path / "again", max_steps=1), recipe="classify")
    assert again.losses


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_a_new_head_is_the_same_on_every_world_size(inputs, tmp_path, settings):
    from transformers import AutoModelForSequenceClassification, set_seed

    folder = inputs.model("odd")
    set_seed(5)
    expected = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3).score.weight
    for world in (1, 2, 3):
        flags = flags_of(inputs, inputs.model("odd"), tmp_path / str(world), seed=5,
                         **{**settings, "learning_rate": 0, "max_steps": 1})
        run = run_strata(flags, world=world, recipe="classify")
        saved = safetensors.torch.load_file(run.folder / ("adapter_model.safetensors" if settings else "model.safetensors"))
        assert torch.equal(saved["base_model.model.score.weight" if settings else "score.weight"], expected.detach())


# 42 rows: no rank's last batch is filled up. 11 of the evaluation: some batches are, and count once.
@pytest.mark.parametrize("settings", [{}, LORA, dict(gradient_accumulation_steps=2), dict(sharding_strategy="NO_SHARD"),
                                      dict(kind="labelled_lists"), dict(kind="labelled_numbers")],
                         ids=["full", "lora", "accumulated", "copies", "lists", "numbers"])
def test_ranks_equal_one(inputs, tmp_path, settings):
    settings = {**settings, "eval_strategy": "steps", "eval_steps": 5}
    one = {**settings, "per_device_train_batch_size": 6, "sharding_strategy": None, "per_device_eval_batch_size": 3}
    dealt = {**settings, "per_device_eval_batch_size": 4}
    alone = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "alone", train=42, **one), recipe="classify")
    found = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "dealt", train=42, **dealt), world=3,
                       recipe="classify")
    for ours, theirs in zip(found.history, alone.history, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() & {"loss", "grad_norm", "accuracy", "eval_loss", *FIGURES}:
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, ours, theirs)


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_a_resumed_run_is_equal_to_the_bit(inputs, tmp_path, settings):
    flags = dict(save_strategy="steps", save_steps=5, eval_strategy="steps", eval_steps=4, logging_steps=4, **settings)
    whole = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "whole", **flags), world=2, recipe="classify")
    resumed = tmp_path / "resumed"
    shutil.copytree(whole.folder, resumed, ignore=shutil.ignore_patterns("checkpoint-10", "*model*", "adapter*"))
    (resumed / "latest").write_text("checkpoint-5\n")
    found = run_strata(flags_of(inputs, inputs.model("plain"), resumed, resume_from_checkpoint="true", **flags), world=2,
                       recipe="classify")
    assert found.history == whole.history
    name = "adapter_model.safetensors" if settings else "model.safetensors"
    assert (found.folder / name).read_bytes() == (whole.folder / name).read_bytes()


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_a_run_does_not_go_on_with_other_labels(inputs, tmp_path, settings):
    """As many, of other names: a row of the head would stand for another."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path / "out", save_strategy="steps", save_steps=1, **{**settings, "max_steps": 1})
    run_strata(flags, recipe="classify")
    other = tmp_path / "other"
    shutil.copytree(inputs.data("labelled"), other)
    for file in other.iterdir():
        file.write_text(file.read_text().replace('"short"', '"brief"'))
    run = run_strata_raw({**flags, "dataset_name": other, "resume_from_checkpoint": True, "max_steps": 2}, recipe="classify")
    assert run.returncode == 2 and 'resume_from_checkpoint: found labels {"0":"long","1":"middle","2":"short"}' in run.stderr


def test_the_best_checkpoint_is_that_of_the_best_accuracy(inputs, tmp_path):
    flags = {**LORA, **EVALUATED, "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True,
             "metric_for_best_model": "accuracy"}
    run = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "out", **flags), recipe="classify")
    found = [row["eval_accuracy"] for row in run.history if "eval_accuracy" in row]
    assert run.state["best_metric"] == max(found) and len(set(found)) > 1


def test_joined_columns_equal_the_reference(inputs, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{"title": row["text"][:9], "body": row["text"], "kind": row["label"]}
                for row in read(inputs.data("labelled") / f"{split}.jsonl")]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = base_flags(inputs.model("plain"), folder, tmp_path / "out", text_column_names="title,body",
                       text_column_delimiter=" / ", label_column_name="kind", **EVALUATED)
    run = run_strata(flags, recipe="classify")
    for split in ("train", "test"):
        rows = [{**row, "label": row["kind"]} for row in read(folder / f"{split}.jsonl")]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    compare(run.state["log_history"],
            classification_reference.log_history({**{k: v for k, v in flags.items() if k != "label_column_name"},
                                                  "text_column_names": ["title", "body"]}))


def test_a_classifier_goes_on_with_its_own_labels(inputs, tmp_path):
    """Names of config.json stay in their order; rows need not have them all. Oracle: the names that the file holds."""
    first = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "first", max_steps=2), recipe="classify")
    config = json.loads((first.folder / "config.json").read_text())
    names = ["short", "long", "middle"]
    config["id2label"], config["label2id"] = dict(enumerate(names)), {name: i for i, name in enumerate(names)}
    (first.folder / "config.json").write_text(json.dumps(config))
    again = run_strata(flags_of(inputs, first.folder, tmp_path / "again", max_steps=1, learning_rate=0), recipe="classify")
    assert json.loads((again.folder / "config.json").read_text())["id2label"] == {"0": "short", "1": "long", "2": "middle"}
    before, after = (safetensors.torch.load_file(run.folder / "model.safetensors") for run in (first, again))
    assert torch.equal(before["score.weight"], after["score.weight"])


def test_a_head_of_other_labels_is_refused_or_new(inputs, tmp_path):
    first = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "first", max_steps=1), recipe="classify")
    flags = flags_of(inputs, first.folder, tmp_path / "out", kind="labelled_ids", max_steps=1, learning_rate=0, seed=5)
    refused = run_strata_raw(flags, recipe="classify")
    assert refused.returncode == 2 and "add --ignore_mismatched_sizes to give it a new head" in refused.stderr
    assert not (tmp_path / "out" / "model.safetensors").exists()
    run = run_strata({**flags, "ignore_mismatched_sizes": True}, recipe="classify")
    names = json.loads((run.folder / "config.json").read_text())["id2label"]
    score = safetensors.torch.load_file(run.folder / "model.safetensors")["score.weight"]
    assert len(names) == score.shape[0] > 3 and 0.01 < score.std().item() < 0.04


@pytest.mark.parametrize("settings", [{}, LORA], ids=["full", "lora"])
def test_nothing_answers_from_a_classifier(inputs, tmp_path, settings):
    run = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "out", max_steps=1, **settings), recipe="classify")
    words = ["--model_name_or_path", inputs.model("plain"), "--adapter_name_or_path", run.folder] if settings else [
        "--model_name_or_path", run.folder]
    text = strata("chat", *words, "--prompt", "hello", code=2)
    assert "expected one" in text and "label" in text and "AutoModelForSequenceClassification" in text
    other = run_strata_raw(base_flags(run.folder if not settings else inputs.model("plain"), inputs.data("text"),
                                      tmp_path / "sft", max_steps=1,
                                      **({"adapter_name_or_path": run.folder} if settings else {})))
    assert other.returncode == 2 and "strata" in other.stderr and "classify" in other.stderr


@pytest.mark.parametrize("name,kind", [("plain", "SequenceClassification"), ("bert", "SequenceClassification"), ("roberta", "SequenceClassification"),
                                       ("plain", "TokenClassification"), ("gpt2", "TokenClassification"),
                                       ("bert", "TokenClassification"), ("distilbert", "TokenClassification")])
@pytest.mark.parametrize("labels", [3, 5])
def test_an_adapter_brings_its_head_to_a_base_with_another(inputs, tmp_path, name, kind, labels):
    """Of another number of labels, or of a model of another kind whose head has the same names. Oracle: PEFT over transformers'
    model, which begins a new head."""
    import transformers
    from peft import PeftModel

    folder = tmp_path / "base"
    plain = inputs.model(name) if name in inputs.MODELS else save_encoder(tmp_path / "plain", name)
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(plain, num_labels=labels)
    tokenizer = transformers.AutoTokenizer.from_pretrained(plain)
    model.config.pad_token_id = tokenizer.pad_token_id
    for saved in (model, tokenizer):
        saved.save_pretrained(folder)
    targets = {"plain": "q_proj", "gpt2": "c_attn", "distilbert": "q_lin"}.get(name, "query")
    run = run_strata(flags_of(inputs, folder, tmp_path / "out", **{**LORA, "max_steps": 3, "lora_target_modules": [targets]},
                              ignore_mismatched_sizes=True), recipe="classify")
    strata("merge-adapter", run.folder, tmp_path / "merged")
    merged = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert type(merged).__name__.endswith("ForSequenceClassification") and set(merged.config.id2label.values()) == {"long", "middle", "short"}
    base = transformers.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3, ignore_mismatched_sizes=True)
    adapted = PeftModel.from_pretrained(base, run.folder).eval()
    ids = tokenizer(read(inputs.data("labelled") / "test.jsonl")[0]["text"], return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(merged.eval()(**ids).logits, adapted(**ids).logits, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "tied", "gpt2"])
def test_a_model_that_tells_labels_of_tokens_begins_a_new_head(inputs, tmp_path, name):
    """Oracle: the run from the same model without that head. What predicts tokens refuses it."""
    import transformers

    plain, folder = inputs.model(name), tmp_path / "base"
    shutil.copytree(plain, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    model = transformers.AutoModelForTokenClassification.from_pretrained(plain, num_labels=3)
    model.save_pretrained(folder)
    told = "score" if name != "gpt2" else "classifier"
    assert {f"{told}.weight", f"{told}.bias"} < safetensors.torch.load_file(folder / "model.safetensors").keys()
    expected = run_strata(flags_of(inputs, plain, tmp_path / "expected", max_steps=3), recipe="classify")
    run = run_strata(flags_of(inputs, folder, tmp_path / "out", max_steps=3), recipe="classify")
    assert run.losses == expected.losses and len(run.losses) == 3
    ours, theirs = (safetensors.torch.load_file(each.folder / "model.safetensors") for each in (run, expected))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    kind = type(model).__name__
    text = strata("chat", "--model_name_or_path", folder, "--prompt", "hello", code=2)
    assert f"base: found {kind}, whose head labels tokens, expected a model that predicts them" in text
    other = run_strata_raw(base_flags(folder, inputs.data("text"), tmp_path / "sft", max_steps=1))
    assert other.returncode == 2 and (f"model_name_or_path: found {kind}, whose head labels tokens, for the recipe sft, expected a model "
                                      "that predicts tokens; start from the one that it was made from, or run strata classify") in other.stderr


def test_a_checkpoint_converts_to_a_classifier(inputs, tmp_path):
    run = run_strata(flags_of(inputs, inputs.model("tied"), tmp_path / "out", save_strategy="steps", save_steps=1, max_steps=1),
                     recipe="classify")
    strata("convert", run.folder / "checkpoint-1", tmp_path / "converted", "--to", "safetensors")
    result, converted = (json.loads((folder / "config.json").read_text()) for folder in (run.folder, tmp_path / "converted"))
    assert converted["architectures"] == ["LlamaForSequenceClassification"] and converted["id2label"] == result["id2label"]
    ours, theirs = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (tmp_path / "converted", run.folder))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    strata("convert", run.folder / "checkpoint-1", tmp_path / "codes", "--to", "bnb-4bit")
    again = run_strata(flags_of(inputs, tmp_path / "codes", tmp_path / "again", **{**LORA, "max_steps": 1}), recipe="classify")
    assert again.losses


def test_a_checkpoint_of_an_adapter_keeps_the_labels(inputs, tmp_path):
    run = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "out", save_strategy="steps", save_steps=1, **{**LORA, "max_steps": 1}),
                     recipe="classify")
    strata("convert", run.folder / "checkpoint-1", tmp_path / "adapter", "--to", "safetensors")
    strata("merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", inputs.model("plain"))
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["id2label"] == {"0": "long", "1": "middle", "2": "short"} and config["problem_type"] == "single_label_classification"


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_recomputation_changes_nothing(inputs, tmp_path, mode):
    kept = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "kept", **LORA), recipe="classify")
    again = run_strata(flags_of(inputs, inputs.model("plain"), tmp_path / "again", **LORA, activation_checkpointing=mode,
                                gradient_checkpointing=None), recipe="classify")
    assert again.history == kept.history


def test_a_plan_needs_no_rows(inputs, tmp_path):
    """Of a base without a head two labels, or as many as it is told."""
    words = ["plan", "classify", "--model_name_or_path", inputs.model("plain"), "--dataset_name", tmp_path / "none",
             "--output_dir", tmp_path / "out", "--num_processes", 2]
    two, many = strata(*words), strata(*words, "--num_labels", 500)
    assert two != many and "peak" in two
