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


def packed_checkpoint(folder, **settings):
    tiny_llama.save_model(folder, dtype="bfloat16", **{**PACKED, **settings})
    return tiny_llama.pack_experts(folder)


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
def test_experts_that_are_named_stay_plain(tmp_path):
    """As in transformers, which knows nn.Linear alone: then router, experts and output layer stay."""
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
                           quantization=dict(kind="nf4", skip=["lm_head", "experts"]))
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


BASES = {
    "bf16": (1, dict(dtype="bfloat16", bf16=True)),
    "bf16_on_2": (2, dict(dtype="bfloat16", bf16=True)),
    "fp32_on_3": (3, {}),
    "bf16_weights": (1, dict(dtype="bfloat16")),
    "fp16": (2, dict(dtype="float16", fp16=True)),
    "fp16_weights": (1, dict(dtype="float16")),
    "recomputed": (1, dict(gradient_checkpointing=True)),
    "selective": (2, dict(gradient_checkpointing=True, gradient_checkpointing_mode="selective")),
    "replicas": (2, dict(sharding_strategy="NO_SHARD")),
    "packed_rows": (2, dict(packing=True, packing_strategy="bfd", eval_strategy="steps", eval_steps=2)),
    "rank_0_reads": (2, dict(fsdp_cpu_ram_efficient_loading=True)),
    "offloaded": (2, dict(fsdp_offload_params=True)),
    "whole_files": (2, dict(fsdp_state_dict_type="FULL_STATE_DICT", save_strategy="steps", save_steps=2)),
}


@pytest.mark.parametrize("name", BASES)
def test_a_packed_base_trains_as_the_decoded_one(inputs, tmp_path, name):
    """To the bit: MXFP4 is exact in bfloat16."""
    folder = packed_checkpoint(tmp_path / "model")
    world, settings = BASES[name]
    settings = dict(use_peft=True, lora_target_modules="all-linear", lora_r=3, max_steps=4, learning_rate=1e-2, **settings)
    runs = {kind: run_strata(base_flags(base, inputs.data("messages"), tmp_path / kind, **settings, **own), world)
            for kind, base, own in (("kept", folder, {}), ("decoded", folder, dict(mxfp4_dequantize=True)),
                                    ("plain", save_decoded(folder, tmp_path / "plain-model"), {}))}
    assert "experts in MXFP4: 4 weights, frozen" in runs["kept"].text
    assert all("experts in MXFP4" not in runs[kind].text for kind in ("decoded", "plain"))
    assert runs["kept"].losses == runs["decoded"].losses == runs["plain"].losses
    assert len(set(runs["kept"].losses)) > 1
    adapters = [load_file(run.folder / "adapter_model.safetensors") for run in runs.values()]
    assert all(torch.equal(adapters[0][n], other[n]) for other in adapters[1:] for n in adapters[0])


@pytest.mark.parametrize("settings", [dict(lora_modules_to_save=["experts"]), dict(use_peft=False)], ids=["experts", "all"])
def test_experts_that_train_are_decoded(inputs, tmp_path, settings):
    folder = packed_checkpoint(tmp_path / "model")
    flags = {**dict(use_peft=True, lora_target_modules="all-linear", max_steps=2, learning_rate=1e-2), **settings}
    if not flags["use_peft"]:
        del flags["lora_target_modules"]
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / name, **flags), 2)
            for name, base in (("packed-out", folder), ("plain-out", save_decoded(folder, tmp_path / "plain")))]
    assert runs[0].losses == runs[1].losses
    assert "experts in MXFP4" not in runs[0].text


def test_dpo_and_a_resumed_run_over_a_packed_base(inputs, tmp_path):
    folder = packed_checkpoint(tmp_path / "model")
    plain = save_decoded(folder, tmp_path / "plain")
    flags = dict(use_peft=True, lora_target_modules="all-linear", lora_r=3, learning_rate=1e-2, save_strategy="steps", save_steps=2,
                 lr_scheduler_type="constant")
    pairs = [run_strata(base_flags(base, inputs.data("preference"), tmp_path / name, max_steps=4, **flags), 2, recipe="dpo")
             for name, base in (("kept", folder), ("decoded", plain))]
    assert pairs[0].losses == pairs[1].losses
    # What is saved knows nothing of the base's form in memory, nor does the reference's table, which lacks the rows of two steps alone.
    for steps, more in ((2, {}), (4, dict(resume_from_checkpoint="true", mxfp4_dequantize=True))):
        rest = run_strata(base_flags(folder, inputs.data("preference"), tmp_path / "pairs", max_steps=steps, **flags, **more), 2,
                          recipe="dpo")
    assert rest.losses[-2:] == pairs[0].losses[-2:]
    assert "resuming from" in rest.text and "reference: log-probabilities of 8 pairs" in rest.text
    whole = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "whole", max_steps=4, **flags), 2)
    run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "parts", max_steps=2, **flags), 2)
    rest = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "parts", max_steps=4, resume_from_checkpoint="true",
                                 mxfp4_dequantize=True, **flags), 2)
    assert rest.losses[-2:] == whole.losses[-2:]
    assert "resuming from" in rest.text and "other settings" not in rest.text


