#!/usr/bin/env python3
"""What a frozen base in 4 or 8 bits costs: steps of Strata's LoRA over plain weights and over codes in turn, one
rank of two threads, in fp32 and in bf16 (products and frozen weights)."""

from job import LENGTH, ROWS, best, made_inputs, run_strata
from measuring import in_turn, machine, option_parser, parse_options, save_page

BASES = {
    "plain": {},
    "NF4, double": {"load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "FP4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}
TYPES = {"fp32": {"bf16": False}, "bf16": {"bf16": True, "dtype": "bfloat16"}}
HEADER = """| type | base | tokens/s | time of a step, of plain | peak, MB | of plain | last loss |
|---|---|---|---|---|---|---|"""


def table(kind, runs):
    plain = best(runs["plain"])
    for name, of_base in runs.items():
        run = best(of_base)
        yield (f"| {kind} | {name} | {run.tokens_per_second():.0f} "
               f"| **{plain.tokens_per_second() / run.tokens_per_second():.2f}** | {run.peak_rss_mb:.0f} "
               f"| {run.peak_rss_mb / plain.peak_rss_mb:.2f} | {run.losses[-1]:.4f} |")


def main():
    options = parse_options(option_parser(__doc__, "qlora-step", rounds=3, steps=6))
    inputs = made_inputs(options.folder)
    lines = [HEADER]
    for kind, of_type in TYPES.items():
        lines += table(kind, in_turn(options.rounds, {
            name: lambda more=of_type | of_base: run_strata(options.strata, inputs, options.folder / "qlora", "lora", False,
                                                            options.steps, 1, **more)
            for name, of_base in BASES.items()}))
    print("\n".join(lines))
    if options.save:
        save_page("qlora-step", "a base of codes beside a plain one", f"{machine()}. Medians of {options.rounds} rounds in turn, "
                  f"one rank of two threads, {ROWS} x {LENGTH} tokens, no checkpointing.", lines)


if __name__ == "__main__":
    main()
