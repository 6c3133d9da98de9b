"""Runs that must fail: in time, in words, with no process left and nothing written."""

import os
import subprocess
import time

import preloaded
from running import base_flags, command, environment, output_files, processes_of

LIMIT_S = 10


def is_in_time(seconds):
    """Where more wants to run than there are processors, a second counts as the share that may be had
    of it, as in wait_fairly()."""
    return seconds * min(1, os.cpu_count() / max(os.getloadavg()[0], 0.1)) < LIMIT_S


def fail(flags, world=2, **answers):
    """Runs what must fail in time; returns its text. `answers` of the machine: preloaded.py."""
    start = time.monotonic()
    process = subprocess.run(command(flags, world), capture_output=True, text=True, timeout=60,
                             env={**environment(), **(preloaded.variables(**answers) if answers else {})})
    seconds = time.monotonic() - start
    text = process.stdout + process.stderr
    assert process.returncode not in (0, -6, -11), text
    assert is_in_time(seconds), f"{seconds} s: {text}"
    assert processes_of(flags["output_dir"]) == []
    assert "terminate called" not in text and "report this as a bug" not in text, text
    return text


def assert_nothing_written(folder):
    if folder.exists():
        left = [p for p in output_files(folder) if p not in ("metrics.jsonl",)]
        assert left == []


def flags_of(inputs, model, tmp_path, **flags):
    data = flags.pop("data", None) or inputs.data("messages")
    return base_flags(model, data, tmp_path / "out", **flags)


def data_folder(tmp_path, content):
    """A data set of one split with this text."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder
