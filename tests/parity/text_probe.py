"""Talks to the text_probe program: one JSON object per line each way."""

import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("STRATA_BUILD", ROOT / "build" / "release"))


class Probe:
    def __init__(self):
        self.process = subprocess.Popen(
            [BUILD / "text_probe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"text_probe died on {request}"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(timeout=30) == 0
