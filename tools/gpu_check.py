"""What the steps of tools/check_gpu share: where things are, and how a command of a step runs."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The plan may be this far from what the allocator saw, in percent.
PLAN_TOLERANCE = 5.0
# Of a step's log in logs.txt.
LAST_LINES = {True: 15, False: 150}


class Step:
    """What is done, and for how long at most: `work` is a function of (check, seconds) that returns (passed, what is said of
    it); None for `passed` where the machine lacks what it needs."""

    def __init__(self, name, seconds, work):
        self.name, self.seconds, self.work = name, seconds, work


class Check:
    """Where things are, and how a step is run."""

    def __init__(self, options):
        self.programs, self.out = options.programs.resolve(), options.out.resolve()
        # Not in --out, which is for what is kept and carried about.
        self.logs = (options.logs or pathlib.Path(tempfile.mkdtemp(prefix="strata-check-logs-"))).resolve()
        for folder in (self.out, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        (self.out / "logs.txt").write_text("")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="strata-check-"))
        self.checkpoints = pathlib.Path(tempfile.mkdtemp(prefix="strata-check-", dir=folder_for_checkpoints()))
        self.facts = {}
        self.part = f"-part-{options.part}" if options.part else ""
        self.is_emulated = getattr(options, "emulated", False)
        self.kind, self.title = ("emulated-gpu", "Rehearsal on emulated GPUs") if self.is_emulated else ("gpu", "GPU check")

    def close(self):
        for folder in (self.folder, self.checkpoints):
            shutil.rmtree(folder, ignore_errors=True)

    def environment(self):
        # Ranks find a GPU each where they are emulated.
        emulated = {"EMULATED_GPUS": "4"} if self.is_emulated else {}
        return {**emulated, **os.environ, "STRATA_TEST_DEVICE": "cuda", "STRATA_BUILD": str(self.programs),
                "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

    def run(self, name, command, seconds, **variables):
        """(passed, seconds, output); the whole output is kept in a file of its own."""
        start = time.time()
        log = self.logs / f"{name}.log"
        with open(log, "w") as file:
            try:
                code = run_group([str(word) for word in command], seconds, stdout=file, stderr=subprocess.STDOUT,
                                 cwd=ROOT, env={**self.environment(), **variables})
            except OSError as error:
                code = str(error)
        text = log.read_text(errors="replace")
        with open(self.out / "logs.txt", "a") as file:
            file.write(f"==== {name}: exit {code}, {time.time() - start:.0f} s\n")
            file.writelines(line[:400] + "\n" for line in text.splitlines()[-LAST_LINES[code == 0]:])
        return code == 0, time.time() - start, text, code


def available_memory():
    """Bytes of the host's."""
    return int(re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024


MEMORY_FOLDER = pathlib.Path("/dev/shm")
# Of 8B parameters 16 GB, and something beside it.
MODEL_BYTES = 24e9


def folder_for_checkpoints():
    """Memory where there is enough, since a checkpoint of 16 GB is made anew on every machine and a slow disk takes
    minutes for it; None: where temporary files lie."""
    try:
        return MEMORY_FOLDER if has_room_for_a_model(MEMORY_FOLDER) else None
    except (OSError, TypeError):
        return None


def has_room_for_a_model(folder):
    """One more than there are. In memory it leaves what a run on it takes."""
    is_memory = folder.is_relative_to(MEMORY_FOLDER)
    return shutil.disk_usage(folder).free > MODEL_BYTES and (not is_memory or available_memory() > 80e9)


def run_group(command, seconds, **options):
    """The exit status; a text where there is none in time. What a stopped command had started ends with it: ranks
    that live on would hold the GPU."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"none within {seconds:.0f} s"


def last_lines(text, count=1):
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])
