"""Runs on tiny models for the steps of tools/check_gpu that compare losses: their inputs, their losses, and how far those lie
apart."""

import concurrent.futures
import json
import os
import pathlib
import sys
import time

from gpu_check import ROOT, last_lines


# Families of sft's models, by their names in tests/tiny_llama.py; encoders of texts to classify, in tests/tiny_encoder.py; of
# pairs of texts.
DECODERS = ("BLOOM", "FALCON", "GEMMA2", "GEMMA4", "GEMMA4_SMALL", "GPTJ", "GPT_NEO", "MINICPM3", "MPT", "NEMOTRON", "OLMO", "OPT", "PHI")
ENCODERS = ("albert", "bert", "deberta", "modernbert", "mpnet")
PAIRS = ("t5", "bart")


def save_families(folder):
    """The models of family_parity()."""
    import tiny_bart
    import tiny_encoder
    import tiny_llama
    import tiny_t5

    for name in DECODERS:
        tiny_llama.save_model(folder / name, **getattr(tiny_llama, name))
    for name in ENCODERS:
        tiny_encoder.save_encoder(folder / name, name, drops=0.1)
    tiny_t5.save_t5(folder / "t5", **{**tiny_t5.GATED, "dropout_rate": 0.1})
    tiny_bart.save_bart(folder / "bart", dropout=0.1)
    tiny_t5.save_pairs(folder / "texts")


def tiny_inputs(check):
    sys.path.insert(0, str(ROOT / "tests"))
    import fp8_files
    import int_files
    import tiny_llama

    folder = check.folder / "tiny"
    if not folder.exists():
        tiny_llama.save_model(folder / "model", **tiny_llama.WIDE)
        tiny_llama.save_model(folder / "mixture", **{**tiny_llama.MIXTRAL, "router_aux_loss_coef": 0.1})
        for name, config in (("gpt-oss", tiny_llama.GPT_OSS), ("delta-rule", tiny_llama.QWEN35), ("latents", tiny_llama.DEEPSEEK_V3),
                             ("state-space", tiny_llama.GRANITE_HYBRID), ("convolution", tiny_llama.LFM2_MOE),
                             ("chunks", tiny_llama.LLAMA4)):
            tiny_llama.save_model(folder / name, **config)
        tiny_llama.save_model(folder / "fp8", **tiny_llama.WIDE, dtype="bfloat16")
        fp8_files.store_in_fp8(folder / "fp8", (16, 8))
        tiny_llama.save_model(folder / "gptq", **{**tiny_llama.WIDE, "intermediate_size": 80}, dtype="bfloat16")
        int_files.store_in_ints(folder / "gptq", has_order=True)
        # Blocks of 32 values in both directions.
        tiny_llama.save_model(folder / "gpt-oss-mxfp4", **{**tiny_llama.GPT_OSS, "hidden_size": 64, "intermediate_size": 96},
                              dtype="bfloat16")
        tiny_llama.pack_experts(folder / "gpt-oss-mxfp4")
        tiny_llama.save_data(folder / "data", "messages", 40, 9)
        tiny_llama.save_data(folder / "pairs", "preference", 40, 9)
        tiny_llama.save_data(folder / "labelled", "labelled", 40, 9)
        save_families(folder)
    return folder


# Stands for a folder of the run's own.
OWN_FOLDER = "{own folder}"
# What a run's words may begin with: its recipe, and the model and data of tiny_inputs().
JOBS = {"sft": ("sft", "model", "data"), "mixture": ("sft", "mixture", "data"), "dpo": ("dpo", "model", "pairs"),
        **{name: ("sft", name, "data") for name in ("gpt-oss", "gpt-oss-mxfp4", "fp8", "gptq", "delta-rule", "latents", "state-space",
                                                    "convolution", "chunks")},
        "orpo": ("orpo", "model", "pairs"), "cpo": ("cpo", "model", "pairs"),
        "reward": ("reward", "model", "pairs"), "classify": ("classify", "model", "labelled"),
        **{name: ("sft", name, "data") for name in DECODERS}, **{name: ("classify", name, "labelled") for name in ENCODERS},
        **{name: ("seq2seq", name, "texts") for name in PAIRS}}


def losses_of(check, name, seconds, world, *flags, wanted="", **variables):
    """Of a run (of ten steps, where nothing else is said) on a tiny model, which prints `wanted`; a string says why there
    are none."""
    folder = tiny_inputs(check)
    job, flags = (flags[0], flags[1:]) if flags and flags[0] in JOBS else ("sft", flags)
    recipe, model, data = JOBS[job]
    output = check.folder / name
    own = pathlib.Path(f"{output}-files")
    own.mkdir()
    flags = [own if word == OWN_FOLDER else word for word in flags]
    steps = [] if "--max_steps" in flags else ["--max_steps", 10]
    rate = [] if "--learning_rate" in flags else ["--learning_rate", "5e-3"]
    length = "--max_source_length" if recipe == "seq2seq" else "--max_length"
    name_of_sharers = "--sequence_parallel_size"
    sharers = int(flags[flags.index(name_of_sharers) + 1]) if name_of_sharers in flags else 1
    command = [check.programs / "strata", "launch", "--num_processes", world, recipe, "--model_name_or_path",
               folder / model, "--dataset_name", folder / data, "--output_dir", output, length, 64,
               "--per_device_train_batch_size", 4 * sharers // world, *steps, "--logging_steps", 1, *rate,
               "--save_strategy", "no", "--disable_tqdm", "true", *flags]
    passed, _, text, _ = check.run(name, command, seconds, OMP_NUM_THREADS="2", **variables)
    if not passed:
        return last_lines(text)
    if wanted not in text:
        return f"found no '{wanted}' in what the run printed"
    rows = [row for row in map(json.loads, open(output / "metrics.jsonl")) if "loss" in row]
    # Without libtorch's cache of memory nobody counts it.
    is_counted = "PYTORCH_NO_CUDA_MEMORY_CACHING" not in variables
    took_memory = all(row["device_memory_mb"] > 0 for row in rows) if is_counted else "on cuda:0" in text
    if "--use_cpu" not in flags and not took_memory:
        return "found steps that took no memory of a GPU, expected them to run on one"
    return [row["loss"] for row in rows]


def losses_of_all(check, seconds, runs, **variables):
    """Of several runs side by side: {name: losses_of()}, `runs` {name: (world, *flags)}."""
    tiny_inputs(check)
    end = time.time() + seconds

    def one(name, run):
        left = end - time.time()
        return losses_of(check, name, left, *run, **variables) if left > 1 else "no time was left"

    # On a GPU most of a run's seconds are those in which a process opens it; emulated ones are processors.
    cpus = os.cpu_count() or 1
    at_once = min(6, cpus) if check.is_emulated else max(6, cpus * 5 // 8)
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        found = {name: pool.submit(one, name, run) for name, run in runs.items()}
        return {name: future.result() for name, future in found.items()}


def largest_difference(found, expected):
    if isinstance(found, str) or isinstance(expected, str):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