def test_answers_over_a_packed_base(inputs, tmp_path):
    folder = packed_checkpoint(tmp_path / "model")
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=4, use_peft=True,
                                lora_target_modules="all-linear", learning_rate=0.05))

    def said(base, *words):
        return strata("chat", "--model_name_or_path", base, "--prompt", "the cat", "--max_new_tokens", 12, "--do_sample",
                      "false", *words)
    plain = save_decoded(folder, tmp_path / "plain")
    answers = {}
    for words in ([], ["--adapter", f"a={run.folder}"]):
        answers[len(words)] = said(folder, *words)
        assert answers[len(words)] == said(folder, "--mxfp4_dequantize", "true", *words)
    assert answers[0] == said(plain) != answers[2]


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


def test_experts_that_trained_whole_merge_into_decoded_weights(inputs, tmp_path):
    folder = packed_checkpoint(tmp_path / "model")
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=2, use_peft=True,
                                lora_target_modules="all-linear", lora_modules_to_save=["experts"], learning_rate=0.01))

    def merge(base, *words, code=0):
        return strata("merge-adapter", run.folder, tmp_path / "merged", "--base_model", base, *words, code=code)
    assert "holds in MXFP4, expected plain weights to merge into; pass --dequantize" in merge(folder, code=2)
    strata("convert", folder, tmp_path / "bin", "--to", "bin")
    text = merge(tmp_path / "bin", "--dequantize", code=2)
    assert f"--dequantize: found weights in MXFP4 in {tmp_path / 'bin'}" in text and "OUT --to safetensors first" in text
    assert not (tmp_path / "merged").exists()
    merge(folder, "--dequantize")
    expected = PeftModel.from_pretrained(decoded(folder), run.folder).merge_and_unload().state_dict()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    base = decoded(folder).state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == torch.bfloat16 and relative_error(found[name], weight) < 1e-2, name
        if ".experts." in name:
            assert torch.equal(found[name], weight.bfloat16()) and not torch.equal(found[name], base[name]), name


@pytest.mark.parametrize("target", ["bnb-4bit", "bnb-8bit", "strata"])
def test_blocks_are_not_converted_to_what_would_lose_them(tmp_path, target):
    """transformers would begin with random experts where config.json no longer says what blocks are."""
    folder = packed_checkpoint(tmp_path / "model")
    text = strata("convert", folder, tmp_path / "out", "--to", target, code=2)
    assert f"--to {target}: found experts in MXFP4" in text and not (tmp_path / "out").exists()


def test_a_packed_folder_in_another_format_stays_one(inputs, tmp_path):
    """Also where files say nothing of a tensor but its type and name."""
    folder = packed_checkpoint(tmp_path / "model")
    strata("convert", folder, tmp_path / "bin", "--to", "bin")
    strata("convert", tmp_path / "bin", tmp_path / "back", "--to", "safetensors")
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "back")]
    assert configs[0]["quantization_config"] == configs[1]["quantization_config"]
    assert decoded(tmp_path / "back").state_dict().keys() == decoded(folder).state_dict().keys()


def test_dequantize_wants_something_to_decode(inputs, tmp_path):
    run = run_strata(base_flags(inputs.model("gpt_oss"), inputs.data("messages"), tmp_path / "out", max_steps=1,
                                use_peft=True, lora_target_modules=["q_proj"], lora_target_parameters="none"))
    text = strata("merge-adapter", run.folder, tmp_path / "merged", "--base_model", inputs.model("gpt_oss"),
                  "--dequantize", code=2)
    assert "--dequantize: found" in text and "with plain weights, expected a quantised base; remove it" in text
    assert not (tmp_path / "merged").exists()


def test_plan_and_inspect_read_a_packed_folder(inputs, tmp_path):
    """Decoded, the plan is that of the decoded weights; kept, it has their codes in place of them."""
    folder = packed_checkpoint(tmp_path / "model")

    def plan(base, *words):
        lines = strata("plan", "--model_name_or_path", base, "--use_peft", "true", "--lora_target_modules", "all-linear",
                       "--max_length", 64, *words).splitlines()
        # What the program itself takes differs by pages.
        return [line for line in lines if not line.startswith(("runtime", "all in use", "held", "peak"))]
    plain = plan(save_decoded(folder, tmp_path / "plain"))
    assert plan(folder, "--mxfp4_dequantize", "true") == plain and any(line.startswith("parameters") for line in plain)
    assert plan(folder) != plain
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
    (dict(sliding_window=None), "found sliding_window = None with sliding-window layers"),
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
