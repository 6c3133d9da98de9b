# Oracle: to the bit, the run that never saw the bad batch, or that goes on from the checkpoint returned to.
import json
import random
import re
import shutil
import tempfile

import pytest
import safetensors.torch
import torch

import killing
from edited_checkpoints import set_step, spoil
from running import BUILD, base_flags, run_strata, run_strata_raw


@pytest.fixture(scope="module")
def poisoned(inputs, tmp_path_factory):
    """A model in which one character's embedding is not a number, and data with it in one row."""
    folder = tmp_path_factory.mktemp("poisoned")
    model = shutil.copytree(inputs.model("odd"), folder / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    token = tokenizer["model"]["vocab"]["~"]
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    tensors["model.embed_tokens.weight"][token] = torch.nan
    safetensors.torch.save_file(tensors, model / "model.safetensors", {"format": "pt"})
    data = folder / "data"
    data.mkdir()
    rows = [f"row {i} {'~' if i == 5 else 'ok'} and some more text" for i in range(12)]
    (data / "train.jsonl").write_text("".join(json.dumps({"text": r}) + "\n" for r in rows))
    return base_flags(model, data, folder / "out", max_steps=6, per_device_train_batch_size=1,
                      train_sampling_strategy="sequential", max_grad_norm=0)


def test_a_batch_that_is_not_finite_ends_the_run(poisoned, tmp_path):
    run = run_strata_raw({**poisoned, "output_dir": tmp_path / "out"}, 2)
    assert run.returncode == 1
    # Two ranks with a row each: step 3 holds rows 4 and 5.
    assert "step 3: found a loss of nan, expected a finite one, in rows 4, 5" in run.text
    assert run.text.count("found a loss of nan") == 1, "what all ranks have alike is told once a machine"
    # Weights that were trained may have become so.
    assert '; by now the weights hold nan in tensor "model.embed_tokens.weight" at [' in run.text


def test_of_many_rows_some_are_named(poisoned, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("".join(json.dumps({"text": "~ok"}) + "\n" for _ in range(80)))
    run = run_strata_raw({**poisoned, "dataset_name": data, "output_dir": tmp_path / "out",
                          "per_device_train_batch_size": 80}, 1)
    assert run.returncode == 1
    rows = ", ".join(map(str, range(64)))
    assert f"in rows {rows} and 16 more of the training data" in run.text, run.text


BROKEN = {
    "trained": ("model.layers.1.mlp.up_proj.weight", "nan", {}),
    "whole_on_each_rank": ("model.norm.weight", "nan", dict(sharding_strategy="NO_SHARD")),
    "frozen": ("model.layers.0.self_attn.q_proj.weight", "-inf",
               dict(use_peft=True, lora_r=2, lora_target_modules=["v_proj"])),
    "codes": ("model.layers.0.mlp.up_proj.weight", "inf", dict(use_peft=True, lora_r=2, load_in_8bit=True)),
    "in_a_file": ("model.layers.1.mlp.up_proj.weight", "nan", dict(offload_param_device="nvme")),
}


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("case", BROKEN)
def test_a_weight_of_the_base_that_is_not_finite_is_named(inputs, tmp_path, case, world):
    """Rows and learning rate are not at fault; the last value of the tensor rests on the last rank."""
    name, value, settings = BROKEN[case]
    model = shutil.copytree(inputs.model("odd"), tmp_path / "model")
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    tensors[name].view(-1)[-1] = float(value)
    place = [size - 1 for size in tensors[name].shape]
    safetensors.torch.save_file(tensors, model / "model.safetensors", {"format": "pt"})
    with tempfile.TemporaryDirectory(dir=BUILD) as disk:  # the tests' own folder may lie in memory
        if "offload_param_device" in settings:
            settings = {**settings, "offload_param_nvme_path": disk}
        run = run_strata_raw(base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=3, **settings), world)
    assert run.returncode == 1, run.text
    found = re.search(r"error: step 1: found (.*)", run.text)[1]
    named = re.escape(f'{model} holds ') + (r"(nan|-?inf) in tensor " if case == "codes" else f"{value} in tensor ") + \
        re.escape(f'"{name}"' + ("" if case == "codes" else f" at {place}"))
    assert re.search(named + ": neither the rows nor learning_rate is at fault; use another copy of the model", found), found
    assert "lower learning_rate" not in run.text


def test_evaluations_name_it_too(inputs, tmp_path):
    model = shutil.copytree(inputs.model("odd"), tmp_path / "model")
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    tensors["model.norm.weight"][3] = torch.nan
    safetensors.torch.save_file(tensors, model / "model.safetensors", {"format": "pt"})
    run = run_strata_raw(base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=1, eval_on_start=True,
                                    eval_strategy="steps"), 2)
    assert re.search(r"warning: evaluation after step 0: found \d+ batch(es)? with a loss that is not finite, which eval_loss "
                     rf'leaves out as Trainer\'s does; {re.escape(str(model))} holds nan in tensor "model.norm.weight" at \[3\]',
                     run.text), run.text


