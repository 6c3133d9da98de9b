# Oracle: memory that users of other programs measured, as published (docs/guide/memory.md says where
# each difference comes from), and the arithmetic of published sizes.
import json
import re
import subprocess

import pytest

from running import PROGRAM, environment

SHAPES = {
    "Llama-2-7B": dict(vocab_size=32000, hidden_size=4096, intermediate_size=11008,
                       num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=32),
    "Llama-2-13B": dict(vocab_size=32000, hidden_size=5120, intermediate_size=13824,
                        num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=40),
    "Llama-2-70B": dict(vocab_size=32000, hidden_size=8192, intermediate_size=28672,
                        num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8),
    "Llama-3.2-3B": dict(vocab_size=128256, hidden_size=3072, intermediate_size=8192,
                         num_hidden_layers=28, num_attention_heads=24, num_key_value_heads=8,
                         head_dim=128, tie_word_embeddings=True),
}
LORA = ["--use_peft", "--lora_r", 8, "--lora_alpha", 16, "--lora_target_modules", "all-linear",
        "--dtype", "bfloat16"]
QLORA = [*LORA, "--load_in_4bit", "--bnb_4bit_use_double_quant", "--bnb_4bit_compute_dtype",
         "bfloat16"]
ATTENTION_LORA = ["--use_peft", "--lora_target_modules", "q_proj", "v_proj", "--dtype", "bfloat16",
                  "--gradient_checkpointing", "false", "--lora_r"]
GIB = 1.073741824

# model, ranks, rows of a micro-batch, tokens of a row, flags, published GB, plan / published from
# and to.
PUBLISHED = [
    # An A100 of 80 GB has 85.9e9 bytes.
    ("Llama-2-70B", 16, 1, 2048, [], 80 * GIB, 0.95, 1.05),
    ("Llama-2-70B", 8, 8, 2048, LORA, 76, 0.65, 0.75),
    ("Llama-2-70B", 2, 2, 2048, QLORA, 35.6, 0.77, 0.87),
    ("Llama-2-70B", 2, 2, 2048, [*QLORA, "--fsdp_offload_params", "true"], 19.6, 0.44, 0.54),
    ("Llama-2-7B", 2, 1, 512, QLORA, 4.98 * GIB, 0.68, 0.78),
    ("Llama-2-7B", 2, 1, 2048, QLORA, 5.21 * GIB, 0.78, 0.88),
    ("Llama-2-7B", 2, 1, 512, LORA, 10.24 * GIB, 0.75, 0.85),
    ("Llama-2-7B", 2, 1, 2048, LORA, 10.22 * GIB, 0.86, 0.96),
    ("Llama-2-7B", 1, 2, 512, LORA, 15.57 * GIB, 0.85, 0.95),
    ("Llama-2-7B", 1, 1, 4096, QLORA, 9, 0.86, 0.96),
    ("Llama-2-7B", 1, 1, 8192, QLORA, 12, 0.79, 0.89),
    ("Llama-2-7B", 1, 1, 16384, QLORA, 19, 0.68, 0.78),
    ("Llama-2-7B", 1, 1, 32768, QLORA, 32, 0.64, 0.74),
    ("Llama-2-7B", 1, 1, 512, [*ATTENTION_LORA, 8], 21.30, 0.71, 0.81),
    ("Llama-2-13B", 1, 1, 512, [*ATTENTION_LORA, 8], 38.12, 0.73, 0.83),
    ("Llama-3.2-3B", 1, 4, 768, [*ATTENTION_LORA, 32], 13.41 * GIB, 0.88, 0.98),
]


def gigabytes(pattern, text):
    size, unit = re.search(pattern, text, re.M).groups()
    return float(size) / (1000 if unit == "MB" else 1)


def plan(tmp_path, model, ranks, rows, tokens, flags):
    config = dict(model_type="llama", max_position_embeddings=131072, rms_norm_eps=1e-5,
                  torch_dtype="bfloat16", **SHAPES[model])
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["plan", "--model_name_or_path", tmp_path, "--world_size", ranks, "--device", "cuda",
             "--per_device_train_batch_size", rows, "--max_length", tokens, *flags]
    process = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True,
                             env=environment(), timeout=60)
    assert process.returncode == 0, process.stderr
    # What is published is what the framework's allocator held: NCCL's buffers are not in it.
    return gigabytes(r"^peak +(\S+) ([MG]B) at the peak", process.stdout) - \
        gigabytes(r"CUDA context, (\S+) ([MG]B) workspaces", process.stdout), process.stdout


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: "-".join(map(str, row[:4])))
def test_plan_beside_the_published_figure(tmp_path, row):
    model, ranks, rows, tokens, flags, published, low, high = row
    planned, _ = plan(tmp_path, model, ranks, rows, tokens, flags)
    print(f"{model} x{ranks} {rows} x {tokens}: published {published:.2f} planned {planned:.2f} "
          f"ratio {planned / published:.3f}")
    assert low <= planned / published <= high


def test_seventy_billion_in_fp32_take_two_terabytes_when_every_rank_loads_all(tmp_path):
    _, text = plan(tmp_path, "Llama-2-70B", 8, 1, 2048, [])
    parameters = int(re.search(r"^model +(\d+) parameters", text, re.M).group(1))
    assert parameters * 4 * 8 == pytest.approx(2.2e12, rel=0.01)
    # Here a rank holds its eighth.
    at_rest = float(re.search(r"^parameters +(\S+)", text, re.M).group(1))
    assert at_rest == pytest.approx(parameters * 4 / 8 / 1e9, rel=1e-3)
