# Oracle: transformers' Trainer over rows that its tokenizers made of pairs of texts, as run_glue.py has them, and the figures of
# GLUE by scikit-learn and scipy; names of classes as datasets writes them; the run on one rank for runs on several.
import json
import math
import shutil

import pytest
from safetensors.torch import load_file

import classification_reference
from classification_reference import read
from running import run_strata, run_strata_raw
from test_bert_training import EVALUATED, FIGURES, LORA, compare, encoder, flags_of  # noqa: F401: a fixture

CAUSAL = dict(LORA, **EVALUATED, max_length=12, model="qwen2", lora_target_modules=["q_proj", "v_proj"])
CASES = {
    **{name: dict(EVALUATED, model=name) for name in ("bert", "bert_segments", "roberta", "xlm_roberta", "distilbert")},
    "cut": dict(EVALUATED, max_length=9, model="bert_segments"),
    "cut_to_almost_nothing": dict(EVALUATED, max_length=5, model="roberta"),
    "numbers": dict(EVALUATED, kind="pairs_of_numbers", model="bert_segments"),
    "lora": dict(LORA, **EVALUATED, model="bert_segments"),
    "causal": dict(EVALUATED, model="plain"),
    "causal_with_a_first_token": dict(EVALUATED, model="llama2", max_length=40),
    "causal_lora": CAUSAL,
    "mrpc": dict(CAUSAL, task_name="mrpc"),
    "rte": dict(EVALUATED, task_name="rte", model="roberta"),
    "stsb": dict(EVALUATED, task_name="stsb", kind="pairs_of_numbers", model="bert_segments"),
}


def settings_of(inputs, encoder, output, kind="pairs", model="bert", **flags):  # noqa: F811
    folder = inputs.model(model) if model in inputs.MODELS else encoder(model)
    return flags_of(inputs, folder, output, kind=kind, seed=7, **flags)


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, encoder, tmp_path, name):  # noqa: F811
    flags = settings_of(inputs, encoder, tmp_path / "out", **CASES[name])
    run = run_strata(flags, recipe="classify")
    expected = classification_reference.log_history(flags)
    compare(run.state["log_history"], expected)
    told = [{key.removeprefix("eval_") for key in row} & {*FIGURES} for row in expected if "eval_loss" in row]
    ours = [{key.removeprefix("eval_") for key in row} & {*FIGURES} for row in run.history if "eval_loss" in row]
    assert ours == told and told[0]


def test_texts_end_where_the_tokenizer_says(inputs, encoder, tmp_path):  # noqa: F811
    """As run_glue.py and run_classification.py, which take the smaller of max_seq_length and model_max_length."""
    flags = settings_of(inputs, encoder, tmp_path / "out", **EVALUATED, max_length=64)
    folder = shutil.copytree(flags["model_name_or_path"], tmp_path / "model")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": 9}))
    flags["model_name_or_path"] = folder
    run = run_strata(flags, recipe="classify")
    compare(run.state["log_history"], classification_reference.log_history(flags))
    assert run.text.count("max_length: found 64, and the tokenizer's model_max_length is 9: rows end there") == 1
    assert "| max_length | 9 |" in (run.folder / "README.md").read_text()
    whole = run_strata({**flags, "output_dir": tmp_path / "cut", "max_length": 9}, recipe="classify")
    assert run.losses == whole.losses and "model_max_length" not in whole.text


def rename(data, folder, columns):
    folder.mkdir()
    for split in ("train", "test"):
        rows = [{columns.get(key, key): value for key, value in row.items()} for row in read(data / f"{split}.jsonl")]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("columns", [("question1", "question2"), ("premise", "hypothesis"), ("question", "sentence")])
def test_pairs_of_glue_are_known_by_their_columns(inputs, encoder, tmp_path, columns):  # noqa: F811
    flags = settings_of(inputs, encoder, tmp_path / "out", model="bert_segments")
    expected = run_strata(flags, recipe="classify")
    data = rename(flags["dataset_name"], tmp_path / "data", {"sentence1": columns[0], "sentence2": columns[1]})
    found = run_strata({**flags, "dataset_name": data, "output_dir": tmp_path / "other"}, recipe="classify")
    assert found.history == expected.history
    named = rename(flags["dataset_name"], tmp_path / "named", {"sentence1": "a", "sentence2": "b"})
    found = run_strata({**flags, "dataset_name": named, "output_dir": tmp_path / "third", "text_column_names": "a",
                        "text_pair_column_names": "b"}, recipe="classify")
    assert found.history == expected.history


