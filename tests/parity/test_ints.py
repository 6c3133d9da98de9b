"""Oracle: transformers' models of checkpoints that compressed-tensors packed, which it decodes as it loads them; what the programs of
GPTQ and AWQ decode, step by step (tests/int_files.py); runs over the decoded copy, to the bit, also where weights stay in integers."""

import json
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

import tiny_llama
from converting import inspect
from int_files import decoded, save_decoded, store_in_ints
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import run_probe, run_probe_raw
from running import base_flags, flag_words, run_strata, run_strata_raw, strata
from test_fp8 import merges_alike
from test_gpt2 import edit_config
from test_llama import compare
from test_text_model import save_whole

LENGTHS = (23, 1, 9)
PACKED = dict(method="compressed-tensors", scale_type=torch.bfloat16)
FAMILIES = {
    "llama": dict(intermediate_size=48),
    "deepseek_v3": dict(family="deepseek_v3", kv_lora_rank=12, q_lora_rank=12, moe_intermediate_size=12, intermediate_size=48),
    "qwen3_moe": dict(family="qwen3_moe"),
}
FORMS = {"groups": dict(is_symmetric=True), "zeros": dict(group=8), "rows": dict(group=-1, is_symmetric=True),
         "rows_of_8_bits": dict(group=-1, bits=8), "fp16": dict(group=8, bits=8, scale_type=torch.float16)}


def in_transformers(folder):
    """It leaves experts in the type of their scales, whatever type is asked for."""
    decodes = CompressedTensorsConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=decodes).float()


@pytest.mark.parametrize("form,name", [("groups", "llama"), ("zeros", "llama"), ("rows", "llama"), ("rows_of_8_bits", "llama"), ("fp16", "llama"),
                                       ("rows", "deepseek_v3"), ("rows", "qwen3_moe")])
def test_equals_transformers(tmp_path, form, name):
    save_checkpoint(tmp_path, **FAMILIES[name])
    store_in_ints(tmp_path, **PACKED | FORMS[form])
    model = in_transformers(tmp_path)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


SIZES = dict(tiny_llama.WIDE, intermediate_size=80, dtype="bfloat16")
ODD = dict(tiny_llama.ODD, dtype="bfloat16")
SEVENS = dict(ODD, intermediate_size=35, head_dim=14)
EXPERTS = dict(tiny_llama.QWEN3_MOE, hidden_size=40, head_dim=8, moe_intermediate_size=16)
KINDS = {
    "gptq": {}, "gptq_v2": dict(checkpoint_format="gptq_v2"), "gptq_symmetric": dict(is_symmetric=True, group=32),
    "gptq_in_an_order": dict(has_order=True), "gptq_of_rows": dict(group=-1, format="gptq"), "gptq_of_8_bits": dict(bits=8, group=32),
    "gptq_of_2_bits": dict(bits=2), "gptq_in_bfloat16": dict(scale_type=torch.bfloat16),
    "awq": dict(method="awq"), "awq_of_rows": dict(method="awq", group=-1),
    "packed": dict(PACKED, is_symmetric=True), "packed_zeros": PACKED, "packed_rows": dict(PACKED, group=-1, bits=8),
    "packed_in_an_order": dict(PACKED, is_symmetric=True, has_order=True), "packed_fp32": dict(PACKED, group=8, scale_type=torch.float32),
    "gptq_of_short_groups": dict(group=24),
}


VALUES = {kind: (settings, SIZES, 3 if kind in ("gptq", "awq", "packed_zeros") else 1) for kind, settings in KINDS.items()} | {
    "odd_zeros": (dict(PACKED, group=7), SEVENS, 3), "odd_rows": (KINDS["packed_rows"], ODD, 2),
    "experts": (KINDS["packed_rows"], tiny_llama.QWEN3_MOE, 2), "experts_of_gptq": (KINDS["gptq_of_rows"], EXPERTS, 2)}


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_that_are_decoded(inputs, tmp_path, name):
    settings, sizes, world = VALUES[name]
    tiny_llama.save_model(tmp_path / "model", **sizes)
    folder = store_in_ints(tmp_path / "model", **settings)
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1, learning_rate=0, save_dtype="float32"), world)
    assert "base in integers: decoded while it is read" in run.text
    found, expected = load_file(run.folder / "model.safetensors"), decoded(folder)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name].float())] == []
    assert "quantization_config" not in json.loads((run.folder / "config.json").read_text())
    AutoModelForCausalLM.from_pretrained(run.folder)


