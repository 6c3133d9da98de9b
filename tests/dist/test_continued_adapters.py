"""Oracle: the result that the same run wrote at the same step."""

import json

import pytest
import torch
from safetensors.torch import load_file

from edited_checkpoints import rewrite
from running import base_flags, run_strata, strata

# Settings of the run that makes the adapter; those of the run that continues it are the defaults.
FIRST = {
    "rslora": dict(lora_r=3, lora_alpha=12, use_rslora=True, lora_target_modules=["q_proj", "up_proj"]),
    "ia3": dict(peft_type="IA3"),
    "pissa": dict(lora_r=2, lora_alpha=5, init_lora_weights="pissa", lora_target_modules=["v_proj"]),
}


def forget_the_config(checkpoint):
    """A checkpoint as versions wrote them that kept the run's settings alone."""
    (checkpoint / "adapter_config.json").unlink()
    rewrite(checkpoint, lambda manifest: manifest["files"].pop("adapter_config.json"))


@pytest.mark.parametrize("method, kind", [
    ("rslora", "SHARDED_STATE_DICT"), ("rslora", "FULL_STATE_DICT"), ("rslora", "earlier version"),
    ("ia3", "SHARDED_STATE_DICT"), ("pissa", "SHARDED_STATE_DICT")])
def test_a_checkpoint_of_a_continued_adapter(inputs, tmp_path, method, kind):
    base, data = inputs.model("plain"), inputs.data("messages")
    run_strata(base_flags(base, data, tmp_path / "first", use_peft=True, max_steps=2, learning_rate=2e-2,
                          **FIRST[method]))
    more = {} if kind == "earlier version" else dict(fsdp_state_dict_type=kind)
    run = run_strata(base_flags(base, data, tmp_path / "out", adapter_name_or_path=tmp_path / "first",
                                max_steps=2, save_strategy="steps", save_steps=2, learning_rate=2e-2,
                                **more), world=2)
    checkpoint = run.folder / "checkpoint-2"
    if kind == "earlier version":
        forget_the_config(checkpoint)
    elif method == "rslora":
        assert "LoRA of rank 3" in strata("inspect", checkpoint)
    strata("convert", checkpoint, tmp_path / "adapter", "--to", "safetensors", "--weights_only")
    configs = [json.loads((f / "adapter_config.json").read_text())
               for f in (tmp_path / "adapter", run.folder)]
    assert configs[0] == configs[1]
    merged = {}
    for name, adapter in (("checkpoint", checkpoint), ("result", run.folder)):
        strata("merge-adapter", adapter, tmp_path / name, "--base_model", base)
        merged[name] = load_file(tmp_path / name / "model.safetensors")
    assert all(torch.equal(merged["checkpoint"][n], t) for n, t in merged["result"].items())
    if kind == "earlier version":
        (tmp_path / "first").rename(tmp_path / "moved")
        said = strata("merge-adapter", checkpoint, tmp_path / "none", "--base_model", base, code=2)
        assert "put a copy of it into the checkpoint's folder" in said
        (checkpoint / "adapter_config.json").write_text(json.dumps(configs[1]))
        strata("merge-adapter", checkpoint, tmp_path / "again", "--base_model", base)
        again = load_file(tmp_path / "again" / "model.safetensors")
        assert all(torch.equal(again[n], t) for n, t in merged["result"].items())


def test_none_among_the_settings_of_a_run_is_no_name(inputs, tmp_path):
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", use_peft=True,
                                lora_target_modules=["q_proj"], lora_target_parameters="none", max_steps=1,
                                save_strategy="steps", save_steps=1))
    forget_the_config(run.folder / "checkpoint-1")
    strata("convert", run.folder / "checkpoint-1", tmp_path / "adapter", "--to", "safetensors", "--weights_only")
    found, expected = [json.loads((f / "adapter_config.json").read_text()) for f in (tmp_path / "adapter", run.folder)]
    assert found.get("target_parameters") is expected.get("target_parameters") is None
