"""Steps of tools/check_gpu --emulated in which something is not as it should be: ranks that end, freeze or find no memory
while others wait in NCCL, collectives that bring nothing, GPUs that are shared, hidden or cannot be used."""

import contextlib
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import time

from gpu_check import ROOT, last_lines
from gpu_tiny_runs import tiny_inputs


def words_of(check, name, **settings):
    """Of a run of two ranks on the tiny model: (its words behind `strata`, its folder)."""
    folder, output = tiny_inputs(check), check.folder / name
    settings = {"model_name_or_path": folder / "model", "dataset_name": folder / "data", "output_dir": output, "max_length": 64,
                "per_device_train_batch_size": 2, "max_steps": 3, "logging_steps": 1, "bf16": "false", "save_strategy": "no",
                "disable_tqdm": "true", **settings}
    return ["sft", *(str(word) for key, value in settings.items() for word in (f"--{key}", value))], output


def launched(check, name, seconds, launch=(), variables=(), **settings):
    """(exit code, output, the run's folder) of two ranks under the launcher."""
    words, output = words_of(check, name, **settings)
    command = [check.programs / "strata", "launch", "--num_processes", 2, *launch, *words]
    _, _, text, code = check.run(name, command, seconds, OMP_NUM_THREADS="1", **dict(variables))
    return code, text, output


def has_steps(output):
    with contextlib.suppress(OSError):
        return len((output / "metrics.jsonl").read_text().splitlines()) > 2
    return False


