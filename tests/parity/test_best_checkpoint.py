# Oracle: TRL's SFTTrainer with the same flags on the same files: which checkpoint is the best, which
# are left, and whose weights the result has.
import pathlib
import shutil
import subprocess

import pytest
import safetensors.torch
import torch

import trl_reference
from probe import relative_error
from running import PROGRAM, base_flags, environment, run_strata, run_strata_raw

# The evaluated loss falls until step 6 and rises to step 8.
RATE = dict(learning_rate=3e-2, lr_scheduler_type="constant", max_grad_norm=0)
BY_STEPS = dict(max_steps=8, eval_strategy="steps", eval_steps=2, save_strategy="steps",
                save_steps=2, load_best_model_at_end=True, **RATE)
CASES = {
    "one_is_kept": dict(save_total_limit=1),
    "two_are_kept": dict(save_total_limit=2),
    "the_greatest_loss": dict(save_total_limit=2, greater_is_better=True),
    "seconds_save": dict(save_steps=4, metric_for_best_model="eval_loss"),
    "by_epoch": dict(max_steps=None, num_train_epochs=3, eval_strategy="epoch",
                     save_strategy="epoch", save_total_limit=1, learning_rate=1e-2),
    "saved_when_better": dict(save_strategy="best", metric_for_best_model="loss"),
    "kept_but_not_loaded": dict(load_best_model_at_end=False, metric_for_best_model="loss",
                                save_total_limit=2),
}
OURS = {"fsdp_state_dict_type": "FULL_STATE_DICT"}


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("plain"), inputs.data("messages", train=16), output,
                      **{**BY_STEPS, **flags})


def checkpoints(folder):
    return {p.name for p in folder.glob("checkpoint-*")}


def weights(folder):
    return safetensors.torch.load_file(folder / "model.safetensors")


def reference(flags, folder):
    """Trainer state, names of the checkpoints that are left, and the model after training."""
    datasets, _, _, transformers, trl = trl_reference.stack()
    own = trl_reference.OWN_FLAGS - {"save_strategy"}
    settings = {k: v for k, v in flags.items() if k not in own and v is not None}
    args = trl.SFTConfig(output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True,
                         save_strategy=settings.pop("save_strategy"), **settings)
    data = flags["dataset_name"]
    trainer = trl.SFTTrainer(
        model=str(flags["model_name_or_path"]), args=args,
        train_dataset=trl_reference.load_rows(datasets, data / "train.jsonl", folder / "cache"),
        eval_dataset=trl_reference.load_rows(datasets, data / "test.jsonl", folder / "cache"))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return trainer.state, checkpoints(folder), trainer.model.state_dict()


@pytest.mark.parametrize("name", CASES)
def test_equals_the_reference(inputs, tmp_path, name):
    flags = flags_of(inputs, tmp_path / "ours", **CASES[name])
    state, left, model = reference(flags, tmp_path / "theirs")
    run = run_strata({**flags, **OURS})
    ours = run.state
    assert ours["best_global_step"] == state.best_global_step
    assert ours["best_metric"] == pytest.approx(state.best_metric, rel=1e-4)
    assert checkpoints(run.folder) == left
    best = state.best_model_checkpoint and run.folder / pathlib.Path(state.best_model_checkpoint).name
    assert ours["best_model_checkpoint"] == (best and str(best))
    found = weights(run.folder)
    for key, value in found.items():
        assert relative_error(value, model[key]) < 0.02, key
    if best and flags["load_best_model_at_end"]:
        assert f"the result is the model of {best.name}" in run.text
        assert all(torch.equal(value, found[key]) for key, value in weights(best).items())


