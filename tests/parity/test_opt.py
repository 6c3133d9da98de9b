# Oracle: transformers' OPT and PEFT over it, finite differences for dropout.

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from test_gpt2 import edit_config, loss_of

LENGTHS = (23, 1, 9, 40)
CONFIGS = {
    "plain": {},
    "untied": dict(tie_word_embeddings=False, pad_token_id=None),
    # Of three layers two correct results are as far from the true one as the limit, by the processor's instructions.
    "odd": dict(hidden_size=30, num_attention_heads=3, ffn_dim=44, vocab_size=101, num_hidden_layers=2,
                max_position_embeddings=41, word_embed_proj_dim=30),
    "one_head": dict(num_attention_heads=1, activation_function="gelu", pad_token_id=5),
    # As OPT-350m, and without what only it has.
    "norms_behind_and_projections": dict(do_layer_norm_before=False, word_embed_proj_dim=12),
    "norms_behind": dict(do_layer_norm_before=False, tie_word_embeddings=False),
    "projections": dict(word_embed_proj_dim=48),
    "no_final_norm": dict(_remove_final_layer_norm=True),
    # As Galactica.
    "bare": dict(enable_bias=False, layer_norm_elementwise_affine=False, activation_function="gelu"),
    "bare_norms_behind": dict(layer_norm_elementwise_affine=False, do_layer_norm_before=False, vocab_size=101),
}


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def write(folder, weights):
    save_file({name: value.clone() for name, value in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})


def equals_transformers(folder, dtype="float32", limit=1e-5):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(folder, documents=documents, dtype=dtype)
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for name, gradient in gradients.items():
        if name.endswith("k_proj.bias"):  # without rotations zero but for rounding
            other = gradients[name.replace("k_proj", "q_proj")]
            errors[name] = (tensors["grad:" + name].double().norm() / other.double().norm()).item() / 10
        else:
            errors[name] = relative_error(tensors["grad:" + name], gradient)
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + name for name in gradients}
    worst = max(errors, key=errors.get)
    assert errors[worst] < limit, f"{worst}: {errors[worst]}"
    assert report["parameters"] == list(gradients)


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, family="opt", **CONFIGS[name])
    equals_transformers(tmp_path)


@pytest.mark.parametrize("name", ["plain", "norms_behind_and_projections", "bare"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_checkpoint(tmp_path, family="opt", **CONFIGS[name])
    documents = make_documents(LENGTHS)
    plain, _ = run_probe(tmp_path, documents=documents, checkpoint=False)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, documents=documents, checkpoint=True)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("name", ["plain", "norms_behind_and_projections", "bare"])
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    save_checkpoint(tmp_path, scale=0.04, family="opt", **CONFIGS[name])
    documents = make_documents(LENGTHS)
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    exact = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).float()
    run_reference(rounded, documents)
    run_reference(exact, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, dtype="bfloat16")
    ours, theirs = 0.0, 0.0
    for (name, a), (_, b) in zip(rounded.named_parameters(), exact.named_parameters()):
        if name.endswith("k_proj.bias"):
            continue
        ours += relative_error(tensors["grad:" + name], b.grad)
        theirs += relative_error(a.grad, b.grad)
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", ["plain", "norms_behind_and_projections"])
def test_names_that_files_have(tmp_path, name):
    """The body's weights alone, and a tied output layer under a name of its own, of the same values or others."""
    save_checkpoint(tmp_path, family="opt", **CONFIGS[name])
    weights = weights_of(tmp_path)
    write(tmp_path, {key.removeprefix("model."): value for key, value in weights.items()})
    equals_transformers(tmp_path)
    weights["lm_head.weight"] = weights["model.decoder.embed_tokens.weight"].clone()
    write(tmp_path, weights)
    equals_transformers(tmp_path)
    weights["lm_head.weight"] += 0.5
    write(tmp_path, weights)
    equals_transformers(tmp_path)


def loss_has_the_slope_of_its_gradients(folder, settings, rate, key=lambda rate: rate, step=4e-3):
    """With masks that depend on the tokens alone the loss along the gradients has their slope. `key`: what config.json says
    of the rate; `step`: small where the loss is curved."""
    documents = make_documents((23, 9))
    save_checkpoint(folder, **settings)
    edit_config(folder, **{rate: key(0.25)})
    weights = weights_of(folder)
    dropped, found = loss_of(folder, documents)
    again = loss_of(folder, documents, checkpoint=True)[1]
    assert found.keys() == again.keys() and all(torch.equal(found[key], again[key]) for key in found)
    moved = [key for key in weights if not key.endswith("k_proj.bias")]
    lengths = {key: found["grad:" + key].double().norm().item() for key in moved}
    slope = sum(lengths.values())
    sides = []
    for sign in (1, -1):
        write(folder, {key: value + (sign * step * found["grad:" + key] / lengths[key] if key in lengths else 0)
                       for key, value in weights.items()})
        sides.append(loss_of(folder, documents)[0])
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=5e-3)
    write(folder, weights)
    edit_config(folder, **{rate: key(0.0)})
    assert abs(loss_of(folder, documents)[0] - dropped) > 1e-3


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("name", ["plain", "norms_behind"])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, name, rate):
    loss_has_the_slope_of_its_gradients(tmp_path, dict(CONFIGS[name], family="opt", activation_function="gelu"), rate)


@pytest.mark.parametrize("change,message", [
    (dict(activation_function="tanh"), 'found activation_function "tanh", expected gelu_new'),
    (dict(num_attention_heads=5), "found hidden_size = 32, expected a multiple of num_attention_heads = 5"),
    (dict(layerdrop=0.1), "found layerdrop = 0.1, expected 0"),
    (dict(dropout=1.0), "found dropout = 1, expected a number from 0 on and below 1"),
    (dict(pad_token_id=97), "found pad_token_id = 97, expected a token of the vocabulary of 97"),
    (dict(word_embed_proj_dim=8), "embed_tokens.weight\" has shape [97, 32], config.json implies [97, 8]"),
])
def test_what_is_refused(tmp_path, change, message):
    save_checkpoint(tmp_path, family="opt")
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_a_document_beyond_the_positions_is_named(tmp_path):
    save_checkpoint(tmp_path, family="opt")
    run_probe(tmp_path, documents=make_documents((64, 3)))
    process, _ = run_probe_raw(tmp_path, documents=make_documents((3, 65)))
    assert process.returncode == 2
    assert "found a document of 65 tokens, expected at most 64" in process.stderr
