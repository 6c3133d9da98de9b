"""Runs `strata preview` over rows that a test makes."""

import json
import subprocess

from running import PROGRAM, environment


def run(*arguments, stdin=""):
    return subprocess.run([str(PROGRAM), *map(str, arguments)], input=stdin, capture_output=True,
                          text=True, timeout=120, env=environment())


def save(folder, rows):
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def preview(inputs, data, *flags):
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data, *flags)
    assert result.returncode == 0, result.stderr
    return result.stdout
