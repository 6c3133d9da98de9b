"""Oracle: transformers' gpt-oss, PEFT's adapters of it, and what transformers decodes of its files in MXFP4."""

import json

import bitsandbytes as bnb
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Mxfp4Config

import tiny_llama
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from running import base_flags, run_strata, run_strata_raw, strata
from test_mixtures import random_adapter

LENGTHS = (23, 1, 9)
SMALL = dict(family="gpt_oss", num_key_value_heads=2, sliding_window=7)
# Blocks of 32, an odd number of them; columns that no tile divides.
PACKED = dict(tiny_llama.GPT_OSS, hidden_size=96, intermediate_size=160, num_local_experts=3)
PACKED_NAMES = ("experts.gate_up_proj", "experts.down_proj")


def packed_checkpoint(folder, scales=(118, 123), **settings):
    """As published files are: experts in MXFP4, the rest in bfloat16."""
    tiny_llama.save_model(folder, dtype="bfloat16", **{**PACKED, **settings})
    generator = torch.Generator().manual_seed(3)
    weights = load_file(folder / "model.safetensors")
    for name in [n for n in weights if n.endswith(PACKED_NAMES)]:
        experts, columns, rows = weights.pop(name).shape
        blocks = (experts, rows, columns // 32)
        weights[name + "_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8, generator=generator)
        weights[name + "_scales"] = torch.randint(*scales, blocks, dtype=torch.uint8, generator=generator)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    file.write_text(json.dumps(config))
    return folder


def decoded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16,
                                                quantization_config=Mxfp4Config(dequantize=True))


def save_decoded(packed, folder):
    """By a fresh model: transformers writes those that it decoded under the names of blocks, and does not find them."""
    model = decoded(packed)
    fresh = AutoModelForCausalLM.from_config(model.config, dtype=torch.bfloat16)
    fresh.load_state_dict(model.state_dict())
    fresh.save_pretrained(folder)
    tiny_llama.save_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", ["plain", "checkpointed"])
def test_all_linear_means_what_it_means_in_peft(tmp_path, kind):
    save_checkpoint(tmp_path, **SMALL)
    lora, adapter = random_adapter(tmp_path, "all-linear", r=3, alpha=5)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    targets = get_peft_model(base, LoraConfig(target_modules="all-linear")).peft_config["default"].target_modules
    assert sorted(json.loads((adapter / "adapter_config.json").read_text())["target_modules"]) == sorted(targets)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), adapter,
                                      is_trainable=True)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter),
                                checkpoint=kind == "checkpointed")
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    expected = {n.replace(".default", ""): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert expected.keys() == set(report["adapter_tensors"])
    for key, gradient in expected.items():
        errors[key] = relative_error(tensors["grad:" + key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-5, f"{worst}: {errors[worst]}"


@pytest.mark.usefixtures("one_thread")
def test_codes_are_those_of_linear_layers_alone(tmp_path):
    """bitsandbytes knows nn.Linear: router and experts stay, and so does the output layer."""
    save_checkpoint(tmp_path, scale=0.08, **SMALL, hidden_size=64, head_dim=16)
    lora, adapter = random_adapter(tmp_path, ["q_proj"], r=2, alpha=3)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.weight"):
                codes, state = bnb.functional.quantize_4bit(parameter, blocksize=64, quant_type="nf4")
                parameter.copy_(bnb.functional.dequantize_4bit(codes, state))
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter), training=True,
                           quantization=dict(kind="nf4"))
    assert relative_error(tensors["loss"], loss) < 2e-5
    assert relative_error(tensors["logits"], logits) < 2e-5


@pytest.mark.parametrize("world", [1, 3])
def test_what_is_packed_is_decoded_to_the_bit(inputs, tmp_path, world):
    folder = packed_checkpoint(tmp_path / "model")
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1, learning_rate=0), world)
    found, expected = load_file(run.folder / "model.safetensors"), decoded(folder).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.equal(found[name], weight.float()), name
    assert "quantization_config" not in json.loads((run.folder / "config.json").read_text())
    AutoModelForCausalLM.from_pretrained(run.folder)


def test_a_packed_base_trains_as_the_decoded_one(inputs, tmp_path):
    folder = packed_checkpoint(tmp_path / "model")
    save_decoded(folder, tmp_path / "plain")
    flags = dict(use_peft=True, lora_target_modules="all-linear", lora_r=3, dtype="bfloat16", max_steps=4)
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / name, **flags), 2)
            for name, base in (("packed-out", folder), ("plain-out", tmp_path / "plain"))]
    assert runs[0].losses == runs[1].losses
    assert len(set(runs[0].losses)) > 1


def test_a_merged_adapter_leaves_experts_packed(inputs, tmp_path):
    folder = packed_checkpoint(tmp_path / "model")
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=2, use_peft=True,
                                lora_target_modules="all-linear", learning_rate=0.01))
    strata("merge-adapter", run.folder, tmp_path / "merged", "--base_model", folder)
    expected = PeftModel.from_pretrained(decoded(folder), run.folder).merge_and_unload().state_dict()
    found = decoded(tmp_path / "merged").state_dict()
    assert found.keys() == expected.keys()
    base = decoded(folder).state_dict()
    for name, weight in expected.items():
        assert relative_error(found[name], weight) < 1e-2, name
        assert torch.equal(found[name], base[name]) == (not name.endswith("_proj.weight")), name
    assert "model.layers.0.mlp.experts.down_proj_blocks" in load_file(tmp_path / "merged" / "model.safetensors")
    strata("merge-adapter", run.folder, tmp_path / "plain", "--base_model", folder, "--dequantize")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype="auto").state_dict()
    assert plain.keys() == found.keys() and all(torch.equal(plain[name], found[name]) for name in found)