@pytest.mark.parametrize("accumulation,rows", [(1, "rows 4, 5"), (2, "rows 4, 5")])
def test_rollback_leaves_the_batch_out(poisoned, tmp_path, accumulation, rows):
    flags = {**poisoned, "on_nan": "rollback", "gradient_accumulation_steps": accumulation,
             "max_steps": 6 // accumulation, "save_strategy": "steps", "save_steps": 1}
    run = run_strata({**flags, "output_dir": tmp_path / "out"}, 2)
    bad = 3 if accumulation == 1 else 2
    assert f"warning: step {bad}: found a loss of nan" in run.text and f"in {rows} of" in run.text
    steps = [row["step"] for row in run.metrics if "loss" in row]
    assert steps == [s for s in range(1, 6 // accumulation + 1) if s != bad]
    losses = [row["loss"] for row in run.metrics if "loss" in row]
    summary, = [row["train_loss"] for row in run.metrics if "train_loss" in row]
    assert summary == pytest.approx(sum(losses) / len(losses), rel=1e-12), "the mean of what was learnt"
    # Nothing of the batch reached weights or moments.
    for rank in range(2):
        before, after = (run.folder / f"checkpoint-{s}" / f"rank-0000{rank}.safetensors"
                         for s in (bad - 1, bad))
        assert before.read_bytes() == after.read_bytes()
    manifest = json.loads((run.folder / f"checkpoint-{bad}" / "manifest.json").read_text())
    assert manifest["num_updates"] == bad - 1
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    shutil.copytree(run.folder / f"checkpoint-{bad}", resumed / f"checkpoint-{bad}")
    shutil.copy(run.folder / "metrics.jsonl", resumed)
    found = run_strata({**flags, "output_dir": resumed, "resume_from_checkpoint": True}, 2)
    assert killing.same_result(found, run)


def test_a_spike_is_left_out(inputs, tmp_path):
    # Weights that stand still: some batch is above the mean of those before.
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out",
                       max_steps=12, learning_rate=1e-12, max_loss_spike=1.0001)
    run = run_strata_raw(flags, 1)
    assert run.returncode == 1
    assert "expected at most 1.0001 times the running mean" in run.text
    losses = run_strata({**flags, "max_loss_spike": 0}, 1).losses
    spikes = [i + 1 for i in range(5, 12) if losses[i] > 1.0001 * sum(losses[:i]) / i]
    assert f"step {spikes[0]}: found a loss of {losses[spikes[0] - 1]:.3f}" in run.text


@pytest.fixture(scope="module")
def surprising(inputs, tmp_path_factory):
    """Rows of one letter, which a model learns soon, and from row 24 to 29 rows of noise."""
    folder = tmp_path_factory.mktemp("surprising")
    draw = random.Random(1)
    noise = ["".join(draw.choice("bcdfghjklmnpqrstvwxz0123456789") for _ in range(60))
             for _ in range(6)]
    rows = ["a" * 60] * 24 + noise + ["a" * 60] * 10
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": r}) + "\n" for r in rows))
    return base_flags(inputs.model("odd"), folder, folder / "out", per_device_train_batch_size=1,
                      train_sampling_strategy="sequential", lr_scheduler_type="constant",
                      max_loss_spike=1.5, on_nan="rollback", save_strategy="steps")


def test_a_spike_is_rolled_back(surprising, tmp_path):
    """A batch of noise leaves no trace in weights and moments."""
    flags = {**surprising, "max_steps": 14, "save_steps": 1, "per_device_train_batch_size": 2,
             "max_loss_spike": 1.25}
    # Two ranks with two rows each: step 7 holds rows 24 to 27, step 8 rows 28 to 31, half of them
    # letters.
    run = run_strata({**flags, "output_dir": tmp_path / "out", "max_steps": 9}, 2)
    assert re.search(r"warning: step 7: found a loss of \d\S*, expected at most 1.25 times the running "
                     r"mean of \d\S*, in rows 24, 25, 26, 27 of the training data", run.text), run.text
    left_out = sorted({int(n) for n in re.findall(r"warning: step (\d+): found", run.text)})
    steps = [row["step"] for row in run.metrics if "loss" in row]
    assert steps == [s for s in range(1, 10) if s not in left_out]
    for rank in range(2):
        before, after = (run.folder / f"checkpoint-{s}" / f"rank-0000{rank}.safetensors"
                         for s in (6, 7))
        assert before.read_bytes() == after.read_bytes()
    manifest = json.loads((run.folder / "checkpoint-9" / "manifest.json").read_text())
    assert manifest["num_updates"] == 9 - len(left_out)


def test_three_spikes_in_a_row_go_back_to_a_checkpoint(surprising, tmp_path):
    flags = {**surprising, "max_steps": 18, "save_steps": 5}
    run = run_strata({**flags, "output_dir": tmp_path / "out"}, 2)
    for step, rows in ((13, "24, 25"), (14, "26, 27"), (15, "28, 29")):
        assert re.search(rf"warning: step {step}: found a loss of \S+, expected at most 1.5 times .* in "
                         rf"rows {rows} of", run.text), run.text
    assert "weights and optimizer are those of checkpoint-10 again" in run.text
    # The same as weights of step 10 that go on at step 15.
    oracle = tmp_path / "oracle"
    shutil.copytree(run.folder / "checkpoint-10", oracle / "checkpoint-15")
    set_step(oracle / "checkpoint-15", 15)
    shutil.copy(run.folder / "metrics.jsonl", oracle)
    found = run_strata({**flags, "output_dir": oracle, "resume_from_checkpoint": True}, 2)
    assert [row["loss"] for row in run.history if row["step"] > 15] == [
        row["loss"] for row in found.history if row["step"] > 15]
    assert ((run.folder / "model.safetensors").read_bytes()
            == (found.folder / "model.safetensors").read_bytes())


def test_the_checkpoint_that_a_run_began_with_is_returned_to(surprising, tmp_path):
    """Also where it lies in another folder than the output."""
    flags = {**surprising, "max_steps": 18, "save_steps": 10}
    first = run_strata({**flags, "output_dir": tmp_path / "first", "max_steps": 10}, 2)
    source = first.folder / "checkpoint-10"
    run = run_strata({**flags, "output_dir": tmp_path / "second", "resume_from_checkpoint": source}, 2)
    assert "weights and optimizer are those of checkpoint-10 again" in run.text
    # As one in whose folder it lies.
    shutil.copytree(first.folder, tmp_path / "same")
    found = run_strata({**flags, "output_dir": tmp_path / "same", "resume_from_checkpoint": True}, 2)
    assert "weights and optimizer are those of checkpoint-10 again" in found.text
    assert ((run.folder / "model.safetensors").read_bytes()
            == (found.folder / "model.safetensors").read_bytes())


@pytest.mark.parametrize("settings", [
    dict(sharding_strategy="FULL_SHARD"),
    dict(sharding_strategy="NO_SHARD", gradient_accumulation_steps=2),
    dict(zero_stage=1, optim="adamw_8bit"),
    # Updates write the values that layers compute with.
    dict(zero_stage=1, optim="adamw_8bit", bf16=True),
    dict(sharding_strategy="NO_SHARD", bf16=True),
], ids=["full", "none_accumulating", "zero1_8bit", "zero1_8bit_copies", "none_copies"])
def test_weights_that_are_bad_go_back_to_the_last_good_ones(inputs, tmp_path, settings):
    # What is trained on is known by the batch, so weights of step 2 that go on at step 10 are the
    # same run as weights of step 2 that come back after step 10.
    flags = base_flags(inputs.model("odd"), inputs.data("messages", train=80), tmp_path / "out",
                       max_steps=12, save_strategy="steps", save_steps=2, on_nan="rollback",
                       **settings)
    short = run_strata({**flags, "output_dir": tmp_path / "short", "max_steps": 4,
                        "lr_scheduler_type": "constant"}, 2)
    flags["lr_scheduler_type"] = "constant"
    for folder in ("out", "oracle"):
        (tmp_path / folder).mkdir()
        shutil.copy(short.folder / "metrics.jsonl", tmp_path / folder)
    for step in (2, 4):
        shutil.copytree(short.folder / f"checkpoint-{step}", tmp_path / f"out/checkpoint-{step}")
    spoil(tmp_path / "out" / "checkpoint-4")
    shutil.copytree(short.folder / "checkpoint-2", tmp_path / "oracle" / "checkpoint-10")
    set_step(tmp_path / "oracle" / "checkpoint-10", 10)
    found = run_strata({**flags, "resume_from_checkpoint": True, "save_total_limit": 1}, 2)
    oracle = run_strata({**flags, "output_dir": tmp_path / "oracle",
                         "resume_from_checkpoint": tmp_path / "oracle" / "checkpoint-10"}, 2)
    for step in range(5, 11):
        assert f"warning: step {step}: found a loss of nan" in found.text, found.text
    # First the newest, which is spoilt as well; the three batches after it say so.
    for step, checkpoint in ((7, 4), (10, 2)):
        line = next(l for l in found.text.splitlines() if f"step {step}: found" in l)
        assert f"weights and optimizer are those of checkpoint-{checkpoint} again" in line
    assert [row["loss"] for row in found.history if row["step"] > 10] == [
        row["loss"] for row in oracle.history if row["step"] > 10]
    assert ((found.folder / "model.safetensors").read_bytes()
            == (oracle.folder / "model.safetensors").read_bytes())
    for name in ("rank-00000.safetensors", "rank-00001.safetensors"):
        if (oracle.folder / "checkpoint-12" / name).exists():
            assert ((found.folder / "checkpoint-12" / name).read_bytes()
                    == (oracle.folder / "checkpoint-12" / name).read_bytes())


def test_bad_weights_without_a_way_back_end_the_run(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=12,
                       save_strategy="steps", save_steps=4, on_nan="rollback")
    run_strata({**flags, "max_steps": 4}, 2)
    spoil(tmp_path / "out" / "checkpoint-4")
    # What another run saved in this folder is no way back.
    run_strata({**flags, "output_dir": tmp_path / "other", "max_steps": 2, "save_steps": 2}, 2)
    shutil.copytree(tmp_path / "other" / "checkpoint-2", tmp_path / "out" / "checkpoint-2")
    run = run_strata_raw({**flags, "resume_from_checkpoint": True}, 2)
    assert run.returncode == 1
    assert "are those of checkpoint-4 again" in run.text
    assert "expected a whole checkpoint of before step 4 to return to" in run.text
    run = run_strata_raw({**flags, "resume_from_checkpoint": tmp_path / "out" / "checkpoint-4",
                          "output_dir": tmp_path / "none", "save_strategy": "no"}, 2)
    assert run.returncode == 1 and "expected a whole checkpoint of before step 5" in run.text


@pytest.mark.parametrize("world", [1, 2])
def test_a_last_update_that_spoils_the_weights_replaces_nothing(inputs, tmp_path, world):
    """Oracle: the files of the run before. Nothing but the weights tells: no further loss is computed."""
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=1, per_device_train_batch_size=1)
    good = run_strata(flags, world)
    before = {path.name: path.read_bytes() for path in good.folder.iterdir() if path.suffix == ".safetensors"}
    run = run_strata_raw({**flags, "learning_rate": 1e38, "save_strategy": "steps", "save_steps": 1}, world)
    assert run.returncode == 1 and "after the last update, expected finite weights; no result is written" in run.text, run.text
    assert "checkpoint-1 holds weights that are not known to be finite" in run.text
    assert before == {path.name: path.read_bytes() for path in good.folder.iterdir() if path.suffix == ".safetensors"}


@pytest.mark.parametrize("family, embedding", [("odd", "model.embed_tokens.weight"), ("nemotron_h", "backbone.embeddings.weight")])
def test_what_was_not_finite_from_the_start_is_no_reason(inputs, tmp_path, family, embedding):
    """Rows of tokens that nobody writes may hold anything, whatever files call them."""
    model = shutil.copytree(inputs.model(family), tmp_path / "model")
    token = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]["~"]
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    tensors[embedding][token] = torch.nan
    safetensors.torch.save_file(tensors, model / "model.safetensors", {"format": "pt"})
    run = run_strata(base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=1), 2)
    result = safetensors.torch.load_file(run.folder / "model.safetensors")
    assert [name for name, tensor in result.items() if not tensor.isfinite().all()] == [embedding]