RUNS = {
    "whole": ("gptq", 2, {}),
    "whole_in_bfloat16": ("awq", 2, dict(dtype="bfloat16")),
    "whole_in_its_own": ("packed", 1, dict(dtype="auto")),
    "rank_0_reads": ("gptq_in_an_order", 2, dict(fsdp_cpu_ram_efficient_loading=True)),
    "offloaded": ("packed_zeros", 2, dict(fsdp_offload_params=True)),
    "lora": ("gptq_in_an_order", 1, dict(use_peft=True)),
    "lora_on_3": ("awq", 3, dict(use_peft=True, gradient_checkpointing=True)),
    "lora_in_an_order_on_3": ("gptq_in_an_order", 3, dict(use_peft=True, dtype="bfloat16")),
    "lora_of_short_groups": ("gptq_of_short_groups", 2, dict(use_peft=True, fsdp_offload_params=True, dtype="float16")),
    "lora_of_rows": ("awq_of_rows", 2, dict(use_peft=True, fsdp_cpu_ram_efficient_loading=True)),
    "lora_of_2_bits": ("gptq_of_2_bits", 2, dict(use_peft=True)),
    "lora_of_decoded": ("packed_zeros", 2, dict(use_peft=True, int_dequantize=True)),
    "lora_in_bfloat16": ("packed", 2, dict(use_peft=True, bf16=True, dtype="bfloat16")),
    "lora_replicas": ("gptq", 2, dict(use_peft=True, sharding_strategy="NO_SHARD", dtype="float16")),
    "dora": ("packed_rows", 1, dict(use_peft=True, use_dora=True, dtype="bfloat16")),
    "loftq": ("gptq", 1, dict(use_peft=True, load_in_4bit=True, init_lora_weights="loftq", dtype="bfloat16")),
    "pissa": ("awq", 1, dict(use_peft=True, init_lora_weights="pissa")),
    "nf4": ("gptq", 1, dict(use_peft=True, load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "nf4_on_3": ("packed_zeros", 3, dict(use_peft=True, load_in_4bit=True, bnb_4bit_quant_type="nf4", dtype="bfloat16")),
    "nf4_rank_0_reads": ("awq", 2, dict(use_peft=True, load_in_4bit=True, fsdp_cpu_ram_efficient_loading=True)),
    "int8": ("gptq_of_8_bits", 2, dict(use_peft=True, load_in_8bit=True)),
    "nf4_but_some": ("packed", 1, dict(use_peft=True, load_in_4bit=True, llm_int8_skip_modules=["q_proj", "lm_head"])),
}


@pytest.mark.parametrize("name", RUNS)
def test_trains_as_the_decoded_copy(inputs, tmp_path, name):
    """To the bit by products of our own: MKL multiplies few rows by plain weights alone."""
    kind, world, settings = RUNS[name]
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS[kind])
    copy = save_decoded(folder, tmp_path / "copy")
    settings = dict(dict(max_steps=3, learning_rate=1e-2, full_determinism=True), **settings)
    if settings.get("use_peft"):
        settings = dict(lora_target_modules="all-linear", lora_r=3) | settings
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / out, **settings), world)
            for base, out in ((folder, "ints"), (copy, "plain"))]
    assert runs[0].losses == runs[1].losses and len(set(runs[0].losses)) > 1
    stays = settings.get("use_peft") and not {"load_in_4bit", "load_in_8bit", "int_dequantize", "init_lora_weights"} & settings.keys()
    said = "14 matrices stay as they are, frozen" if stays and kind != "gptq_of_2_bits" else "decoded while it is read"
    assert "base in integers: " + said in runs[0].text and " others (of " not in runs[0].text, runs[0].text
    file = "adapter_model.safetensors" if settings.get("use_peft") else "model.safetensors"
    results = [load_file(run.folder / file) for run in runs]
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


