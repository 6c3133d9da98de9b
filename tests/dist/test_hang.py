# Oracle: the kernel's view of the rank that was made to hang, and the names of functions in the source.
import fcntl
import os
import re
import signal
import subprocess
import time

from running import base_flags, command, environment, ranks_of


def test_a_stopped_rank_is_named_with_step_and_collective(inputs, tmp_path):
    out, logs = tmp_path / "out", tmp_path / "logs"
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), out, max_steps=100000)
    words = command(flags, 3)
    words[2:2] = ["--hang_timeout", "6", "--log_dir", str(logs)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment())
    try:
        deadline = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        ranks = ranks_of(out)
        os.kill(ranks[1], signal.SIGSTOP)
        stopped = time.monotonic()
        _, text = process.communicate(timeout=60)
        seconds = time.monotonic() - stopped
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1 and 6 < seconds < 14, text
    # Told at half the time, once: who waits, and for whom.
    told = re.findall(r"^warning: ranks? .* waits? for [34] s in .*rank 1 in step \d+ \(training\).*stopped by a signal"
                      r".*; at 6 s all ranks are stopped \(hang_timeout\)$", text, re.M)
    assert len(told) == 1, text
    errors = [line for line in text.splitlines() if "error" in line]
    message = re.fullmatch(
        r"error: hang: found rank 1 in step (\d+) \(training\).*, stopped by a signal, not in "
        r"([a-z-]+) \d+ of group \w+ \(step (\d+)\) where ranks 0, 2 wait for (\d\.\d) s, "
        r"expected rank 1 there within 6 s \(hang_timeout\); see the ranks' stacks in "
        + re.escape(str(logs)) + r"/rank_\*\.stack; stopping all ranks", errors[0])
    # A rank may wait for one that itself waits for the stopped one.
    assert message or re.match(r"error: hang: found .*rank 1 in step \d+ \(training\).*stopped by a "
                               r"signal.*, not in .* of group", errors[0]), text
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks.values())
    stacks = {rank: (logs / f"rank_{rank}.stack").read_text() for rank in range(3)}
    assert "no stack, stopped" in stacks[1]
    for rank in (0, 2):
        assert re.search(r"thread \d+ \(strata\)\n", stacks[rank])
        assert "strata::train::Trainer::run()" in stacks[rank]
        assert "(strata-shm)\n  " in stacks[rank], "the thread that waits for the others' data"


def test_the_stack_of_the_rank_that_lags_tells_why(inputs, tmp_path):
    """Nobody reads what rank 0 prints: it hangs in the system when the pipe is full."""
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path, max_steps=100000)
    words = command(flags, 2)
    words[2:2] = ["--hang_timeout", "2"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=environment())
    try:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
        assert process.wait(timeout=60) == 1
        text = process.stderr.read()
    finally:
        process.kill()
        process.communicate()
    assert re.search(r"error: hang: found rank 0 in step \d+ \(training\), not in [a-z-]+ \d+ of group "
                     r"\w+ \(step \d+\) where rank 1 waits for \d\.\d s, expected rank 0 there within "
                     r"2 s \(hang_timeout\); see the ranks' stacks in " + re.escape(str(tmp_path)),
                     text), text
    stack = (tmp_path / "rank_0.stack").read_text().split("thread ")[1]
    assert "write" in stack and "strata::train::Trainer::log_step" in stack, stack
