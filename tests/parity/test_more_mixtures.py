"""Oracle: transformers' OLMoE, MiniMax-M2, Granite's, ERNIE's and Hunyuan's mixtures, dots.llm1, K-EXAONE and what followed them."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from llama_reference import LLAMA3, gradients_of, make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from test_balanced_experts import WEIGHT, balance_of
from test_gpt2 import edit_config
from test_llama import DYNAMIC, ROPE_500, YARN, compare
from test_rotary_decoders import closeness_of_bfloat16

LENGTHS = (23, 1, 9, 40)
FAST = dict(rope_type="default", rope_theta=10.0)
ALPHA = dict(rope_type="dynamic", rope_theta=500.0, alpha=7.0, factor=1.0)
MULTIPLIERS = dict(embedding_multiplier=2.5, attention_multiplier=0.3, residual_multiplier=0.7, logits_scaling=1.5)
CONFIGS = {
    "olmoe": dict(family="olmoe", rope_parameters=ROPE_500),
    "olmoe_limits": dict(family="olmoe", num_key_value_heads=2, clip_qkv=0.9, norm_topk_prob=True, attention_bias=True, vocab_size=101,
                         num_experts_per_tok=3, tie_word_embeddings=True, rope_parameters=FAST),
    "olmoe_one_of_many": dict(family="olmoe", num_attention_heads=1, num_key_value_heads=1, num_experts=33, num_experts_per_tok=1,
                              intermediate_size=3, pad_token_id=5, clip_qkv=0.5, rope_parameters=YARN),
    "minimax_m2": dict(family="minimax_m2", num_key_value_heads=2, rope_parameters=dict(ROPE_500, partial_rotary_factor=0.5)),
    "minimax_m2_rotary_dim": dict(family="minimax_m2", num_key_value_heads=1, head_dim=10, rotary_dim=6, vocab_size=101, pad_token_id=5),
    "minimax_m2_two_of_many": dict(family="minimax_m2", num_attention_heads=1, num_key_value_heads=1, num_local_experts=33,
                                   num_experts_per_tok=2, intermediate_size=3, tie_word_embeddings=True, rope_parameters=DYNAMIC),
    "granite": dict(MULTIPLIERS, family="granitemoe", num_key_value_heads=2, rope_parameters=ROPE_500),
    "granite_one_of_many": dict(family="granitemoe", num_attention_heads=1, num_key_value_heads=1, num_local_experts=33,
                                num_experts_per_tok=1, intermediate_size=3, vocab_size=101, attention_bias=True, rope_parameters=LLAMA3),
    "granite_usual_scores": dict(MULTIPLIERS, family="granitemoe", attention_multiplier=None, rope_parameters=FAST),
    "granite_shared": dict(MULTIPLIERS, family="granitemoeshared", num_key_value_heads=1, tie_word_embeddings=True, pad_token_id=5,
                           rope_parameters=FAST),
    "granite_shared_unscaled": dict(family="granitemoeshared", num_experts_per_tok=3, attention_multiplier=0.4, rope_parameters=FAST),
    "granite_shared_without": dict(MULTIPLIERS, family="granitemoeshared", shared_intermediate_size=0, rope_parameters=FAST),
    "granite_windows": dict(MULTIPLIERS, family="granitemoe_swa", num_hidden_layers=5, num_key_value_heads=2, sliding_window=7,
                            rope_parameters=ROPE_500),
    "granite_windows_by_layer": dict(MULTIPLIERS, family="granitemoe_swa", num_hidden_layers=3, num_key_value_heads=1, sliding_window=5,
                                     layer_rope_theta=[500.0, 0, 10.0], layer_types=["full_attention", "full_attention", "sliding_attention"],
                                     shared_intermediate_size=22, attention_bias=True, tie_word_embeddings=True, vocab_size=101,
                                     pad_token_id=5, rope_parameters=YARN),
    "granite_windows_one_of_many": dict(family="granitemoe_swa", num_attention_heads=1, num_key_value_heads=1, num_local_experts=33,
                                        num_experts_per_tok=1, intermediate_size=3, sliding_window=40, layer_rope_theta=[0, 0],
                                        attention_multiplier=0.4),
    "ernie": dict(family="ernie4_5_moe", num_key_value_heads=2, rope_parameters=ROPE_500),
    "ernie_layers": dict(family="ernie4_5_moe", num_hidden_layers=4, moe_layer_interval=1, moe_layer_start_index=1, moe_layer_end_index=2,
                         num_key_value_heads=1, moe_num_shared_experts=1, tie_word_embeddings=False, vocab_size=101, rope_parameters=FAST),
    "ernie_alone": dict(family="ernie4_5_moe", moe_layer_interval=1, moe_num_shared_experts=0, moe_num_experts=33, moe_k=3, moe_norm_min=0.2,
                        num_attention_heads=1, num_key_value_heads=1, head_dim=12, moe_intermediate_size=3, rope_parameters=YARN),
    "hunyuan": dict(family="hunyuan_v1_moe", num_key_value_heads=2, rope_parameters=ALPHA),
    "hunyuan_by_layer": dict(family="hunyuan_v1_moe", num_key_value_heads=1, head_dim=10, moe_topk=[3, 2, 4], num_hidden_layers=3,
                             attention_bias=True, tie_word_embeddings=True, vocab_size=101, pad_token_id=5, rope_parameters=FAST),
    "hunyuan_one_expert": dict(family="hunyuan_v1_moe", num_attention_heads=1, num_key_value_heads=1, num_experts=1, moe_topk=1,
                               rope_parameters=YARN),
    "dots1": dict(family="dots1", num_key_value_heads=2, rope_parameters=ROPE_500),
    "dots1_groups": dict(family="dots1", n_routed_experts=12, n_group=4, topk_group=2, num_experts_per_tok=4, first_k_dense_replace=0,
                         norm_topk_prob=True, routed_scaling_factor=2.5, n_shared_experts=2, attention_bias=True, vocab_size=101,
                         num_hidden_layers=3, max_window_layers=1, sliding_window=7, rope_parameters=FAST),
    "dots1_window": dict(family="dots1", num_attention_heads=1, num_key_value_heads=1, layer_types=["sliding_attention", "full_attention"],
                         sliding_window=5, tie_word_embeddings=True, pad_token_id=5, rope_parameters=YARN),
    "exaone": dict(family="exaone_moe", num_hidden_layers=4, num_key_value_heads=2, sliding_window=7),
    "exaone_kinds": dict(family="exaone_moe", num_hidden_layers=3, mlp_layer_types=["sparse", "dense", "sparse"], head_dim=10,
                         num_experts=12, n_group=3, topk_group=2, norm_topk_prob=False, num_shared_experts=2, sliding_window=40,
                         layer_types=["full_attention", "sliding_attention", "sliding_attention"], num_key_value_heads=1,
                         tie_word_embeddings=True, vocab_size=101, pad_token_id=5, rope_parameters=FAST),
    "solar_open": dict(family="solar_open", num_key_value_heads=2),
    "solar_open_groups": dict(family="solar_open", n_routed_experts=12, n_group=3, topk_group=2, num_experts_per_tok=4, norm_topk_prob=False,
                              routed_scaling_factor=2.5, n_shared_experts=2, attention_bias=True, head_dim=10, num_key_value_heads=1,
                              vocab_size=101, tie_word_embeddings=True, pad_token_id=5, rope_parameters=YARN),
    "mellum": dict(family="mellum", num_key_value_heads=2, num_hidden_layers=3, sliding_window=7,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "mellum_kinds": dict(family="mellum", num_key_value_heads=1, head_dim=10, sliding_window=5, norm_topk_prob=False, attention_bias=True,
                         vocab_size=101, pad_token_id=5, tie_word_embeddings=True, layer_types=["full_attention", "sliding_attention"],
                         mlp_layer_types=["sparse", "dense"], rope_parameters=dict(full_attention=YARN, sliding_attention=FAST)),
    "mellum_global": dict(family="mellum", num_attention_heads=1, num_key_value_heads=1, num_experts=33, num_experts_per_tok=1,
                          moe_intermediate_size=3, norm_topk_prob=False),
    "flex_olmo": dict(family="flex_olmo", num_key_value_heads=2, rope_parameters=ROPE_500),
    "flex_olmo_odd": dict(family="flex_olmo", hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=12, attention_bias=True,
                          norm_topk_prob=True, num_experts_per_tok=3, tie_word_embeddings=True, vocab_size=101, pad_token_id=5,
                          rope_parameters=YARN),
    "afmoe": dict(family="afmoe", num_hidden_layers=4, num_key_value_heads=2, sliding_window=7, rope_parameters=ROPE_500),
    "afmoe_odd": dict(family="afmoe", hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=12, num_hidden_layers=3,
                      num_dense_layers=0, num_shared_experts=2, route_scale=2.5, mup_enabled=True, attention_bias=True, vocab_size=101,
                      tie_word_embeddings=True, pad_token_id=5, sliding_window=5, num_experts_per_tok=3,
                      layer_types=["full_attention", "sliding_attention", "sliding_attention"], rope_parameters=YARN),
    # Where every token has all experts rounding chooses none.
    "olmoe_all": dict(family="olmoe", num_experts=3, num_experts_per_tok=3, num_key_value_heads=2, clip_qkv=0.4, rope_parameters=FAST),
    "minimax_m2_all": dict(family="minimax_m2", num_local_experts=3, num_experts_per_tok=3, rotary_dim=4),
    "granite_all": dict(MULTIPLIERS, family="granitemoeshared", num_local_experts=3, num_experts_per_tok=3, rope_parameters=FAST),
    "granite_windows_all": dict(MULTIPLIERS, family="granitemoe_swa", num_local_experts=3, num_experts_per_tok=3, sliding_window=5,
                                shared_intermediate_size=22, rope_parameters=FAST),
    "ernie_all": dict(family="ernie4_5_moe", moe_num_experts=3, moe_k=3, moe_layer_interval=1, rope_parameters=FAST),
    "dots1_all": dict(family="dots1", n_routed_experts=2, rope_parameters=FAST),
    "exaone_all": dict(family="exaone_moe", num_experts=2, first_k_dense_replace=0, sliding_window=5, sliding_window_pattern=2),
    "solar_open_all": dict(family="solar_open", n_routed_experts=2),
    "mellum_all": dict(family="mellum", num_experts=3, num_experts_per_tok=3, sliding_window=5,
                       layer_types=["full_attention", "sliding_attention"]),
    "flex_olmo_all": dict(family="flex_olmo", num_experts=3, num_experts_per_tok=3, num_key_value_heads=2),
    "afmoe_all": dict(family="afmoe", num_experts=2, num_dense_layers=0, sliding_window=5, global_attn_every_n_layers=2),
}
CHOOSING_NONE = sorted(name for name in CONFIGS if name.endswith("_all"))
FAMILIES = {"olmoe": "olmoe_limits", "minimax_m2": "minimax_m2", "granitemoe": "granite", "granitemoeshared": "granite_shared",
            "granitemoe_swa": "granite_windows_by_layer",
            "ernie4_5_moe": "ernie_layers", "hunyuan_v1_moe": "hunyuan_by_layer", "dots1": "dots1_groups", "exaone_moe": "exaone_kinds",
            "solar_open": "solar_open_groups", "mellum": "mellum", "flex_olmo": "flex_olmo", "afmoe": "afmoe"}
BALANCED = ["olmoe", "minimax_m2", "granitemoe", "granitemoeshared", "granitemoe_swa", "ernie4_5_moe", "mellum", "flex_olmo"]


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
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


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_is_bit_equal(tmp_path, family):
    save_checkpoint(tmp_path, **CONFIGS[FAMILIES[family]])
    documents = make_documents(LENGTHS)
    balance = dict(balance=WEIGHT) if family in BALANCED else {}
    plain, _ = run_probe(tmp_path, documents=documents, checkpoint=False, **balance)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, documents=documents, checkpoint=True, **balance)
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("family", BALANCED)
def test_the_loss_that_balances(tmp_path, family):
    """Also where others than the most probable experts are chosen."""
    save_checkpoint(tmp_path, **CONFIGS[FAMILIES[family]])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    documents = make_documents((23, 1, 9))
    run_reference(model, documents)
    routers = ("gate.weight", "router.weight")
    unbalanced = {n: g.clone() for n, g in gradients_of(model) if n.endswith(routers)}
    loss, _ = run_reference(model, documents, balance=WEIGHT)
    tensors, _ = run_probe(tmp_path, documents=documents, balance=WEIGHT)
    errors = {"balance": relative_error(tensors["balance"], balance_of(model, documents)), "loss": relative_error(tensors["loss"], loss)}
    gradients = dict(gradients_of(model))
    floor = 1e-3 * max(gradient.norm().item() for gradient in gradients.values())
    for key, gradient in gradients.items():
        errors[key] = (tensors["grad:" + key] - gradient).norm().item() / max(gradient.norm().item(), floor)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    assert unbalanced and all(relative_error(g, gradients[n]) > 1e-3 for n, g in unbalanced.items())


@pytest.mark.parametrize("family,names", [("ernie4_5_moe", ("model.mtp_block.0.input_layernorm.weight", "model.mtp_linear_proj.0.weight")),
                                          ("exaone_moe", ("mtp.layers.0.input_layernorm.weight", "mtp.fc.weight")),
                                          ("mellum", ("mtp.layers.0.input_layernorm.weight", "mtp.fc.weight"))])
def test_layers_that_predict_further_tokens_are_left_out(tmp_path, family, names):
    save_checkpoint(tmp_path, family=family)
    documents = make_documents((9, 4))
    plain, _ = run_probe(tmp_path, documents=documents)
    expected = plain["logits"].clone()
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), **{name: torch.ones(2) for name in names}}, file, {"format": "pt"})
    tensors, _ = run_probe(tmp_path, documents=documents)
    assert torch.equal(tensors["logits"], expected)
    save_file({**load_file(file), "model.layers.0.other.weight": torch.ones(2)}, file, {"format": "pt"})
    run, _ = run_probe_raw(tmp_path, documents=documents)
    assert run.returncode != 0 and 'does not imply: "model.layers.0.other.weight"' in run.stderr, run.stderr


@pytest.mark.parametrize("family", ["minimax_m2", "ernie4_5_moe", "dots1", "exaone_moe", "solar_open", "afmoe"])
def test_a_correction_of_16_bits(tmp_path, family):
    """Some published files hold it so; it is added in fp32."""
    save_checkpoint(tmp_path, **CONFIGS[FAMILIES[family]])
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    corrections = {name: tensor.bfloat16() for name, tensor in tensors.items() if name.endswith(("e_score_correction_bias", "expert_bias"))}
    assert corrections
    save_file({**tensors, **corrections}, file, {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents)
    compare(found, model, loss, logits, 1e-5)


@pytest.mark.parametrize("family,settings", [("hunyuan_v1_moe", {}), ("ernie4_5_moe", dict(moe_layer_start_index=0, moe_layer_interval=1)),
                                             ("dots1", dict(first_k_dense_replace=0)), ("exaone_moe", dict(first_k_dense_replace=0))])
def test_products_of_a_router_that_are_taken_in_fp32(tmp_path, family, settings):
    """In 16 bits most of them would be equal, and other experts chosen."""
    save_checkpoint(tmp_path, family=family, num_hidden_layers=1, **settings)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("e_score_correction_bias"):
            tensor.zero_()
        if name.endswith(("mlp.gate.weight", "mlp.gate.wg.weight")):
            tensor[:, :16] = tensor[0, :16].sign()
            tensor[:, 16:] *= 1e-3
            tensor.copy_(tensor.bfloat16())
    save_file(tensors, file, {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    documents = make_documents(LENGTHS)
    _, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, dtype="bfloat16")
    errors = (found["logits"].float() - logits.float()).norm(dim=1) / logits.float().norm(dim=1)
    assert (errors < 0.02).float().mean() > 0.9, errors


@pytest.mark.parametrize("family,change,message", [
    ("olmoe", dict(head_dim=6), "found head_dim = 6, expected hidden_size / num_attention_heads = 8"),
    ("olmoe", dict(sliding_window=7), "found sliding_window = 7 in an olmoe model, which has none"),
    ("olmoe", dict(clip_qkv=-1.0), "found clip_qkv = -1.0, expected a number above 0"),
    ("olmoe", dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_experts = 5"),
    ("olmoe", dict(num_local_experts=4), "found num_experts = 5 and num_local_experts = 4, expected one number"),
    ("minimax_m2", dict(scoring_func="softmax"), 'found scoring_func "softmax", expected "sigmoid"'),
    ("minimax_m2", dict(router_jitter_noise=0.1), "found router_jitter_noise = 0.1, expected 0"),
    ("minimax_m2", dict(rotary_dim=9, rope_parameters=None), "of head_dim = 8, expected a part of at most 1 that is an even number of channels"),
    ("minimax_m2", dict(hidden_act="gelu"), 'found hidden_act "gelu", expected "silu"'),
    ("granitemoe", dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_local_experts = 5"),
    ("granitemoe", dict(num_local_experts=4), 'block_sparse_moe.router.weight" has shape [5, 32], config.json implies [4, 32]'),
    ("granitemoe", dict(num_experts_per_tok=None), "found num_experts_per_tok = None, expected a value"),
    ("granitemoe_swa", dict(layer_rope_theta=[0, -1]), "expected a list of num_hidden_layers = 2 numbers of at least 0"),
    ("granitemoe_swa", dict(sliding_window=None), "found sliding_window = None with sliding-window layers"),
    ("granitemoe_swa", dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_local_experts = 5"),
    ("granitemoe_swa", dict(shared_intermediate_size=22), 'found no tensor "model.layers.0.shared_mlp.input_linear.weight"'),
    ("granitemoeshared", dict(shared_intermediate_size=-1), "found shared_intermediate_size = -1, expected an integer of at least 1"),
    ("granitemoeshared", dict(shared_intermediate_size=None), "found shared_intermediate_size = None, expected a value"),
    ("ernie4_5_moe", dict(use_bias=True), "found use_bias = true in an ernie4_5_moe model, expected false"),
    ("ernie4_5_moe", dict(moe_k=6), "found num_experts_per_tok = 6, expected at most moe_num_experts = 5"),
    ("ernie4_5_moe", dict(num_experts_per_tok=3), "found moe_k = 2 and num_experts_per_tok = 3, expected one number"),
    ("ernie4_5_moe", dict(moe_k=None), "found moe_k = None, expected a value"),
    ("ernie4_5_moe", dict(moe_norm_min=None), "found moe_norm_min = None, expected a value"),
    ("ernie4_5_moe", dict(moe_layer_interval=None), "found moe_layer_interval = None, expected a value"),
    ("ernie4_5_moe", dict(moe_layer_start_index=2), 'found no tensor "model.layers.1.mlp.gate_proj.weight"'),
    ("hunyuan_v1_moe", dict(moe_topk=[2]), "expected an integer of at least 1 or a list of such for num_hidden_layers = 2 layers"),
    ("hunyuan_v1_moe", dict(moe_topk=[2, 6]), "found num_experts_per_tok = 6, expected at most num_experts = 5"),
    ("hunyuan_v1_moe", dict(num_experts=[5, 5]), "found num_experts = [5, 5], expected an integer"),
    ("dots1", dict(n_routed_experts=None), "found no n_routed_experts, expected a number"),
    ("dots1", dict(n_shared_experts=None), "found no n_shared_experts, expected a number"),
    ("dots1", dict(n_group=6), "found n_group = 6, expected groups of two or more of n_routed_experts = 6"),
    ("dots1", dict(layer_types=["sliding_attention"] * 2, sliding_window=None), "found sliding_attention in layer_types and sliding_window = None"),
    ("exaone_moe", dict(n_group=4), "found n_group = 4, expected groups of two or more of num_experts = 6"),
    ("exaone_moe", dict(mlp_layer_types=["dense"]), "expected a list of num_hidden_layers = 2 texts, dense or sparse"),
    ("exaone_moe", dict(num_shared_experts=0), "found num_shared_experts = 0, expected an integer of at least 1"),
    ("solar_open", dict(n_group=4), "found n_group = 4, expected groups of two or more of n_routed_experts = 6"),
    ("solar_open", dict(head_dim=None), "found head_dim = None, expected a value"),
    ("mellum", dict(rope_theta=500.0), "found rope_theta in a mellum model, expected rope_parameters by kind of layer"),
    ("mellum", dict(rope_parameters=ROPE_500), "found rope_parameters.rope_type, expected sliding_attention and full_attention"),
    ("mellum", dict(layer_types=["sliding_attention"] * 2, sliding_window=None), "found sliding_window = None with sliding-window layers"),
    ("mellum", dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_experts = 5"),
    ("flex_olmo", dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_experts = 5"),
    ("flex_olmo", dict(layer_types=["sliding_attention"] * 2), 'found "sliding_attention" in layer_types, expected full_attention'),
    ("afmoe", dict(route_scale=None), "found route_scale = None, expected a value"),
    ("afmoe", dict(num_experts_per_tok=7), "found num_experts_per_tok = 7, expected at most num_experts = 6"),
    ("afmoe", dict(sliding_window=None), "found sliding_window = None with sliding-window layers"),
    ("afmoe", dict(num_dense_layers=2), 'found no tensor "model.layers.1.mlp.gate_proj.weight"'),
])
def test_what_is_refused(tmp_path, family, change, message):
    save_checkpoint(tmp_path, family=family)
    edit_config(tmp_path, **change)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and message in run.stderr, run.stderr
