"""Oracle: transformers' models of checkpoints in 8-bit floating point, which it decodes on CPUs; torch's own arithmetic where
tiles do not divide a matrix, which transformers refuses; runs over the decoded copy, to the bit."""

import json
import re

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import tiny_llama
from converting import inspect
from fp8_files import decoded, save_decoded, store_in_fp8
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import run_probe, run_probe_raw
from running import base_flags, flag_words, run_strata, run_strata_raw, strata
from test_gpt2 import edit_config
from test_llama import compare
from test_text_model import save_whole

LENGTHS = (23, 1, 9)
FAMILIES = {
    "llama": dict(hidden_size=32, intermediate_size=48),
    "deepseek_v3": dict(family="deepseek_v3", kv_lora_rank=12, q_lora_rank=12, moe_intermediate_size=12, intermediate_size=48),
    "minimax_m2": dict(family="minimax_m2"),
    "qwen3_moe": dict(family="qwen3_moe"),
}
TILES = {"llama": (16, 8), "deepseek_v3": (4, 4), "minimax_m2": (2, 2), "qwen3_moe": (2, 2)}


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **FAMILIES[name])
    store_in_fp8(tmp_path, TILES[name])
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


def test_one_scale_of_a_matrix(tmp_path):
    """As Ministral's files are; that of its activations is read by nobody."""
    save_checkpoint(tmp_path, family="ministral3")
    store_in_fp8(tmp_path, "matrix", scale_type=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


# Tiles that do not divide, also of every row and column; sizes that nothing divides.
KINDS = {"tiles": dict(tile=(16, 8)), "wide_tiles": dict(tile=(128, 128)), "uneven": dict(tile=(5, 7)), "rows": dict(tile="rows", method="fbgemm_fp8"),
         "compressed_rows": dict(tile="rows", method="compressed-tensors", scale_type=torch.bfloat16),
         "compressed_tiles": dict(tile=(5, 7), method="compressed-tensors", config_groups={"group_0": {"weights": {
             "num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [5, 7]}}}),
         "compressed_matrix": dict(tile="matrix", method="compressed-tensors", format="naive-quantized", scale_type=torch.float16),
         "experts": dict(tile="rows", method="fbgemm_fp8")}
ODD = dict(tiny_llama.ODD, dtype="bfloat16")




@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_that_torch_decodes(inputs, tmp_path, kind, world):
    """Also of experts that are one tensor, as Llama 4's files have them."""
    tiny_llama.save_model(tmp_path / "model", **(dict(tiny_llama.LLAMA4, dtype="bfloat16") if kind == "experts" else ODD))
    folder = store_in_fp8(tmp_path / "model", **KINDS[kind])
    assert (kind == "experts") == any(tensor.dim() == 3 for tensor in load_file(folder / "model.safetensors").values())
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1, learning_rate=0, save_dtype="bfloat16"), world)
    assert "base in fp8: decoded while it is read" in run.text
    found, expected = load_file(run.folder / "model.safetensors"), decoded(folder, torch.bfloat16)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert "quantization_config" not in json.loads((run.folder / "config.json").read_text())
    AutoModelForCausalLM.from_pretrained(run.folder)


RUNS = {
    "whole": (2, {}),
    "whole_in_bfloat16": (2, dict(dtype="bfloat16")),
    "whole_in_float16": (1, dict(dtype="float16")),
    "whole_in_its_own": (1, dict(dtype="auto")),
    "rank_0_reads": (2, dict(fsdp_cpu_ram_efficient_loading=True)),
    "offloaded": (2, dict(fsdp_offload_params=True)),
    "lora": (2, dict(use_peft=True)),
    "lora_on_3": (3, dict(use_peft=True, gradient_checkpointing=True)),
    "lora_of_decoded": (2, dict(use_peft=True, fp8_dequantize=True)),
    "lora_offloaded": (2, dict(use_peft=True, fsdp_offload_params=True, dtype="bfloat16")),
    "lora_rank_0_reads": (2, dict(use_peft=True, fsdp_cpu_ram_efficient_loading=True)),
    "lora_replicas": (2, dict(use_peft=True, sharding_strategy="NO_SHARD", dtype="float16")),
    "dora": (1, dict(use_peft=True, use_dora=True, dtype="bfloat16")),
    "ia3": (2, dict(use_peft=True, peft_type="IA3", lora_r=None)),
    "vera": (1, dict(use_peft=True, peft_type="VERA", dtype="bfloat16")),
    "prompt": (2, dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=3, lora_target_modules=None, lora_r=None)),
    "lora_bf16": (1, dict(use_peft=True, bf16=True, dtype="bfloat16")),
    "loftq": (1, dict(use_peft=True, load_in_4bit=True, init_lora_weights="loftq", dtype="bfloat16")),
    "pissa": (1, dict(use_peft=True, init_lora_weights="pissa")),
    "nf4": (1, dict(use_peft=True, load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "nf4_on_3": (3, dict(use_peft=True, load_in_4bit=True, bnb_4bit_quant_type="nf4", dtype="bfloat16")),
    "nf4_rank_0_reads": (2, dict(use_peft=True, load_in_4bit=True, fsdp_cpu_ram_efficient_loading=True)),
    "int8": (2, dict(use_peft=True, load_in_8bit=True)),
    "nf4_but_some": (1, dict(use_peft=True, load_in_4bit=True, llm_int8_skip_modules=["q_proj", "lm_head"])),
}


@pytest.mark.parametrize("name", RUNS)
def test_trains_as_the_decoded_copy(inputs, tmp_path, name):
    """To the bit, from the copy in the type of the run, by products of our own: MKL multiplies few rows by plain weights alone."""
    world, settings = RUNS[name]
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **tiny_llama.WIDE)
    folder = store_in_fp8(tmp_path / "model", (16, 48))
    settings = dict(dict(max_steps=3, learning_rate=1e-2, full_determinism=True), **settings)
    if settings.get("use_peft"):
        settings = dict(lora_target_modules="all-linear", lora_r=3) | settings
    copy = save_decoded(folder, tmp_path / "copy", getattr(torch, settings.get("dtype", "float32").replace("auto", "bfloat16")))
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / out, **settings), world)
            for base, out in ((folder, "fp8"), (copy, "plain"))]
    assert runs[0].losses == runs[1].losses and len(set(runs[0].losses)) > 1
    stays = settings.get("use_peft") and not {"load_in_4bit", "load_in_8bit", "fp8_dequantize", "init_lora_weights"} & settings.keys()
    assert ("base in fp8: 14 matrices stay as they are, frozen" in runs[0].text) == bool(stays), runs[0].text
    file = "adapter_model.safetensors" if settings.get("use_peft") else "model.safetensors"
    results = [load_file(run.folder / file) for run in runs]
    assert results[0].keys() == results[1].keys()
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def base_of(run):
    with safe_open(run.folder / "adapter_model.safetensors", "pt") as file:
        return file.metadata().get("base_fingerprint")


