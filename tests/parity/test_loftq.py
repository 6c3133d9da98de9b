"""Oracle: PEFT's own loftq_init and replace_lora_weights_loftq, whose source runs here on the CPU
instead of "cuda"."""

import inspect
import json
import subprocess

import peft.tuners.lora.layer
import peft.utils.loftq_utils as loftq_utils
import pytest
import torch
from safetensors.torch import load_file

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe
from quantised_reference import BASES, ROWS_OF_A_BLOCK, attach_quantised
from running import PROGRAM, base_flags, environment, run_strata, run_strata_raw
from test_lora import attach, probe_name, randomise
from test_merge import merge

SETTINGS = dict(target_modules=["q_proj", "down_proj"], r=4, init_lora_weights="loftq")
CASES = {"nf4": dict(loftq_bits=4, loftq_iter=1), "nf4_again": dict(loftq_bits=4, loftq_iter=3),
         "int8": dict(loftq_bits=8, loftq_iter=2)}


@pytest.fixture(autouse=True)
def loftq_on_the_cpu(monkeypatch):
    source = inspect.getsource(loftq_utils.loftq_init)
    assert source.count('"cuda"') == 1
    names = dict(vars(loftq_utils))
    exec(source.replace('"cuda"', '"cpu"'), names)
    monkeypatch.setattr(peft.tuners.lora.layer, "loftq_init", names["loftq_init"])


@pytest.mark.parametrize("name", CASES)
def test_equals_peft(tmp_path, name):
    lora = dict(SETTINGS, loftq_config=CASES[name])
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    model = attach(tmp_path, lora, torch.float32, seed=1)
    first = {n: p.detach().clone() for n, p in model.named_parameters() if ".lora_" in n}
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((23, 9))
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, lora=lora, seed=1,
                         adapter=str(tmp_path / "adapter"))
    for a in [n for n in first if ".lora_A." in n]:
        b = a.replace(".lora_A.", ".lora_B.")
        product = found["init:" + probe_name(b)] @ found["init:" + probe_name(a)]
        # A singular vector and its negative are as good.
        assert relative_error(product, first[b] @ first[a]) < 1e-4, a
    assert relative_error(found["logits"], logits) < 1e-5
    for n, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert relative_error(found["grad:" + probe_name(n)], parameter.grad) < 1e-5, n
    process = merge(tmp_path)
    assert process.returncode == 0, process.stderr
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for weight, values in model.merge_and_unload().state_dict().items():
        assert relative_error(merged[weight], values) < 1e-6, weight


@pytest.mark.parametrize("name", ["nf4", "nf4_double", "fp4"])
def test_codes_that_stay(tmp_path, monkeypatch, name):
    """PEFT's replace_lora_weights_loftq over bitsandbytes' layers; one target has none."""
    source = inspect.getsource(loftq_utils._loftq_init_new)
    assert source.count('"cuda"') == 1
    names = dict(vars(loftq_utils))
    exec(source.replace('"cuda"', '"cpu"'), names)
    monkeypatch.setattr(loftq_utils, "_loftq_init_new", names["_loftq_init_new"])
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    lora = dict(target_modules=["q_proj", "down_proj", "lm_head"], r=4)
    settings, request = BASES[name]
    model = attach_quantised(tmp_path, settings, **lora).train()
    loftq_utils.replace_lora_weights_loftq(model, str(tmp_path / "model.safetensors"))
    documents = make_documents((23, 9))
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, seed=1, training=True,
                         quantization=request, lora=dict(lora, init_lora_weights="loftq",
                                                         loftq_config=CASES["nf4"]))
    fitted = 0
    for name, b in model.named_parameters():
        if ".lora_B." not in name:
            continue
        a = model.get_parameter(name.replace(".lora_B.", ".lora_A."))
        product = (found["init:" + probe_name(name)]
                   @ found["init:" + probe_name(name).replace(".lora_B.", ".lora_A.")])
        # A singular vector and its negative are as good.
        assert relative_error(product, (b @ a).detach()) < 1e-4, name
        fitted += b.abs().sum().item() > 0
    assert fitted == 4
    assert relative_error(found["logits"], logits) < 1e-5
    assert relative_error(found["loss"], loss) < 1e-5


def test_a_run_over_codes(inputs, tmp_path):
    """Ranks share the work, one may read for all; the file is an adapter of the codes."""
    flags = dict(use_peft=True, lora_r=2, lora_target_modules=["q_proj"], max_steps=1,
                 learning_rate=0, load_in_4bit=True, init_lora_weights="loftq",
                 gradient_checkpointing=False, save_strategy="steps", save_steps=1)
    files = []
    for world, sends in ((1, False), (2, False), (2, True)):
        out = tmp_path / f"{world}{sends}"
        run_strata(base_flags(inputs.model("wide"), inputs.data("messages"), out,
                              fsdp_cpu_ram_efficient_loading=sends, **flags), world)
        files.append(load_file(out / "adapter_model.safetensors"))
        assert json.loads((out / "adapter_config.json").read_text())["init_lora_weights"] is True
    assert all(v.abs().sum() > 0 for v in files[0].values())
    assert all(torch.equal(v, other[n]) for other in files[1:] for n, v in files[0].items())
    process = subprocess.run([PROGRAM, "convert", out / "checkpoint-1", tmp_path / "adapter", "--to",
                              "safetensors", "--weights_only"], env=environment())
    assert process.returncode == 0
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["init_lora_weights"] is True


def test_codes_without_their_weights_are_refused(inputs, tmp_path):
    """A checkpoint that bitsandbytes stored holds nothing to compare its codes with."""
    base = tmp_path / "base"
    done = subprocess.run([PROGRAM, "convert", inputs.model("wide"), base, "--to", "bnb-4bit"],
                          capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    run = run_strata_raw(base_flags(base, inputs.data("messages"), tmp_path / "out", use_peft=True,
                                    lora_r=2, max_steps=1, init_lora_weights="loftq"), world=2)
    assert run.returncode == 2
    assert "of which the checkpoint holds codes alone, expected plain weights" in run.text
    assert not list((tmp_path / "out").glob("adapter_*"))
