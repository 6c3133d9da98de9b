# Oracle: what people name in the place of a model, an adapter or a data set, and is something else, ends the run
# with the words that lead to what they meant; the command that a message gives is run.
import json
import re
import shlex
import shutil

import pytest

from failing import assert_nothing_written, data_folder, fail, flags_of
from running import base_flags, run_strata, strata

LORA = dict(use_peft=True, lora_r=2, save_strategy="steps", save_steps=1, max_steps=1)
# As git leaves it where Git LFS is not installed.
POINTER = ("version https://git-lfs.github.com/spec/v1\n"
           f"oid sha256:{'4d7a' * 16}\nsize 4976698672\n")


@pytest.fixture(scope="module")
def adapter(inputs, tmp_path_factory):
    """A finished run with one checkpoint in shards."""
    folder = tmp_path_factory.mktemp("adapter") / "run"
    return run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), folder, **LORA)).folder


def test_an_adapter_as_the_model(inputs, adapter, tmp_path):
    text = fail(flags_of(inputs, adapter, tmp_path))
    found = re.search(rf"model_name_or_path: found an adapter in {adapter}, expected its base model; to continue "
                      r"training it pass (.*)", text)
    assert found, text
    assert_nothing_written(tmp_path / "out")
    names = dict(zip(*[iter(shlex.split(found[1]))] * 2))
    flags = base_flags(names["--model_name_or_path"], inputs.data("messages"), tmp_path / "out", max_steps=1,
                       adapter_name_or_path=names["--adapter_name_or_path"])
    assert (run_strata(flags).folder / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("setting", ["model_name_or_path", "adapter_name_or_path"])
def test_a_checkpoint_in_shards(inputs, adapter, tmp_path, setting):
    flags = {**flags_of(inputs, inputs.model("plain"), tmp_path), setting: adapter / "checkpoint-1"}
    text = fail(flags)
    found = re.search(rf"{setting}: found a sharded checkpoint of a run in {adapter}/checkpoint-1, expected whole "
                      r"files; continue its run with --resume_from_checkpoint .*, or run (strata convert .*) and "
                      r"name OUT", text)
    assert found, text
    assert_nothing_written(tmp_path / "out")
    words = shlex.split(found[1].replace("OUT", str(tmp_path / "whole")))
    strata(*words[1:])
    run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=1,
                          adapter_name_or_path=tmp_path / "whole"))


def test_a_model_as_the_adapter(inputs, tmp_path):
    model = inputs.model("plain")
    text = fail(flags_of(inputs, model, tmp_path, adapter_name_or_path=model))
    assert f"--adapter_name_or_path: found a model in {model}, expected an adapter" in text, text
    assert_nothing_written(tmp_path / "out")


def test_the_folder_around_a_model(inputs, tmp_path):
    model = shutil.copytree(inputs.model("plain"), tmp_path / "models/llama")
    text = fail(flags_of(inputs, model.parent, tmp_path))
    assert f"model_name_or_path: found no config.json in {model.parent}, expected" in text, text
    assert f"; did you mean {model}?" in text, text
    assert_nothing_written(tmp_path / "out")


def test_a_file_of_weights_as_the_model(inputs, tmp_path):
    model = inputs.model("plain")
    text = fail(flags_of(inputs, model / "model.safetensors", tmp_path))
    assert f"found the file {model}/model.safetensors, expected the folder that holds it; name {model}" in text, text


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_in_a_model(inputs, tmp_path, name):
    model = shutil.copytree(inputs.model("plain"), tmp_path / "model")
    (model / name).write_text(POINTER)
    text = fail(flags_of(inputs, model, tmp_path))
    assert f"{model}/{name}: found a pointer of Git LFS, expected the file itself; run git lfs pull" in text, text
    assert_nothing_written(tmp_path / "out")


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet", "train.csv"])
def test_a_pointer_of_git_lfs_in_a_data_set(inputs, tmp_path, name):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text(POINTER)
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, data=tmp_path / "data"))
    assert f"{name}: found a pointer of Git LFS, expected the file itself" in text, text


