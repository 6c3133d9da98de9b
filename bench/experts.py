"""A mixture of experts, forward and backward with all gradients, beside transformers' Qwen3MoeSparseMoeBlock: the median
of rounds, each program in turn. Usage: experts.py BUILD_FOLDER [--rounds 5]"""

import argparse
import os
import statistics
import subprocess
import time

import torch
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

# Tokens, hidden, intermediate, experts, per token.
SIZES = [(1024, 512, 256, 64, 8), (256, 512, 256, 64, 8), (1024, 1024, 768, 16, 4)]


def reference(sizes, dtype, implementation, rounds):
    tokens, hidden, intermediate, experts, per_token = sizes
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=hidden, moe_intermediate_size=intermediate, num_experts=experts,
                            num_experts_per_tok=per_token, norm_topk_prob=True, experts_implementation=implementation)
    block = Qwen3MoeSparseMoeBlock(config).to(dtype)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.02)
    times = []
    for _ in range(rounds):
        x = torch.randn(1, tokens, hidden, dtype=dtype, requires_grad=True)
        begin = time.perf_counter()
        block(x).sum().backward()
        times.append((time.perf_counter() - begin) * 1e3)
        block.zero_grad(set_to_none=True)
    return times


def ours(program, sizes, dtype, rounds):
    words = [program, *map(str, sizes), str(rounds), str(dtype).removeprefix("torch.")]
    return [float(line) for line in subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    program = os.path.join(args.build, "experts_bench")
    print("| tokens, hidden, intermediate, experts, per token | type | Strata, ms | transformers eager | grouped_mm | ratio |")
    print("|---|---|---|---|---|---|")
    for sizes in SIZES:
        for dtype in (torch.float32, torch.bfloat16):
            times = {"ours": [], "eager": [], "grouped_mm": []}
            for _ in range(args.rounds):  # the first of each turn warms up
                times["ours"] += ours(program, sizes, dtype, 3)[1:]
                for name in ("eager", "grouped_mm"):
                    times[name] += reference(sizes, dtype, name, 3)[1:]
            found = {name: statistics.median(values) for name, values in times.items()}
            best = min(found["eager"], found["grouped_mm"])
            print(f"| {', '.join(map(str, sizes))} | {str(dtype).removeprefix('torch.')} | {found['ours']:.1f} | "
                  f"{found['eager']:.1f} | {found['grouped_mm']:.1f} | {best / found['ours']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
