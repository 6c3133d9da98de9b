"""Tiny models over the reference's quantised bases, and what a probe is asked for to have the same."""

import torch
from bitsandbytes import functional
from peft import get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from test_lora import config_of
from test_quantization import decoded

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


def quantise_experts(model, settings):
    """The reference leaves parameters of all experts plain: what bitsandbytes makes of each matrix. Returns how many."""
    count = 0
    for name, parameter in model.named_parameters():
        if ".experts." not in name or parameter.dim() != 3:
            continue
        # Files hold gate and up of LFM2's experts as two matrices.
        parts = 2 if model.config.model_type == "lfm2_moe" and name.endswith("gate_up_proj") else 1
        for matrix in (part for both in parameter.data for part in both.chunk(parts)):
            if settings.get("load_in_8bit"):
                codes, scales, _ = functional.int8_vectorwise_quant(matrix.half())
                matrix.copy_(codes.float() * (scales / 127).unsqueeze(1))
            else:
                matrix.copy_(decoded(*functional.quantize_4bit(
                    matrix, blocksize=settings.get("bnb_4bit_blocksize", 64), quant_type=settings["bnb_4bit_quant_type"],
                    compress_statistics=settings.get("bnb_4bit_use_double_quant", False)), matrix.shape))
            count += 1
    return count


def attach_quantised(folder, settings, **lora):
    base = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(
            **{"bnb_4bit_compute_dtype": torch.float32, **settings}))
    if getattr(base.config, "enable_moe_block", False):
        quantise_experts(base, settings)
    torch.manual_seed(1)
    return get_peft_model(base, config_of(lora))
