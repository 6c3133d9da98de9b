"""Steps of tools/check_gpu --emulated that a real GPU does not need: what emulated ones (tests/emulated_gpu) hold a run
to, and ranks with a GPU each."""

import concurrent.futures
import json
import os
import re
import sys

from gpu_check import PLAN_TOLERANCE, ROOT, last_lines
from gpu_run_steps import STRATEGIES, cpu_parity, ranks_beside_one
from gpu_test_steps import summary_of_gtest
from gpu_tiny_runs import OWN_FOLDER, largest_difference, losses_of, tiny_inputs

# Of the plan, for cuBLAS, which emulated GPUs do not need.
WORKSPACE_MB = (64 << 20) / 1e6


def emulated_machine(check, seconds):
    passed, _, report, _ = check.run("env", [check.programs / "strata", "env", "--json"], seconds)
    build = json.loads(report)["build"] if passed else {}
    check.facts = {"gpu": "emulated", "build": build}
    return passed and build["usable_gpus"] == 4, f"program: {build or last_lines(report)}"


def separate_gpus(check, seconds):
    """Ranks with a GPU each: NCCL, its stream and what overlaps."""
    runs = {f"{name}-{world}": (world, "--bf16", "false", "--fsdp_sharding_strategy", name)
            for name in STRATEGIES for world in (2, 4)}
    more = {"offload": ("--fsdp_offload_params", "true"), "activations": ("--activation_offloading", "true"),
            "nodes": ("--fsdp_sharding_strategy", "HYBRID_SHARD", "--dp_replicate_size", "2"),
            "no-checkpointing": ("--gradient_checkpointing", "false"),
            "files": ("--offload_param_device", "nvme", "--offload_param_nvme_path", OWN_FOLDER),
            "late-prefetch": ("--fsdp_backward_prefetch", "BACKWARD_POST"),
            "shared-rows": ("--sequence_parallel_size", "4"),
            "shared-rows-of-two": ("--sequence_parallel_size", "2", "--fsdp_sharding_strategy", "ZERO2")}
    runs.update({name: (4, "--bf16", "false", *flags) for name, flags in more.items()})
    return ranks_beside_one(check, seconds, "separate", runs, wanted="(nccl)")


def strict(check, seconds):
    """Every tensor a block of its own, whose ends are watched, and nothing used before it is written."""
    return cpu_parity(check, seconds, "strict-", EMULATED_GPU_STRICT="1", PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def forgotten_waits(check, seconds):
    """Waits left out one by one: where no other wait orders the same accesses, the run must end with their names. A
    third of them has no such double in a step of two ranks."""
    flags = (2, "--bf16", "false", "--max_steps", "1")
    numbers = range(1, 37)
    tiny_inputs(check)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = [pool.submit(losses_of, check, f"forgotten-{n}", seconds, *flags, EMULATED_GPU_FORGETS=str(n))
                for n in numbers]
        found = sum(isinstance(run.result(), str) for run in runs)
    named = sum("nothing orders them" in (check.logs / f"forgotten-{n}.log").read_text() for n in numbers)
    return found == named and named >= len(numbers) // 3, f"{named} of {len(numbers)} waits are missed by name"


# Rows of one length, long enough for cuDNN's attention, and heads of a size that it takes.
ROW, HEADS = 512, {"head_dim": 64}
# The values of both kernels are emulated from one definition: only what lies around them can differ.
ATTENTION_TOLERANCE = 1e-4


def hopper_inputs(check):
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny_llama

    folder = check.folder / "hopper"
    tiny_llama.save_model(folder / "model", **tiny_llama.WIDE, **HEADS)
    config = folder / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 2 * ROW}))
    with open(folder / "rows.jsonl", "w") as file:
        for row in range(8):
            file.write(json.dumps({"input_ids": [3 + (row + 5 * i * i) % 250 for i in range(ROW)]}) + "\n")
    return folder


