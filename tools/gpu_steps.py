"""The steps of tools/check_gpu: each is a function of (check, seconds) that returns (passed, what is said of it); None
for `passed` where the machine lacks what it needs."""

import concurrent.futures
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The plan may be this far from what the allocator saw, in percent.
PLAN_TOLERANCE = 5.0
# Of a step's log in logs.txt.
LAST_LINES = {True: 15, False: 150}


class Step:
    """What is done, and for how long at most."""

    def __init__(self, name, seconds, work):
        self.name, self.seconds, self.work = name, seconds, work


class Check:
    """Where things are, and how a step is run."""

    def __init__(self, options):
        self.programs, self.out = options.programs.resolve(), options.out.resolve()
        self.logs = (options.logs or options.out / "logs").resolve()
        for folder in (self.out, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
        (self.out / "logs.txt").write_text("")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="strata-check-"))
        self.checkpoints = pathlib.Path(tempfile.mkdtemp(prefix="strata-check-", dir=folder_for_checkpoints()))
        self.facts = {}
        self.part = f"-part-{options.part}" if options.part else ""
        self.is_emulated = getattr(options, "emulated", False)
        self.kind, self.title = ("emulated-gpu", "Rehearsal on emulated GPUs") if self.is_emulated else ("gpu", "GPU check")

    def close(self):
        for folder in (self.folder, self.checkpoints):
            shutil.rmtree(folder, ignore_errors=True)

    def environment(self):
        # Ranks find a GPU each where they are emulated.
        emulated = {"EMULATED_GPUS": "4"} if self.is_emulated else {}
        return {**emulated, **os.environ, "STRATA_TEST_DEVICE": "cuda", "STRATA_BUILD": str(self.programs),
                "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

    def run(self, name, command, seconds, **variables):
        """(passed, seconds, output); the whole output is kept in a file of its own."""
        start = time.time()
        log = self.logs / f"{name}.log"
        with open(log, "w") as file:
            try:
                code = run_group([str(word) for word in command], seconds, stdout=file, stderr=subprocess.STDOUT,
                                 cwd=ROOT, env={**self.environment(), **variables})
            except OSError as error:
                code = str(error)
        text = log.read_text(errors="replace")
        with open(self.out / "logs.txt", "a") as file:
            file.write(f"==== {name}: exit {code}, {time.time() - start:.0f} s\n")
            file.writelines(line[:400] + "\n" for line in text.splitlines()[-LAST_LINES[code == 0]:])
        return code == 0, time.time() - start, text, code


def folder_for_checkpoints():
    """Memory where there is enough, since a checkpoint of 16 GB is made anew on every machine and a slow disk takes
    minutes for it; None: where temporary files lie."""
    memory = pathlib.Path("/dev/shm")
    try:
        available = int(re.search(r"MemAvailable: *(\d+) kB", pathlib.Path("/proc/meminfo").read_text())[1]) * 1024
        return memory if shutil.disk_usage(memory).free > 24e9 and available > 80e9 else None
    except (OSError, TypeError):
        return None


def run_group(command, seconds, **options):
    """The exit status; a text where there is none in time. What a stopped command had started ends with it: ranks
    that live on would hold the GPU."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"none within {seconds:.0f} s"


def last_lines(text, count=1):
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


def summary_of_gtest(text):
    found = re.findall(r"\[  (?:PASSED|FAILED)  \].*", text)
    return "; ".join(line.strip() for line in found[:4]) or last_lines(text)


def machine(check, seconds):
    passed, _, text, _ = check.run("machine", ["nvidia-smi"], seconds)
    query = "--query-gpu=name,driver_version,memory.total"
    gpu = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout
    env_passed, _, report, _ = check.run("env", [check.programs / "strata", "env", "--json"], seconds)
    build = {}
    if env_passed:
        build = json.loads(report)["build"]
    check.facts = {"gpu": gpu.strip(), "build": build}
    wanted = build.get("usable_gpus", 0) > 0
    return passed and env_passed and wanted, f"{gpu.strip()}; program: {build or last_lines(report)}"


def gtest(program, filter_="*"):
    def work(check, seconds):
        name = f"{program}-{re.sub(r'[^A-Za-z]+', '-', filter_).strip('-') or 'all'}"
        passed, _, text, _ = check.run(name, [check.programs / program, f"--gtest_filter={filter_}"], seconds)
        return passed, summary_of_gtest(text)
    return work


def op_speed(check, seconds):
    passed, _, text, _ = check.run("op-speed", [check.programs / "test_ops", "--perf"], seconds)
    return passed and "cuda" in text, last_lines(text)


def sanitizer(tool):
    def work(check, seconds):
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(program).exists():
            return None, "compute-sanitizer is not on this machine"
        command = [check.programs / "test_ops", "--gtest_filter=OpTable.EqualsDouble:Devices.*"]
        # Our kernels alone: those of libtorch are not ours to prove, and would take most of the time.
        # The option's name differs between versions; where none is known, all kernels.
        help_ = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60)
        words = help_.stdout + help_.stderr
        own = next((option for option in ("--kernel-name kernel_substring=strata", "--kernel-regex kns=strata",
                                          "--filter kns=strata") if option.split()[0] in words), "")
        start = time.time()
        # Every tensor a block of its own, or what lies beyond it would be libtorch's cache.
        blocks = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool == "memcheck" else {}
        for filter_ in dict.fromkeys((own, "")):
            passed, _, text, _ = check.run(f"sanitizer-{tool}", command, seconds - (time.time() - start),
                                           STRATA_RUN_UNDER=f"{program} --tool {tool} {filter_} --error-exitcode 9",
                                           **blocks)
            found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY.*", text)
            if found:
                break
        if not found and "Device not supported" in text:
            return None, "compute-sanitizer does not work on this machine: Device not supported"
        clean = any(re.search(r"SUMMARY: 0 (?:errors|hazards)", line) for line in found)
        return passed and clean, "; ".join(found) or last_lines(text)
    return work


# Tests whose oracle is bitsandbytes, which is not on every machine with a GPU.
OF_BITSANDBYTES = ("tests/parity/test_export.py::test_adapter_over_codes",
                   "tests/parity/test_t5_training.py::test_methods_and_codes[nf4",
                   "tests/parity/test_t5_training.py::test_methods_and_codes[int8")


def pytest(name, *files):
    def work(check, seconds):
        left_out, note = [], ""
        if any(test.startswith(files) for test in OF_BITSANDBYTES) and not importlib.util.find_spec("bitsandbytes"):
            left_out = [f"--deselect={test}" for test in OF_BITSANDBYTES]
            note = "; bitsandbytes is not here: without the tests that compare with it"
        try:
            import xdist  # noqa: F401
            # Most of a test's seconds are those in which a process opens the GPU.
            workers = ["-n", str(min(10, os.cpu_count() or 1))]
        except ImportError:
            workers = []
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-rf", "-p", "no:cacheprovider", *workers,
                   *left_out, *files]
        passed, _, text, _ = check.run(name, command, seconds, OMP_NUM_THREADS="2")
        failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return passed, " | ".join([last_lines(text) + note, *failed[:8]])
    return work


def tiny_inputs(check):
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny_llama

    folder = check.folder / "tiny"
    if not folder.exists():
        tiny_llama.save_model(folder / "model", **tiny_llama.WIDE)
        tiny_llama.save_model(folder / "mixture", **{**tiny_llama.MIXTRAL, "router_aux_loss_coef": 0.1})
        tiny_llama.save_model(folder / "gpt-oss", **tiny_llama.GPT_OSS)
        # Blocks of 32 values in both directions.
        tiny_llama.save_model(folder / "gpt-oss-mxfp4", **{**tiny_llama.GPT_OSS, "hidden_size": 64, "intermediate_size": 96},
                              dtype="bfloat16")
        tiny_llama.pack_experts(folder / "gpt-oss-mxfp4")
        tiny_llama.save_data(folder / "data", "messages", 40, 9)
        tiny_llama.save_data(folder / "pairs", "preference", 40, 9)
    return folder


# Stands for a folder of the run's own.
OWN_FOLDER = "{own folder}"
# What a run's words may begin with: its recipe, and the model and data of tiny_inputs().
JOBS = {"sft": ("sft", "model", "data"), "mixture": ("sft", "mixture", "data"), "dpo": ("dpo", "model", "pairs"),
        "gpt-oss": ("sft", "gpt-oss", "data"), "gpt-oss-mxfp4": ("sft", "gpt-oss-mxfp4", "data"),
        "reward": ("reward", "model", "pairs")}


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
    name_of_sharers = "--sequence_parallel_size"
    sharers = int(flags[flags.index(name_of_sharers) + 1]) if name_of_sharers in flags else 1
    command = [check.programs / "strata", "launch", "--num_processes", world, recipe, "--model_name_or_path",
               folder / model, "--dataset_name", folder / data, "--output_dir", output, "--max_length", 64,
               "--per_device_train_batch_size", 4 * sharers // world, *steps, "--logging_steps", 1,
               "--learning_rate", "5e-3", "--save_strategy", "no", "--disable_tqdm", "true", *flags]
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
    # On a GPU most of a run's seconds are those in which a process opens it; emulated ones are processors.
    with concurrent.futures.ThreadPoolExecutor(min(6, os.cpu_count()) if check.is_emulated else 6) as pool:
        found = {name: pool.submit(losses_of, check, name, seconds, *run, **variables) for name, run in runs.items()}
        return {name: future.result() for name, future in found.items()}


def largest_difference(found, expected):
    if isinstance(found, str) or isinstance(expected, str):
        return float("inf")
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


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
            "reward": (["reward", "--bf16", "false"], 1e-4),
            "reward-lora": (["reward", "--bf16", "false", "--use_peft", "true"], 1e-4),
            "reward-nf4": (["reward", "--bf16", "false", "--use_peft", "true", "--load_in_4bit", "true"], 1e-3),
            "dpo": (["dpo", "--bf16", "false"], 1e-4),
            "dpo-lora": (["dpo", "--bf16", "false", "--use_peft", "true"], 1e-4),
            "dpo-by-tokens": (["dpo", "--bf16", "false", "--loss_type", "sigmoid_norm", "sft"], 1e-4)}
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
    found = {**losses_of_all(check, seconds, {one_rank: (1, "--bf16", "false")}),
             **losses_of_all(check, seconds, runs, **variables)}
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


def attention_speed(check, seconds):
    """Of libtorch's kernels, which the choice between them rests on."""
    passed, _, text, _ = check.run("attention-speed", [sys.executable, ROOT / "bench/gpu/attention.py"], seconds)
    if passed:
        check.facts["attention"] = json.loads(text.strip().splitlines()[-1])
    return passed, last_lines(text)


def inputs_of(check, case):
    """A folder for the checkpoint of the case's model. The disk holds one large model: cases of one model share it,
    and another one's goes."""
    digest = hashlib.sha256(repr((case.model_config, case.length)).encode()).hexdigest()[:12]
    folder = check.checkpoints / f"inputs-{digest}"
    for other in check.checkpoints.glob("inputs-*"):
        if other != folder:
            shutil.rmtree(other)
    return folder


def last_result(text):
    """Of run.py's output: the last line that is one, which a run that was stopped has too; None without one."""
    for line in reversed(text.splitlines()):
        if line.startswith('{"case"'):
            return json.loads(line)
    return None


def bench(case, *more, label="", **variables):
    def work(check, seconds):
        sys.path.insert(0, str(ROOT / "bench" / "gpu"))
        from cases import CASES

        passed, _, text, code = check.run(f"bench-{case}{label}", [sys.executable, ROOT / "bench/gpu/run.py", case,
                                                                   "--strata", check.programs / "strata", "--folder",
                                                                   inputs_of(check, CASES[case]), *more], seconds,
                                          **variables)
        result = last_result(text)
        if result is None:
            return False, f"exit {code}: {last_lines(text)}"
        check.facts.setdefault("bench", {})[case + label] = result
        ours, wanted = result["strata"], CASES[case]
        if "tokens_per_second" not in ours:
            return False, f"{ours}"
        # A variant has no reference of its own: that of the case.
        theirs = check.facts["bench"].get(case, {}).get("peer", {})
        if theirs.get("rows") == ours["rows"]:
            result.setdefault("speed_ratio", ours["tokens_per_second"] / theirs["tokens_per_second"])
        problems = [] if passed else [f"the reference: exit {code}"]
        if not ours.get("breakdown_ms"):
            problems.append("no breakdown")
        if ours["tokens_per_second"] < wanted.wanted_tokens:
            problems.append(f"wanted {wanted.wanted_tokens:.0f} tokens/s")
        if "speed_ratio" in result and result["speed_ratio"] < wanted.wanted_ratio:
            problems.append(f"wanted {wanted.wanted_ratio} times the reference")
        if result.get("model_flops_share", 0) < wanted.wanted_share:
            problems.append(f"wanted {wanted.wanted_share} of the matrix rate")
        if "error" in result.get("peer", {}):
            problems.append(f"the reference: {result['peer']['error']}")
        if result.get("memory_ratio", 0) > 0.7:
            problems.append("wanted 0.7 of the reference's memory")
        # A tiny model's memory is that of libraries.
        if case != "tiny" and not abs(ours.get("plan_error_percent", 100.0)) <= PLAN_TOLERANCE:
            problems.append(f"plan: {ours.get('planned', 'none')}")
        shown = {k: round(result[k], 3) for k in ("speed_ratio", "memory_ratio", "model_flops_share") if k in result}
        text = f"{ours['tokens_per_second']:.0f} tokens/s, {ours['peak_mb'] / 1e3:.2f} GB, {shown}"
        return not problems, "; ".join([text, *problems, *ours["warnings"]])
    return work
