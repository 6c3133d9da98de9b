# Oracle: what --to gguf has no place for ends in one line that names it, and leaves nothing behind.
import json
import shutil

import pytest

import tiny_llama
from running import strata


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_llama.save_model(tmp_path_factory.mktemp("plain") / "model", **tiny_llama.PLAIN)


@pytest.fixture
def folder(model, tmp_path):
    return shutil.copytree(model, tmp_path / "model")


def edit(folder, file, change):
    content = json.loads((folder / file).read_text())
    change(content)
    (folder / file).write_text(json.dumps(content))


def refuse(folder, *flags, out=None, code=2):
    """The one line; nothing is left where the file would have been."""
    parent = folder.parent / "out"
    text = strata("convert", folder, out or parent / "m.gguf", "--to", "gguf", *flags, code=code)
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 1 and lines[0].startswith("error: "), text
    assert not parent.exists() or not list(parent.iterdir())
    return lines[0]


def test_unknown_family(folder, tmp_path):
    tiny_llama.save_model(tmp_path / "olmo", **tiny_llama.OLMO2)
    assert refuse(tmp_path / "olmo") == (
        'error: config.json: found model_type "olmo2", expected one of gemma, gemma2, gemma3_text, gpt2, llama, ministral, mistral, '
        "mixtral, phi3, qwen2, qwen3, qwen3_moe for --to gguf; use a model of one of these families")
    edit(folder, "config.json", lambda c: c.update(model_type="gemma3", text_config={"model_type": "gemma3_text"}))
    assert refuse(folder).endswith("take its language model out of it first, with --to text-model")