def test_a_resumed_run_knows_the_best(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "whole", save_total_limit=2, per_device_train_batch_size=1)
    whole = run_strata(flags, 2)
    losses = {r["step"]: r["eval_loss"] for r in whole.history if "eval_loss" in r}
    assert min(losses, key=losses.get) == 6, "the best one is the last: the cases above tell nothing"
    assert whole.state["best_global_step"] == 6 and whole.state["best_metric"] == losses[6]
    assert checkpoints(whole.folder) == {"checkpoint-6", "checkpoint-8"}
    # The folder is moved between the two runs; the best of the first is that of the second.
    run_strata({**flags, "output_dir": tmp_path / "first", "max_steps": 6}, 2)
    moved = shutil.move(tmp_path / "first", tmp_path / "moved")
    again = run_strata({**flags, "output_dir": moved, "resume_from_checkpoint": True}, 2)
    assert again.state["best_model_checkpoint"] == str(moved / "checkpoint-6")
    assert checkpoints(moved) == checkpoints(whole.folder)
    assert (moved / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()


def test_a_best_checkpoint_that_is_gone_is_named(inputs, tmp_path):
    flags = flags_of(inputs, tmp_path / "out", greater_is_better=True, max_steps=4)
    run = run_strata(flags)  # the loss falls: the greatest is the first
    assert run.state["best_global_step"] == 2
    shutil.rmtree(run.folder / "checkpoint-2")
    found = run_strata({**flags, "resume_from_checkpoint": True})
    assert "best_model_checkpoint: found nothing of" in found.text
    assert "load_best_model_at_end: found no best checkpoint" in found.text


# The loss falls, so that the greatest is not the last step's.
LORA = dict(use_peft=True, lora_r=4, lora_target_modules=["q_proj", "up_proj"], learning_rate=1e-2,
            greater_is_better=True)


def converted(checkpoint, out):
    process = subprocess.run([str(PROGRAM), "convert", checkpoint, out, "--to", "safetensors"],
                             capture_output=True, text=True, env=environment(), timeout=60)
    assert process.returncode == 0, process.stderr
    return out / "adapter_model.safetensors"


@pytest.mark.parametrize("more,world", [(LORA, 2), (dict(LORA, **OURS), 1),
                                        (dict(LORA, lora_modules_to_save=["lm_head"]), 3)],
                         ids=["sharded", "whole_files", "with_a_module"])
def test_the_best_adapter_is_the_result(inputs, tmp_path, more, world):
    flags = flags_of(inputs, tmp_path / "out", **more)
    run = run_strata(flags, world)
    losses = {r["step"]: r["eval_loss"] for r in run.history if "eval_loss" in r}
    best = max(losses, key=losses.get)
    assert run.state["best_global_step"] == best != 8
    assert f"the result is the model of checkpoint-{best}" in run.text
    found = safetensors.torch.load_file(run.folder / "adapter_model.safetensors")
    for step in losses:
        expected = safetensors.torch.load_file(
            converted(run.folder / f"checkpoint-{step}", tmp_path / f"of-{step}"))
        same = all(torch.equal(found[name], expected[name]) for name in expected)
        assert same == (step == best) and found.keys() == expected.keys(), step


@pytest.fixture(scope="module")
def rising(inputs, tmp_path_factory):
    """A run of 8 steps whose best evaluation is that of step 2, and the flags that go on from it."""
    flags = flags_of(inputs, tmp_path_factory.mktemp("rising") / "out", greater_is_better=True,
                     learning_rate=1e-3, max_steps=8)
    run = run_strata(flags, 2)
    assert run.state["best_global_step"] == 2  # the loss falls: the greatest is the first
    return flags, run


def model_of(checkpoint, out):
    subprocess.run([str(PROGRAM), "convert", checkpoint, out, "--to", "safetensors"], check=True,
                   capture_output=True, env=environment(), timeout=60)
    return weights(out)


def damage(checkpoint, how):
    file = checkpoint / "rank-00001.safetensors"
    data = file.read_bytes()
    if how == "flipped":
        file.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    elif how == "short":
        file.write_bytes(data[:-50])
    elif how == "missing":
        file.unlink()
    else:
        (checkpoint / "manifest.json").unlink()


@pytest.mark.parametrize("how", ["flipped", "short", "missing", "no_manifest"])
def test_a_damaged_best_checkpoint_is_named_and_nothing_is_lost(rising, tmp_path, how):
    flags, run = rising
    out = run.folder
    shutil.copytree(out, tmp_path / "whole")
    try:
        (out / "model.safetensors").unlink()
        shutil.rmtree(out / "checkpoint-8")
        damage(out / "checkpoint-2", how)
        again = {**flags, "resume_from_checkpoint": True}
        found = run_strata_raw(again, 2)
        assert found.returncode == 1
        assert str(out / "checkpoint-2") in found.text
        assert "(load_best_model_at_end); the last step is complete in checkpoint-8" in found.text
        assert not (out / "model.safetensors").exists()
        assert checkpoints(out) >= {"checkpoint-6", "checkpoint-8"}
        # The way that the message names: the model of the last step, as it was trained.
        found = run_strata({**again, "load_best_model_at_end": False, "greater_is_better": None}, 2)
        expected = model_of(tmp_path / "whole" / "checkpoint-8", tmp_path / "converted")
        for name, value in weights(found.folder).items():
            assert torch.equal(value, expected[name]), name
    finally:
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "whole", out)


