#!/usr/bin/env python3
"""Runs the table of tests/memory_table.py: planned beside measured memory, planned beside counted bytes."""

import argparse
import importlib.metadata
import pathlib
import sys
import tempfile

from job import ROOT
from measuring import machine, save_page

sys.path.insert(0, str(ROOT / "tests"))
import memory_table

HEADER = ["| ranks, strategy, settings | process planned | measured | | tensors planned | measured | | sent | counted | run, theory | copied | later |",
          "|---|---|---|---|---|---|---|---|---|---|---|---|"]


def difference(planned, measured):
    return 100 * (measured - planned) / planned


def line(row, found):
    counted = "equal" if found.sent == found.sent_planned else found.sent
    return (f"| {memory_table.label(row)} | {found.planned} | {found.measured} | {difference(found.planned, found.measured):+.1f} % "
            f"| {found.tensors_planned} | {found.tensors_measured} | {difference(found.tensors_planned, found.tensors_measured):+.1f} % "
            f"| {found.sent_planned} | {counted} | {found.in_theory / 1e6:.3f} | {found.copied / 1e6:.3f} | {found.grown // 1024} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="", help="only rows whose name contains this text, such as bf16")
    parser.add_argument("--save", action="store_true", help="write bench/results/DATE-memory.md")
    options = parser.parse_args()
    rows = [row for row in memory_table.TABLE if options.rows in memory_table.label(row)]
    lines, all_found = list(HEADER), []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in ("model", "data"):
            (folder / name).mkdir()
        model, data = memory_table.save_model(folder / "model"), memory_table.save_data(folder / "data")
        print("\n".join(HEADER), flush=True)
        for number, row in enumerate(rows):
            all_found.append(memory_table.run_row(row, model, data, folder / str(number)))
            lines.append(line(row, all_found[-1]))
            print(lines[-1], flush=True)
    process = max(abs(difference(f.planned, f.measured)) for f in all_found)
    tensors = max(abs(difference(f.tensors_planned, f.tensors_measured)) for f in all_found)
    sent = sum(f.sent != f.sent_planned for f in all_found)
    summary = (f"Largest difference: process {process:.1f} %, tensors {tensors:.1f} %; runs that sent other than the "
               f"planned bytes: {sent or 'none'}; new blocks of parameters, gradients, optimizer, slots and transport "
               f"after step 3: {sum(f.lasting for f in all_found) or 'none'}; bytes taken from the system after it: "
               f"{sum(f.grown for f in all_found) or 'none'}.")
    print(summary)
    if options.save:
        save_page("memory", "planned and measured memory, planned and counted bytes",
                  f"{len(rows)} runs of {memory_table.STEPS} steps of a Llama of 10.0M parameters (4 layers of 384, vocabulary of 4096), "
                  f"one thread a rank, torch {importlib.metadata.version('torch')}, {machine()}; other work on the machine does "
                  "not matter to these figures.\nMB of 10^6 bytes, of rank 0. *Process*: the peak of resident memory that the "
                  "system counts (VmHWM), some 165 MB of it the program and libtorch. *Tensors*: the largest resident size of "
                  "the allocator. *Sent*: bytes of parameters and gradients in a step, as planned; counted by the process "
                  "groups. *Run, theory*: MB that rank 0 had to send in the whole run; *copied*: MB that it copied out of other ranks' "
                  "memory, counted where each copy is made (loading of codes and the small sums of more than two ranks are "
                  "beside the theory). *Later*: KiB that tensors took from the system after step 3.\nThe same rows are held to 5 % by `tests/dist/test_memory_plan.py`.",
                  [summary, "", *lines])


if __name__ == "__main__":
    main()
