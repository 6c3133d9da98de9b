"""Oracle: transformers' GLM-4.5, and the files of the base: what corrects the choice of experts stays as it is."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tiny_llama
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe
from running import base_flags, run_strata, run_strata_raw, strata

NAME = "model.layers.1.mlp.gate.e_score_correction_bias"
STEPS = dict(max_steps=2, save_strategy="steps", save_steps=2)


def tensors_in(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def require_correction(folder, base):
    """The very bits of the base, in fp32, and the class of transformers finds all that it wants."""
    found = tensors_in(folder)[NAME]
    assert found.dtype == torch.float32 and torch.equal(found, tensors_in(base)[NAME])
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    assert torch.equal(model.get_buffer(NAME), found)


@pytest.mark.parametrize("kind", ["SHARDED_STATE_DICT", "FULL_STATE_DICT"])
@pytest.mark.parametrize("world,flags", [(1, {}), (3, dict(dtype="bfloat16")), (2, dict(save_dtype="float16")),
                                         (2, dict(bf16=True, sharding_strategy="NO_SHARD"))])
def test_results_and_checkpoints_hold_the_correction(inputs, tmp_path, world, flags, kind):
    base = inputs.model("glm4_moe")
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", fsdp_state_dict_type=kind, **STEPS, **flags),
                     world)
    require_correction(run.folder, base)
    changed = tensors_in(run.folder)["model.layers.1.mlp.gate.weight"]
    assert not torch.equal(changed.float(), tensors_in(base)["model.layers.1.mlp.gate.weight"])
    for to in (["--to", "safetensors"], ["--to", "safetensors", "--dtype", "bfloat16"]):
        out = tmp_path / f"converted-{len(to)}"
        strata("convert", run.folder / "checkpoint-2", out, *to)
        require_correction(out, base)
    strata("convert", run.folder, tmp_path / "nf4", "--to", "bnb-4bit")
    assert torch.equal(tensors_in(tmp_path / "nf4")[NAME], tensors_in(base)[NAME])


@pytest.mark.parametrize("flags", [dict(lora_target_modules="all-linear"),
                                   dict(lora_target_modules=["q_proj"], lora_modules_to_save=["mlp.gate"])])
def test_a_merged_model_holds_the_correction(inputs, tmp_path, flags):
    """Also where the adapter's file holds it beside a router that trained whole, as PEFT's does."""
    base = inputs.model("glm4_moe")
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=2, use_peft=True,
                                lora_dropout=0, dtype="bfloat16", save_dtype="bfloat16", **flags), 2)
    strata("merge-adapter", run.folder, tmp_path / "merged", "--base_model", base, "--dtype", "bfloat16")
    require_correction(tmp_path / "merged", base)


def test_parameters_are_counted_without_the_correction(tmp_path):
    save_checkpoint(tmp_path, family="glm4_moe")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    _, report = run_probe(tmp_path, documents=make_documents((4,)))
    count = sum(p.numel() for p in model.parameters())
    assert report["trainable"] == f"trainable params: {count:,} || all params: {count:,} || trainable%: 100.0000"
    text = strata("plan", "--model_name_or_path", tmp_path, "--max_length", 64)
    assert f"{count} parameters, {count} trained" in text, text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_correction_decides_in_fp32(tmp_path, dtype):
    """All scores are equal, and in bf16 all corrections would be."""
    save_checkpoint(tmp_path, family="glm4_moe", scale=0.04)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["model.layers.1.mlp.gate.weight"].zero_()
    weights[NAME] = 8 + torch.tensor([3.0, 5, 1, 0, 4, 2]) * 1e-3
    save_file(weights, file, {"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype))
    documents = make_documents((9, 4))
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, dtype=dtype)
    assert relative_error(tensors["logits"], logits) < (1e-5 if dtype == "float32" else 2e-2)
    chosen = {e for e in range(6) if tensors[f"grad:model.layers.1.mlp.experts.{e}.up_proj.weight"].count_nonzero()}
    assert chosen == {1, 4}


def with_prediction_layer(folder, number):
    """As the published files have one: of the names of a layer, and some of its own."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    more = {name.replace("layers.1.", f"layers.{number}."): tensor.clone() for name, tensor in weights.items()
            if "layers.1." in name}
    more |= {f"model.layers.{number}.{name}": torch.ones(2, 2) for name in
             ("eh_proj.weight", "enorm.weight", "embed_tokens.weight", "shared_head.norm.weight")}
    save_file(weights | more, file, {"format": "pt"})


def test_layers_that_predict_further_tokens_are_left_out(inputs, tmp_path):
    base = tiny_llama.save_model(tmp_path / "model", **inputs.MODELS["glm4_moe"])
    plain = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "plain", max_steps=2))
    with_prediction_layer(base, 2)
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=2), 1)
    assert run.losses == plain.losses
    assert (run.folder / "model.safetensors").read_bytes() == (plain.folder / "model.safetensors").read_bytes()
    require_correction(run.folder, base)


def test_layers_that_predict_further_tokens_are_copied(inputs, tmp_path):
    """By what changes files and trains nothing."""
    base = tiny_llama.save_model(tmp_path / "model", **inputs.MODELS["glm4_moe"])
    with_prediction_layer(base, 2)
    expected = {name: tensor for name, tensor in tensors_in(base).items() if ".layers.2." in name}
    assert len(expected) > 10
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=2, use_peft=True,
                                lora_dropout=0, lora_target_modules="all-linear"), 1)
    strata("merge-adapter", run.folder, tmp_path / "merged", "--base_model", base)
    strata("convert", base, tmp_path / "converted", "--to", "safetensors")
    for folder in (tmp_path / "merged", tmp_path / "converted"):
        found = tensors_in(folder)
        assert {name for name in found if ".layers.2." in name} == set(expected)
        assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("number,change", [(3, {}), (2, dict(num_nextn_predict_layers=0))])
def test_other_layers_are_not(inputs, tmp_path, number, change):
    base = tiny_llama.save_model(tmp_path / "model", **inputs.MODELS["glm4_moe"])
    with_prediction_layer(base, number)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, **change}))
    run = run_strata_raw(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=1))
    assert run.returncode != 0 and f'does not imply: "model.layers.{number}.' in run.text, run.text


@pytest.mark.parametrize("flags,message", [
    (dict(router_aux_loss_coef=0.1), "router_aux_loss_coef: found 0.1 for a model without experts that a loss balances"),
    (dict(use_peft=True, lora_dropout=0, lora_target_modules=["q_proj", "shared_experts.up_proj"]),
     'target_modules: found "model.layers.1.mlp.shared_experts.up_proj", expected layers of other names'),
    (dict(use_peft=True, lora_dropout=0, lora_target_modules=["mlp.down_proj"]),
     'target_modules: found "model.layers.0.mlp.down_proj", expected layers of other names'),
    (dict(use_peft=True, lora_dropout=0, lora_target_modules=["up_proj"]), "found 6 of 12 layers that are one parameter"),
    (dict(use_peft=True, lora_target_modules="all-linear"), "lora_dropout: found 0.05 on"),
    (dict(use_peft=True), "found nothing, and the model's family has no default"),
])
def test_what_is_refused(inputs, tmp_path, flags, message):
    run = run_strata_raw(base_flags(inputs.model("glm4_moe"), inputs.data("messages"), tmp_path / "out", max_steps=1, **flags))
    assert run.returncode == 2 and message in run.text, run.text
