"""Runs the model_probe binary on a checkpoint folder and returns its tensors and report."""

import atexit
import json
import os
import pathlib
import subprocess
import tempfile
import threading

from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROBE_SECONDS = 120  # against hangs
BUILD = pathlib.Path(os.environ.get("STRATA_BUILD", ROOT / "build" / "release"))


class Server:
    """A program that forks one probe after the other (tools/probe_server.h), under the variables of now."""

    def __init__(self):
        self.process = self.variables = None
        self.folder = tempfile.TemporaryDirectory(prefix="strata-probes-")

    def run(self, request, output):
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        if self.process is None or self.process.poll() is not None or self.variables != variables:
            self.close()
            self.variables = variables
            self.process = subprocess.Popen([BUILD / "model_probe", "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            text=True, env=variables)
        said = {kind: pathlib.Path(self.folder.name, kind) for kind in ("stdout", "stderr")}
        order = {"request": request, "output": output, **said}
        alarm = threading.Timer(PROBE_SECONDS, self.process.kill)
        alarm.start()
        self.process.stdin.write(json.dumps({key: str(path) for key, path in order.items()}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        alarm.cancel()
        assert answer, f"model_probe was not done after {PROBE_SECONDS} s, or its server ended: {request}"
        return subprocess.CompletedProcess(["model_probe", request, output], int(answer),
                                           *(said[kind].read_text() for kind in ("stdout", "stderr")))

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


SERVER = Server()
atexit.register(SERVER.close)


def run_probe_raw(folder, **request):
    """The finished process and the path where it writes its tensors."""
    folder = pathlib.Path(folder)
    request_file = folder / "probe_request.json"
    output = folder / "probe_output.safetensors"
    request_file.write_text(json.dumps({"model": str(folder), **request}))
    return SERVER.run(request_file, output), output


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
