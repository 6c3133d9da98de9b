"""Oracle: transformers' Falcon, BLOOM and MPT, finite differences for dropout."""

import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.falcon import modeling_falcon

import test_quantised_gradients
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import BUILD, relative_error, run_probe, run_probe_raw
from test_gpt2 import edit_config, loss_of
from test_llama import DYNAMIC, LINEAR, ROPE_500, YARN
from test_lora import attach, randomise
from test_opt import loss_has_the_slope_of_its_gradients, weights_of, write
from test_rotary_decoders import LENGTHS, checkpointing_is_bit_equal, closeness_of_bfloat16, errors_beside

FAST = dict(rope_type="default", rope_theta=10.0)
NEW = dict(new_decoder_architecture=True)
FALCON = {
    "falcon": {},
    "falcon_odd": dict(hidden_size=30, num_attention_heads=3, ffn_hidden_size=None, vocab_size=101, num_hidden_layers=3,
                       tie_word_embeddings=False, activation="relu"),
    "falcon_one_head": dict(num_attention_heads=1, layer_norm_epsilon=1e-3, activation="silu"),
    "falcon_biases": dict(bias=True, rope_parameters=FAST),
    "falcon_multi_head": dict(multi_query=False, rope_parameters=ROPE_500),
    # As the 40B, the 11B, and with a head of k and v for each of q, and one for all.
    "falcon_40b": dict(NEW, num_kv_heads=2, rope_parameters=ROPE_500),
    "falcon_11b": dict(NEW, num_kv_heads=2, num_ln_in_parallel_attn=1),
    "falcon_40b_multi_head": dict(NEW, rope_parameters=LINEAR, tie_word_embeddings=False),
    "falcon_40b_odd": dict(NEW, hidden_size=36, num_attention_heads=6, num_kv_heads=3, bias=True, rope_parameters=FAST,
                           num_hidden_layers=3),
    "falcon_40b_one_kv_head": dict(NEW, num_kv_heads=1, rope_parameters=YARN),
    "falcon_one_by_one": dict(parallel_attn=False, multi_query=False, bias=True, rope_parameters=FAST),
    "falcon_one_by_one_multi_query": dict(parallel_attn=False, rope_parameters=DYNAMIC, max_position_embeddings=16),
}
BLOOM = {
    "bloom": {},
    "bloom_odd": dict(hidden_size=30, n_head=3, n_layer=3, vocab_size=101, tie_word_embeddings=False),
    "bloom_six_heads": dict(hidden_size=36, n_head=6, layer_norm_epsilon=1e-3),
    "bloom_one_head": dict(n_head=1, pad_token_id=3, pretraining_tp=4),
    "bloom_norms_join": dict(apply_residual_connection_post_layernorm=True, slow_but_exact=True),
}
# A limit of 0.5 cuts some values of q, k and v.
MPT = {
    "mpt": {},
    "mpt_odd": dict(d_model=30, n_heads=3, n_layers=3, vocab_size=101, tie_word_embeddings=False, attn_config=dict(clip_qkv=0.5)),
    "mpt_six_heads": dict(d_model=36, n_heads=6, layer_norm_epsilon=1e-3, attn_config=dict(softmax_scale=0.2)),
    # Keys that the class reads nowhere.
    "mpt_one_head": dict(n_heads=1, expansion_ratio=2, resid_pdrop=0.3, emb_pdrop=0.2, logit_scale=3.0, learned_pos_emb=False,
                         attn_config=dict(alibi_bias_max=4, alibi=False, attn_impl="triton", clip_qkv=0.0)),
}
CONFIGS = {**{name: dict(settings, family="falcon") for name, settings in FALCON.items()},
           **{name: dict(settings, family="bloom") for name, settings in BLOOM.items()},
           **{name: dict(settings, family="mpt") for name, settings in MPT.items()}}


def equals_transformers(folder, documents=None):
    model = AutoModelForCausalLM.from_pretrained(folder)
    documents = documents or make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(folder, documents=documents)
    errors = errors_beside(tensors, model, loss, logits)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    equals_transformers(tmp_path)


@pytest.mark.parametrize("settings", [CONFIGS["bloom"], dict(CONFIGS["mpt"], max_seq_len=1024)], ids=["bloom", "mpt"])
def test_a_long_text(tmp_path, settings):
    """Where far keys' biases are hundreds apart."""
    save_checkpoint(tmp_path, **settings)
    equals_transformers(tmp_path, make_documents((700, 3, 300)))


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", ["falcon", "falcon_40b", "falcon_one_by_one", "bloom", "bloom_norms_join", "mpt_odd"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    checkpointing_is_bit_equal(tmp_path, CONFIGS[name])


@pytest.mark.parametrize("name,rate", [
    ("falcon", "hidden_dropout"), ("falcon_40b", "hidden_dropout"), ("falcon_one_by_one", "hidden_dropout"),
    ("falcon_one_by_one", "attention_dropout"), ("bloom", "hidden_dropout"), ("bloom", "attention_dropout"),
    ("bloom_norms_join", "hidden_dropout")])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, name, rate):
    loss_has_the_slope_of_its_gradients(tmp_path, CONFIGS[name], rate)


def test_dropout_of_mpt_is_a_mask_that_backward_repeats(tmp_path):
    """One rate for the probabilities and for what attention and MLP add; the key says whole numbers in this transformers."""
    loss_has_the_slope_of_its_gradients(tmp_path, CONFIGS["mpt"], "attn_config",
                                          lambda rate: dict(attn_pdrop=rate))


