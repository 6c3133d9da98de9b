"""Oracle: transformers' mixtures of experts, and PEFT's adapters of them, which hold the experts of a layer in one
parameter."""

import json
import subprocess

import bitsandbytes as bnb
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tiny_llama
from llama_reference import EXPERT_NAMES, gradients_of, make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from running import base_flags, command, environment, run_strata_raw, strata

LENGTHS = (23, 1, 9)
MODELS = {"qwen3_moe": dict(family="qwen3_moe", num_key_value_heads=2, norm_topk_prob=True),
          "qwen3_moe_plain": dict(family="qwen3_moe", num_experts=3),
          "mixtral": dict(family="mixtral", num_key_value_heads=1, head_dim=6),
          # Beside the experts MLPs of the same names, which PEFT never adapts here.
          "glm4_moe": dict(family="glm4_moe", num_hidden_layers=3, num_key_value_heads=2, use_qk_norm=True, n_group=2,
                           topk_group=1),
          "deepseek_v2": dict(family="deepseek_v2", q_lora_rank=None, topk_method="group_limited_greedy", n_group=3, topk_group=2),
          "glm4_moe_lite": dict(family="glm4_moe_lite", q_lora_rank=None),
          "deepseek_v3": dict(family="deepseek_v3", q_lora_rank=None, num_hidden_layers=3, n_group=2, topk_group=1)}


def test_experts_without_rows_have_gradients_of_zero(tmp_path):
    """As parts of a parameter that has a gradient they are updated: decayed, and moved by old moments."""
    save_checkpoint(tmp_path, family="qwen3_moe", num_experts=40, num_experts_per_tok=2)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents((5,))
    run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    zeros = 0
    for name, gradient in gradients_of(model):
        found = tensors["grad:" + name]
        if gradient.count_nonzero() == 0:
            assert found.count_nonzero() == 0, name
            zeros += ".experts." in name
        else:
            assert relative_error(found, gradient) < 1e-5, name
    assert zeros >= 2 * 30 * 3  # of each layer


def random_adapter(folder, targets, r, alpha, scale=0.15):
    """The file of an adapter as a run writes it, from what the probe says its tensors are."""
    lora = dict(target_modules=targets, r=r, lora_alpha=alpha)
    generator = torch.Generator().manual_seed(7)
    init, report = run_probe(folder, documents=make_documents((4,)), lora=lora, seed=1)
    tensors = {n: torch.randn(init["init:" + n].shape, generator=generator) * scale for n in report["adapter_tensors"]}
    adapter = folder / "adapter"
    adapter.mkdir()
    save_file(tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    (adapter / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", task_type="CAUSAL_LM", base_model_name_or_path=str(folder), r=r, lora_alpha=alpha,
        lora_dropout=0.0, bias="none", target_modules=report["target_modules"])))
    return lora, adapter


