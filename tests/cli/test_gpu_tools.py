# Oracle: what the tools for GPUs say and do on a machine without one, traces made by hand, and
# published numbers of parameters.
import dataclasses
import importlib.machinery
import importlib.util
import json
import math
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import time
import types

import pytest

from running import PROGRAM, ROOT, base_flags, run_strata

sys.path[:0] = [str(ROOT / "bench" / "gpu"), str(ROOT / "tools")]
import breakdown
import cases
import gpu_check
import gpu_speed_steps
import gpu_test_steps
import gpu_tiny_runs
import predict
import run as gpu_bench


def test_check_gpu_says_that_there_is_none(tmp_path):
    """An empty PATH holds no nvidia-smi, whatever the machine has."""
    run = subprocess.run([sys.executable, ROOT / "tools/check_gpu", "--out", tmp_path / "out"],
                         capture_output=True, text=True, env={**os.environ, "PATH": str(tmp_path)})
    assert run.returncode == 3
    assert "found no NVIDIA GPU" in run.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["llama-1b-full", "llama-3-8b-lora", "qwen-3-8b-lora"])
def test_a_prediction_counts_the_operations_that_the_share_is_of(name):
    case, chip = cases.CASES[name], predict.Chip()
    count = predict.Step(case, 4, chip, predict.Engine()).run()
    operations = count.seconds["products"] * chip.products * chip.reached
    assert operations == pytest.approx(4 * case.length * cases.operations_a_token(case))


def test_check_gpu_names_an_unknown_step():
    run = subprocess.run([sys.executable, ROOT / "tools/check_gpu", "--steps", "ops,nothing"],
                         capture_output=True, text=True)
    assert run.returncode == 2 and "found no step nothing" in run.stderr


