"""What the programs of this folder have in common around their runs: options, turns, the page of results."""

import argparse
import datetime
import importlib.metadata
import os
import pathlib
import subprocess
import sys

from job import ROOT


def option_parser(description, page, rounds, steps):
    """`page`: what the file is called that --save writes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="how often each case runs, in turn")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--strata", default=ROOT / "build/release/strata")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build/bench/peer", help="for inputs and outputs")
    parser.add_argument("--save", action="store_true", help=f"write bench/results/DATE-{page}.md")
    return parser


def parse_options(parser):
    options = parser.parse_args()
    if options.steps < 3 or options.rounds < 1:
        parser.error("found too little to measure, expected at least 3 steps and 1 round")
    return options


def in_turn(rounds, jobs):
    """What each of {name: function} returns, as often as there are rounds: A B A B."""
    results = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, run in jobs.items():
            results[name].append(run())
    return results


def machine():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return f"{os.cpu_count()} x {model}"


def versions():
    names = ("torch", "transformers", "accelerate", "trl", "peft", "bitsandbytes", "datasets")
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def commit():
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()


def save_page(name, title, conditions, lines):
    """bench/results/DATE-NAME.md."""
    today = datetime.date.today().isoformat()
    path = ROOT / "bench" / "results" / f"{today}-{name}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([f"# {today}: {title}", "", conditions,
                               f"`bench/peer/{pathlib.Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}`", "", *lines, ""]))
    print(f"saved: {path.relative_to(ROOT)}")