LORA = dict(use_peft=True, lora_target_modules="all-linear", lora_r=3)
FIVE_EXPERTS = dict(tiny_llama.QWEN3_MOE, hidden_size=40, head_dim=8, moe_intermediate_size=24)


@pytest.mark.parametrize("form,sizes", [(dict(PACKED, group=7), SEVENS), (dict(PACKED, group=8, is_symmetric=True), FIVE_EXPERTS)], ids=["odd_rows", "experts"])
def test_other_shapes_stay_so(inputs, tmp_path, form, sizes):
    """Rows that end inside a byte, and groups inside a row; experts, whose rows the copy sums up in one product."""
    tiny_llama.save_model(tmp_path / "model", **dict(sizes, dtype="bfloat16"))
    folder = store_in_ints(tmp_path / "model", **form)
    copy = save_decoded(folder, tmp_path / "copy")
    flags = dict(LORA, lora_target_modules=["q_proj", "o_proj"], max_steps=3, learning_rate=1e-2, full_determinism=True)
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / out, **flags), 2) for base, out in ((folder, "ints"), (copy, "plain"))]
    assert re.search(r"base in integers: \d+ matrices stay as they are", runs[0].text)
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-6) and len(set(runs[0].losses)) > 1
    assert "experts" in str(sizes) or runs[0].losses == runs[1].losses


def test_layers_of_several_forms(inputs, tmp_path):
    """8 bits stay so, 2 do not, and are told."""
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    store_in_ints(tmp_path / "model", bits=8, takes=lambda name: name.endswith("up_proj.weight"))
    store_in_ints(tmp_path / "model", bits=2, takes=lambda name: name.endswith("down_proj.weight"))
    folder = store_in_ints(tmp_path / "model", dynamic={"+:.*up_proj": {"bits": 8}, "+:.*down_proj": {"bits": 2}})
    runs = [run_strata(base_flags(folder, inputs.data("messages"), tmp_path / name, **LORA, learning_rate=1e-2, max_steps=2, full_determinism=True, **more), 2)
            for name, more in (("kept", {}), ("decoded", dict(int_dequantize=True)))]
    assert "base in integers: 12 matrices stay as they are, frozen" in runs[0].text and "; 2 others (of 2 bits" in runs[0].text, runs[0].text
    assert runs[0].losses == runs[1].losses and len(set(runs[0].losses)) > 1


def test_dpo_and_a_resumed_run_over_what_stays_in_integers(inputs, tmp_path):
    """What is saved knows nothing of the base's form in memory, nor does the reference's table, which lacks the rows of two steps alone."""
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS["gptq_in_an_order"])
    copy = save_decoded(folder, tmp_path / "copy")
    flags = dict(LORA, learning_rate=1e-2, save_strategy="steps", save_steps=2, lr_scheduler_type="constant", full_determinism=True)
    whole = run_strata(base_flags(copy, inputs.data("preference"), tmp_path / "copied", max_steps=4, **flags), 2, recipe="dpo")
    for steps, more in ((2, {}), (4, dict(resume_from_checkpoint="true", int_dequantize=True))):
        rest = run_strata(base_flags(folder, inputs.data("preference"), tmp_path / "pairs", max_steps=steps, **flags, **more), 2, recipe="dpo")
    assert rest.losses[-2:] == whole.losses[-2:]
    assert "resuming from" in rest.text and "reference: log-probabilities of 8 pairs" in rest.text and "matrices stay as they are" not in rest.text


def base_of(run):
    with safe_open(run.folder / "adapter_model.safetensors", "pt") as file:
        return file.metadata().get("base_fingerprint")


