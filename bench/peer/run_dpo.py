#!/usr/bin/env python3
"""Runs an epoch of direct preference optimisation on TRL and on Strata in turn, one rank of two threads, checkpointing,
and prints ratios (README.md). Strata's seconds hold the pass that asks the reference before the first step."""

import json
import statistics

from job import made_inputs, run_epoch_of_reference, run_epoch_of_strata
from measuring import commit, in_turn, machine, option_parser, parse_options, save_page, versions

ROWS, LENGTH = 2, 512
HEADER = """| case | reference, s | Strata, s | ratio | reference, MB | Strata, MB | ratio | loss difference |
|---|---|---|---|---|---|---|---|"""


def write_pairs(inputs, steps):
    """Each question with its own answer and with another question's."""
    rows = [json.loads(line)["messages"] for line in (inputs / "data" / "train.jsonl").read_text().splitlines()]
    pairs = [{"prompt": [question], "chosen": [answer], "rejected": [other[1]]}
             for (question, answer), other in zip(rows, rows[1:])][: steps * ROWS]
    path = inputs / f"pairs-{steps}.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return path


def run_reference(inputs, pairs, output, lora):
    rows, peak = run_epoch_of_reference("reference_dpo.py", output, lora, model=inputs / "model", pairs=pairs, rows=ROWS,
                                        length=LENGTH)
    begin = next(row["begin"] for row in rows if "begin" in row)
    return [max(row["time"] for row in rows if "time" in row) - begin, peak, [row["loss"] for row in rows if "loss" in row]]


def run_strata(program, inputs, pairs, output, lora):
    flags = {"model_name_or_path": inputs / "model", "dataset_name": pairs, "output_dir": output, "per_device_train_batch_size": ROWS,
             "max_length": LENGTH, "bf16": False}
    rows, text, peak = run_epoch_of_strata(program, "dpo", flags, lora)
    asked = float(text.split("by the model as it starts, in ")[1].split(" s")[0])
    trained = next(row["train_runtime"] for row in rows if "train_runtime" in row)
    return [trained + asked, peak, [row["loss"] for row in rows if "loss" in row]]


def table_row(name, reference, strata):
    seconds, peaks = [[statistics.median(run[i] for run in runs) for runs in (reference, strata)] for i in (0, 1)]
    difference = max(abs(a - b) for a, b in zip(reference[0][2], strata[0][2], strict=True))
    return (f"| {name} | {seconds[0]:.1f} | {seconds[1]:.1f} | **{seconds[0] / seconds[1]:.2f}** | {peaks[0]:.0f} | {peaks[1]:.0f} "
            f"| **{peaks[1] / peaks[0]:.2f}** | {difference:.1e} |")


def main():
    options = parse_options(option_parser(__doc__, "dpo", rounds=3, steps=8))
    inputs = made_inputs(options.folder)
    pairs = write_pairs(inputs, options.steps)
    lines = [HEADER]
    print(HEADER, flush=True)
    for name, lora in (("full", False), ("LoRA", True)):
        runs = in_turn(options.rounds, {
            "reference": lambda lora=lora: run_reference(inputs, pairs, options.folder / "reference", lora),
            "strata": lambda lora=lora: run_strata(options.strata, inputs, pairs, options.folder / "strata", lora)})
        lines.append(table_row(name, runs["reference"], runs["strata"]))
        print(lines[-1], flush=True)
    if options.save:
        save_page("dpo", "direct preference optimisation on the reference stack and Strata",
                  f"Commit {commit()}. {machine()}. {versions()}. One rank of two threads; fp32, {ROWS} pairs of up to "
                  f"2 x {LENGTH} tokens a step, checkpointing, an epoch of {options.steps} steps; medians of {options.rounds} "
                  "rounds in turn. Seconds from the first step's beginning to the last one's end, with the pass that asks the "
                  "reference.", lines)


if __name__ == "__main__":
    main()
