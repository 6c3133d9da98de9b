#!/usr/bin/env python3
"""The job on transformers + PEFT: bf16, scaled-dot-product attention, activation checkpointing, fused AdamW.
Prints one JSON object: tokens a second, peak memory, losses. A plain loop without data loading: what the libraries
cost at best."""

import argparse
import json
import pathlib
import time

import torch
from transformers import AutoModelForCausalLM

from cases import CASES


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--inputs", required=True, type=pathlib.Path)
    parser.add_argument("--rows", type=int)
    options = parser.parse_args()
    case = CASES[options.case]
    rows = options.rows or case.rows
    model = AutoModelForCausalLM.from_pretrained(
        options.inputs / "model", dtype=torch.bfloat16, attn_implementation="sdpa", device_map={"": 0})
    model.config.use_cache = False
    if case.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
        model.enable_input_require_grads()
    else:
        # Masters in fp32 under autocast, as the Trainer's bf16 trains.
        model = model.float()
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, weight_decay=0.0, fused=True)
    lines = open(options.inputs / "rows.jsonl").read().splitlines()
    ids = torch.tensor([json.loads(line)["input_ids"] for line in lines], device="cuda")
    losses, times = [], []
    torch.cuda.reset_peak_memory_stats()
    for step in range(case.steps):
        batch = ids[[(step * rows + i) % len(ids) for i in range(rows)]]
        # As the Trainer's bf16 does: the branches, fp32 at rest, multiply in bf16.
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        torch.cuda.synchronize()
        times.append(time.perf_counter())
    steady = times[3:]
    seconds = (steady[-1] - steady[0]) / (len(steady) - 1)
    print(json.dumps({"tokens_per_second": rows * case.length / seconds, "step_seconds": seconds, "rows": rows,
                      "peak_mb": torch.cuda.max_memory_allocated() / 1e6, "losses": losses}))


if __name__ == "__main__":
    main()
