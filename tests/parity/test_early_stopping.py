# Oracle: transformers' EarlyStoppingCallback, in TRL's SFTTrainer with the same flags on the same files and alone
# over the sequences of tests/golden/early_stopping.json, which the unit test reads.
import json
import pathlib
import random
import types

import pytest
import safetensors.torch

import trl_reference
from running import ROOT, base_flags, run_strata, strata
from test_best_checkpoint import BY_STEPS, checkpoints

GOLDEN = ROOT / "tests/golden/early_stopping.json"
STOPPING = {"early_stopping_patience", "early_stopping_threshold"}
# The evaluated loss falls but for that of step 8, after step 4 by less than SLOW.
LONG = dict(BY_STEPS, max_steps=20)
SLOW = 0.35
CASES = {
    "one_evaluation": dict(early_stopping_patience=1),
    "two_evaluations": dict(early_stopping_patience=2, early_stopping_threshold=SLOW, save_total_limit=1),
    "by_more_than": dict(early_stopping_patience=2, early_stopping_threshold=0.5),
    "the_greatest_loss": dict(early_stopping_patience=3, greater_is_better=True, max_steps=40),
    "saved_when_better": dict(early_stopping_patience=1, save_strategy="best", metric_for_best_model="loss"),
    "by_epoch": dict(early_stopping_patience=1, early_stopping_threshold=9.0, max_steps=None,
                     num_train_epochs=5, eval_steps=None, eval_strategy="epoch", save_strategy="epoch",
                     logging_strategy="epoch"),
    # What is due at an epoch's end is due where training ends in the middle of one.
    "within_an_epoch": dict(early_stopping_patience=1, early_stopping_threshold=9.0, eval_steps=5,
                            save_strategy="epoch", logging_strategy="epoch",
                            load_best_model_at_end=False, metric_for_best_model="loss"),
    "with_a_delay_and_a_start": dict(early_stopping_patience=2, early_stopping_threshold=9.0, eval_delay=4,
                                     eval_on_start=True),
    "never": dict(early_stopping_patience=9),
}


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("plain"), inputs.data("messages", train=16), output, **{**LONG, **flags})


def reference(flags, folder):
    """The trainer after its run, whose checkpoints lie in `folder`."""
    datasets, _, _, transformers, trl = trl_reference.stack()
    own = trl_reference.OWN_FLAGS - {"save_strategy"} | STOPPING
    args = trl.SFTConfig(output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True,
                         **{k: v for k, v in flags.items() if k not in own and v is not None})
    data = flags["dataset_name"]
    trainer = trl.SFTTrainer(
        model=str(flags["model_name_or_path"]), args=args,
        train_dataset=trl_reference.load_rows(datasets, data / "train.jsonl", folder / "cache"),
        eval_dataset=trl_reference.load_rows(datasets, data / "test.jsonl", folder / "cache"),
        callbacks=[transformers.EarlyStoppingCallback(
            flags["early_stopping_patience"], flags.get("early_stopping_threshold", 0.0))])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return trainer


def saved_state(checkpoint):
    return json.loads((checkpoint / "trainer_state.json").read_text())


def assert_same_history(found, expected):
    for ours, theirs, prefix, what in trl_reference.steps_beside(found, expected):
        assert ("loss" in ours) == ("loss" in theirs), what
        assert ours[prefix + "loss"] == pytest.approx(theirs[prefix + "loss"], rel=2e-3), what
        assert ours["epoch"] == pytest.approx(theirs["epoch"]), what


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, tmp_path, name):
    flags = flags_of(inputs, tmp_path / "ours", **CASES[name])
    theirs = reference(flags, tmp_path / "theirs").state
    run = run_strata(flags)
    ours = run.state
    assert ours["global_step"] == theirs.global_step
    assert (theirs.global_step < theirs.max_steps) == (name != "never")
    assert ("early stopping: eval_loss has not improved in" in run.text) == (name != "never")
    assert ours["best_global_step"] == theirs.best_global_step
    assert ours["eval_steps"] == theirs.eval_steps
    assert_same_history(ours["log_history"], theirs.log_history)
    assert checkpoints(run.folder) == checkpoints(tmp_path / "theirs")
    for checkpoint in checkpoints(run.folder):
        found, expected = (saved_state(folder / checkpoint) for folder in (run.folder, tmp_path / "theirs"))
        key = "EarlyStoppingCallback"
        assert found["stateful_callbacks"][key] == expected["stateful_callbacks"][key], checkpoint
        key = "should_training_stop"
        assert (found["stateful_callbacks"]["TrainerControl"]["args"][key]
                == expected["stateful_callbacks"]["TrainerControl"]["args"][key]), checkpoint
    missing = "so the result is the model of the last step, not of the best evaluation"
    assert (missing in run.text) == (not flags["load_best_model_at_end"])


@pytest.mark.parametrize("max_steps", [None, 10])
def test_the_step_that_ends_training_is_saved_once(inputs, tmp_path, max_steps):
    """Also where it is the last that was asked for, and so saved for that."""
    flags = dict(CASES["within_an_epoch"], **({"max_steps": max_steps} if max_steps else {}))
    run = run_strata(flags_of(inputs, tmp_path / "out", **flags))
    assert run.state["global_step"] == 10
    assert run.text.count("checkpoint-10 is saved") == 1


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """A run of two ranks that ends after the fourth evaluation in a row that is not much better."""
    flags = flags_of(inputs, tmp_path_factory.mktemp("whole") / "out", early_stopping_patience=4,
                     early_stopping_threshold=SLOW, per_device_train_batch_size=1)
    return flags, run_strata(flags, 2)


