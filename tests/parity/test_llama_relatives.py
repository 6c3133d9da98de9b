"""Oracle: transformers' InternLM3, IQuest-Coder, CWM, Helium, HyperCLOVA X, VaultGemma, MiniCPM3, Youtu-LLM, Granite with windows and
nanochat; PEFT, for merging."""

import pytest
from transformers import AutoModelForCausalLM

import test_falcon as plain
import test_rotary_decoders as rotary
from llama_reference import LLAMA3, make_documents, run_reference, save_checkpoint
from probe import run_probe, run_probe_raw
from test_gpt2 import edit_config
from test_llama import DYNAMIC, LINEAR, LONGROPE, ROPE_500, YARN
from test_bodies import save_body
from test_rotary_decoders import FAST, LENGTHS, checkpointing_is_bit_equal, closeness_of_bfloat16, errors_beside, remove_nulls

FACTORS = dict(embedding_multiplier=2.5, attention_multiplier=0.2, residual_multiplier=0.35, logits_scaling=0.6)
INTERNLM3 = {
    "internlm3": dict(num_key_value_heads=2, head_dim=8, rope_parameters=DYNAMIC, max_position_embeddings=16),
    "internlm3_biases": dict(num_key_value_heads=1, head_dim=None, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                             rope_parameters=FAST),
    "iquestcoder": dict(family="iquestcoder", num_key_value_heads=1, hidden_size=30, num_attention_heads=3, head_dim=12, vocab_size=101,
                        num_hidden_layers=3, pad_token_id=5, rope_parameters=LINEAR),
}
CWM = {
    "cwm": dict(num_hidden_layers=5, num_key_value_heads=2, head_dim=8, sliding_window=7),
    "cwm_named_layers": dict(num_attention_heads=1, num_key_value_heads=1, head_dim=12, sliding_window=40, mlp_bias=True,
                             layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=True, rope_parameters=ROPE_500),
    "cwm_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10, intermediate_size=44, vocab_size=101,
                    sliding_window=5, pad_token_id=5, rope_parameters=LLAMA3, old_rope_keys=True),
}
HELIUM = {
    "helium": dict(num_key_value_heads=2, head_dim=8, rope_parameters=ROPE_500),
    "helium_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10, intermediate_size=44, vocab_size=101,
                       num_hidden_layers=3, mlp_bias=True, tie_word_embeddings=True, rope_parameters=YARN),
    "helium_one_head": dict(num_attention_heads=1, num_key_value_heads=1, head_dim=32, attention_bias=True, pad_token_id=5,
                            rope_parameters=FAST),
}
HYPERCLOVAX = {
    "hyperclovax": dict(FACTORS, num_key_value_heads=2, rope_parameters=ROPE_500),
    "hyperclovax_norms_alone": dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True, pad_token_id=5, rope_parameters=FAST),
    "hyperclovax_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=12, intermediate_size=44, vocab_size=101,
                            num_hidden_layers=3, residual_multiplier=1.7, tie_word_embeddings=True, rope_parameters=YARN),
    "hyperclovax_one_head": dict(FACTORS, num_attention_heads=1, num_key_value_heads=1, use_post_norm=False),
}
VAULTGEMMA = {
    "vaultgemma": dict(num_key_value_heads=2, head_dim=8, sliding_window=7, query_pre_attn_scalar=8, attn_logit_softcapping=1.0,
                       final_logit_softcapping=5.0),
    "vaultgemma_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10, intermediate_size=44, vocab_size=101,
                           num_hidden_layers=3, sliding_window=5, tie_word_embeddings=False, attn_logit_softcapping=None, pad_token_id=5,
                           layer_types=["full_attention", "full_attention", "sliding_attention"], rope_parameters=ROPE_500),
    "vaultgemma_one_head": dict(num_attention_heads=1, num_key_value_heads=1, head_dim=12, query_pre_attn_scalar=12, sliding_window=40,
                                final_logit_softcapping=None, attn_logit_softcapping=2.0),
}
MINICPM3 = {
    "minicpm3": dict(v_head_dim=8, rope_parameters=ROPE_500),
    "minicpm3_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=3, intermediate_size=44, vocab_size=101,
                         num_hidden_layers=3, q_lora_rank=None, scale_depth=None, tie_word_embeddings=False, pad_token_id=5,
                         rope_parameters=YARN),
    "minicpm3_one_head": dict(num_attention_heads=1, num_key_value_heads=1, v_head_dim=7, attention_bias=True, mlp_bias=True, scale_emb=1,
                              dim_model_base=None, rope_parameters=FAST),
    "minicpm3_longrope": dict(num_key_value_heads=None, rope_parameters=dict(LONGROPE, short_factor=[1.0, 1.5], long_factor=[2.0, 5.0])),
}
YOUTU = {
    "youtu": dict(rope_parameters=ROPE_500),
    "youtu_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=3, intermediate_size=44, vocab_size=101, v_head_dim=7,
                      num_hidden_layers=3, q_lora_rank=None, attention_bias=True, tie_word_embeddings=False, pad_token_id=5,
                      rope_interleave=False, rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=0.9)),
}
GRANITE_SWA = {
    "granite_swa": dict(FACTORS, num_hidden_layers=5, num_key_value_heads=2, sliding_window=7, rope_parameters=ROPE_500),
    "granite_swa_by_layer": dict(FACTORS, num_hidden_layers=3, num_key_value_heads=1, sliding_window=5, layer_rope_theta=[500.0, 0, 10.0],
                                 layer_types=["full_attention", "full_attention", "sliding_attention"], tie_word_embeddings=False,
                                 attention_bias=True, mlp_bias=True, vocab_size=101, pad_token_id=5, rope_parameters=YARN),
    "granite_swa_nope": dict(num_attention_heads=1, num_key_value_heads=1, sliding_window=40, layer_rope_theta=[0, 0], attention_multiplier=0.4),
    "granite_swa_local": dict(num_key_value_heads=2, sliding_window=7, layer_rope_theta=[0.0, 70.0], rope_parameters=FAST,
                              attention_multiplier=0.3, layer_types=["full_attention", "sliding_attention"]),
}
NANOCHAT = {
    "nanochat": dict(num_key_value_heads=2, rope_parameters=ROPE_500),
    "nanochat_odd": dict(hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=12, intermediate_size=44, vocab_size=101,
                         num_hidden_layers=3, attention_bias=True, tie_word_embeddings=True, pad_token_id=5, rms_norm_eps=1e-2,
                         final_logit_softcapping=None, hidden_act="gelu", rope_parameters=YARN),
    "nanochat_one_head": dict(num_attention_heads=1, num_key_value_heads=1, final_logit_softcapping=2.0, rope_parameters=FAST),
    "nanochat_dynamic": dict(num_key_value_heads=None, max_position_embeddings=16, rope_parameters=DYNAMIC),
}
FAMILIES = {"nanochat": NANOCHAT, "youtu": YOUTU, "granite_swa": GRANITE_SWA, "internlm3": INTERNLM3, "cwm": CWM, "helium": HELIUM, "hyperclovax": HYPERCLOVAX, "vaultgemma": VAULTGEMMA,
            "minicpm3": MINICPM3}