class Ranks:
    """Two ranks that no launcher watches, each with variables of its own. Those that are left at the end are killed."""

    def __init__(self, check, name, variables, **settings):
        words, self.output = words_of(check, name, **settings)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.logs = [check.logs / f"{name}-rank{rank}.log" for rank in range(2)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            ours = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **variables[rank]}
            with open(log, "w") as file:
                self.processes.append(subprocess.Popen([check.programs / "strata", *words], stdout=file, stderr=subprocess.STDOUT,
                                                       cwd=ROOT, env={**check.environment(), **ours}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def text(self, rank):
        return self.logs[rank].read_text(errors="replace")

    def await_steps(self, seconds):
        """Until some steps are done; whether they came."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and all(process.poll() is None for process in self.processes):
            if has_steps(self.output):
                return True
            time.sleep(0.05)
        return False

    def await_end(self, rank, seconds):
        """(exit code, seconds that it took); no code: it goes on."""
        start = time.monotonic()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.processes[rank].wait(timeout=seconds)
        return self.processes[rank].returncode, time.monotonic() - start


def long_rows(check):
    lines = check.folder / "long.jsonl"
    with open(lines, "w") as file:
        for _ in range(64):
            file.write(json.dumps({"input_ids": [5] * 256}) + "\n")
    return lines


LITTLE_MEMORY = 40 << 20
# Seconds, on a machine that does other work as well; what is missing would take half an hour.
AT_ONCE = 40
# A time-out that loading and the first collectives keep there.
FROZEN_FOR = 20


def short_rank(check, seconds):
    """A rank that finds no memory says so and ends, though its neighbour waits in NCCL; that one ends, too, though nobody
    watches it. NCCL's end of a communicator waits for the neighbour, which waits for ddp_timeout (half an hour)."""
    with Ranks(check, "short-rank", [{}, {"EMULATED_GPU_BYTES": str(LITTLE_MEMORY)}], dataset_name=long_rows(check),
               max_length=256, per_device_train_batch_size=16, gradient_checkpointing="false") as ranks:
        code, _ = ranks.await_end(1, seconds / 2)
        other, later = ranks.await_end(0, seconds / 2)
        said = "memory of cuda:1: found" in ranks.text(1)
        alone = "although a rank of group" in ranks.text(0) or "gone" in ranks.text(0)
        passed = code == 1 and said and other == 1 and alone and later < AT_ONCE
        return passed, f"exit {code}, {other} after {later:.0f} s: {last_lines(ranks.text(1))} | {last_lines(ranks.text(0))}"


def frozen_rank(check, seconds):
    """A rank that is frozen amid a run: the other ends after ddp_timeout, with a message that names it."""
    with Ranks(check, "frozen-rank", [{}, {}], ddp_timeout=FROZEN_FOR, max_steps=100000) as ranks:
        if not ranks.await_steps(seconds / 2):
            return False, f"no steps: {last_lines(ranks.text(0))}"
        ranks.processes[1].send_signal(signal.SIGSTOP)
        code, taken = ranks.await_end(0, seconds / 2)
        said = "expected every rank" in ranks.text(0) or "found nothing of rank 1" in ranks.text(0)
        return code == 1 and said and taken < FROZEN_FOR + AT_ONCE, f"exit {code} after {taken:.0f} s: {last_lines(ranks.text(0))}"


def killed_rank(check, seconds):
    """A rank that is killed where no launcher watches: the other sees it within seconds, not after ddp_timeout."""
    with Ranks(check, "killed-rank", [{}, {}], max_steps=100000) as ranks:
        if not ranks.await_steps(seconds / 2):
            return False, f"no steps: {last_lines(ranks.text(0))}"
        ranks.processes[1].kill()
        code, taken = ranks.await_end(0, seconds / 2)
        return code == 1 and taken < AT_ONCE, f"exit {code} after {taken:.0f} s: {last_lines(ranks.text(0))}"


def hang_in_nccl(check, seconds):
    """The launcher names the rank that is frozen and the collective in which the other's GPU waits."""
    words, output = words_of(check, "hang", max_steps=100000)
    logs = check.folder / "hang-logs"
    command = [check.programs / "strata", "launch", "--num_processes", "2", "--hang_timeout", str(FROZEN_FOR), "--log_dir", logs, *words]
    with open(check.logs / "hang.log", "w+") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True,
                                   env={**check.environment(), "OMP_NUM_THREADS": "1"})
        try:
            deadline = time.monotonic() + seconds / 2
            while not has_steps(output) and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(rank_of(process.pid, 1), signal.SIGSTOP)
            start = time.monotonic()
            code = process.wait(timeout=seconds / 2)
            taken = time.monotonic() - start
        except (subprocess.TimeoutExpired, OSError, TypeError) as error:
            return False, f"{type(error).__name__}: {error}"
        finally:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        file.seek(0)
        text = file.read()
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    named = errors and errors[0].startswith("error: hang: found rank 1 in step") and "stopped by a signal" in errors[0]
    stack = logs / "rank_0.stack"
    # The emulation's own library has names; this build of the program exports none.
    stacks = stack.exists() and stack.read_text().startswith("rank 0, step") and "(nccl" in stack.read_text()
    return bool(code == 1 and named and stacks and taken < FROZEN_FOR + AT_ONCE), f"{'; '.join(errors[:1])} ({taken:.0f} s)"


def rank_of(launcher, rank):
    """The process that the launcher has started as that rank."""
    for child in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"\0RANK={rank}\0" in "\0" + pathlib.Path(f"/proc/{child}/environ").read_text():
            return int(child)
    return None


def weights_of_checkpoints(output):
    """{folder: digest of the tensors that it holds} of a run."""
    found = {}
    for folder in sorted(output.glob("checkpoint-*")):
        digest = hashlib.sha256()
        for file in sorted(folder.rglob("*.safetensors")):
            digest.update(file.name.encode() + file.read_bytes())
        found[folder.name] = digest.hexdigest()
    return found


# Of the calls of NCCL that a rank makes in four steps.
BROKEN_CALLS = (8, 13, 19, 26, 34)


def broken_collective(check, seconds):
    """A collective that never ends: the run ends with NCCL's error, and no checkpoint holds what was made of it."""
    settings = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4, "async_save": "false"}
    code, text, output = launched(check, "unbroken", seconds / 4, **settings)
    expected = weights_of_checkpoints(output)
    if code != 0 or len(expected) != 4:
        return False, f"exit {code}: {last_lines(text)}, {len(expected)} checkpoints"
    wrong, saved = [], 0
    for n in BROKEN_CALLS:
        name = f"broken-{n}"
        code, text, output = launched(check, name, seconds / 8, variables={"EMULATED_NCCL_BREAKS": str(n)}, **settings)
        found = weights_of_checkpoints(output)
        saved += len(found)
        if code != 1 or "found an error of NCCL" not in text:
            wrong.append(f"{n}: exit {code}, {last_lines(text)}")
        wrong += [f"{n}: {folder} holds other weights" for folder in found if found[folder] != expected[folder]]
    return not wrong, "; ".join(wrong) or f"{len(BROKEN_CALLS)} runs ended, {saved} checkpoints before that are whole"


