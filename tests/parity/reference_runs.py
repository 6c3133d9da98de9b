"""What is so of every recipe whose answers are measured against a reference model: DPO and KTO."""

import math
import shutil

from running import run_strata


def expect_alike(found, expected, figures):
    """Two runs whose sums are made in other orders."""
    for ours, theirs in zip(found.history, expected.history, strict=True):
        assert ours.keys() == theirs.keys()
        for key in theirs:
            if key.removeprefix("eval_") in ("loss", "grad_norm", *figures):
                assert math.isclose(ours[key], theirs[key], rel_tol=1e-3, abs_tol=1e-4), (key, ours, theirs)


def expect_resumed_to_the_bit(flags_of, recipe, subject, tmp_path, settings, has_table):
    """`flags_of(output, **flags)`. The reference is the model before the first step, not the one of the checkpoint; figures go
    on amid a log."""
    flags = dict(save_strategy="steps", save_steps=6, eval_strategy="steps", eval_steps=4, logging_steps=4, **settings)
    whole = run_strata(flags_of(tmp_path / "whole", **flags), world=2, recipe=recipe)
    assert f"reference: log-probabilities of {subject} by the model as it starts" in whole.text
    resumed = tmp_path / "resumed"
    shutil.copytree(whole.folder, resumed, ignore=shutil.ignore_patterns("checkpoint-12", "*model*", "adapter*"))
    (resumed / "latest").write_text("checkpoint-6\n")
    if not has_table:
        (resumed / "reference_log_probs.table").unlink()
    found = run_strata(flags_of(resumed, resume_from_checkpoint="true", **flags), world=2, recipe=recipe)
    assert ("reference: log-probabilities" in found.text) == (not has_table)
    assert found.history == whole.history
    name = "adapter_model.safetensors" if settings else "model.safetensors"
    assert (found.folder / name).read_bytes() == (whole.folder / name).read_bytes()