def test_segments_and_the_second_text_count(inputs, encoder, tmp_path):  # noqa: F811
    """Each changes what is learnt: the first text alone, both joined, both with a border, both as segments."""
    losses = []
    for number, (model, more) in enumerate([("bert", {"text_column_names": "sentence1"}), ("bert", {"text_column_names": "sentence1,sentence2"}),
                                            ("bert", {}), ("bert_segments", {})]):
        run = run_strata(settings_of(inputs, encoder, tmp_path / str(number), model=model, max_steps=2, **more), recipe="classify")
        losses.append(tuple(run.losses))
    assert len(set(losses)) == 4


@pytest.mark.parametrize("settings", [dict(task_name="mrpc"), dict(task_name="stsb", kind="pairs_of_numbers"),
                                      dict(sharding_strategy="NO_SHARD")], ids=["mrpc", "stsb", "copies"])
def test_ranks_equal_one(inputs, encoder, tmp_path, settings):  # noqa: F811
    settings = {**settings, "eval_strategy": "steps", "eval_steps": 5, "train": 42, "model": "bert_segments"}
    one = {**settings, "per_device_train_batch_size": 6, "sharding_strategy": None, "per_device_eval_batch_size": 3}
    alone = run_strata(settings_of(inputs, encoder, tmp_path / "alone", **one), recipe="classify")
    dealt = run_strata(settings_of(inputs, encoder, tmp_path / "dealt", per_device_eval_batch_size=2, **settings), world=3,
                       recipe="classify")
    for ours, theirs in zip(dealt.history, alone.history, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() & {"loss", "grad_norm", "accuracy", "eval_loss", *(f"eval_{figure}" for figure in FIGURES)}:
            assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, ours, theirs)


def test_a_shuffled_and_a_cached_set_keep_their_segments(inputs, encoder, tmp_path):  # noqa: F811
    flags = settings_of(inputs, encoder, tmp_path / "first", model="bert_segments", max_steps=3, shuffle_dataset=True)
    first = run_strata(flags, recipe="classify")
    again = run_strata({**flags, "output_dir": tmp_path / "again"}, recipe="classify")
    uncached = run_strata({**flags, "output_dir": tmp_path / "third", "dataset_cache": False}, recipe="classify")
    without = run_strata(settings_of(inputs, encoder, tmp_path / "without", model="bert", max_steps=3, shuffle_dataset=True),
                         recipe="classify")
    assert first.history == again.history == uncached.history != without.history


NAMES = ["not_equivalent", "equivalent"]  # an order that is no alphabet's


def typed(data, folder, form, names=NAMES, of_lists=False):
    """The same rows as datasets writes them, with names for the numbers of the label."""
    from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

    label = List(ClassLabel(names=names)) if of_lists else ClassLabel(names=names)
    features = Features({"idx": Value("int32"), "sentence1": Value("string"), "sentence2": Value("string"), "label": label})
    sets = DatasetDict({split: Dataset.from_list([{**row, "label": [row["label"]] if of_lists else row["label"]}
                                                  for row in read(data / f"{split}.jsonl")], features=features)
                        for split in ("train", "test")})
    if form == "arrow":
        sets.save_to_disk(str(folder))
    else:
        folder.mkdir()
        for split, rows in sets.items():
            rows.to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return folder


def label_names(run):
    names = json.loads((run.folder / "config.json").read_text())["id2label"]
    return [names[str(i)] for i in range(len(names))]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_classes_have_the_names_of_the_file(inputs, encoder, tmp_path, form):  # noqa: F811
    """In its order: the run is that of the numbers, under other names."""
    flags = settings_of(inputs, encoder, tmp_path / "numbers", model="bert_segments", task_name="mrpc", **EVALUATED)
    numbers = run_strata(flags, recipe="classify")
    named = run_strata({**flags, "output_dir": tmp_path / "named", "dataset_name": typed(flags["dataset_name"], tmp_path / "data", form)},
                       recipe="classify")
    assert named.history == numbers.history
    assert label_names(numbers) == ["0", "1"] and label_names(named) == NAMES