@pytest.mark.parametrize("name", ["falcon", "falcon_40b"])
def test_probabilities_of_rotated_heads_are_not_dropped(tmp_path, name):
    """transformers' Falcon looks at attention_dropout only where norms stand one by one, or with ALiBi."""
    documents = make_documents((23, 9))
    save_checkpoint(tmp_path, **CONFIGS[name], attention_dropout=0.5)
    dropped = loss_of(tmp_path, documents)[0]
    edit_config(tmp_path, attention_dropout=0.0)
    assert loss_of(tmp_path, documents)[0] == dropped


@pytest.mark.parametrize("name", ["bloom", "mpt"])
def test_names_of_files_of_the_body_alone(tmp_path, name):
    """The body's weights alone, without its name."""
    save_checkpoint(tmp_path, **CONFIGS[name])
    write(tmp_path, {name.removeprefix("transformer."): value for name, value in weights_of(tmp_path).items()})
    equals_transformers(tmp_path)


def merged_computes_what_the_adapter_does(folder, lora):
    model = attach(folder, lora, torch.float32, seed=3)
    randomise(model, 0.08)
    model.save_pretrained(folder / "adapter")
    run = subprocess.run([BUILD / "strata", "merge-adapter", folder / "adapter", folder / "merged", "--base_model",
                          folder], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    found = AutoModelForCausalLM.from_pretrained(folder / "merged").eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert relative_error(found(ids).logits, model.eval()(ids).logits) < 1e-5


@pytest.mark.parametrize("name,is_bare", [("falcon_40b", False), ("bloom", False), ("bloom", True)])
@pytest.mark.parametrize("lora", [dict(target_modules="all-linear", r=3),
                                  dict(target_modules=["dense", "word_embeddings"], r=2),
                                  dict(target_modules=["query_key_value"], r=2, modules_to_save=["ln_f"])],
                         ids=["layers", "embedding", "norm"])
def test_merging(tmp_path, name, is_bare, lora):
    save_checkpoint(tmp_path, **CONFIGS[name])
    if is_bare:
        write(tmp_path, {key.removeprefix("transformer."): value for key, value in weights_of(tmp_path).items()})
    merged_computes_what_the_adapter_does(tmp_path, lora)


@pytest.mark.parametrize("settings", [{}, dict(NEW, num_kv_heads=2, bias=True)], ids=["7b", "40b"])
@pytest.mark.parametrize("base", ["nf4", "int8"])
def test_codes_of_falcon(tmp_path, monkeypatch, base, settings):
    """This transformers takes codes for nn.Linear alone and not for Falcon's class of its own, which computes the same."""
    monkeypatch.setattr(modeling_falcon, "FalconLinear", torch.nn.Linear)
    test_quantised_gradients.test_gradients_over_a_quantised_base(tmp_path, base, "all", dict(settings, family="falcon"))


@pytest.mark.parametrize("name", ["falcon", "bloom", "mpt"])
def test_a_tied_file_may_hold_the_output_layer(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    weights = weights_of(tmp_path)
    for change in (0.0, 0.5):
        weights["lm_head.weight"] = weights["transformer.wte.weight" if name == "mpt" else "transformer.word_embeddings.weight"] + change
        write(tmp_path, weights)
        equals_transformers(tmp_path)


def test_older_keys_of_bloom(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["bloom_odd"])
    edit_config(tmp_path, n_embed=30, hidden_size=64, num_attention_heads=3)
    equals_transformers(tmp_path)


@pytest.mark.parametrize("name,change,message", [
    ("falcon", dict(alibi=True), "found alibi = True, expected False"),
    ("falcon", dict(activation="tanh"), 'found activation "tanh", expected gelu_new'),
    ("falcon", dict(num_attention_heads=5), "found hidden_size = 32, expected a multiple of num_attention_heads = 5"),
    ("falcon", dict(num_ln_in_parallel_attn=2), "found num_ln_in_parallel_attn = 2 without new_decoder_architecture"),
    ("falcon", dict(head_dim=4), "found head_dim = 4, expected hidden_size / num_attention_heads = 8"),
    ("falcon", dict(multi_query=False, num_kv_heads=2), "found num_kv_heads = 2 with neither multi_query nor"),
    ("falcon_40b", dict(num_kv_heads=3), "found num_kv_heads = 3, expected a divisor of num_attention_heads = 4"),
    ("falcon_40b", dict(parallel_attn=False), "found parallel_attn = False with new_decoder_architecture"),
    ("falcon_40b", dict(num_ln_in_parallel_attn=3), "found num_ln_in_parallel_attn = 3, expected 1 or 2"),
    ("bloom", dict(n_head=5), "found hidden_size = 32, expected a multiple of n_head = 5"),
    ("bloom", dict(slow_but_exact=True, pretraining_tp=4), "found slow_but_exact = True with pretraining_tp = 4"),
    ("mpt", dict(n_heads=5), "found d_model = 32, expected a multiple of n_heads = 5"),
    ("mpt", dict(attn_config=3), "found attn_config = 3, expected an object"),
    ("mpt", dict(attn_config=dict(clip_qkv=-1)), "found attn_config.clip_qkv = -1, expected a number above 0"),
    ("mpt", dict(attn_config=dict(softmax_scale=0)), "found attn_config.softmax_scale = 0, expected a number above 0"),
    ("mpt", dict(n_layers=1), "found tensors that config.json does not imply"),
    ("bloom", dict(n_layer=1), "found tensors that config.json does not imply"),
])
def test_what_is_refused(tmp_path, name, change, message):
    save_checkpoint(tmp_path, **CONFIGS[name])
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr
