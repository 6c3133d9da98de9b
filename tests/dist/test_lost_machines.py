# Oracle: the run on one machine for results, the clock for the end of a machine that is killed, cut off or
# never comes. Two network namespaces with delay and loss between them stand for two machines.
import os
import re
import signal
import subprocess
import time

import pytest

from machine_runs import finish, flags_of, launch_words, losses, start_both, wait_for_step
from running import PROGRAM, environment, flag_words, run_strata
from two_machines import two_machines


@pytest.fixture(scope="module")
def machines():
    with two_machines(delay_ms=5, loss=0.005) as made:
        yield made


def test_a_machine_that_dies_ends_the_other(inputs, tmp_path, machines):
    processes = start_both(machines, flags_of(inputs, tmp_path, max_steps=100000))
    wait_for_step(tmp_path, processes)
    start = time.monotonic()
    machines[1].kill_all()
    text, _ = processes[0].communicate(timeout=60)
    seconds = time.monotonic() - start
    processes[1].communicate(timeout=10)
    assert processes[0].returncode == 1 and seconds < 10, (seconds, text)
    assert re.search(r"error: (collective [a-z-]+ of rank \d: found a failed peer \(.*10\.77\.0\.2"
                     r"|machine 1 \(10\.77\.0\.2\): found gone)", text), text


def test_a_machine_that_goes_silent_ends_the_other(inputs, tmp_path):
    """Without power or network it closes no connection."""
    with two_machines() as machines:
        processes = start_both(machines, flags_of(inputs, tmp_path, max_steps=100000))
        wait_for_step(tmp_path, processes)
        start = time.monotonic()
        machines[2].cut()
        codes, texts = finish(processes, timeout=60)
        seconds = time.monotonic() - start
    assert codes == [1, 1] and seconds < 40, texts
    # Ranks and launcher notice it on their own; who is first speaks.
    assert re.search(r"error: (collective [a-z-]+ of rank \d: found a failed peer \(.*10\.77\.0\.2"
                     r"|machine 1 \(10\.77\.0\.2\): found gone)", texts[0]), texts[0]


def test_ranks_without_a_launcher_notice_it_too(inputs, tmp_path):
    """As under srun: nobody but they themselves have a connection to the machine that is gone."""
    with two_machines() as machines:
        words = [PROGRAM, "sft", "--cpu", *flag_words(flags_of(inputs, tmp_path, max_steps=100000))]
        processes = [machine.start(words, **environment(), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
                                   LOCAL_WORLD_SIZE="1", MASTER_ADDR="10.77.0.1", MASTER_PORT="29500")
                     for rank, machine in enumerate(machines[:2])]
        wait_for_step(tmp_path, processes)
        start = time.monotonic()
        machines[2].cut()
        codes, texts = finish(processes, timeout=90)
        seconds = time.monotonic() - start
    assert codes == [1, 1] and seconds < 60, (seconds, texts)
    for rank, text in enumerate(texts):
        assert re.search(rf"error: collective [a-z-]+ of rank {rank}: found a failed peer \(.*10\.77\.0\.{2 - rank}", text), text


C10D = ["--rdzv_backend", "c10d", "--rdzv_conf", "join_timeout=30"]


def c10d_words(flags, launch=()):
    """The same line on every machine: they are numbered as they come."""
    return [PROGRAM, "launch", "--cpu", "--num_processes", 4, "--num_machines", 2,
            "--main_process_ip", "10.77.0.1", *C10D, *launch, "sft", *flag_words(flags)]


def meeting_words(kind, machine, machines, flags, launch=()):
    """c10d has no numbers, static has nothing else."""
    if kind == "c10d":
        return c10d_words(flags, launch)
    return launch_words(machines.index(machine), flags, ["--rdzv_conf", "timeout=30", *launch])


def wait_for_save(folder, processes):
    deadline = time.monotonic() + 60
    while not (folder / "latest").exists() and time.monotonic() < deadline:
        assert all(p.poll() is None for p in processes), processes[0].communicate()[0]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def twenty_steps(inputs, tmp_path_factory):
    flags = flags_of(inputs, tmp_path_factory.mktemp("twenty"), max_steps=20)
    return run_strata(flags, 4).losses


