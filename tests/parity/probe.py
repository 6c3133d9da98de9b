"""Runs the model_probe binary on a checkpoint folder and returns its tensors and report."""

import json
import os
import pathlib
import subprocess

from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("STRATA_BUILD", ROOT / "build" / "release"))


def run_probe_raw(folder, **request):
    """The finished process and the path where it writes its tensors."""
    folder = pathlib.Path(folder)
    request_file = folder / "probe_request.json"
    output = folder / "probe_output.safetensors"
    request_file.write_text(json.dumps({"model": str(folder), **request}))
    process = subprocess.run(
        [BUILD / "model_probe", request_file, output], capture_output=True, text=True, timeout=120)
    return process, output


def run_probe(folder, **request):
    """(tensors by name, report); the names are those tests/tools/model_probe.cpp documents."""
    process, output = run_probe_raw(folder, **request)
    assert process.returncode == 0, process.stderr
    return load_file(output), json.loads(process.stdout)


def relative_error(found, expected):
    """|found - expected| / |expected| over the whole tensor; absolute where the expected is zero."""
    difference = (found.double() - expected.double()).norm().item()
    size = expected.double().norm().item()
    return difference / size if size > 0 else difference
