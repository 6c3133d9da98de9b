# Oracle: PEFT over bitsandbytes' layers on the CPU: loss, logits and gradients of what trains over a quantised
# base.
import shutil

import pytest
import torch
from peft import get_peft_model, prepare_model_for_kbit_training
from transformers import BitsAndBytesConfig, LlamaForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from quantised_reference import BASES, ROWS_OF_A_BLOCK, attach_quantised
from running import base_flags, run_strata
from test_lora import APERTUS, GEMMA, GEMMA2, GEMMA3, GLM4, OLMO3, PHI3, config_of, probe_name, randomise
from test_virtual_tokens import run_reference as run_with_rows

pytestmark = pytest.mark.usefixtures("one_thread")
# Settings of PEFT for the methods over a base; the targets have sizes of their own.
METHODS = {
    "lora": dict(target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"], r=4, lora_alpha=16),
    "lora_head": dict(target_modules=["q_proj", "lm_head"], r=4, lora_alpha=16),
    "rslora_gaussian": dict(target_modules="all-linear", r=5, use_rslora=True,
                            init_lora_weights="gaussian"),
    "branch_bias": dict(target_modules=["o_proj"], r=4, lora_bias=True),
    "saved_modules": dict(target_modules=["k_proj"], r=4, modules_to_save=["lm_head", "norm"]),
    "dora": dict(target_modules=["q_proj", "gate_proj", "down_proj"], r=4, use_dora=True),
    "dora_head": dict(target_modules=["up_proj", "lm_head"], r=4, use_dora=True),
    "ia3": dict(peft_type="IA3"),
    "vera": dict(peft_type="VERA", r=9, target_modules=["q_proj", "down_proj"]),
    "ia3_head": dict(peft_type="IA3", target_modules=["q_proj", "up_proj", "lm_head"],
                     feedforward_modules=["up_proj"]),
    # Takes its part off the codes, which are made again.
    "olora": dict(target_modules=["v_proj", "gate_proj"], r=4, init_lora_weights="olora"),
    "embedding": dict(target_modules=["embed_tokens", "k_proj"], r=4),
    "dora_embedding": dict(target_modules=["embed_tokens", "k_proj"], r=4, use_dora=True),
    "all": dict(target_modules="all-linear", r=4),
    "dora_joined": dict(target_modules=["qkv_proj"], r=3, use_dora=True),
    "dora_attention": dict(target_modules=["c_attn"], r=3, use_dora=True),
    "tokens": dict(target_modules=["q_proj"], trainable_token_indices=[3, 17, 90]),
}
OF_ONE_FAMILY = ["all", "dora_joined", "dora_attention"]
# Every method over the plain base is in test_lora.py; here over codes, of which "head_too" are
# those of the output layer as well.
GRADIENTS = [(base, m) for base in ("nf4", "fp4", "int8") for m in METHODS if m not in OF_ONE_FAMILY] + [
    ("nf4_double", "lora"), ("output_layer_too", "lora_head"), ("output_layer_too", "dora_head"),
    ("output_layer_too", "ia3_head"), ("output_layer_too_int8", "lora_head"),
    ("output_layer_too_int8", "ia3_head")]


EIGHT_HEADS = dict(PHI3, num_attention_heads=8)
SMOLLM3 = dict(family="smollm3", no_rope_layers=[1, 0])
GRANITE = dict(family="granite", embedding_multiplier=2.5, attention_multiplier=0.3, residual_multiplier=0.7,
               logits_scaling=1.5)
HYPERCLOVAX = dict(GRANITE, family="hyperclovax")
# Its sizes have other names; no row is shorter than a quantised block.
BIGCODE = dict(family="gpt_bigcode", n_embd=64, n_inner=128)
QWEN35 = dict(family="qwen3_5_text", head_dim=16, linear_key_head_dim=16, linear_value_head_dim=16)
GEMMA4 = dict(family="gemma4_text", head_dim=16, global_head_dim=32, hidden_size_per_layer_input=64, num_kv_shared_layers=2)
GEMMA4_EXPERTS = dict(family="gemma4_text", head_dim=16, global_head_dim=32, enable_moe_block=True, num_experts=3, top_k_experts=3,
                      moe_intermediate_size=16)
NEOX = dict(family="gpt_neox", rotary_pct=0.5)
# Norms stay as they are in the file, Gemma's distances from 1 too.
OF_OTHER_FAMILIES = [(base, method, dict(family, head_dim=16)) for base, method, family in (
    ("nf4", "lora", GEMMA), ("int8", "embedding", GEMMA), ("nf4", "lora", GEMMA3), ("int8", "lora", GEMMA3),
    ("nf4", "lora", GEMMA2), ("int8", "lora", GEMMA2))] + [
    (base, method, EIGHT_HEADS) for base in ("nf4_double", "int8") for method in ("all", "dora_joined")] + [
    ("nf4", "all", family) for family in (SMOLLM3, GRANITE, OLMO3, dict(APERTUS), HYPERCLOVAX)] + [
    ("int8", "lora", OLMO3)] + [
    (base, "all", dict(GLM4, head_dim=16)) for base in ("nf4", "int8")] + [
    (base, method, BIGCODE) for base in ("nf4_double", "int8") for method in ("all", "dora_attention")] + [
    (base, "all", NEOX) for base in ("nf4", "int8")] + [
    (base, "all", dict(family=family)) for base, family in (
        ("nf4", "starcoder2"), ("int8", "cohere"), ("nf4", "cohere2"), ("int8", "phi"), ("nf4", "persimmon"), ("nf4", "stablelm"), ("nf4", "olmo"), ("int8", "nemotron"), ("nf4", "jais2"),
        ("nf4", "bloom"), ("int8", "bloom"))] + [
    ("nf4", "all", dict(family="mpt", attn_config=dict(clip_qkv=0.5)))] + [
    (base, "all", family) for base in ("nf4", "int8") for family in (QWEN35, GEMMA4, GEMMA4_EXPERTS)]

# Of smaller weights the scores are nearly alike, and the gradients of q and k nearly cancel out.
LARGER_WEIGHTS = {"stablelm": 0.15}


@pytest.mark.parametrize("name,method,family", [(*row, {}) for row in GRADIENTS] + OF_OTHER_FAMILIES)
def test_gradients_over_a_quantised_base(tmp_path, name, method, family):
    """Sizes of which some are no multiples of a block."""
    settings, request = BASES[name]
    lora = METHODS[method]
    sizes = family if family is BIGCODE else {**ROWS_OF_A_BLOCK, **family}
    save_checkpoint(tmp_path, scale=LARGER_WEIGHTS.get(family.get("family"), 0.08), **sizes)
    model = attach_quantised(tmp_path, settings, **lora)
    model.train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((33, 1, 19))
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, lora=lora, quantization=request,
                         adapter=str(tmp_path / "adapter"), training=True)
    errors = {"loss": relative_error(found["loss"], loss),
              "logits": relative_error(found["logits"], logits)}
    if name == "output_layer_too_int8":
        del errors["logits"]  # those of answers, which multiply rounded activations; the loss is training's
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            errors[parameter_name] = relative_error(
                found["grad:" + probe_name(parameter_name)], parameter.grad)
    assert len(errors) > 5
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("base", ["nf4_double", "fp4"])
def test_float16_products(tmp_path, base):
    """Both factors and the result of a product are rounded to fp16, as by bitsandbytes on CPUs. Its sums
    have another order, so that a result may fall to the other side; fp32 products differ everywhere."""
    settings, request = BASES[base]
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    model = attach_quantised(tmp_path, dict(settings, bnb_4bit_compute_dtype=torch.float16),
                             **METHODS["lora"]).train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    products = 2 * sum(hasattr(module, "quant_state") for module in model.modules())
    assert products >= 28, "the model has changed"
    ratios = []
    for draw in range(3):  # the ratio of one draw is 0.35 to 0.52
        documents = make_documents((33, 1, 19), seed=draw + 1)
        loss, logits = run_reference(model, documents)
        expected = {"logits": logits, **{"grad:" + probe_name(n): p.grad
                                         for n, p in model.named_parameters() if p.requires_grad}}
        errors = {}
        for compute in ("float16", "float32"):
            found, _ = run_probe(tmp_path, documents=documents, lora=METHODS["lora"], training=True,
                                 quantization=dict(request, compute=compute),
                                 adapter=str(tmp_path / "adapter"))
            errors[compute] = {n: relative_error(found[n], v) for n, v in expected.items()}
        # Each side rounds the result of a product to the nearest of numbers 2^-10 of it apart: an error evenly
        # spread over a step has a variance of step^2 / 12, the difference of two at most that of a whole step
        # on either side of 0, step^2 / 3. A gradient has been through each product of the forward and of the
        # backward pass once; their errors are unrelated, so that variances add.
        assert max(errors["float16"].values()) < (products / 3) ** 0.5 * 2 ** -10, errors
        ratios += [errors["float16"][n] / errors["float32"][n] for n in expected]
    assert sum(ratios) / len(ratios) < 0.5, ratios