def test_an_empty_text_of_tools_is_none(inputs, tmp_path):
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    losses = []
    for kind in ({}, {"tools": ""}):
        folder = tmp_path / f"{len(kind)}"
        folder.mkdir()
        data = data_folder(folder, (json.dumps({**row, **kind}) + "\n") * 4)
        losses.append(run_strata(base_flags(inputs.model("plain"), data, folder / "out", max_steps=2)).losses)
    assert losses[0] == losses[1]


def test_a_prompt_without_a_completion_names_the_flag(inputs, tmp_path):
    data = data_folder(tmp_path, '{"prompt": "a", "response": "b"}\n' * 4)
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, data=data))
    assert "name its column with --dataset_columns completion=COLUMN" in text, text
    run_strata(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1,
                          dataset_columns="completion=response"))


def test_a_checkpoint_as_the_output_stays_whole(inputs, adapter, tmp_path):
    checkpoint = adapter / "checkpoint-1"
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), checkpoint, **LORA)
    text = fail(flags)
    assert f"output_dir: found {checkpoint}, a checkpoint of a run, expected a folder of its own" in text, text
    strata("inspect", checkpoint, "--verify")
    run_strata({**flags, "output_dir": tmp_path / "out", "max_steps": 2, "resume_from_checkpoint": checkpoint})


def test_a_checkpoint_of_trainer_as_the_output(inputs, tmp_path):
    for name in ("optimizer.pt", "scheduler.pt"):
        (tmp_path / name).write_bytes(b"")
    text = fail(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path, max_steps=1))
    assert f"output_dir: found {tmp_path}, a checkpoint of a run, expected a folder of its own" in text, text


# The names of a data set and of an output folder, both from the folder of the rows; which files would be read there, too.
TAKEN = {
    "itself": ("rows.jsonl", ".", ".", "metrics.jsonl"),
    "inside": ("rows.jsonl", ".", "out", "metrics.jsonl"),
    "by_the_name_of_a_folder": ("train.jsonl", ".", "train-1", "metrics.jsonl"),
    "by_a_pattern": ("rows.jsonl", "*.jsonl", ".", "metrics.jsonl"),
    "by_a_card": ("rows.jsonl", ".", "out", "checkpoint-1/config.json"),
}
FREE = {
    "a_split": ("train.jsonl", ".", "out"),
    "a_file": ("rows.jsonl", "rows.jsonl", "."),
    "a_pattern": ("rows.jsonl", "*.jsonl", "out"),
    "hidden": ("rows.jsonl", ".", ".out"),
    "beside": ("rows.jsonl", ".", "../out"),
}


def rows_in(inputs, tmp_path, name, card=""):
    folder = tmp_path / "rows"
    folder.mkdir()
    shutil.copy(inputs.data("messages") / "train.jsonl", folder / name)
    if card:
        (folder / "README.md").write_text(f'---\nconfigs:\n- config_name: a\n  data_files: "{card}"\n---\n')
    return folder


@pytest.mark.parametrize("name, data, output, file", TAKEN.values(), ids=TAKEN)
def test_an_output_that_would_become_rows(inputs, tmp_path, name, data, output, file):
    folder = rows_in(inputs, tmp_path, name, card="**/*.json*" if "config" in file else "")
    text = fail(base_flags(inputs.model("plain"), folder / data, folder / output, max_steps=1, splits="train"))
    assert f"output_dir: found {folder / output} in the data set {folder / data}, expected" in text, text
    assert "would be read as rows at the next start" in text, text
    assert sorted(p.name for p in folder.glob("*.json*")) == [name]


@pytest.mark.parametrize("name, data, output", FREE.values(), ids=FREE)
def test_an_output_beside_the_rows(inputs, tmp_path, name, data, output):
    """The next start reads the same rows: it goes on as if it had not been interrupted."""
    folder = rows_in(inputs, tmp_path, name)
    flags = base_flags(inputs.model("plain"), folder / data, folder / output, splits="train", max_steps=1,
                       save_strategy="steps", save_steps=1)
    run_strata(flags)
    run = run_strata({**flags, "max_steps": 2, "resume_from_checkpoint": True})
    assert "warning: resum" not in run.text and [row["step"] for row in run.metrics if "loss" in row] == [1, 2]
