"""Asks the data_probe program: a list of requests in, a list of answers out."""

import json
import subprocess

from running import BUILD


def ask(folder, requests, **options):
    """The finished process; its answers stand on its standard output."""
    folder.mkdir(exist_ok=True)
    path = folder / "requests.json"
    path.write_text(json.dumps(requests))
    return subprocess.run([BUILD / "data_probe", path], capture_output=True, text=True, timeout=120, **options)


def answers(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def probe(folder, requests):
    return answers(ask(folder, requests))
