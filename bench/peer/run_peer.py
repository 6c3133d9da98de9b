#!/usr/bin/env python3
"""Runs the same fine-tuning on the reference stack and on Strata in turn and prints ratios (README.md)."""

import argparse
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORES, ROWS, LENGTH = 2, 4, 512
# Mode, checkpointing, ranks. Two ranks have a thread each; one has two.
CASES = {
    "full, checkpointing": ("full", True, 2),
    "LoRA, checkpointing": ("lora", True, 2),
    "full": ("full", False, 2),
    "LoRA": ("lora", False, 2),
    "LoRA, one rank": ("lora", False, 1),
    "QLoRA NF4 double, one rank": ("qlora", False, 1),
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


def run_reference(inputs, output, mode, checkpointing, steps, ranks):
    bin = pathlib.Path(sys.executable).parent
    starter = ([bin / "accelerate", "launch", "--config_file", HERE / "fsdp2_cpu.yaml"] if ranks > 1 else [sys.executable])
    command = [*starter, HERE / "reference_sft.py", "--inputs", inputs, "--output", output, "--steps", steps, "--rows", ROWS,
               "--length", LENGTH]
    command += ["--lora"] * (mode != "full") + ["--nf4"] * (mode == "qlora") + ["--checkpointing"] * checkpointing
    start, text, peak = execute([str(part) for part in command], output / "log.txt", ranks)
    rows = [json.loads(line) for line in text.splitlines() if line.startswith(('{"begin"', '{"step"'))]
    return Run(step_ends=[row["time"] - start for row in rows if "time" in row],
               first_step_begun=next(row["begin"] for row in rows if "begin" in row) - start,
               losses=[row["loss"] for row in rows if "loss" in row], peak_rss_mb=peak, ranks=ranks)


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
        flags |= {"use_peft": True, "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "lora_target_modules": "all-linear"}
    return flags


def strata_command(program, ranks, flags):
    command = [program, "launch", "--num_processes", ranks, "--cpu", "sft"]
    for name, value in flags.items():
        command += [f"--{name}", str(value).lower() if isinstance(value, bool) else value]
    return [str(part) for part in command]


def run_strata(program, inputs, output, mode, checkpointing, steps, ranks, **more):
    flags = run_flags(inputs, output, mode, checkpointing, steps) | more
    _, _, peak = execute(strata_command(program, ranks, flags), output / "log.txt", ranks)
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss" in row]
    first = rows[0]["elapsed_seconds"]
    return Run(step_ends=[row["elapsed_seconds"] for row in rows],
               first_step_begun=first - ranks * ROWS * LENGTH / rows[0]["tokens_per_second"],
               losses=[row["loss"] for row in rows], peak_rss_mb=peak, ranks=ranks)


def best(runs):
    """The median run by speed, of an even number the slower of the middle two: a neighbour on the machine
    disturbs single runs."""
    return sorted(runs, key=Run.tokens_per_second)[(len(runs) - 1) // 2]


def table_row(name, reference, strata):
    a, b = best(reference), best(strata)
    speed, rss = b.tokens_per_second() / a.tokens_per_second(), b.peak_rss_mb / a.peak_rss_mb
    difference = max(abs(x - y) for x, y in zip(a.losses, b.losses))
    return (f"| {name} | {a.tokens_per_second():.0f} | {b.tokens_per_second():.0f} | **{speed:.2f}** "
            f"| {a.first_step_begun:.1f} | {b.first_step_begun:.1f} | {b.step_ends[0]:.1f} "
            f"| {a.peak_rss_mb:.0f} | {b.peak_rss_mb:.0f} | **{rss:.2f}** | {difference:.1e} |")


HEADER = """| case | reference, tokens/s | Strata, tokens/s | ratio | reference, s to first step | Strata, s to first step | Strata, s until it is done | reference, MB | Strata, MB | ratio | loss difference |
|---|---|---|---|---|---|---|---|---|---|---|"""


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return f"{os.cpu_count()} x {model}"


def versions():
    names = ("torch", "transformers", "accelerate", "trl", "peft", "bitsandbytes", "datasets")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def save(name, lines, raw):
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
    save_page(name, "the reference stack and Strata", f"Commit {commit}. {machine()}. {versions()}. Two ranks of one thread, "
              f"or one of two; fp32, {ROWS} x {LENGTH} tokens per rank.",
              [*lines, "", "Every run, in the order in which they ran:", "```", *raw, "```"])


def save_page(name, title, conditions, lines):
    """bench/results/DATE-NAME.md."""
    today = datetime.date.today().isoformat()
    path = ROOT / "bench" / "results" / f"{today}-{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([f"# {today}: {title}", "", conditions,
                               f"`bench/peer/{pathlib.Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}`", "", *lines, ""]))
    print(f"saved: {path.relative_to(ROOT)}")


def made_inputs(folder):
    """The folder of the benchmark's inputs, made on first use."""
    inputs = folder / "inputs"
    if not (inputs / "model" / "tokenizer.json").exists():
        subprocess.run([sys.executable, HERE / "make_inputs.py", inputs], check=True)
    return inputs


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="only cases whose name contains this text, such as full")
    parser.add_argument("--rounds", type=int, default=2, help="how often each side runs, in turn")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--strata", default=ROOT / "build/release/strata")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/bench/peer", help="for inputs and outputs")
    parser.add_argument("--save", action="store_true", help="write bench/results/DATE-NAME.md")
    parser.add_argument("--name", default="peer", help="of the file that --save writes")
    options = parser.parse_args()
    if options.steps < 3 or options.rounds < 1:
        parser.error("found too little to measure, expected at least 3 steps and 1 round")
    return options


def main():
    options = parse_options()
    inputs = made_inputs(options.folder)
    lines, raw = [HEADER], []
    print(HEADER, flush=True)
    for name, (mode, checkpointing, ranks) in CASES.items():
        if options.cases.lower() not in name.lower():
            continue
        runs = {"reference": [], "strata": []}
        for turn in range(options.rounds):
            for side in runs:
                output = options.folder / side
                shutil.rmtree(output, ignore_errors=True)
                output.mkdir(parents=True)
                arguments = (inputs, output, mode, checkpointing, options.steps, ranks)
                run = run_reference(*arguments) if side == "reference" else run_strata(options.strata, *arguments)
                runs[side].append(run)
                raw.append(f"{name}, {side}, round {turn + 1}: {json.dumps(dataclasses.asdict(run))}")
        lines.append(table_row(name, runs["reference"], runs["strata"]))
        print(lines[-1], flush=True)
    if options.save:
        save(options.name, lines, raw)


if __name__ == "__main__":
    main()