def test_several_ranks_stop_as_one(inputs, whole, tmp_path):
    flags, run = whole
    one = run_strata({**flags, "output_dir": tmp_path / "one", "per_device_train_batch_size": 2})
    assert run.state["global_step"] == one.state["global_step"] == 12
    assert run.losses == pytest.approx(one.losses, rel=1e-3)


@pytest.mark.parametrize("step", [6, 8, 10])
def test_a_resumed_run_counts_on(whole, tmp_path, step):
    """Wherever it was broken off it ends where the uninterrupted run does, with the same weights."""
    flags, run = whole
    flags = {**flags, "output_dir": tmp_path / "out"}
    run_strata({**flags, "max_steps": step}, 2)
    again = run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert again.state["global_step"] == run.state["global_step"]
    assert again.history == run.history
    name = "model.safetensors"
    assert (again.folder / name).read_bytes() == (run.folder / name).read_bytes()


def test_a_run_that_has_ended_early_goes_on_only_with_more_patience(whole, tmp_path):
    """The result of a run is made again by the same command, and not by another run."""
    flags, run = whole
    flags = {**flags, "resume_from_checkpoint": run.folder / "checkpoint-12"}
    again = run_strata({**flags, "output_dir": tmp_path / "again"}, 2)
    assert again.state["global_step"] == 12
    assert "training ends after step 12 of 20; raise early_stopping_patience to continue" in again.text
    more = run_strata({**flags, "output_dir": tmp_path / "more", "early_stopping_patience": 5}, 2)
    assert more.state["global_step"] == 14
    whole_run = run_strata({**flags, "output_dir": tmp_path / "whole", "resume_from_checkpoint": None,
                            "early_stopping_patience": 5}, 2)
    assert more.history == whole_run.history


def test_the_counter_of_trainers_own_checkpoint_is_gone_on_from(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "ours", early_stopping_patience=4, early_stopping_threshold=SLOW)
    theirs = reference(flags, tmp_path / "theirs").state
    strata("convert", tmp_path / "theirs" / "checkpoint-10", tmp_path / "out", "--to", "strata")
    state = saved_state(next((tmp_path / "out").glob("checkpoint-10")))
    assert state["stateful_callbacks"]["EarlyStoppingCallback"]["attributes"] == {
        "early_stopping_patience_counter": 3}
    found = run_strata({**flags, "output_dir": tmp_path / "out", "resume_from_checkpoint": True,
                        "save_strategy": "no", "load_best_model_at_end": False,
                        "metric_for_best_model": "loss"})
    assert found.state["global_step"] == theirs.global_step == 12
    assert_same_history(found.state["log_history"], theirs.log_history)


def watch(transformers, patience, threshold, greater, values):
    """What the callback says after each of the values, beside the Trainer that keeps the best of them."""
    args = types.SimpleNamespace(greater_is_better=greater, metric_for_best_model="loss",
                                 save_strategy=transformers.trainer_utils.SaveStrategy.STEPS)
    trainer = types.SimpleNamespace(args=args, state=transformers.TrainerState(global_step=0))
    control = transformers.TrainerControl()
    callback = transformers.EarlyStoppingCallback(patience, threshold)
    rows = []
    for step, value in enumerate(values, 1):
        trainer.state.global_step = step
        metrics = {"eval_loss": value}
        callback.on_evaluate(args, trainer.state, control, metrics)
        transformers.Trainer._determine_best_metric(trainer, metrics, trial=None)
        rows.append([callback.early_stopping_patience_counter, control.should_training_stop,
                     trainer.state.best_global_step or 0])
        if control.should_training_stop:
            break
    return rows


def golden_table():
    transformers = trl_reference.stack()[3]
    nan, inf = float("nan"), float("inf")
    by_hand = [
        (1, 0.0, False, [3.0, 2.0, 2.0]), (1, 0.0, False, [3.0, 2.0, 1.0, 0.5]),
        (2, 0.0, False, [3.0, 3.5, 2.9, 3.1, 3.0]), (2, 0.0, True, [0.1, 0.2, 0.2, 0.3, 0.1, 0.2]),
        # Steps too small to count move the best value all the same.
        (3, 0.5, False, [5.0, 4.75, 4.5, 4.25]), (3, 0.5, False, [5.0, 4.75, 4.0, 3.75, 3.5, 3.25]),
        (2, 0.5, False, [4.0, 3.5, 3.0]), (2, 0.25, True, [1.0, 1.25, 1.75, 1.5, 2.0]),
        # No number, at first and later; no bound.
        (2, 0.0, False, [nan, nan, nan]), (2, 0.0, False, [nan, 3.0, nan, 2.0, nan, nan]),
        (2, 0.0, True, [nan, -5.0, nan, nan]), (2, 0.0, False, [inf, inf, 4.0]), (2, 0.0, True, [-inf, -inf, -inf]),
    ]
    draw = random.Random(3)
    drawn = [(draw.randint(1, 4), draw.choice([0.0, 0.0, 0.25, 1.0]), draw.random() < 0.5,
              [draw.randint(0, 12) / 4 for _ in range(draw.randint(3, 14))]) for _ in range(40)]
    for patience, threshold, greater, values in by_hand + drawn:
        rows = watch(transformers, patience, threshold, greater, values)
        yield dict(patience=patience, threshold=threshold, greater_is_better=greater,
                   values=values[:len(rows)], rows=rows)


def test_the_table_is_the_callbacks():
    text = "[\n" + ",\n".join(json.dumps(case) for case in golden_table()) + "\n]\n"
    assert GOLDEN.read_text() == text, "write the new text there"
