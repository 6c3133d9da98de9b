"""Oracle: transformers' models whose layers bitsandbytes quantised, with what it makes of each matrix in the experts, which
transformers leaves plain; and PEFT over them."""

import shutil

import pytest
import torch
from bitsandbytes import functional
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

import tiny_llama
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe
from quantised_reference import BASES, quantise_experts
from running import strata
from safetensors.torch import load_file, save_file
from test_lora import probe_name, randomise
from test_quantization import decoded

pytestmark = pytest.mark.usefixtures("one_thread")
LENGTHS = (23, 1, 9, 40)
PARAMETERS = ["experts.gate_up_proj", "experts.down_proj"]
# bitsandbytes' AVX-512 kernel decodes rows shorter than a block wrongly: no layer has such.
SIZES = dict(hidden_size=64, scale=0.08)
# Settings of a family, which parameters of experts may have branches, how many matrices of experts there are.
FAMILIES = {
    "gemma4": (dict(tiny_llama.GEMMA4_EXPERTS, **SIZES, family="gemma4_text", head_dim=16, global_head_dim=16, num_hidden_layers=2,
                    layer_types=["sliding_attention", "full_attention"], num_kv_shared_layers=0, vocab_size=97, intermediate_size=76), PARAMETERS, 2 * 2 * 5),
    "granitemoe": (dict(SIZES, family="granitemoe", intermediate_size=24), PARAMETERS, 2 * 2 * 5),
    "granite_hybrid": (dict(SIZES, family="granitemoehybrid", num_local_experts=5, num_experts_per_tok=2, intermediate_size=24),
                       PARAMETERS, 2 * 2 * 5),
    "llama4": (dict(SIZES, family="llama4_text", intermediate_size=20, head_dim=16), [], 2 * 5),
    "gpt_oss": (dict(SIZES, family="gpt_oss", intermediate_size=22, head_dim=16), PARAMETERS, 2 * 2 * 5),
    "lfm2_moe": (dict(SIZES, family="lfm2_moe", moe_intermediate_size=24), PARAMETERS, 3 * 5),
    "nemotron_h": (dict(SIZES, family="nemotron_h", hybrid_override_pattern="M*E", moe_intermediate_size=24, head_dim=16, mamba_head_dim=16,
                        moe_shared_expert_intermediate_size=70), ["experts.up_proj", "experts.down_proj"], 2 * 6),
}


def over_codes(folder, family, settings, **lora):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(**{"bnb_4bit_compute_dtype": torch.float32, **settings}))
    assert quantise_experts(model, settings) == FAMILIES[family][2]
    return get_peft_model(model, LoraConfig(**lora, task_type="CAUSAL_LM")).train()


@pytest.mark.parametrize("base", ["nf4", "nf4_double", "fp4", "int8"])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_reference(tmp_path, family, base):
    sizes, parameters, _ = FAMILIES[family]
    settings, request = BASES[base]
    lora = dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"], **(dict(target_parameters=parameters) if parameters else {}))
    save_checkpoint(tmp_path, **sizes)
    model = over_codes(tmp_path, family, settings, **lora)
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)

    def errors(**more):
        found, _ = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(tmp_path / "adapter"), training=True,
                             quantization=dict(request, **more))
        errors = {"loss": relative_error(found["loss"], loss)}
        if base != "int8":  # whose answers multiply rounded activations; the loss is training's
            errors["logits"] = relative_error(found["logits"], logits)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                errors[name] = relative_error(found["grad:" + probe_name(name)], parameter.grad)
        assert len(errors) > 4
        return errors

    found, plain = errors(), errors(skip=["lm_head", "experts"])
    worst = max(found, key=found.get)
    assert found[worst] < 1e-5, f"{worst}: {found[worst]}"
    assert max(plain.values()) > 1e-3, "codes of experts do not show"


@pytest.mark.parametrize("family", ["gemma4_experts", "granitemoehybrid", "nemotron_h"])
def test_answers_over_codes_are_those_over_what_they_stand_for(inputs, tmp_path, family):
    """chat over codes that it makes itself, and over a folder of what bitsandbytes makes of each matrix."""
    rounded = tmp_path / "rounded"
    shutil.copytree(inputs.model(family), rounded)
    weights = load_file(rounded / "model.safetensors")
    count = 0
    for name, tensor in weights.items():
        of_experts = tensor.dim() == 3 and "conv1d" not in name
        if not of_experts and not name.endswith(("_proj.weight", "_linear.weight", "router.proj.weight")):
            continue
        for matrix in tensor if of_experts else [tensor]:
            matrix.copy_(decoded(*functional.quantize_4bit(matrix.clone(), blocksize=64, quant_type="nf4"), matrix.shape))
            count += 1
    assert count > 10
    save_file(weights, rounded / "model.safetensors", {"format": "pt"})
    words = ["--prompt", "the cat", "--max_new_tokens", 12, "--dtype", "float32"]
    answers = [strata("chat", "--model_name_or_path", *more, *words)
               for more in ([inputs.model(family), "--load_in_4bit"], [rounded], [inputs.model(family)])]
    assert answers[0] == answers[1]
    if family == "gemma4_experts":
        assert answers[0] != answers[2], "codes do not show"
