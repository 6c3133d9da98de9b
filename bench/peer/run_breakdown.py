#!/usr/bin/env python3
"""Runs the peer's job on Strata alone: where the time of a step goes, and how it grows with the number of layers."""

import shutil
import statistics

import torch
import transformers

from job import CASES, LENGTH, ROWS, made_inputs, run_flags, run_rows, types_of
from measuring import in_turn, machine, option_parser, parse_options, save_page

RANKS = 2
LAYERS = (2, 4, 8, 16)
WORKS = ("matrix products", "attention", "element-wise", "loss", "collectives", "update", "data", "other")


def step_seconds(program, inputs, output, case, steps):
    """The medians over steps 2 to the last, by kind of work."""
    flags = run_flags(inputs, output, case.mode, case.checkpointing, steps) | types_of(case)
    flags["wall_clock_breakdown"] = True
    rows = [row["step_seconds"] for row in run_rows(program, RANKS, flags)[0]][1:]
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def with_layers(inputs, layers):
    """The benchmark's inputs with a random model of so many layers."""
    folder = inputs.parent / f"inputs-{layers}-layers"
    if not (folder / "model" / "model.safetensors").exists():
        shutil.copytree(inputs, folder, dirs_exist_ok=True)
        config = transformers.AutoConfig.from_pretrained(folder / "model", num_hidden_layers=layers)
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    return folder


def shares(program, folder, inputs, steps):
    yield "| case | s a step | " + " | ".join(WORKS) + " | outside matrix products |"
    yield "|---|---|" + "---|" * (len(WORKS) + 1)
    for name, case in CASES.items():
        if case.ranks != RANKS:
            continue
        seconds = step_seconds(program, inputs, folder / "strata", case, steps)
        part = {work: 100 * seconds[work] / seconds["total"] for work in WORKS}
        # Attention's own products are counted with its softmax: not as matrix products.
        yield (f"| {name} | {seconds['total']:.3f} | " + " | ".join(f"{part[work]:.1f} %" for work in WORKS)
               + f" | **{100 - part['matrix products']:.1f} %** |")


def growth(program, folder, inputs, steps, rounds):
    times = in_turn(rounds, {
        layers: lambda of_size=with_layers(inputs, layers): step_seconds(
            program, of_size, folder / "strata", CASES["full, checkpointing"], steps)["total"]
        for layers in LAYERS})
    times = {layers: statistics.median(values) for layers, values in times.items()}
    few, some = (times[layers] for layers in LAYERS[:2])
    outside = few - (some - few)  # embedding, head, update of both: what no layer adds
    yield "| layers | s a step | s of the layers | for twice the layers |"
    yield "|---|---|---|---|"
    own = {layers: times[layers] - outside for layers in LAYERS}
    for layers in LAYERS:
        # The first doubling is 2 by construction.
        ratio = f"**{own[layers] / own[layers // 2]:.3f}**" if layers > LAYERS[1] else ""
        yield f"| {layers} | {times[layers]:.3f} | {own[layers]:.3f} | {ratio} |"


def main():
    options = parse_options(option_parser(__doc__, "breakdown", rounds=3, steps=6))
    inputs = made_inputs(options.folder)
    lines = [*shares(options.strata, options.folder, inputs, options.steps), "",
             *growth(options.strata, options.folder, inputs, options.steps, options.rounds)]
    print("\n".join(lines))
    if options.save:
        save_page("breakdown", "where the time of a step goes", f"{machine()}. {RANKS} ranks of one thread, fp32, "
                  f"{ROWS} x {LENGTH} tokens per rank, rank 0, medians of steps; layers: full, checkpointing.\n"
                  "Shares are those of the rank's own thread: with as many ranks as cores, what the transport's threads take falls into "
                  "whatever the rank does meanwhile.", lines)


if __name__ == "__main__":
    main()
