#!/usr/bin/env python3
"""One case on Strata and on transformers + PEFT, on the same GPU in the same call; prints one JSON object, and the part
that is Strata's ahead of it, for a call that is stopped."""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from breakdown import breakdown
from cases import CASES, num_parameters, operations_a_token

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PLAN = re.compile(r"memory of \S+: planned ([\d.]+) (MB|GB), measured ([\d.]+) (MB|GB) in tensors at most "
                  r"\(([+-][\d.]+) %\)")


def matrix_rate():
    """Operations a second of a large bf16 product on random values: what the chip really does."""
    import torch

    a = torch.randn(8192, 8192, device="cuda").bfloat16()
    b = torch.randn(8192, 8192, device="cuda").bfloat16()
    rates = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(3):
            a @ b
        start.record()
        for _ in range(10):
            a @ b
        end.record()
        torch.cuda.synchronize()
        rates.append(2 * 8192**3 * 10 / (start.elapsed_time(end) / 1e3))
    del a, b
    torch.cuda.empty_cache()
    return statistics.median(rates)


def device_memory():
    import torch

    return torch.cuda.mem_get_info()[1]


def make_inputs(folder, case, device="cuda"):
    import torch

    from inputs import save_model, save_rows, save_tokenizer

    save_model(folder / "model", case.model_config, device)
    save_tokenizer(folder / "model")
    save_rows(folder / "rows.jsonl", case.model_config["vocab_size"], case.length, case.rows * case.steps)
    torch.cuda.empty_cache()


def flags_of(case, folder, output, rows):
    flags = ["--model_name_or_path", folder / "model", "--dataset_name", folder / "rows.jsonl", "--output_dir", output,
             "--bf16", "true", "--max_length", case.length, "--per_device_train_batch_size", rows,
             "--max_steps", case.steps, "--logging_steps", 1, "--save_strategy", "no", "--learning_rate", 1e-5,
             "--profile_step", case.steps, "--gradient_checkpointing", str(case.checkpointing).lower(),
             "--disable_tqdm", "true", "--lr_scheduler_type", "constant"]
    if case.lora:
        flags += ["--use_peft", "true", "--lora_r", 16, "--lora_alpha", 32, "--lora_target_modules", "all-linear",
                  "--lora_dropout", 0,  # PEFT's default, which the reference job takes; TRL's is 0.05
                  "--dtype", "bfloat16"]
    if case.quantised:
        flags += ["--load_in_4bit", "true", "--bnb_4bit_quant_type", "nf4", "--bnb_4bit_use_double_quant", "true",
                  "--bnb_4bit_compute_dtype", "bfloat16"]
    return [str(word) for word in (*flags, *case.flags)]


def peak_mb(row):
    """Megabytes as the reference counts them, of 10**6 bytes; a row of metrics.jsonl has those of 2**20."""
    return row["device_memory_mb"] * 2**20 / 1e6


def run_strata(program, case, folder, rows, more):
    output = folder / "out"
    shutil.rmtree(output, ignore_errors=True)
    process = subprocess.run([str(program), "sft", *flags_of(case, folder, output, rows), *more], text=True,
                             capture_output=True)
    if process.returncode != 0:
        return {"error": (process.stderr or process.stdout).strip().splitlines()[-5:]}
    steps = [row for row in map(json.loads, open(output / "metrics.jsonl")) if "loss" in row]
    times = [row["elapsed_seconds"] for row in steps][3:-1]  # the last one is traced
    seconds = (times[-1] - times[0]) / (len(times) - 1)
    result = {"tokens_per_second": rows * case.length / seconds, "step_seconds": seconds, "rows": rows,
              "peak_mb": peak_mb(steps[-1]), "losses": [row["loss"] for row in steps]}
    if (output / "profile.json").exists():
        result["breakdown_ms"] = breakdown(json.load(open(output / "profile.json")))
    said = process.stdout + process.stderr
    result["warnings"] = [line[:300] for line in said.splitlines() if "warning:" in line][:5]
    plan = PLAN.search(said)
    if plan:
        result["planned"] = plan.group(0)
        result["plan_error_percent"] = float(plan.group(5))
    return result


def run_peer(case_name, folder, rows):
    process = subprocess.run([sys.executable, str(HERE / "peer.py"), case_name, "--inputs", str(folder), "--rows",
                              str(rows)], text=True, capture_output=True)
    if process.returncode != 0:
        return {"error": process.stderr.strip().splitlines()[-3:]}
    return json.loads(process.stdout.strip().splitlines()[-1])


def add_ratios(result, case):
    ours, theirs = result["strata"], result.get("peer", {})
    if "tokens_per_second" in ours:
        rate = result["matrix_tflops"] * 1e12
        result["model_flops_share"] = operations_a_token(case) * ours["tokens_per_second"] / rate
        if "tokens_per_second" in theirs:
            result["speed_ratio"] = ours["tokens_per_second"] / theirs["tokens_per_second"]
            result["memory_ratio"] = ours["peak_mb"] / theirs["peak_mb"]
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="?", choices=CASES)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--strata", type=pathlib.Path, default=ROOT / os.environ.get("STRATA_BUILD", "build/cuda") / "strata")
    parser.add_argument("--folder", type=pathlib.Path, help="for the inputs; default: a temporary one")
    parser.add_argument("--rows", type=int, help="rows of a micro-batch; default: the case's")
    parser.add_argument("--times", type=int, default=1, help="as many rows of a micro-batch as that")
    parser.add_argument("--no-peer", action="store_true")
    parser.epilog = "Behind --: further flags of `strata sft`."
    # argparse hands nothing on that stands behind -- and other options.
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, more = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1:]
    if options.list or options.case is None:
        print("\n".join(CASES))
        return
    case = CASES[options.case]
    rows = (options.rows or case.rows_on(device_memory())) * options.times
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="strata-gpu-"))
    start = time.time()
    rate = matrix_rate()
    if not (folder / "rows.jsonl").exists():
        make_inputs(folder, case)
    made = time.time()
    result = {"case": options.case, "matrix_tflops": rate / 1e12, "parameters": num_parameters(case.model_config)[0],
              "seconds_inputs": made - start}
    result["strata"] = run_strata(options.strata, case, folder, rows, more)
    result["seconds_strata"] = time.time() - made
    print(json.dumps(add_ratios(result, case)), flush=True)
    # A ratio to nothing is not worth the reference's minutes.
    if not options.no_peer and not case.quantised and "error" not in result["strata"]:
        begun = time.time()
        result["peer"] = run_peer(options.case, folder, rows)
        result["seconds_peer"] = time.time() - begun
    if options.folder is None:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(add_ratios(result, case)))


if __name__ == "__main__":
    main()
