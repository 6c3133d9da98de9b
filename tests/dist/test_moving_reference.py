# Oracle: the uninterrupted run, to the bit. A reference that follows the model (dpo, kto) against TRL and the run on one rank:
# tests/parity/test_dpo.py.
import functools
import shutil
import signal

import pytest

import killing
from edited_checkpoints import set_step, spoil
from running import base_flags, command, run_strata, start_strata, wait_for_step


def flags_of(inputs, output, kind="preference", test=9, **flags):
    return base_flags(inputs.model("odd"), inputs.data(kind, train=40, test=test), output,
                      **{"sync_ref_model": True, "ref_model_sync_steps": 2, "beta": 0.3, "save_strategy": "steps", "save_steps": 2,
                         "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, **flags})


# Checkpoint-3 lies between two moves, of a part of the ranks' shards that is none's whole; of 2 copies each has all.
@pytest.mark.parametrize("recipe, world, more", [
    ("dpo", 3, dict(gradient_accumulation_steps=2)), ("kto", 2, dict(sharding_strategy="NO_SHARD")),
    ("dpo", 4, dict(sharding_strategy="HYBRID_SHARD", parallelism_config_dp_shard_size=2))], ids=["shards", "copies", "both"])
def test_resumed_run_is_equal_to_the_bit(inputs, tmp_path, recipe, world, more):
    flags = functools.partial(flags_of, inputs, kind="rated" if recipe == "kto" else "preference", max_steps=6, save_steps=3, **more)
    whole = run_strata(flags(tmp_path / "whole"), world, recipe=recipe)
    assert (whole.folder / "checkpoint-3").exists()
    shutil.copytree(whole.folder, tmp_path / "out", ignore=shutil.ignore_patterns("checkpoint-6", "*model*"))
    (tmp_path / "out" / "latest").write_text("checkpoint-3\n")
    found = run_strata(flags(tmp_path / "out", resume_from_checkpoint="true"), world, recipe=recipe)
    assert killing.same_result(found, whole)


def test_a_request_to_stop_is_heard_while_the_reference_is_asked(inputs, tmp_path):
    """That may outlast what a scheduler waits, as an evaluation may: the run that goes on asks it anew."""
    flags = flags_of(inputs, tmp_path / "out", test=300, precompute_ref_batch_size=1, per_device_eval_batch_size=50)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, 2, recipe="dpo")
    process = start_strata(flags, 2, words=functools.partial(command, recipe="dpo"))
    wait_for_step(process, tmp_path / "out", 2)
    process.send_signal(signal.SIGUSR1)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert "checkpoint-2 is saved" in text and "begins with the evaluation that was broken off" in text
    found = run_strata({**flags, "resume_from_checkpoint": True}, 2, recipe="dpo")
    assert killing.same_result(found, whole)


def test_a_run_that_returns_to_a_checkpoint_has_its_reference(inputs, tmp_path):
    """As of other runs in test_rollback.py: weights of step 2 that come back after step 10 are those that go on at step 10. Until
    then the reference follows no weights that are not finite."""
    flags = flags_of(inputs, tmp_path / "out", max_steps=12, ref_model_sync_steps=3, eval_strategy="no", eval_steps=None,
                     on_nan="rollback", lr_scheduler_type="constant")
    short = run_strata({**flags, "output_dir": tmp_path / "short", "max_steps": 4}, 2, recipe="dpo")
    for folder in ("out", "oracle"):
        (tmp_path / folder).mkdir()
        shutil.copy(short.folder / "metrics.jsonl", tmp_path / folder)
    for step in (2, 4):
        shutil.copytree(short.folder / f"checkpoint-{step}", tmp_path / f"out/checkpoint-{step}")
    spoil(tmp_path / "out" / "checkpoint-4")
    shutil.copytree(short.folder / "checkpoint-2", tmp_path / "oracle" / "checkpoint-10")
    set_step(tmp_path / "oracle" / "checkpoint-10", 10)
    found = run_strata({**flags, "resume_from_checkpoint": True}, 2, recipe="dpo")
    oracle = run_strata({**flags, "output_dir": tmp_path / "oracle", "resume_from_checkpoint": tmp_path / "oracle" / "checkpoint-10"},
                        2, recipe="dpo")
    for step, checkpoint in ((7, 4), (10, 2)):
        line = next(l for l in found.text.splitlines() if f"step {step}: found" in l)
        assert f"weights and optimizer are those of checkpoint-{checkpoint} again" in line
    rows = [[(row["loss"], row["rewards/margins"]) for row in run.history if row["step"] > 10] for run in (found, oracle)]
    assert rows[0] == rows[1] and len(rows[0]) == 2
    assert (found.folder / "model.safetensors").read_bytes() == (oracle.folder / "model.safetensors").read_bytes()


def test_a_run_whose_reference_overflows_returns_to_a_checkpoint(inputs, tmp_path):
    """Weights may be finite and what the reference says of answers may not: that is found as of a run whose reference stays."""
    flags = flags_of(inputs, tmp_path / "out", max_steps=2, eval_strategy="no", eval_steps=None, ref_model_sync_steps=3,
                     lr_scheduler_type="constant")
    run_strata(flags, 2, recipe="dpo")
    shutil.copytree(tmp_path / "out", tmp_path / "stays")
    more = dict(flags, max_steps=12, learning_rate=1e25, on_nan="rollback", save_steps=50,
                resume_from_checkpoint=True)
    found, stays = [run_strata({**more, "output_dir": tmp_path / folder, "sync_ref_model": moves, "ref_model_sync_steps": every}, 2,
                               recipe="dpo") for folder, moves, every in (("out", True, 3), ("stays", False, None))]
    for run in (found, stays):
        assert "weights and optimizer are those of checkpoint-2 again" in run.text, run.text
        assert "look at the row" not in run.text
