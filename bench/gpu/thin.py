#!/usr/bin/env python3
"""The products of LoRA's branches as libtorch's operators make them, on the shapes of the 8B cases: 8,192 tokens, rank 16,
one branch and three beside each other, bf16. Prints one JSON object: microseconds, GB/s and TFLOP/s of each, and their
shares of what the chip reaches with a copy and with a large product."""

import argparse
import json
import statistics

import torch

TOKENS, HIDDEN, INNER, RANK = 8192, 4096, 14336, 16
THREE = 3 * RANK
# Operands in turns: more bytes than a cache of 50 MB holds.
TURNS = 4


def seconds_of(call, calls=20):
    """Of one of many that the GPU makes one after the other."""
    rates = []
    for _ in range(4):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for i in range(calls):
            call(i % TURNS)
        end.record()
        torch.cuda.synchronize()
        rates.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(rates[1:])


def random(rows, columns, device):
    return [torch.randn(rows, columns, device=device).bfloat16() for _ in range(TURNS)]


def down(inner, rank, device):
    """A's output: x [tokens, inner] times A^T."""
    x, a = random(TOKENS, inner, device), random(rank, inner, device)
    out = torch.empty(TOKENS, rank, device=device, dtype=torch.bfloat16)
    return (TOKENS, inner, rank), lambda i: torch.mm(x[i], a[i].t(), out=out), 2


def up(outer, adds, device):
    """B's output [tokens, outer], alone or added to what stands there."""
    hidden, b = random(TOKENS, RANK, device), random(outer, RANK, device)
    y = random(TOKENS, outer, device)
    if adds:
        return (TOKENS, RANK, outer), lambda i: torch.addmm(y[i], hidden[i], b[i].t(), out=y[i]), 4
    return (TOKENS, RANK, outer), lambda i: torch.mm(hidden[i], b[i].t(), out=y[i]), 2


def gradient(rows, columns, device):
    """dy^T [rows, tokens] times [tokens, columns], in fp32."""
    left, right = random(TOKENS, rows, device), random(TOKENS, columns, device)
    return (rows, TOKENS, columns), lambda i: torch.mm(left[i].t(), right[i], out_dtype=torch.float32), 4


CASES = {
    **{f"x [8192, {inner}] A^T [{inner}, {rank}]": lambda device, inner=inner, rank=rank: down(inner, rank, device)
       for inner in (HIDDEN, INNER) for rank in (RANK, THREE)},
    "hidden [8192, 16] B^T [16, 14336]": lambda device: up(INNER, False, device),
    "y += hidden [8192, 16] B^T [16, 14336]": lambda device: up(INNER, True, device),
    "dB = dy^T [14336, 8192] hidden [8192, 16]": lambda device: gradient(INNER, RANK, device),
    "dA = dhidden^T [48, 8192] x [8192, 4096]": lambda device: gradient(THREE, HIDDEN, device),
}


def copy_rate(device):
    """Bytes a second, read and written."""
    x = random(TOKENS, INNER, device)
    y = torch.empty_like(x[0])
    return 2 * y.nbytes / seconds_of(lambda i: y.copy_(x[i]))


def measure(name, device, peak_bytes, peak_operations):
    (m, k, n), call, bytes_of_result = CASES[name](device)
    call(0)
    seconds = seconds_of(call)
    moved = 2 * (m * k + k * n) + bytes_of_result * m * n
    bytes_rate, rate = moved / seconds, 2 * m * k * n / seconds
    return {"us": round(seconds * 1e6, 1), "gb_per_second": round(bytes_rate / 1e9), "tflops": round(rate / 1e12, 1),
            "of_copy": round(bytes_rate / peak_bytes, 3), "of_product": round(rate / peak_operations, 3)}


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    from run import matrix_rate

    peak_bytes, peak_operations = copy_rate("cuda"), matrix_rate()
    result = {"copy_gb_per_second": round(peak_bytes / 1e9), "product_tflops": round(peak_operations / 1e12, 1)}
    for name in CASES:
        try:
            result[name] = measure(name, "cuda", peak_bytes, peak_operations)
        except RuntimeError as error:  # an operator that does not take these types
            result[name] = {"error": str(error).splitlines()[0]}
        torch.cuda.empty_cache()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
