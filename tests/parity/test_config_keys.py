"""Oracle: transformers, on config.json files whose keys have other names or values than its own programs write."""

import json

import pytest
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

import encoder_reference as encoders
import test_bart as bart
import test_t5 as t5
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import run_probe, run_probe_raw
from test_gpt2 import edit_config
from test_rotary_decoders import errors_beside
from tiny_t5 import GATED

T5_NAMES = {"d_model": "hidden_size", "d_kv": "head_dim", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
DISTILBERT_NAMES = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
BART_NAMES = {"d_model": "hidden_size", "encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads"}


def rename(folder, names, wrong=None):
    """Sizes under the names that all families share; `wrong`: what stands under the family's own beside them."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for own, shared in names.items():
        config[shared] = config.pop(own)
        if wrong is not None:
            config[own] = wrong
    file.write_text(json.dumps(config))


def encoder_equals_transformers(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    texts, task = encoders.make_texts((9, 23), types=False), encoders.make_task("classes", 2, 3)
    loss, logits = encoders.run_encoder(model, texts, task)
    encoders.compare_encoder(run_probe(folder, documents=texts, task=task)[0], model, texts, loss, logits, 1e-5)


def t5_equals_transformers(folder):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    pairs = t5.make_pairs(t5.LENGTHS)
    loss, logits = t5.run_reference(model, pairs)
    t5.compare(t5.run_probe(folder, pairs=pairs, checkpointing="full")[0], model, loss, logits, 1e-5)


@pytest.mark.parametrize("settings,change", [
    ({}, dict(dense_act_fn="gelu_new")),
    (GATED, dict(feed_forward_proj="relu")),  # beside dense_act_fn and is_gated_act
    (GATED, dict(dense_act_fn="silu")),
    (dict(family="MT5", feed_forward_proj="gated-gelu"), dict(dense_act_fn="relu")),
    (dict(family="UMT5", feed_forward_proj="gated-gelu"), dict(dense_act_fn="silu"))], ids=str)
def test_activation_of_t5(tmp_path, settings, change):
    t5.save_t5(tmp_path, tokenizer=False, vocab_size=t5.VOCABULARY, **settings)
    edit_config(tmp_path, **change)
    t5_equals_transformers(tmp_path)


@pytest.mark.parametrize("wrong", [None, 7])
@pytest.mark.parametrize("family", ["T5", "UMT5"])
def test_shared_names_of_t5(tmp_path, family, wrong):
    t5.save_t5(tmp_path, tokenizer=False, vocab_size=t5.VOCABULARY, family=family)
    rename(tmp_path, T5_NAMES, wrong)
    t5_equals_transformers(tmp_path)


def test_shared_name_of_layers_is_the_encoders(tmp_path):
    t5.save_t5(tmp_path, tokenizer=False, vocab_size=t5.VOCABULARY, num_layers=3, num_decoder_layers=2)
    file = tmp_path / "config.json"
    config = {**json.loads(file.read_text()), "num_layers": 2, "num_hidden_layers": 3}
    del config["num_decoder_layers"]
    file.write_text(json.dumps(config))
    t5_equals_transformers(tmp_path)


@pytest.mark.parametrize("wrong", [None, 8])
def test_shared_names_of_bart(tmp_path, wrong):
    bart.save(tmp_path, **bart.CONFIGS["odd"])
    rename(tmp_path, BART_NAMES, wrong)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    pairs = bart.make_pairs(t5.LENGTHS)
    loss, logits = bart.run_reference(model, pairs)
    bart.compare_bart(t5.run_probe(tmp_path, pairs=pairs, checkpointing="full")[0], model, loss, logits)


@pytest.mark.parametrize("wrong", [None, 8])
def test_shared_names_of_distilbert(tmp_path, wrong):
    encoders.save_encoder(tmp_path, family="distilbert")
    rename(tmp_path, DISTILBERT_NAMES, wrong)
    encoder_equals_transformers(tmp_path)


@pytest.mark.parametrize("change", [
    dict(sliding_window=2),  # beside local_attention
    # One key for both kinds of layers, of which the older name of the kind means nothing.
    dict(rope_parameters=None, rope_scaling=dict(type="linear", factor=2.0)),
    dict(rope_parameters=None, rope_scaling=dict(rope_type="linear", factor=2.0), global_rope_theta=77.0)], ids=str)
def test_windows_and_rotations_of_modernbert(tmp_path, change):
    encoders.save_encoder(tmp_path, family="modernbert")
    edit_config(tmp_path, **change)
    encoder_equals_transformers(tmp_path)


def test_shared_names_of_bloom(tmp_path):
    save_checkpoint(tmp_path, family="bloom", n_head=2, hidden_size=32)
    rename(tmp_path, {"n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}, wrong=4)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents((9, 21))
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    assert max(errors_beside(tensors, model, loss, logits).values()) < 1e-5


@pytest.mark.parametrize("family,change,message", [
    ("llama", dict(transformers_weights="other.safetensors"),
     'found transformers_weights = "other.safetensors", expected model.safetensors, the weights that are read here'),
    ("llama", dict(per_layer_config={"0": {"num_key_value_heads": 2}}), "found per_layer_config in a model of type llama"),
    # Which transformers takes for false.
    ("deepseek_v3", dict(norm_topk_prob=None), "found norm_topk_prob = None, expected a value"),
    ("deepseek_v3", dict(rope_interleave=None), "found rope_interleave = None, expected a value"),
])
def test_what_is_refused(tmp_path, family, change, message):
    save_checkpoint(tmp_path, family=family)
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_the_name_of_the_weights_that_are_read(tmp_path):
    save_checkpoint(tmp_path)
    edit_config(tmp_path, transformers_weights="model.safetensors", per_layer_config={})
    run_probe(tmp_path, documents=make_documents((4,)))
