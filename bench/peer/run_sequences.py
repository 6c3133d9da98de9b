#!/usr/bin/env python3
"""Trains on long rows with Strata: one rank, two ranks with a row each, two ranks that share a row: speed, memory, losses."""

import statistics

from job import made_inputs, run_flags, run_rows
from measuring import in_turn, machine, option_parser, parse_options, save_page

LENGTH = 8192
# Ranks, those who share a row, rows of a step.
CASES = {"one rank of two threads": (1, 1, 1), "two ranks, a row each": (2, 1, 2), "two ranks, a row together": (2, 2, 1)}
HEADER = """| case | way | tokens/s | of one rank | largest rank, MB | difference to one rank, MB | losses |
|---|---|---|---|---|---|---|"""


def run(options, inputs, trained, case):
    ranks, sharers, rows = CASES[case]
    flags = run_flags(inputs, options.folder / "sequences", trained, "full", options.steps)
    flags |= {"per_device_train_batch_size": 1, "max_length": LENGTH, "sequence_parallel_size": sharers}
    found, peak = run_rows(options.strata, ranks, flags)
    ends = [row["elapsed_seconds"] for row in found]
    seconds = statistics.median(b - a for a, b in zip(ends, ends[1:]))
    return rows * LENGTH / seconds, peak, [row["loss"] for row in found]


def table(name, runs):
    def median(case):
        return sorted(runs[case])[(len(runs[case]) - 1) // 2]

    speed, peak, losses = median("one rank of two threads")
    for case, (_, _, rows) in CASES.items():
        ours = median(case)
        difference = max(abs(a - b) for a, b in zip(ours[2], losses))
        yield (f"| {name} | {case} | {ours[0]:.0f} | {ours[0] / speed:.2f} | {ours[1]:.0f} | {ours[1] - peak:+.0f} "
               f"| {'other rows' if rows > 1 else f'within {difference:.0e} of one rank' if difference else 'its own'} |")


def main():
    options = parse_options(option_parser(__doc__, "sequences", rounds=3, steps=4))
    inputs = made_inputs(options.folder)
    lines = [HEADER]
    for name, trained in (("full", "full"), ("LoRA", "lora")):
        lines += table(name, in_turn(options.rounds, {
            case: lambda case=case: run(options, inputs, trained, case) for case in CASES}))
    print("\n".join(lines))
    if options.save:
        save_page("sequences", "long rows", f"{machine()}. Medians of {options.rounds} rounds in turn, fp32, rows of {LENGTH} "
                  "tokens (packing `wrapped`: one document), FULL_SHARD, activation checkpointing.", lines)


if __name__ == "__main__":
    main()
