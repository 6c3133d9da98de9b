#!/usr/bin/env python3
"""Runs the peer's job on Strata with each kind of activation checkpointing in turn: speed, memory, equal losses."""

from job import LENGTH, ROWS, best, made_inputs, run_strata
from measuring import in_turn, machine, option_parser, parse_options, save_page

MODES = ("none", "selective", "attention", "full")
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
    options = parse_options(option_parser(__doc__, "checkpointing", rounds=3, steps=5))
    inputs = made_inputs(options.folder)
    lines = [HEADER]
    for name, trained in (("full", "full"), ("LoRA", "lora")):
        lines += table(name, in_turn(options.rounds, {
            mode: lambda mode=mode: run_strata(options.strata, inputs, options.folder / "checkpointing", trained, mode,
                                               options.steps, RANKS)
            for mode in MODES}))
    print("\n".join(lines))
    if options.save:
        save_page("checkpointing", "kinds of activation checkpointing", f"{machine()}. Medians of {options.rounds} rounds in turn, "
                  f"{RANKS} ranks of one thread, fp32, {ROWS} x {LENGTH} tokens per rank, FULL_SHARD.", lines)


if __name__ == "__main__":
    main()