def test_names_go_with_a_renamed_column_and_count_where_no_row_has_them(inputs, encoder, tmp_path):  # noqa: F811
    flags = settings_of(inputs, encoder, tmp_path / "first", model="roberta", max_steps=1)
    data = typed(flags["dataset_name"], tmp_path / "data", "parquet", names=[*NAMES, "unknown"])
    run = run_strata({**flags, "dataset_name": data, "dataset_columns": "kind=label", "label_column_name": "kind"}, recipe="classify")
    assert label_names(run) == [*NAMES, "unknown"]
    assert load_file(run.folder / "model.safetensors")["classifier.out_proj.weight"].shape[0] == 3
    lists = typed(flags["dataset_name"], tmp_path / "lists", "parquet", of_lists=True)
    run = run_strata({**flags, "dataset_name": lists, "output_dir": tmp_path / "second"}, recipe="classify")
    assert label_names(run) == NAMES
    assert json.loads((run.folder / "config.json").read_text())["problem_type"] == "multi_label_classification"


def test_a_model_keeps_the_order_of_its_own_names(inputs, encoder, tmp_path):  # noqa: F811
    flags = settings_of(inputs, encoder, tmp_path / "first", model="bert", max_steps=1)
    data = typed(flags["dataset_name"], tmp_path / "data", "parquet")
    first = run_strata({**flags, "dataset_name": data}, recipe="classify")
    config = json.loads((first.folder / "config.json").read_text())
    config["id2label"], config["label2id"] = {"0": NAMES[1], "1": NAMES[0]}, {NAMES[1]: 0, NAMES[0]: 1}
    base = tmp_path / "base"
    shutil.copytree(first.folder, base, ignore=shutil.ignore_patterns("checkpoint-*"))
    (base / "config.json").write_text(json.dumps(config))
    run = run_strata({**flags, "dataset_name": data, "model_name_or_path": base, "output_dir": tmp_path / "next"}, recipe="classify")
    assert label_names(run) == NAMES[::-1]