def hopper_losses(check, seconds, folder, name, kernel, *flags, **variables):
    """Of a run on an emulated H100, whose attention goes through `kernel` alone; a string says why there are none."""
    output = check.folder / name
    command = [check.programs / "strata", "sft", "--model_name_or_path", folder / "model", "--dataset_name",
               folder / "rows.jsonl", "--output_dir", output, "--max_length", ROW, "--per_device_train_batch_size", 2,
               "--max_steps", 3, "--logging_steps", 1, "--learning_rate", "5e-3", "--save_strategy", "no",
               "--disable_tqdm", "true", *flags]
    passed, _, text, _ = check.run(name, command, seconds, OMP_NUM_THREADS="2", EMULATED_GPU_CAPABILITY="9.0",
                                   EMULATED_GPU_TRACE="1", **variables)
    if not passed:
        return last_lines(text)
    kernels = set(re.findall(r": (cuDNN's attention|FlashAttention)(?:'s gradient)?: reads", text))
    if kernels != {kernel} or f"{kernel}'s gradient" not in text:
        return f"found {sorted(kernels)} in the trace, expected {kernel} and its gradient"
    return [row["loss"] for row in map(json.loads, open(output / "metrics.jsonl")) if "loss" in row]


def hopper(check, seconds):
    """cuDNN's attention on an emulated H100: cuDNN itself takes the graphs and compiles its kernels for it; the values
    beside double, and losses beside FlashAttention's."""
    passed, _, text, _ = check.run("hopper-ops", [check.programs / "test_ops", "--gtest_filter=Devices.Attend*"], seconds,
                                   EMULATED_GPU_CAPABILITY="9.0", EMULATED_GPU_TRACE="1")
    said, wrong = [summary_of_gtest(text)], []
    if not passed or "cuDNN's attention's gradient: reads" not in text:
        wrong.append("the op tests did not pass through cuDNN's attention")
    folder = hopper_inputs(check)
    rows = {"bf16": ("--bf16", "true"), "fp16": ("--bf16", "false", "--fp16", "true"),
            "lora": ("--bf16", "true", "--use_peft", "true", "--gradient_checkpointing", "false")}
    for name, flags in rows.items():
        ours = hopper_losses(check, seconds, folder, f"hopper-{name}", "cuDNN's attention", *flags)
        theirs = hopper_losses(check, seconds, folder, f"hopper-{name}-flash", "FlashAttention", *flags,
                               STRATA_ATTENTION="flash")
        difference = largest_difference(ours, theirs)
        said.append(f"{name} {difference:.1e}")
        if not difference <= ATTENTION_TOLERANCE:
            wrong.append(f"{name}: {ours} beside {theirs}")
    return not wrong, "; ".join(said + wrong)


def plan(check, seconds):
    """What libtorch's allocator counted beside the plan, on the model of tests/memory_table.py."""
    sys.path.insert(0, str(ROOT / "tests"))
    import memory_table

    folder = check.folder / "plan"
    folder.mkdir()
    memory_table.save_model(folder)
    memory_table.save_data(folder)
    rows = {"full": (1, "--bf16", "false", "--gradient_checkpointing", "false"),
            "full-bf16": (2, "--bf16", "true"),
            "deterministic": (1, "--bf16", "true", "--full_determinism", "true"),
            "nf4": (2, "--bf16", "true", "--use_peft", "true", "--load_in_4bit", "true"),
            "offload": (2, "--bf16", "true", "--fsdp_offload_params", "true")}
    said, wrong = [], []
    for name, (world, *flags) in rows.items():
        command = [check.programs / "strata", "launch", "--num_processes", world, "sft", "--model_name_or_path", folder,
                   "--dataset_name", folder / "train.jsonl", "--output_dir", check.folder / f"plan-{name}", "--packing",
                   "true", "--packing_strategy", "wrapped", "--max_length", 128, "--per_device_train_batch_size", 2,
                   "--max_steps", 2, "--save_strategy", "no", "--disable_tqdm", "true", *flags]
        passed, _, text, _ = check.run(f"plan-{name}", command, seconds, OMP_NUM_THREADS="1")
        found = re.search(r"memory of cuda:0: planned ([0-9.]+) MB, measured ([0-9.]+) MB", text)
        if not passed or not found:
            wrong.append(f"{name}: {last_lines(text)}")
            continue
        planned, measured = float(found[1]) - WORKSPACE_MB, float(found[2])
        difference = 100 * (measured / planned - 1)
        said.append(f"{name} {planned:.1f} MB, measured {difference:+.1f} %")
        if abs(difference) > PLAN_TOLERANCE:
            wrong.append(f"{name}: more than {PLAN_TOLERANCE} %")
    return not wrong, "; ".join(said + wrong)
