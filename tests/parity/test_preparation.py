# Oracle: PEFT's print_trainable_parameters and transformers' get_memory_footprint of the model that
# prepare_model_for_kbit_training and get_peft_model make of the same base.
import json
import re

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, VeraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from running import base_flags, run_strata

LORA = dict(use_peft=True, lora_r=4, lora_alpha=8, lora_dropout=0,
            lora_target_modules="all-linear")
TOKENS = dict(LORA, trainable_token_indices="[3, 40, 50]")
VERA = dict(LORA, peft_type="VERA", lora_target_modules=["q_proj", "up_proj"])
NF4 = dict(load_in_4bit=True, bnb_4bit_use_double_quant=True)
# Model, settings, and whether a rank of two holds it.
ROWS = {
    "lora": ("wide", LORA, 1),
    "saved_head": ("wide", dict(LORA, lora_modules_to_save=["lm_head"]), 2),
    "tied": ("tied", LORA, 1),
    "nf4": ("wide", dict(LORA, **NF4), 2),
    "nf4_saved_head": ("wide", dict(LORA, **NF4, lora_modules_to_save=["lm_head"]), 1),
    "fp4": ("wide", dict(LORA, load_in_4bit=True, bnb_4bit_quant_type="fp4"), 1),
    "int8": ("wide", dict(LORA, load_in_8bit=True), 1),
    "odd_nf4": ("odd", dict(LORA, **NF4), 1),
    "bf16_file": ("bf16", dict(LORA, dtype="auto"), 1),
    "bf16_file_nf4": ("bf16", dict(LORA, dtype="auto", **NF4), 1),
    "bf16_file_int8": ("bf16", dict(LORA, dtype="auto", load_in_8bit=True), 1),
    "tokens": ("wide", TOKENS, 2),
    "tokens_tied": ("tied", TOKENS, 1),
    "bf16_file_tokens": ("bf16", dict(TOKENS, dtype="auto"), 1),
    "vera": ("wide", VERA, 2),
    "vera_drawn_again": ("wide", dict(VERA, save_projection=False), 1),
    "bf16_file_vera": ("bf16", dict(VERA, dtype="auto"), 1),
    "nf4_vera": ("wide", dict(VERA, **NF4), 1),
    "prompt": ("wide", dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=7), 1),
    "gpt2": ("gpt2", LORA, 1),
    "apertus": ("apertus", LORA, 2),  # with buffers that files hold
    "bigcode_int8": ("bigcode", dict(LORA, load_in_8bit=True), 1),
    "new_tokens_nf4": ("llama2", dict(LORA, **NF4, chat_template_format="chatml"), 1),
}


@pytest.fixture(scope="module")
def folder_of(inputs, tmp_path_factory):
    def find(name):
        if name != "bf16":
            return inputs.model(name)
        folder = tmp_path_factory.getbasetemp() / "bf16-base"
        if not folder.exists():
            import shutil

            shutil.copytree(inputs.model("wide"), folder)
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
            model.save_pretrained(folder)
        return folder

    return find


def reference(folder, flags):
    quantization = None
    if flags.get("load_in_4bit") or flags.get("load_in_8bit"):
        names = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
        quantization = BitsAndBytesConfig(**{"bnb_4bit_quant_type": "nf4", **{
            name: flags[name] for name in names if name in flags}})
    dtype = "auto" if flags.get("dtype") == "auto" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, device_map="cpu",
                                                 quantization_config=quantization)
    if "chat_template_format" in flags:
        model.resize_token_embeddings(335, pad_to_multiple_of=8)
    if quantization is not None:
        model = prepare_model_for_kbit_training(model)
    return get_peft_model(model, adapter_of(flags))


def adapter_of(flags):
    kind = flags.get("peft_type")
    if kind == "PROMPT_TUNING":
        return PromptTuningConfig(num_virtual_tokens=flags["num_virtual_tokens"], task_type="CAUSAL_LM")
    if kind == "VERA":
        return VeraConfig(r=4, target_modules=flags["lora_target_modules"], task_type="CAUSAL_LM")
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM",
                      modules_to_save=flags.get("lora_modules_to_save"),
                      trainable_token_indices=json.loads(flags.get("trainable_token_indices", "null")))


def footprint(model):
    """Of all that PEFT's model holds: get_memory_footprint() itself leaves a prompt's rows out."""
    rows = model.prompt_encoder.parameters() if hasattr(model, "prompt_encoder") else []
    return model.get_memory_footprint() + sum(value.nbytes for value in rows)


@pytest.mark.parametrize("name", ROWS)
def test_lines_at_the_start(inputs, folder_of, tmp_path, capsys, name):
    base, flags, world = ROWS[name]
    run = run_strata(base_flags(folder_of(base), inputs.data("messages"), tmp_path / "out",
                                **{**flags, "max_steps": 1}), world)
    model = reference(folder_of(base), flags)
    capsys.readouterr()
    model.print_trainable_parameters()
    assert capsys.readouterr().out.strip() in run.text, run.text
    found = re.search(r"memory footprint: (\d+) bytes \((\S+) MB\)", run.text)
    expected = footprint(model)
    assert int(found.group(1)) == expected
    assert found.group(2) == f"{expected / 1e6:.2f}"
    if flags.get("load_in_4bit") or flags.get("load_in_8bit"):
        plain = {p.dtype for p in model.parameters() if p.is_floating_point()}
        assert plain == {torch.float32}
        assert "norms, embeddings and output layer are stored in fp32" in run.text
        assert "the first layer's input requires a gradient, activations are checkpointed" in run.text
