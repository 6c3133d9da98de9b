"""Steps of tools/check_gpu that say what a test program says: whether there is a GPU, ops beside double, compute-sanitizer,
pytest. Each is a function of (check, seconds), as gpu_check.Step has it."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from gpu_check import available_memory, last_lines


def summary_of_gtest(text):
    found = re.findall(r"\[  (?:PASSED|FAILED)  \].*", text)
    return "; ".join(line.strip() for line in found[:4]) or last_lines(text)


def write_rate(folder, size=1 << 30, most_seconds=10):
    """Bytes a second that reach the disk, of a file of `size`, or of what is written of it in time."""
    block, start, written = os.urandom(1 << 24), time.time(), 0
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        while written < size and time.time() - start < most_seconds:
            written += file.write(block)
            file.flush()
            os.fsync(file.fileno())
    return written / (time.time() - start)


def room(check):
    """What decides how long a checkpoint takes, and whether it fits."""
    said = {"cpus": os.cpu_count(), "available_memory_gb": round(available_memory() / 1e9, 1)}
    for folder in {check.folder.parent, check.checkpoints.parent}:
        try:
            said[str(folder)] = {"free_gb": round(shutil.disk_usage(folder).free / 1e9, 1),
                                 "write_gb_per_second": round(write_rate(folder) / 1e9, 3)}
        except OSError as error:  # a full disk is the answer, not a failure to find it
            said[str(folder)] = {"error": str(error)}
    return said


def machine(check, seconds):
    passed, _, text, _ = check.run("machine", ["nvidia-smi"], seconds)
    query = "--query-gpu=name,driver_version,memory.total"
    gpu = subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout
    env_passed, _, report, _ = check.run("env", [check.programs / "strata", "env", "--json"], seconds)
    build = {}
    if env_passed:
        build = json.loads(report[report.index("{"):])["build"]  # behind what a library may warn of
    check.facts = {"gpu": gpu.strip(), "build": build, "machine": room(check)}
    wanted = build.get("usable_gpus", 0) > 0
    said = f"{gpu.strip()}; program: {build or last_lines(report)}; {check.facts['machine']}"
    return passed and env_passed and wanted, said


def gtest(program, filter_="*"):
    def work(check, seconds):
        name = f"{program}-{re.sub(r'[^A-Za-z]+', '-', filter_).strip('-') or 'all'}"
        passed, _, text, _ = check.run(name, [check.programs / program, f"--gtest_filter={filter_}"], seconds)
        return passed, summary_of_gtest(text)
    return work


def sanitizer(tool):
    def work(check, seconds):
        program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not pathlib.Path(program).exists():
            return None, "compute-sanitizer is not on this machine"
        command = [check.programs / "test_ops", "--gtest_filter=OpTable.EqualsDouble:Devices.*-Devices.Attend*"]
        # Our kernels alone: those of libtorch are not ours to prove, and would take most of the time, as the tests of its
        # attention do (20 s each).
        # The option's name differs between versions; where none is known, all kernels.
        help_ = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60)
        words = help_.stdout + help_.stderr
        own = next((option for option in ("--kernel-name kernel_substring=strata", "--kernel-regex kns=strata",
                                          "--filter kns=strata") if option.split()[0] in words), "")
        # Libraries ask a device for things that it may refuse; that is no error of a kernel.
        own_errors = "--report-api-errors no" if "--report-api-errors" in words else ""
        # The program stands behind env (tools/bundle_launcher).
        follows = "--target-processes all" if "--target-processes" in words else ""
        start = time.time()
        # Every tensor a block of its own, or what lies beyond it would be libtorch's cache.
        blocks = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool == "memcheck" else {}
        for filter_ in dict.fromkeys((own, "")):
            left = seconds - (time.time() - start)
            if filter_ != own and left < 20:
                break
            under = f"{program} --tool {tool} {follows} {own_errors} {filter_} --error-exitcode 9"
            passed, _, text, _ = check.run(f"sanitizer-{tool}{'' if filter_ else '-all'}", command, left,
                                           STRATA_RUN_UNDER=under, **blocks)
            found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY.*", text)
            if found:
                break
        if not found and "Device not supported" in text:
            return None, "compute-sanitizer does not work on this machine: Device not supported"
        clean = all(re.search(r"SUMMARY: 0 (?:errors|hazards)", line) for line in found)
        return passed and clean and bool(found), "; ".join(found) or last_lines(text)
    return work


# Tests whose oracle is bitsandbytes, which is not on every machine with a GPU.
OF_BITSANDBYTES = ("tests/parity/test_export.py::test_adapter_over_codes",
                   "tests/parity/test_t5_training.py::test_methods_and_codes[nf4",
                   "tests/parity/test_t5_training.py::test_methods_and_codes[int8")


# Tests whose oracle was another in older transformers (seen: 5.17 without Gemma 2's caps of scores where SDPA attends; on a CPU
# it differs by the same numbers).
OF_NEW_TRANSFORMERS = ("tests/parity/test_llama.py::test_equals_transformers[gemma2-float32-0.15-1e-05]",
                       "tests/parity/test_llama.py::test_equals_transformers[gpt_oss_limits-float32-0.15-1e-05]",
                       "tests/parity/test_lora.py::test_equals_peft[float32-0.08-1e-05-gemma2]")
NEW_TRANSFORMERS = (5, 23)


def has_new_transformers():
    try:
        return tuple(map(int, importlib.metadata.version("transformers").split(".")[:2])) >= NEW_TRANSFORMERS
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return True  # or a version that says nothing: the tests will


# Of the parity tests a case of each kind (rotation, norm, window, experts; branch, what it lies on): all of them take
# ten minutes.
PARITY_MODELS = ("plain", "grouped_heads_odd_head_dim", "tied", "biases", "rope_dynamic", "rope_llama3", "rope_yarn",
                 "rope_longrope_long", "mistral", "mistral_long_documents", "qwen2", "qwen3",
                 "qwen3_named_layers_with_window", "gemma", "gemma2", "gemma3", "gemma3_every_second", "gemma4", "gemma4_small",
                 "qwen3_5", "qwen3_5_long_documents", "qwen3_next", "phi3",
                 "phi3_window", "granite", "smollm3", "smollm3_windows", "olmo2", "olmo3", "apertus", "arcee", "hunyuan",
                 "ministral3", "gpt2", "bigcode", "glm",
                 "glm4", "gpt_neox", "gpt_neox_one_after_the_other", "qwen3_moe", "qwen2_moe", "mixtral",
                 "mixtral_window", "glm4_moe", "gpt_oss", "gpt_oss_limits", "prompt", "prefix",
                 "prefix_of_shared_heads", "prefix_before_a_window", "prompt_of_gemma2")
PARITY_BRANCHES = ("default_targets", "all_linear", "biased_base", "output_layer", "save_embedding", "save_tied_both",
                   "embedding", "tokens", "tokens_of_a_tied_head", "rslora", "dora", "dora_head", "dora_embedding",
                   "pissa", "ia3", "ia3_head", "vera", "phi3", "gemma2", "gpt2", "gpt2_dora", "bigcode", "neox",
                   "neox_head", "opt_all", "cohere_all", "phi_head", "stablelm", "falcon_all", "bloom_all",
                   "glm4_ia3", "glm4_moe", "olmo3_all", "apertus_all", "gemma4_all", "qwen3_5_all")
FEW_PARITY = " or ".join([*(f"[{name}-" for name in PARITY_MODELS), *(f"-{name}]" for name in PARITY_BRANCHES),
                          "bit_equal", "packed_documents", "figures_of_the_loss", "initial_values_of_a"])


def summary_of_pytest(text, code):
    """Counted line by line, since what is stopped says nothing at its end; workers put their names ahead of a result."""
    found = re.findall(r"^(?:\S+::.*|\[gw\d+\] \[ *\d+%\]) (PASSED|FAILED|ERROR|SKIPPED)\b", text, re.M)
    failed = found.count("FAILED") + found.count("ERROR")
    said = f"{found.count('PASSED')} passed, {failed} failed"
    if isinstance(code, int) and code in (0, 1):
        return said
    # Workers say "[9 items]", pytest alone "collected 12 items / 3 deselected / 9 selected".
    numbers = re.findall(r"\[(\d+) items?\]|collected (\d+) items?|(\d+) selected", text)
    wanted = next((number for number in reversed(numbers[-1]) if number), "?") if numbers else "?"
    return f"{said}, stopped at {len(found)} of {wanted}"


# Of a step's seconds, for what pytest says of failed tests when it is asked to end.
SECONDS_TO_END = 15


def pytest(name, *files, only=None):
    def work(check, seconds):
        left_out, note = [], ""
        if any(test.startswith(files) for test in OF_BITSANDBYTES) and not importlib.util.find_spec("bitsandbytes"):
            left_out = [f"--deselect={test}" for test in OF_BITSANDBYTES]
            note = "; bitsandbytes is not here: without the tests that compare with it"
        if any(test.startswith(files) for test in OF_NEW_TRANSFORMERS) and not has_new_transformers():
            left_out += [f"--deselect={test}" for test in OF_NEW_TRANSFORMERS]
            note += f"; transformers is older than {'.'.join(map(str, NEW_TRANSFORMERS))}: without the tests that it fails"
        # Most of a test's seconds are those in which a process opens the GPU. A test has up to three ranks: as many workers
        # as processors (14 of 16) ended no test in 40 s.
        has_workers = importlib.util.find_spec("xdist")
        workers = ["-n", str(min(6, (os.cpu_count() or 1) // 2 or 1))] if has_workers else []
        # Its own processes end it behind that; --foreground: they do not get the signal.
        ends = ["timeout", "--foreground", "--signal=INT", f"{max(seconds - SECONDS_TO_END, 1):.0f}"]
        chosen = ["-k", only] if only else []
        command = [*ends, sys.executable, "-m", "pytest", "-v", "--tb=short", "--no-header", "-rf", "-p",
                   "no:cacheprovider", *workers, *chosen, *left_out, *files]
        passed, _, text, code = check.run(name, command, seconds, OMP_NUM_THREADS="2")
        failed = [line for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return passed, " | ".join([summary_of_pytest(text, code) + note, *failed[:8]])
    return work
