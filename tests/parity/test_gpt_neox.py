# Oracle: transformers' GPT-NeoX and PEFT over it, finite differences for dropout.
import json
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import BUILD, relative_error, run_probe, run_probe_raw
from test_gpt2 import edit_config, loss_of
from test_llama import compare
from test_lora import attach, randomise

LENGTHS = (23, 1, 9, 40)
WAYS = [{}, dict(use_parallel_residual=False)]
IDS = ["side_by_side", "one_after_the_other"]


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def write(folder, weights):
    save_file({name: value.clone() for name, value in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})


def equals_transformers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(folder, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("settings", [{}, dict(tie_word_embeddings=True)], ids=["untied", "tied"])
def test_names_that_files_have(tmp_path, settings):
    """As published: embed_out and the buffers of older classes; lm_head as in the class; the body's weights alone."""
    save_checkpoint(tmp_path, family="gpt_neox", **settings)
    weights = weights_of(tmp_path)
    for layer in (0, 1):
        path = f"gpt_neox.layers.{layer}.attention."
        weights[path + "bias"] = torch.ones(1, 1, 64, 64).tril()
        weights[path + "masked_bias"] = torch.tensor(-1e9)
        weights[path + "rotary_emb.inv_freq"] = torch.ones(1)
    write(tmp_path, weights)
    equals_transformers(tmp_path)
    write(tmp_path, {name.replace("embed_out", "lm_head"): value for name, value in weights.items()})
    equals_transformers(tmp_path)
    write(tmp_path, {name.removeprefix("gpt_neox."): value for name, value in weights.items()})
    equals_transformers(tmp_path)


def test_a_tied_file_may_hold_the_output_layer(tmp_path):
    save_checkpoint(tmp_path, family="gpt_neox", tie_word_embeddings=True)
    weights = weights_of(tmp_path)
    weights["embed_out.weight"] = weights["gpt_neox.embed_in.weight"].clone()
    write(tmp_path, weights)
    equals_transformers(tmp_path)
    weights["embed_out.weight"] += 0.5
    write(tmp_path, weights)
    equals_transformers(tmp_path)


def test_files_in_parts(tmp_path):
    save_checkpoint(tmp_path, family="gpt_neox")
    AutoModelForCausalLM.from_pretrained(tmp_path).save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("model-*"))) > 2
    equals_transformers(tmp_path / "parts")


OLD_KEYS = [dict(rotary_pct=1.0, rotary_emb_base=500), dict(rotary_pct=0.5), dict(rotary_emb_base=300.0),
            dict(rotary_pct=0.5, rotary_emb_base=500, rope_scaling=dict(type="linear", factor=4.0)),
            # Which transformers passes over.
            dict(partial_rotary_factor=0.5, rope_theta=500.0)]


@pytest.mark.parametrize("keys", OLD_KEYS, ids=["all_channels", "half", "base", "scaled", "of_other_families"])
def test_older_keys_of_rotations(tmp_path, keys):
    save_checkpoint(tmp_path, family="gpt_neox")
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["rope_parameters"]
    file.write_text(json.dumps({**config, **keys}))
    equals_transformers(tmp_path)


def test_what_is_written_has_the_names_of_files(tmp_path):
    save_checkpoint(tmp_path, family="gpt_neox")
    model = attach(tmp_path, dict(target_modules=["dense", "lm_head"], r=2), torch.float32, seed=3)
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")

    def strata(*words):
        run = subprocess.run([BUILD / "strata", *words], capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr

    strata("merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", tmp_path)
    strata("convert", tmp_path / "merged", tmp_path / "torch", "--to", "bin")
    strata("convert", tmp_path / "torch", tmp_path / "again", "--to", "safetensors")
    names = weights_of(tmp_path).keys()
    for folder in ("merged", "again"):
        assert weights_of(tmp_path / folder).keys() == names, folder
        found = AutoModelForCausalLM.from_pretrained(tmp_path / folder).eval()
        ids = torch.arange(20)[None]
        with torch.no_grad():
            assert relative_error(found(ids).logits, model.eval()(ids).logits) < 1e-5


@pytest.mark.parametrize("rate", ["hidden_dropout", "attention_dropout"])
@pytest.mark.parametrize("settings", WAYS, ids=IDS)
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, settings, rate):
    """With masks that depend on the tokens alone the loss along the gradients has their slope."""
    documents = make_documents((23, 9))
    save_checkpoint(tmp_path, family="gpt_neox", **settings, **{rate: 0.25})
    weights = weights_of(tmp_path)
    dropped, found = loss_of(tmp_path, documents)
    again = loss_of(tmp_path, documents, checkpoint=True)[1]
    assert found.keys() == again.keys() and all(torch.equal(found[name], again[name]) for name in found)
    gradients = {name: found["grad:" + name.replace("embed_out", "lm_head")] for name in weights}
    lengths = {name: gradient.double().norm().item() for name, gradient in gradients.items()}
    direction = {name: gradients[name] / lengths[name] for name in weights}
    slope, step = sum(lengths.values()), 4e-3
    sides = []
    for sign in (1, -1):
        write(tmp_path, {name: value + sign * step * direction[name] for name, value in weights.items()})
        sides.append(loss_of(tmp_path, documents)[0])
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=5e-3)
    write(tmp_path, weights)
    edit_config(tmp_path, **{rate: 0.0})
    assert abs(loss_of(tmp_path, documents)[0] - dropped) > 1e-3


@pytest.mark.parametrize("settings", WAYS, ids=IDS)
def test_checkpointing_is_bit_equal(tmp_path, settings):
    save_checkpoint(tmp_path, family="gpt_neox", **settings)
    documents = make_documents(LENGTHS)
    plain, _ = run_probe(tmp_path, documents=documents, checkpoint=False)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, documents=documents, checkpoint=True)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


def test_dropout_is_for_training(tmp_path):
    save_checkpoint(tmp_path, family="gpt_neox", hidden_dropout=0.3, attention_dropout=0.2)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model.eval(), documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


@pytest.mark.parametrize("change,message", [
    (dict(hidden_act="tanh"), 'found hidden_act "tanh", expected gelu_new'),
    (dict(num_attention_heads=5), "found hidden_size = 32, expected a multiple of num_attention_heads = 5"),
    (dict(head_dim=4), "found head_dim = 4, expected hidden_size / num_attention_heads = 8"),
    (dict(hidden_dropout=1.0), "found hidden_dropout = 1, expected a number from 0 on and below 1"),
    (dict(rope_parameters=dict(rope_type="default", partial_rotary_factor=0.4)), "found partial_rotary_factor = 0.4"),
    (dict(rope_parameters=None, rotary_pct=0.2), "found rotary_pct = 0.2 of head_dim = 8"),
    (dict(rope_parameters=dict(rope_type="proportional")), 'found rope_type "proportional"'),
    (dict(attention_bias=False), "found tensors that config.json does not imply"),
])
def test_what_is_refused(tmp_path, change, message):
    save_checkpoint(tmp_path, family="gpt_neox")
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_prompts_and_prefixes_are_refused(tmp_path):
    save_checkpoint(tmp_path, family="gpt_neox")
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)),
                               lora=dict(peft_type="PREFIX_TUNING", num_virtual_tokens=2))
    assert process.returncode == 2
    assert "peft_type: found prompt or prefix tuning" in process.stderr
