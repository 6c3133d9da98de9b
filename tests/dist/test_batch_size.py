# Oracle: the run whose batch size was written down, to the bit; the limit that was given.
import json
import re

import pytest

import tiny_llama
from running import base_flags, run_program, run_strata, run_strata_raw, strata

FLAGS = dict(max_length=120, packing=True, logging_steps=1, gradient_accumulation_steps=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_llama.save_model(tmp_path_factory.mktemp("batch-size") / "model", **dict(
        tiny_llama.PLAIN, hidden_size=128, intermediate_size=512, num_hidden_layers=4))


def planned(run):
    return float(re.search(r"memory plan: ([\d.]+) MB", run.text).group(1))


def losses(run):
    return [(row["loss"], row["grad_norm"]) for row in run.history if "loss" in row]


def test_as_many_rows_as_fit(inputs, model, tmp_path):
    def run(name, rows, world=2, **more):
        return run_strata(base_flags(model, inputs.data("messages", train=400), tmp_path / name, **FLAGS,
                                     **{"max_steps": 3, "per_device_train_batch_size": rows, **more}), world)

    few, many = planned(run("few", 1)), planned(run("many", 24))
    assert many > few + 30
    free = run("free", 24, auto_find_batch_size=True)
    assert "batch size: 24 of 24 rows" in free.text and "an update sees 96" in free.text
    limit = round((few + many) / 2, 1)  # as it is passed
    found = run("found", 24, auto_find_batch_size=True, memory_budget=f"{limit:.1f}MB")
    rows, bytes_planned = re.search(r"batch size: (\d+) of 24 rows \(([\d.]+) MB planned of", found.text).groups()
    assert 6 < int(rows) < 18 and limit - 6 < float(bytes_planned) <= limit
    assert planned(found) < limit * 1.02
    assert losses(found) == losses(run("written", int(rows)))
    # A larger one is chosen by the memory of today, a resumed run goes on as it began.
    flags = dict(auto_find_batch_size=True, max_steps=4, save_strategy="steps", save_steps=2)
    whole = run("resumed", 24, memory_budget=f"{limit:.1f}MB", **flags)
    rows = re.search(r"batch size: (\d+) of 24 rows", whole.text).group(1)
    assert 1 < int(rows) < 24
    (tmp_path / "resumed/checkpoint-4").rename(tmp_path / "set-aside")
    again = run("resumed", 24, resume_from_checkpoint=True, **flags)
    assert f"batch size: {rows} rows, as in the checkpoint" in again.text
    assert losses(again) == losses(whole)
    state = json.loads((tmp_path / "resumed/trainer_state.json").read_text())
    assert state["train_batch_size"] == int(rows)
    # But not beyond what fits today, or what is allowed.
    again = run("resumed", 24, resume_from_checkpoint=True, memory_budget=f"{few + (many - few) / 4:.1f}MB", **flags)
    found = re.search(r"batch size: (\d+) of 24 rows .*; the checkpoint's " + rows + " do not fit", again.text)
    assert 1 <= int(found.group(1)) < int(rows) and "rows per step (ranks x batch x accumulation)" in again.text
    assert "batch size: 2 of 2 rows" in run("resumed", 2, resume_from_checkpoint=True, **flags).text


def test_together_with_checkpointing_by_the_plan(inputs, model, tmp_path):
    run = run_strata(base_flags(model, inputs.data("messages"), tmp_path / "out", **FLAGS, max_steps=1,
                                per_device_train_batch_size=8, auto_find_batch_size=True,
                                activation_checkpointing="auto"))
    assert "batch size: 8 of 8 rows" in run.text and "activation checkpointing: none in all 4 layers" in run.text


def test_where_not_one_row_fits(inputs, model, tmp_path):
    run = run_strata_raw(base_flags(model, inputs.data("messages"), tmp_path / "out", **FLAGS,
                                    auto_find_batch_size=True, memory_budget="9MB"), 2)
    assert run.returncode not in (0, 2) and "Traceback" not in run.text
    assert re.search("auto_find_batch_size: found .* planned for a single row, expected at most 9.00 MB", run.text)


def test_an_evaluation_that_does_not_fit_is_named(inputs, model, tmp_path):
    flags = dict(FLAGS, eval_strategy="steps", eval_steps=1, per_device_train_batch_size=1, max_steps=1)
    small = run_program(base_flags(model, inputs.data("messages", test=200), tmp_path / "small",
                                   per_device_eval_batch_size=1, **flags))
    run = run_strata_raw(base_flags(model, inputs.data("messages", test=200), tmp_path / "large",
                                    per_device_eval_batch_size=100, auto_find_batch_size=True,
                                    memory_budget=f"{planned(small) + 4:.1f}MB", **flags))
    assert run.returncode != 0 and "lower per_device_eval_batch_size, without evaluation it would fit" in run.text


@pytest.mark.parametrize("sizes", [dict(train_batch_size=32), dict(train_micro_batch_size_per_gpu=16)],
                         ids=lambda sizes: next(iter(sizes)))
def test_a_deepspeed_file_that_says_the_rows_contradicts_it(inputs, model, tmp_path, sizes):
    (tmp_path / "ds.json").write_text(json.dumps({"gradient_accumulation_steps": 2, **sizes}))
    flags = base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=1, auto_find_batch_size=True,
                       deepspeed=tmp_path / "ds.json", per_device_train_batch_size=None)
    run = run_strata_raw(flags)
    assert run.returncode == 2 and "with auto_find_batch_size true" in run.text, run.text


def test_a_self_test_takes_the_rows_that_are_written_down(inputs, model):
    said = strata("selftest", "--cpu", "--num_processes", 2, "sft", "--model_name_or_path", model, "--dataset_name",
                  inputs.data("messages", train=400), "--auto_find_batch_size", "--group_by_length", "true",
                  "--per_device_train_batch_size", 2, "--memory_budget", "250MB")
    assert "not the same" not in said


def test_a_plan_chooses_too(model):
    words = ["plan", "sft", "--model_name_or_path", model, "--cpu", "--max_length", 120, "--packing",
             "--per_device_train_batch_size", 64, "--auto_find_batch_size"]
    free = strata(*words)
    assert "64 rows" in free
    peak = float(re.search(r"([\d.]+) MB at the peak", free).group(1))
    text = strata(*words, "--memory_budget", f"{peak - 10:.0f}MB")
    assert 1 < int(re.search(r"micro-batch  (\d+) rows", text).group(1)) < 64