def one_context(check, seconds):
    """Ranks that save in the background open the context of their own GPU and no other (an emulated one ends the process)."""
    code, text, output = launched(check, "one-context", seconds, save_strategy="steps", save_steps=1)
    saved = len(list(output.glob("checkpoint-*")))
    return code == 0 and saved == 3, f"{saved} checkpoints" if code == 0 else last_lines(text, 3)


def shared_and_hidden(check, seconds):
    """Ranks that share a GPU are named; ranks that see one each, by a mask, are not; one without a GPU beside one that has
    one is an error at once."""
    wrong = []
    code, text, _ = launched(check, "sharing", seconds / 3, variables={"EMULATED_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"})
    if code != 0 or "GPUs: found ranks 0, 1 on GPU-01010101" not in text or "found 2 ranks for 1 GPU" not in text:
        wrong.append(f"shared: exit {code}, {last_lines(text)}")
    masks = [{"CUDA_VISIBLE_DEVICES": "2"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    with Ranks(check, "masked", masks) as ranks:
        codes = [ranks.await_end(rank, seconds / 3)[0] for rank in range(2)]
        if codes != [0, 0] or "(nccl)" not in ranks.text(0) or "on GPU-" in ranks.text(0):
            wrong.append(f"masked: exit {codes}, {last_lines(ranks.text(0))}")
    with Ranks(check, "mixed", [{}, {"CUDA_VISIBLE_DEVICES": ""}]) as ranks:
        codes = [ranks.await_end(rank, seconds / 3)[0] for rank in range(2)]
        said = ('found "computes on a GPU" on rank 0 but "computes on a CPU" on rank 1' in ranks.text(0)
                or 'found "computes on a CPU" on rank 1 but "computes on a GPU" on rank 0' in ranks.text(1))
        if codes != [2, 2] or not said:
            wrong.append(f"mixed: exit {codes}, {last_lines(ranks.text(0))} | {last_lines(ranks.text(1))}")
    return not wrong, "; ".join(wrong) or "named, told apart, refused"


# A machine with a GPU, as the kernel of an old driver shows it.
OLD_DRIVER = """mount -t tmpfs none /proc/driver && mkdir -p /proc/driver/nvidia/gpus/0000:01:00.0 &&
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15' >/proc/driver/nvidia/version && exec "$@" """


def old_driver(check, seconds):
    """GPUs that the driver cannot offer to this CUDA end the run; --cpu and a variable that hides them do not. Nor can a
    number that no GPU has be used, with any driver."""
    def run(name, *more, **variables):
        words, _ = words_of(check, name)
        command = ["unshare", "-m", "sh", "-c", OLD_DRIVER, "sh", check.programs / "strata", *words, *more]
        _, _, text, code = check.run(name, command, seconds / 4,
                                     **{"EMULATED_GPUS": "0", "OMP_NUM_THREADS": "1", **variables})
        return code, text

    if subprocess.run(["unshare", "-m", "sh", "-c", OLD_DRIVER, "sh", "true"], capture_output=True).returncode != 0:
        return None, "this user may not mount"
    code, text = run("old-driver")
    said = "570.86.15" in text and "knows CUDA 12.8, expected one that knows CUDA 13.0" in text and "--cpu" in text
    others = {"cpu": run("old-driver-cpu", "--use_cpu", "true"), "hidden": run("old-driver-hidden", CUDA_VISIBLE_DEVICES="")}
    wrong = [f"{name}: exit {other}, {last_lines(text)}" for name, (other, text) in others.items() if other != 0]
    absent, told = run("absent-gpu", EMULATED_GPUS="1", CUDA_VISIBLE_DEVICES="9")
    if absent != 2 or "whose 9 is no GPU of this machine, which has 1 NVIDIA GPU (0)" not in told:
        wrong.append(f"absent: exit {absent}, {last_lines(told)}")
    return code == 2 and said and not wrong, "; ".join(wrong) or last_lines(text)