def merges_alike(tmp_path, run, folder, copy):
    """What merging the run's adapter into either gives, which PEFT gives over the copy."""
    merged = {}
    for base in (folder, copy):
        said = strata("merge-adapter", run.folder, tmp_path / f"merged-{base.name}", "--base_model", base)
        assert "another base" not in said and "other base" not in said, said
        merged[base.name] = load_file(tmp_path / f"merged-{base.name}" / "model.safetensors")
        assert "quantization_config" not in json.loads((tmp_path / f"merged-{base.name}" / "config.json").read_text())
    assert merged["model"].keys() == merged["copy"].keys()
    assert all(torch.equal(merged["model"][name], merged["copy"][name]) for name in merged["copy"])
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(copy), run.folder)
    plain = model.merge_and_unload().state_dict()
    for name, weight in merged["copy"].items():
        assert (plain[name].float() - weight.float()).abs().max() <= 2 ** -7 * weight.float().abs().max()
    return merged["model"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_adapter_over_it_goes_on_over_the_copy(inputs, tmp_path, dtype):
    """One mark for both; merged into either it is one model; PEFT loads it over the copy."""
    tiny_llama.save_model(tmp_path / "model", dtype=dtype, **tiny_llama.PLAIN)
    folder = store_in_fp8(tmp_path / "model", (16, 16))
    copy = save_decoded(folder, tmp_path / "copy", getattr(torch, dtype))
    flags = dict(use_peft=True, lora_target_modules="all-linear", learning_rate=1e-2, save_strategy="steps", save_steps=2)
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=2, **flags), 2)
    other = run_strata(base_flags(copy, inputs.data("messages"), tmp_path / "other", max_steps=1, **flags))
    assert base_of(run) == base_of(other) and len(base_of(run)) == 16
    merged = merges_alike(tmp_path, run, folder, copy)
    rest = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=4, resume_from_checkpoint="true", **flags), 2)
    assert "resuming from" in rest.text
    strata("merge-adapter", run.folder, tmp_path / "asked", "--base_model", folder, "--dequantize")
    assert load_file(tmp_path / "asked" / "model.safetensors").keys() == merged.keys()


