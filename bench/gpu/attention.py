#!/usr/bin/env python3
"""FlashAttention beside cuDNN's attention, both libtorch's, on the shapes of the cases: bf16, causal, grouped heads.
Prints one JSON object: milliseconds and TFLOP/s of forward and of backward."""

import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cases import CASES


def milliseconds(work):
    """Median of single calls behind two to warm up."""
    times = []
    for repeat in range(12):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[2:])


def measure(case, backend):
    c = case.model_config
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    head = c.get("head_dim", c["hidden_size"] // heads)
    # [rows, tokens, heads, channels] in memory, as projections leave it.
    q, k, v = (torch.randn(case.rows, case.length, count, head, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
               .requires_grad_() for count in (heads, kv, kv))
    gradient = torch.randn_like(q)
    operations = 2 * case.rows * heads * case.length**2 * head  # of the forward pass, causal

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    with sdpa_kernel(backend):
        ahead = milliseconds(forward)
        out = forward()
        back = milliseconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True))
    return {"forward_ms": ahead, "forward_tflops": operations / ahead / 1e9, "backward_ms": back,
            "backward_tflops": 2.5 * operations / back / 1e9}


def main():
    result = {}
    for name in ("llama-3-8b-lora", "llama-1b-full"):
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
            try:
                found = measure(CASES[name], backend)
            except RuntimeError as error:  # a kernel that does not take these shapes
                found = {"error": str(error).splitlines()[0]}
            result[f"{name} {backend.name.lower()}"] = found
    print(json.dumps(result))


if __name__ == "__main__":
    main()
