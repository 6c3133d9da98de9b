# Oracle: the unsharded run for results; the operating system for what is left behind.
import contextlib
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from limits import with_own_shared_memory
from running import PROGRAM, base_flags, command, environment, flag_words, run_strata


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def ranks_without_launcher(flags, world, prefix=lambda rank: []):
    """The ranks of a run as torchrun would start them, none of which knows of a supervisor."""
    port = free_port()
    processes = [subprocess.Popen(
        [*prefix(rank), str(PROGRAM), "sft", *flag_words(flags)], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, restore_signals=False,
        env={**environment(), "RANK": str(rank), "LOCAL_RANK": str(rank),
             "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for rank in range(world)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait_for_steps(folder, count):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):
            if len((folder / "metrics.jsonl").read_text().splitlines()) >= count:
                return
        time.sleep(0.02)
    raise AssertionError("found no step in 60 s")


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_killed_rank_is_named_within_seconds(inputs, tmp_path, victim):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path, max_steps=100000)
    prefix = with_own_shared_memory(tmp_path / "shm")
    with ranks_without_launcher(flags, 3, prefix=lambda rank: prefix) as processes:
        wait_for_steps(tmp_path, 3)
        killed_at = time.monotonic()
        processes[victim].send_signal(signal.SIGKILL)
        texts = {rank: processes[rank].communicate(timeout=20)[0]
                 for rank in range(3) if rank != victim}
        seconds = time.monotonic() - killed_at
    assert seconds < 5, texts
    assert "(shm)" in texts.get(0, "(shm)")
    # The first to notice names the dead rank; one that waits for that one may name it instead.
    errors = [text.splitlines()[-1] for text in texts.values()]
    assert all("collective" in error and "gone" in error for error in errors), errors
    assert any(f"found rank {victim} gone" in error for error in errors), errors
    assert os.listdir(tmp_path / "shm") == []


def test_no_space_in_dev_shm_is_needed(inputs, tmp_path):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "small")
    words = " ".join(f"'{w}'" for w in command(flags, 2))
    run = subprocess.run(
        ["unshare", "--mount", "sh", "-c",
         f"mount -t tmpfs -o size=4k,ro tmpfs /dev/shm && exec {words}"],
        capture_output=True, text=True, timeout=120, env=environment())
    assert run.returncode == 0, run.stdout + run.stderr
    assert "(shm)" in run.stdout
    expected = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"),
                                     tmp_path / "large"), 2)
    name = "model.safetensors"
    assert (tmp_path / "small" / name).read_bytes() == (expected.folder / name).read_bytes()


def test_a_rank_that_cannot_share_memory_moves_all_to_gloo(inputs, tmp_path):
    """The handshake of the ranks does what it is about to rely on, and all decide alike."""
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "gloo")

    def without_memory(rank):
        return ["prlimit", "--fsize=65536"] if rank == 1 else []

    with ranks_without_launcher(flags, 3, prefix=without_memory) as processes:
        texts = [process.communicate(timeout=60)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0, 0], texts
    assert "3 ranks (gloo)" in texts[0], texts[0]
    assert texts[0].count("cannot use it (no memory to share: file too large)") == 1, texts[0]
    expected = run_strata(dict(flags, output_dir=tmp_path / "shm"), 3)
    assert "3 ranks (shm)" in expected.text
    losses = [row["loss"] for row in
              json.loads((tmp_path / "gloo" / "trainer_state.json").read_text())["log_history"]
              if "loss" in row]
    assert losses == pytest.approx(expected.losses, abs=1e-6)
