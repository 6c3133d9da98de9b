# Oracle: the undisturbed run, to the bit, for a run that was asked to save (SIGUSR2) and for one that goes on from
# what it saved.
import json
import os
import pathlib
import re
import shutil
import signal
import time

import pytest

import killing
from limits import limit_files
from machine_runs import finish, start_both
from machine_runs import flags_of as machine_flags
from running import (base_flags, read_until, run_strata, start_strata, strata, wait_for_step, words_of)
from two_machines import two_machines

ASKED = r"saved checkpoint-(\d+) \(requested by SIGUSR2\)"


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("odd"), inputs.data("messages"), output, **{"max_steps": 150, **flags})


def saved(folder):
    return sorted(int(p.name.split("-")[1]) for p in folder.glob("checkpoint-*"))


def holds_requests(pid):
    """Whether the signal waits there, from the program's first moments on."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return int(re.search(r"SigBlk:\s*(\w+)", status).group(1), 16) >> (signal.SIGUSR2 - 1) & 1


def wait_for_holding(process):
    deadline = time.monotonic() + 60
    while not holds_requests(process.pid):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.001)


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """The undisturbed run by the number of its ranks."""
    known = {}

    def run(ranks):
        if ranks not in known:
            known[ranks] = run_strata(flags_of(inputs, tmp_path_factory.mktemp("whole") / "out"), ranks)
        return known[ranks]

    return run


# Who is asked: the program that was started, or one rank of it alone.
@pytest.mark.parametrize("ranks,one,more", [
    (1, None, {}), (1, None, {"save_strategy": "steps", "save_steps": 100}), (2, None, {}),
    (2, 0, {}), (2, 1, {"save_strategy": "steps", "save_steps": 100}),
    (2, 1, {"save_strategy": "steps", "save_steps": 100, "async_save": False}),
    (2, None, {"save_strategy": "steps", "save_steps": 100, "save_only_model": True}),
    (2, None, {"fsdp_state_dict_type": "FULL_STATE_DICT", "save_strategy": "epoch"})])
def test_a_request_saves_and_training_goes_on(inputs, whole, tmp_path, ranks, one, more):
    """What can be resumed, also where other checkpoints could not be, or there are none."""
    flags = flags_of(inputs, tmp_path / "out", **more)
    process = start_strata(flags, ranks, words=words_of)
    wait_for_step(process, tmp_path / "out", 3)
    if one is None:
        process.send_signal(signal.SIGUSR2)
    else:
        os.kill(killing.ranks_of(process.pid)[one], signal.SIGUSR2)
    text = read_until(process, ASKED)
    step = int(re.search(ASKED, text).group(1))
    # It is there when it is said, and can be gone on from.
    shutil.copytree(tmp_path / "out" / f"checkpoint-{step}", tmp_path / "again" / f"checkpoint-{step}")
    text += process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert text.count("requested by SIGUSR2") == 1 and 3 <= step < 150, text
    assert f"checkpoint-{step} is saved: " in text
    assert killing.same_result(killing.Finished(tmp_path / "out"), whole(ranks))
    assert (saved(tmp_path / "out") == [step]) == (more == {})
    found = run_strata({**flags, "output_dir": tmp_path / "again", "resume_from_checkpoint": True}, ranks)
    assert f"step {step} of 150" in found.text
    assert killing.same_result(found, whole(ranks))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_from_before_the_first_step_is_remembered(inputs, whole, tmp_path, ranks):
    process = start_strata(flags_of(inputs, tmp_path / "out"), ranks, words=words_of)
    wait_for_holding(process)
    process.send_signal(signal.SIGUSR2)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert re.findall(ASKED, text) == ["1"], text
    assert killing.same_result(killing.Finished(tmp_path / "out"), whole(ranks))


@pytest.mark.parametrize("ranks", [1, 2])
def test_requests_at_any_time_end_no_run(inputs, whole, tmp_path, ranks):
    """From the program's first moments until it is gone, its result's among them."""
    process = start_strata(flags_of(inputs, tmp_path / "out", save_total_limit=2), ranks, words=words_of)
    wait_for_holding(process)
    while process.poll() is None:
        process.send_signal(signal.SIGUSR2)
        for rank in killing.ranks_of(process.pid):
            try:
                os.kill(rank, signal.SIGUSR2)
            except ProcessLookupError:
                pass
        time.sleep(0.01)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert len(re.findall(ASKED, text)) > 2
    assert len(saved(tmp_path / "out")) == 2  # as save_total_limit says, also with save_strategy no
    assert killing.same_result(killing.Finished(tmp_path / "out"), whole(ranks))


def test_a_request_waits_for_the_end_of_an_evaluation(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", max_steps=4, eval_strategy="steps", eval_steps=2,
                     per_device_eval_batch_size=1, dataset_name=inputs.data("messages", test=1200))
    process = start_strata(flags, 2)
    wait_for_step(process, tmp_path / "out", 2)
    time.sleep(0.1)
    process.send_signal(signal.SIGUSR2)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert re.findall(ASKED, text) == ["2"], text
    state = json.loads((tmp_path / "out" / "checkpoint-2" / "trainer_state.json").read_text())
    assert "eval_loss" in state["log_history"][-1]


def test_a_request_during_the_last_step_is_answered(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", max_steps=2, gradient_accumulation_steps=1500,
                     dataset_name=inputs.data("messages", train=6000))
    process = start_strata(flags, 2)
    wait_for_step(process, tmp_path / "out", 1)
    time.sleep(0.5)  # the second step has begun
    process.send_signal(signal.SIGUSR2)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert re.findall(ASKED, text) == ["2"] and saved(tmp_path / "out") == [2], text


def test_a_step_that_is_saved_anyway_is_saved_once(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", save_strategy="steps", save_steps=1, max_steps=60)
    process = start_strata(flags, 2)
    wait_for_step(process, tmp_path / "out", 3)
    process.send_signal(signal.SIGUSR2)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    step, = re.findall(ASKED, text)
    assert text.count(f"checkpoint-{step} is saved: ") == 1


def test_a_request_to_stop_comes_before_one_to_save(inputs, whole, tmp_path):
    flags = flags_of(inputs, tmp_path / "out")
    process = start_strata(flags, 2)
    wait_for_step(process, tmp_path / "out", 3)
    process.send_signal(signal.SIGUSR2)
    process.send_signal(signal.SIGUSR1)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    found = run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert killing.same_result(found, whole(2))


def test_weights_alone_push_out_no_checkpoint_that_was_asked_for(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", save_strategy="steps", save_steps=10, save_total_limit=1,
                     save_only_model=True)
    process = start_strata(flags, 1, words=words_of)
    wait_for_step(process, tmp_path / "out", 3)
    process.send_signal(signal.SIGUSR2)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    step = int(re.search(ASKED, text).group(1))
    assert saved(tmp_path / "out") == sorted({step, 150})
    assert "can be resumed: no" in strata("inspect", tmp_path / "out" / "checkpoint-150")
    assert "can be resumed: no" not in strata("inspect", tmp_path / "out" / f"checkpoint-{step}")


def test_a_request_without_room_is_told_and_training_goes_on(inputs, whole, tmp_path):
    """Another one, when there is room again, is answered."""
    process = start_strata(flags_of(inputs, tmp_path / "out"), 2, restore_signals=False,
                           preexec_fn=lambda: limit_files(30000))
    wait_for_step(process, tmp_path / "out", 3)
    process.send_signal(signal.SIGUSR2)
    text = read_until(process, r"warning: checkpoint-\d+ was not saved: .*file too large")
    limit_files(None, [process.pid, *killing.ranks_of(process.pid)])
    process.send_signal(signal.SIGUSR2)
    text += process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert [int(step) for step in re.findall(ASKED, text)] == saved(tmp_path / "out") != [], text
    assert killing.same_result(killing.Finished(tmp_path / "out"), whole(2))


def test_the_ranks_of_other_machines_save_too(inputs, tmp_path):
    """Whichever machine's launcher is asked, as for a stop."""
    flags = machine_flags(inputs, tmp_path, max_steps=150)
    with two_machines() as machines:
        processes = start_both(machines, flags)
        wait_for_step(processes[0], tmp_path, 3)
        processes[1].send_signal(signal.SIGUSR2)
        codes, texts = finish(processes)
    assert codes == [0, 0], texts
    steps = re.findall(ASKED, texts[0])
    assert len(steps) == 1 and saved(tmp_path) == [int(steps[0])]
    files = {p.name for p in (tmp_path / f"checkpoint-{steps[0]}").glob("rank-*")}
    assert len(files) == 4
