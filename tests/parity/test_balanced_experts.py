"""Oracle: the loss that balances experts in transformers, its gradients, and what TRL's trainer makes of it."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from llama_reference import EXPERT_NAMES, gradients_of, make_documents, padded, run_reference, save_checkpoint
from probe import relative_error, run_probe
from running import base_flags, run_strata, run_strata_raw, strata
from test_export import eval_loss, load, measured
from test_mixtures import random_adapter, unfused_gradients

MODELS = {
    "qwen3_moe": dict(family="qwen3_moe", num_key_value_heads=1, norm_topk_prob=True, vocab_size=101),
    "many_experts": dict(family="qwen3_moe", num_experts=33, num_experts_per_tok=1, num_attention_heads=1,
                         num_key_value_heads=1, moe_intermediate_size=3),
    "mlp_between": dict(family="qwen3_moe", num_hidden_layers=4, decoder_sparse_step=2, num_experts=3),
    "granite_hybrid": dict(family="granitemoehybrid", num_local_experts=5, num_experts_per_tok=2),
    "qwen3_next": dict(family="qwen3_next", num_hidden_layers=3, layer_types=["linear_attention", "full_attention"] + ["linear_attention"]),
    "qwen2_moe": dict(family="qwen2_moe", num_key_value_heads=2, num_hidden_layers=3, mlp_only_layers=[1]),
    "all_of_two": dict(family="mixtral", num_local_experts=2),
    "mixtral": dict(family="mixtral", num_key_value_heads=1, head_dim=6, sliding_window=7),
}
WEIGHT = 0.5


def balance_of(model, documents):
    ids, _, mask = padded(documents)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, output_router_logits=True).aux_loss


# What is left of a gradient that is zero but for rounding (of a query that sees one key, of a router whose
# experts are all chosen) is measured by the largest gradient: by a part of it, in rows of few tokens by all of it.
@pytest.mark.parametrize("name,checkpoint,lengths,part", [
    *[(name, checkpoint, (23, 1, 9), 1e-3) for name in MODELS for checkpoint in (False, True)],
    *[(name, True, lengths, 1) for name in ("qwen2_moe", "mixtral") for lengths in ((1, 1, 1), (2,))]])
def test_loss_and_gradients_of_a_model(tmp_path, name, checkpoint, lengths, part):
    save_checkpoint(tmp_path, **MODELS[name])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    documents = make_documents(lengths)
    run_reference(model, documents)
    unbalanced = {n: g.clone() for n, g in gradients_of(model)}
    loss, _ = run_reference(model, documents, balance=WEIGHT)
    tensors, _ = run_probe(tmp_path, documents=documents, balance=WEIGHT, checkpoint=checkpoint)
    errors = {"balance": relative_error(tensors["balance"], balance_of(model, documents)),
              "loss": relative_error(tensors["loss"], loss)}
    gradients = dict(gradients_of(model))
    floor = part * max(gradient.norm().item() for gradient in gradients.values())
    for key, gradient in gradients.items():
        difference = (tensors["grad:" + key] - gradient).norm().item()
        errors[key] = difference / max(gradient.norm().item(), floor)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    # Where every token passes all experts, the loss is a constant.
    moved = [(gradients[n] - g).norm().item() for n, g in unbalanced.items() if n.endswith((".gate.weight", ".router.weight"))]
    assert (min(moved) > 1e-3 * floor) == (name != "all_of_two"), (moved, floor)


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_loss_and_gradients_in_bfloat16(tmp_path, name):
    """transformers' loss of a model without autocast has probabilities in bfloat16, ours in fp32."""
    save_checkpoint(tmp_path, scale=0.04, dtype=torch.bfloat16, **MODELS[name])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    documents = make_documents((23, 1, 9))
    run_reference(model, documents, balance=WEIGHT)
    tensors, _ = run_probe(tmp_path, documents=documents, balance=WEIGHT, dtype="bfloat16")
    assert relative_error(tensors["balance"], balance_of(model, documents)) < 2e-2
    errors = {n: relative_error(tensors["grad:" + n], g) for n, g in gradients_of(model) if ".experts." not in n}
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-2, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("targets", ["all-linear", "attention", "v_proj of the last layer"])
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_gradients_of_adapters_go_through_frozen_routers(tmp_path, name, targets):
    family = MODELS[name]["family"]
    save_checkpoint(tmp_path, **MODELS[name])
    names = {"all-linear": "all-linear", "attention": ["q_proj", "o_proj"],
             "v_proj of the last layer": ["layers.1.self_attn.v_proj"]}[targets]
    lora, adapter = random_adapter(tmp_path, names, r=3, alpha=5)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32), adapter,
                                      is_trainable=True)
    documents = make_documents((23, 1, 9))
    run_reference(model, documents)
    unbalanced = {n: g.clone() for n, g in unfused_gradients(model, family, 3)}
    run_reference(model, documents, balance=WEIGHT)
    tensors, _ = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter), balance=WEIGHT,
                           checkpoint=True)
    errors = {"balance": relative_error(tensors["balance"], balance_of(model, documents))}
    expected = dict(unfused_gradients(model, family, 3))
    for key, gradient in expected.items():
        errors[key] = relative_error(tensors["grad:" + key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-5, f"{worst}: {errors[worst]}"
    assert any(relative_error(unbalanced[n], g) > 1e-3 for n, g in expected.items())


@pytest.mark.parametrize("flags,coefficient", [({}, 0.001), (dict(router_aux_loss_coef=0), 0.0),
                                               (dict(router_aux_loss_coef=0.25), 0.25)])
def test_default_and_result_are_those_of_the_reference(inputs, tmp_path, flags, coefficient):
    """SFTTrainer writes into config.json what it trained with."""
    run = run_strata(base_flags(inputs.model("sparse_mixture"), inputs.data("messages"), tmp_path / "out", max_steps=1,
                                **flags))
    assert [("aux_loss" in row) for row in run.history] == [coefficient != 0]
    config = AutoModelForCausalLM.from_pretrained(run.folder).config
    assert (config.router_aux_loss_coef, config.output_router_logits) == (coefficient, coefficient != 0)


@pytest.mark.parametrize("model,flags,message", [
    ("plain", dict(router_aux_loss_coef=0.01),
     "router_aux_loss_coef: found 0.01 for a model without experts that a loss balances, expected 0"),
    ("mixtral", dict(router_aux_loss_coef=-0.01), '--router_aux_loss_coef: found "-0.01", expected a number of at least 0'),
    ("mixtral", dict(router_aux_loss_coef=0, eval_strategy="steps", eval_steps=1, metric_for_best_model="aux_loss"),
     "metric_for_best_model: found aux_loss, expected a metric that evaluations report"),
])
def test_what_cannot_be_balanced_is_named(inputs, tmp_path, model, flags, message):
    run = run_strata_raw(base_flags(inputs.model(model), inputs.data("messages"), tmp_path / "out", max_steps=1, **flags))
    assert run.returncode == 2 and message in run.text, run.text


def test_a_weight_beside_smoothing_has_no_effect(inputs, tmp_path):
    """As in SFTTrainer, which is compared in test_trl_losses.py."""
    def run(name, **flags):
        return run_strata(base_flags(inputs.model("mixtral"), inputs.data("messages"), tmp_path / name, max_steps=2,
                                     label_smoothing_factor=0.1, **flags))

    balanced, plain = run("balanced", router_aux_loss_coef=0.5), run("plain", router_aux_loss_coef=0)
    assert "--router_aux_loss_coef: has no effect; with label_smoothing_factor, TRL's" in balanced.text
    assert balanced.losses == plain.losses and all(row["aux_loss"] > 1 for row in balanced.history)


def test_pairs_are_balanced_as_config_json_says(inputs, tmp_path):
    """What TRL's DPOTrainer adds (compared in test_dpo.py), without a flag."""
    def run(name, **flags):
        return run_strata(base_flags(inputs.model("sparse_mixture"), inputs.data("preference"), tmp_path / name,
                                     max_steps=2, **flags), recipe="dpo").history

    balanced, plain = run("balanced"), run("plain", router_aux_loss_coef=0)
    for ours, without in zip(balanced[:1], plain[:1], strict=True):
        assert ours["aux_loss"] > 0.5 and "aux_loss" not in without
        assert abs(ours["loss"] - without["loss"] - 0.001 * ours["aux_loss"]) < 1e-6