@pytest.fixture
def check_gpu():
    """The tool as a module; its name has no ending that Python knows."""
    loader = importlib.machinery.SourceFileLoader("check_gpu", str(ROOT / "tools/check_gpu"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_gpu", loader))
    loader.exec_module(module)
    return module


def test_the_parts_of_check_gpu_are_all_steps(check_gpu):
    """Who runs the parts would miss a step that stands in none. A part is a job of ten minutes with its start."""
    assert check_gpu.PARTS.keys() == check_gpu.PART_SECONDS.keys()
    assert max(check_gpu.PART_SECONDS.values()) < 600
    parts = [part.split(",") for part in check_gpu.PARTS.values()]
    assert all(part[0] == "machine" for part in parts)
    of_parts = ["machine", *(name for part in parts for name in part[1:]), "parity-all"]
    assert sorted(of_parts) == sorted(step.name for step in check_gpu.STEPS)


def test_every_long_proof_gets_its_turn(check_gpu):
    """A step leaves those behind it what they may ask for, and takes what those before it have left."""
    steps = {step.name: step for step in check_gpu.STEPS}
    proofs = [steps[name] for name in check_gpu.PARTS["3"].split(",")]
    left = check_gpu.PART_SECONDS["3"]
    assert sum(step.seconds for step in proofs) <= left
    for i, step in enumerate(proofs):  # each takes all that it gets
        given = check_gpu.seconds_of(step, proofs[i + 1:], left)
        assert given >= step.seconds
        left -= given
    step = check_gpu.Step("long", 100, None)
    assert check_gpu.seconds_of(step, [check_gpu.Step("later", 50, None)], 400) == 350
    assert check_gpu.seconds_of(step, [check_gpu.Step("later", 500, None)], 400) == 100
    assert check_gpu.seconds_of(step, [], 30) == 30


def test_a_stopped_pytest_says_how_far_it_came(tmp_path):
    """What pytest 9 and xdist 3.8 print; a summary at the end is not counted again."""
    alone = ("collecting ... collected 13 items / 7 deselected / 6 selected\n"
             "t.py::test[a] PASSED   [ 16%]\nt.py::test[b] FAILED   [ 33%]\nt.py::test[c] \n"
             "FAILED t.py::test[b] - AssertionError\n2026-11-27 10:00 ERROR of a log\n")
    assert gpu_test_steps.summary_of_pytest(alone, 124) == "1 passed, 1 failed, stopped at 2 of 6"
    workers = ("created: 2/2 workers\n2 workers [753 items]\nt.py::test[a] \n[gw0] [  1%] PASSED t.py::test[a] \n"
               "[gw1] [  1%] SKIPPED t.py::test[b] \n[gw1] [  2%] ERROR t.py::test[c] \n")
    assert gpu_test_steps.summary_of_pytest(workers, "none within 9 s") == "1 passed, 1 failed, stopped at 3 of 753"
    assert gpu_test_steps.summary_of_pytest(workers, 1) == "1 passed, 1 failed"
    assert gpu_test_steps.summary_of_pytest("", 124) == "0 passed, 0 failed, stopped at 0 of ?"


def test_pytest_is_asked_to_end_before_it_is_killed(tmp_path, monkeypatch):
    """So that it says what failed, and how."""
    (tmp_path / "test_slow.py").write_text("import time\ndef test_first(): assert 1 == 2\n"
                                           "def test_second(): time.sleep(60)\n")
    monkeypatch.setattr(gpu_test_steps, "SECONDS_TO_END", 20)
    check = gpu_check.Check(types.SimpleNamespace(programs=tmp_path, out=tmp_path / "out", logs=tmp_path, part=None))
    passed, text = gpu_test_steps.pytest("slow", str(tmp_path / "test_slow.py"))(check, 80)
    check.close()
    assert not passed and text.startswith("0 passed, 1 failed, stopped at 1 of 2 | FAILED"), text
    assert "assert 1 == 2" in (tmp_path / "slow.log").read_text()


def test_check_gpu_says_how_fast_disks_are(tmp_path):
    assert gpu_test_steps.write_rate(tmp_path, size=1 << 24) > 1e5
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_names_its_steps():
    """Emulated GPUs need none: only the programs, which these tests do not build."""
    tool = [sys.executable, ROOT / "tools/check_gpu", "--emulated"]
    listed = subprocess.run([*tool, "--list"], capture_output=True, text=True, check=True).stdout
    assert "separate-gpus" in listed and "llama-3-8b-lora" not in listed
    run = subprocess.run([*tool, "--steps", "llama-3-8b-lora"], capture_output=True, text=True)
    assert run.returncode == 2 and "found no step llama-3-8b-lora" in run.stderr


def test_a_failing_step_of_check_gpu_spoils_no_other(check_gpu, tmp_path, monkeypatch):
    def runs_too_long(check, seconds):
        passed, _, _, code = check.run("long", ["sleep", "60"], 1)
        return passed, code

    def fails(check, seconds):
        raise ValueError("of its own")

    monkeypatch.setattr(check_gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(check_gpu, "STEPS", [
        check_gpu.Step("fails", 9, fails), check_gpu.Step("long", 9, runs_too_long),
        check_gpu.Step("good", 9, lambda check, seconds: (True, "as | meant")),
        check_gpu.Step("absent", 9, lambda check, seconds: (None, "not on this machine"))])
    monkeypatch.setattr(sys, "argv", ["check_gpu", "--out", str(tmp_path), "--logs", str(tmp_path / "logs"), "--programs",
                                      "."])
    assert check_gpu.main() == 1
    result = json.loads(next(tmp_path.glob("gpu-*.json")).read_text())
    assert [step["result"] for step in result["steps"]] == ["FAILED", "FAILED", "ok", "not here"]
    assert result["steps"][0]["text"] == "ValueError: of its own"
    assert "none within 1 s" in (tmp_path / "logs.txt").read_text()
    assert "| good | ok | 0 | as / meant |" in next(tmp_path.glob("gpu-*.md")).read_text()


def test_check_gpu_ends_where_the_program_sees_no_gpu(check_gpu, tmp_path, monkeypatch):
    """The driver lists one, but the program cannot use it: nothing else would show anything."""
    monkeypatch.setattr(check_gpu, "has_gpu", lambda: True)
    monkeypatch.setattr(check_gpu, "STEPS", [
        check_gpu.Step("machine", 9, lambda check, seconds: (False, "usable_gpus: 0")),
        check_gpu.Step("later", 9, lambda check, seconds: (True, "done"))])
    monkeypatch.setattr(sys, "argv", ["check_gpu", "--out", str(tmp_path), "--logs", str(tmp_path / "logs"), "--programs",
                                      "."])
    assert check_gpu.main() == 1
    result = json.loads(next(tmp_path.glob("gpu-*.json")).read_text())
    assert [step["result"] for step in result["steps"]] == ["FAILED", "not run"]


def test_check_gpu_does_not_take_the_cpu_for_a_gpu(tmp_path):
    """Hidden GPUs are none: a run that falls back to the CPU is no run on a GPU, whatever its losses."""
    check = gpu_check.Check(types.SimpleNamespace(programs=PROGRAM.parent, out=tmp_path, logs=tmp_path, part=None))
    in_files = ("--offload_param_device", "nvme", "--offload_param_nvme_path", gpu_tiny_runs.OWN_FOLDER)
    found = gpu_tiny_runs.losses_of_all(check, 60, {
        "plain": (1, "--use_cpu", "true", "--bf16", "false"),
        "files": (1, "--use_cpu", "true", "--bf16", "false", *in_files),
        "fallen back": (1, "--cpu", "true", "--bf16", "false")})
    check.close()
    assert len(found["plain"]) == 10 and found["plain"][-1] < found["plain"][0]
    assert found["files"] == found["plain"]
    assert "took no memory of a GPU" in found["fallen back"]


def test_check_gpu_ends_what_a_step_started(tmp_path):
    """A step out of time leaves no process behind that would hold the GPU."""
    mark = tmp_path / "alive"
    command = ["sh", "-c", f"(while sleep 0.05; do date +%s%N >{mark}; done) & wait"]
    assert "none within" in gpu_check.run_group(command, 1)
    before = mark.read_text()
    time.sleep(0.3)
    assert mark.read_text() == before


@pytest.fixture
def bundle(tmp_path):
    """A bundle whose program prints where libraries are looked for, and its arguments."""
    for folder in ("bin", "programs", "lib"):
        (tmp_path / "bundle" / folder).mkdir(parents=True)
    shutil.copy(ROOT / "tools/bundle_launcher", tmp_path / "bundle/bin/launcher")
    (tmp_path / "bundle/bin/strata").symlink_to("launcher")
    (tmp_path / "bundle/torch_version").write_text("2.11 13\n")
    program = tmp_path / "bundle/programs/strata"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH|$*"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return tmp_path / "bundle"


def start(bundle, torch, program=None):
    return subprocess.run([program or bundle / "bin/strata", "sft", "a b"], capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], "TORCH_DIR": str(torch)})


def torch_folder(tmp_path, files):
    torch = tmp_path / "site/torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "lib/libtorch_cuda.so").touch()
    for name, text in files.items():
        (torch / name).write_text(text)
    return torch


def version_file(version, cuda):
    """As the wheels of torch have it."""
    return {"version.py": "from typing import Optional\n\n__all__ = ['__version__', 'debug', 'cuda']\n"
                          f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = '{cuda}'\n"
                          "git_version = '70d99e99'\nhip: Optional[str] = None\n"}


@pytest.mark.parametrize("files", [version_file("2.11.0+cu130", "13.0"), {"build-version": "2.11.1+cu130\n"}, {}])
def test_launcher_finds_the_libraries_of_its_torch(bundle, tmp_path, files):
    torch = torch_folder(tmp_path, files)
    (tmp_path / "site/nvidia/nccl/lib").mkdir(parents=True)
    (tmp_path / "strata").symlink_to(bundle / "bin/strata")
    for program in (None, tmp_path / "strata"):
        run = start(bundle, torch, program)
        assert run.returncode == 0, run.stderr
        paths, arguments = run.stdout.strip().split("|")
        found = [pathlib.Path(p).resolve() for p in paths.split(":")]
        assert found == [p.resolve() for p in (torch / "lib", tmp_path / "site/nvidia/nccl/lib",
                                               bundle / "lib")]
        assert arguments == "sft a b"


def test_a_checker_does_not_get_the_programs_libraries(bundle, tmp_path):
    checker = tmp_path / "checker"
    checker.write_text('#!/bin/sh\necho "checker: $LD_LIBRARY_PATH|$1"\nshift\nexec "$@"\n')
    checker.chmod(0o755)
    run = subprocess.run([bundle / "bin/strata", "a b"], capture_output=True, text=True,
                         env={"PATH": os.environ["PATH"], "TORCH_DIR": str(torch_folder(tmp_path, {})),
                              "STRATA_RUN_UNDER": f"{checker} --of-its-own"})
    its, programs = run.stdout.splitlines()
    assert its == "checker: |--of-its-own"
    assert str(tmp_path / "site/torch/lib") in programs and programs.endswith("|a b")


@pytest.mark.parametrize("files, found", [
    (version_file("2.12.0+cu130", "13.0"), "found torch 2.12.0+cu130 with CUDA 13 in"),
    (version_file("2.1.1+cu121", "12.1"), "found torch 2.1.1+cu121 with CUDA 12 in"),
    (version_file("2.11.0+cu128", "12.8"), "found torch 2.11.0+cu128 with CUDA 12 in"),
    ({"build-version": "2.10.0+cu130\n"}, "found torch 2.10.0+cu130 in")])
def test_launcher_refuses_another_torch(bundle, tmp_path, files, found):
    run = start(bundle, torch_folder(tmp_path, files))
    assert run.returncode == 2
    assert found in run.stderr and "expected 2.11 with CUDA 13" in run.stderr


def test_launcher_refuses_a_torch_without_cuda(bundle, tmp_path):
    (tmp_path / "torch/lib").mkdir(parents=True)
    run = start(bundle, tmp_path / "torch")
    assert run.returncode == 2 and "found no lib/libtorch_cuda.so" in run.stderr


def test_launcher_takes_the_machines_cuda_where_torch_brings_none(bundle, tmp_path):
    run = subprocess.run([bundle / "bin/strata"], capture_output=True, text=True,
                         env={"PATH": os.environ["PATH"], "TORCH_DIR": str(torch_folder(tmp_path, {})),
                              "CUDA_HOME": "/opt/of-the-machine"})
    assert "/site/torch/lib:/opt/of-the-machine/lib64:" in run.stdout, run.stderr


def test_launcher_says_that_there_is_no_torch(bundle, tmp_path):
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    run = subprocess.run([bundle / "bin/strata"], capture_output=True, text=True,
                         env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert run.returncode == 2 and "found no torch beside the python3 on the PATH" in run.stderr


def kernel(name, begin, length, category="kernel", grid=None):
    launch = {"args": {"grid": grid}} if grid else {}
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length, **launch}


def test_breakdown_sums_kinds_and_gaps():
    trace = {"traceEvents": [
        kernel("sm90_xmma_gemm_bf16", 1000, 4000),
        kernel("flash_fwd_kernel", 5000, 1000),
        kernel("ncclDevKernel_AllGather", 4500, 1000),  # beside the others
        kernel("void strata::ops::cuda::(anonymous namespace)::norm_rows<__half, 8>(...)", 8000, 500),
        kernel("Memcpy DtoH", 8500, 500, "gpu_memcpy"),
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 99999}]}
    found = breakdown.breakdown(trace)
    assert found["step"] == pytest.approx(8.0)
    assert found["idle"] == pytest.approx(2.0)  # from 6.0 to 8.0
    assert found["large products"] == 4.0 and found["attention"] == 1.0
    assert found["communication"] == 1.0 and found["element-wise"] == 0.5
    assert found["copies"] == 0.5 and found["launches"] == 5
    assert found["longest"]["1 x cuda::norm_rows<__half, 8>(...)"] == 0.5
    assert breakdown.breakdown({"traceEvents": []}) == {}


