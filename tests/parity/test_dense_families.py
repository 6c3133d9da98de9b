"""Oracle: transformers' Seed-OSS and Apertus, finite differences for dropout."""

import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import BUILD, run_probe
from test_falcon import merged_computes_what_the_adapter_does
from test_llama import CONFIGS, FAST
from test_lora import APERTUS
from test_rotary_decoders import (LENGTHS, checkpointing_is_bit_equal, errors_beside, loss_has_the_slope_of_its_gradients,
                                  weights_of, write)

RATES = ["attention_dropout", "residual_dropout"]


@pytest.mark.parametrize("rate", RATES)
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, rate):
    others = {name: 0.0 for name in RATES if name != rate}
    settings = dict(family="seed_oss", num_key_value_heads=2, attention_out_bias=True, rope_parameters=FAST)
    loss_has_the_slope_of_its_gradients(tmp_path, dict(settings, **others), rate)


@pytest.mark.parametrize("name", ["seed_oss", "arcee_biases", "apertus_odd", "exaone4", "ernie4_5_biases", "hunyuan_odd",
                                  "ministral3_window"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    checkpointing_is_bit_equal(tmp_path, CONFIGS[name])


@pytest.mark.parametrize("file_type", [torch.float32, torch.bfloat16])
def test_numbers_of_the_activation_are_the_files(tmp_path, file_type):
    """Other ones in each layer, an eps that inputs lie above; in bf16 they are rounded, as published files have them."""
    save_checkpoint(tmp_path, **CONFIGS["apertus"])
    weights = {name: value.to(file_type) for name, value in weights_of(tmp_path).items()}
    for layer, (beta, eps) in enumerate([(0.3, -0.07), (0.6, -0.4)]):
        weights[f"model.layers.{layer}.mlp.act_fn.beta"].fill_(beta)
        weights[f"model.layers.{layer}.mlp.act_fn.eps"].fill_(eps)
    write(tmp_path, weights)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    errors = errors_beside(tensors, model, loss, logits)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("missing", ["alpha_p", "beta"])
def test_a_file_without_them_is_refused(tmp_path, missing):
    save_checkpoint(tmp_path, **APERTUS)
    name = f"model.layers.1.mlp.act_fn.{missing}"
    write(tmp_path, {key: value for key, value in weights_of(tmp_path).items() if key != name})
    run = subprocess.run([BUILD / "strata", "chat", "--model_name_or_path", tmp_path], capture_output=True, text=True,
                         input="", timeout=60)
    assert run.returncode != 0
    assert f'found no tensor "{name}"' in run.stderr


@pytest.mark.parametrize("lora", [dict(target_modules="all-linear", r=3),
                                  dict(target_modules=["down_proj"], r=2, modules_to_save=["act_fn"])],
                         ids=["layers", "activation"])
def test_merging(tmp_path, lora):
    save_checkpoint(tmp_path, **APERTUS)
    merged_computes_what_the_adapter_does(tmp_path, lora)
