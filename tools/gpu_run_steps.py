"""Steps of tools/check_gpu that compare runs on tiny models: on the CPU and on a GPU, of several ranks and of one, twice the
same, and one that the GPU has no room for. Each is a function of (check, seconds), as gpu_check.Step has it."""

import json
import subprocess
import sys
import time

from gpu_check import last_lines
from gpu_tiny_runs import DECODERS, ENCODERS, OWN_FOLDER, PAIRS, largest_difference, losses_of_all, tiny_inputs


def cpu_parity(check, seconds, prefix="", **variables):
    """The same run on the CPU and on the GPU, for what no reference on this machine can compute."""
    rows = {"full": (["--bf16", "false"], 1e-4),
            "full-bf16": (["--bf16", "true"], 2e-2),
            "full-fp16": (["--bf16", "false", "--fp16", "true"], 2e-2),
            "adamw-8bit": (["--bf16", "false", "--optim", "adamw_8bit"], 2e-2),
            "lora": (["--bf16", "false", "--use_peft", "true"], 1e-4),
            "dora": (["--bf16", "false", "--use_peft", "true", "--use_dora", "true"], 1e-4),
            "lora-dropout": (["--bf16", "false", "--use_peft", "true", "--lora_dropout", "0.2"], 1e-4),
            "nf4": (["--bf16", "false", "--use_peft", "true", "--load_in_4bit", "true"], 1e-3),
            "nf4-double": (["--bf16", "false", "--use_peft", "true", "--load_in_4bit", "true",
                            "--bnb_4bit_use_double_quant", "true"], 1e-3),
            "fp4": (["--bf16", "false", "--use_peft", "true", "--load_in_4bit", "true", "--bnb_4bit_quant_type",
                     "fp4"], 1e-3),
            "int8": (["--bf16", "false", "--use_peft", "true", "--load_in_8bit", "true"], 1e-3),
            "vera": (["--bf16", "false", "--use_peft", "true", "--peft_type", "VERA"], 1e-4),
            "ia3": (["--bf16", "false", "--use_peft", "true", "--peft_type", "IA3"], 1e-4),
            "prompt": (["--bf16", "false", "--use_peft", "true", "--peft_type", "PROMPT_TUNING",
                        "--num_virtual_tokens", "5"], 1e-4),
            "prefix": (["--bf16", "false", "--use_peft", "true", "--peft_type", "PREFIX_TUNING",
                        "--num_virtual_tokens", "3"], 1e-4),
            "tokens": (["--bf16", "false", "--use_peft", "true", "--trainable_token_indices", "[3, 17]"], 1e-4),
            "adafactor": (["--bf16", "false", "--optim", "adafactor"], 1e-3),
            "packed": (["--bf16", "false", "--packing", "true", "--packing_strategy", "bfd"], 1e-4),
            "no-checkpointing": (["--bf16", "false", "--gradient_checkpointing", "false"], 1e-4),
            "selective": (["--bf16", "false", "--activation_checkpointing", "selective"], 1e-4),
            "attention": (["--bf16", "false", "--activation_checkpointing", "attention"], 1e-4),
            "auto": (["--bf16", "false", "--activation_checkpointing", "auto"], 1e-4),
            "activations-away": (["--bf16", "false", "--activation_offloading", "true"], 1e-4),
            "offload": (["--bf16", "false", "--fsdp_offload_params", "true"], 1e-4),
            "offload-sums": (["--bf16", "false", "--fsdp_offload_params", "true", "--gradient_accumulation_steps", "2"], 1e-4),
            "files": (["--bf16", "false", "--offload_param_device", "nvme", "--offload_param_nvme_path", OWN_FOLDER],
                      1e-4),
            "mixture": (["mixture", "--bf16", "false"], 1e-4),
            "mixture-lora": (["mixture", "--bf16", "false", "--use_peft", "true", "--lora_target_modules", "all-linear",
                              "--lora_dropout", "0"], 1e-4),
            "gpt-oss": (["gpt-oss", "--bf16", "false"], 1e-4),
            "gpt-oss-bf16": (["gpt-oss", "--bf16", "true"], 2e-2),
            "gpt-oss-lora": (["gpt-oss", "--bf16", "false", "--use_peft", "true", "--lora_target_modules", "all-linear"],
                             1e-4),
            "gpt-oss-mxfp4": (["gpt-oss-mxfp4", "--bf16", "true", "--use_peft", "true", "--lora_target_modules",
                               "all-linear"], 2e-2),
            "gpt-oss-experts": (["gpt-oss-mxfp4", "--bf16", "false", "--use_peft", "true", "--lora_dropout", "0",
                                 "--lora_target_modules", "q_proj", "--lora_target_parameters",
                                 "mlp.experts.gate_up_proj", "mlp.experts.down_proj"], 1e-4),
            "fp8": (["fp8", "--bf16", "false"], 1e-4),
            "fp8-lora": (["fp8", "--bf16", "true", "--use_peft", "true", "--lora_target_modules", "all-linear"], 2e-2),
            "fp8-nf4": (["fp8", "--bf16", "false", "--use_peft", "true", "--load_in_4bit", "true"], 1e-3),
            "gptq-lora": (["gptq", "--bf16", "true", "--use_peft", "true", "--lora_target_modules", "all-linear"], 2e-2),
            # At the others' rate half a rounding of its weights (6e-8) moves the tenth loss by 2e-3 on the CPU itself, at
            # this one by at most 1.2e-5.
            "delta-rule": (["delta-rule", "--bf16", "false", "--learning_rate", "3e-4"], 1e-4),
            "delta-rule-bf16": (["delta-rule", "--bf16", "true", "--learning_rate", "3e-4"], 2e-2),
            "latents": (["latents", "--bf16", "false"], 1e-4),
            "state-space": (["state-space", "--bf16", "false"], 1e-4),
            "state-space-bf16": (["state-space", "--bf16", "true"], 2e-2),
            "convolution": (["convolution", "--bf16", "false"], 1e-4),
            "chunks": (["chunks", "--bf16", "false"], 1e-4),
            "reward": (["reward", "--bf16", "false"], 1e-4),
            "reward-lora": (["reward", "--bf16", "false", "--use_peft", "true"], 1e-4),
            "reward-nf4": (["reward", "--bf16", "false", "--use_peft", "true", "--load_in_4bit", "true"], 1e-3),
            "classify": (["classify", "--bf16", "false"], 1e-4),
            "classify-nf4": (["classify", "--bf16", "false", "--use_peft", "true", "--load_in_4bit", "true"], 1e-3),
            "dpo": (["dpo", "--bf16", "false"], 1e-4),
            "dpo-lora": (["dpo", "--bf16", "false", "--use_peft", "true"], 1e-4),
            "dpo-by-tokens": (["dpo", "--bf16", "false", "--loss_type", "sigmoid_norm", "sft"], 1e-4),
            "dpo-weighted": (["dpo", "--bf16", "false", "--use_weighting", "true"], 1e-4),
            "dpo-followed": (["dpo", "--bf16", "false", "--sync_ref_model", "true", "--ref_model_sync_steps", "3"], 1e-4),
            "orpo": (["orpo", "--bf16", "false"], 1e-4),
            "simpo-lora": (["cpo", "--bf16", "false", "--loss_type", "simpo", "--use_peft", "true"], 1e-4)}
    return equal_on_the_cpu(check, seconds, rows, prefix, **variables)


