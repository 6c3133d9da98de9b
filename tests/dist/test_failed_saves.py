# Oracle: the run that had room for everything: its result, the rows of its log, what it saved.
import json
import re
import signal
import time

import pytest

import killing
import preloaded
from limits import limit_files
from running import base_flags, read_until, run_strata, start_strata, wait_for_step


@pytest.mark.parametrize("room_again", [True, False])
def test_a_stop_makes_a_save_again_that_failed_in_the_background(inputs, tmp_path, room_again):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out",
                       max_steps=400, save_strategy="steps", save_steps=1)
    process = start_strata(flags, 2, restore_signals=False, preexec_fn=lambda: limit_files(30000))
    wait_for_step(process, tmp_path / "out", 3)
    if room_again:
        limit_files(None, [process.pid, *killing.ranks_of(process.pid)])
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=60)[0]
    assert "warning: checkpoint-1 was not saved" in text and "file too large" in text
    saved = sorted((tmp_path / "out").glob("checkpoint-*"))
    if not room_again:
        # Nothing could be saved: no code that says so, and no half.
        assert process.returncode not in (0, 75), text
        assert re.search(r"error: .*checkpoint-\d+ was not saved: .*file too large", text), text
        assert saved == [] and "is saved, resume with" not in text
        return
    assert process.returncode == 75, text
    last = max(int(path.name.split("-")[1]) for path in saved)
    assert f"stopped on request after step {last}: checkpoint-{last} is saved" in text
    flags["max_steps"] = last + 3
    flags["lr_scheduler_type"] = "constant"
    state = json.loads((tmp_path / "out" / f"checkpoint-{last}" / "trainer_state.json").read_text())
    assert state["global_step"] == last
    resumed = run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert [row["step"] for row in resumed.history][-1] == last + 3


def test_a_failed_save_stops_nothing(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "whole",
                       max_steps=6, save_strategy="steps", save_steps=2)
    whole = run_strata(flags)
    limit = (whole.folder / "model.safetensors").stat().st_size * 3 // 2
    # Weights fit, weights with moments do not.
    assert (whole.folder / "checkpoint-2" / "rank-00000.safetensors").stat().st_size > limit
    process = start_strata({**flags, "output_dir": tmp_path / "out"}, 1, restore_signals=False,
                           preexec_fn=lambda: limit_files(limit))
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert "warning: checkpoint-2 was not saved" in text and "file too large" in text
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def start_on_a_disk_that_is_full_while(there, flags):
    """A run for whose rows there is no room as long as the file is there."""
    return start_strata(flags, 1, preloaded.variables(FULL_WHILE=there))


def test_a_full_disk_keeps_rows_back_until_there_is_room(inputs, tmp_path):
    # Long enough to be at work still when there is room again.
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1000)
    full = tmp_path / "full"
    process = start_on_a_disk_that_is_full_while(full, flags)
    wait_for_step(process, tmp_path / "out", 30)
    full.touch()
    text = read_until(process, "rows are kept until there is room")
    time.sleep(0.3)
    full.unlink()
    text += process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    assert text.count("metrics.jsonl: found that a row cannot be written (no space left") == 1, text
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 1001))


@pytest.mark.parametrize("is_stopped,room_again", [(True, True), (True, False), (False, False)])
def test_rows_that_were_kept_back_are_tried_once_more_at_the_end(inputs, tmp_path, is_stopped,
                                                                 room_again):
    """What finds no room even then is counted, and is in the state beside it."""
    out, full = tmp_path / "out", tmp_path / "full"
    full.touch()
    # The end comes long before another row does.
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), out,
                       **({"max_steps": 4000, "logging_steps": 200} if is_stopped
                          else {"max_steps": 5}))
    process = start_on_a_disk_that_is_full_while(full, flags)
    text = read_until(process, "rows are kept until there is room")
    if room_again:
        full.unlink()
    if is_stopped:
        process.send_signal(signal.SIGTERM)
    text += process.communicate(timeout=60)[0]
    assert process.returncode == (75 if is_stopped else 0), text
    assert text.count("metrics.jsonl: found that a row cannot be written (no space left") == (
        1 if room_again else 2), text
    folder = max(out.glob("checkpoint-*")) if is_stopped else out
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    steps = [200] if is_stopped else [1, 2, 3, 4, 5]
    assert [row["step"] for row in history if "loss" in row] == steps
    rows = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    missing = re.search(r"(\d+) rows? (is|are) missing in it \(what is saved", text)
    if room_again:
        assert [row["step"] for row in rows if "loss" in row] == steps and not missing
    else:
        assert rows == [] and int(missing[1]) == len(history)


@pytest.mark.parametrize("in_background", [True, False])
def test_ranks_agree_on_the_best_after_saves_that_failed(inputs, tmp_path, in_background):
    """One of them hears of a failure a step before the other: all judge the next evaluation alike, or
    one would save alone and wait for ever."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=40,
                       eval_strategy="steps", eval_steps=1, save_strategy="best",
                       metric_for_best_model="loss", async_save=in_background)
    process = start_strata(flags, 2, restore_signals=False, preexec_fn=lambda: limit_files(30000))
    wait_for_step(process, tmp_path / "out", 9)
    limit_files(None, [process.pid, *killing.ranks_of(process.pid)])
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert re.search(r"warning: checkpoint-\d+ was not saved: .*file too large", text), text
    # Better than all that were saved, again and again: what failed takes its value back.
    saved = {int(p.name.split("-")[1]) for p in (tmp_path / "out").glob("checkpoint-*")}
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert state["best_global_step"] in saved and max(saved) <= 40
    losses = {row["step"]: row["eval_loss"] for row in state["log_history"] if "eval_loss" in row}
    assert state["best_metric"] == losses[state["best_global_step"]]
    assert len(losses) == 40


@pytest.mark.parametrize("in_background", [True, False])
def test_the_best_model_that_no_checkpoint_holds_is_the_result(inputs, tmp_path, in_background):
    """Its weights are in memory: an earlier checkpoint's would be less, and those of the last step lost."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "whole", max_steps=3,
                       eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
                       load_best_model_at_end=True, lr_scheduler_type="constant", async_save=in_background)
    whole = run_strata(flags)
    assert whole.state["best_global_step"] == 3
    out = tmp_path / "out"
    run_strata({**flags, "output_dir": out, "max_steps": 2})
    # Weights fit, weights with moments do not.
    limit = (out / "model.safetensors").stat().st_size * 3 // 2
    process = start_strata({**flags, "output_dir": out, "resume_from_checkpoint": True}, 1,
                           preexec_fn=lambda: limit_files(limit))
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "warning: checkpoint-3 was not saved: " in text, text
    assert "the result is the model of the last step, the best by eval_loss" in text
    assert (out / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_in_the_background_or_not_is_the_same(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "a", max_steps=4,
                       save_strategy="steps", save_steps=2)
    run_strata(flags, 2)
    run_strata({**flags, "output_dir": tmp_path / "b", "async_save": False}, 2)
    for name in ("checkpoint-2/rank-00001.safetensors", "checkpoint-4/rank-00000.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_save_says_what_it_cost(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2,
                       save_strategy="steps", save_steps=1)
    text = run_strata(flags, 2).text
    for step in (1, 2):
        assert re.search(rf"checkpoint-{step} is saved: \d+\.\d MB of rank 0 in \d+\.\d{{3}} s; training "
                         r"paused for \d+\.\d{3} s \(\d+\.\d{3} s of it the copy to host memory", text), text
    text = run_strata({**flags, "output_dir": tmp_path / "b", "async_save": False}, 2).text
    assert "training paused for" in text and "host memory" not in text
