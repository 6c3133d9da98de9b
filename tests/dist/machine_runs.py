"""Runs on two machines (two_machines.py): how each is started, what both said and left."""

import re
import time

from safetensors import safe_open

from running import PROGRAM, base_flags, environment, flag_words

STEPS = 6


def launch_words(machine_rank, flags, launch=(), host="10.77.0.1"):
    return [PROGRAM, "launch", "--cpu", *([] if "--num_processes" in launch else ["--num_processes", 4]),
            "--num_machines", 2, "--machine_rank", machine_rank, "--main_process_ip", host, *launch, "sft",
            *flag_words(flags)]


def start_both(machines, flags, launch=()):
    return [machine.start(launch_words(rank, flags, launch), **environment())
            for rank, machine in enumerate(machines[:2])]


def finish(processes, timeout=100):
    texts = [process.communicate(timeout=timeout)[0] for process in processes]
    return [process.returncode for process in processes], texts


def run_on_both(machines, flags, launch=()):
    codes, texts = finish(start_both(machines, flags, launch))
    assert codes == [0, 0], texts
    return texts


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("plain"), inputs.data("messages"), output,
                      **{"max_steps": STEPS, **flags})


def losses(folder):
    rows = [re.search(r'"loss": ([\d.]+)', line) for line in (folder / "metrics.jsonl").open()]
    return [float(row.group(1)) for row in rows if row]


def shard_size(model, shards=2):
    """Elements of a shard: tensors of a unit and the shards of units fill blocks of 256."""
    def whole_blocks(size):
        return -(-size // 256) * 256

    units = {}
    with safe_open(model / "model.safetensors", "np") as file:
        for name in file.keys():
            layer = re.search(r"layers\.(\d+)\.", name)
            unit = layer.group(1) if layer else "first" if "embed" in name else "last"
            units[unit] = units.get(unit, 0) + whole_blocks(file.get_tensor(name).size)
    return sum(whole_blocks(-(-size // shards)) for size in units.values())


def wait_for_step(folder, processes):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and losses(folder):
            return
        assert all(p.poll() is None for p in processes), processes[0].communicate()[0]
        time.sleep(0.05)
    raise AssertionError("found no step in 60 s")
