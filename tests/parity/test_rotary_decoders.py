"""Oracle: transformers' StarCoder 2, Cohere, Cohere 2, Phi, Persimmon, StableLM, OLMo, Nemotron, Jais 2, GPT-J, CodeGen and GPT-Neo, finite differences for dropout."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from llama_reference import LLAMA3, gradients_of, make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from test_gpt2 import edit_config
from test_llama import DYNAMIC, LINEAR, LONGROPE, ROPE_500, YARN
from test_opt import loss_has_the_slope_of_its_gradients, weights_of, write

LENGTHS = (23, 1, 9, 40)
# Fast rotation: with slow one the gradient of k's bias nearly cancels and shows rounding only.
FAST = dict(rope_type="default", rope_theta=10.0)

STARCODER2 = {
    "starcoder2": dict(num_key_value_heads=2, rope_parameters=FAST),
    "starcoder2_window": dict(num_key_value_heads=1, sliding_window=7, hidden_act="gelu", rope_parameters=FAST),
    "starcoder2_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44,
                           vocab_size=101, num_hidden_layers=3, use_bias=False, tie_word_embeddings=False),
    "starcoder2_one_head": dict(num_attention_heads=1, num_key_value_heads=1, norm_epsilon=1e-3, use_bias=False,
                                hidden_act="silu", pad_token_id=5),
    "starcoder2_head_dim": dict(num_key_value_heads=2, head_dim=12, use_bias=False, rope_parameters=YARN),
    "starcoder2_linear": dict(num_key_value_heads=4, use_bias=False, rope_parameters=LINEAR),
    "starcoder2_old_keys": dict(num_key_value_heads=2, use_bias=False, rope_parameters=ROPE_500, old_rope_keys=True),
}
COHERE = {
    "cohere": dict(num_key_value_heads=2, logit_scale=0.25, pad_token_id=None),
    "cohere_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44,
                       vocab_size=101, num_hidden_layers=3, tie_word_embeddings=False),
    "cohere_head_norms": dict(num_key_value_heads=2, use_qk_norm=True, head_dim=12, rope_parameters=ROPE_500),
    "cohere_one_head": dict(num_attention_heads=1, num_key_value_heads=1, use_qk_norm=True, layer_norm_eps=1e-3,
                            logit_scale=1.7),
    "cohere_biases": dict(num_key_value_heads=1, attention_bias=True, rope_parameters=FAST, pad_token_id=-3),
    "cohere_dynamic": dict(num_key_value_heads=4, rope_parameters=DYNAMIC, max_position_embeddings=16),
    "cohere_llama3": dict(num_key_value_heads=2, rope_parameters=LLAMA3, use_qk_norm=True),
}
COHERE2 = {
    "cohere2": dict(num_hidden_layers=4, num_key_value_heads=2, sliding_window=7),
    "cohere2_named_layers": dict(num_key_value_heads=1, sliding_window=5, logit_scale=0.25, pad_token_id=None,
                                 layer_types=["full_attention", "sliding_attention"], rope_parameters=ROPE_500),
    "cohere2_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44,
                        vocab_size=101, num_hidden_layers=3, sliding_window_pattern=2, tie_word_embeddings=False),
    "cohere2_biases": dict(num_key_value_heads=2, attention_bias=True, sliding_window=9,
                           layer_types=["sliding_attention"] * 2, rope_parameters=FAST),
    "cohere2_global_alone": dict(num_attention_heads=1, num_key_value_heads=1, layer_types=["full_attention"] * 2),
}
PHI = {
    "phi": dict(num_key_value_heads=4, rope_parameters=dict(FAST, partial_rotary_factor=0.5)),
    "phi_head_norms": dict(num_key_value_heads=2, qk_layernorm=True,
                           rope_parameters=dict(FAST, partial_rotary_factor=1.0)),
    "phi_odd": dict(hidden_size=60, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44, vocab_size=101,
                    num_hidden_layers=3, hidden_act="relu", rope_parameters=dict(FAST, partial_rotary_factor=0.4)),
    "phi_one_head": dict(num_attention_heads=1, num_key_value_heads=1, layer_norm_eps=1e-3, hidden_act="gelu",
                         pad_token_id=5, rope_parameters=dict(FAST, partial_rotary_factor=0.5)),
    "phi_head_dim": dict(num_key_value_heads=2, head_dim=12, rope_parameters=dict(
        LINEAR, rope_theta=10.0, partial_rotary_factor=0.84)),
    "phi_yarn": dict(num_key_value_heads=4, head_dim=16, rope_parameters=dict(
        YARN, rope_theta=10.0, partial_rotary_factor=0.5)),
}
PERSIMMON = {
    "persimmon": dict(rope_parameters=dict(FAST, partial_rotary_factor=0.5)),
    "persimmon_odd": dict(hidden_size=60, num_attention_heads=3, intermediate_size=44, vocab_size=101, num_hidden_layers=3, qk_layernorm=False,
                          tie_word_embeddings=True, pad_token_id=5, hidden_act="gelu", rope_parameters=dict(FAST, partial_rotary_factor=0.4)),
    "persimmon_one_head": dict(num_attention_heads=1, layer_norm_eps=1e-3, hidden_act="silu", rope_parameters=dict(
        YARN, rope_theta=10.0, partial_rotary_factor=1.0)),
}
STABLELM = {
    "stablelm": dict(num_key_value_heads=4, rope_parameters=dict(ROPE_500, partial_rotary_factor=0.25)),
    "stablelm_head_norms": dict(num_key_value_heads=2, qk_layernorm=True, use_parallel_residual=True,
                                rope_parameters=dict(ROPE_500, partial_rotary_factor=0.5)),
    "stablelm_odd": dict(hidden_size=60, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44,
                         vocab_size=101, num_hidden_layers=3, qk_layernorm=True,
                         rope_parameters=dict(ROPE_500, partial_rotary_factor=0.4)),
    "stablelm_one_head": dict(num_attention_heads=1, num_key_value_heads=1, layer_norm_eps=1e-3, qk_layernorm=True,
                              tie_word_embeddings=True, pad_token_id=5),
    "stablelm_biases": dict(num_key_value_heads=2, use_qkv_bias=True, use_parallel_residual=True,
                            rope_parameters=dict(FAST, partial_rotary_factor=1.0)),
    "stablelm_longrope": dict(num_key_value_heads=4, rope_parameters=dict(
        LONGROPE, partial_rotary_factor=0.5, short_factor=[1.0, 1.5], long_factor=[2.0, 5.0])),
    "stablelm_old_keys": dict(num_key_value_heads=4, old_rope_keys=True,
                              rope_parameters=dict(ROPE_500, partial_rotary_factor=0.5)),
}
# A limit of 0.4 cuts some values of q, k and v.
OLMO = {
    "olmo": dict(num_key_value_heads=4, rope_parameters=ROPE_500),
    "olmo_limited": dict(num_key_value_heads=2, clip_qkv=0.4, tie_word_embeddings=True, pad_token_id=1),
    "olmo_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44, vocab_size=101,
                     num_hidden_layers=3, clip_qkv=0.7, rope_parameters=YARN),
    "olmo_one_head": dict(num_attention_heads=1, num_key_value_heads=1, head_dim=12, pad_token_id=-3),
    "olmo_biases": dict(num_key_value_heads=2, attention_bias=True, clip_qkv=0.5, rope_parameters=FAST),
    "olmo_dynamic": dict(num_key_value_heads=4, rope_parameters=DYNAMIC, max_position_embeddings=16),
    "olmo_old_keys": dict(num_key_value_heads=4, rope_parameters=LINEAR, old_rope_keys=True),
}
NEMOTRON = {
    "nemotron": dict(num_key_value_heads=2, rope_parameters=ROPE_500),
    "nemotron_odd": dict(hidden_size=60, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44, vocab_size=101,
                         num_hidden_layers=3, rope_parameters=dict(ROPE_500, partial_rotary_factor=0.4)),
    "nemotron_one_head": dict(num_attention_heads=1, num_key_value_heads=1, norm_eps=1e-3, tie_word_embeddings=True, pad_token_id=5),
    "nemotron_biases": dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True, head_dim=12, hidden_act="gelu",
                            rope_parameters=dict(FAST, partial_rotary_factor=1.0)),
    "nemotron_yarn": dict(num_key_value_heads=4, rope_parameters=dict(YARN, partial_rotary_factor=0.75)),
    "nemotron_old_keys": dict(num_key_value_heads=4, old_rope_keys=True, rope_parameters=dict(ROPE_500, partial_rotary_factor=0.25)),
}
JAIS2 = {
    "jais2": dict(num_key_value_heads=4, rope_parameters=FAST),
    "jais2_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, intermediate_size=44, vocab_size=101,
                      num_hidden_layers=3, attention_bias=False, rope_parameters=LLAMA3),
    "jais2_one_head": dict(num_attention_heads=1, num_key_value_heads=1, head_dim=12, layer_norm_eps=1e-3, mlp_bias=False,
                           tie_word_embeddings=True, pad_token_id=5, rope_parameters=FAST),
}
GPTJ = {
    "gptj": {},
    "gptj_whole_heads": dict(rotary_dim=8, n_inner=44, activation_function="gelu"),
    "gptj_odd": dict(n_embd=30, n_head=3, rotary_dim=6, n_layer=3, vocab_size=101, activation_function="silu"),
    "gptj_one_head": dict(n_head=1, rotary_dim=10, layer_norm_epsilon=1e-3),
}
CODEGEN = {
    "codegen": {},
    "codegen_odd": dict(n_embd=48, n_head=8, rotary_dim=6, n_layer=3, n_inner=44, vocab_size=101, activation_function="silu"),
}
GPT_NEO = {
    "gpt_neo": {},
    "gpt_neo_local": dict(attention_types=[[["local"], 2]], window_size=5, activation_function="gelu"),
    "gpt_neo_odd": dict(hidden_size=15, num_heads=3, num_layers=3, vocab_size=101, intermediate_size=None, tie_word_embeddings=False,
                        attention_types=[[["local"], 1], [["global", "local"], 1]], window_size=40),
    "gpt_neo_one_head": dict(num_heads=1, layer_norm_epsilon=1e-3, attention_types=[[["global"], 2]], activation_function="silu"),
}


def remove_nulls(folder):
    """Keys that say nothing, which @strict configurations refuse."""
    file = folder / "config.json"
    file.write_text(json.dumps({key: value for key, value in json.loads(file.read_text()).items() if value is not None}))


FAMILIES = {"starcoder2": STARCODER2, "cohere": COHERE, "cohere2": COHERE2, "phi": PHI, "persimmon": PERSIMMON,
            "stablelm": STABLELM, "olmo": OLMO, "nemotron": NEMOTRON, "jais2": JAIS2, "gptj": GPTJ, "codegen": CODEGEN, "gpt_neo": GPT_NEO}
CONFIGS = {name: dict(settings, family=family) for family, table in FAMILIES.items()
           for name, settings in table.items()}


def errors_beside(tensors, model, loss, logits):
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + name for name in gradients}
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    for name, gradient in gradients.items():
        errors[name] = relative_error(tensors["grad:" + name], gradient)
    return errors


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents)
    errors = errors_beside(tensors, model, loss, logits)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


def closeness_of_bfloat16(folder, settings):
    """How far gradients in bfloat16 are from those in float32, ours and transformers', over two draws of documents."""
    save_checkpoint(folder, scale=0.04, **settings)
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float()
    ours, theirs = 0.0, 0.0
    for seed in (1, 2):
        documents = make_documents(LENGTHS, seed=seed)
        run_reference(rounded, documents)
        run_reference(exact, documents)
        tensors, _ = run_probe(folder, documents=documents, dtype="bfloat16")
        for (name, a), (_, b) in zip(gradients_of(rounded), gradients_of(exact)):
            if name.endswith("k_proj.bias"):  # nearly zero, which rounding hides
                continue
            ours += relative_error(tensors["grad:" + name], b)
            theirs += relative_error(a, b)
    return ours, theirs


