"""Oracle: PEFT's own loftq_init, whose source runs here on the CPU instead of "cuda"."""

import inspect

import peft.tuners.lora.layer
import peft.utils.loftq_utils as loftq_utils
import pytest
import torch

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from test_lora import attach, probe_name, randomise
from test_merge import merge

SETTINGS = dict(target_modules=["q_proj", "down_proj"], r=4, init_lora_weights="loftq")
CASES = {"nf4": dict(loftq_bits=4, loftq_iter=1), "nf4_again": dict(loftq_bits=4, loftq_iter=3),
         "int8": dict(loftq_bits=8, loftq_iter=2)}
# bitsandbytes' kernels need rows of at least a block, see test_quantization.py.
WIDE = dict(hidden_size=64, intermediate_size=76)


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
    save_checkpoint(tmp_path, scale=0.08, **WIDE)
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
    from safetensors.torch import load_file
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for weight, values in model.merge_and_unload().state_dict().items():
        assert relative_error(merged[weight], values) < 1e-6, weight


def test_a_quantised_base_is_refused(tmp_path):
    save_checkpoint(tmp_path)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)), lora=SETTINGS,
                               quantization=dict(kind="nf4"))
    assert process.returncode == 2
    assert "init_lora_weights: found loftq over the quantised" in process.stderr
