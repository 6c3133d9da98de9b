"""Oracle: transformers' DeepSeek-V2, DeepSeek-V3 and GLM-4.7-Flash: latent attention beside an MLP or a mixture."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from llama_reference import gradients_of, make_documents, run_reference, save_checkpoint
from probe import run_probe, run_probe_raw
from test_gpt2 import edit_config
from test_llama import DYNAMIC, LINEAR, ROPE_500, YARN, compare
from test_rotary_decoders import closeness_of_bfloat16

LENGTHS = (23, 1, 9, 40)
FAST = dict(rope_type="default", rope_theta=10.0)
SCALED_YARN = dict(YARN, mscale=0.7, mscale_all_dim=0.9)
DENSE = dict(first_k_dense_replace=2)
CONFIGS = {
    "v2": dict(family="deepseek_v2", rope_parameters=ROPE_500),
    "v2_lite": dict(family="deepseek_v2", q_lora_rank=None, n_shared_experts=2, num_hidden_layers=3, rope_parameters=SCALED_YARN),
    "v2_groups": dict(family="deepseek_v2", n_routed_experts=12, n_group=4, topk_group=2, num_experts_per_tok=4, first_k_dense_replace=0,
                      topk_method="group_limited_greedy", routed_scaling_factor=3.0, attention_bias=True, rope_parameters=FAST),
    "v2_groups_of_one": dict(family="deepseek_v2", n_routed_experts=7, n_group=7, topk_group=3, num_experts_per_tok=2,
                             topk_method="group_limited_greedy", tie_word_embeddings=True, rope_parameters=DYNAMIC),
    "v2_one_head": dict(family="deepseek_v2", num_attention_heads=1, num_key_value_heads=1, qk_nope_head_dim=2, qk_rope_head_dim=6,
                        v_head_dim=3, kv_lora_rank=2, q_lora_rank=3, vocab_size=101, hidden_size=30, pad_token_id=5, rope_parameters=FAST),
    "v2_dense": dict(DENSE, family="deepseek_v2", attention_bias=True, rope_parameters=SCALED_YARN),
    "v3": dict(family="deepseek_v3", n_routed_experts=12, n_group=4, topk_group=2, num_experts_per_tok=4, rope_parameters=ROPE_500),
    "v3_halves": dict(family="deepseek_v3", rope_interleave=False, q_lora_rank=None, attention_bias=True, norm_topk_prob=False,
                      first_k_dense_replace=0, rope_parameters=FAST),
    "v3_yarn": dict(family="deepseek_v3", v_head_dim=10, rope_parameters=dict(SCALED_YARN, mscale=1.0, mscale_all_dim=1.0)),
    "v3_linear": dict(family="deepseek_v3", v_head_dim=3, num_hidden_layers=3, rope_parameters=dict(LINEAR, mscale_all_dim=0.5)),
    "v3_old_keys": dict(family="deepseek_v3", rope_parameters=SCALED_YARN, old_rope_keys=True),
    "v3_dense": dict(DENSE, family="deepseek_v3", rope_parameters=FAST),
    "flash": dict(family="glm4_moe_lite", v_head_dim=10, rope_parameters=ROPE_500),
    "flash_kinds": dict(family="glm4_moe_lite", num_hidden_layers=3, mlp_layer_types=["sparse", "dense", "sparse"], routed_scaling_factor=1.0,
                        n_routed_experts=33, num_experts_per_tok=1, norm_topk_prob=False, rope_parameters=FAST),
    "flash_dense": dict(family="glm4_moe_lite", mlp_layer_types=["dense"] * 2, q_lora_rank=None, rope_parameters=FAST),
}
# Where every token has all experts rounding chooses none.
ALL_EXPERTS = dict(n_routed_experts=3, num_experts_per_tok=3)
CONFIGS |= {"v2_all_experts": dict(ALL_EXPERTS, family="deepseek_v2", routed_scaling_factor=1.7, rope_parameters=FAST),
            "v3_all_experts": dict(ALL_EXPERTS, family="deepseek_v3", rope_parameters=FAST),
            "v2_other_name": dict(family="deepseek_v2", n_routed_experts=7, rope_parameters=FAST)}
CHOOSING_NONE = sorted(name for name in CONFIGS if name.endswith(("dense", "all_experts")))


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    if name == "v2_other_name":
        config = json.loads((tmp_path / "config.json").read_text())
        config["num_experts"] = config.pop("n_routed_experts")
        (tmp_path / "config.json").write_text(json.dumps(dict(config, num_local_experts=3)))  # of other families
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)
    assert report["parameters"] == [name for name, _ in gradients_of(model)]


@pytest.mark.parametrize("name", CHOOSING_NONE)
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", ["v2_lite", "v3"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    documents = make_documents(LENGTHS)
    plain, _ = run_probe(tmp_path, documents=documents, checkpoint=False)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, documents=documents, checkpoint=True)
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


def without(key):
    return {key: None}


@pytest.mark.parametrize("family,change,message", [
    ("deepseek_v2", dict(v_head_dim=11), "found v_head_dim = 11, expected at most qk_nope_head_dim + qk_rope_head_dim = 10"),
    ("deepseek_v2", dict(num_key_value_heads=2), "found num_key_value_heads = 2, expected num_attention_heads = 4"),
    ("deepseek_v2", dict(norm_topk_prob=True), "found norm_topk_prob = true, expected false"),
    ("deepseek_v2", dict(topk_method="noaux_tc"), 'found topk_method "noaux_tc", expected "greedy" or "group_limited_greedy"'),
    ("deepseek_v2", dict(scoring_func="sigmoid"), 'found scoring_func "sigmoid", expected "softmax"'),
    ("deepseek_v2", dict(moe_layer_freq=2), "found moe_layer_freq = 2, expected 1"),
    ("deepseek_v2", dict(mlp_bias=True), "found mlp_bias = true, expected false"),
    ("deepseek_v2", without("num_experts_per_tok"), "found no num_experts_per_tok"),
    ("deepseek_v2", dict(qk_rope_head_dim=3), "found qk_rope_head_dim = 3, expected an even number because rotary positions turn pairs"),
    ("deepseek_v2", dict(topk_method="group_limited_greedy", n_group=None), "found no n_group, expected a number"),
    ("deepseek_v2", dict(num_experts=5), "found n_routed_experts = 6 and num_experts = 5, expected one number"),
    ("deepseek_v3", dict(topk_group=None), "found topk_group = None, expected a value"),
    ("deepseek_v3", dict(first_k_dense_replace=None), "found first_k_dense_replace = None, expected a value"),
    ("glm4_moe_lite", dict(head_dim=8), "found qk_rope_head_dim = 4 and head_dim = 8, expected one number"),
    ("glm4_moe_lite", dict(partial_rotary_factor=0.5, rope_parameters=None), "by which 2 of qk_rope_head_dim = 4 channels turn, expected 1"),
    ("deepseek_v2", dict(topk_method="group_limited_greedy", n_group=4), "found n_group = 4, expected groups of one or more of n_routed_experts = 6"),
    ("deepseek_v2", dict(kv_lora_rank=0), "found kv_lora_rank = 0, expected an integer of at least 1"),
    ("deepseek_v2", dict(q_lora_rank=7), '"model.layers.0.self_attn.q_a_proj.weight"'),
    ("deepseek_v2", without("q_lora_rank"), 'found no tensor "model.layers.0.self_attn.q_proj.weight"'),
    ("deepseek_v2", dict(rope_parameters=dict(YARN, mscale_all_dim=1.0, factor=None)), "found no factor for rope_type \"yarn\""),
    ("deepseek_v3", dict(topk_method="greedy"), 'found topk_method "greedy", expected "noaux_tc"'),
    ("deepseek_v3", dict(scoring_func="softmax"), 'found scoring_func "softmax", expected "sigmoid"'),
    ("deepseek_v3", dict(n_group=6), "found n_group = 6, expected groups of two or more of n_routed_experts = 6"),
    ("glm4_moe_lite", dict(mlp_layer_types=["sparse", "thin"]), "found mlp_layer_types = "),
    ("glm4_moe_lite", dict(mlp_layer_types=["dense"]), "expected a list of num_hidden_layers = 2 texts, dense or sparse"),
    ("glm4_moe_lite", dict(layer_types=["sliding_attention"] * 2), "in a glm4_moe_lite model, which has no window"),
])
def test_what_is_refused(tmp_path, family, change, message):
    save_checkpoint(tmp_path, family=family)
    edit_config(tmp_path, **change)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and message in run.stderr, run.stderr


def test_a_prefix_is_refused(tmp_path):
    """Whose keys and values the reference's cache, which holds latents, cannot take."""
    save_checkpoint(tmp_path, family="deepseek_v2")
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)), lora=dict(peft_type="PREFIX_TUNING", num_virtual_tokens=3))
    assert run.returncode != 0 and "found PREFIX_TUNING for a model with latent attention" in run.stderr, run.stderr
