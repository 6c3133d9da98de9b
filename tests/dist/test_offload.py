# Oracle: the run with everything in memory, to the bit; what is on the disk afterwards.
import ctypes
import errno
import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

import pytest

import preloaded
from running import (BUILD, Run, base_flags, command, environment, output_files, processes_of, run_strata,
                     start_strata, words_of)

LORA = dict(use_peft=True, lora_r=3, lora_dropout=0.3, lora_target_modules=["q_proj", "up_proj"])
PLACES = {
    "state": ("offload_optimizer",),
    "parameters": ("offload_param",),
    "both": ("offload_optimizer", "offload_param"),
    "activations": (),
    "all": ("offload_optimizer", "offload_param"),
}


@pytest.fixture
def disk():
    """A folder on a disk: the tests' own may lie in memory."""
    folder = tempfile.mkdtemp(prefix="offload-", dir=BUILD)
    yield folder
    shutil.rmtree(folder)


def in_files(disk, place="both", **flags):
    for kind in PLACES[place]:
        flags |= {f"{kind}_device": "nvme", f"{kind}_nvme_path": disk}
    if "offload_optimizer" in PLACES[place]:
        flags["sub_group_size"] = 4096
    if place in ("activations", "all"):
        flags |= dict(activation_offloading="disk", activation_offloading_path=disk)
    return flags


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("odd"), inputs.data("messages", train=28), output,
                      **{"max_steps": 6, **flags})


def assert_same(found, expected):
    assert found.history == expected.history
    for name in ("adapter_model.safetensors", "model.safetensors"):
        if (expected.folder / name).exists():
            assert (found.folder / name).read_bytes() == (expected.folder / name).read_bytes()


@pytest.fixture(scope="module")
def in_memory(inputs, tmp_path_factory):
    """The run with everything in memory by its settings, computed once each."""
    known = {}

    def run(world, **settings):
        key = (world, *map(str, settings.items()))
        if key not in known:
            folder = tmp_path_factory.mktemp("memory")
            known[key] = run_strata(flags_of(inputs, folder, **settings), world)
        return known[key]

    return run


@pytest.mark.parametrize("world,place,settings", [
    (1, "both", dict(gradient_accumulation_steps=2)),
    (2, "state", {}),
    (2, "parameters", dict(sharding_strategy="SHARD_GRAD_OP")),
    (3, "both", dict(eval_strategy="steps", eval_steps=3, weight_decay=0.1)),
    (2, "both", LORA),
    (2, "parameters", dict(optim="lion_32bit")),
    (2, "both", dict(LORA, load_in_4bit=True)),
    (4, "both", dict(sharding_strategy="HYBRID_SHARD", dp_shard_size=2, dp_replicate_size=2)),
    (4, "parameters", dict(fsdp_reshard_after_forward=2)),
    (1, "activations", dict(gradient_accumulation_steps=3)),
    (2, "activations", dict(packing=True, max_length=48, eval_strategy="steps", eval_steps=3)),
    (2, "activations", dict(LORA, zero_stage=2, load_in_4bit=True)),
    (3, "all", dict(fp16=True, rehearse=True)),
    # Rows before each document: more tokens than a row may have.
    (2, "activations", dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=5,
                            packing=True, max_length=48)),
])
def test_results_do_not_depend_on_where_things_rest(inputs, in_memory, disk, tmp_path, world, place,
                                                    settings):
    expected = in_memory(world, **settings)
    found = run_strata(flags_of(inputs, tmp_path / "files", **in_files(disk, place, **settings)),
                       world)
    assert_same(found, expected)
    assert f"in files in {disk}" in found.text
    assert os.listdir(disk) == []