@pytest.mark.parametrize("kind", ["gptq", "awq", "packed_zeros"])
@pytest.mark.parametrize("more", [{}, dict(load_in_4bit=True)], ids=["plain", "nf4"])
def test_an_adapter_over_it_goes_on_over_the_copy(inputs, tmp_path, kind, more):
    """One mark for both; merged into either it is one model; PEFT loads it over the copy."""
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS[kind])
    copy = save_decoded(folder, tmp_path / "copy")
    flags = dict(use_peft=True, lora_target_modules="all-linear", learning_rate=1e-2, save_strategy="steps", save_steps=2, **more)
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=2, **flags), 2)
    other = run_strata(base_flags(copy, inputs.data("messages"), tmp_path / "other", max_steps=1, **flags))
    assert base_of(run) == base_of(other) and len(base_of(run)) >= 16
    rest = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=4, resume_from_checkpoint="true", **flags), 2)
    assert "resuming from" in rest.text
    if more:
        return
    merged = merges_alike(tmp_path, run, folder, copy)
    strata("merge-adapter", run.folder, tmp_path / "asked", "--base_model", folder, "--dequantize")
    assert load_file(tmp_path / "asked" / "model.safetensors").keys() == merged.keys()


@pytest.mark.parametrize("kind", ["gptq_in_an_order", "awq", "packed"])
def test_answers_as_the_copy(tmp_path, kind):
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS[kind])
    copy = save_decoded(folder, tmp_path / "copy")
    for flags in ([], ["--dtype", "bfloat16"], ["--load_in_4bit"]):
        said = [strata("chat", "--model_name_or_path", base, "--prompt", "the cat sat", "--max_new_tokens", "12", "--do_sample", "false", *flags)
                for base in (folder, copy)]
        assert said[0] == said[1] and said[0]


def same_files(found, expected):
    found, expected = (load_file(folder / "model.safetensors") for folder in (found, expected))
    return found.keys() == expected.keys() and all(found[name].dtype == expected[name].dtype and torch.equal(found[name], expected[name])
                                                   for name in expected)


@pytest.mark.parametrize("kind", ["gptq", "awq", "packed_zeros"])
@pytest.mark.parametrize("to", ["safetensors", "bin", "bnb-4bit"])
def test_converted_it_is_plain(tmp_path, kind, to):
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS[kind])
    copy = save_decoded(folder, tmp_path / "copy")
    for base in (folder, copy):
        strata("convert", base, tmp_path / f"{base.name}-out", "--to", to)
    found, expected = (AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-out").state_dict() for name in ("model", "copy"))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    if to == "safetensors":
        assert same_files(tmp_path / "model-out", copy)
    entry = json.loads((tmp_path / "model-out" / "config.json").read_text()).get("quantization_config", {})
    assert entry.get("quant_method") == ("bitsandbytes" if to == "bnb-4bit" else None)


@pytest.mark.parametrize("kind", ["gptq", "packed"])
def test_what_inspect_says(tmp_path, kind):
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS[kind])
    found, expected = inspect(folder), inspect(save_decoded(folder, tmp_path / "copy"))
    assert found["format"] == "Hugging Face model in integers" and found["tensors"] == expected["tensors"]


def test_what_is_not_read_may_be_looked_at(tmp_path):
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", checkpoint_format="marlin")
    assert any(tensor["name"].endswith(".qweight") for tensor in inspect(folder)["tensors"])
    strata("convert", folder, tmp_path / "out", "--to", "safetensors")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["checkpoint_format"] == "marlin"
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == load_file(folder / "model.safetensors").keys()