def test_the_last_step_is_the_result_where_it_is_saved_nowhere_else(rising, tmp_path):
    """--save_strategy best writes no checkpoint of a last step that is not the best. With
    save_total_limit 1 the damaged one must not be what is left."""
    flags, run = rising
    shutil.copytree(run.folder, tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").unlink()
    shutil.rmtree(tmp_path / "out" / "checkpoint-8")
    expected = model_of(run.folder / "checkpoint-8", tmp_path / "converted")
    # The best one is that of the run's folder, which trainer_state.json names; without it, that of
    # the same name in this one.
    shutil.move(run.folder, tmp_path / "whole")
    try:
        damage(tmp_path / "out" / "checkpoint-2", "flipped")
        found = run_strata({**flags, "output_dir": tmp_path / "out", "save_strategy": "best",
                            "resume_from_checkpoint": True, "metric_for_best_model": "loss",
                            "save_total_limit": 1}, 2)
    finally:
        shutil.move(tmp_path / "whole", run.folder)
    assert "warning: load_best_model_at_end: " in found.text and "checkpoint-2" in found.text
    assert "the result is the model of the last step" in found.text
    assert not (tmp_path / "out" / "checkpoint-8").exists()
    assert checkpoints(tmp_path / "out") >= {"checkpoint-2", "checkpoint-6"}
    for name, value in weights(found.folder).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("limit", [None, 1])
def test_the_best_checkpoint_of_another_folder_stays_there(rising, tmp_path, limit):
    """A run that goes on elsewhere: the best one is still that of the first folder, and not its own to
    remove."""
    flags, run = rising
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    found = run_strata({**flags, "output_dir": tmp_path / "second", "save_total_limit": limit,
                        "resume_from_checkpoint": run.folder / "checkpoint-4"}, 2)
    assert found.state["best_model_checkpoint"] == str(run.folder / "checkpoint-2")
    assert "the result is the model of checkpoint-2" in found.text
    expected = model_of(run.folder / "checkpoint-2", tmp_path / "converted")
    for name, value in weights(found.folder).items():
        assert torch.equal(value, expected[name]), name
    assert before == {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    assert checkpoints(found.folder) == ({"checkpoint-8"} if limit else {"checkpoint-6", "checkpoint-8"})


def test_refusals(inputs, tmp_path):
    for flags, message in ((dict(eval_strategy="epoch"), "expected the same"),
                           (dict(save_steps=3), "multiple of eval_steps"),
                           (dict(metric_for_best_model="bleu"), "found bleu, expected a metric")):
        run = run_strata_raw(flags_of(inputs, tmp_path / "out", **flags))
        assert run.returncode == 2 and message in run.text