@pytest.mark.parametrize("skips", [False, True])
def test_a_row_without_a_label_is_named(inputs, encoder, tmp_path, skips):  # noqa: F811
    """GLUE's test sets have -1 in the place of labels."""
    flags = settings_of(inputs, encoder, tmp_path / "out", model="bert", max_steps=1, train=12)
    hidden = rename(flags["dataset_name"], tmp_path / "hidden", {})
    rows = read(hidden / "train.jsonl")
    rows[5]["label"] = -1
    (hidden / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = typed(hidden, tmp_path / "data", "parquet")
    run = run_strata_raw({**flags, "dataset_name": data, **({"on_bad_row": "skip"} if skips else {})}, recipe="classify")
    if skips:
        assert run.returncode == 0 and "left out 1 bad row" in run.text and label_names(run) == NAMES
    else:
        assert run.returncode == 1
        assert 'train-00000-of-00001.parquet:6: found -1 in "label", which says that the row has no label' in run.stderr


def write(folder, split, rows):
    folder.mkdir(exist_ok=True)
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def mnli(data, folder):
    """The two evaluations of MNLI: other rows, other numbers of them, and another label first."""
    renamed = rename(data, folder.with_name("renamed"), {"sentence1": "premise", "sentence2": "hypothesis"})
    train, matched = read(renamed / "train.jsonl"), read(renamed / "test.jsonl")
    mismatched = [row for row in train if row["label"] != matched[0]["label"]][:7] + train[:4]
    for split, rows in (("train", train), ("validation_matched", matched), ("validation_mismatched", mismatched)):
        write(folder, split, rows)
    return folder


@pytest.mark.parametrize("world", [1, 2])
def test_mnli_is_evaluated_on_both_of_its_sets(inputs, encoder, tmp_path, world):  # noqa: F811
    """Oracle: Trainer's evaluations of one set and of the other; run_glue.py adds "_mm" to the names of the second."""
    flags = settings_of(inputs, encoder, tmp_path / "out", model="bert_segments", **EVALUATED)
    data = mnli(flags["dataset_name"], tmp_path / "data")
    run = run_strata({**flags, "dataset_name": data, "task_name": "mnli", "per_device_train_batch_size": 2 // world}, world, recipe="classify")
    told = [row for row in run.state["log_history"] if "eval_loss" in row]
    assert len(told) == 2
    for split, ending in (("validation_matched", ""), ("validation_mismatched", "_mm")):
        alone = tmp_path / split
        write(alone, "train", read(data / "train.jsonl"))
        write(alone, "test", read(data / f"{split}.jsonl"))
        expected = classification_reference.log_history({**flags, "dataset_name": alone, "task_name": "mnli", "text_column_names": ["premise"],
                                                         "text_pair_column_names": ["hypothesis"]})
        compare([{**row, **{key: row[key + ending] for key in ("eval_loss", "eval_accuracy") if key in row}}
                 for row in run.state["log_history"]], expected)
    assert all(row["eval_loss"] != row["eval_loss_mm"] for row in told)


@pytest.mark.parametrize("named", [dict(dataset_test_split="validation_matched"), dict(splits="train,validation_mismatched"), dict(task_name=None)],
                         ids=["split", "splits", "no_task"])
def test_a_split_that_is_named_is_evaluated_alone(inputs, encoder, tmp_path, named):  # noqa: F811
    flags = settings_of(inputs, encoder, tmp_path / "out", model="bert", max_steps=1, eval_strategy="steps", eval_steps=1)
    flags = {**flags, "dataset_name": mnli(flags["dataset_name"], tmp_path / "data"), "task_name": "mnli", **named}
    if "task_name" in named:
        flags["splits"] = "train,validation_matched,validation"
    run = run_strata(flags, recipe="classify")
    assert [key for row in run.history for key in row if key.endswith("_mm")] == []
    assert sum("eval_loss" in row for row in run.history) == 1


def test_labels_of_the_second_evaluation_are_told_of(inputs, encoder, tmp_path):  # noqa: F811
    flags = settings_of(inputs, encoder, tmp_path / "out", model="bert", max_steps=1, eval_strategy="steps", eval_steps=1, rehearse=True)
    data = mnli(flags["dataset_name"], tmp_path / "data")
    write(data, "validation_mismatched", [{**read(data / "train.jsonl")[0], "label": 2}])
    run = run_strata({**flags, "dataset_name": data, "task_name": "mnli"}, recipe="classify")
    assert 'warning: label "2" is that of 1 row of the evaluation alone (the first: ' in run.text and "validation_mismatched.jsonl:1)" in run.text
    assert label_names(run) == ["0", "1", "2"] and run.text.count("evaluation batch of ") == 2
    write(data, "validation_mismatched", [{**read(data / "train.jsonl")[0], "label": -1}])
    found = run_strata_raw({**flags, "dataset_name": data, "task_name": "mnli"}, recipe="classify")
    assert found.returncode == 1 and 'validation_mismatched.jsonl:1: found -1 in "label"' in found.stderr


def test_a_task_names_its_columns_and_splits(inputs, encoder, tmp_path):  # noqa: F811
    """MNLI is evaluated on validation_matched, where there is no other; CoLA has one text and Matthews' correlation."""
    flags = settings_of(inputs, encoder, tmp_path / "mnli", model="bert", max_steps=2, **{**EVALUATED, "eval_steps": 2})
    data = rename(flags["dataset_name"], tmp_path / "data", {"sentence1": "premise", "sentence2": "hypothesis"})
    (data / "test.jsonl").rename(data / "validation_matched.jsonl")
    run = run_strata({**flags, "dataset_name": data, "task_name": "MNLI"}, recipe="classify")
    told = [row for row in run.history if "eval_loss" in row]
    assert len(told) == 1 and "eval_accuracy" in told[0] and not {"eval_f1", "eval_loss_mm"} & told[0].keys()
    texts = rename(flags["dataset_name"], tmp_path / "texts", {"sentence1": "sentence"})
    cola = {**settings_of(inputs, encoder, tmp_path / "cola", task_name="cola", **CAUSAL), "dataset_name": texts}
    run = run_strata(cola, recipe="classify")
    expected = classification_reference.log_history({**cola, "text_column_names": ["sentence"]})
    compare(run.state["log_history"], expected)
    told = [row["eval_matthews_correlation"] for row in expected if "eval_loss" in row]
    assert len(told) == 2 and any(told)