@pytest.mark.parametrize("nested", [False, True], ids=["beside", "inside"])
def test_the_language_model_of_a_whole(tmp_path, nested):
    """Decoded as it is taken out; Kimi K2.5's quantization_config is its language model's."""
    save_whole(tmp_path / "whole", "mistral3", torch.bfloat16)
    folder = store_in_ints(tmp_path / "whole", **dict(PACKED, group=-1, is_symmetric=True))
    if nested:
        config = json.loads((folder / "config.json").read_text())
        config["text_config"]["quantization_config"] = config.pop("quantization_config")
        (folder / "config.json").write_text(json.dumps(config))
    save_decoded(folder, tmp_path / "plain")
    for base in ("whole", "plain"):
        strata("convert", tmp_path / base, tmp_path / f"{base}-text", "--to", "text-model")
        strata("convert", tmp_path / base, tmp_path / f"{base}-copy", "--to", "safetensors")
    for result in ("text", "copy"):
        assert same_files(tmp_path / f"whole-{result}", tmp_path / f"plain-{result}")
        configs = [json.loads((tmp_path / f"{name}-{result}" / "config.json").read_text()) for name in ("whole", "plain")]
        assert configs[0] == configs[1] and "quantization_config" not in json.dumps(configs[0])


def test_an_output_layer_of_its_own(inputs, tmp_path):
    """Of a model that config.json calls tied, as GPTQModel's lm_head leaves it."""
    tiny_llama.save_model(tmp_path / "model", **dict(SIZES, tie_word_embeddings=True))
    weights = load_file(tmp_path / "model" / "model.safetensors")
    torch.manual_seed(0)
    rows = len(weights["model.embed_tokens.weight"])
    weights["lm_head.weight"] = torch.randn(rows, 64, dtype=torch.bfloat16) / 8
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    folder = store_in_ints(tmp_path / "model", **dict(PACKED, is_symmetric=True), takes=lambda name: name.endswith("_proj.weight") or "lm_head" in name)
    copy = save_decoded(folder, tmp_path / "copy")
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / out, max_steps=2, learning_rate=1e-2), 2)
            for base, out in ((folder, "ints"), (copy, "plain"))]
    assert runs[0].losses == runs[1].losses
    assert same_files(runs[0].folder, runs[1].folder)


def change_tensor(folder, change):
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_biases_of_layers_without_one(inputs, tmp_path, value):
    """GPTQ's programs wrote zeros; others would be left out of the model."""
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model")
    copy = save_decoded(folder, tmp_path / "copy")
    name = "model.layers.1.mlp.down_proj.bias"
    change_tensor(folder, lambda weights: weights.update({name: torch.full((64,), value, dtype=torch.float16)}))
    run = run_strata_raw(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1))
    if value:
        assert run.returncode != 0 and f'found tensors that config.json does not imply: "{name}"' in run.text, run.text
        return
    assert run.returncode == 0, run.text
    strata("convert", folder, tmp_path / "converted", "--to", "safetensors")
    assert same_files(tmp_path / "converted", copy)


def test_biases_of_zeros_that_the_model_has_stay(tmp_path):
    tiny_llama.save_model(tmp_path / "model", **dict(SIZES, attention_bias=True))
    folder = store_in_ints(tmp_path / "model")
    change_tensor(folder, lambda weights: weights.update({f"{Q}.bias": torch.zeros(64, dtype=torch.bfloat16)}))
    copy = save_decoded(folder, tmp_path / "copy")
    strata("convert", folder, tmp_path / "converted", "--to", "safetensors")
    assert same_files(tmp_path / "converted", copy)


Q = "model.layers.0.self_attn.q_proj"


def put(end, value):
    return lambda weights: weights.update({f"{Q}.{end}": value})


def drop(end):
    return lambda weights: weights.pop(f"{Q}.{end}")


