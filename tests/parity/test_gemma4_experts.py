"""Oracle: transformers' Gemma 4 with experts beside its MLPs (26B-A4B), and PEFT."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import tiny_llama
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from running import strata
from test_gpt2 import edit_config
from test_llama import YARN, compare
from test_lora import probe_name, randomise
from test_rotary_decoders import closeness_of_bfloat16

LENGTHS = (23, 1, 9, 40)
EXPERTS = dict(family="gemma4_text", enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=14)
CONFIGS = {
    "experts": EXPERTS,
    "two_of_many": dict(EXPERTS, num_experts=33, top_k_experts=2, moe_intermediate_size=3, num_hidden_layers=2,
                        layer_types=["sliding_attention", "full_attention"], vocab_size=101, tie_word_embeddings=False),
    "all_of_three": dict(EXPERTS, num_experts=3, top_k_experts=3, attention_k_eq_v=True, final_logit_softcapping=1.5),
    "beside_vectors": dict(EXPERTS, hidden_size_per_layer_input=6, num_kv_shared_layers=2, pad_token_id=5),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path):
    """Where every token has all experts: of others rounding may choose."""
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS["all_of_three"])
    assert ours < 1.1 * theirs


def test_checkpointing_is_bit_equal(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["beside_vectors"])
    documents = make_documents(LENGTHS)
    plain, _ = run_probe(tmp_path, documents=documents, checkpoint=False)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, documents=documents, checkpoint=True)
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


def test_a_base_of_rotations_beside_their_settings(tmp_path):
    """As transformers takes it: for each kind of layers that says none."""
    save_checkpoint(tmp_path, family="gemma4_text")
    full = dict(rope_type="linear", factor=2.0)
    edit_config(tmp_path, rope_theta=300.0, rope_parameters=dict(sliding_attention=dict(rope_type="default"), full_attention=full))
    documents = make_documents(LENGTHS)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    loss, logits = run_reference(model, documents)
    compare(run_probe(tmp_path, documents=documents)[0], model, loss, logits, 1e-5)


def test_yarn_that_is_not_truncated_is_refused(tmp_path):
    """transformers looks for the key beside the kinds of layers alone."""
    save_checkpoint(tmp_path, family="gemma4_text")
    edit_config(tmp_path, rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=1e4),
                                               full_attention=dict(YARN, truncate=False)))
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and "found rope_parameters.full_attention.truncate = False" in run.stderr, run.stderr


@pytest.mark.parametrize("targets", [dict(target_modules="all-linear"), dict(target_modules=["q_proj", "router.proj", "mlp.down_proj"]),
                                     dict(target_modules=["router.proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
                                     dict(target_modules=["router.proj"], target_parameters=["1.experts.down_proj"])])
def test_adapters_equal_those_of_peft(tmp_path, targets):
    """The router is a linear layer, the experts are parameters."""
    lora = dict(targets, r=3, lora_alpha=5)
    save_checkpoint(tmp_path, **EXPERTS)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path), LoraConfig(**lora, task_type="CAUSAL_LM"))
    randomise(model, 0.1)
    adapter = tmp_path / "adapter"
    model.save_pretrained(adapter)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter))
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    expected = {"grad:" + probe_name(name): p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert {key for key in tensors if key.startswith("grad:")} == set(expected)
    assert any("router.proj" in key for key in expected)
    for key, gradient in expected.items():
        errors[key] = relative_error(tensors[key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("init", [True, "gaussian"])
def test_first_values_of_branches_of_experts_are_those_of_peft(tmp_path, init):
    save_checkpoint(tmp_path, **EXPERTS)
    settings = dict(target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"], r=3, init_lora_weights=init)
    base = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.manual_seed(11)
    model = get_peft_model(base, LoraConfig(**settings, task_type="CAUSAL_LM"))
    tensors, _ = run_probe(tmp_path, documents=make_documents((4,)), lora=settings, seed=11)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(tensors["init:" + probe_name(name)].float(), parameter.float()), name


@pytest.mark.parametrize("width", [12, 36])
def test_merged_experts_are_those_of_peft(tmp_path, width):
    """Also where their matrices are square, so that shapes do not tell rows from columns."""
    settings = dict(tiny_llama.GEMMA4_EXPERTS, moe_intermediate_size=width)
    base = tiny_llama.save_model(tmp_path / "model", **settings)
    lora = LoraConfig(r=3, lora_alpha=5, target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"],
                      task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora)
    randomise(model, 0.1)
    model.save_pretrained(tmp_path / "adapter")
    strata("merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", base)
    found, before = (load_file(folder / "model.safetensors") for folder in (tmp_path / "merged", base))
    expected = model.merge_and_unload().state_dict()
    changed = 0
    for name, weight in found.items():
        assert relative_error(weight, expected[name]) < 1e-6, name
        changed += not torch.equal(weight, before[name])
    assert changed == 3 * settings["num_hidden_layers"]