@pytest.mark.parametrize("base", ["nf4_double", "fp4"])
def test_products_in_fp32_over_a_bfloat16_base(tmp_path, base):
    """Forward both decode to fp32. In backward the reference rounds the decoded weights to the type of the
    checkpoint first: evenly over a step of 2^-8 at most, once for every product that a gradient has been
    through."""
    settings, request = BASES[base]
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, device_map="cpu",
        quantization_config=BitsAndBytesConfig(bnb_4bit_compute_dtype=torch.float32, **settings))
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    torch.manual_seed(1)
    model = get_peft_model(model, config_of(METHODS["lora"])).train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((33, 1, 19))
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, lora=METHODS["lora"], quantization=request,
                         adapter=str(tmp_path / "adapter"), training=True)
    assert relative_error(found["logits"], logits) < 1e-5
    assert relative_error(found["loss"], loss) < 1e-5
    products = sum(hasattr(module, "quant_state") for module in model.modules())
    errors = [relative_error(found["grad:" + probe_name(n)], p.grad)
              for n, p in model.named_parameters() if p.requires_grad]
    assert products >= 14 and max(errors) < (products / 12) ** 0.5 * 2 ** -8, errors


@pytest.mark.parametrize("base", ["nf4_double", "fp4", "int8"])
@pytest.mark.parametrize("method", ["PROMPT_TUNING", "PREFIX_TUNING", "projected"])
def test_rows_before_documents_over_a_quantised_base(tmp_path, base, method):
    settings, request = BASES[base]
    tuning = dict(peft_type=method, num_virtual_tokens=3)
    if method == "projected":
        tuning.update(peft_type="PREFIX_TUNING", prefix_projection=True)
    save_checkpoint(tmp_path, scale=0.08, **ROWS_OF_A_BLOCK)
    model = attach_quantised(tmp_path, settings, **tuning).train()
    documents = make_documents((19, 1, 7))
    in_front = 3 if method == "PROMPT_TUNING" else 0
    loss, logits = run_with_rows(model, documents, in_front)
    found, _ = run_probe(tmp_path, documents=documents, lora=tuning, quantization=request, seed=1,
                         training=True)
    errors = {"loss": relative_error(found["loss"], loss),
              "logits": relative_error(found["logits"], logits)}
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [t for n, t in found.items() if n.startswith("grad:")]
    for parameter in trained:
        errors[str(parameter.shape)] = min(relative_error(t, parameter.grad) for t in gradients
                                           if t.shape == parameter.shape)
    assert len(gradients) == len(trained)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, errors


@pytest.mark.parametrize("threshold", [0.0, 2.0, 6.0])
def test_int8_outside_training(tmp_path, monkeypatch, threshold):
    """LLM.int8() with activations quantised but for columns with outliers."""
    save_checkpoint(tmp_path, scale=0.2)
    model = LlamaForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, device_map="cpu", quantization_config=BitsAndBytesConfig(
            load_in_8bit=True, llm_int8_threshold=threshold)).eval()
    documents = make_documents((33, 1, 19))[:1]  # one: a column's outliers depend on all its rows
    ids = torch.tensor([documents[0]["ids"]])
    with torch.no_grad():
        expected = model(ids).logits[0]
    lora = dict(target_modules=["q_proj"])  # freezes the base; adds nothing while B is zero
    found, _ = run_probe(tmp_path, documents=documents, lora=lora,
                         quantization=dict(kind="int8", threshold=threshold))
    assert relative_error(found["logits"], expected) < 1e-3
    decoded, _ = run_probe(tmp_path, documents=documents, training=True, lora=lora,
                           quantization=dict(kind="int8"))
    assert relative_error(decoded["logits"], expected) > 2e-3
    # As on a processor whose product of bytes cuts sums off.
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    elsewhere, _ = run_probe(tmp_path, documents=documents, lora=lora,
                             quantization=dict(kind="int8", threshold=threshold))
    assert relative_error(elsewhere["logits"], expected) < 1e-3


def test_pissa_over_a_quantised_base_is_refused(tmp_path):
    save_checkpoint(tmp_path)
    process, _ = run_probe_raw(
        tmp_path, documents=make_documents((4,)), quantization=dict(kind="nf4"),
        lora=dict(target_modules=["q_proj"], init_lora_weights="pissa"))
    assert process.returncode == 2
    assert "init_lora_weights: found pissa over the quantised" in process.stderr


# Settings of bitsandbytes, ranks.
SERIALISED = {
    "nf4_double": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                        bnb_4bit_use_double_quant=True), 2),
    "fp4_as_bfloat16": (dict(load_in_4bit=True, bnb_4bit_quant_type="fp4",
                             bnb_4bit_quant_storage=torch.bfloat16), 1),
    "int8": (dict(load_in_8bit=True, llm_int8_skip_modules=["o_proj", "lm_head"]), 1),
}


@pytest.mark.parametrize("name", SERIALISED)
def test_serialised_checkpoint_trains_as_one_quantised_while_loading(inputs, tmp_path, name):
    settings, world = SERIALISED[name]
    folder = tmp_path / "quantised"
    shutil.copytree(inputs.model("wide"), folder,
                    ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    LlamaForCausalLM.from_pretrained(
        inputs.model("wide"), dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(**settings)).save_pretrained(folder)
    flags = base_flags(inputs.model("wide"), inputs.data("messages"), tmp_path / "plain",
                       use_peft=True, lora_target_modules="all-linear", max_steps=4)
    own = {k: v for k, v in settings.items() if k != "bnb_4bit_quant_storage"}
    expected = run_strata({**flags, **own}, world)
    found = run_strata({**flags, "model_name_or_path": folder, "output_dir": tmp_path / "stored"},
                       world)
    assert found.losses == expected.losses