@pytest.mark.parametrize("kind,change,message", [
    ("gptq", drop("scales"), f'found "{Q}.qweight" without "{Q}.scales", expected both'),
    ("gptq", drop("qzeros"), f'found "{Q}.qweight" without "{Q}.qzeros", expected both'),
    ("gptq", put("scales", torch.ones(3, 64)), f'tensor "{Q}.scales" is F32 [3, 64], expected the scales of "{Q}.qweight" [8, 64] by config.json: 4 bits in groups of 16'),
    ("gptq", put("scales", torch.ones(4, 64, dtype=torch.int32)), f'tensor "{Q}.scales" is I32 [4, 64], expected F32, BF16 or F16'),
    ("gptq", put("qzeros", torch.ones(5, 8, dtype=torch.int32)), f'tensor "{Q}.qzeros" is I32 [5, 8], expected I32 [4, 8] beside "{Q}.qweight"'),
    ("gptq", put("g_idx", torch.zeros(60, dtype=torch.int32)), f'tensor "{Q}.g_idx" is I32 [60], expected I32 [64] beside "{Q}.qweight"'),
    ("gptq", put("g_idx", torch.arange(64, dtype=torch.int32)), f'tensor "{Q}.g_idx": found group 4, expected 0 to 3'),
    ("gptq", put("qweight", torch.ones(8, 64)), f'tensor "{Q}.qweight" is F32 [8, 64], expected I32 with the words of a matrix'),
    ("gptq", put("weight", torch.ones(64, 64)), "found tensors that config.json does not imply"),
    ("awq", put("qweight", torch.ones(64, 4, dtype=torch.int32)), f'tensor "{Q}.scales" is F16 [4, 64], expected the scales of "{Q}.qweight" [64, 4]'),
    ("packed", drop("weight_shape"), f'found "{Q}.weight_packed" without "{Q}.weight_shape", expected both'),
    ("packed", put("weight_shape", torch.tensor([64, -1])), f'tensor "{Q}.weight_shape": found [64, -1], expected sizes'),
    ("packed", put("weight_shape", torch.tensor([64.0, 64.0])), f'tensor "{Q}.weight_shape" is F32 [2], expected two whole numbers (I64 or I32)'),
    ("packed_zeros", drop("weight_zero_point"), f'found "{Q}.weight_packed" without "{Q}.weight_zero_point", expected both'),
    ("packed_zeros", put("weight_zero_point", torch.zeros(64, 4, dtype=torch.int32)), f'tensor "{Q}.weight_zero_point" is I32 [64, 4], expected I32 [8, 4]'),
    ("packed_rows", put("weight_packed", torch.ones(64, 8, dtype=torch.int32)), "by config.json: 8 bits with a scale of each row"),
])
def test_damaged_files_are_refused(tmp_path, kind, change, message):
    tiny_llama.save_model(tmp_path, **SIZES)
    change_tensor(store_in_ints(tmp_path, **KINDS[kind]), change)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and message in run.stderr, run.stderr


def test_another_shape_than_config_json_implies(tmp_path):
    tiny_llama.save_model(tmp_path, **SIZES)
    edit_config(store_in_ints(tmp_path), num_attention_heads=8, head_dim=16)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and f'tensor "{Q}.qweight" has shape [64, 64], config.json implies [128, 64]' in run.stderr, run.stderr


@pytest.mark.parametrize("kind", ["gptq", "packed"])
def test_files_that_config_json_says_nothing_of(tmp_path, kind):
    tiny_llama.save_model(tmp_path, **SIZES)
    edit_config(store_in_ints(tmp_path, **KINDS[kind]), quantization_config=None)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and f'in place of "{Q}.weight", expected a quantization_config in config.json that says how' in run.stderr, run.stderr


def test_kimi_k2(tmp_path):
    """DeepSeek-V3 by its own name, with the entry of the published file; experts alone are integers."""
    save_checkpoint(tmp_path, **dict(FAMILIES["deepseek_v3"], moe_intermediate_size=32))
    folder = store_in_ints(tmp_path, **dict(PACKED, is_symmetric=True, group=32), takes=lambda name: ".mlp.experts." in name)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["ignore"] = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    (folder / "config.json").write_text(json.dumps(config))
    model = in_transformers(tmp_path)
    edit_config(folder, model_type="kimi_k2")
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


