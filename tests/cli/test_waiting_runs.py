# Oracle: of two runs that need the same rows, what the one says that waits, and that both end well.
import json
import os
import re
import signal
import subprocess
import time

from running import base_flags, environment, read_until, words_of


def start(flags, home):
    return subprocess.Popen(words_of(flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**environment(), "HF_HOME": str(home)})


ROW = json.dumps({"text": "the cat sat on the mat and said a good many words of no meaning " * 8}) + "\n"


def stop_while_it_prepares(process, home):
    unfinished = home / "strata" / "tokens"
    deadline = time.monotonic() + 60
    while not list(unfinished.glob("*.tokens.tmp-*")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGSTOP)
    assert not list(unfinished.glob("*.tokens")), "this test came too late: let it prepare more rows"


def test_rows_of_a_file_that_is_written_to_are_not_kept(inputs, tmp_path):
    """Oracle: nothing is left that a run over the file as it was before, or is now, could take for its rows."""
    data, home = tmp_path / "train.jsonl", tmp_path / "home"
    data.write_text(ROW * 60_000)
    process = start(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1), home)
    try:
        stop_while_it_prepares(process, home)
        with data.open("a") as file:
            file.write(ROW)
        os.kill(process.pid, signal.SIGCONT)
        text = process.communicate(timeout=100)[0]
    finally:
        process.kill()
        process.communicate()
    size = len(ROW) * 60_000
    assert process.returncode == 1 and re.search(
        rf"^error: {data}: found {size} bytes become {size + len(ROW)} while its rows were read, expected a file that nobody "
        r"writes to; start again when it is complete$", text, re.M), text
    assert not list((home / "strata" / "tokens").glob("*.tokens*"))


def test_who_waits_for_a_stopped_run_says_so(inputs, tmp_path):
    """And takes its rows once it goes on."""
    data, home = tmp_path / "data", tmp_path / "home"
    data.mkdir()
    (data / "train.jsonl").write_text(ROW * 60_000)
    flags = [base_flags(inputs.model("plain"), data, tmp_path / name, max_steps=1) for name in ("first", "second")]
    processes = [start(flags[0], home)]
    try:
        unfinished = home / "strata" / "tokens"
        stop_while_it_prepares(processes[0], home)
        processes.append(start(flags[1], home))
        said = read_until(processes[1], "waiting for").splitlines()
        assert re.search(rf"warning: {re.escape(str(unfinished))}/\w+\.tokens: waiting for process {processes[0].pid} on \S+ "
                         r"since \S+ \S+ UTC, which a signal has stopped, to prepare these rows, without a sign of it for "
                         r"\d s; from 60 s on this run prepares them itself$", said[-1]), said
        os.kill(processes[0].pid, signal.SIGCONT)
        texts = [process.communicate(timeout=100)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], texts
    assert "prepares these rows itself" not in texts[1]
    assert [len(list(unfinished.glob(name))) for name in ("*.tokens", "*.tmp-*", "*.2.lock")] == [1, 0, 0]
