"""Oracle: transformers' hybrids and Llama 4 at the corners of their settings."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import run_probe
from test_generate import make_model, reference_ids
from test_generate import run_probe as generate
from test_llama import compare

CORNERS = {
    "lfm2_many_taps": (dict(family="lfm2", conv_L_cache=9), (2, 1, 9, 8, 3, 20)),
    "lfm2_odd_heads": (dict(family="lfm2", hidden_size=27, head_dim=2, num_attention_heads=3, num_key_value_heads=1), (1, 5)),
    "lfm2_one_token": (dict(family="lfm2"), (1,)),
    "granite_one_token": (dict(family="granitemoehybrid"), (1,)),
    "granite_many_taps": (dict(family="granitemoehybrid", mamba_d_conv=9), (2, 1, 9, 8, 3, 20)),
    "granite_one_tap": (dict(family="granitemoehybrid", mamba_d_conv=1), (2, 1, 9)),
    "granite_odd": (dict(family="granitemoehybrid", hidden_size=27, num_attention_heads=3, num_key_value_heads=1, mamba_expand=1, mamba_n_heads=3, mamba_n_groups=3,
                         mamba_d_state=1, head_dim=6, vocab_size=99), (65, 64, 63, 1, 2)),
    "granite_one_channel": (dict(family="granitemoehybrid", mamba_expand=1, mamba_n_heads=32, mamba_n_groups=1, mamba_d_state=3), (5, 1, 33)),
    "granite_bounds": (dict(family="granitemoehybrid", time_step_limit=(0.0, 0.6), mamba_n_groups=1), (5, 1, 33)),
    "granite_never": (dict(family="granitemoehybrid", time_step_limit=(0.3, 0.3), mamba_n_groups=1), (5, 1, 33)),
    "granite_nulls": (dict(family="granitemoehybrid", mamba_conv_bias=None, mamba_proj_bias=None, attention_multiplier=None), (5, 1, 33)),
    "granite_mixed_up": (dict(family="granitemoehybrid", time_step_limit=(0.6, 0.3), mamba_n_groups=1), (5, 1, 33)),
}


def corner_equals_transformers(folder, settings, lengths):
    save_checkpoint(folder, **{"max_position_embeddings": 128, **settings})
    model = AutoModelForCausalLM.from_pretrained(folder)
    documents = make_documents(lengths, masked=0)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(folder, documents=documents)
    compare(tensors, model, loss, logits, 2e-5)


@pytest.mark.parametrize("name", CORNERS)
def test_corners(tmp_path, name):
    corner_equals_transformers(tmp_path, *CORNERS[name])


def test_infinity_as_older_programs_write_it(tmp_path):
    save_checkpoint(tmp_path, family="granitemoehybrid", time_step_limit=(0.7, float("inf")))
    documents = make_documents((23, 1, 9))
    expected = run_probe(tmp_path, documents=documents)[0]["logits"].clone()
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    assert config["time_step_limit"] != [0.7, float("inf")]
    file.write_text(json.dumps(dict(config, time_step_limit=[0.7, float("inf")])))
    assert "Infinity]" in file.read_text()
    assert torch.equal(run_probe(tmp_path, documents=documents)[0]["logits"], expected)


def test_router_that_is_sure(tmp_path):
    """Llama 4 chooses by logits: sigmoids of large ones are all 1."""
    save_checkpoint(tmp_path, family="llama4_text")
    weights = load_file(tmp_path / "model.safetensors")
    for name in weights:
        if name.endswith("router.weight"):
            weights[name] *= 200
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents((23, 1, 16))
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, logits, 1e-5)


@pytest.mark.parametrize("family", ["lfm2", "granitemoehybrid", "llama4_text"])
def test_greedy_ids_after_prompts_of_several_parts(tmp_path, family):
    settings = dict(family=family, max_position_embeddings=1200)
    if family == "llama4_text":
        settings["intermediate_size"] = 16  # grouped products need multiples of 16 bytes
    model, _ = make_model(tmp_path, settings, None)
    generator = torch.Generator().manual_seed(4)
    prompts = [torch.randint(0, 97, (n,), generator=generator).tolist() for n in (513, 1, 512, 1025, 2, 3)]
    expected = [reference_ids(model, prompt) for prompt in prompts]
    assert generate(tmp_path, model=str(tmp_path), prompts=prompts, max_new_tokens=24) == expected