def test_the_language_model_of_kimi(tmp_path):
    """Kimi K2.5's files: names with a prefix, the entry and the family beside the language model's keys."""
    text = tmp_path / "text"
    text.mkdir()
    save_checkpoint(text, **dict(FAMILIES["deepseek_v3"], moe_intermediate_size=32))
    store_in_ints(text, **dict(PACKED, is_symmetric=True, group=32), takes=lambda name: ".mlp.experts." in name)
    config = json.loads((text / "config.json").read_text())
    whole = tmp_path / "whole"
    whole.mkdir()
    inner = config | {"model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
    (whole / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"], "text_config": inner}))
    weights = {f"language_model.{name}": tensor for name, tensor in load_file(text / "model.safetensors").items()}
    weights |= {"vision_tower.patch_embed.proj.weight": torch.ones(4, 3), "mm_projector.proj.0.bias": torch.ones(4)}
    save_file(weights, whole / "model.safetensors", {"format": "pt"})
    assert "left out: mm_projector, vision_tower" in strata("convert", whole, tmp_path / "out", "--to", "text-model")
    assert same_files(tmp_path / "out", save_decoded(text, tmp_path / "copy"))
    states = [AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32).state_dict() for name in ("out", "copy")]
    assert states[0].keys() == states[1].keys() and all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def test_parts_in_two_files(tmp_path):
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **PACKED)
    copy = save_decoded(folder, tmp_path / "copy")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = {name: f"model-0000{1 + (name.endswith(('scale', 'shape')))}-of-00002.safetensors" for name in weights}
    for file in set(files.values()):
        save_file({name: weights[name] for name in weights if files[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    strata("convert", folder, tmp_path / "out", "--to", "safetensors")
    assert same_files(tmp_path / "out", copy)


def test_matrices_of_gpt2_are_refused(inputs, tmp_path):
    """Which its files turn, and codes do not."""
    tiny_llama.save_model(tmp_path / "model", **dict(tiny_llama.GPT2, n_embd=48, n_inner=64))
    folder = store_in_ints(tmp_path / "model", **dict(PACKED, is_symmetric=True, group=-1))
    run = run_strata_raw(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1))
    assert run.returncode != 0 and "for a weight that files hold as [in, out] (GPT-2's Conv1D), expected plain weights" in run.text, run.text


GROUP = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}


@pytest.mark.parametrize("entry,message", [
    (dict(bits=3), "bits: found 3, expected 4 or 8 (or 2); use a checkpoint of 16 bits"),
    (dict(group_size=0), "group_size: found 0, expected a positive whole number, or -1 for all of a row"),
    (dict(checkpoint_format="marlin"), 'checkpoint_format: found "marlin", expected gptq; use a checkpoint of 16 bits'),
    (dict(quant_method="awq", version="gemv"), 'version: found "gemv", expected gemm'),
    (dict(quant_method="compressed-tensors", format="pack-quantized"), "config_groups: found null, expected one with weights"),
    (dict(quant_method="compressed-tensors", format="pack-quantized", config_groups={"group_0": {"weights": GROUP | {"type": "float"}}}),
     'config_groups.group_0.weights.type: found "float", expected int'),
    (dict(quant_method="compressed-tensors", format="pack-quantized", config_groups={"group_0": {"weights": GROUP, "format": "float-quantized"}}),
     'config_groups.group_0.format: found "float-quantized", expected pack-quantized'),
    (dict(quant_method="compressed-tensors", format="int-quantized"), 'found quant_method "compressed-tensors" (format "int-quantized")'),
    (dict(quant_method="aqlm"), 'found quant_method "aqlm", expected bitsandbytes'),
])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_other_forms_are_refused(inputs, tmp_path, entry, message, command):
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config={**config, **entry})
    flags = base_flags(folder, inputs.data("messages"), tmp_path / "out")
    if command == "run":
        run = run_strata_raw(flags)
        assert run.returncode != 0 and message in run.text, run.text
        return
    (folder / "model.safetensors").unlink()
    assert message in strata("plan", "--device", "cpu", *flag_words(flags), code=2)


PLANNED = {"lora": ("gptq", LORA), "order": ("gptq_in_an_order", LORA), "awq": ("awq", LORA), "symmetric": ("packed", LORA), "rows": ("packed_rows", LORA),
           "2_bits": ("gptq_of_2_bits", LORA), "decoded": ("gptq", dict(LORA, int_dequantize=True)), "nf4": ("gptq", dict(LORA, load_in_4bit=True)),
           "whole": ("gptq", {})}


