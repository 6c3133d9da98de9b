"""One run of the benchmark's job, measured in the same way on the reference stack and on Strata."""

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
import typing

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORES, ROWS, LENGTH = 2, 4, 512
LORA = {"use_peft": True, "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "lora_target_modules": "all-linear"}


class Case(typing.NamedTuple):
    mode: str
    checkpointing: bool
    ranks: int  # two have a thread each, one has two
    bf16: bool = False  # products in bf16; a base under adapters rests in it


CASES = {
    "full, checkpointing": Case("full", True, 2),
    "LoRA, checkpointing": Case("lora", True, 2),
    "full": Case("full", False, 2),
    "LoRA": Case("lora", False, 2),
    "LoRA, one rank": Case("lora", False, 1),
    "QLoRA NF4 double, one rank": Case("qlora", False, 1),
    "full, bf16": Case("full", False, 2, bf16=True),
    "LoRA, bf16": Case("lora", False, 2, bf16=True),
    "LoRA, bf16, one rank": Case("lora", False, 1, bf16=True),
}


@dataclasses.dataclass
class Run:
    """What was measured in one run. Seconds count from the launcher's start."""

    step_ends: list
    first_step_begun: float
    losses: list
    peak_rss_mb: float
    ranks: int

    def tokens_per_second(self):
        durations = [b - a for a, b in zip(self.step_ends, self.step_ends[1:])]
        return self.ranks * ROWS * LENGTH / statistics.median(durations)


def execute(command, log, ranks):
    """Runs the command; returns (start time, output, largest resident set of its processes in MB)."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(CORES // ranks), TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1",
                       TRANSFORMERS_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    start = time.time()
    with open(log, "w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with exit code {process.returncode}:\n{text[-3000:]}")
    return start, text, usage.ru_maxrss / 1024


def fresh(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def told_rows(text):
    """What reference_sft.Clock printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith(('{"begin"', '{"step"'))]


def reference_options(description, data):
    """Of a reference that trains one epoch on the file --DATA; also whether it trains branches alone."""
    parser = argparse.ArgumentParser(description=description)
    for name in ("model", data, "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--length", type=int, required=True)
    return parser.parse_args()


def run_epoch_of_reference(script, output, lora, **options):
    """Runs a script of reference_options() in one rank; returns its rows and its largest resident set in MB."""
    command = [sys.executable, HERE / script, *flag_words(options | {"output": output}), *["--lora"] * lora]
    _, text, peak = execute([str(part) for part in command], fresh(output) / "log.txt", 1)
    return told_rows(text), peak


def run_reference(inputs, output, case, steps):
    bin = pathlib.Path(sys.executable).parent
    starter = [sys.executable]
    if case.ranks > 1:
        starter = [bin / "accelerate", "launch", "--config_file", HERE / "fsdp2_cpu.yaml"]
        starter += ["--mixed_precision", "bf16"] * case.bf16
    command = [*starter, HERE / "reference_sft.py", "--inputs", inputs, "--output", output, "--steps", steps, "--rows", ROWS,
               "--length", LENGTH]
    command += ["--lora"] * (case.mode != "full") + ["--nf4"] * (case.mode == "qlora")
    command += ["--checkpointing"] * case.checkpointing + ["--bf16"] * case.bf16
    start, text, peak = execute([str(part) for part in command], fresh(output) / "log.txt", case.ranks)
    rows = told_rows(text)
    return Run(step_ends=[row["time"] - start for row in rows if "time" in row],
               first_step_begun=next(row["begin"] for row in rows if "begin" in row) - start,
               losses=[row["loss"] for row in rows if "loss" in row], peak_rss_mb=peak, ranks=case.ranks)


def run_flags(inputs, output, mode, checkpointing, steps):
    flags = {
        "model_name_or_path": inputs / "model", "dataset_name": inputs / "data", "output_dir": output, "max_steps": steps,
        "per_device_train_batch_size": ROWS, "max_length": LENGTH, "packing": True, "packing_strategy": "wrapped",
        "bf16": False, "learning_rate": 1e-4, "lr_scheduler_type": "cosine", "warmup_steps": 0, "logging_steps": 1,
        "save_strategy": "no", "eval_strategy": "no", "seed": 100,
        "activation_checkpointing": {True: "full", False: "none"}.get(checkpointing, checkpointing)}
    if mode == "qlora":
        flags |= {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}
    if mode != "full":
        flags |= LORA
    return flags


def types_of(case):
    """The flags of a case's types, beside those of run_flags()."""
    rests_in_bf16 = case.bf16 and case.mode != "full"
    return {"bf16": case.bf16, "dtype": "bfloat16" if rests_in_bf16 else "float32"}


def flag_words(flags):
    """{"bf16": False, "seed": 100} as words of a command line."""
    words = []
    for name, value in flags.items():
        words += [f"--{name}", str(value).lower() if isinstance(value, bool) else str(value)]
    return words


def strata_command(program, ranks, flags):
    return [str(program), "launch", "--num_processes", str(ranks), "--cpu", "sft", *flag_words(flags)]


def run_epoch_of_strata(program, recipe, flags, lora):
    """An epoch in one rank; returns the rows that it logged, what it said and its largest resident set in MB."""
    output = fresh(flags["output_dir"])
    flags = {"num_train_epochs": 1, "learning_rate": 1e-4, "logging_steps": 1, "save_strategy": "no", "seed": 100, **flags,
             **(LORA if lora else {})}
    _, text, peak = execute([str(program), recipe, "--cpu", *flag_words(flags)], output / "log.txt", 1)
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()], text, peak


def run_rows(program, ranks, flags):
    """Runs Strata; returns the rows of its steps and its largest resident set in MB."""
    output = fresh(flags["output_dir"])
    _, _, peak = execute(strata_command(program, ranks, flags), output / "log.txt", ranks)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row], peak


def run_strata(program, inputs, output, mode, checkpointing, steps, ranks, **more):
    rows, peak = run_rows(program, ranks, run_flags(inputs, output, mode, checkpointing, steps) | more)
    first = rows[0]["elapsed_seconds"]
    return Run(step_ends=[row["elapsed_seconds"] for row in rows],
               first_step_begun=first - ranks * ROWS * LENGTH / rows[0]["tokens_per_second"],
               losses=[row["loss"] for row in rows], peak_rss_mb=peak, ranks=ranks)


def best(runs):
    """The median run by speed, of an even number the slower of the middle two: a neighbour on the machine
    disturbs single runs."""
    return sorted(runs, key=Run.tokens_per_second)[(len(runs) - 1) // 2]


def made_inputs(folder):
    """The folder of the benchmark's inputs, made on first use."""
    inputs = folder / "inputs"
    if not (inputs / "model" / "tokenizer.json").exists():
        subprocess.run([sys.executable, HERE / "make_inputs.py", inputs], check=True)
    return inputs