def unfused_gradients(model, family, r):
    """Gradients of PEFT's factors over fused parameters, as those of the branches of each expert: A of gate stands
    above A of up, and B of both is a block diagonal."""
    module, gate, up, down = EXPERT_NAMES[family]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        gradient, name = parameter.grad, name.replace(".default", "").replace(".mlp.", f".{module}.")
        if ".experts." not in name:
            yield name, gradient
            continue
        path, kind = name.split(".experts.")[0] + ".experts", "A" if "lora_A" in name else "B"
        parts = [gate, up] if ".base_layer." in name else [down]
        ranks = r * len(parts)
        if kind == "A":
            experts = gradient.shape[0] // ranks
            by_expert = gradient.view(experts, ranks, -1)
        else:
            experts = gradient.shape[1] // ranks
            by_expert = gradient.view(gradient.shape[0], ranks, experts).permute(2, 0, 1)
        for e, of_expert in enumerate(by_expert):
            for i, part in enumerate(parts):
                rows, columns = of_expert.shape
                block = (of_expert[i * r:(i + 1) * r] if kind == "A" else
                         of_expert.view(len(parts), rows // len(parts), columns)[i][:, i * r:(i + 1) * r])
                yield f"{path}.{e}.{part}.lora_{kind}.weight", block


@pytest.mark.parametrize("targets", ["all-linear", "experts", "attention"])
@pytest.mark.parametrize("name", MODELS)
def test_adapters_equal_those_that_peft_loads(tmp_path, name, targets):
    settings = MODELS[name]
    family = settings["family"]
    save_checkpoint(tmp_path, **settings)
    targets = {"all-linear": "all-linear", "experts": ["gate", *EXPERT_NAMES[family][1:]],
               "attention": ["q_proj", "o_proj"]}[targets]
    lora, adapter = random_adapter(tmp_path, targets, r=3, alpha=5)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), adapter,
                                      is_trainable=True)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    plain, _ = run_probe(tmp_path, documents=documents)
    assert relative_error(plain["logits"], logits) > 0.01
    tensors, report = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter))
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    expected = dict(unfused_gradients(model, family, 3))
    assert expected.keys() == set(report["adapter_tensors"])
    for key, gradient in expected.items():
        errors[key] = relative_error(tensors["grad:" + key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-5, f"{worst}: {errors[worst]}"


def decoded(weight, kind):
    """What bitsandbytes makes of a matrix."""
    if kind == "int8":
        codes, scales, _ = bnb.functional.int8_vectorwise_quant(weight.half())
        return codes.float() * (scales / 127).unsqueeze(1)
    codes, state = bnb.functional.quantize_4bit(weight, blocksize=64, quant_type=kind)
    return bnb.functional.dequantize_4bit(codes, state)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kind", ["nf4", "fp4", "int8"])
@pytest.mark.parametrize("family,sizes", [("qwen3_moe", dict(moe_intermediate_size=64)),
                                          ("mixtral", dict(intermediate_size=72)),
                                          ("glm4_moe", dict(moe_intermediate_size=64, intermediate_size=72, head_dim=16)),
                                          ("deepseek_v3", dict(moe_intermediate_size=64, intermediate_size=72, q_lora_rank=64, kv_lora_rank=64,
                                                               qk_nope_head_dim=12, v_head_dim=16))])
def test_experts_are_codes_one_by_one_and_routers_plain(tmp_path, family, sizes, kind):
    """transformers leaves experts plain: the oracle is its model with what bitsandbytes makes of each matrix."""
    save_checkpoint(tmp_path, family=family, scale=0.08, hidden_size=64, **sizes)
    query = "q_b_proj" if family == "deepseek_v3" else "q_proj"
    lora, adapter = random_adapter(tmp_path, [query, "gate", *EXPERT_NAMES[family][1:]], r=2, alpha=3)
    rounded = tmp_path / "rounded"
    AutoModelForCausalLM.from_pretrained(tmp_path).save_pretrained(rounded)
    weights = load_file(rounded / "model.safetensors")
    are_codes = [n for n in weights if n.endswith(("_proj.weight", "_with_mqa.weight", "w1.weight", "w2.weight", "w3.weight"))]
    beside = {"glm4_moe": 2 * 4 + 3 + 6 * 3 + 3, "deepseek_v3": 2 * 5 + 3 + 6 * 3 + 3}
    assert len(are_codes) == beside.get(family, 2 * (4 + 5 * 3))
    save_file({n: decoded(t, kind) if n in are_codes else t for n, t in weights.items()},
              rounded / "model.safetensors", {"format": "pt"})
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(rounded), adapter, is_trainable=True)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter), training=True,
                                quantization=dict(kind=kind))
    errors = {"loss": relative_error(tensors["loss"], loss)}
    if kind != "int8":  # whose answers multiply rounded activations; the loss is training's
        errors["logits"] = relative_error(tensors["logits"], logits)
    for key, gradient in unfused_gradients(model, family, 2):
        errors[key] = relative_error(tensors["grad:" + key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-5, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("flags,message", [
    (dict(lora_target_modules="all-linear"), 'lora_dropout: found 0.05 on "model.layers.0.block_sparse_moe.gate", a'),
    (dict(lora_target_modules=["w1", "w2"], lora_dropout=0), "found 4 of 8 layers that are one parameter in "
     'transformers ("model.layers.0.block_sparse_moe.experts.0.w1" is one of them), expected all or none; name w1 and w3'),
    (dict(lora_target_modules="all-linear", exclude_modules=["experts.2.w2"], lora_dropout=0), "found 3 of 4 layers"),
    (dict(lora_target_modules=["w2"], lora_dropout=0, use_dora=True), "use_dora: found true on"),
    (dict(lora_target_modules=["w2"], lora_dropout=0, lora_bias=True), "lora_bias: found true on"),
    (dict(lora_target_modules=["w2"], lora_dropout=0, use_rslora=True), "use_rslora: found true on"),
    (dict(lora_target_modules=["w2"], lora_dropout=0, init_lora_weights="pissa"), "init_lora_weights: found pissa on"),
    (dict(lora_target_modules=["w2"], lora_dropout=0, rank_pattern='{"w2": 3}'), "rank_pattern: found a rank on"),
    (dict(lora_target_modules=["w2"], lora_dropout=0, alpha_pattern='{"w2": 3}'), "alpha_pattern: found a value on"),
    (dict(lora_target_modules=["w2"], feedforward_modules=["w2"], peft_type="IA3"), "peft_type: found IA3 on"),
    (dict(lora_target_modules=["w2"], peft_type="VERA"), "peft_type: found VERA on"),
    (dict(lora_target_modules=["q_proj"], lora_modules_to_save=["gate"]),
     'modules_to_save: found "model.layers.0.block_sparse_moe.gate", a part of a mixture'),
    (dict(lora_target_modules=["q_proj"], lora_modules_to_save=["experts.1.w1"]),
     'modules_to_save: found "model.layers.0.block_sparse_moe.experts.1.w1", a part of a mixture'),
])
def test_adapters_that_peft_cannot_load_are_refused(inputs, tmp_path, flags, message):
    run = run_strata_raw(base_flags(inputs.model("mixtral"), inputs.data("messages"), tmp_path / "out", max_steps=1,
                                    use_peft=True, **flags))
    assert run.returncode == 2 and message in run.text, run.text


def test_a_continued_adapter_with_dropout_on_experts_is_refused(inputs, tmp_path):
    """Its file may ask for what the experts' branches leave out."""
    save_checkpoint(tmp_path, family="mixtral")
    _, adapter = random_adapter(tmp_path, ["w1", "w2", "w3"], r=2, alpha=4)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "lora_dropout": 0.3}))
    tiny_llama.save_tokenizer(tmp_path)
    run = run_strata_raw(base_flags(tmp_path, inputs.data("messages"), tmp_path / "out", max_steps=1,
                                    adapter_name_or_path=adapter))
    assert run.returncode == 2 and "lora_dropout: found 0.3 on" in run.text, run.text


