# Oracle: the uninterrupted run, to the bit, and what every rank was started with.
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import preloaded
from limits import with_own_shared_memory
from running import (PROGRAM, base_flags, command, environment, flag_words, output_files, processes_of,
                     ranks_of, run_strata)


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("plain"), inputs.data("messages"), output,
                      **{"max_steps": 150, "save_strategy": "steps", "save_steps": 50, **flags})


# How far the clock of the folder's file server is ahead.
CLOCKS = pytest.mark.parametrize("ahead", [None, -3600, 3600])


def restarted(flags, kill_when, rank, ahead=None):
    """A run whose `rank` is killed once, when `kill_when()`."""
    words = command(flags, 2)
    words[2:2] = ["--max_restarts", "1"]
    clock = {} if ahead is None else preloaded.variables(CLOCK_AHEAD=ahead)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               env={**environment(), **clock})
    try:
        deadline = time.monotonic() + 60
        while not kill_when() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.005)
        os.kill(ranks_of(flags["output_dir"])[rank], signal.SIGKILL)
        text, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0, text
    assert f"rank {rank}: killed by signal 9" in text
    assert "starting all ranks again: restart 1 of 1" in text
    return text


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return run_strata(flags_of(inputs, folder), 2)


@CLOCKS
@pytest.mark.parametrize("rank", [0, 1])
def test_restart_goes_on_from_the_newest_checkpoint(inputs, whole, tmp_path, rank, ahead):
    flags = flags_of(inputs, tmp_path)
    text = restarted(flags, (tmp_path / "latest").exists, rank, ahead)
    assert f"restart 1: going on from the newest checkpoint in {tmp_path}" in text
    assert (tmp_path / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()


def test_restart_goes_on_though_latest_could_not_be_written(inputs, whole, tmp_path):
    (tmp_path / "latest" / "in the way").mkdir(parents=True)
    flags = flags_of(inputs, tmp_path, save_total_limit=1)
    text = restarted(flags, (tmp_path / "checkpoint-50").exists, 0)
    assert f"restart 1: going on from the newest checkpoint in {tmp_path}" in text
    assert re.search(r"warning: checkpoint-\d+ is saved, but .*latest: found ", text), text
    # None goes while nothing names the next one.
    assert {p.name for p in tmp_path.glob("checkpoint-*")} == {f"checkpoint-{s}" for s in (50, 100, 150)}
    assert (tmp_path / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()


def test_restart_begins_anew_where_checkpoints_have_no_optimizer(inputs, whole, tmp_path):
    flags = flags_of(inputs, tmp_path, save_only_model=True)
    text = restarted(flags, (tmp_path / "latest").exists, 1)
    assert ("restart 1: what was saved has no optimizer (save_only_model), starting from the beginning"
            in text)
    assert (tmp_path / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()


@CLOCKS
def test_restart_ignores_what_an_earlier_run_left(inputs, whole, tmp_path, ahead):
    run_strata(flags_of(inputs, tmp_path, max_steps=40, seed=7), 2)
    (tmp_path / "metrics.jsonl").unlink()
    # Before the first save of this run.
    flags = flags_of(inputs, tmp_path, save_steps=140)
    text = restarted(flags, lambda: (tmp_path / "metrics.jsonl").exists(), 1, ahead)
    assert "restart 1: nothing was saved yet, starting from the beginning" in text
    assert (tmp_path / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("moment", ["training", "restarting"])
def test_a_killed_launcher_leaves_nothing_and_its_run_goes_on(inputs, whole, tmp_path, moment):
    flags, port = flags_of(inputs, tmp_path), free_port()
    words = command(flags, 2)
    words[2:2] = ["--max_restarts", "1", "--main_process_port", str(port)]
    shared = tmp_path / "shm"
    process = subprocess.Popen([*with_own_shared_memory(shared), *words], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=environment())
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "latest").exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.005)
        if moment == "restarting":
            os.kill(ranks_of(tmp_path)[1], signal.SIGKILL)
            for line in process.stdout:
                if "starting all ranks again" in line:
                    break
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        killed = time.monotonic()
        while processes_of(tmp_path) and time.monotonic() < killed + 5:
            time.sleep(0.01)
        assert processes_of(tmp_path) == []
    finally:
        process.kill()
        process.communicate()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("", port))
    assert os.listdir(shared) == []
    assert not (tmp_path / "model.safetensors").exists(), "it was killed too late"
    found = run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert (tmp_path / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()
    assert found.history == whole.history
    assert not [name for name in output_files(tmp_path) if ".tmp" in name or name == ".lock"]


def test_different_settings_are_named_before_training(inputs, tmp_path):
    words = flag_words(flags_of(inputs, tmp_path / "out", seed=None))
    wrapper = tmp_path / "rank.sh"
    wrapper.write_text("#!/bin/sh\nexec " + " ".join(
        [str(PROGRAM), "sft", *words, "--seed", "$RANK"]) + "\n")
    wrapper.chmod(0o755)
    result = subprocess.run(
        [str(PROGRAM), "launch", "--num_processes", "2", "--cpu", "--max_restarts", "2", "--no_python",
         str(wrapper)], capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 2, result.stderr
    assert ('error: settings: found "seed: 0 (--seed)" on rank 0 but "seed: 1 (--seed)" on rank 1, '
            "expected the same on all ranks") in result.stderr
    assert "again" not in result.stderr and not (tmp_path / "out").exists()
