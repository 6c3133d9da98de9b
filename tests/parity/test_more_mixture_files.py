"""Oracle: PEFT's adapters of the families of test_more_mixtures.py, and what transformers loads of their results."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tiny_llama
from llama_reference import EXPERT_NAMES, make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe
from running import base_flags, run_strata, strata
from test_lora import probe_name, randomise
from test_mixtures import random_adapter, unfused_gradients
from test_more_mixtures import CONFIGS, FAMILIES, LENGTHS


@pytest.mark.parametrize("targets", ["all-linear", "experts"])
@pytest.mark.parametrize("family", sorted(EXPERT_NAMES.keys() & FAMILIES.keys()))
def test_adapters_equal_those_that_peft_loads_and_merges(tmp_path, family, targets):
    save_checkpoint(tmp_path, **CONFIGS[FAMILIES[family]])
    names = targets if targets == "all-linear" else ["gate", *EXPERT_NAMES[family][1:]]
    if targets == "experts" and family == "hunyuan_v1_moe":  # whose router is a linear layer of its own name
        names[0] = "wg"
    lora, adapter = random_adapter(tmp_path, names, r=3, alpha=5)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), adapter, is_trainable=True)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter))
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    expected = dict(unfused_gradients(model, family, 3))
    assert expected.keys() == set(report["adapter_tensors"])
    for key, gradient in expected.items():
        errors[key] = relative_error(tensors["grad:" + key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-5, f"{worst}: {errors[worst]}"
    model.merge_and_unload().save_pretrained(tmp_path / "expected")
    strata("merge-adapter", adapter, tmp_path / "found", "--base_model", tmp_path)
    merged, found = (load_file(tmp_path / f / "model.safetensors") for f in ("expected", "found"))
    assert found.keys() == merged.keys()
    assert all(relative_error(found[key], weight) < 1e-6 for key, weight in merged.items())


GRANITES = {"granitemoeshared": CONFIGS["granite_shared"],
            "granitemoehybrid": dict(family="granitemoehybrid", num_local_experts=5, num_experts_per_tok=2)}


@pytest.mark.parametrize("family", GRANITES)
@pytest.mark.parametrize("targets", [dict(target_modules="all-linear"), dict(target_modules=["o_proj", "output_linear"]),
                                     dict(target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "1.block_sparse_moe.experts.down_proj"])])
def test_adapters_of_granite_equal_those_of_peft(tmp_path, targets, family):
    """Experts and router are parameters, the MLP of all tokens is two linear layers."""
    lora = dict(targets, r=3, lora_alpha=5)
    save_checkpoint(tmp_path, **GRANITES[family])
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
    for key, gradient in expected.items():
        errors[key] = relative_error(tensors[key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    strata("merge-adapter", adapter, tmp_path / "found", "--base_model", tmp_path)
    model.merge_and_unload().save_pretrained(tmp_path / "expected")
    merged, found = (load_file(tmp_path / f / "model.safetensors") for f in ("expected", "found"))
    assert found.keys() == merged.keys()
    assert all(relative_error(found[key], weight) < 1e-6 for key, weight in merged.items())


# Routers that transformers keeps in fp32, whatever type a model is loaded in.
KEPT = {"ernie4_5_moe": ".gate.weight", "hunyuan_v1_moe": ".gate.wg.weight"}


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("family", KEPT)
def test_routers_rest_in_the_type_that_transformers_keeps(inputs, tmp_path, family, world):
    """Where all else rests in 16 bits: types of all tensors as save_pretrained() writes them, and not a bit of a router is lost."""
    base = inputs.model(family)
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=1, bf16=True, dtype="bfloat16", learning_rate=0,
                                save_strategy="steps", save_steps=1), world)
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(tmp_path / "expected")
    found, expected = (load_file(folder / "model.safetensors") for folder in (run.folder, tmp_path / "expected"))
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if tensor.dtype != found[name].dtype or not torch.equal(tensor, found[name])] == []
    assert {name for name in found if name.endswith(KEPT[family])}
    # It trains in that type: steps that 16 bits would swallow.
    small = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "small", max_steps=1, bf16=True, dtype="bfloat16",
                                  learning_rate=1e-6, weight_decay=0), world)
    moved = load_file(small.folder / "model.safetensors")
    assert all(not torch.equal(moved[name], found[name]) for name in found if name.endswith(KEPT[family]))


@pytest.mark.parametrize("family", KEPT)
def test_a_16_bit_run_chooses_by_what_16_bits_cannot_tell_apart(tmp_path, family):
    """Routers' rows that differ by less than bfloat16 shows: rounded, every token would have the first experts."""
    save_checkpoint(tmp_path, scale=0.04, **CONFIGS[FAMILIES[family]])
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    for name in [name for name in weights if name.endswith(KEPT[family])]:
        row, steps = weights[name][:1].bfloat16().float(), torch.arange(len(weights[name])).reshape(-1, 1)
        weights[name] = row * (1 + steps * 2.0 ** -12)
    for name in [name for name in weights if name.endswith("e_score_correction_bias")]:
        weights[name].zero_()
    save_file(weights, file, {"format": "pt"})
    documents = make_documents(LENGTHS)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, dtype="bfloat16")
    assert relative_error(tensors["logits"].float(), logits.float()) < 2e-2


@pytest.mark.parametrize("family", [*FAMILIES, "granitemoehybrid", "lfm2_moe", "nemotron_h"])
def test_results_hold_what_the_base_holds(inputs, tmp_path, family):
    """Of every name and type, and what never trains bit by bit, on ranks that share a file of 16 bits."""
    base = inputs.model(family)
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=2, bf16=True, save_strategy="steps", save_steps=2,
                                save_dtype="bfloat16"), 3)
    before = load_file(base / "model.safetensors")
    strata("convert", run.folder / "checkpoint-2", tmp_path / "converted", "--to", "safetensors", "--dtype", "bfloat16")
    for folder in (run.folder, tmp_path / "converted"):
        found = load_file(folder / "model.safetensors")
        assert found.keys() == before.keys()
        for name, tensor in found.items():
            is_buffer = name.endswith(("e_score_correction_bias", "expert_bias"))
            is_kept = is_buffer or folder == run.folder and name.endswith(KEPT.get(family, ()))
            assert tensor.dtype == (torch.float32 if is_kept else torch.bfloat16), name
            assert not is_buffer or torch.equal(tensor, before[name]), name
        model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info


@pytest.mark.parametrize("family,coefficient", [("olmoe", 0.01), ("ernie4_5_moe", 0.001), ("granitemoe", 0.001)])
def test_the_weight_of_the_loss_that_balances_is_that_of_the_class(inputs, tmp_path, family, coefficient):
    base = tiny_llama.save_model(tmp_path / "model", **inputs.MODELS[family])
    config = json.loads((base / "config.json").read_text())
    del config["router_aux_loss_coef"]
    (base / "config.json").write_text(json.dumps(config))
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=1))
    assert "aux_loss" in run.history[0]
    assert AutoModelForCausalLM.from_pretrained(run.folder).config.router_aux_loss_coef == coefficient
