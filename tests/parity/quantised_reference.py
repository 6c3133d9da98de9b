"""Tiny models over the reference's quantised bases, and what a probe is asked for to have the same."""

import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from test_lora import config_of

# bitsandbytes' AVX-512 kernel decodes rows shorter than a block wrongly, see decoded() in test_quantization.py.
ROWS_OF_A_BLOCK = dict(hidden_size=64, intermediate_size=76)
BASES = {
    "nf4": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"), dict(kind="nf4")),
    "nf4_double": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                        bnb_4bit_use_double_quant=True), dict(kind="nf4", nested=True)),
    "fp4": (dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"), dict(kind="fp4")),
    "int8": (dict(load_in_8bit=True), dict(kind="int8")),
    "output_layer_too": (dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                              llm_int8_skip_modules=["down_proj"]),
                         dict(kind="nf4", skip=["down_proj"])),
    "output_layer_too_int8": (dict(load_in_8bit=True, llm_int8_skip_modules=["down_proj"]),
                              dict(kind="int8", skip=["down_proj"])),
}


def attach_quantised(folder, settings, **lora):
    base = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(
            **{"bnb_4bit_compute_dtype": torch.float32, **settings}))
    torch.manual_seed(1)
    return get_peft_model(base, config_of(lora))
