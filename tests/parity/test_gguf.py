# Oracle: transformers loading the GGUF file (logits, to the bit), the `gguf` package (names of tensors, keys, codes of
# Q8_0), and the weights of the folder.
import json

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from gguf_files import MODELS, File, convert, expected_tensors, make_model
from running import base_flags, run_strata, strata

# Of these transformers reads no file.
UNREADABLE = {"gemma", "mixtral"}
TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder and the float32 file of a model, made on first use."""
    made = {}

    def file_of(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name) / "model"
            make_model(folder, name)
            said = convert(folder, folder.parent / "model.gguf")
            made[name] = folder, folder.parent / "model.gguf", said
        return made[name]

    return file_of


@pytest.mark.parametrize("name", MODELS)
def test_tensors_are_the_weights(files, name):
    folder, path, _ = files(name)
    file = File(path)
    expected = expected_tensors(folder, file.architecture)
    extra = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
    assert set(file.tensors) - extra == set(expected)
    for tensor, weight in expected.items():
        assert file.tensors[tensor].tensor_type == gguf.GGMLQuantizationType.F32
        assert np.array_equal(file.values(tensor).view(np.uint32), weight.view(np.uint32)), tensor
    assert all(tensor.data_offset % 32 == 0 for tensor in file.tensors.values())


@pytest.mark.parametrize("name", sorted(MODELS.keys() - UNREADABLE))
def test_transformers_computes_the_same(files, name):
    """With the folder's own config.json: of what it reads out of keys, transformers leaves out half. Mistral without windows
    is Llama, as which alone it reads a file."""
    folder, path, _ = files(name)
    config = AutoConfig.from_pretrained(folder)
    if config.model_type == "mistral":
        config = LlamaConfig.from_dict({**config.to_dict(), "model_type": "llama"})
    ids = torch.arange(3, 63)[None]
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, config=config, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(ours(ids).logits, theirs(ids).logits)


KEYS = {"context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads", "vocab_size": "vocab_size"}
# Beside those of all families but GPT-2.
OWN_KEYS = {
    "llama3_rope": {"rope.freq_base": 10000.0, "rope.dimension_count": 16},
    "llama_linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0},
    "mixtral": {"expert_count": 4, "expert_used_count": 2},
    "qwen2_yarn": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
                   "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0},
    "qwen3": {"attention.key_length": 32, "attention.value_length": 32},
    "qwen3_moe": {"expert_count": 5, "expert_used_count": 2, "expert_feed_forward_length": 32},
    "gemma2": {"attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0, "attention.sliding_window": 7},
    "gemma3": {"attention.sliding_window": 7, "rope.freq_base": 1000000.0, "rope.freq_base_swa": 10000.0},
    "gemma3_linear": {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base_swa": 10000.0},
    "phi3_longrope": {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 64, "rope.dimension_count": 8},
}


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"gpt2"}))
def test_keys_are_those_of_the_config(files, name):
    folder, path, _ = files(name)
    file, config = File(path), AutoConfig.from_pretrained(folder)
    for key, setting in KEYS.items():
        assert file.key(key) == getattr(config, setting), key
    assert file.key("attention.layer_norm_rms_epsilon") == np.float32(config.rms_norm_eps)
    for key, expected in OWN_KEYS.get(name, {}).items():
        assert file.key(key) == expected, key
    assert file.keys["general.file_type"] == gguf.LlamaFileType.ALL_F32


def test_keys_of_gpt2(files):
    file = File(files("gpt2")[1])
    assert {key: file.key(key) for key in ("context_length", "embedding_length", "block_count", "attention.head_count",
                                          "feed_forward_length")} == {
        "context_length": 128, "embedding_length": 64, "block_count": 2, "attention.head_count": 4, "feed_forward_length": 96}
    assert file.key("attention.layer_norm_epsilon") == np.float32(1e-5)


def inverse_frequencies(config, seq_len=None):
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    kind = config.rope_parameters["rope_type"]
    return ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=seq_len)


def test_factors_of_llama3(files):
    """The frequencies that llama.cpp divides by them are transformers'."""
    folder, path, _ = files("llama3_rope")
    config = AutoConfig.from_pretrained(folder)
    plain = 1 / 10000.0 ** (torch.arange(0, 16, 2).double() / 16)
    factors = torch.tensor(File(path).values("rope_freqs.weight"))
    assert factors.min() == 1 and factors.max() == 8 and len(set(factors.tolist())) > 3
    torch.testing.assert_close(plain / factors.double(), inverse_frequencies(config)[0].double(), rtol=3e-7, atol=0)