def test_answers_as_the_copy(tmp_path):
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **tiny_llama.WIDE)
    folder = store_in_fp8(tmp_path / "model", (16, 16))
    copy = save_decoded(folder, tmp_path / "copy", torch.bfloat16)
    for flags in ([], ["--load_in_4bit", "true"]):
        said = [strata("chat", "--model_name_or_path", base, "--prompt", "the cat sat", "--max_new_tokens", "12", "--do_sample", "false", *flags)
                for base in (folder, copy)]
        assert said[0] == said[1] and said[0]


@pytest.mark.parametrize("to", ["safetensors", "bin", "bnb-4bit"])
def test_converted_it_is_plain(tmp_path, to):
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **tiny_llama.WIDE)
    folder = store_in_fp8(tmp_path / "model", (16, 16))
    copy = save_decoded(folder, tmp_path / "copy", torch.bfloat16)
    for base in (folder, copy):
        strata("convert", base, tmp_path / f"{base.name}-out", "--to", to)
    found, expected = (AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-out").state_dict() for name in ("model", "copy"))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    entry = json.loads((tmp_path / "model-out" / "config.json").read_text()).get("quantization_config", {})
    assert entry.get("quant_method") == ("bitsandbytes" if to == "bnb-4bit" else None)


@pytest.mark.parametrize("entry", [dict(fmt="e5m2"), dict(quant_method="fbgemm_fp8")], ids=["fmt", "scales"])
def test_what_is_not_read_may_be_looked_at(tmp_path, entry):
    tiny_llama.save_model(tmp_path, dtype="bfloat16", **tiny_llama.PLAIN)
    store_in_fp8(tmp_path, (5, 7))
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    edit_config(tmp_path, quantization_config={**config, **entry, "weight_block_size": None})
    assert any(tensor["dtype"] == "F8_E4M3" for tensor in inspect(tmp_path)["tensors"])


def test_what_inspect_says(tmp_path):
    tiny_llama.save_model(tmp_path, dtype="bfloat16", **tiny_llama.PLAIN)
    before = inspect(tmp_path)
    after = inspect(store_in_fp8(tmp_path, (16, 16)))
    assert after["format"] == "Hugging Face model in fp8"
    assert after["tensors"] == before["tensors"]
    text = strata("inspect", tmp_path)  # whose sizes are not those of the files
    assert text.startswith(f"{tmp_path}: Hugging Face model in fp8, shown decoded\n")


@pytest.mark.parametrize("kind", ["mistral3", "llava"])
def test_the_language_model_of_a_whole_in_fp8(tmp_path, kind):
    """Decoded as it is taken out."""
    save_whole(tmp_path / "whole", kind, torch.bfloat16)
    plain = tmp_path / "plain"
    folder = store_in_fp8(tmp_path / "whole", (12, 12))
    save_decoded(folder, plain, torch.bfloat16)
    for base in (folder, plain):
        strata("convert", base, tmp_path / f"{base.name}-text", "--to", "text-model")
    found, expected = (load_file(tmp_path / f"{name}-text" / "model.safetensors") for name in ("whole", "plain"))
    assert found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)
    configs = [json.loads((tmp_path / f"{name}-text" / "config.json").read_text()) for name in ("whole", "plain")]
    assert configs[0] == configs[1]


def change_tensor(folder, change):
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, {"format": "pt"})


NAME = "model.layers.0.self_attn.q_proj.weight"


