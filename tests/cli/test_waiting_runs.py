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


def test_who_waits_for_a_stopped_run_says_so(inputs, tmp_path):
    """And takes its rows once it goes on."""
    data, home = tmp_path / "data", tmp_path / "home"
    data.mkdir()
    row = json.dumps({"text": "the cat sat on the mat and said a good many words of no meaning " * 8}) + "\n"
    (data / "train.jsonl").write_text(row * 60_000)
    flags = [base_flags(inputs.model("plain"), data, tmp_path / name, max_steps=1) for name in ("first", "second")]
    processes = [start(flags[0], home)]
    try:
        unfinished = home / "strata" / "tokens"
        deadline = time.monotonic() + 60
        while not list(unfinished.glob("*.tokens.tmp-*")) and time.monotonic() < deadline:
            assert processes[0].poll() is None, processes[0].communicate()[0]
            time.sleep(0.002)
        os.kill(processes[0].pid, signal.SIGSTOP)
        assert not list(unfinished.glob("*.tokens")), "this test came too late: let it prepare more rows"
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
