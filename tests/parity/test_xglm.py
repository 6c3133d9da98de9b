"""Oracle: transformers' XGLM and PEFT over it, finite differences for dropout."""

import pytest
import torch

from llama_reference import make_documents, save_checkpoint
from probe import run_probe, run_probe_raw
from test_config_keys import rename
from test_falcon import merged_computes_what_the_adapter_does
from test_gpt2 import edit_config
from test_opt import equals_transformers, loss_has_the_slope_of_its_gradients, weights_of, write
from test_rotary_decoders import checkpointing_is_bit_equal, closeness_of_bfloat16

CONFIGS = {
    "plain": {},
    "untied": dict(tie_word_embeddings=False, pad_token_id=None, scale_embedding=False),
    # A width with a column of zeros; the number of the padding token is that of a position, too.
    "odd": dict(d_model=33, attention_heads=3, ffn_dim=44, vocab_size=101, pad_token_id=5, activation_function="relu"),
    # Positions have no end.
    "one_head": dict(attention_heads=1, num_layers=3, max_position_embeddings=16),
}
CONFIGS = {name: dict(settings, family="xglm") for name, settings in CONFIGS.items()}


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    equals_transformers(tmp_path)


@pytest.mark.parametrize("name", ["plain", "untied"])
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


def test_checkpointing_is_bit_equal(tmp_path):
    checkpointing_is_bit_equal(tmp_path, CONFIGS["odd"])


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, rate):
    loss_has_the_slope_of_its_gradients(tmp_path, CONFIGS["plain"], rate)


def test_names_that_files_have(tmp_path):
    """Sizes under the names of all families; the body's weights alone, with positions that older files hold."""
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    rename(tmp_path, {"d_model": "hidden_size", "num_layers": "num_hidden_layers", "attention_heads": "num_attention_heads"}, wrong=7)
    weights = {key.removeprefix("model."): value for key, value in weights_of(tmp_path).items()}
    write(tmp_path, {**weights, "embed_positions.weights": torch.ones(66, 32)})
    equals_transformers(tmp_path)


def test_merging(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    merged_computes_what_the_adapter_does(tmp_path, dict(target_modules="all-linear", r=3))


def test_documents_of_a_row_do_not_see_each_other(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    first, second = make_documents((9, 23))
    both = run_probe(tmp_path, documents=[first, second])[0]["logits"].clone()
    alone = [run_probe(tmp_path, documents=[one])[0]["logits"].clone() for one in (first, second)]
    assert torch.allclose(both, torch.cat(alone), atol=1e-5)


@pytest.mark.parametrize("change,message", [
    (dict(add_cross_attention=True), "found add_cross_attention true, expected false"),
    (dict(layerdrop=0.1), "found layerdrop = 0.1, expected 0"),
    (dict(attention_heads=5), "found d_model = 32, expected a multiple of attention_heads = 5"),
    (dict(num_attention_heads=5), "found d_model = 32, expected a multiple of num_attention_heads = 5"),
    (dict(activation_function="tanh"), 'found activation_function "tanh", expected gelu_new'),
    (dict(pad_token_id=97), "found pad_token_id = 97, expected a token of the vocabulary of 97"),
    (dict(activation_dropout=1.0), "found activation_dropout = 1, expected a number from 0 on and below 1"),
])
def test_what_is_refused(tmp_path, change, message):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr
