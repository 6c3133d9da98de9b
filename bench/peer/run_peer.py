#!/usr/bin/env python3
"""Runs the same fine-tuning on the reference stack and on Strata in turn and prints ratios (README.md)."""

import dataclasses
import json

from job import CASES, LENGTH, ROWS, best, made_inputs, run_reference, run_strata, types_of
from measuring import commit, in_turn, machine, option_parser, parse_options, save_page, versions

HEADER = """| case | reference, tokens/s | Strata, tokens/s | ratio | reference, s to first step | Strata, s to first step | Strata, s until it is done | reference, MB | Strata, MB | ratio | loss difference |
|---|---|---|---|---|---|---|---|---|---|---|"""


def table_row(name, reference, strata):
    a, b = best(reference), best(strata)
    speed, rss = b.tokens_per_second() / a.tokens_per_second(), b.peak_rss_mb / a.peak_rss_mb
    difference = max(abs(x - y) for x, y in zip(a.losses, b.losses))
    return (f"| {name} | {a.tokens_per_second():.0f} | {b.tokens_per_second():.0f} | **{speed:.2f}** "
            f"| {a.first_step_begun:.1f} | {b.first_step_begun:.1f} | {b.step_ends[0]:.1f} "
            f"| {a.peak_rss_mb:.0f} | {b.peak_rss_mb:.0f} | **{rss:.2f}** | {difference:.1e} |")


def run_case(options, inputs, case):
    return in_turn(options.rounds, {
        "reference": lambda: run_reference(inputs, options.folder / "reference", case, options.steps),
        "strata": lambda: run_strata(options.strata, inputs, options.folder / "strata", case.mode, case.checkpointing,
                                     options.steps, case.ranks, **types_of(case))})


def raw_lines(name, runs):
    for turn, both in enumerate(zip(*runs.values())):
        for side, run in zip(runs, both):
            yield f"{name}, {side}, round {turn + 1}: {json.dumps(dataclasses.asdict(run))}"


def main():
    parser = option_parser(__doc__, "NAME", rounds=2, steps=6)
    parser.add_argument("--cases", default="", help="only cases whose name contains this text, such as full")
    parser.add_argument("--name", default="peer", help="of the file that --save writes")
    options = parse_options(parser)
    inputs = made_inputs(options.folder)
    lines, raw = [HEADER], []
    print(HEADER, flush=True)
    for name, case in CASES.items():
        if options.cases.lower() not in name.lower():
            continue
        runs = run_case(options, inputs, case)
        raw += raw_lines(name, runs)
        lines.append(table_row(name, runs["reference"], runs["strata"]))
        print(lines[-1], flush=True)
    if options.save:
        save_page(options.name, "the reference stack and Strata", f"Commit {commit()}. {machine()}. {versions()}. Two ranks of "
                  f"one thread, or one of two; fp32 where no other type is named, {ROWS} x {LENGTH} tokens per rank.",
                  [*lines, "", "Every run, in the order in which they ran:", "```", *raw, "```"])


if __name__ == "__main__":
    main()