@pytest.mark.parametrize("name", PLANNED)
def test_a_plan_needs_no_files(inputs, tmp_path, name):
    kind, flags = PLANNED[name]
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS[kind])
    words = flag_words(base_flags(folder, inputs.data("messages"), tmp_path / "out", **flags))
    plans = []
    for is_there in (True, False):
        text = strata("plan", "--world_size", 2, "--device", "cpu", *words)
        # Not what the program itself was found to take.
        plans.append([line for line in text.splitlines() if re.match("model|parameters|gradients|optimizer|slots|activations|logits|wire", line)])
        if is_there:
            (folder / "model.safetensors").unlink()
    assert plans[0] == plans[1] and any(line.startswith("parameters ") for line in plans[0])


# GPTQModel's settings of single layers, and groups of compressed-tensors.
@pytest.mark.parametrize("kind,entry", [
    ("gptq", dict(dynamic={"+:.*down_proj.*": {"bits": 8, "group_size": 32}})),
    ("packed", dict(config_groups={"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 16}},
                                   "group_1": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "strategy": "channel"}}}))])
def test_a_plan_without_files_says_which_of_several_forms_it_takes(inputs, tmp_path, kind, entry):
    tiny_llama.save_model(tmp_path / "model", **SIZES)
    folder = store_in_ints(tmp_path / "model", **KINDS[kind])
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    words = flag_words(base_flags(folder, inputs.data("messages"), tmp_path / "out", **LORA))

    def assumed():
        return re.findall(r"^assumed +(.+)$", strata("plan", "--device", "cpu", *words), re.M)
    edit_config(folder, quantization_config={**config, **entry})
    assert assumed() == []
    (folder / "model.safetensors").unlink()
    said = "4 bits in groups of 16 of every matrix in integers: config.json announces other forms, too, and the files would tell whose"
    assert assumed() == [said]
    edit_config(folder, quantization_config=config)
    assert assumed() == []


@pytest.mark.parametrize("kind", ["gptq_in_an_order", "packed", "gptq_of_8_bits"])
def test_what_is_kept_takes_its_bits(inputs, tmp_path, kind):
    """Words and scales as in the file, a byte for each zero and four for each column's place in an order."""
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **dict(tiny_llama.WIDE, hidden_size=256, intermediate_size=512))
    folder = store_in_ints(tmp_path / "model", **KINDS[kind] | dict(group=128))
    kept = decoded_bytes = 0
    for name, part in load_file(folder / "model.safetensors").items():
        if name.endswith(("qweight", "weight_packed", "scales", "weight_scale")):
            kept += part.nbytes
        if name.endswith("scales"):
            kept += part.numel()
        if name.endswith("g_idx") and "order" in kind:
            kept += part.nbytes
        if name.endswith(("qweight", "weight_packed")):
            decoded_bytes += 2 * part.numel() * (4 if "8_bits" in kind else 8)
    sizes = {}
    for name, flags in (("kept", {}), ("decoded", dict(int_dequantize=True))):
        words = flag_words(base_flags(folder, inputs.data("messages"), tmp_path / "out", dtype="bfloat16", **LORA, **flags))
        sizes[name] = float(re.search(r"^peak .*parameters ([\d.]+) MB", strata("plan", "--device", "cpu", *words), re.M).group(1))
    assert sizes["decoded"] - sizes["kept"] == pytest.approx((decoded_bytes - kept) / 1e6, abs=0.02)
    assert kept < decoded_bytes * (0.54 if "8_bits" in kind else 0.29)


def test_a_flag_that_decodes_nothing_is_told(inputs, tmp_path):
    tiny_llama.save_model(tmp_path / "model", **tiny_llama.PLAIN)
    run = run_strata(base_flags(tmp_path / "model", inputs.data("messages"), tmp_path / "out", max_steps=1, int_dequantize=True))
    assert "int_dequantize: has no effect; the checkpoint holds nothing in integers" in run.text
