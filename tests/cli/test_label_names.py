# Oracle: the names that config.json and labels.json hold, to which rows of the head belong; for settings that such labels do not
# take, the error that names them.
import json

import pytest
from safetensors.torch import load_file

from running import base_flags, run_strata, run_strata_raw
from tiny_llama import write_rows

LORA = dict(use_peft=True, lora_r=4, lora_target_modules=["q_proj", "v_proj"])


def rows_of(*labels):
    return [{"text": f"{word} {number}", "label": label} for number, (word, label) in
            enumerate((word, label) for word in ("cat", "dog", "rain") for label in labels)]


def flags_of(inputs, folder, train, test=None, model=None, **flags):
    """One step that moves nothing, so that rows of the head stay what they were."""
    folder.mkdir(exist_ok=True)
    write_rows(folder / "train.jsonl", train)
    if test is not None:
        write_rows(folder / "test.jsonl", test)
        flags = {"eval_strategy": "steps", "eval_steps": 1, **flags}
    return base_flags(model or inputs.model("plain"), folder, folder / "out", **{"max_steps": 1, "learning_rate": 0, **flags})


def names_in(folder):
    file = folder / ("labels.json" if (folder / "labels.json").exists() else "config.json")
    names = json.loads(file.read_text())["id2label"]
    return [names[str(i)] for i in range(len(names))]


def rename(folder, names):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config |= {"id2label": {str(i): name for i, name in enumerate(names)}, "label2id": {name: i for i, name in enumerate(names)}}
    file.write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def classifier(inputs, tmp_path_factory):
    """A model of three labels, in no order of their characters."""
    def make(*names):
        folder = tmp_path_factory.mktemp("classifier")
        return rename(run_strata(flags_of(inputs, folder, rows_of("a", "b", "c")), recipe="classify").folder, names)
    return make


@pytest.mark.parametrize("settings", [{}, dict(num_labels=3)], ids=["as_many", "num_labels"])
def test_a_head_keeps_its_order(inputs, classifier, tmp_path, settings):
    base = classifier("short", "long", "middle")
    run = run_strata(flags_of(inputs, tmp_path, rows_of("long", "middle"), model=base, **settings), recipe="classify")
    assert names_in(run.folder) == ["short", "long", "middle"] and "warning: the head" not in run.text
    before, after = (load_file(folder / "model.safetensors")["score.weight"] for folder in (base, run.folder))
    assert before.equal(after)


@pytest.mark.parametrize("own,rows", [(("negative", "neutral", "positive"), ("bad", "fair", "good")),
                                      (("LABEL_0", "LABEL_1", "LABEL_2"), ("01", "02", "03")),
                                      (("one", "two", "three"), (0, 1, 2))], ids=["other_names", "digits", "numbers"])
def test_rows_of_a_head_that_stand_for_other_labels_are_told_of(inputs, classifier, tmp_path, own, rows):
    run = run_strata(flags_of(inputs, tmp_path, rows_of(*rows), model=classifier(*own)), recipe="classify")
    assert names_in(run.folder) == [str(name) for name in rows]
    told, now = ('"' + '", "'.join(map(str, names)) + '"' for names in (own, rows))
    assert f"warning: the head that training starts from predicts {told} and continues as one of {now}: its rows" in run.text


def test_a_head_without_names_takes_numbers_for_them(inputs, classifier, tmp_path):
    run = run_strata(flags_of(inputs, tmp_path, rows_of(2, 0), model=classifier("LABEL_0", "LABEL_1", "LABEL_2")), recipe="classify")
    assert names_in(run.folder) == ["0", "1", "2"] and "warning: the head" not in run.text


