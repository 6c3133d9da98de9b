"""Oracle: huggingface_hub's own lock, which another process holds, and the number of that process."""

import hashlib
import json
import signal
import subprocess
import sys
import time

import pytest

from hub_server import environment_of, fetched
from running import PROGRAM

# Holds the lock of a file as a download does, with a part of the file, until it is told to end.
HOLDER = """
import pathlib, sys
from huggingface_hub.utils import WeakFileLock
lock, part, size = sys.argv[1:]
pathlib.Path(lock).parent.mkdir(parents=True, exist_ok=True)
with WeakFileLock(lock):
    pathlib.Path(part).parent.mkdir(parents=True, exist_ok=True)
    pathlib.Path(part).write_bytes(bytes(int(size)))
    print("held", flush=True)
    sys.stdin.read()
    pathlib.Path(part).unlink()
"""


def held(hub, home, name, size):
    content = hub.model[name]
    etag = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    cache = home / "hub"
    lock = cache / ".locks" / "models--org--model" / f"{etag}.lock"
    part = cache / "models--org--model" / "blobs" / f"{etag}.incomplete"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock), str(part), str(size)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    return holder, lock


@pytest.mark.parametrize("stopped", [False, True])
def test_who_waits_for_a_download_says_for_whom(stopped, model_hub, tmp_path):
    holder, lock = held(model_hub, tmp_path, "tokenizer.json", 1000)
    waiting = subprocess.Popen([str(PROGRAM), "tokenize", "--model", "org/model"], env=environment_of(model_hub, tmp_path),
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if stopped:
            holder.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        line = next(text for text in waiting.stderr if text.startswith("warning: "))
        assert 9 < time.monotonic() - start < 60 and waiting.poll() is None
        name = open(f"/proc/{holder.pid}/comm").read().strip()
        size = len(model_hub.model["tokenizer.json"])
        assert line == (f"warning: org/model: waiting since 10 s for process {holder.pid} ({name})"
                        f"{', which a signal has stopped,' if stopped else ''} to download tokenizer.json, "
                        f"0.0 of {size / 1e6:.1f} MB so far; it holds {lock}\n")
        assert "tokenizer.json" not in fetched(model_hub)
        holder.send_signal(signal.SIGCONT)
        holder.communicate("", timeout=30)
        out, _ = waiting.communicate("a row\n", timeout=60)
    finally:
        for process in (holder, waiting):
            process.kill()
            process.wait()
    assert waiting.returncode == 0 and json.loads(out)["ids"]
    assert fetched(model_hub).count("tokenizer.json") == 1, "the other process left, so this one downloaded it"