EXPERTS = dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
GEMMA = dict(num_hidden_layers=6, head_dim=8, query_pre_attn_scalar=8, sliding_window=7)
CONFIGS = {
    "a_scale": ("gemma2", dict(head_dim=10, query_pre_attn_scalar=20), "query_pre_attn_scalar = 20, expected 10"),
    "no_softcap": ("gemma2", dict(head_dim=10, query_pre_attn_scalar=10, final_logit_softcapping=None), "final_logit_softcapping"),
    "a_bias": ("qwen3", dict(head_dim=8, attention_bias=True), "attention_bias = true, expected false"),
    "heads": ("qwen2", dict(head_dim=10), "head_dim = 10 of 4 heads, expected hidden_size = 32"),
    "positions": ("qwen2", dict(rope_parameters=dict(rope_type="llama3", rope_theta=1e4, factor=8.0, low_freq_factor=1.0,
                                                     high_freq_factor=4.0, original_max_position_embeddings=64)), 'rope_type "llama3"'),
    "router": ("qwen3_moe", dict(EXPERTS, norm_topk_prob=False), "norm_topk_prob = false"),
    "dense_layer": ("qwen3_moe", dict(EXPERTS, norm_topk_prob=True, mlp_only_layers=[0]), "layers without experts"),
    "windows": ("gemma3_text", dict(GEMMA, layer_types=["sliding_attention"] * 3 + ["full_attention"] * 3), "layer 3 without a window"),
    "all_windows": ("gemma3_text", dict(GEMMA, num_hidden_layers=3), "found a window in every layer, expected none in layer 5"),
    "own_head": ("gemma2", dict(head_dim=10, query_pre_attn_scalar=10, tie_word_embeddings=False), "an output layer with other values"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_what_llama_cpp_computes_otherwise(tmp_path, name):
    family, settings, expected = CONFIGS[name]
    tiny_llama.save_model(tmp_path / "model", **dict(tiny_llama.PLAIN, family=family, **settings))
    assert expected in refuse(tmp_path / "model")


def test_a_window_is_told(folder, tmp_path):
    tiny_llama.save_model(tmp_path / "windows", **tiny_llama.MISTRAL)
    text = strata("convert", tmp_path / "windows", tmp_path / "m.gguf", "--to", "gguf")
    assert "llama.cpp has no sliding window for llama: a text of more than 16 tokens" in text


def pattern(text):
    return {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}


TOKENIZERS = {
    "a_pattern": (lambda t: t.update(pre_tokenizer=pattern(r"\p{L}+|\s+")),
                  "as llama.cpp cuts texts in no other way; use a tokenizer of that kind"),
    "a_prefix": (lambda t: t["pre_tokenizer"].update(add_prefix_space=True), "without add_prefix_space"),
    "a_normalizer": (lambda t: t.update(normalizer={"type": "Lowercase"}), 'found normalizer {"type": "Lowercase"}, expected none or NFC'),
    "ignored_merges": (lambda t: t["model"].update(ignore_merges=True), "with ignore_merges"),
    "tokens_around": (lambda t: t.update(post_processor={
        "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<pad>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<pad>": {"id": "<pad>", "ids": [0], "tokens": ["<pad>"]}}}), "expected none but bos_token and eos_token"),
    "a_mark": (lambda t: t["model"].update(end_of_word_suffix="</w>"), 'found end_of_word_suffix "</w>"'),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_that_llama_cpp_has_not(folder, name):
    change, expected = TOKENIZERS[name]
    edit(folder, "tokenizer.json", change)
    assert expected in refuse(folder, code=1)


def test_a_tokenizer_of_another_model(folder):
    edit(folder, "tokenizer.json", lambda t: t["model"]["vocab"].update({"zzz": 9999}))
    assert 'found token 9999 "zzz", expected ids below the' in refuse(folder, code=1)


def test_a_model_without_an_end(folder):
    edit(folder, "tokenizer_config.json", lambda t: t.pop("eos_token"))
    edit(folder, "config.json", lambda c: c.update(eos_token_id=None))
    for name in ("special_tokens_map.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    assert "found no eos_token, expected one" in refuse(folder, code=1)


def test_words_instead_of_pieces(folder):
    edit(folder, "tokenizer.json", lambda t: t.update(model={
        "type": "WordLevel", "vocab": {"<pad>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "a": 3}, "unk_token": "<pad>"}))
    assert 'found a tokenizer of type "WordLevel", expected BPE' in refuse(folder, code=1)


def test_merges_that_are_missing(tmp_path):
    """llama.cpp would join what tokenizer.json does not."""
    folder = tiny_llama.save_model(tmp_path / "model", llama2=330, **tiny_llama.PLAIN)
    edit(folder, "tokenizer.json", lambda t: t["model"]["merges"].pop())
    assert "and no merge that joins them" in refuse(folder, code=1)


def test_no_tokenizer(folder):
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / file).unlink()
    assert "found no tokenizer, expected one next to config.json" in refuse(folder)


def test_quantised_weights(folder, tmp_path):
    strata("convert", folder, tmp_path / "codes", "--to", "bnb-8bit")
    assert "found a quantised model, expected plain weights" in refuse(tmp_path / "codes")


def test_files_that_are_no_gguf(folder, tmp_path):
    """Oracle: what the name promises."""
    for begin, expected in ((b"tjgg" + bytes(60), "a file of llama.cpp from before GGUF), expected a GGUF file; convert the model again"),
                            (b"version https://git-lfs.github.com/spec/v1\n", "found a pointer of Git LFS"),
                            (b"<!DOCTYPE html>", "the bytes 3c 21 44 4f (another format), expected a GGUF file"), (b"", "the file is cut off")):
        (tmp_path / "m.gguf").write_bytes(begin)
        text = strata("inspect", tmp_path / "m.gguf", code=1)
        assert expected in text and text.count("\n") == 1, text
    strata("convert", folder, tmp_path / "whole.gguf", "--to", "gguf")
    text = strata("convert", tmp_path / "whole.gguf", tmp_path / "out", "--to", "safetensors", code=1)
    assert "are written here and not read; name what it was made from" in text
    text = strata("merge-adapter", folder, tmp_path / "out", "--base_model", tmp_path / "whole.gguf", code=1)
    assert "whole.gguf: found a GGUF file" in text and not (tmp_path / "out").exists()


def test_a_header_longer_than_the_machine(tmp_path):
    """A file with a hole is as long as its end says, and takes no room."""
    import struct

    head = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k"
    for value in (struct.pack("<IQ", 8, 2**40), struct.pack("<IIQ", 9, 8, 2**36)):
        (tmp_path / "m.gguf").write_bytes(head + value)
        with open(tmp_path / "m.gguf", "r+b") as file:
            file.truncate(2**41)
        text = strata("inspect", tmp_path / "m.gguf", code=1)
        assert "m.gguf: found" in text and text.endswith("; use another file\n"), text


def test_a_model_of_whole_texts(folder):
    edit(folder, "config.json", lambda c: c.update(architectures=["LlamaForSequenceClassification"], id2label={"0": "a", "1": "b"}))
    assert "found a sequence classification model" in refuse(folder)


def test_weights_of_another_model(folder):
    edit(folder, "config.json", lambda c: c.update(intermediate_size=40))
    assert 'tensor "model.layers.0.mlp.gate_proj.weight" has shape [48, 32], config.json implies [40, 32]' in refuse(folder, code=1)
    edit(folder, "config.json", lambda c: c.update(intermediate_size=48, num_hidden_layers=1))
    assert "which config.json does not imply" in refuse(folder, code=1)


def test_a_number_that_float16_cannot_hold(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][7, 5] = 65520
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert 'tensor "token_embd.weight": found 65520, expected numbers up to 65504' in refuse(folder, "--dtype", "float16", code=1)


def test_the_name_of_a_folder(folder):
    for name in ("new/", "new/.", "new/.."):
        assert "found the name of a folder, expected that of a file" in refuse(folder, out=f"{folder.parent}/{name}")
        assert not (folder.parent / "new").exists()


def test_numbers_that_eight_bits_do_not_hold(folder):
    import safetensors.torch
    import torch

    state = safetensors.torch.load_file(folder / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    for value in (1e8, float("nan"), float("inf")):
        weights = {**state, name: state[name].clone()}
        weights[name][0, 1] = value
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        line = refuse(folder, "--dtype", "q8_0", code=1)
        assert "expected finite numbers up to 8320000, which q8_0 holds" in line, torch.tensor(value)


def test_a_file_that_is_there(folder):
    (folder.parent / "m.gguf").write_text("mine")
    assert "found something there already, expected no file" in refuse(folder, out=folder.parent / "m.gguf")
    assert (folder.parent / "m.gguf").read_text() == "mine"


def test_flags(folder):
    assert "llama-quantize" in refuse(folder, "--dtype", "q4_k_m")
    assert '--dtype: found "half", expected float32, bfloat16, float16 or q8_0' in refuse(folder, "--dtype", "half")
    assert "--max_shard_size: found with --to gguf" in refuse(folder, "--max_shard_size", "1GB")
    assert "--forget_base: found with --to gguf" in refuse(folder, "--forget_base")
    text = strata("convert", folder, folder.parent / "x", "--to", "safetensors", "--dtype", "q8_0", code=2)
    assert '--dtype: found "q8_0", expected float32, bfloat16 or float16' in text


def test_a_folder_that_takes_no_files(folder):
    text = refuse(folder, out="/proc/self/task/m.gguf", code=1)
    assert "/proc/self/task/m.gguf.tmp-" in text
