# Oracle: the same set as `datasets` loads it, written by it to parquet with its names of classes: the run over the folder with a
# card is that over those files; where `datasets` cannot load the folder, an error.
import json

import pytest

from running import base_flags, run_strata, run_strata_raw

NAMES = ["good", "bad"]  # an order that is no alphabet's
TEXTS = ["a cat sat", "two dogs ran far", "rain", "it fell again", "and then it was over", "sun"]
NUMBERS = [1, 0, 0, 1, 1, 0]


def class_label(names=NAMES, kind="dtype", indent="    "):
    lines = [f"{kind}:", "  class_label:", "    names:"] if kind else ["class_label:", "  names:"]
    lines += [f"{'  ' * len(lines)}'{i}': {name}" for i, name in enumerate(names)]
    return "".join(f"{indent}{line}\n" for line in lines)


def info(label=None, name=None, indent=""):
    """`dataset_info` of a card; as an entry of its list with an indent."""
    lines = [f"config_name: {name}"] if name else []
    lines += ["features:", "- name: text", "  dtype: string", "- name: label", *(label or class_label(indent="  ")).rstrip().split("\n")]
    return "".join(f"{'- ' if indent and not i else '  '}{line}\n" for i, line in enumerate(lines))


def card(label=None, before=""):
    return f"---\n{before}dataset_info:\n{info(label)}---\n# Texts\n"


def lines_of(labels):
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in zip(TEXTS, labels))


def table_of(labels):
    return "text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, labels))


def named(labels):
    return [NAMES[label] for label in labels]


def parquet(folder, names):
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=names) if names else Value("int64")})
    Dataset.from_dict({"text": TEXTS, "label": NUMBERS}, features=features).to_parquet(str(folder / "train.parquet"))


LIST = "  {}:\n    class_label:\n      names:\n        '0': good\n        '1': bad\n"
TWO = (f"---\nconfigs:\n- config_name: a\n  data_files: a.jsonl\n- config_name: b\n  data_files: b.jsonl\ndataset_info:\n"
       f"{info(name='a', indent=' ')}{info(class_label(['x', 'y', 'z'], indent='  '), name='b', indent=' ')}---\n")
CASES = {
    "numbers": (card(), {"train.jsonl": lines_of(NUMBERS)}),
    "names": (card(), {"train.jsonl": lines_of(named(NUMBERS))}),
    "numbers_as_texts": (card(), {"train.jsonl": lines_of(map(str, NUMBERS))}),
    "truth_values": (card(), {"train.jsonl": lines_of(map(bool, NUMBERS))}),
    "floats": (card(), {"train.jsonl": lines_of(map(float, NUMBERS))}),
    "table_of_numbers": (card(), {"train.csv": table_of(NUMBERS)}),
    "table_of_names": (card(), {"train.csv": table_of(named(NUMBERS))}),
    "list_of_names": (card("  dtype:\n    class_label:\n      names:\n      - good\n      - bad\n"), {"train.jsonl": lines_of(NUMBERS)}),
    "short": (card(class_label(kind=None, indent="  ")), {"train.jsonl": lines_of(NUMBERS)}),
    "names_that_no_row_has": (card(class_label([*NAMES, "fair"], indent="  ")), {"train.jsonl": lines_of(NUMBERS)}),
    "lists": (card(LIST.format("list")), {"train.jsonl": lines_of([[number] for number in NUMBERS])}),
    "sequences": (card(LIST.format("sequence")), {"train.jsonl": lines_of([[0, 1], [1], [], [0], [0], [1]])}),
    "values": (card("  dtype: int64\n"), {"train.jsonl": lines_of(NUMBERS)}),
    "parquet_without_names": (card(), {"train.parquet": None}),
    "parquet_with_others": (card(), {"train.parquet": ["no", "yes"]}),
    "parquet_whose_names_do_not_count": (card("  dtype: int64\n"), {"train.parquet": ["no", "yes"]}),
    "one_of_two": (TWO, {"a.jsonl": lines_of(NUMBERS), "b.jsonl": lines_of([2, 0, 1, 2, 1, 0])}),
}


def write(folder, text, files):
    folder.mkdir()
    (folder / "README.md").write_text(text)
    for name, content in files.items():
        if name.endswith(".parquet"):
            parquet(folder, content)
        else:
            (folder / name).write_text(content)
    return folder


def load(folder, cache, name=None):
    from datasets import load_dataset

    return load_dataset(str(folder), name, cache_dir=str(cache))["train"]


def flags_of(inputs, data, output, **flags):
    return base_flags(inputs.model("plain"), data, output, max_steps=3, **flags)


def label_names(run):
    names = json.loads((run.folder / "config.json").read_text())["id2label"]
    return [names[str(i)] for i in range(len(names))]


@pytest.mark.parametrize("name", CASES)
def test_classes_are_those_of_the_card(inputs, tmp_path, name):
    configuration = "b" if name == "one_of_two" else None
    folder = write(tmp_path / "data", *CASES[name])
    expected = load(folder, tmp_path / "cache", configuration)
    (tmp_path / "typed").mkdir()
    expected.to_parquet(str(tmp_path / "typed" / "train.parquet"))
    run = run_strata(flags_of(inputs, folder, tmp_path / "out", dataset_config=configuration), recipe="classify")
    typed = run_strata(flags_of(inputs, tmp_path / "typed", tmp_path / "other"), recipe="classify")
    assert run.history == typed.history and len(run.losses) == 3
    feature = expected.features["label"]
    feature = getattr(feature, "feature", feature)
    assert label_names(run) == label_names(typed) == getattr(feature, "names", ["0", "1"])


@pytest.mark.parametrize("labels,names,expected", [
    (["good", "awful"], NAMES, 'train.jsonl:2: found "awful" in "label", expected 0 to 1 or one of the names that the data set has for these '
                               '("good", "bad"); correct the label, or the names in the file or in README.md'),
    ([1, 0], ["good", "good"], 'README.md:10: found no usable "names" of a configuration, expected each once'),
])
def test_what_datasets_does_not_load_is_an_error(inputs, tmp_path, labels, names, expected):
    folder = write(tmp_path / "data", card(class_label(names, indent="  ")), {"train.jsonl": lines_of(labels)})
    with pytest.raises(Exception):
        load(folder, tmp_path / "cache")
    run = run_strata_raw(flags_of(inputs, folder, tmp_path / "out"), recipe="classify")
    assert run.returncode == 1 and expected in run.stderr, run.stderr
    # Other recipes read no classes.
    run_strata(flags_of(inputs, folder, tmp_path / "sft"))


def test_a_file_by_itself_has_no_card_and_a_changed_card_counts(inputs, tmp_path):
    folder = write(tmp_path / "data", card(), {"train.jsonl": lines_of(NUMBERS)})
    from datasets import load_dataset

    alone = load_dataset(str(folder), data_files="train.jsonl", cache_dir=str(tmp_path / "cache"))["train"]
    assert alone.features["label"].dtype == "int64"
    run = run_strata(flags_of(inputs, folder / "train.jsonl", tmp_path / "file"), recipe="classify")
    assert label_names(run) == ["0", "1"]
    assert label_names(run_strata(flags_of(inputs, folder, tmp_path / "first"), recipe="classify")) == NAMES
    (folder / "README.md").write_text(card(class_label(["p", "q"], indent="  ")))
    assert label_names(run_strata(flags_of(inputs, folder, tmp_path / "second"), recipe="classify")) == ["p", "q"]
