# Oracle: for every way in which rows with labels, or settings for them, can be wrong a message that names the file and line
# (or the setting), what was found, and what to do; exit code 1 (or 2), no hang, nothing half written.
import json

import pytest

from running import base_flags, run_strata, run_strata_raw, strata

GOOD = [{"text": "a good book", "label": "good"}, {"text": "a bad one", "label": "bad"}]
PAIR = {"sentence1": "a good book", "sentence2": "a bad one", "label": 1}
CASES = {
    "no_text": ([{"body": "x", "label": 1}], {}, 'train.jsonl:1: found no column "sentence" or "text" (columns: body, label), '
                "expected a text to classify; name its column with --text_column_names"),
    "no_label": ([{"text": "x", "stars": 1}], {}, 'train.jsonl:1: found no label in "label" or "labels" (columns: text, stars), '
                 "expected one; name its column with --label_column_name"),
    "no_such_text": (GOOD, {"text_column_names": "title"}, 'train.jsonl:1: found nothing in "title" (columns: text, label), '
                     "expected a text to classify"),
    "no_such_label": (GOOD, {"label_column_name": "stars"}, 'train.jsonl:1: found no label in "stars" (columns: text, label)'),
    "a_row_without_a_label": ([*GOOD, {"text": "x", "label": None}], {}, 'train.jsonl:3: found no label in "label" (columns: text)'),
    "a_text_that_is_none": ([*GOOD, {"text": 5, "label": "bad"}], {}, 'train.jsonl:3: found a number in "text"'),
    "one_class": ([GOOD[0], GOOD[0]], {}, 'label_column_name: found the label "good" alone in the training rows (the first: '),
    "an_object": ([{"text": "x", "label": {"a": 1}}], {}, 'train.jsonl:1: found an object in "label", expected a label'),
    "a_fraction_among_classes": ([{"text": "x", "label": 1}, {"text": "y", "label": 0.5}], {},
                                 'train.jsonl:2: found 0.5 in "label", expected a label (a text, a whole number, true or false) '
                                 "as in "),
    "a_name_among_numbers": ([{"text": "x", "label": 0.5}, {"text": "y", "label": "bad"}], {},
                             'train.jsonl:2: found "bad" in "label", expected a finite number as in '),
    "a_number_as_text": ([{"text": "x", "label": "0.5"}], {}, 'train.jsonl:1: found "0.5" as a label, which may be a number to predict or '
                         "the name of a class"),
    "a_list_among_classes": ([*GOOD, {"text": "x", "label": ["bad"]}], {}, 'train.jsonl:3: found a list in "label"'),
    "a_class_among_lists": ([{"text": "x", "label": ["a"]}, {"text": "y", "label": "a"}], {},
                            'train.jsonl:2: found "a" in "label", expected a list of labels as in '),
    "lists_without_any": ([{"text": "x", "label": []}], {}, "label_column_name: found no label in any list of the training rows"),
    "a_pair_without_its_second": ([PAIR, {**PAIR, "sentence2": None}], {}, 'train.jsonl:2: found nothing in "sentence2" (columns: '
                                  "sentence1, label), expected a text to classify; name the columns of texts with --text_column_names, "
                                  "those of a second one with --text_pair_column_names"),
    "no_such_second_text": ([PAIR], {"text_column_names": "sentence1", "text_pair_column_names": "body"},
                            'train.jsonl:1: found nothing in "body"'),
    "too_few_labels": (GOOD, {"num_labels": 1}, 'num_labels: found 1 for 2 labels of the data ("bad", "good"), expected as many'),
    "too_many_labels": (GOOD, {"num_labels": 3}, 'num_labels: found 3 for 2 labels of the data ("bad", "good"), expected as many'),
    "prompts": (GOOD, {"use_peft": True, "peft_type": "PROMPT_TUNING", "num_virtual_tokens": 2},
                "peft_type: found PROMPT_TUNING with the recipe classify, expected a method that trains the new head, too"),
    "packing": (GOOD, {"packing": True}, "packing"),
    "split_rows": (GOOD, {"long_rows": "split"}, "long_rows: found split with the recipe classify, expected truncate or drop"),
    "columns_of_a_task": (GOOD, {"task_name": "mrpc"}, 'train.jsonl:1: found nothing in "sentence1" (columns: text, label)'),
    "no_task": (GOOD, {"task_name": "squad"}, '--task_name: found "squad", expected one of cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb, wnli'),
    "hidden_labels": ([PAIR, {**PAIR, "label": -1}], {"task_name": "rte"}, 'train.jsonl:2: found -1 in "label", which says that the '
                      "row has no label (as in GLUE's test sets), expected one; use another split (--dataset_test_split validation)"),
    "a_task_of_classes": ([PAIR], {"task_name": "rte", "do_regression": True}, "--do_regression: found true with --task_name rte, "
                          "expected false for its classes; remove it"),
    "a_task_of_numbers": ([PAIR], {"task_name": "stsb", "do_regression": False}, "--do_regression: found false with --task_name stsb, "
                          "expected true for its numbers; remove it"),
    "a_metric_of_another_task": ([PAIR, {**PAIR, "label": 2}], {"task_name": "mrpc", "eval_strategy": "steps", "splits": "train,train",
                                                                "metric_for_best_model": "pearson"},
                                 "metric_for_best_model: found pearson, expected accuracy or f1 or combined_score"),
    "lists_in_a_task": ([{**PAIR, "label": [1, 2]}], {"task_name": "mrpc"}, "task_name: found lists of labels with mrpc, expected classes"),
    "a_column_of_seq2seq": (GOOD, {"label_column": "label"}, "--label_column: found with the recipe classify, expected label_column_name "
                            "for the column with the label; use that name"),
    "a_text_column_of_seq2seq": (GOOD, {"text_column": "text"}, "--text_column: found with the recipe classify, expected text_column_names"),
    "a_metric_of_numbers": (GOOD, {"eval_strategy": "steps", "metric_for_best_model": "mse", "dataset_test_split": "train"},
                            "metric_for_best_model: found mse, expected accuracy or f1"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", [1, 2])
def test_is_refused_by_name(inputs, tmp_path, name, world):
    rows, flags, expected = CASES[name]
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_strata_raw(base_flags(inputs.model("plain"), data, tmp_path / "out", **flags), world=world, recipe="classify")
    assert run.returncode == (1 if expected.startswith(("train.jsonl", "task_name: found lists")) else 2), run.stderr
    assert expected in run.stderr, run.stderr
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_bad_rows_may_be_left_out(inputs, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"text": "x"}, *GOOD, {"text": "y", "label": 0.5}, {"text": "z", "label": None}]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_strata(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1, on_bad_row="skip"), recipe="classify")
    assert "left out 3 bad rows" in run.text
    assert json.loads((run.folder / "config.json").read_text())["id2label"] == {"0": "bad", "1": "good"}


def test_labels_of_the_evaluation_alone_are_told_of(inputs, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GOOD))
    (data / "test.jsonl").write_text(json.dumps({"text": "so so", "label": "fair"}) + "\n")
    run = run_strata(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1, eval_strategy="steps", eval_steps=1),
                     recipe="classify")
    assert 'warning: label "fair" is that of 1 row of the evaluation alone (the first: ' in run.text and "test.jsonl:1)" in run.text
    assert json.loads((run.folder / "config.json").read_text())["id2label"] == {"0": "bad", "1": "fair", "2": "good"}
    assert [row["eval_accuracy"] for row in run.history if "eval_loss" in row][0] in (0.0, 1.0)


def test_a_preview_names_the_labels(inputs, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GOOD))
    text = strata("preview", "classify", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data,
                  "--output_dir", tmp_path / "out")
    assert "label: good" in text and "label: bad" in text and "no end token" not in text
