# Oracle: a rank that dies or fails ends the run within ten seconds, with a message that names the right rank.
import os
import re
import signal
import subprocess
import time

import pytest

from failing import assert_nothing_written, flags_of, is_in_time
from running import PROGRAM, environment, flag_words, output_files, processes_of, ranks_of, run_strata, start_strata


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_killed_rank(inputs, tmp_path, rank):
    output = tmp_path / "out"
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, save_strategy="steps", save_steps=5,
                     save_total_limit=3, max_steps=1000000)
    process = start_strata(flags, 3)
    try:
        deadline = time.monotonic() + 60
        while not (output / "latest").exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        victim = ranks_of(output)[rank]
        start = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        text, _ = process.communicate(timeout=60)
        seconds = time.monotonic() - start
    finally:
        process.kill()
        process.communicate()
    assert is_in_time(seconds)
    assert process.returncode == 128 + signal.SIGKILL
    errors = [line for line in text.splitlines() if "error: " in line]
    assert f"rank {rank}: killed by signal 9" in errors[0], text
    assert re.search(rf"^failed: {output}/checkpoint-\d+ is the newest checkpoint; continue from it with --resume_from_checkpoint",
                     text, re.M), text
    assert processes_of(output) == []
    checkpoints = [p.name for p in output.glob("checkpoint-*") if ".tmp" not in p.name]
    latest = output / "latest"  # written after the folder's rename: a kill may come between
    assert not latest.exists() or latest.read_text().strip() in checkpoints
    step = max(int(name.split("-")[1]) for name in checkpoints)
    resumed = run_strata({**flags, "max_steps": step + 5, "resume_from_checkpoint": True}, 3)
    assert resumed.state["global_step"] == step + 5
    assert not [p for p in output_files(output) if "tmp" in p]


def test_failing_rank_is_named(inputs, tmp_path):
    """Rank 1 alone finds its data missing: it names the file, rank 0 names rank 1."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path)
    link = tmp_path / "data-of-rank"
    wrapper = tmp_path / "rank.sh"
    wrapper.write_text(
        "#!/bin/sh\n"
        f"[ $RANK = 0 ] && data={flags['dataset_name']} || data={tmp_path}/gone\n"
        f"mkdir -p {link}-$RANK; ln -sfn $data {link}-$RANK/data; cd {link}-$RANK\n"
        f"exec {PROGRAM} sft {' '.join(flag_words({**flags, 'dataset_name': 'data'}))}\n")
    wrapper.chmod(0o755)
    start = time.monotonic()
    process = subprocess.run(
        [PROGRAM, "launch", "--num_processes", "2", "--cpu", "--no_python", wrapper],
        capture_output=True, text=True, timeout=60, env=environment())
    assert process.returncode != 0 and is_in_time(time.monotonic() - start)
    assert re.search(r"\[rank 1\] .*data", process.stderr), process.stderr
    assert_nothing_written(tmp_path / "out")
