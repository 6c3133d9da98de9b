"""A mixture of experts, forward and backward, beside transformers' Qwen3MoeSparseMoeBlock with grouped_mm, its default on
CPUs, round by round in turn. Usage: experts.py BUILD_FOLDER [--rounds 9] [--threads 1 2] [--eager] [--before PROGRAM]"""

import argparse
import os
import statistics
import subprocess
import time
import warnings

import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

# Tokens, hidden, intermediate, experts, per token.
SIZES = [(1024, 512, 256, 64, 8), (256, 512, 256, 64, 8), (1024, 1024, 768, 16, 4)]
MODES = ["trained", "frozen", "lora"]


class Reference:
    def __init__(self, sizes, dtype, mode, implementation, threads):
        tokens, hidden, intermediate, experts, per_token = sizes
        self.shape, self.dtype, self.threads = (1, tokens, hidden), dtype, threads
        torch.manual_seed(0)
        config = Qwen3MoeConfig(hidden_size=hidden, moe_intermediate_size=intermediate, num_experts=experts,
                                num_experts_per_tok=per_token, norm_topk_prob=True, experts_implementation=implementation)
        self.block = torch.nn.ModuleDict({"mlp": Qwen3MoeSparseMoeBlock(config).to(dtype)})
        with torch.no_grad():
            for parameter in self.block.parameters():
                parameter.normal_(0, 0.02)
        self.block.requires_grad_(mode == "trained")
        if mode == "lora":
            names = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
            lora = LoraConfig(r=8, lora_alpha=8, target_modules=[], target_parameters=names, init_lora_weights=False)
            inject_adapter_in_model(lora, self.block)
            self.block.to(dtype)

    def round(self):
        torch.set_num_threads(self.threads)
        x = torch.randn(self.shape, dtype=self.dtype, requires_grad=True)
        cpu, begin = time.process_time(), time.perf_counter()
        self.block["mlp"](x).sum().backward()
        times = (time.perf_counter() - begin) * 1e3, (time.process_time() - cpu) * 1e3
        self.block.zero_grad(set_to_none=True)
        return times


class Ours:
    def __init__(self, program, sizes, dtype, mode, threads):
        words = [program, *map(str, sizes), str(dtype).removeprefix("torch."), mode]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def round(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return tuple(map(float, self.process.stdout.readline().split()))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(parties, rounds):
    for party in parties:  # warms up
        party.round()
    times = [[party.round() for party in parties] for _ in range(rounds)]
    cells = [f"{statistics.median(turn[i][0] for turn in times):.1f}" for i in range(len(parties))]
    for clock in (0, 1):  # wall, processor
        for i in range(1, len(parties)):
            cells.append(f"{statistics.median(turn[i][clock] / turn[0][clock] for turn in times):.2f}")
    return cells


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--modes", nargs="+", default=MODES)
    parser.add_argument("--types", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--sizes", type=int, nargs="+", default=range(len(SIZES)), help="indices")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--before", help="another experts_bench, timed in the same turns")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    others = (["before"] if args.before else []) + ["grouped_mm"] + (["eager"] if args.eager else [])
    ratios = [f"{clock}: {name} / Strata" for clock in ("wall", "CPU") for name in others]
    columns = ["tokens, hidden, intermediate, experts, per token", "type", "experts", "threads", "Strata, ms",
               *(f"{name}, ms" for name in others), *ratios]
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns), flush=True)
    for index in args.sizes:
        sizes = SIZES[index]
        for name in args.types:
            dtype = getattr(torch, name)
            for mode in args.modes:
                for threads in args.threads:
                    ours = [Ours(program, sizes, dtype, mode, threads)
                            for program in (os.path.join(args.build, "experts_bench"), args.before) if program]
                    theirs = [Reference(sizes, dtype, mode, other, threads) for other in others if other != "before"]
                    cells = compare(ours + theirs, args.rounds)
                    for party in ours:
                        party.close()
                    print("| " + " | ".join([", ".join(map(str, sizes)), name, mode, str(threads), *cells]) + " |", flush=True)


if __name__ == "__main__":
    main()
