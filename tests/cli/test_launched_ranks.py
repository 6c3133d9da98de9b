# Oracle: the documented environment of ranks, exit codes and messages, and the kernel's list of processes.
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import time

import pytest

from bare_environment import ENVIRONMENT, STRATA, run


def launch(script, *flags, **environment):
    return run("launch", *flags, "--no_python", "/bin/sh", "-c", script, **environment)


def test_ranks_know_each_other():
    result = launch("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR "
                    "$MASTER_PORT $OMP_NUM_THREADS $STRATA_LAUNCH_TIME", "--num_processes", 3)
    assert result.returncode == 0
    rows = {}
    for line in result.stdout.splitlines():
        words = re.sub(r"^\[rank \d+\] ", "", line).split()
        assert line.startswith(f"[rank {words[0]}] ") == (words[0] != "0")
        rows[int(words[0])] = words
    assert sorted(rows) == [0, 1, 2]
    for rank, words in rows.items():
        assert words[1:5] == [str(rank), "3", "3", "127.0.0.1"]
        assert words[5] == rows[0][5] and int(words[5]) > 0
        assert words[6] == str(max(len(os.sched_getaffinity(0)) // 3, 1))
        assert abs(time.time() - float(words[7])) < 60


def test_the_users_thread_count_is_kept():
    assert launch("echo $OMP_NUM_THREADS", OMP_NUM_THREADS="5").stdout == "5\n"
    assert launch("echo $OMP_NUM_THREADS", "--num_cpu_threads_per_process", 7).stdout == "7\n"


def test_two_machines():
    """Both launchers on this one: they meet, and their ranks get what accelerate's would."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    launchers = [subprocess.Popen(
        [STRATA, "launch", "--num_processes", "4", "--num_machines", "2", "--machine_rank", str(rank),
         "--main_process_ip", "localhost", "--main_process_port", str(port), "--no_python", "/bin/sh",
         "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for rank in (1, 0)]
    second, first = (launcher.communicate(timeout=60) for launcher in launchers)
    assert [launcher.returncode for launcher in launchers] == [0, 0], (first, second)
    meeting = first[0].split()[-1]
    assert sorted(first[0].splitlines()) == [f"0 0 4 localhost {meeting}",
                                             f"[rank 1] 1 1 4 localhost {meeting}"]
    assert sorted(second[0].splitlines()) == [f"[rank 2] 2 0 4 localhost {meeting}",
                                              f"[rank 3] 3 1 4 localhost {meeting}"]


def test_one_dying_rank_ends_all_with_its_code():
    start = time.monotonic()
    result = launch("[ $RANK = 1 ] && { echo reason >&2; exit 5; }; sleep 100", "--num_processes", 3)
    assert time.monotonic() - start < 10
    assert result.returncode == 5
    assert "[rank 1] reason\nerror: rank 1: ended with exit code 5; stopping the other ranks\n" \
        in result.stderr


def test_a_killed_rank_is_named():
    start = time.monotonic()
    result = launch("[ $RANK = 1 ] && kill -9 $$; sleep 100", "--num_processes", 2)
    assert time.monotonic() - start < 10
    assert result.returncode == 137
    assert "error: rank 1: killed by signal 9 (Killed)" in result.stderr


def test_log_dir(tmp_path):
    result = launch("echo out $RANK", "--num_processes", 2, "--log_dir", tmp_path / "logs")
    assert result.stdout == "out 0\n"
    for rank in (0, 1):
        assert (tmp_path / "logs" / f"rank_{rank}.log").read_text() == f"out {rank}\n"
    result = launch("echo out $RANK", "--num_processes", 2, "--log_dir", tmp_path / "logs", "-t", 3)
    assert sorted(result.stdout.splitlines()) == ["[rank 1] out 1", "out 0"]


def children_of(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_a_stopped_launcher(number):
    process = subprocess.Popen([STRATA, "launch", "--num_processes", "2", "--no_python", "/bin/sleep",
                                "100"], env=ENVIRONMENT)
    deadline = time.monotonic() + 10
    while len(children_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = children_of(process.pid)
    assert len(ranks) == 2
    process.send_signal(number)
    code = process.wait(timeout=10)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    while any(map(is_running, ranks)) and time.monotonic() < deadline + 10:
        time.sleep(0.02)
    assert not any(map(is_running, ranks))


def test_rank_0_keeps_the_terminal():
    main, side = pty.openpty()
    process = subprocess.Popen(
        [STRATA, "launch", "--num_processes", "2", "--no_python", "/bin/sh", "-c",
         "if [ -t 1 ]; then echo $RANK terminal; else echo $RANK pipe; fi"],
        stdin=side, stdout=side, stderr=side, env=ENVIRONMENT)
    assert process.wait(timeout=20) == 0
    os.close(side)
    text = b""
    try:
        while chunk := os.read(main, 4096):
            text += chunk
    except OSError:  # the terminal is gone once its other side is closed
        pass
    os.close(main)
    assert b"0 terminal" in text and b"[rank 1] 1 pipe" in text


def test_ranks_with_inconsistent_variables_are_refused():
    flags = ["sft", "--model_name_or_path", "m", "--dataset_name", "d"]
    result = run(*flags, RANK="2", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
    assert result.returncode == 2
    assert result.stderr.startswith("[rank 2] error: rank: found 2, expected less than the world")


def test_a_file_that_asks_for_more_ranks_is_refused(tmp_path):
    own = tmp_path / "run.yaml"
    own.write_text("model_name_or_path: m\ndataset_name: d\nnum_processes: 2\n")
    result = run("sft", "--config", own)
    assert result.returncode == 2
    assert result.stderr == (f"error: num_processes: found 2 ({own}:3) with 1 running, expected the "
                             "same; start with strata launch\n")


def test_ranks_get_the_launchers_settings(tmp_path):
    config = tmp_path / "fsdp.yaml"
    config.write_text("distributed_type: MULTI_CPU\nnum_processes: 1\n")
    script = f"{STRATA} config show"
    result = run("launch", "--config_file", config, "--no_python", "/bin/sh", "-c",
                 "echo $STRATA_LAUNCH_FLAGS; " + script)
    assert f'["--config_file", "{config}", "--no_python"]' in result.stdout