@pytest.mark.parametrize("target", ["bnb-4bit", "bnb-8bit", "strata"])
def test_blocks_are_not_converted_to_what_would_lose_them(tmp_path, target):
    """transformers would begin with random experts where config.json no longer says what blocks are."""
    folder = packed_checkpoint(tmp_path / "model")
    text = strata("convert", folder, tmp_path / "out", "--to", target, code=2)
    assert f"--to {target}: found experts in MXFP4" in text and not (tmp_path / "out").exists()


def test_plan_and_inspect_read_a_packed_folder(inputs, tmp_path):
    """The plan is that of the decoded weights."""
    folder = packed_checkpoint(tmp_path / "model")
    plans = [strata("plan", "--model_name_or_path", base, "--use_peft", "true", "--lora_target_modules", "all-linear",
                    "--max_length", 64)
             for base in (folder, save_decoded(folder, tmp_path / "plain"))]
    kept = [[line for line in plan.splitlines() if not line.startswith(("runtime", "all in use", "held", "peak"))]
            for plan in plans]  # what the program itself takes differs by pages
    assert kept[0] == kept[1] and any(line.startswith("parameters") for line in kept[0]), plans
    assert "mlp.experts.gate_up_proj_blocks" in strata("inspect", folder, "--all")


@pytest.mark.parametrize("change,message", [
    (lambda w: w.pop("model.layers.1.mlp.experts.down_proj_scales"),
     'found "model.layers.1.mlp.experts.down_proj_blocks" without "model.layers.1.mlp.experts.down_proj_scales"'),
    (lambda w: w.update({"model.layers.0.mlp.experts.down_proj_scales": torch.zeros(3, 96, 4, dtype=torch.uint8)}),
     'tensor "model.layers.0.mlp.experts.down_proj_scales" is U8 [3, 96, 4], expected U8 [3, 96, 5] of weights in MXFP4'),
    (lambda w: w.update({"model.layers.0.mlp.experts.down_proj_blocks": torch.zeros(3, 96, 5, 8, dtype=torch.uint8)}),
     'tensor "model.layers.0.mlp.experts.down_proj_blocks" is U8 [3, 96, 5, 8], expected U8 [experts, rows, columns / 32'),
    (lambda w: w.update({"model.layers.0.mlp.experts.down_proj_blocks": torch.zeros(4, 96, 5, 16, dtype=torch.uint8),
                         "model.layers.0.mlp.experts.down_proj_scales": torch.zeros(4, 96, 5, dtype=torch.uint8)}),
     'tensor "model.layers.0.mlp.experts.down_proj_blocks" has shape [4, 160, 96], config.json implies [3, 160, 96]'),
    (lambda w: w.pop("model.layers.1.mlp.experts.down_proj_blocks"),
     'found no tensor "model.layers.1.mlp.experts.down_proj"'),
])
def test_damaged_blocks_are_named(tmp_path, change, message):
    folder = packed_checkpoint(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    process, _ = run_probe_raw(folder, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr, process.stderr


@pytest.mark.parametrize("flags,message", [
    (dict(load_in_4bit=True), "load_in_4bit: found over a checkpoint whose quantization_config says mxfp4"),
    (dict(load_in_8bit=True), "load_in_8bit: found over a checkpoint whose quantization_config says mxfp4"),
    (dict(lora_target_modules=["gate_up_proj"]), "gate_up_proj"),
    (dict(lora_target_modules=["router"]), "router"),
])
def test_what_cannot_be_is_refused(inputs, tmp_path, flags, message):
    run = run_strata_raw(base_flags(packed_checkpoint(tmp_path / "model"), inputs.data("messages"), tmp_path / "out",
                                    max_steps=1, use_peft=True, **{"lora_target_modules": "all-linear", **flags}))
    assert run.returncode == 2 and message in run.text, run.text


@pytest.mark.parametrize("change,message", [
    (dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_local_experts = 5"),
    (dict(swiglu_limit=0), "found swiglu_limit = 0"),
    (dict(attention_dropout=0.1), "found attention_dropout = 0.1 in a model with attention sinks, expected 0"),
    (dict(sliding_window=None), "found sliding_window = None beside layers with a window"),
    (dict(hidden_act="gelu"), 'found hidden_act "gelu", expected "silu"'),
    (dict(num_local_experts=4), 'tensor "model.layers.0.mlp.router.weight" has shape [5, 32], config.json implies [4, 32]'),
    (dict(intermediate_size=21), 'experts.gate_up_proj" has shape [5, 32, 44], config.json implies [5, 32, 42]'),
])
def test_wrong_config_is_named(tmp_path, change, message):
    save_checkpoint(tmp_path, **SMALL)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr, process.stderr


@pytest.mark.parametrize("settings", [{}, dict(rope_parameters=None)], ids=["named", "default"])
def test_positions_that_a_file_does_not_name(tmp_path, settings):
    """The published ones, by YaRN."""
    save_checkpoint(tmp_path, **SMALL, **settings)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    del config["rope_parameters"]
    file.write_text(json.dumps(config))
    documents = make_documents((40,))
    _, logits = run_reference(AutoModelForCausalLM.from_pretrained(tmp_path), documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    assert relative_error(tensors["logits"], logits) < 1e-5
