"""Checkpoints of true shapes with random weights, made on the GPU, and rows of random tokens."""

import json
import pathlib
import random

import torch
from safetensors.torch import save_file


def tensors_of(c):
    """(name, shape, standard deviation; None: ones), in the order of the checkpoint."""
    hidden, inner, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]
    heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
    head = c.get("head_dim", hidden // heads)
    yield "model.embed_tokens.weight", (vocab, hidden), 0.02
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", (heads * head, hidden)), ("self_attn.k_proj", (kv * head, hidden)),
                            ("self_attn.v_proj", (kv * head, hidden)), ("self_attn.o_proj", (hidden, heads * head)),
                            ("mlp.gate_proj", (inner, hidden)), ("mlp.up_proj", (inner, hidden)),
                            ("mlp.down_proj", (hidden, inner))):
            yield layer + name + ".weight", shape, 0.02
        if c["model_type"] == "qwen3":
            yield layer + "self_attn.q_norm.weight", (head,), None
            yield layer + "self_attn.k_norm.weight", (head,), None
        yield layer + "input_layernorm.weight", (hidden,), None
        yield layer + "post_attention_layernorm.weight", (hidden,), None
    yield "model.norm.weight", (hidden,), None
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", (vocab, hidden), 0.02


def save_model(folder, config, device, shard_bytes=4 << 30):
    """Files of at most about 4 GB, so that little of the model is in host memory at once."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    shards, sizes, index = [{}], [0], {}
    for name, shape, deviation in tensors_of(config):
        value = torch.ones(shape, dtype=torch.bfloat16, device=device) if deviation is None else torch.empty(
            shape, dtype=torch.bfloat16, device=device).normal_(std=deviation)
        if sizes[-1] + value.nbytes > shard_bytes:
            write_shard(folder, len(shards) - 1, shards[-1])
            shards[-1] = None
            shards.append({})
            sizes.append(0)
        shards[-1][name] = value.cpu()
        sizes[-1] += value.nbytes
        index[name] = shard_name(len(shards) - 1)
    write_shard(folder, len(shards) - 1, shards[-1])
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": sum(sizes)}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def shard_name(number):
    return f"model-{number:05d}.safetensors"


def write_shard(folder, number, tensors):
    save_file(tensors, folder / shard_name(number), metadata={"format": "pt"})


def save_tokenizer(folder):
    """One word a byte: the rows below are numbers already, but a checkpoint has a tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{c: i + 2 for i, c in enumerate(alphabet)}}
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>")
    fast.save_pretrained(folder)


def save_rows(path, vocabulary, length, count):
    rng = random.Random(0)
    with open(path, "w") as file:
        for _ in range(count):
            file.write(json.dumps({"input_ids": [rng.randrange(2, vocabulary) for _ in range(length)]}) + "\n")
