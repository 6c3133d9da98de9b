#!/usr/bin/env python3
"""Where a step's time went, from the trace of `strata sft --profile_step N` on a GPU: large and thin matrix products,
attention, element-wise kernels, copies, and the time in which no kernel ran. Prints one JSON object, times in
milliseconds; of the longest kernels each grid by itself, which tells products of one name apart."""

import argparse
import json
import re

KINDS = (
    ("attention", re.compile(r"flash|fmha|attention|softmax_lse|splitkv|sdpa|cudnn|dot_do_o|convert_dq", re.I)),
    ("large products", re.compile(r"gemm|cutlass|nvjet|cublas|splitK|xmma|multiply_codes", re.I)),
    ("communication", re.compile(r"nccl", re.I)),
    ("optimizer", re.compile(r"adamw|sum_squares", re.I)),
    ("dequantise", re.compile(r"decode_matrix|decode_dynamic|dequant", re.I)),
)

# The first of cuBLAS's sizes in a name is the tile of the result that a block makes: of LoRA's factors one side is
# short. A product whose terms are split among blocks has a result with few tiles, too.
TILE = re.compile(r"(\d+)x(\d+)")
SPLIT = re.compile(r"splitK|gemv", re.I)
SHORT_SIDE = 32


def is_thin(name):
    tile = TILE.search(name)
    return bool(SPLIT.search(name)) or tile is not None and min(map(int, tile.groups())) <= SHORT_SIDE


def kind_of(event):
    if event.get("cat") in ("gpu_memcpy", "gpu_memset"):
        return "copies"
    for kind, pattern in KINDS:
        if pattern.search(event["name"]):
            return "thin products" if kind == "large products" and is_thin(event["name"]) else kind
    return "element-wise"


def short(name):
    """Up to what tells kernels apart: ours by their names, libtorch's by their functors."""
    return re.sub(r"\(anonymous namespace\)::|at::native::|strata::ops::|^void ", "", name)[:120]


def key_of(event):
    grid = event.get("args", {}).get("grid")
    return short(event["name"]) + (f" <<<{'x'.join(map(str, grid))}>>>" if grid else "")


def covered(intervals):
    """Length of the union."""
    total, end = 0.0, float("-inf")
    for begin, finish in sorted(intervals):
        total += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return total


def breakdown(trace):
    events = [e for e in trace["traceEvents"]
              if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    if not events:
        return {}
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events]
    step = max(end for _, end in spans) - min(begin for begin, _ in spans)
    kinds, names, calls = {}, {}, {}
    for event in events:
        kind = kind_of(event)
        kinds[kind] = kinds.get(kind, 0.0) + event["dur"] / 1e3
        name = key_of(event)
        names[name] = names.get(name, 0.0) + event["dur"] / 1e3
        calls[name] = calls.get(name, 0) + 1
    longest = sorted(names.items(), key=lambda item: -item[1])[:40]
    return {"step": step / 1e3, "idle": (step - covered(spans)) / 1e3, "launches": len(events),
            **{kind: round(ms, 2) for kind, ms in sorted(kinds.items(), key=lambda item: -item[1])},
            "longest": {f"{calls[name]} x {name}": round(ms, 2) for name, ms in longest}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace")
    with open(parser.parse_args().trace) as file:
        print(json.dumps(breakdown(json.load(file)), indent=1))


if __name__ == "__main__":
    main()