CONFIGS = {name: {"family": family, **settings} for family, table in FAMILIES.items() for name, settings in table.items()}


def equals_transformers(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    documents = make_documents(LENGTHS)
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


@pytest.mark.parametrize("name", CONFIGS)
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", ["cwm", "helium", "hyperclovax", "hyperclovax_norms_alone", "vaultgemma", "minicpm3", "youtu", "granite_swa_by_layer", "nanochat"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    checkpointing_is_bit_equal(tmp_path, CONFIGS[name])


def test_names_of_the_first_code_of_internlm3(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["internlm3_biases"])
    edit_config(tmp_path, attention_bias=None, mlp_bias=None, qkv_bias=True, bias=True)
    remove_nulls(tmp_path)
    equals_transformers(tmp_path)


MERGED = {**{name: rotary.CONFIGS[name] for name in ("persimmon", "olmo", "nemotron", "gptj", "codegen", "gpt_neo")},
          "nanochat": CONFIGS["nanochat_odd"], "mpt": plain.CONFIGS["mpt"], "hyperclovax": CONFIGS["hyperclovax"], "minicpm3": CONFIGS["minicpm3"]}


# Also into files of the body alone, where the output layer is the embedding.
@pytest.mark.parametrize("name,is_bare", [*((name, False) for name in MERGED), ("gpt_neo", True), ("mpt", True), ("minicpm3", True)])
def test_merging(tmp_path, name, is_bare):
    save_checkpoint(tmp_path, **MERGED[name])
    if is_bare:
        save_body(tmp_path, tmp_path)
    plain.merged_computes_what_the_adapter_does(tmp_path, dict(target_modules="all-linear", r=3))


@pytest.mark.parametrize("name,change,message", [
    ("internlm3", dict(qkv_bias=True, attention_bias=None), "found qkv_bias = True and mlp_bias = False, expected one value for both"),
    ("internlm3", dict(num_attention_heads=5), "found hidden_size = 32, expected a multiple of"),
    ("iquestcoder", dict(clip_qkv=3.0), "found clip_qkv in an IQuest-Coder model"),
    ("iquestcoder", dict(use_sliding_window=True), "found use_sliding_window = True in an IQuest-Coder model"),
    ("cwm", dict(sliding_window=None), "found sliding_window = None with sliding-window layers"),
    ("cwm", dict(attention_dropout=0.1), "found attention_dropout = 0.1 with sliding-window layers"),
    ("helium", dict(head_dim=6), "found head_dim = 6 of num_attention_heads = 4, expected hidden_size = 32"),
    ("hyperclovax", dict(use_post_norm=False), "found tensors that config.json does not imply"),
    ("hyperclovax", dict(logits_scaling=0), "found logits_scaling = 0, expected a number above 0"),
    ("minicpm3", dict(num_key_value_heads=2), "found num_key_value_heads = 2, expected num_attention_heads = 4"),
    ("minicpm3", dict(v_head_dim=11), "found v_head_dim = 11, expected at most qk_nope_head_dim + qk_rope_head_dim = 10"),
    ("minicpm3", dict(scale_depth=0), "found scale_depth = 0, expected a number above 0"),
    ("vaultgemma", dict(hidden_activation="silu"), 'found hidden_activation "silu"'),
    ("youtu", dict(num_key_value_heads=2), "found num_key_value_heads = 2, expected num_attention_heads = 4"),
    ("granite_swa", dict(layer_rope_theta=[500.0, 0]), "expected a list of num_hidden_layers = 5 numbers of at least 0"),
    ("granite_swa", dict(layer_rope_theta=[500.0, 10.0, 20.0, 10.0, 500.0]), "found layer_rope_theta with several numbers above 0"),
    ("granite_swa", dict(sliding_window=None), "found sliding_window = None with sliding-window layers"),
    ("nanochat", dict(hidden_act="xielu"), 'found hidden_act "xielu", expected gelu_new'),
    ("nanochat", dict(final_logit_softcapping=0), "found final_logit_softcapping = 0, expected a number above 0"),
    ("nanochat", dict(layer_types=["sliding_attention"] * 2), 'found "sliding_attention" in layer_types, expected full_attention'),
    ("nanochat", dict(num_key_value_heads=3), "found num_key_value_heads = 3, expected a divisor of num_attention_heads = 4"),
])
def test_what_is_refused(tmp_path, name, change, message):
    save_checkpoint(tmp_path, **CONFIGS[name])
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr
