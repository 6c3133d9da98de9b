#!/usr/bin/env python3
"""Runs the peer's job on Strata with each kind of activation checkpointing in turn: speed, memory, equal losses."""

import argparse
import pathlib
import shutil

from run_peer import LENGTH, ROOT, ROWS, best, machine, made_inputs, run_strata, save_page

MODES = ("none", "selective", "full")
RANKS = 2
HEADER = """| case | checkpointing | tokens/s | of none | peak, MB | difference to none, MB | losses |
|---|---|---|---|---|---|---|"""


def table(name, runs):
    none = best(runs["none"])
    for mode in MODES:
        run = best(runs[mode])
        equal = all(r.losses == none.losses for r in runs[mode])
        yield (f"| {name} | {mode} | {run.tokens_per_second():.0f} | {run.tokens_per_second() / none.tokens_per_second():.2f} "
               f"| {run.peak_rss_mb:.0f} | {run.peak_rss_mb - none.peak_rss_mb:+.0f} "
               f"| {'equal to the bit' if equal else 'DIFFERENT'} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--strata", default=ROOT / "build/release/strata")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/bench/peer")
    parser.add_argument("--save", action="store_true", help="write bench/results/DATE-checkpointing.md")
    options = parser.parse_args()
    inputs = made_inputs(options.folder)
    lines = [HEADER]
    for name, trained in (("full", "full"), ("LoRA", "lora")):
        runs = {mode: [] for mode in MODES}
        for _ in range(options.rounds):
            for mode in MODES:
                output = options.folder / "checkpointing"
                shutil.rmtree(output, ignore_errors=True)
                output.mkdir(parents=True)
                runs[mode].append(run_strata(options.strata, inputs, output, trained, mode, options.steps, RANKS))
        lines += table(name, runs)
    print("\n".join(lines))
    if options.save:
        save_page("checkpointing", "kinds of activation checkpointing", f"{machine()}. Medians of {options.rounds} rounds in turn, "
                  f"{RANKS} ranks of one thread, fp32, {ROWS} x {LENGTH} tokens per rank, FULL_SHARD.", lines)


if __name__ == "__main__":
    main()
