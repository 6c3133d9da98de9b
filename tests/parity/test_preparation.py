# Oracle: PEFT's print_trainable_parameters and transformers' get_memory_footprint of the model that
# prepare_model_for_kbit_training and get_peft_model make of the same base.
import re

import pytest
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from running import base_flags, run_strata

LORA = dict(use_peft=True, lora_r=4, lora_alpha=8, lora_dropout=0,
            lora_target_modules="all-linear")
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
    return get_peft_model(model, LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM",
        modules_to_save=flags.get("lora_modules_to_save")))


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
    expected = model.get_memory_footprint()
    assert int(found.group(1)) == expected
    assert found.group(2) == f"{expected / 1e6:.2f}"
    if flags.get("load_in_4bit") or flags.get("load_in_8bit"):
        plain = {p.dtype for p in model.parameters() if p.is_floating_point()}
        assert plain == {torch.float32}
        assert "norms, embeddings and output layer rest in fp32" in run.text
        assert "the first layer's input requires a gradient, activations are checkpointed" in run.text
