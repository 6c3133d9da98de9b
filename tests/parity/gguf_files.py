"""GGUF files of small models: made by the program, read by the `gguf` package."""

import json

import gguf
import numpy as np
from gguf import GGUFReader
from safetensors.torch import load_file

import tiny_llama
from running import strata

# Rows of whole blocks of 32, so that every matrix can be of Q8_0.
SIZES = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
GEMMA = dict(SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=7)
EXPERTS = dict(SIZES, num_experts_per_tok=2, router_aux_loss_coef=0.0)
MODELS = {
    "llama": dict(SIZES),
    "llama_tied": dict(SIZES, tie_word_embeddings=True),
    "llama3_rope": dict(SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    "llama_biases": dict(SIZES, head_dim=32, attention_bias=True, mlp_bias=True),
    "llama_linear": dict(SIZES, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)),
    "mistral": dict(SIZES, family="mistral", head_dim=32, sliding_window=None),
    "mixtral": dict(EXPERTS, family="mixtral", num_local_experts=4, sliding_window=None),
    "qwen2": dict(SIZES, family="qwen2", tie_word_embeddings=True),
    "qwen2_yarn": dict(SIZES, family="qwen2", rope_parameters=YARN),
    "qwen3": dict(SIZES, family="qwen3", head_dim=32),
    "qwen3_moe": dict(EXPERTS, family="qwen3_moe", head_dim=32, num_experts=5, moe_intermediate_size=32, norm_topk_prob=True),
    "gemma": dict(SIZES, family="gemma", head_dim=16),
    "gemma2": dict(GEMMA, family="gemma2", attn_logit_softcapping=20.0, final_logit_softcapping=10.0),
    "gemma3": dict(GEMMA, family="gemma3_text", num_hidden_layers=6),
    # As the sizes from 4B on.
    "gemma3_linear": dict(GEMMA, family="gemma3_text", num_hidden_layers=6, rope_parameters={
        "full_attention": dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
        "sliding_attention": dict(rope_type="default", rope_theta=10000.0)}),
    "phi3": dict(SIZES, family="phi3", original_max_position_embeddings=64),
    "phi3_longrope": dict(SIZES, family="phi3", original_max_position_embeddings=64, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.5, short_factor=[1.0, 1.1, 1.3, 1.4],
        long_factor=[1.5, 2.5, 4.0, 5.0])),
    "gpt2": dict(family="gpt2", n_embd=64, n_layer=2, n_head=4, n_inner=96),
}


def make_model(folder, name, **more):
    """The vocabulary is a little smaller than the embedding."""
    return tiny_llama.save_model(folder, **{"vocab_size": 330, **MODELS[name], **more})


def convert(folder, file, *flags):
    """What the program says."""
    return strata("convert", folder, file, "--to", "gguf", *flags)


def value(field):
    """A key's value as Python has it."""
    if field.types[0] == gguf.GGUFValueType.ARRAY:
        if field.types[-1] == gguf.GGUFValueType.STRING:
            return [bytes(field.parts[i]).decode() for i in field.data]
        return [field.parts[i][0].item() for i in field.data]
    if field.types[0] == gguf.GGUFValueType.STRING:
        return bytes(field.parts[-1]).decode()
    return field.parts[-1][0].item()


class File:
    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}
        self.keys = {name: value(field) for name, field in self.reader.fields.items() if not name.startswith("GGUF.")}
        self.architecture = self.keys["general.architecture"]

    def key(self, name):
        return self.keys[f"{self.architecture}.{name}"]

    def values(self, name):
        """A tensor in fp32."""
        tensor = self.tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def in_pairs(weight, heads):
    """Rows of queries or keys as llama.cpp's Llama turns them: channel i beside its partner of the other half."""
    size = len(weight) // heads
    order = [h * size + half * (size // 2) + i for h in range(heads) for i in range(size // 2) for half in range(2)]
    return weight[np.array(order)]


def name_map(architecture, config):
    arch = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    return gguf.get_tensor_name_map(arch, config["num_hidden_layers" if "num_hidden_layers" in config else "n_layer"])


def expected_tensors(folder, architecture):
    """By GGUF's names, as the package has them; experts of a layer above each other."""
    config = json.loads((folder / "config.json").read_text())
    names = name_map(architecture, config)
    expected = {}
    for name, weight in sorted(load_file(folder / "model.safetensors").items()):
        weight = weight.float().numpy()
        if architecture == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
            heads = "num_attention_heads" if ".q_proj." in name else "num_key_value_heads"
            weight = in_pairs(weight, config[heads])
        if architecture.startswith("gemma") and "norm" in name:
            weight = weight + np.float32(1)
        if architecture == "gpt2" and name.split(".")[-2].startswith("c_") and name.endswith("weight"):
            weight = weight.T
        module, part = name.rsplit(".", 1)
        words = module.split(".")
        if "experts" in words:
            place = words.index("experts")
            # The package knows them by the names of the stacked tensors.
            module = ".".join(words[:place + 1] + words[place + 2:]).replace("block_sparse_moe", "feed_forward")
            module = module.replace("model.layers", "layers") if "feed_forward" in module else module
            expected.setdefault(f"{names.get_name(module)}.{part}", []).append((int(words[place + 1]), weight))
        else:
            expected[f"{names.get_name(module)}.{part}"] = weight
    return {name: np.stack([w for _, w in sorted(weight, key=lambda pair: pair[0])]) if isinstance(weight, list) else weight
            for name, weight in expected.items()}