def family_parity(check, seconds):
    """As cpu_parity(), for families whose attention, norms or positions are not Llama's; dropout is on."""
    # At a high rate the losses are those of chaos on any processor.
    slow = ["--learning_rate", "3e-4"]
    rows = {name: ([name, "--bf16", "false", *slow], 1e-4) for name in (*DECODERS, *ENCODERS, *PAIRS)}
    rows |= {f"{name}-bf16": ([name, "--bf16", "true", *slow], 2e-2) for name in ("BLOOM", "GEMMA2", "deberta", "modernbert", "t5", "bart")}
    rows["deberta-lora"] = (["deberta", "--bf16", "false", "--use_peft", "true", *slow], 1e-4)
    return equal_on_the_cpu(check, seconds, rows, "family-")


def equal_on_the_cpu(check, seconds, rows, prefix, **variables):
    """`rows` {name: (words of losses_of(), largest relative difference)}."""
    runs = {}
    for name, (flags, _) in rows.items():
        runs[f"{prefix}cpu-{name}"] = (1, *flags, "--use_cpu", "true")
        runs[f"{prefix}cuda-{name}"] = (1, *flags)
    found, wrong = losses_of_all(check, seconds, runs, **variables), []
    for name, (_, limit) in rows.items():
        ours = found[f"{prefix}cuda-{name}"]
        difference = largest_difference(ours, found[f"{prefix}cpu-{name}"])
        if not difference <= limit:
            wrong.append(f"{name}: {difference:.1e} > {limit:.0e} ({ours if isinstance(ours, str) else ''})")
    return not wrong, "; ".join(wrong) or f"{len(rows)} kinds of run equal those on the CPU"


STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "ZERO1", "ZERO2")


def ranks_beside_one(check, seconds, name, runs, **variables):
    """Every run beside one rank: `runs` {name: (world, *flags)}."""
    runs = {f"{name}-{run}": words for run, words in runs.items()}
    one_rank = f"{name}-one-rank"
    end = time.time() + seconds
    found = losses_of_all(check, seconds, {one_rank: (1, "--bf16", "false")})
    found |= losses_of_all(check, end - time.time(), runs, **variables)
    wrong = []
    for run in runs:
        difference = largest_difference(found[run], found[one_rank])
        if not difference <= 1e-4:
            wrong.append(f"{run}: {difference:.1e} ({found[run] if isinstance(found[run], str) else ''})")
    return not wrong, "; ".join(wrong) or f"{len(runs)} runs equal one rank: {', '.join(runs)}"


def shared_gpu(check, seconds):
    """Two ranks on one GPU, through host memory."""
    runs = {name: (2, "--bf16", "false", "--fsdp_sharding_strategy", name) for name in STRATEGIES}
    runs["rows"] = (2, "--bf16", "false", "--sequence_parallel_size", "2")
    return ranks_beside_one(check, seconds, "shared", runs, EMULATED_GPUS="1")


def determinism(check, seconds):
    run = (1, "--bf16", "true", "--full_determinism", "true")
    first, second = losses_of_all(check, seconds, {"same-1": run, "same-2": run}).values()
    return first == second and not isinstance(first, str), "equal to the bit" if first == second else f"{first} {second}"


# Takes the GPU's memory but 3 GiB, says so, and keeps it until its input ends.
HOLD_MEMORY = """import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (3 << 30), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


def out_of_memory(check, seconds):
    """An error that names the plan, not a crash: rows that what another program leaves of the GPU does not hold."""
    folder = tiny_inputs(check)
    lines = folder / "long.jsonl"
    with open(lines, "w") as file:
        for _ in range(1024):
            file.write(json.dumps({"input_ids": [5] * 2048}) + "\n")
    command = [check.programs / "strata", "sft", "--model_name_or_path", folder / "model", "--dataset_name", lines,
               "--output_dir", check.folder / "oom", "--max_length", 2048, "--per_device_train_batch_size", 1024,
               "--max_steps", 1, "--bf16", "true", "--gradient_checkpointing", "false", "--disable_tqdm", "true"]
    holder = subprocess.Popen([sys.executable, "-c", HOLD_MEMORY], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True)
    try:
        if holder.stdout.readline().strip() != "held":
            return False, "the GPU's memory could not be taken"
        passed, _, text, code = check.run("out-of-memory", command, seconds)
    finally:
        holder.communicate()
    said = "memory of cuda:0: found" in text
    return not passed and said and code == 1, last_lines(text)
