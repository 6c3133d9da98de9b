"""Steps of tools/check_gpu that say what a test program says: whether there is a GPU, ops beside double, compute-sanitizer,
pytest. Each is a function of (check, seconds), as gpu_check.Step has it."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from gpu_check import last_lines


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
        build = json.loads(report[report.index("{"):])["build"]  # behind what a library may warn of
    check.facts = {"gpu": gpu.strip(), "build": build}
    wanted = build.get("usable_gpus", 0) > 0
    return passed and env_passed and wanted, f"{gpu.strip()}; program: {build or last_lines(report)}"


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
        command = [check.programs / "test_ops", "--gtest_filter=OpTable.EqualsDouble:Devices.*"]
        # Our kernels alone: those of libtorch are not ours to prove, and would take most of the time.
        # The option's name differs between versions; where none is known, all kernels.
        help_ = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60)
        words = help_.stdout + help_.stderr
        own = next((option for option in ("--kernel-name kernel_substring=strata", "--kernel-regex kns=strata",
                                          "--filter kns=strata") if option.split()[0] in words), "")
        # Libraries ask a device for things that it may refuse; that is no error of a kernel.
        own_errors = "--report-api-errors no" if "--report-api-errors" in words else ""
        start = time.time()
        # Every tensor a block of its own, or what lies beyond it would be libtorch's cache.
        blocks = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool == "memcheck" else {}
        for filter_ in dict.fromkeys((own, "")):
            left = seconds - (time.time() - start)
            if filter_ != own and left < 20:
                break
            under = f"{program} --tool {tool} {own_errors} {filter_} --error-exitcode 9"
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