def test_an_adapter_goes_on_with_its_own_labels(inputs, tmp_path):
    """Rows need not have them all; rows of another number of labels are refused, those of others told of."""
    first = run_strata(flags_of(inputs, tmp_path / "first", rows_of("a", "b", "c"), **LORA), recipe="classify")
    saved = json.loads((first.folder / "labels.json").read_text())
    saved |= {"id2label": {"0": "b", "1": "c", "2": "a"}, "label2id": {"b": 0, "c": 1, "a": 2}}
    (first.folder / "labels.json").write_text(json.dumps(saved))
    on = dict(adapter_name_or_path=first.folder)
    run = run_strata(flags_of(inputs, tmp_path / "fewer", rows_of("a", "b"), **on), recipe="classify")
    assert names_in(run.folder) == ["b", "c", "a"]
    before, after = (load_file(folder / "adapter_model.safetensors")["base_model.model.score.weight"] for folder in (first.folder, run.folder))
    assert before.equal(after)
    other = run_strata(flags_of(inputs, tmp_path / "other", rows_of("x", "y", "z"), **on), recipe="classify")
    assert 'the head that training starts from predicts "b", "c", "a" and continues as one of "x", "y", "z"' in other.text
    for world in (1, 2):
        found = run_strata_raw(flags_of(inputs, tmp_path / "more", rows_of("a", "b", "c", "d"), **on), world, recipe="classify")
        assert found.returncode == 2, found.stderr
        assert ('adapter_name_or_path: found an adapter whose head predicts 3 labels ("b", "c", "a") for 4 labels ("a", "b", "c", "d"), '
                "expected as many") in found.stderr
    (first.folder / "labels.json").write_text("[]")
    found = run_strata_raw(flags_of(inputs, tmp_path / "broken", rows_of("a", "b", "c"), **on), recipe="classify")
    assert found.returncode == 1 and "labels.json: found something else than id2label and label2id" in found.stderr


@pytest.mark.parametrize("world", [1, 2])
def test_a_stream_tells_the_labels_of_the_rows_that_it_uses(inputs, tmp_path, world):
    """Oracle: a run over a file of these rows alone. Behind them stand a label that comes first by its characters, and none."""
    used = rows_of("b", "c", "b", "d")[:8]
    behind = [{"text": "never seen", "label": "a"}, {"text": "nor this", "label": None}]
    flags = dict(max_steps=4, learning_rate=1e-3, per_device_train_batch_size=2 // world)
    in_order = dict(train_sampling_strategy="sequential")
    alone = run_strata(flags_of(inputs, tmp_path / "alone", used, **flags, **in_order), world, recipe="classify")
    streamed = run_strata(flags_of(inputs, tmp_path / "streamed", used + behind, **flags,
                                   dataset_streaming=True), world, recipe="classify")
    assert names_in(streamed.folder) == names_in(alone.folder) == ["b", "c", "d"]
    assert len(alone.losses) == 4 and streamed.losses == alone.losses
    one = run_strata_raw(flags_of(inputs, tmp_path / "one", rows_of("b")[:2] + behind, **{**flags, "max_steps": 1},
                                  dataset_streaming=True), world, recipe="classify")
    assert one.returncode == 2 and 'found the label "b" alone in the training rows' in one.stderr, one.stderr


REFUSED = {
    "smoothed_numbers": (rows_of(0.5, 0.25), None, dict(label_smoothing_factor=0.1),
                         "label_smoothing_factor: found 0.1 for labels that are numbers, expected it with classes; remove it"),
    "smoothed_lists": (rows_of(["a"], ["b"]), None, dict(label_smoothing_factor=0.1),
                       "label_smoothing_factor: found 0.1 for labels that are lists, expected it with classes; remove it"),
    "one_class": (rows_of("good"), rows_of("bad", "good"), {},
                  'label_column_name: found the label "good" alone in the training rows (the first: '),
    "empty_lists": (rows_of([]), rows_of(["a"]), {}, "label_column_name: found no label in any list of the training rows"),
    "names_of_digits": (rows_of("01", "02"), None, dict(num_labels=3),
                        'num_labels: found 3 for 2 labels of the data ("01", "02"), expected as many'),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("world", [1, 2])
def test_is_refused_by_name(inputs, tmp_path, name, world):
    train, test, flags, expected = REFUSED[name]
    run = run_strata_raw(flags_of(inputs, tmp_path, train, test, **flags), world, recipe="classify")
    assert run.returncode == 2 and expected in run.stderr, run.stderr
    assert not (run.folder / "model.safetensors").exists()


def test_a_run_does_not_go_on_with_another_loss(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path, rows_of("a", "b"), save_strategy="steps", save_steps=1)
    run_strata(flags, recipe="classify")
    write_rows(tmp_path / "train.jsonl", rows_of(["a"], ["b"]))
    found = run_strata_raw({**flags, "resume_from_checkpoint": True, "max_steps": 2}, recipe="classify")
    assert found.returncode == 2
    assert ('resume_from_checkpoint: found labels for "single_label_classification" in ' in found.stderr
            and 'expected those of the data, "multi_label_classification"; continue with' in found.stderr)
