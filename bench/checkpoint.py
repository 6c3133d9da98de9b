"""A state of 1 GB saved and loaded by Strata, torch.distributed.checkpoint, safetensors and as one
plain file, all on the same disk in the same minutes; every write is synced, every read comes from
the disk. Prints a table for bench/results.

    .venv-parity/bin/python bench/checkpoint.py [--gigabytes 1] [--rounds 5]
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

ROOT = pathlib.Path(__file__).resolve().parents[1]
TENSOR = 4 << 20  # elements, 16 MB


def sync_and_drop(folder):
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def timed(work):
    os.sync()  # as settle() of checkpoint_bench.cpp
    time.sleep(3)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peer_round(folder, state):
    """Seconds of one save and load with each library of the reference."""
    found = {}
    target = {name: torch.empty_like(value) for name, value in state.items()}
    file = folder / "model.safetensors"

    def save_safetensors():
        safetensors.torch.save_file(state, file)
        with open(file, "rb") as stream:  # the library does not sync
            os.fsync(stream.fileno())

    def load_safetensors():
        for name, value in safetensors.torch.load_file(file).items():
            target[name].copy_(value)

    found["safetensors save"] = timed(save_safetensors)
    sync_and_drop(folder)
    found["safetensors load"] = timed(load_safetensors)
    file.unlink()
    found["DCP save"] = timed(lambda: dcp.save(
        state, storage_writer=dcp.FileSystemWriter(folder / "dcp", sync_files=True), no_dist=True))
    sync_and_drop(folder)
    found["DCP load"] = timed(lambda: dcp.load(
        target, storage_reader=dcp.FileSystemReader(folder / "dcp"), no_dist=True))
    shutil.rmtree(folder / "dcp")
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=None, help="on the disk to measure")
    parser.add_argument("--program", default=ROOT / "build" / "release" / "checkpoint_bench")
    arguments = parser.parse_args()
    size = int(arguments.gigabytes * 1e9) // (4 * TENSOR) * 4 * TENSOR
    rounds = {}
    state = {f"layer.{i}.weight": torch.full((TENSOR,), float(i)) for i in range(size // 4 // TENSOR)}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for number in range(arguments.rounds):
            text = subprocess.run([arguments.program, folder, str(size), str(number)], check=True,
                                  capture_output=True, text=True).stdout
            for name, seconds in {**json.loads(text), **peer_round(pathlib.Path(folder),
                                                                   state)}.items():
                rounds.setdefault(name, []).append(seconds)
    print(f"{size / 1e9:.2f} GB, median (least to most) of {arguments.rounds} rounds\n")
    print("| what | seconds | MB/s | of the fastest plain one |")
    print("|---|---|---|---|")
    plain = {"write": min(statistics.median(rounds[k]) for k in ("plain_write", "plain_reserved", "direct_write")),
             "read": min(statistics.median(rounds[k]) for k in ("plain_read", "direct_read"))}
    for name, label, kind in (
            ("plain_write", "plain file, written", "write"),
            ("plain_reserved", "plain file in reserved space, written", "write"),
            ("direct_write", "plain file past the page cache, written", "write"),
            ("save", "Strata, saved", "write"), ("DCP save", "DCP, saved", "write"),
            ("safetensors save", "safetensors, saved", "write"),
            ("plain_read", "plain file, read", "read"),
            ("direct_read", "plain file past the page cache, read", "read"), ("load", "Strata, loaded", "read"),
            ("DCP load", "DCP, loaded", "read"), ("safetensors load", "safetensors, loaded", "read"),
            ("copy", "copy to host memory (training stands still)", None),
            ("copy_first", "the same into memory that was never touched", None)):
        seconds = statistics.median(rounds[name])
        ratio = f"{plain[kind] / seconds:.0%}" if kind else ""
        print(f"| {label} | {seconds:.2f} ({min(rounds[name]):.2f} to {max(rounds[name]):.2f}) | "
              f"{size / seconds / 1e6:.0f} | {ratio} |")


if __name__ == "__main__":
    main()