# relu's slope jumps: of eight draws its errors are 0.6 to 1.4 times transformers', 0.94 on average; so does that of values at
# their limit: 0.92 to 1.24 times, 1.06 on average.
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"phi_odd", "olmo_limited"}))
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


def checkpointing_is_bit_equal(folder, settings):
    save_checkpoint(folder, **settings)
    documents = make_documents(LENGTHS)
    plain, _ = run_probe(folder, documents=documents, checkpoint=False)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(folder, documents=documents, checkpoint=True)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("name", ["starcoder2_window", "cohere_head_norms", "cohere2", "phi_head_norms",
                                  "persimmon", "stablelm_head_norms", "stablelm", "olmo_limited", "nemotron", "jais2",
                                  "gptj", "codegen_odd", "gpt_neo"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    checkpointing_is_bit_equal(tmp_path, CONFIGS[name])


@pytest.mark.parametrize("name,rate", [
    *(("starcoder2_window", rate) for rate in ("attention_dropout", "residual_dropout", "embedding_dropout")),
    *(("phi_head_norms", rate) for rate in ("attention_dropout", "resid_pdrop", "embd_pdrop")),
    *(("persimmon", rate) for rate in ("attention_dropout", "hidden_dropout")),
    *(("stablelm_head_norms", rate) for rate in ("attention_dropout", "hidden_dropout")),
    ("stablelm_odd", "hidden_dropout"), ("olmo_limited", "attention_dropout"), ("nemotron", "attention_dropout"),
    ("jais2", "attention_dropout"),
    *(("gptj", rate) for rate in ("attn_pdrop", "resid_pdrop", "embd_pdrop")),
    *(("codegen", rate) for rate in ("attn_pdrop", "resid_pdrop", "embd_pdrop")),
    *(("gpt_neo", rate) for rate in ("attention_dropout", "resid_dropout", "embed_dropout")), ("cohere", "attention_dropout"), ("cohere2", "attention_dropout")])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, name, rate):
    loss_has_the_slope_of_its_gradients(tmp_path, CONFIGS[name], rate, step=1e-3 if name in ("gpt_neo", "nemotron") else 4e-3)


def test_dropout_is_for_training(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["starcoder2"], residual_dropout=0.3, attention_dropout=0.2, embedding_dropout=0.1)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model.eval(), documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    assert max(errors_beside(tensors, model, loss, logits).values()) < 1e-5


@pytest.mark.parametrize("name", ["starcoder2", "cohere", "cohere2", "olmo_limited", "nemotron_one_head", "jais2_one_head"])
def test_a_tied_file_may_hold_the_output_layer(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    weights = weights_of(tmp_path)
    for change in (0.0, 0.5):
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + change
        write(tmp_path, weights)
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        documents = make_documents(LENGTHS)
        loss, logits = run_reference(model, documents)
        tensors, _ = run_probe(tmp_path, documents=documents)
        assert max(errors_beside(tensors, model, loss, logits).values()) < 1e-5


@pytest.mark.parametrize("change", [
    dict(attention_layers=["local", "global"]),  # counts beside attention_types
    dict(attention_layers=None, attention_types=[[["local"], 2]], num_hidden_layers=2, num_layers=None, num_attention_heads=8, num_heads=None),
])
def test_what_says_which_layers_of_gpt_neo_have_a_window(tmp_path, change):
    save_checkpoint(tmp_path, **CONFIGS["gpt_neo"])
    edit_config(tmp_path, **change)
    remove_nulls(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    assert max(errors_beside(tensors, model, loss, logits).values()) < 1e-5


@pytest.mark.parametrize("name,body,mask", [("gptj", "transformer.", "attn.bias"), ("gptj", "", "attn.masked_bias"), ("codegen", "transformer.", "attn.causal_mask"),
                                            ("gpt_neo", "", "attn.attention.bias"),
                                            ("gpt_neo", "transformer.", "attn.attention.masked_bias")])
def test_files_of_first_versions_hold_masks(tmp_path, name, body, mask):
    """Also of a body alone, beside an output layer that transformers reads all the same."""
    save_checkpoint(tmp_path, **CONFIGS[name])
    weights = {key.replace("transformer.", body, 1): value for key, value in weights_of(tmp_path).items()}
    write(tmp_path, {**weights, f"{body}h.0.{mask}": torch.tril(torch.ones(1, 1, 64, 64))})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    assert max(errors_beside(tensors, model, loss, logits).values()) < 1e-5


def test_more_tokens_than_learned_positions_are_named(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["gpt_neo"])
    process, _ = run_probe_raw(tmp_path, documents=make_documents((65,)))
    assert process.returncode == 2
    assert "found a document of 65 tokens, expected at most 64" in process.stderr


@pytest.mark.parametrize("name,change,message", [
    ("starcoder2", dict(hidden_act="tanh"), 'found hidden_act "tanh", expected gelu_new'),
    ("starcoder2", dict(num_attention_heads=5), "found hidden_size = 32, expected a multiple of num_attention_heads = 5"),
    ("starcoder2", dict(num_key_value_heads=3), "found num_key_value_heads = 3, expected a divisor"),
    ("starcoder2", dict(residual_dropout=1.0), "found residual_dropout = 1, expected a number from 0 on and below 1"),
    ("starcoder2", dict(use_bias=False), "found tensors that config.json does not imply"),
    ("cohere", dict(hidden_act="gelu"), 'found hidden_act "gelu"'),
    ("cohere", dict(logit_scale=0), "found logit_scale = 0, expected a number above 0"),
    ("cohere", dict(use_qk_norm=True), 'found no tensor "model.layers.0.self_attn.q_norm.weight"'),
    ("cohere", dict(pad_token_id=97), "found pad_token_id = 97, expected a token of the vocabulary of 97"),
    ("cohere2", dict(sliding_window=None), "found sliding_window = None with sliding-window layers"),
    ("cohere2", dict(layer_types=["linear_attention"] * 4), 'found "linear_attention" in layer_types'),
    ("phi", dict(tie_word_embeddings=True), "found tie_word_embeddings = True, expected False in a Phi model"),
    ("phi", dict(qk_layernorm=True, head_dim=12), "found head_dim = 12, expected hidden_size = 32"),
    ("phi", dict(rope_parameters=dict(FAST, partial_rotary_factor=0.4)), "found partial_rotary_factor = 0.4"),
    ("persimmon", dict(head_dim=4), "found head_dim = 4, expected hidden_size = 32"),
    ("persimmon", dict(qk_layernorm=False), "found tensors that config.json does not imply"),
    ("persimmon", dict(rope_parameters=dict(FAST, partial_rotary_factor=0.4)), "found partial_rotary_factor = 0.4"),
    ("stablelm", dict(head_dim=4), "found head_dim = 4, expected hidden_size = 32"),
    ("stablelm", dict(hidden_act="gelu"), 'found hidden_act "gelu"'),
    ("olmo", dict(hidden_act="gelu"), 'found hidden_act "gelu"'),
    ("olmo", dict(clip_qkv=0), "found clip_qkv = 0, expected a number above 0"),
    ("olmo", dict(layer_types=["sliding_attention"] * 2), "found \"sliding_attention\" in layer_types"),
    ("olmo", dict(rope_parameters=dict(LINEAR, partial_rotary_factor=0.5)), "found partial_rotary_factor = 0.5"),
    ("nemotron", dict(hidden_act="mish"), 'found hidden_act "mish", expected gelu_new'),
    ("nemotron", dict(attention_bias=True), 'found no tensor "model.layers.0.self_attn.q_proj.bias"'),
    ("nemotron", dict(rope_parameters=dict(FAST, partial_rotary_factor=0.4)), "found partial_rotary_factor = 0.4"),
    ("jais2", dict(mlp_bias=False), "found tensors that config.json does not imply"),
    ("gptj", dict(activation_function="mish"), 'found activation_function "mish", expected gelu_new'),
    ("gptj", dict(n_head=5), "found n_embd = 32, expected a multiple of n_head = 5"),
    ("gptj", dict(rotary_dim=None), "found rotary_dim = None, expected an even number of at most n_embd / n_head = 8"),
    ("gptj", dict(rotary_dim=7), "found rotary_dim = 7, expected an even number"),
    ("gptj", dict(rotary_dim=10), "found rotary_dim = 10, expected an even number of at most n_embd / n_head = 8"),
    ("gptj", dict(tie_word_embeddings=True), "found tie_word_embeddings = True, expected False in a GPT-J model"),
    ("codegen", dict(n_head=2), "found n_head = 2, expected a multiple of 4, the parts of a CodeGen model's heads"),
    ("codegen", dict(tie_word_embeddings=True), "found tie_word_embeddings = True, expected False in a CodeGen model"),
    ("gpt_neo", dict(num_heads=5), "found hidden_size = 32, expected a multiple of num_heads = 5"),
    ("gpt_neo", dict(attention_layers=["global"]), "found 1 kinds of layers in attention_types or attention_layers, expected num_layers = 2"),
    ("gpt_neo", dict(attention_layers=None, attention_types=None), "found 24 kinds of layers"),
    ("gpt_neo", dict(attention_layers=None, attention_types=[["global", 2]]), "found attention_types = [[\"global\", 2]], expected a list of"),
    ("gpt_neo", dict(attention_layers=None, attention_types=[[["global"] * 90, 99999]]), "expected as many layers as a model has"),
    ("gpt_neo", dict(attention_layers=["global", "wide"]), "found a layer of kind \"wide\", expected global or local"),
])
def test_what_is_refused(tmp_path, name, change, message):
    save_checkpoint(tmp_path, **CONFIGS[name])
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_prompts_and_prefixes_are_refused(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["cohere"])
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)),
                               lora=dict(peft_type="PREFIX_TUNING", num_virtual_tokens=2))
    assert process.returncode == 2
    assert "peft_type: found prompt or prefix tuning" in process.stderr