def test_factors_of_longrope(files):
    folder, path, said = files("phi3_longrope")
    assert "takes long_factor wherever its context (-c) has more than 64 tokens" in said
    config, file = AutoConfig.from_pretrained(folder), File(path)
    for kind in ("long", "short"):
        factors = np.float32(config.rope_parameters[f"{kind}_factor"])
        assert np.array_equal(file.values(f"rope_factors_{kind}.weight"), factors)
    assert file.key("rope.scaling.attn_factor") == pytest.approx(inverse_frequencies(config, 8)[1], rel=1e-6)


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("flag", [None, *TYPES])
def test_types(tmp_path, stored, flag):
    """Matrices are of the type asked for, else of the folder's; vectors stay in fp32. The rounding is the package's."""
    folder = make_model(tmp_path / "model", "qwen3_moe", dtype=stored)
    convert(folder, tmp_path / "m.gguf", *(["--dtype", flag] if flag else []))
    file, kind = File(tmp_path / "m.gguf"), gguf.GGMLQuantizationType[TYPES[flag or stored]]
    file_types = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "BF16": "MOSTLY_BF16", "Q8_0": "MOSTLY_Q8_0"}
    assert file.keys["general.file_type"] == gguf.LlamaFileType[file_types[kind.name]]
    expected = expected_tensors(folder, file.architecture)
    assert set(file.tensors) == set(expected)
    for name, weight in expected.items():
        stays = weight.ndim < 2 or "ffn_gate_inp" in name
        wanted = gguf.GGMLQuantizationType.F32 if stays else kind
        assert file.tensors[name].tensor_type == wanted, name
        assert np.array_equal(file.tensors[name].data.view(np.uint8), gguf.quants.quantize(weight, wanted).view(np.uint8)), name


def test_codes_of_every_kind_of_block(tmp_path):
    """Zeros, halves on both sides, the largest and smallest numbers, and a row that is no whole number of blocks."""
    folder = make_model(tmp_path / "model", "llama", intermediate_size=80)
    file = folder / "model.safetensors"
    weights = load_file(file)
    halves = torch.arange(-16, 16) + 0.5
    halves[0] = 127
    rows = torch.stack([torch.zeros(32), halves, -halves, torch.full((32,), 1e-30), torch.full((32,), 3e-5),
                        torch.linspace(-9e4, 8e4, 32), -torch.zeros(32), torch.eye(32)[3] * -7])
    weights["lm_head.weight"][:8, :32] = rows
    save_file(weights, file, {"format": "pt"})
    said = convert(folder, tmp_path / "m.gguf", "--dtype", "q8_0")
    assert "3 tensors in F16: rows are no multiple of 32 for Q8_0" in said
    made = File(tmp_path / "m.gguf")
    expected = gguf.quants.quantize(weights["lm_head.weight"].numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(made.tensors["output.weight"].data, expected)
    down = weights["model.layers.0.mlp.down_proj.weight"].numpy()
    assert made.tensors["blk.0.ffn_down.weight"].tensor_type == gguf.GGMLQuantizationType.F16
    assert np.array_equal(made.tensors["blk.0.ffn_down.weight"].data, down.astype(np.float16))


def test_second_name_of_the_embedding_is_left_out(tmp_path):
    folder = make_model(tmp_path / "model", "llama_tied")
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, file, {"format": "pt"})
    convert(folder, tmp_path / "tied.gguf")
    assert "output.weight" not in File(tmp_path / "tied.gguf").tensors
    weights["lm_head.weight"][5, 3] += 1
    save_file(weights, file, {"format": "pt"})
    convert(folder, tmp_path / "own.gguf")
    assert np.array_equal(File(tmp_path / "own.gguf").values("output.weight"), weights["lm_head.weight"].numpy())


def test_a_checkpoint_of_a_run(inputs, tmp_path):
    """As the safetensors that are made of it, and without its optimizer."""
    folder = make_model(tmp_path / "model", "qwen2")
    run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "run", max_steps=2, save_strategy="steps", save_steps=2))
    said = convert(tmp_path / "run" / "checkpoint-2", tmp_path / "new" / "m.gguf")
    assert "the optimizer's state is left out" in said and str(tmp_path / "new" / "m.gguf") in said
    strata("convert", tmp_path / "run" / "checkpoint-2", tmp_path / "folder", "--to", "safetensors")
    file = File(tmp_path / "new" / "m.gguf")
    assert file.keys["general.name"] == "run"
    for name, weight in expected_tensors(tmp_path / "folder", "qwen2").items():
        assert np.array_equal(file.values(name), weight), name


def test_the_file_is_the_same_each_time(files, tmp_path):
    folder, path, _ = files("gemma2")
    convert(folder, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["again.gguf"]


def test_inspect(files):
    folder, path, _ = files("qwen2")
    file = File(path)
    listing = json.loads(strata("inspect", path, "--json"))
    assert listing["format"] == "GGUF version 3"
    assert {t["name"]: (t["dtype"], t["shape"]) for t in listing["tensors"]} == {
        name: (tensor.tensor_type.name, tensor.shape[::-1].tolist()) for name, tensor in file.tensors.items()}
    for key, found in listing["keys"].items():
        expected = file.keys[key]
        assert found == ({"count": len(expected), "first": expected[:4]} if isinstance(expected, list) else expected), key
    assert set(listing["keys"]) == set(file.keys)
    lines = strata("inspect", path).splitlines()
    assert lines[0] == f"{path}: GGUF version 3" and "  qwen2.block_count: 3" in lines
    assert f"  ... {len(file.tensors) - 12} more (--all)" in lines
    assert not any("more (--all)" in line for line in strata("inspect", path, "--all").splitlines())