def set_scale(value):
    def change(weights):
        weights[NAME + "_scale_inv"] = value
    return change


@pytest.mark.parametrize("change,message", [
    (lambda weights: weights.pop(NAME + "_scale_inv"), f'found "{NAME}" in F8_E4M3 without "{NAME}_scale_inv", expected both'),
    (set_scale(torch.ones(3, 2)), f'tensor "{NAME}_scale_inv" is F32 [3, 2], expected one scale of each 16 x 16 beside [32, 32]'),
    (set_scale(torch.ones(2)), f'tensor "{NAME}_scale_inv" is F32 [2], expected one scale of each 16 x 16'),
    (set_scale(torch.ones(2, 2, dtype=torch.int32)), "expected F32, BF16 or F16"),
    (set_scale(torch.ones(0, 2)), "expected one scale of each 16 x 16"),
    (lambda weights: weights.update({NAME: weights[NAME].float()}), f'found tensors that config.json does not imply: "{NAME}_scale_inv"'),
    (lambda weights: weights.update({NAME: weights[NAME].view(torch.uint8).view(torch.float8_e5m2)}), "F8_E5M2"),
    (lambda weights: weights.update({NAME: weights[NAME][:16]}), "has shape [16, 32], config.json implies [32, 32]"),
], ids=["no_scale", "grid", "one_dimension", "whole_numbers", "none", "plain_beside_scale", "e5m2", "shape"])
def test_damaged_files_are_refused(tmp_path, change, message):
    save_checkpoint(tmp_path)
    change_tensor(store_in_fp8(tmp_path), change)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and message in run.stderr, run.stderr


@pytest.mark.parametrize("entry,message", [
    (dict(weight_block_size=[0, 16]), "weight_block_size: found [0, 16], expected two positive whole numbers, or null"),
    (dict(weight_block_size=16), "weight_block_size: found 16, expected two positive whole numbers, or null"),
    (dict(fmt="e5m2"), 'fmt: found "e5m2", expected e4m3; use a checkpoint of 16 bits'),
    (dict(quant_method="compressed-tensors", format="naive-quantized", config_groups={"group_0": {"weights": {"num_bits": 8, "type": "int"}}}),
     "expected type float of 8 bits"),
    (dict(expert_dtype="fp4"), 'expert_dtype: found "fp4", expected fp8'),
    (dict(quant_method="compressed-tensors", format="int-quantized"), 'found quant_method "compressed-tensors"'),
    (dict(quant_method="compressed-tensors", format="float-quantized", transform_config={"a": 1}), "transform_config: found "),
    (dict(quant_method="compressed-tensors", format="float-quantized", sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config: found "),
])
def test_other_forms_are_refused(inputs, tmp_path, entry, message):
    tiny_llama.save_model(tmp_path / "model", **tiny_llama.PLAIN)
    folder = store_in_fp8(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    edit_config(folder, quantization_config={**config, **entry})
    run = run_strata_raw(base_flags(folder, inputs.data("messages"), tmp_path / "out"))
    assert run.returncode != 0 and message in run.text, run.text


def test_files_in_fp8_that_config_json_says_nothing_of(inputs, tmp_path):
    tiny_llama.save_model(tmp_path / "model", **tiny_llama.PLAIN)
    store_in_fp8(tmp_path / "model")
    edit_config(tmp_path / "model", quantization_config=None)
    run = run_strata_raw(base_flags(tmp_path / "model", inputs.data("messages"), tmp_path / "out"))
    assert run.returncode != 0 and "is F8_E4M3, expected F8_E4M3 and a quantization_config in config.json that says so" in run.text, run.text


LORA = dict(use_peft=True, lora_target_modules="all-linear", lora_r=3, learning_rate=1e-2)


def test_dpo_and_a_resumed_run_over_what_stays_in_fp8(inputs, tmp_path):
    """What is saved knows nothing of the base's form in memory, nor does the reference's table, which lacks the rows of two steps alone."""
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **tiny_llama.WIDE)
    folder = store_in_fp8(tmp_path / "model", (16, 16))
    copy = save_decoded(folder, tmp_path / "copy", torch.float32)
    flags = dict(LORA, save_strategy="steps", save_steps=2, lr_scheduler_type="constant")
    pairs = [run_strata(base_flags(base, inputs.data("preference"), tmp_path / name, max_steps=4, **flags), 2, recipe="dpo")
             for name, base in (("kept", folder), ("copied", copy))]
    assert pairs[0].losses == pairs[1].losses and "matrices stay as they are" in pairs[0].text
    for steps, more in ((2, {}), (4, dict(resume_from_checkpoint="true", fp8_dequantize=True))):
        rest = run_strata(base_flags(folder, inputs.data("preference"), tmp_path / "pairs", max_steps=steps, **flags, **more), 2,
                          recipe="dpo")
    assert rest.losses[-2:] == pairs[0].losses[-2:]
    assert "resuming from" in rest.text and "reference: log-probabilities of 8 pairs" in rest.text and "matrices stay as they are" not in rest.text


@pytest.mark.parametrize("family", ["QWEN3_MOE", "LLAMA4", "DEEPSEEK_V3"])
def test_experts_in_fp8_stay_so(inputs, tmp_path, family):
    """But those that are one tensor for all, which are decoded as they are read."""
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **getattr(tiny_llama, family))
    folder = store_in_fp8(tmp_path / "model", (2, 2) if family != "LLAMA4" else "rows", "fp8" if family != "LLAMA4" else "fbgemm_fp8")
    copy = save_decoded(folder, tmp_path / "copy", torch.float32)
    flags = dict(LORA, lora_target_modules=["q_proj", "o_proj"] if family != "DEEPSEEK_V3" else ["kv_b_proj", "o_proj"], max_steps=3)
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / name, **flags), 2) for name, base in (("kept", folder), ("copied", copy))]
    assert "matrices stay as they are" in runs[0].text
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-6) and len(set(runs[0].losses)) > 1
    a, b = (load_file(run.folder / "adapter_model.safetensors") for run in runs)
    assert a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=1e-4, atol=1e-6) for name in a)