@pytest.mark.parametrize("kind", ["c10d", "static"])
def test_machines_start_again_together(inputs, tmp_path, machines, twenty_steps, kind):
    flags = flags_of(inputs, tmp_path / "out", max_steps=20, save_strategy="steps", save_steps=5)
    processes = [machine.start(meeting_words(kind, machine, machines, flags, ["--max_restarts", 2]),
                               **environment()) for machine in reversed(machines[:2])]
    wait_for_save(tmp_path / "out", processes)
    ranks = [pid for pid in pids_in(machines[1]) if b"\0LOCAL_RANK=1\0" in variables_of(pid)]
    os.kill(ranks[0], signal.SIGKILL)
    codes, texts = finish(processes)
    assert codes == [0, 0], texts
    assert "restart 1: going on from the newest checkpoint" in texts[1]
    for text in texts:
        assert "starting all ranks again: restart 1 of 2" in text
    assert "error: rank 3: killed by signal 9" in texts[0]
    # Neither is sooner than the other to call it a failure of its own.
    assert "restart 2 of 2" not in texts[0] + texts[1]
    assert losses(tmp_path / "out") == pytest.approx(twenty_steps, rel=1e-5)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_machine_that_died_comes_back(inputs, tmp_path, machines, twenty_steps, victim):
    """Its launcher and ranks are gone at once; whoever starts the same line again joins the run."""
    flags = flags_of(inputs, tmp_path / "out", max_steps=20, save_strategy="steps", save_steps=5)
    launch = ["--max_restarts", 2]

    def start(machine):
        return machine.start(meeting_words("static", machine, machines, flags, launch),
                             **environment())

    processes = [start(machine) for machine in machines[:2]]
    wait_for_save(tmp_path / "out", processes)
    machines[victim].kill_all()
    processes[victim].communicate(timeout=10)
    processes[victim] = start(machines[victim])
    codes, texts = finish(processes)
    assert codes == [0, 0], texts
    survivor = texts[1 - victim]
    assert f"machine {victim} (10.77.0.{victim + 1}): found gone" in survivor, survivor
    assert "starting all ranks again: restart 1 of 2" in survivor
    assert "restart 1: going on from the newest checkpoint" in texts[0]
    assert losses(tmp_path / "out") == pytest.approx(twenty_steps, rel=1e-5)


def test_a_machine_that_stays_away_ends_the_run(inputs, tmp_path, machines):
    flags = flags_of(inputs, tmp_path, max_steps=100000)
    launch = ["--max_restarts", 2, "--rdzv_conf", "timeout=3"]
    processes = start_both(machines, flags, launch)
    wait_for_step(tmp_path, processes)
    machines[1].kill_all()
    codes, texts = finish(processes, timeout=60)
    assert codes[0] == 1, texts
    assert texts[0].rstrip().endswith(
        "error: rendezvous 10.77.0.1:29500: found 1 of 2 machines after 3 s, expected all; start the "
        "others, or raise rdzv_conf join_timeout"), texts[0]
    assert pids_in(machines[0]) == []


def pids_in(machine):
    words = ["ip", "netns", "pids", machine.namespace]
    return [int(pid) for pid in subprocess.run(words, capture_output=True, text=True).stdout.split()]


def variables_of(pid):
    try:
        return open(f"/proc/{pid}/environ", "rb").read()
    except OSError:
        return b""


def test_a_machine_that_never_comes_is_waited_for_in_vain(inputs, tmp_path, machines):
    flags = flags_of(inputs, tmp_path / "out")
    both = {"c10d": [PROGRAM, *c10d_words(flags, [])[1:]],
            "static": launch_words(0, flags, ["--rdzv_conf", "timeout=2"])}
    both["c10d"][both["c10d"].index("join_timeout=30")] = "join_timeout=2"
    for name, words in both.items():
        start = time.monotonic()
        process = machines[0].start(words, **environment())
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 1 and time.monotonic() - start < 15, text
        assert "error: rendezvous 10.77.0.1:29500: found " in text, text
        assert "found 1 of 2 machines after 2 s" in text
