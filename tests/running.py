"""Runs the built program and reads what a run leaves in its output folder."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / os.environ.get("STRATA_BUILD", "build/release")
PROGRAM = BUILD / "strata"
# STRATA_TEST_DEVICE=cuda: the same tests where a GPU computes (tools/check_gpu).
DEVICE_FLAGS = [] if os.environ.get("STRATA_TEST_DEVICE") == "cuda" else ["--cpu"]


def multiplies_bf16():
    """Whether a run with --bf16 computes in bf16 here: on processors that cannot it computes in fp32, and says so."""
    with open("/proc/cpuinfo") as file:
        return not DEVICE_FLAGS or bool(re.search(r"^flags.*\bavx512_bf16\b", file.read(), re.M))


# What depends on the machine's speed, not on the settings.
TIMES = {"tokens_per_second", "elapsed_seconds", "peak_rss_mb", "device_memory_mb", "train_runtime",
         "train_samples_per_second", "train_steps_per_second", "train_loss", "eval_runtime",
         "eval_samples_per_second", "eval_steps_per_second"}


def flag_words(flags):
    """{"max_length": 64, "use_peft": True, ...} as command-line words; None leaves a flag out."""
    words = []
    for name, value in flags.items():
        if value is None:
            continue
        words.append(f"--{name}")
        if isinstance(value, (list, tuple)):
            words += [str(v) for v in value]
        else:
            words.append(str(value).lower() if isinstance(value, bool) else str(value))
    return words


def command(flags, world=1, recipe="sft"):
    return [str(PROGRAM), "launch", "--num_processes", str(world), *DEVICE_FLAGS, recipe,
            *flag_words(flags)]


def words_of(flags, world=1, recipe="sft"):
    """The same run, but one rank comes without a launcher: half the programs to load."""
    if world > 1:
        return command(flags, world, recipe)
    return [str(PROGRAM), recipe, *DEVICE_FLAGS, *flag_words(flags)]


def environment():
    # A person's own settings must not reach the runs of a test. pytest sets and removes variables of its
    # own for each test, also while a thread of a table of runs reads them here: they are never asked for.
    own = {name: os.environ[name] for name in os.environ
           if not name.startswith(("ACCELERATE_", "FSDP_", "PYTEST_"))}
    # One thread is faster on models this small, most of all beside other programs.
    return {**own, "HF_HOME": str(BUILD / "no-settings"), "OMP_NUM_THREADS": "1"}


class Run:
    """What a finished run left."""

    def __init__(self, process, folder):
        self.returncode = process.returncode
        self.text = process.stdout + process.stderr
        self.stderr = process.stderr
        self.folder = pathlib.Path(folder)

    @property
    def state(self):
        return json.loads((self.folder / "trainer_state.json").read_text())

    @property
    def history(self):
        """Log history without what depends on the machine's speed and without the summary."""
        return [{k: v for k, v in row.items() if k not in TIMES}
                for row in self.state["log_history"] if "train_runtime" not in row]

    @property
    def losses(self):
        return [row["loss"] for row in self.history if "loss" in row]

    @property
    def metrics(self):
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").open()]


def wait_fairly(process, seconds):
    """Output and errors of a process that may take `seconds` of a machine of its own. Where more wants to
    run than there are processors, a second counts as the share that the process may get of it: a limit
    against hangs must not end what is only slow."""
    waited = 0
    while True:
        try:
            return process.communicate(timeout=1)
        except subprocess.TimeoutExpired:
            waited += min(1, os.cpu_count() / max(os.getloadavg()[0], 0.1))
            if waited > seconds:
                process.kill()
                process.communicate()
                raise


def run_strata_raw(flags, world=1, timeout=120, recipe="sft"):
    process = subprocess.Popen(words_of(flags, world, recipe), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env=environment())
    stdout, stderr = wait_fairly(process, timeout)
    done = subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)
    return Run(done, flags["output_dir"])


def run_program(flags, world=1, timeout=120, recipe="sft"):
    """A run that ends well, as a user starts it: for what the start or the memory of a process matters to."""
    run = run_strata_raw(flags, world, timeout, recipe)
    assert run.returncode == 0, run.text
    return run


def run_strata(flags, world=1, recipe="sft"):
    """A run that ends well, in ranks that are forked from a program at work: a fraction of the time."""
    from row_servers import SHARED  # made of what is here
    return SHARED.run(flags, world, recipe)


def strata(*words, code=0, **options):
    """What another command of the program says; it must end with the code (None: with one of failure)."""
    process = subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True,
                             env=environment(), timeout=120, **options)
    is_expected = process.returncode > 0 if code is None else process.returncode == code
    assert is_expected, process.stdout + process.stderr
    return process.stdout + process.stderr


def start_strata(flags, world, variables=None, words=command, **options):
    """A run that is left at work, with `variables` beside those of every run; `words=words_of`: one rank
    comes without a launcher."""
    return subprocess.Popen(words(flags, world), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env={**environment(), **(variables or {})}, **options)


def wait_for_step(process, output, step):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        rows = output / "metrics.jsonl"
        if rows.exists() and len(rows.read_text().splitlines()) >= step:
            return
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0])


def read_until(process, pattern):
    """What a run says up to the line that the pattern is found in. Not a byte more is taken out of the pipe:
    communicate() with a limit reads the pipe itself, and what a buffer holds by then would be lost."""
    text, line = "", b""
    while byte := os.read(process.stdout.fileno(), 1):
        line += byte
        if byte != b"\n":
            continue
        text += line.decode()
        if re.search(pattern, line.decode()):
            return text
        line = b""
    raise AssertionError(text + line.decode())


def processes_of(folder):
    """Pids of ranks and launchers whose command line names the folder."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(int(entry))
    return found


def ranks_of(folder):
    """Pid by rank of the processes whose command line names the folder. Bytes: other processes' command lines
    need not be UTF-8."""
    found = {}
    for pid in processes_of(folder):
        with contextlib.suppress(OSError):
            for variable in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = pid
    return found


def base_flags(model, data, output, **flags):
    """A short fp32 run that logs every step and saves nothing but its result."""
    return {"model_name_or_path": model, "dataset_name": data, "output_dir": output, "bf16": False,
            "max_length": 64, "per_device_train_batch_size": 2, "max_steps": 10,
            "logging_steps": 1, "learning_rate": 5e-3, "save_strategy": "no", "disable_tqdm": True,
            **flags}


def output_files(folder):
    """Relative paths of all files under a folder."""
    return sorted(str(p.relative_to(folder)) for p in pathlib.Path(folder).rglob("*")
                  if p.is_file())