@pytest.mark.parametrize("world", [1, 2])
def test_resuming_crosses_between_memory_and_files(inputs, disk, tmp_path, world):
    save = dict(save_strategy="steps", save_steps=3)
    whole = run_strata(flags_of(inputs, tmp_path / "whole", **save), world)
    offloaded = run_strata(flags_of(inputs, tmp_path / "files", **save, **in_files(disk)), world)
    assert_same(offloaded, whole)
    for name, source, settings in [("to_files", whole, in_files(disk)), ("to_memory", offloaded, {})]:
        found = run_strata(
            flags_of(inputs, tmp_path / name, **save, **settings,
                     resume_from_checkpoint=source.folder / "checkpoint-3"), world)
        assert found.history[-1] == whole.history[-1]
        assert (found.folder / "model.safetensors").read_bytes() == \
            (whole.folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def wide(inputs, tmp_path_factory):
    """The flags of a model whose parameters and gradients take 500 MB; it has no weights to read."""
    folder = tmp_path_factory.mktemp("models") / "wide"
    shutil.copytree(inputs.model("odd"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((folder / "config.json").read_text())
    settings |= dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4, head_dim=64,
                     num_attention_heads=16, num_key_value_heads=16)
    (folder / "config.json").write_text(json.dumps(settings))
    return dict(model_name_or_path=None, config_name=folder)


def refused(flags, world, recipe="sft", **answers):
    """The text of a run that ends with an error, and the most MB that one of its processes held.
    `answers` of the machine: preloaded.py."""
    more = preloaded.variables(**answers) if answers else {}
    process = subprocess.Popen(command(flags, world, recipe), stdout=subprocess.PIPE, text=True,
                               stderr=subprocess.STDOUT, env={**environment(), **more})
    alarm = threading.Timer(60, process.kill)
    alarm.start()
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    alarm.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode != 0, text
    return text, usage.ru_maxrss / 1024


@pytest.fixture(scope="module")
def bare_mb(inputs, tmp_path_factory):
    """What a process takes that ends before it has a model."""
    out = tmp_path_factory.mktemp("bare")
    return refused(flags_of(inputs, out, **in_files("/no/such/folder")), 2)[1]


@pytest.mark.parametrize("place", ["both", "activations"])
@pytest.mark.parametrize("path,message", [
    ("/dev/shm", "on a file system in memory (tmpfs)"),
    ("/no/such/folder", "found no folder /no/such/folder"),
    ("/proc", "expected a writable folder"),
])
def test_unfit_folder_is_an_error_on_start(inputs, wide, bare_mb, tmp_path, path, message, place):
    text, taken_mb = refused(flags_of(inputs, tmp_path / "out", **in_files(path, place, **wide)), 2)
    assert message in text
    assert taken_mb < bare_mb + 100, "something was allocated before"
    assert output_files(tmp_path / "out") == []


@pytest.mark.parametrize("place,named", [("parameters", "offload_param_nvme_path"),
                                         ("state", "offload_optimizer_nvme_path")])
def test_a_disk_without_shared_maps_is_an_error_on_start(inputs, disk, tmp_path, place, named):
    (tmp_path / "data").mkdir()  # before data are read
    (tmp_path / "data" / "train.jsonl").write_text("no row\n")
    flags = dict(flags_of(inputs, tmp_path / "out", **in_files(disk, place)), dataset_name=tmp_path / "data")
    process = start_strata(flags, 2, preloaded.variables(NO_WRITABLE_MAPS=disk))
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 2 and text.count(named) == 1, text
    assert f"{named}: found {disk} on a file system without shared maps that can be written" in text
    assert os.listdir(disk) == []


def test_activations_need_no_shared_maps(inputs, disk, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", **in_files(disk, "activations"))
    process = start_strata(flags, 1, preloaded.variables(NO_WRITABLE_MAPS=disk))
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text


@pytest.mark.parametrize("world,place,named,parts", [
    (1, "parameters", "offload_param_nvme_path", ["parameters"]),
    (2, "state", "offload_optimizer_nvme_path", ["optimizer state"]),
    (2, "both", "offload_param_nvme_path", ["parameters", "optimizer state"]),
    (2, "activations", "activation_offloading_path", ["inputs of layers"]),
])
def test_room_is_judged_before_anything_is_allocated(inputs, wide, bare_mb, disk, tmp_path, world,
                                                     place, named, parts):
    # Data that no run could read: the error of the room comes before any of them.
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("no row\n")
    flags = dict(flags_of(inputs, tmp_path / "out", per_device_train_batch_size=16,
                          **in_files(disk, place, **wide)), dataset_name=tmp_path / "data")
    text, taken_mb = refused(flags, world, FREE_BYTES=1_000_000)
    found = re.search(r"(\w+): found 1.00 MB free in (\S+), expected (\S+ [MG]B) \(([^)]+)\) for "
                      rf"{world} ranks?; free space there or choose another folder", text)
    assert found, text
    assert found[1] == named and found[2] == disk
    assert [re.sub(r" [\d.]+ [MG]B$", "", part) for part in found[4].split(", ")] == parts
    assert taken_mb < bare_mb + 100, "something was allocated before"
    assert os.listdir(disk) == []


def test_room_for_all_ranks_suffices_and_a_little_less_does_not(inputs, disk, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", max_steps=1, **in_files(disk, "all"))
    expected = float(re.search(r"expected (\S+) MB", refused(flags, 3, FREE_BYTES=4096)[0])[1])
    assert "MB free in" in refused(flags, 3, FREE_BYTES=int((expected - 0.02) * 1e6))[0]
    process = subprocess.run(
        command(flags, 3), capture_output=True, text=True, timeout=60,
        env={**environment(), **preloaded.variables(FREE_BYTES=int((expected + 0.02) * 1e6))})
    assert process.returncode == 0, process.stdout + process.stderr


def test_a_pair_of_answers_needs_room_for_two(inputs, disk, tmp_path):
    def expected(recipe, data):
        flags = base_flags(inputs.model("odd"), inputs.data(data), tmp_path / "out", max_steps=1, max_length=512,
                           per_device_train_batch_size=16, **in_files(disk, "activations"))
        return float(re.search(r"expected (\S+) MB", refused(flags, 2, recipe, FREE_BYTES=4096)[0])[1])

    assert expected("reward", "preference") == pytest.approx(2 * expected("sft", "messages"), abs=0.02)  # two decimals, twice


@pytest.mark.parametrize("place", ["both", "state", "activations"])
def test_full_disk_on_start_is_an_error_that_leaves_nothing(inputs, disk, tmp_path, place):
    words = words_of(flags_of(inputs, tmp_path / "out", per_device_train_batch_size=64,
                              **in_files(disk, place)))
    # A limit on the size of files takes the way of a full disk.
    process = subprocess.run(
        words, capture_output=True, text=True, timeout=60, env=environment(),
        restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384)))
    assert process.returncode != 0
    assert "when reserving" in process.stdout + process.stderr
    assert os.listdir(disk) == []


def refuse_io_uring():
    """As a container does: a filter that this process and its children keep."""
    io_uring_setup, allow, refuse = 425, 0x7FFF0000, 0x00050000 | errno.EPERM
    load, equal, give = 0x20, 0x15, 0x06
    program = struct.pack("HBBI" * 4, load, 0, 0, 0, equal, 0, 1, io_uring_setup,
                          give, 0, 0, refuse, give, 0, 0, allow)
    code = ctypes.create_string_buffer(program)
    filter = struct.pack("HP", 4, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((38, 1, 0, 0, 0), (22, 2, filter)):  # no new privileges; the filter
        assert libc.prctl(*call) == 0, os.strerror(ctypes.get_errno())


def test_threads_take_over_where_the_kernel_refuses_io_uring(inputs, in_memory, disk, tmp_path):
    expected = in_memory(2)
    flags = flags_of(inputs, tmp_path / "files", **in_files(disk, "all"))
    process = subprocess.run(command(flags, 2), capture_output=True, text=True, timeout=60,
                             env=environment(), preexec_fn=refuse_io_uring)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.count(f"in files in {disk} (threads)") == 3
    assert_same(Run(process, tmp_path / "files"), expected)


def wait_for(condition, seconds=60):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end
        time.sleep(0.05)


def start(flags, world):
    return start_strata(flags, world, start_new_session=True, restore_signals=False)


def ranks_of(process, folder):
    return [pid for pid in processes_of(folder) if pid != process.pid]


def test_disk_that_fills_up_later_ends_all_ranks_and_keeps_checkpoints(inputs, disk, tmp_path):
    out = tmp_path / "out"
    flags = flags_of(inputs, out, max_steps=100000, save_strategy="steps", save_steps=2,
                     save_total_limit=1, **in_files(disk))
    process = start(flags, 2)
    wait_for(lambda: (out / "latest").exists())
    for pid in ranks_of(process, out):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (16384, 16384))
    text, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "file too large" in text
    assert os.listdir(disk) == []
    last = (out / "latest").read_text().strip()
    found = run_strata(flags_of(inputs, out, max_steps=int(last.split("-")[1]) + 2,
                                resume_from_checkpoint=out / last), 2)
    assert found.returncode == 0


def test_files_of_a_killed_run_go_at_the_next_start(inputs, disk, tmp_path):
    flags = flags_of(inputs, tmp_path / "killed", max_steps=100000, **in_files(disk))
    process = start(flags, 2)
    wait_for(lambda: len(ranks_of(process, tmp_path / "killed")) == 2 and
             (tmp_path / "killed" / "metrics.jsonl").exists())
    left = set(os.listdir(disk))
    assert len(left) == 4  # two ranks with two folders each
    for pid in [*ranks_of(process, tmp_path / "killed"), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert set(os.listdir(disk)) == left
    found = run_strata(flags_of(inputs, tmp_path / "next", **in_files(disk)), 1)
    assert "of runs that were killed" in found.text
    assert os.listdir(disk) == []


def test_host_memory_is_said_to_be_there_already(inputs, in_memory, tmp_path):
    expected = in_memory(2)
    found = run_strata(flags_of(inputs, tmp_path / "b", fsdp_offload_params=True,
                                offload_optimizer_device="cpu", activation_offloading=True), 2)
    assert_same(found, expected)
    assert found.text.count("offload to host memory: this run computes on the CPU") == 1
    assert found.text.count("inputs of layers are in host memory already; with disk") == 1
