"""Oracle: the adapter that the run itself wrote at the same step, and what PEFT makes of both."""

import subprocess

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from running import PROGRAM, base_flags, environment, run_strata

METHODS = {
    "ia3": dict(peft_type="IA3", learning_rate=5e-2),
    "vera": dict(peft_type="VERA", lora_r=6, learning_rate=1e-1, projection_prng_key=5),
    "prompt": dict(peft_type="PROMPT_TUNING", num_virtual_tokens=3, learning_rate=1e-1),
    "projected": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=2, learning_rate=1e-1,
                      prefix_projection=True),
    "prefix": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=2, learning_rate=1e-1),
}


def strata(*words):
    process = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True,
                             timeout=60, env=environment())
    assert process.returncode == 0, process.stderr


def peft_logits(base, adapter):
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    with torch.no_grad():
        return model(input_ids=torch.arange(20)[None]).logits


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_is_the_adapter_of_its_step(inputs, tmp_path, name):
    base = inputs.model("plain")
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", use_peft=True,
                                max_steps=2, save_strategy="steps", save_steps=2,
                                **METHODS[name]), world=2)
    checkpoint = run.folder / "checkpoint-2"
    strata("convert", checkpoint, tmp_path / "adapter", "--to", "safetensors", "--weights_only")
    expected = load_file(run.folder / "adapter_model.safetensors")
    found = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    # A checkpoint leaves out what its key draws again.
    expected = {n: t for n, t in expected.items() if not n.startswith("base_model.vera_")}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert torch.equal(peft_logits(base, tmp_path / "adapter"), peft_logits(base, run.folder))
    if name in ("prompt", "prefix", "projected"):
        return
    merged = {}
    for kind, adapter in (("checkpoint", checkpoint), ("result", run.folder)):
        strata("merge-adapter", adapter, tmp_path / kind, "--base_model", base)
        merged[kind] = load_file(tmp_path / kind / "model.safetensors")
    assert all(torch.equal(merged["checkpoint"][n], t) for n, t in merged["result"].items())
