"""What a step costs beside its arithmetic: LoRA of a model of 28 layers whose matrices are so small, and rows so short,
that calls, views and allocations are most of it, as they are beside a GPU that waits for its host. Milliseconds of the
processor a step of each program, and of transformers with PEFT in a plain loop, round by round in turn, on one thread;
losses of all programs must agree. Usage: small_steps.py PROGRAM [PROGRAM ...] [--rounds 5] [--no-peer]"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
import tiny_llama

MODEL = dict(tiny_llama.QWEN3, num_hidden_layers=28, hidden_size=64, head_dim=16, intermediate_size=128,
             num_attention_heads=4, num_key_value_heads=2)
TOKENS, RANK, FEW, MANY = 8, 16, 20, 220
# Sums in another order.
TOLERANCE = 1e-6


def rows():
    return [[3 + (row + 5 * i * i) % 250 for i in range(TOKENS)] for row in range(64)]


def run_program(program, folder, steps):
    """Seconds of the processor, losses."""
    output = folder / "output"
    words = [program, "sft", "--model_name_or_path", folder / "model", "--dataset_name", folder / "rows.jsonl", "--output_dir",
             output, "--max_length", TOKENS, "--per_device_train_batch_size", 1, "--max_steps", steps, "--learning_rate",
             "1e-4", "--save_strategy", "no", "--disable_tqdm", "true", "--use_peft", "true", "--lora_r", RANK,
             "--lora_dropout", 0, "--lora_target_modules", "all-linear", "--use_cpu", "true", "--bf16", "false",
             "--gradient_checkpointing", "true", "--logging_steps", 10, "--overwrite_output_dir", "true"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(list(map(str, words)), text=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise SystemExit(f"{program}: found exit code {done.returncode}, expected 0: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = map(json.loads, open(output / "metrics.jsonl"))
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            [line["loss"] for line in lines if "loss" in line])


def run_peer(folder):
    """Milliseconds of a step of the reference, in this process."""
    import peft
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    model = peft.get_peft_model(model, peft.LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear"))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    batches = [torch.tensor([row]) for row in rows()]
    start = 0
    for step in range(60):
        if step == 20:
            start = time.process_time()
        model(input_ids=batches[step % len(batches)], labels=batches[step % len(batches)]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return (time.process_time() - start) / 40 * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="+", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    times = {str(program): [] for program in options.programs}
    losses = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        tiny_llama.save_model(folder / "model", **MODEL)
        (folder / "rows.jsonl").write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in rows()))
        for _ in range(options.rounds):
            for program in map(str, options.programs):
                few, _ = run_program(program, folder, FEW)
                many, losses[program] = run_program(program, folder, MANY)
                times[program].append((many - few) / (MANY - FEW) * 1e3)
            if not options.no_peer:
                times.setdefault("transformers + PEFT", []).append(run_peer(folder))
    first = statistics.median(times[str(options.programs[0])])
    for program, each in times.items():
        median = statistics.median(each)
        print(f"{median:7.2f} ms of the processor a step, {median / first:5.2f} times the first: {program}")
    expected = losses[str(options.programs[0])]
    for program, found in losses.items():
        if any(abs(a - b) > TOLERANCE * abs(b) for a, b in zip(found, expected, strict=True)):
            raise SystemExit(f"{program}: found losses {found}, expected those of the first program, {expected}")


if __name__ == "__main__":
    main()