@pytest.mark.parametrize("flags", [dict(LORA), dict(LORA, fp8_dequantize=True), dict(LORA, load_in_4bit=True), {}], ids=["kept", "decoded", "nf4", "whole"])
@pytest.mark.parametrize("tile", [(16, 16), "matrix"], ids=["tiles", "matrix"])
def test_a_plan_needs_no_files(inputs, tmp_path, tile, flags):
    """What config.json says of them is what they are."""
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **tiny_llama.WIDE)
    folder = store_in_fp8(tmp_path / "model", tile)
    words = flag_words(base_flags(folder, inputs.data("messages"), tmp_path / "out", **flags))
    plans = []
    for is_there in (True, False):
        text = strata("plan", "--world_size", 2, "--device", "cpu", *words)
        # Not what the program itself was found to take.
        plans.append([line for line in text.splitlines() if re.match("model|parameters|gradients|optimizer|slots|activations|logits|wire", line)])
        if is_there:
            (folder / "model.safetensors").unlink()
    assert plans[0] == plans[1] and any(line.startswith("parameters ") for line in plans[0])


def test_what_is_kept_takes_half(inputs, tmp_path):
    tiny_llama.save_model(tmp_path / "model", dtype="bfloat16", **dict(tiny_llama.WIDE, hidden_size=256, intermediate_size=512))
    folder = store_in_fp8(tmp_path / "model", (128, 128))
    sizes = {}
    for name, flags in (("kept", {}), ("decoded", dict(fp8_dequantize=True))):
        words = flag_words(base_flags(folder, inputs.data("messages"), tmp_path / "out", dtype="bfloat16", **LORA, **flags))
        sizes[name] = float(re.search(r"^peak .*parameters ([\d.]+) MB", strata("plan", "--device", "cpu", *words), re.M).group(1))
    assert sizes["kept"] < 0.6 * sizes["decoded"]


def test_a_flag_that_decodes_nothing_is_told(inputs, tmp_path):
    tiny_llama.save_model(tmp_path / "model", **tiny_llama.PLAIN)
    run = run_strata(base_flags(tmp_path / "model", inputs.data("messages"), tmp_path / "out", max_steps=1, fp8_dequantize=True))
    assert "fp8_dequantize: has no effect; the checkpoint holds nothing in fp8" in run.text
