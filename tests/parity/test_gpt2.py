# Oracle: transformers' GPT-2 and gpt_bigcode and PEFT over them, finite differences for dropout.
import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import BUILD, relative_error, run_probe, run_probe_raw
from quantised_reference import BASES, attach_quantised
from test_llama import compare
from test_lora import attach, randomise

FAMILIES = ["gpt2", "gpt_bigcode"]
DROPOUT = dict(resid_pdrop=0.3, embd_pdrop=0.2, attn_pdrop=0.25)
LENGTHS = (23, 1, 9, 40)


def edit_config(folder, **change):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", [{}, dict(tie_word_embeddings=False)], ids=["tied", "untied"])
def test_names_of_the_first_files(tmp_path, family, settings):
    """transformers loads files without the body's name and with masks among the weights."""
    save_checkpoint(tmp_path, family=family, **settings)
    file = tmp_path / "model.safetensors"
    weights = {name.removeprefix("transformer."): value for name, value in load_file(file).items()}
    for layer in (0, 1):
        weights[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
        weights[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, file, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


def test_merging_into_the_first_files(tmp_path):
    """PEFT's merge of the same files; patterns mean paths with the body's name."""
    save_checkpoint(tmp_path, family="gpt2")
    file = tmp_path / "model.safetensors"
    save_file({name.removeprefix("transformer."): value for name, value in load_file(file).items()}, file,
              metadata={"format": "pt"})
    model = attach(tmp_path, dict(target_modules=["c_attn", "attn.c_proj", "wte"], r=4, lora_alpha=12,
                                  rank_pattern={"transformer.h.0.attn.c_attn": 2},
                                  alpha_pattern={"transformer.h.1.attn.c_attn": 3}), torch.float32, seed=3)
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    run = subprocess.run([BUILD / "strata", "merge-adapter", tmp_path / "adapter", tmp_path / "merged",
                          "--base_model", tmp_path], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    # The output layer keeps the base's values, as in PEFT's model; merge_and_unload() changes both.
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert relative_error(merged(ids).logits, model.eval()(ids).logits) < 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tied_file_may_hold_the_output_layer(tmp_path, family):
    save_checkpoint(tmp_path, family=family)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] = weights["transformer.wte.weight"].clone()
    save_file(weights, file, metadata={"format": "pt"})
    tensors, report = run_probe(tmp_path, documents=make_documents((9,)))
    assert "lm_head.weight" not in report["parameters"]
    weights["lm_head.weight"] += 0.5
    save_file(weights, file, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


def loss_of(folder, documents, **request):
    tensors, _ = run_probe(folder, documents=documents, training=True, **request)
    return tensors["loss"].double().item(), {name: value.clone() for name, value in tensors.items()}


@pytest.mark.parametrize("rate", DROPOUT)
@pytest.mark.parametrize("family,settings", [
    ("gpt2", {}), ("gpt_bigcode", {}), ("gpt_bigcode", dict(multi_query=False))], ids=["gpt2", "bigcode", "multi_head"])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, family, settings, rate):
    """With masks that depend on the tokens alone the loss along the gradients has their slope."""
    documents = make_documents((23, 9))
    zeros = {name: 0.0 for name in DROPOUT}
    save_checkpoint(tmp_path, family=family, **{**settings, **zeros, rate: DROPOUT[rate]})
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    dropped, found = loss_of(tmp_path, documents)
    assert loss_of(tmp_path, documents, checkpoint=True)[1].keys() == found.keys()
    again = loss_of(tmp_path, documents, checkpoint=True)[1]
    assert all(torch.equal(found[name], again[name]) for name in found)
    # Each tensor's own gradient at the same length: each has its share of the slope.
    lengths = {name: found["grad:" + name].double().norm().item() for name in weights}
    direction = {name: found["grad:" + name] / lengths[name] for name in weights}
    slope, step = sum(lengths.values()), 4e-3
    sides = []
    for sign in (1, -1):
        save_file({name: value + sign * step * direction[name] for name, value in weights.items()}, file,
                  metadata={"format": "pt"})
        sides.append(loss_of(tmp_path, documents)[0])
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=5e-3)
    save_file(weights, file, metadata={"format": "pt"})
    edit_config(tmp_path, **zeros)
    assert abs(loss_of(tmp_path, documents)[0] - dropped) > 1e-3


def test_dropout_is_for_training(tmp_path):
    save_checkpoint(tmp_path, family="gpt2", **DROPOUT)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model.eval(), documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


@pytest.mark.parametrize("family,change,message", [
    ("gpt2", dict(activation_function="tanh"), 'found activation_function "tanh", expected gelu_new'),
    ("gpt2", dict(add_cross_attention=True), "found add_cross_attention true"),
    ("gpt2", dict(n_head=5), "found n_embd = 32, expected a multiple of n_head = 5"),
    ("gpt_bigcode", dict(attn_pdrop=1.0), "found attn_pdrop = 1, expected a number from 0 on and below 1"),
    ("gpt_bigcode", dict(multi_query=False), "c_attn.weight\" has shape [48, 32], config.json implies [96, 32]"),
    ("gpt2", dict(n_positions=30), "transformer.wpe.weight\" has shape [64, 32]"),
])
def test_what_is_refused(tmp_path, family, change, message):
    save_checkpoint(tmp_path, family=family)
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_a_document_beyond_the_positions_is_named(tmp_path, family):
    save_checkpoint(tmp_path, family=family)
    run_probe(tmp_path, documents=make_documents((64, 3)))
    process, _ = run_probe_raw(tmp_path, documents=make_documents((3, 65)))
    assert process.returncode == 2
    assert "found a document of 65 tokens, expected at most 64" in process.stderr


@pytest.mark.parametrize("request_,message", [
    (dict(quantization=dict(kind="nf4")), "whose file holds it as [in, out]"),
    (dict(lora=dict(init_lora_weights="pissa")), "init_lora_weights: found pissa for"),
    (dict(lora=dict(init_lora_weights="olora")), "init_lora_weights: found olora for"),
    (dict(lora=dict(init_lora_weights="loftq")), "init_lora_weights: found loftq for"),
    (dict(lora=dict(peft_type="PREFIX_TUNING", num_virtual_tokens=2)), "peft_type: found prompt or prefix tuning"),
])
def test_what_has_no_form_over_conv1d_is_refused(tmp_path, request_, message):
    save_checkpoint(tmp_path, family="gpt2")
    request = {"lora": {}, **request_}
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)), **request)
    assert process.returncode == 2
    assert message in process.stderr


def test_codes_of_conv1d_are_no_weights(tmp_path):
    """transformers makes them of the transposed weights."""
    save_checkpoint(tmp_path, scale=0.08, family="gpt2", n_embd=64, n_inner=128)
    model = attach_quantised(tmp_path, BASES["nf4"][0], target_modules=["attn.c_proj"], r=4)
    model.save_pretrained(tmp_path / "adapter")
    folder = tmp_path / "codes"
    AutoModelForCausalLM.from_pretrained(tmp_path, device_map="cpu", quantization_config=BitsAndBytesConfig(
        load_in_4bit=True)).save_pretrained(folder)
    run = subprocess.run([BUILD / "strata", "merge-adapter", tmp_path / "adapter", tmp_path / "out", "--base_model",
                          folder, "--dequantize"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2
    assert "as codes, expected GPT-2's plain weights" in run.stderr
    assert not (tmp_path / "out").exists()
