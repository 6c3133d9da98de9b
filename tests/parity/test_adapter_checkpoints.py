"""Oracle: the adapter that the run itself wrote at the same step, and what PEFT makes of both."""

import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from running import base_flags, run_strata, strata

METHODS = {
    "ia3": dict(peft_type="IA3", learning_rate=5e-2),
    "vera": dict(peft_type="VERA", lora_r=6, learning_rate=1e-1, projection_prng_key=5),
    "prompt": dict(peft_type="PROMPT_TUNING", num_virtual_tokens=3, learning_rate=1e-1),
    "projected": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=2, learning_rate=1e-1,
                      prefix_projection=True),
    "ia3_own": dict(peft_type="IA3", learning_rate=5e-2, lora_target_modules=["q_proj", "v_proj"],
                    feedforward_modules=["v_proj"]),
    "biases": dict(base="odd", bias="all", lora_target_modules=["q_proj"], learning_rate=1e-2),
    "tokens": dict(trainable_token_indices="[1, 2, 30]", lora_target_modules=["q_proj"],
                   learning_rate=1e-2),
    "saved_as_one": dict(base="tied", lora_modules_to_save=["embed_tokens"], learning_rate=1e-2,
                         ensure_weight_tying=True, lora_target_modules=["q_proj"]),
    "tokens_as_one": dict(base="llama2-tied", chat_template_format="chatml", learning_rate=1e-2,
                          trainable_token_indices="[330, 331]", lora_target_modules=["q_proj"]),
    "new_tokens": dict(base="llama2", chat_template_path="plain", lora_target_modules=["q_proj"],
                       learning_rate=1e-2),
    "prefix": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=2, learning_rate=1e-1),
}


def peft_logits(base, adapter, rows):
    model = AutoModelForCausalLM.from_pretrained(base)
    if rows:
        model.resize_token_embeddings(rows)
    model = PeftModel.from_pretrained(model, adapter).eval()
    with torch.no_grad():
        return model(input_ids=torch.arange(20)[None]).logits


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_is_the_adapter_of_its_step(inputs, tmp_path, name):
    settings = dict(METHODS[name])
    base = inputs.model(settings.pop("base", "plain"))
    rows = 336 if "chat_template_format" in settings else 0
    if "chat_template_path" in settings:
        settings["chat_template_path"], rows = inputs.model("plain"), 384
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", use_peft=True,
                                max_steps=2, save_strategy="steps", save_steps=2,
                                **settings), world=2)
    checkpoint = run.folder / "checkpoint-2"
    strata("convert", checkpoint, tmp_path / "adapter", "--to", "safetensors", "--weights_only")
    expected = load_file(run.folder / "adapter_model.safetensors")
    found = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    # A checkpoint leaves out what its key draws again.
    expected = {n: t for n, t in expected.items() if not n.startswith("base_model.vera_")}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    configs = [json.loads((f / "adapter_config.json").read_text())
               for f in (tmp_path / "adapter", run.folder)]
    for config in configs:
        config.pop("save_projection", None)
    assert configs[0] == configs[1]
    assert torch.equal(peft_logits(base, tmp_path / "adapter", rows),
                       peft_logits(base, run.folder, rows))
    if name in ("prompt", "prefix", "projected"):
        return
    merged = {}
    for kind, adapter in (("checkpoint", checkpoint), ("result", run.folder)):
        strata("merge-adapter", adapter, tmp_path / kind, "--base_model", base)
        merged[kind] = load_file(tmp_path / kind / "model.safetensors")
    assert all(torch.equal(merged["checkpoint"][n], t) for n, t in merged["result"].items())


# Types of models whose class AutoTokenizer takes instead of the declared one; the second takes tokenizer.json as it is.
CLASSES = {"qwen2": ("qwen2", {}, "the cat isn't naïve 12345 東京"),
           "phi3": ("llama2", dict(model_type="phi3"), "The CAT sat")}


@pytest.mark.parametrize("name", CLASSES)
def test_an_adapter_alone_reads_texts_as_its_model(inputs, tmp_path, name):
    """Nothing but the base's config.json says which class the tokenizer is: AutoTokenizer gives the same ids in both folders."""
    source, type_, text = CLASSES[name]
    base = shutil.copytree(inputs.model(name), tmp_path / "base")
    if type_:
        shutil.copy(inputs.model(source) / "tokenizer_config.json", base)
        tokenizer = json.loads((inputs.model(source) / "tokenizer.json").read_text())
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, tokenizer["normalizer"]]} \
            if tokenizer["normalizer"] else {"type": "Lowercase"}
        (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    declared = json.loads((base / "tokenizer_config.json").read_text())["tokenizer_class"]
    run = run_strata(base_flags(base, inputs.data("text"), tmp_path / "out", use_peft=True, lora_r=2, max_steps=1, save_strategy="steps",
                                save_steps=1, lora_target_modules="all-linear", fsdp_state_dict_type="FULL_STATE_DICT"))
    expected = AutoTokenizer.from_pretrained(base)(text)["input_ids"]
    shutil.copytree(run.folder, tmp_path / "declared")
    settings = tmp_path / "declared" / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "tokenizer_class": declared}))
    assert AutoTokenizer.from_pretrained(tmp_path / "declared")(text)["input_ids"] != expected, "the declared class would do"
    for folder in (run.folder, run.folder / "checkpoint-1"):
        assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == expected
        assert json.loads(strata("tokenize", "--model", folder, input=text + "\n"))["ids"] == expected


def test_a_model_from_scratch_reads_texts_as_its_tokenizer(inputs, tmp_path):
    """A tokenizer of no class, which is its file as it is, beside a model whose type has one of another kind (Gemma's)."""
    (tmp_path / "tokenizer").mkdir()
    shutil.copy(inputs.model("plain") / "tokenizer.json", tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>", "pad_token": "<pad>"}')
    flags = base_flags(None, inputs.data("text"), tmp_path / "out", max_steps=1, tokenizer_name=tmp_path / "tokenizer",
                       config_name=inputs.model("gemma2") / "config.json")
    run = run_strata(flags)
    text = "the cat isn't naïve 12345"
    expected = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(run.folder)(text)["input_ids"] == expected
    assert json.loads(strata("tokenize", "--model", run.folder, input=text + "\n"))["ids"] == expected
