"""Kills ranks of a running job at seeded moments and restarts it.

As a program: python tests/dist/killing.py COUNT [SEED] kills jobs, one after the other, until COUNT of
them have been resumed from a checkpoint; those that end before their moment, or are killed before
their first checkpoint, are compared too, but not counted. It ends with an error and leaves the job's
folder when a result is another one or a job does not end.
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

from running import Run, base_flags, command, environment, run_program, wait_fairly

# Seconds of a machine of its own (wait_fairly), against hangs: a job takes two or three.
LIMIT = 180

# A checkpoint after every step, so that most moments lie in or near a save.
SETTINGS = dict(max_steps=10, save_strategy="steps", save_steps=1, save_total_limit=2)


def flags_of(inputs, output):
    return base_flags(inputs.model("odd"), inputs.data("messages"), output, **SETTINGS)


def ranks_of(launcher):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(launcher)], capture_output=True,
                           text=True).stdout
    return [int(pid) for pid in found.split()]


def kill_a_rank(flags, world, seconds, rank, after=lambda: True):
    """Starts the job and kills one rank some seconds after `after()`. Returns the launcher's exit code."""
    process = subprocess.Popen(command(flags, world), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=environment())
    try:
        while not after() and process.poll() is None:
            time.sleep(0.002)
        time.sleep(seconds)
        ranks = ranks_of(process.pid)
        if ranks:
            os.kill(ranks[rank % len(ranks)], signal.SIGKILL)
        wait_fairly(process, LIMIT)
        return process.returncode
    except ProcessLookupError:  # it ended by itself
        wait_fairly(process, LIMIT)
        return process.returncode
    finally:
        process.kill()
        process.communicate()


class Finished(Run):
    """What a job left that ended before its moment."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)


def restart(flags, world):
    names = os.listdir(flags["output_dir"]) if flags["output_dir"].exists() else []
    has_checkpoint = any(n.startswith("checkpoint-") and ".tmp" not in n for n in names)
    return run_program({**flags, "resume_from_checkpoint": True if has_checkpoint else None}, world,
                      timeout=LIMIT)


def same_result(found, expected):
    weights = [path.name for path in expected.folder.glob("*model.safetensors")]
    return (found.history == expected.history and len(weights) == 1
            and all((found.folder / name).read_bytes() == (expected.folder / name).read_bytes()
                    for name in weights))


def has_resumed(run):
    return "resuming from" in run.text


def try_job(flags, world, seconds, rank, whole, after=lambda: True):
    """The exit code of the job that was killed, after its result was found to be that of `whole`, and
    whether a checkpoint was gone on from."""
    code = kill_a_rank(flags, world, seconds, rank, after)
    found = Finished(flags["output_dir"]) if code == 0 else restart(flags, world)
    if not same_result(found, whole):
        raise SystemExit(f"{flags['output_dir']}: found another result than the uninterrupted run's")
    return code, code != 0 and has_resumed(found)


def main():
    from conftest import Inputs

    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    folder = pathlib.Path(tempfile.mkdtemp(prefix="killing-"))
    inputs = Inputs(folder)
    draw = random.Random(seed)
    whole = {}
    killed, resumed, began = 0, 0, time.monotonic()
    for i in itertools.count():
        if resumed == count:
            break
        world = draw.choice([2, 3])
        if world not in whole:
            run = run_program(flags_of(inputs, folder / f"whole-{world}"), world, timeout=LIMIT)
            # Once more for the time that it takes when its files are in memory.
            start = time.monotonic()
            run_program(flags_of(inputs, folder / f"again-{world}"), world, timeout=LIMIT)
            whole[world] = (run, time.monotonic() - start)
        run, duration = whole[world]
        flags = flags_of(inputs, folder / f"job-{i}")
        # Mostly from the first checkpoint on; the start, too, must leave nothing in the way.
        is_early = draw.random() < 0.1
        seconds = draw.uniform(0.1, 0.8) * duration if is_early else draw.uniform(0, 0.4) * duration
        latest = flags["output_dir"] / "latest"
        after = (lambda: True) if is_early else latest.exists
        try:
            code, is_resumed = try_job(flags, world, seconds, draw.randrange(8), run, after)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"{flags['output_dir']}: found no end within {LIMIT} s of a machine of its own")
        killed += code != 0
        resumed += is_resumed
        minutes = (time.monotonic() - began) / 60
        print(f"job {i}: {world} ranks, launcher ended with {code}, the same result; {resumed} of {count} "
              f"resumed in {minutes:.1f} min", flush=True)
        shutil.rmtree(flags["output_dir"])
    shutil.rmtree(folder)
    print(f"{i} jobs, {killed} of them killed before their end, {resumed} resumed from a checkpoint (the others "
          f"began anew): all the same result")


if __name__ == "__main__":
    main()
