"""What the program makes of a run's state in another format, and what a checkpoint holds."""

import json
import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file

from running import environment, strata

TRAINED = dict(max_steps=4, save_strategy="steps", save_steps=2, weight_decay=0.1)


def inspect(path, *flags):
    return json.loads(strata("inspect", path, "--json", *flags))


def optimizer_of(checkpoint):
    """A checkpoint's state as {weight: {kind: tensor}}, read without the program."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = {p.name: load_file(p) for p in checkpoint.glob("*.safetensors")}
    state = {}
    for name, record in manifest["tensors"].items():
        kind, weight = name.split("/", 1)
        whole = torch.cat([files[p["file"]][p["key"]] for p in record["pieces"]])
        state.setdefault(weight, {})[kind] = whole.reshape(record["shape"])
    return state, manifest


def run_fsdp2(*words):
    """A run of the reference stack on two ranks: fsdp2_reference.py."""
    program = pathlib.Path(__file__).parent / "fsdp2_reference.py"
    process = subprocess.run([sys.executable, str(program), *map(str, words)], capture_output=True, text=True,
                             env=environment(), timeout=150)
    assert process.returncode == 0, process.stderr[-4000:]
