# Oracle: one machine's files: ranks that read other ones, as where each machine has a copy of its own, are
# told apart before training, both named.
import json
import os
import re
import shutil
import subprocess

import pytest
from safetensors.torch import load_file, save_file

from running import PROGRAM, base_flags, environment, flag_words
from tiny_t5 import save_pairs, save_t5

# Beyond the date line from each other: never the same day.
ZONES = "<+14>-14", "<-12>+12"
DATED = ("{{ strftime_now('%d %b %Y') }}{% for m in messages %}"
         "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' }}{% endfor %}")


def start(folder, flags, before="", recipe="sft"):
    """Two ranks, each in a folder of its own, in which `model` and `data` lie."""
    wrapper = folder / "rank.sh"
    words = " ".join([str(PROGRAM), recipe, "--cpu", *flag_words(flags)])
    wrapper.write_text(f"#!/bin/sh\ncd {folder}/$RANK && {before} exec {words}\n")
    wrapper.chmod(0o755)
    return subprocess.run([str(PROGRAM), "launch", "--num_processes", "2", "--cpu", "--max_restarts", "1", "--no_python", str(wrapper)],
                          capture_output=True, text=True, timeout=120, env=environment())


@pytest.fixture
def copies(inputs, tmp_path):
    for rank in "01":
        shutil.copytree(inputs.model("plain"), tmp_path / rank / "model")
        shutil.copytree(inputs.data("messages"), tmp_path / rank / "data")
    return tmp_path


def flags_of(folder, **flags):
    return base_flags("model", "data", folder / "out", max_steps=2, **flags)


def edit_rows(copies, split, change):
    file = copies / "1" / "data" / f"{split}.jsonl"
    rows = file.read_text().splitlines(keepends=True)
    change(rows)
    file.write_text("".join(rows))


def drop_row(copies):
    edit_rows(copies, "train", lambda rows: rows.pop(7))


def swap_rows(copies):
    edit_rows(copies, "train", lambda rows: rows.insert(0, rows.pop()))


def drop_row_of_evaluation(copies):
    edit_rows(copies, "test", lambda rows: rows.pop())


def change_config(copies):
    file = copies / "1" / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rms_norm_eps": 1e-3}))


def change_weights(copies):
    """One value of one norm, where another training of the same model has others everywhere."""
    file = copies / "1" / "model" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][16] += 1
    save_file(weights, file, metadata={"format": "pt"})


def test_ranks_with_another_state_of_a_model_on_the_hub(inputs, tmp_path):
    """The branch moved between two downloads; weights that differ alone are seen nowhere else."""
    states = ["a" * 40, "b" * 40]
    for rank, state in enumerate(states):
        cache = tmp_path / str(rank) / "home" / "hub" / "models--some--model"
        shutil.copytree(inputs.model("plain"), cache / "snapshots" / state)
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text(state)
    flags = base_flags("some/model", inputs.data("messages"), tmp_path / "out", max_steps=2)
    result = start(tmp_path, flags, before="HF_HOME=$PWD/home HF_HUB_OFFLINE=1")
    assert result.returncode == 2, result.stderr
    assert (f'model and data: found "model in the state {states[0]} of the Hub" on rank 0 but '
            f'"model in the state {states[1]} of the Hub" on rank 1') in result.stderr


@pytest.mark.parametrize("change,own,other", [
    (drop_row, "40 rows of training data with tokens .{16}", "39 rows of training data with tokens .{16}"),
    (swap_rows, "40 rows of training data with tokens .{16}", "40 rows of training data with tokens .{16}"),
    (drop_row_of_evaluation, "9 rows of evaluation data with tokens .{16}", "8 rows of evaluation data with tokens .{16}"),
    (change_config, "config.json of the model with content .{16}", "config.json of the model with content .{16}"),
    (change_weights, "weights of the model with content .{16}", "weights of the model with content .{16}"),
])
def test_ranks_with_other_files_are_named_before_training(copies, change, own, other):
    change(copies)
    result = start(copies, flags_of(copies, eval_strategy="steps"))
    assert result.returncode == 2, result.stderr
    line = re.search(f'error: model and data: found "({own})" on rank 0 but "({other})" on rank 1, expected the same on all ranks',
                     result.stderr)
    assert line and line[1] != line[2], result.stderr
    assert "again" not in result.stderr
    assert not [name for name in os.listdir(copies / "out") if name != ".lock"]


TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("template", ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"])
def test_machines_on_either_side_of_midnight_train(copies, template):
    """Rows into which the template writes the date differ, and are still the same rows."""
    for rank in "01":
        (copies / rank / "model" / template).parent.mkdir(exist_ok=True)
        (copies / rank / "model" / template).write_text(DATED)
        if "tool" in template:
            file = copies / rank / "data" / "train.jsonl"
            rows = [json.loads(line) for line in file.open()]
            file.write_text("".join(json.dumps({**row, "tools": TOOLS}) + "\n" for row in rows))
    zones = f'TZ=$([ $RANK = 0 ] && echo "{ZONES[0]}" || echo "{ZONES[1]}")'
    result = start(copies, flags_of(copies, dataset_cache=False), before=zones)
    assert result.returncode == 0, result.stderr
    drop_row(copies)
    result = start(copies, flags_of(copies, dataset_cache=False), before=zones)
    assert '"40 rows of training data" on rank 0 but "39 rows of training data" on rank 1' in result.stderr


def test_ranks_that_would_decode_unequally_often(tmp_path):
    """The files bound the answers of evaluations, and every token of one is an exchange."""
    for rank, longest in (("0", 3), ("1", 9)):
        save_t5(tmp_path / rank / "model")
        save_pairs(tmp_path / rank / "data")
        file = tmp_path / rank / "model" / "generation_config.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps({**before, "max_new_tokens": longest}))
    flags = {"model_name_or_path": "model", "dataset_name": "data", "output_dir": tmp_path / "out", "max_steps": 2,
             "eval_strategy": "steps", "predict_with_generate": True}
    result = start(tmp_path, flags, recipe="seq2seq")
    assert result.returncode == 2, result.stderr
    assert re.search(r'model and data: found "answers of 3 tokens at most that end with \[1\]" on rank 0 but '
                     r'"answers of 9 tokens at most that end with \[1\]" on rank 1', result.stderr), result.stderr
