"""Kills ranks of a running job at seeded moments and restarts it.

As a program: python tests/dist/killing.py COUNT [SEED] kills COUNT jobs, one after the other; those
that end before their moment are resumed and compared too, but not counted.
"""

import itertools
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from running import base_flags, command, environment, run_strata, wait_fairly

# A checkpoint after every step, so that most moments lie in or near a save.
SETTINGS = dict(max_steps=10, save_strategy="steps", save_steps=1, save_total_limit=2)


def flags_of(inputs, output):
    return base_flags(inputs.model("odd"), inputs.data("messages"), output, **SETTINGS)


def ranks_of(launcher):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True,
                           text=True).stdout
    return [int(pid) for pid in found.split()]


def kill_a_rank(flags, world, seconds, rank):
    """Starts the job and kills one rank after some seconds. Returns the launcher's exit code."""
    process = subprocess.Popen(command(flags, world), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=environment())
    try:
        time.sleep(seconds)
        ranks = ranks_of(process.pid)
        if ranks:
            os.kill(ranks[rank % len(ranks)], signal.SIGKILL)
        wait_fairly(process, 60)
        return process.returncode
    except ProcessLookupError:  # it ended by itself
        wait_fairly(process, 60)
        return process.returncode
    finally:
        process.kill()
        process.communicate()


def restart(flags, world):
    names = os.listdir(flags["output_dir"]) if flags["output_dir"].exists() else []
    has_checkpoint = any(n.startswith("checkpoint-") and ".tmp" not in n for n in names)
    return run_strata({**flags, "resume_from_checkpoint": True if has_checkpoint else None}, world)


def same_result(found, expected):
    name = "model.safetensors"
    return (found.history == expected.history
            and (found.folder / name).read_bytes() == (expected.folder / name).read_bytes())


def main():
    from conftest import Inputs

    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        inputs = Inputs(folder)
        draw = random.Random(seed)
        whole = {}
        killed = 0
        for i in itertools.count():
            if killed == count:
                break
            world = draw.choice([2, 3])
            if world not in whole:
                start = time.monotonic()
                run = run_strata(flags_of(inputs, folder / f"whole-{world}"), world)
                whole[world] = (run, time.monotonic() - start)
            run, duration = whole[world]
            flags = flags_of(inputs, folder / f"job-{i}")
            code = kill_a_rank(flags, world, draw.uniform(0.1, 1) * duration, draw.randrange(8))
            killed += code != 0
            if not same_result(restart(flags, world), run):
                raise SystemExit(f"job {i}: found another result than the uninterrupted run's")
            print(f"job {i}: {world} ranks, launcher ended with {code}, resumed to the same result",
                  flush=True)
            shutil.rmtree(flags["output_dir"])
        print(f"{i} jobs, {killed} of them killed before their end: all the same result")


if __name__ == "__main__":
    main()