def test_breakdown_tells_thin_products_apart():
    """By the tile in cuBLAS's names; products of one name by their grids."""
    wide, thin = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "nvjet_tst_64x16_64x16_2x1_v_bz_TNT"
    trace = {"traceEvents": [
        kernel(wide, 0, 1000, grid=[132, 1, 1]), kernel(wide, 1000, 1000, grid=[132, 1, 1]),
        kernel(wide, 2000, 500, grid=[16, 8, 1]), kernel(thin, 2500, 300, grid=[128, 1, 1]),
        kernel("void cublasLt::splitKreduce_kernel<32, 16, int>(...)", 2800, 100),
        kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1", 2900, 200)]}
    found = breakdown.breakdown(trace)
    assert found["large products"] == 2.7 and found["thin products"] == 0.4
    assert found["longest"][f"2 x {wide} <<<132x1x1>>>"] == 2.0
    assert found["longest"][f"1 x {wide} <<<16x8x1>>>"] == 0.5


@pytest.mark.parametrize("name, published", [
    ("llama-3-8b-lora", 8_030_261_248), ("qwen-3-8b-lora", 8_190_735_360),
    ("llama-1b-full", 1_235_814_400)])
def test_cases_have_the_published_sizes(name, published):
    assert cases.num_parameters(cases.CASES[name].model_config)[0] == published


@pytest.mark.parametrize("name, quantised", [("tiny", False), ("tiny", True)])
def test_a_case_runs(tmp_path, name, quantised):
    """On the CPU: the inputs that it makes are trained on, and what it reads of a run is there."""
    case = dataclasses.replace(cases.CASES[name], quantised=quantised, rows=2, length=32, steps=6)
    gpu_bench.make_inputs(tmp_path, case, "cpu")
    found = gpu_bench.run_strata(PROGRAM, case, tmp_path, case.rows, ["--use_cpu", "true"])
    assert "error" not in found, found
    assert len(found["losses"]) == 6 and found["tokens_per_second"] > 0
    assert found["losses"][0] == pytest.approx(math.log(1024), rel=0.1)  # random weights know nothing


def test_memory_is_counted_as_the_references():
    """torch.cuda.max_memory_allocated() / 1e6 there; what a run logs are units of 2**20 bytes."""
    assert gpu_bench.peak_mb({"device_memory_mb": 3e9 / 2**20}) == pytest.approx(3000)


def test_a_reference_out_of_time_leaves_what_was_measured(tmp_path, monkeypatch):
    """run.py is stopped with its step: the line that it has printed of Strata alone counts."""
    check = gpu_check.Check(types.SimpleNamespace(programs=tmp_path, out=tmp_path, logs=tmp_path, part=None))
    ours = {"tokens_per_second": 12000.0, "rows": 4, "peak_mb": 1.0, "losses": [], "breakdown_ms": {}, "plan_error_percent": 1.0,
            "warnings": ["warning: attention: of cuDNN"]}
    line = json.dumps({"case": "llama-3-8b-lora", "strata": ours, "model_flops_share": 0.5})
    run = check.run
    monkeypatch.setattr(check, "run", lambda name, command, seconds, **variables: run(
        name, ["sh", "-c", f"echo '{line}'; echo some words; sleep 60"], 1))
    passed, text = gpu_speed_steps.bench("llama-3-8b-lora")(check, 1)
    # The reference of the case is that of its variants.
    check.facts["bench"]["llama-3-8b-lora"]["peer"] = {"tokens_per_second": 6000.0, "rows": 4}
    gpu_speed_steps.bench("llama-3-8b-lora", "--no-peer", label="-flash")(check, 1)
    assert check.facts["bench"]["llama-3-8b-lora-flash"]["speed_ratio"] == 2
    check.close()
    assert not passed and "12000 tokens/s" in text and "the reference: exit none within 1 s" in text
    assert "of cuDNN" in text and check.facts["bench"]["llama-3-8b-lora"]["model_flops_share"] == 0.5


def test_models_stand_beside_each_other_where_there_is_room(tmp_path, monkeypatch):
    check = types.SimpleNamespace(checkpoints=tmp_path)
    llama, qwen = (cases.CASES[name] for name in ("llama-3-8b-lora", "qwen-3-8b-lora"))
    gpu_speed_steps.inputs_of(check, llama).mkdir()
    assert gpu_speed_steps.inputs_of(check, llama) == gpu_speed_steps.inputs_of(check, cases.CASES["llama-3-8b-qlora"])
    for has_room, kept in ((True, 1), (False, 0)):
        monkeypatch.setattr(gpu_speed_steps, "has_room_for_a_model", lambda folder: has_room)
        assert not gpu_speed_steps.inputs_of(check, qwen).exists()
        assert len(list(tmp_path.iterdir())) == kept


def test_a_case_takes_further_flags():
    """check_gpu hands them on behind other options, where argparse alone takes none."""
    run = subprocess.run([sys.executable, ROOT / "bench/gpu/run.py", "tiny", "--list", "--no-peer", "--",
                          "--gradient_checkpointing_mode", "selective"], capture_output=True, text=True)
    assert run.returncode == 0 and "llama-1b-full" in run.stdout, run.stderr


def test_the_plan_is_read_from_what_a_run_says():
    line = ("memory of cuda:0: planned 21.32 GB, measured 21.05 GB in tensors at most (-1.3 %), 22.10 GB with "
            "what the allocator kept")
    assert float(gpu_bench.PLAN.search(line).group(5)) == -1.3


def test_a_step_is_traced(inputs, tmp_path):
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out",
                                max_steps=3, profile_step=2))
    trace = json.loads((run.folder / "profile.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    # The CPU's trace has libtorch's operations; those of our kernels are none of it.
    assert any(name and name.startswith("aten::") for name in names)
    assert len(run.losses) == 3
