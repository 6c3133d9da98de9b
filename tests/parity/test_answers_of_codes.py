"""Answers over a base that stays in the codes of its files (fp8, integers). Oracle: the answers of the decoded copy, which are those of
transformers (test_generate.py); the operating system's limit of a program's memory."""

import resource

import pytest
import torch

import tiny_llama
from fp8_files import save_decoded as save_decoded_fp8, store_in_fp8
from int_files import save_decoded as save_decoded_ints, store_in_ints
from running import base_flags, run_strata, strata
from test_convert_memory import program_data  # noqa: F401
from test_ints import KINDS, SIZES

FORMS = ["fp8", "gptq_in_an_order", "awq", "packed", "gptq_of_8_bits", "gptq_of_2_bits"]
TURNS = ["--max_new_tokens", 12, "--do_sample", "false", "--prompt", "the cat sat", "--prompt", "and then?"]


def stored(folder, form, sizes=SIZES):
    """The checkpoint in codes, and its decoded copy."""
    tiny_llama.save_model(folder / "model", **sizes)
    if form == "fp8":
        return store_in_fp8(folder / "model", (16, 16)), save_decoded_fp8(folder / "model", folder / "copy", torch.bfloat16)
    return store_in_ints(folder / "model", **KINDS[form]), save_decoded_ints(folder / "model", folder / "copy")


def decodes(form):
    return ["--fp8_dequantize" if form == "fp8" else "--int_dequantize"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("more", [{}, dict(use_dora=True), dict(lora_modules_to_save=["down_proj"])], ids=["lora", "dora", "whole"])
def test_adapters_answer_as_over_the_copy(inputs, tmp_path, form, more):
    """Also folded into the weights, and taken out again."""
    folder, copy = stored(tmp_path, form)
    more = dict(more, lora_target_modules=["q_proj", "v_proj", "up_proj"]) if more.get("lora_modules_to_save") else more
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out",
                                **dict(dict(max_steps=4, use_peft=True, lora_target_modules="all-linear", learning_rate=0.05), **more)))

    def said(base, *words):
        return strata("chat", base, *TURNS, *words)
    adapted = ["--adapter", f"a={run.folder}"]
    merged = [*adapted, "--prompt", "/merge", "--prompt", "/reset", "--prompt", "the cat sat", "--prompt", "/unmerge", "--prompt", "and then?"]
    for words in ([], adapted, merged):
        expected = said(copy, *words)
        assert said(folder, *words) == expected == said(folder, *words, *decodes(form)), words
    assert said(copy) != said(copy, *adapted)


def test_first_values_that_change_the_base(inputs, tmp_path):
    folder, copy = stored(tmp_path, "awq")
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=3, use_peft=True, learning_rate=0.02,
                                lora_target_modules="all-linear", init_lora_weights="pissa"))
    words = ["--adapter_name_or_path", run.folder]
    assert strata("chat", folder, *TURNS, *words) == strata("chat", copy, *TURNS, *words) != strata("chat", copy, *TURNS)


WIDE = dict(SIZES, hidden_size=1024, intermediate_size=4096, num_attention_heads=8, num_key_value_heads=8, num_hidden_layers=4)


@pytest.mark.parametrize("form", ["fp8", "awq"])
def test_memory_is_that_of_the_codes(program_data, tmp_path, form):  # noqa: F811
    """67 million weights of linear layers: 67 or 42 MB of codes and scales, 268 MB in fp32."""
    tiny_llama.save_model(tmp_path, **WIDE)
    store_in_fp8(tmp_path, (128, 128)) if form == "fp8" else store_in_ints(tmp_path, **dict(KINDS[form], group=64))

    def limited():
        resource.setrlimit(resource.RLIMIT_DATA, (program_data + 200 << 20,) * 2)
    # Some processors multiply bf16 as it is, and would keep the decoded weights in half the memory.
    words = ["chat", tmp_path, "--dtype", "float32", "--prompt", "the cat sat", "--max_new_tokens", 4]
    assert strata(*words, preexec_fn=limited)
    assert "memory" in strata(*words, *decodes(form), preexec_fn=limited, code=1)


def test_forms_that_the_files_do_not_have(tmp_path):
    tiny_llama.save_model(tmp_path, **SIZES)
    said = strata("chat", tmp_path, "--prompt", "the cat", "--max_new_tokens", 2, "--fp8_dequantize", "--int_dequantize")
    assert "note: fp8_dequantize: has no effect" in said and "note: int_dequantize: has no effect" in said