@pytest.mark.parametrize("family,settings", [("qwen2_moe", {}), ("qwen3_moe", dict(mlp_only_layers=[1]))])
def test_experts_beside_layers_of_their_names_are_refused(inputs, tmp_path, family, settings):
    folder = tmp_path / "model"
    tiny_llama.save_model(folder, **{**inputs.MODELS[family], **settings})
    run = run_strata_raw(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1, use_peft=True,
                                    lora_target_modules="all-linear", lora_dropout=0))
    assert run.returncode == 2 and "expected other layers: PEFT tells the two apart by no name" in run.text, run.text


def test_layers_are_named_for_deepspeed(inputs, tmp_path):
    """A whole layer is gathered at once, which is what DeepSpeed is told by the name of the block."""
    words = command(base_flags(inputs.model("sparse_mixture"), inputs.data("messages"), tmp_path / "out", max_steps=1))
    words[2:2] = ["--deepspeed_moe_layer_cls_names", "Qwen3MoeSparseMoeBlock"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("targets", ["all-linear", "experts"])
@pytest.mark.parametrize("name", MODELS)
def test_merged_experts_are_those_that_peft_merges(tmp_path, name, targets):
    settings = MODELS[name]
    save_checkpoint(tmp_path, **settings)
    tiny_llama.save_tokenizer(tmp_path)
    targets = "all-linear" if targets == "all-linear" else ["gate", *EXPERT_NAMES[settings["family"]][1:]]
    _, adapter = random_adapter(tmp_path, targets, r=3, alpha=5)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), adapter)
    model.merge_and_unload().save_pretrained(tmp_path / "expected")
    strata("merge-adapter", adapter, tmp_path / "found", "--base_model", tmp_path)
    base, expected, found = (load_file(tmp_path / f / "model.safetensors") for f in (".", "expected", "found"))
    assert found.keys() == expected.keys()
    for key, weight in expected.items():
        assert relative_error(found[key], weight) < 1e-6, key
        is_beside = settings["family"] in ("glm4_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite") and ("shared_experts" in key or "layers.0.mlp" in key)
        is_adapted = not is_beside and (
            key.endswith(("gate.weight", "w1.weight", "w2.weight", "w3.weight")) or ".experts." in key or (
                targets == "all-linear" and "_proj" in key))
        assert (relative_error(base[key], weight) > 1e-3) == is_adapted, key


