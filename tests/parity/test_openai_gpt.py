"""Oracle: transformers' GPT (the first) and PEFT over it, finite differences for dropout."""

import pytest
import torch

from llama_reference import make_documents, save_checkpoint
from probe import run_probe_raw
from test_falcon import merged_computes_what_the_adapter_does
from test_gpt2 import edit_config
from test_opt import equals_transformers, loss_has_the_slope_of_its_gradients, weights_of, write
from test_rotary_decoders import checkpointing_is_bit_equal, closeness_of_bfloat16

CONFIGS = {
    "plain": {},
    "odd": dict(n_embd=30, n_head=3, n_layer=3, n_positions=41, vocab_size=101, afn="silu", tie_word_embeddings=False),
    "one_head": dict(n_head=1, layer_norm_epsilon=1e-3, afn="relu"),
}
CONFIGS = {name: dict(settings, family="openai-gpt") for name, settings in CONFIGS.items()}


def save_body(folder):
    """As the published file: names without the body's, masks and numbers of positions among the weights."""
    weights = {key.removeprefix("transformer."): value for key, value in weights_of(folder).items()}
    write(folder, {**weights, "h.0.attn.bias": torch.ones(1, 1, 64, 64).tril(), "position_ids": torch.arange(64)})


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    equals_transformers(tmp_path)


@pytest.mark.parametrize("name", ["plain", "odd"])
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


def test_checkpointing_is_bit_equal(tmp_path):
    checkpointing_is_bit_equal(tmp_path, CONFIGS["odd"])


@pytest.mark.parametrize("rate", ["resid_pdrop", "embd_pdrop", "attn_pdrop"])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, rate):
    loss_has_the_slope_of_its_gradients(tmp_path, CONFIGS["plain"], rate)


def test_files_of_the_body(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    save_body(tmp_path)
    equals_transformers(tmp_path)
    # Of GPT-2's keys the class reads these nowhere.
    edit_config(tmp_path, n_inner=7, scale_attn_weights=False)
    equals_transformers(tmp_path)


@pytest.mark.parametrize("is_body", [False, True])
def test_merging(tmp_path, is_body):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    if is_body:
        save_body(tmp_path)
    merged_computes_what_the_adapter_does(tmp_path, dict(target_modules=["c_attn", "mlp.c_proj"], r=3))


@pytest.mark.parametrize("change,message", [
    (dict(afn="gelu_new"), 'found afn "gelu_new", expected gelu, relu, silu or swish'),
    (dict(n_head=5), "found n_embd = 32, expected a multiple of n_head = 5"),
    (dict(n_positions=30), 'transformer.positions_embed.weight" has shape [64, 32]'),
    (dict(attn_pdrop=1.0), "found attn_pdrop = 1, expected a number from 0 on and below 1"),
])
def test_what_is_refused(tmp_path, change, message):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_a_document_beyond_the_positions_is_named(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    process, _ = run_probe_raw(tmp_path, documents=make_documents((3, 65)))
    assert process.returncode == 2
    assert "found a document of 65 tokens, expected at most 64" in process.stderr
