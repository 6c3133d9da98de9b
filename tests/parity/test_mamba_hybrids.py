"""Oracle: transformers' Bamba, Falcon-H1 and Nemotron-H: Mamba-2 in some layers, beside attention in all, or as one of four kinds of layers."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import run_probe, run_probe_raw
from running import base_flags, run_strata_raw
from test_generate import PROMPTS, make_model, reference_ids
from test_generate import run_probe as generate
from test_gpt2 import edit_config
from test_hybrid_corners import corner_equals_transformers
from test_hybrids import equals_transformers, lengths_of
from test_llama import LENGTHS, YARN, compare
from test_rotary_decoders import closeness_of_bfloat16

FAST = dict(rope_type="default", rope_theta=10.0)
NO_FACTORS = dict(embedding_multiplier=1.0, lm_head_multiplier=1.0, key_multiplier=1.0, attention_in_multiplier=1.0,
                  attention_out_multiplier=1.0, ssm_in_multiplier=1.0, ssm_out_multiplier=1.0, ssm_multipliers=None, mlp_multipliers=None)
# transformers' cache needs a layer with attention.
NO_ATTENTION = dict(use_cache=False)
BAMBA = {
    "bamba": dict(family="bamba", rope_parameters=FAST),
    "bamba_biases": dict(family="bamba", mamba_proj_bias=True, mamba_d_conv=3, attention_bias=True, mlp_bias=True, mamba_n_groups=1,
                         tie_word_embeddings=True, rope_parameters=dict(FAST, partial_rotary_factor=0.25)),
    "bamba_mamba_alone": dict(NO_ATTENTION, family="bamba", attn_layer_indices=None, mamba_conv_bias=False, mamba_expand=1, mamba_chunk_size=8,
                              mamba_d_state=5, vocab_size=101, pad_token_id=5),
    "bamba_limited": dict(family="bamba", time_step_limit=(0.5, 0.9), attn_layer_indices=[0, 7], rope_parameters=FAST),
    "bamba_attention_alone": dict(family="bamba", attn_layer_indices=[0, 1], rope_parameters=YARN, head_dim=16),
    "bamba_long_documents": dict(family="bamba", max_position_embeddings=512, rope_parameters=FAST),
}
FALCON_H1 = {
    "falcon_h1": dict(family="falcon_h1", rope_parameters=FAST),
    "falcon_h1_no_factors": dict(family="falcon_h1", **NO_FACTORS, rope_parameters=FAST),
    "falcon_h1_norm_first": dict(family="falcon_h1", mamba_rms_norm=True, rope_parameters=FAST),
    "falcon_h1_gate_first": dict(family="falcon_h1", mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_n_groups=1, rope_parameters=FAST),
    "falcon_h1_biases": dict(family="falcon_h1", attention_bias=True, mlp_bias=True, mamba_proj_bias=True, projectors_bias=True,
                             tie_word_embeddings=True, pad_token_id=5, rope_parameters=FAST),
    "falcon_h1_bias_behind": dict(family="falcon_h1", projectors_bias=True, mamba_conv_bias=False, mamba_d_conv=3, head_dim=6,
                                  vocab_size=101, rope_parameters=YARN),
    "falcon_h1_expanded": dict(family="falcon_h1", mamba_d_ssm=None, mamba_expand=1, mamba_rms_norm=True, mamba_chunk_size=8,
                               num_key_value_heads=None, rope_parameters=FAST),
    "falcon_h1_limited": dict(family="falcon_h1", time_step_limit=(0.5, 0.9), rope_parameters=FAST),
    "falcon_h1_long_documents": dict(family="falcon_h1", mamba_rms_norm=True, max_position_embeddings=512, rope_parameters=FAST),
}
NEMOTRON_H = {
    "nemotron_h": dict(family="nemotron_h"),
    "nemotron_h_biases": dict(family="nemotron_h", hybrid_override_pattern="-M*M", use_bias=True, mlp_bias=True, conv_kernel=3, n_groups=1,
                              vocab_size=101, pad_token_id=5),
    "nemotron_h_no_conv_bias": dict(NO_ATTENTION, family="nemotron_h", hybrid_override_pattern="MM", use_conv_bias=False, mamba_head_dim=5, chunk_size=8),
    "nemotron_h_least_step": dict(family="nemotron_h", hybrid_override_pattern="M*", time_step_min=0.7, time_step_max=0.8),
    "nemotron_h_experts": dict(family="nemotron_h", hybrid_override_pattern="ME*-E"),
    "nemotron_h_groups": dict(NO_ATTENTION, family="nemotron_h", hybrid_override_pattern="EM", n_group=3, topk_group=2, num_experts_per_tok=3,
                              norm_topk_prob=False, routed_scaling_factor=1.5),
    "nemotron_h_latents": dict(family="nemotron_h", hybrid_override_pattern="MEE*", moe_latent_size=10, routed_scaling_factor=2.5),
    "nemotron_h_latent_biases": dict(NO_ATTENTION, family="nemotron_h", hybrid_override_pattern="EM", moe_latent_size=10, mlp_bias=True,
                                     moe_shared_expert_intermediate_size=0),
    "nemotron_h_all_experts": dict(family="nemotron_h", hybrid_override_pattern="ME*E", n_routed_experts=3, num_experts_per_tok=3),
    "nemotron_h_long_documents": dict(family="nemotron_h", hybrid_override_pattern="M*M-", max_position_embeddings=512),
}
CONFIGS = {**BAMBA, **FALCON_H1, **NEMOTRON_H}
# Where rounding chooses no experts.
CHOOSING_NONE = sorted(name for name, settings in CONFIGS.items()
                       if "all_experts" in name or "E" not in settings.get("hybrid_override_pattern", ""))


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    equals_transformers(tmp_path, CONFIGS[name], lengths_of(name))


@pytest.mark.parametrize("name", CHOOSING_NONE)
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", ["bamba_biases", "falcon_h1", "falcon_h1_no_factors", "falcon_h1_norm_first", "nemotron_h",
                                  "nemotron_h_experts", "nemotron_h_latents"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    documents = make_documents(LENGTHS)
    plain, _ = run_probe(tmp_path, documents=documents, checkpoint=False)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, documents=documents, checkpoint=True)
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("name", ["bamba", "falcon_h1", "nemotron_h"])
def test_documents_do_not_see_each_other(tmp_path, name):
    """Oracle: the same document alone; those before it would be seen by a convolution or a state that went on."""
    save_checkpoint(tmp_path, **CONFIGS[name])
    documents = make_documents((7, 66, 5, 2))
    together, _ = run_probe(tmp_path, documents=documents)
    together = together["logits"].clone()
    begin = 0
    for document in documents:
        alone, _ = run_probe(tmp_path, documents=[document])
        end = begin + len(document["ids"])
        assert torch.allclose(together[begin:end], alone["logits"], rtol=1e-4, atol=1e-5)
        begin = end


# The reference's steps of one token know no limits of time steps, which its own passes over whole texts have.
GENERATING = ["bamba", "bamba_biases", "falcon_h1", "falcon_h1_norm_first", "falcon_h1_gate_first", "falcon_h1_biases",
              "nemotron_h", "nemotron_h_biases", "nemotron_h_experts", "nemotron_h_latents"]


@pytest.mark.parametrize("name", GENERATING)
def test_greedy_ids_equal_transformers(tmp_path, name):
    settings = dict(CONFIGS[name])
    if "E" in settings.get("hybrid_override_pattern", ""):  # grouped products need multiples of 16 bytes
        settings.update(moe_intermediate_size=16, moe_shared_expert_intermediate_size=16)
        settings.update({"moe_latent_size": 16} if "moe_latent_size" in settings else {})
    model, _ = make_model(tmp_path, settings, None)
    expected = [reference_ids(model, prompt) for prompt in PROMPTS]
    request = dict(model=str(tmp_path), prompts=PROMPTS, max_new_tokens=24)
    assert generate(tmp_path, **request) == expected
    assert generate(tmp_path, use_cache=False, **request) == expected


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "nemotron_h"])
def test_greedy_ids_after_prompts_of_several_parts(tmp_path, family):
    model, _ = make_model(tmp_path, dict(family=family, max_position_embeddings=1200), None)
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(0, 97, (n,), generator=generator).tolist() for n in (513, 1, 512, 1025, 2, 3)]
    expected = [reference_ids(model, prompt) for prompt in prompts]
    assert generate(tmp_path, model=str(tmp_path), prompts=prompts, max_new_tokens=24) == expected


CORNERS = {
    "bamba_one_token": (dict(family="bamba"), (1,)),
    "bamba_odd": (dict(family="bamba", hidden_size=27, num_attention_heads=3, num_key_value_heads=1, mamba_expand=1, mamba_n_heads=3,
                       mamba_n_groups=3, mamba_d_state=1, head_dim=8, vocab_size=99), (65, 64, 63, 1, 2)),
    "bamba_nulls": (dict(family="bamba", mamba_conv_bias=None, mamba_proj_bias=None, num_key_value_heads=None), (5, 1, 33)),
    "falcon_h1_one_token": (dict(family="falcon_h1", mamba_rms_norm=True), (1,)),
    "falcon_h1_odd": (dict(family="falcon_h1", hidden_size=27, num_attention_heads=3, num_key_value_heads=1, mamba_d_ssm=15, mamba_n_heads=3,
                           mamba_n_groups=3, mamba_d_state=1, head_dim=6, vocab_size=99, mamba_d_conv=1, mamba_rms_norm=True),
                      (65, 64, 63, 1, 2)),
    "falcon_h1_one_head": (dict(family="falcon_h1", mamba_d_ssm=32, mamba_n_heads=1, mamba_n_groups=1, num_attention_heads=1, num_key_value_heads=1), (5, 1, 33)),
    "falcon_h1_nulls": (dict(family="falcon_h1", mamba_conv_bias=None, mamba_proj_bias=None, projectors_bias=None, mamba_rms_norm=True,
                             mamba_norm_before_gate=None), (5, 1, 33)),
    "nemotron_h_one_token": (dict(family="nemotron_h", hybrid_override_pattern="ME*-"), (1,)),
    "nemotron_h_odd": (dict(family="nemotron_h", hybrid_override_pattern="M*-M", hidden_size=27, num_attention_heads=3, num_key_value_heads=1,
                            head_dim=5, mamba_num_heads=3, mamba_head_dim=7, n_groups=3, ssm_state_size=1, vocab_size=99), (65, 64, 63, 1, 2)),
    "nemotron_h_one_head": (dict(family="nemotron_h", mamba_num_heads=1, n_groups=1, num_attention_heads=1, num_key_value_heads=1), (5, 1, 33)),
    "nemotron_h_unused_experts": (dict(NO_ATTENTION, family="nemotron_h", hybrid_override_pattern="EM", n_routed_experts=64, num_experts_per_tok=1, norm_topk_prob=False), (5, 1)),
}


@pytest.mark.parametrize("name", CORNERS)
def test_corners(tmp_path, name):
    corner_equals_transformers(tmp_path, *CORNERS[name])


def rewrite_config(folder, drop=(), **changes):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**{key: value for key, value in config.items() if key not in drop}, **changes}))


# What published files say in other words, or beside what the reference's class writes.
PUBLISHED = {
    "bamba": (dict(family="bamba"), ["rope_parameters"], dict(rope_theta=500.0, rope_scaling=None, partial_rotary_factor=0.25, attn_rotary_emb=64,
                                                            mamba_d_head="auto")),
    "falcon_h1": (dict(family="falcon_h1", head_dim=6), ["rope_parameters"], dict(rope_theta=500.0, rope_scaling=None, mamba_d_head="auto",
                                                                                mamba_use_mlp=True, mlp_expansion_factor=8,
                                                                                attn_layer_indices=None)),
    "nemotron_h_letters": (dict(family="nemotron_h", hybrid_override_pattern="ME*-M"), ["layers_block_type"],
                           dict(hybrid_override_pattern="ME*-M", num_hidden_layers=5, rms_norm_eps=7.0, hidden_act="gelu", num_query_groups=8)),
    "nemotron_h_older_names": (dict(family="nemotron_h", hybrid_override_pattern="M*", conv_kernel=3, n_groups=1, time_step_min=0.6, time_step_max=0.9,
                                    use_conv_bias=False),
                               ["layers_block_type", "conv_kernel", "n_groups", "time_step_min", "use_conv_bias"],
                               dict(layers_block_type=["mamba", "attention"], mamba_d_conv=3, mamba_n_groups=1, mamba_dt_min=0.6,
                                    mamba_conv_bias=False)),
    "nemotron_h_other_names": (dict(NO_ATTENTION, family="nemotron_h", hybrid_override_pattern="EM"), ["layers_block_type", "n_routed_experts"],
                               dict(layer_types=["moe", "linear_attention"], num_local_experts=6, num_hidden_layers=52)),
    # The reference ties nothing, whatever the key says.
    "nemotron_h_tie": (dict(family="nemotron_h"), [], dict(tie_word_embeddings=True)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_of_published_files(tmp_path, name):
    settings, dropped, changes = PUBLISHED[name]
    save_checkpoint(tmp_path, **settings)
    rewrite_config(tmp_path, dropped, **changes)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


def test_names_in_files_of_nemotron_h(tmp_path):
    """Published files have a backbone and experts one by one, and layers that predict further tokens, which nobody reads."""
    from safetensors.torch import save_file

    save_checkpoint(tmp_path, family="nemotron_h", hybrid_override_pattern="ME")
    weights = load_file(tmp_path / "model.safetensors")
    assert "backbone.embeddings.weight" in weights and "backbone.layers.1.mixer.experts.5.down_proj.weight" in weights
    documents = make_documents((9, 4))
    expected = run_probe(tmp_path, documents=documents)[0]["logits"].clone()
    save_file({**weights, "mtp.layers.0.norm.weight": torch.ones(32)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(run_probe(tmp_path, documents=documents)[0]["logits"], expected)
    save_file({name.replace("backbone.", "model."): tensor for name, tensor in weights.items()}, tmp_path / "model.safetensors",
              metadata={"format": "pt"})
    assert torch.equal(run_probe(tmp_path, documents=documents)[0]["logits"], expected)


@pytest.mark.parametrize("family,change,message", [
    ("bamba", dict(z_loss_coefficient=0.1), "found z_loss_coefficient = 0.1, expected 0"),
    ("bamba", dict(layers_block_type=["linear_attention"] * 2), "found layers_block_type, expected attn_layer_indices alone"),
    ("bamba", dict(attn_layer_indices="1"), 'found attn_layer_indices = "1", expected a list of numbers of layers'),
    ("bamba", dict(mamba_n_heads=5), "found mamba_n_heads = 5, expected a divisor of mamba_expand * hidden_size = 64"),
    ("bamba", dict(mamba_expand=None), "found mamba_expand = None, expected a value"),
    ("bamba", dict(hidden_act="gelu"), 'found hidden_act "gelu"'),
    ("bamba", dict(mlp_bias=True), 'found no tensor "model.layers.0.feed_forward.gate_proj.bias"'),
    ("falcon_h1", dict(mamba_d_head=8), "found mamba_d_head = 8, expected mamba_d_ssm / mamba_n_heads = 12"),
    ("falcon_h1", dict(mamba_n_groups=3), "found mamba_n_groups = 3, expected a divisor of mamba_n_heads = 4"),
    ("falcon_h1", dict(key_multiplier=None), "found key_multiplier = None, expected a value"),
    ("falcon_h1", dict(ssm_in_multiplier=0), "found ssm_in_multiplier = 0, expected a number above 0"),
    ("falcon_h1", dict(ssm_multipliers=[1.0] * 4), "found ssm_multipliers = [1.0,1.0,1.0,1.0], expected a list of 5 numbers"),
    ("falcon_h1", dict(mlp_multipliers=[1.0]), "found mlp_multipliers = [1.0], expected a list of 2 numbers"),
    ("falcon_h1", dict(layer_types=["hybrid"] * 2), "found layer_types, expected none, all layers being alike"),
    ("falcon_h1", dict(mamba_rms_norm=True), 'found no tensor "model.layers.0.mamba.norm.weight"'),
    ("nemotron_h", dict(layers_block_type=["mamba", "hybrid"]), 'found "hybrid" in layers_block_type, expected linear_attention, full_attention'),
    ("nemotron_h", dict(layers_block_type=[]), "found layers_block_type of no layers, expected one or more"),
    ("nemotron_h", dict(layers_block_type=None, hybrid_override_pattern="MX"), 'found "X" in hybrid_override_pattern, expected M, *, - or E'),
    ("nemotron_h", dict(hybrid_override_pattern="MM"), "found hybrid_override_pattern with other layers_block_type"),
    ("nemotron_h", dict(mamba_n_groups=4), "found n_groups = 2 and mamba_n_groups = 4, expected one value"),
    ("nemotron_h", dict(n_groups=3), "found n_groups = 3, expected a divisor of mamba_num_heads = 4"),
    ("nemotron_h", dict(mlp_hidden_act="silu"), 'found mlp_hidden_act "silu", expected "relu2"'),
    ("nemotron_h", dict(time_step_min=0.2), "found time_step_min = 0.2, expected at most time_step_max = 0.1"),
    ("nemotron_h", dict(layers_block_type=["moe"], num_experts_per_tok=7), "found num_experts_per_tok = 7, expected at most n_routed_experts = 6"),
    ("nemotron_h", dict(layers_block_type=["moe"], n_group=6), "found n_group = 6, expected groups of two or more"),
])
def test_what_is_refused(tmp_path, family, change, message):
    save_checkpoint(tmp_path, family=family)
    edit_config(tmp_path, **change)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and message in run.stderr, run.stderr


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "out_proj"]])
@pytest.mark.parametrize("family", ["falcon_h1", "nemotron_h", "bamba"])
def test_branches_that_peft_refuses(inputs, tmp_path, family, targets):
    """The product behind a state space, in those families whose models PEFT knows."""
    base = inputs.model(family)
    run = run_strata_raw(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=1, use_peft=True, lora_target_modules=targets))
    try:
        get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(target_modules=targets, task_type="CAUSAL_LM"))
    except ValueError as error:
        assert "Module 'out_proj' is incompatible with Mamba-based models" in str(error)
        assert run.returncode == 2 and '.out_proj", expected other layers, as PEFT gives this one no branch' in run.text, run.text
        assert family != "bamba"
    else:
        assert run.returncode == 0 and family == "bamba", run.text


@pytest.mark.parametrize("family", ["bamba", "falcon_h1", "nemotron_h"])
@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "PREFIX_TUNING"])
def test_virtual_tokens_are_refused(tmp_path, family, kind):
    save_checkpoint(tmp_path, family=family)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)), lora=dict(peft_type=kind, num_virtual_tokens=3))
    assert run.returncode != 0 and "prompt or prefix tuning with a model whose family has none" in run.stderr, run.stderr