@pytest.mark.parametrize("family,change,message", [
    ("mixtral", dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_local_experts = 5"),
    ("qwen3_moe", dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_experts = 5"),
    ("qwen3_moe", dict(num_experts=4), "found num_experts = 4 and num_local_experts = 5, expected one number"),
    ("mixtral", dict(num_local_experts=4 * 10**18), "found num_local_experts = 4000000000000000000, expected at most 65536"),
    ("mixtral", dict(num_local_experts=0), "found num_local_experts = 0, expected an integer of at least 1"),
    ("mixtral", dict(router_jitter_noise=0.1), "found router_jitter_noise = 0.1, expected 0"),
    ("mixtral", dict(hidden_act="gelu"), 'found hidden_act "gelu", expected "silu"'),
    ("qwen3_moe", dict(mlp_only_layers=[2]), "found mlp_only_layers = [2], expected a list of numbers of layers, 0 to 1"),
    ("qwen3_moe", dict(decoder_sparse_step=0), "found decoder_sparse_step = 0, expected an integer of at least 1"),
    ("qwen3_moe", dict(layer_types=["full_attention", "sliding_attention"]), "found layer_types with no sliding_window"),
    ("qwen2_moe", dict(layer_types=["full_attention", "sliding_attention"]), "layers with sliding_attention and no"),
    ("qwen2_moe", dict(shared_expert_intermediate_size=0), "found shared_expert_intermediate_size = 0"),
    ("glm4_moe", dict(num_experts_per_tok=7), "found num_experts_per_tok = 7, expected at most n_routed_experts = 6"),
    ("glm4_moe", dict(n_group=4), "found n_group = 4, expected groups of two or more of n_routed_experts = 6"),
    ("glm4_moe", dict(n_group=6), "found n_group = 6, expected groups of two or more of n_routed_experts = 6"),
    ("glm4_moe", dict(n_group=2, topk_group=3), "found topk_group = 3, expected at most n_group = 2"),
    ("glm4_moe", dict(n_group=3, topk_group=1, num_experts_per_tok=3), "found num_experts_per_tok = 3, expected at most 2, "
     "the experts of topk_group = 1 groups"),
    ("glm4_moe", dict(num_local_experts=5), "found n_routed_experts = 6 and num_local_experts = 5, expected one number"),
    ("glm4_moe", dict(n_shared_experts=0), "found n_shared_experts = 0, expected an integer of at least 1"),
    ("glm4_moe", dict(routed_scaling_factor=0), "found routed_scaling_factor = 0, expected a number above 0"),
    ("glm4_moe", dict(hidden_act="gelu"), 'found hidden_act "gelu", expected "silu"'),
    ("glm4_moe", dict(num_nextn_predict_layers=-1), "found num_nextn_predict_layers = -1, expected at least 0"),
    ("glm4_moe", dict(layer_types=["sliding_attention"] * 2), "in a glm4_moe model, which has no window"),
    ("glm4_moe", dict(first_k_dense_replace=2), 'found no tensor "model.layers.1.mlp.gate_proj.weight"'),
    ("mixtral", dict(num_local_experts=4), 'tensor "model.layers.0.block_sparse_moe.gate.weight" has shape [5, 32], '
     "config.json implies [4, 32]"),
    ("mixtral", dict(intermediate_size=51), 'experts.0.w1.weight" has shape [52, 32], config.json implies [51, 32]'),
    ("qwen3_moe", dict(mlp_only_layers=[0]), 'found no tensor "model.layers.0.mlp.gate_proj.weight"'),
])
def test_wrong_config_is_named(tmp_path, family, change, message):
    save_checkpoint(tmp_path, family=family)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr, process.stderr


def test_a_missing_expert_is_named(tmp_path):
    save_checkpoint(tmp_path, family="qwen3_moe")
    file = tmp_path / "model.safetensors"
    weights = {n: t.clone() for n, t in load_file(file).items() if ".experts.3." not in n or "layers.1" not in n}
    save_file(weights, file, {"format": "pt"})
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert 'found no tensor "model.layers.1.mlp.experts.3.gate_proj.weight", ' in process.stderr
