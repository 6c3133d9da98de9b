"""Oracle: transformers' language models of Llama 4, and PEFT."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

import tiny_llama
from llama_reference import LLAMA3, make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from running import base_flags, run_strata, strata
from test_gpt2 import edit_config
from test_llama import DYNAMIC, ROPE_500, YARN, compare
from test_lora import probe_name, randomise
from test_rotary_decoders import closeness_of_bfloat16
from test_text_model import VISION, logits

# Documents of one chunk, of a part of one, of two and a part; queries grow from position 7, 15, 23 on.
LENGTHS = (23, 1, 16, 40)
FAST = dict(rope_type="default", rope_theta=10.0)
FAMILY = dict(family="llama4_text")
CONFIGS = {
    "plain": dict(FAMILY, num_key_value_heads=2, rope_parameters=ROPE_500),
    "as_scout": dict(FAMILY, num_key_value_heads=1, interleave_moe_layer_step=1, rope_parameters=dict(LLAMA3, high_freq_factor=1.0)),
    "as_maverick": dict(FAMILY, use_qk_norm=False, num_local_experts=33, num_hidden_layers=4, no_rope_layer_interval=4, rope_parameters=FAST),
    "biases": dict(FAMILY, attention_bias=True, no_rope_layers=[1, 1, 1], num_attention_heads=1, num_key_value_heads=1, num_experts_per_tok=2, vocab_size=101,
                   tie_word_embeddings=True, pad_token_id=5, rope_parameters=YARN),
    "named_layers": dict(FAMILY, no_rope_layers=[0, 1, 1], moe_layers=[0, 2], layer_types=["chunked_attention", "full_attention", "chunked_attention"],
                         attention_chunk_size=3, head_dim=10, num_experts_per_tok=3, rope_parameters=DYNAMIC),
    "long_chunks": dict(FAMILY, attention_chunk_size=64, floor_scale=1, hidden_size=30, head_dim=10, num_attention_heads=3, num_key_value_heads=3),
    "all_of_three": dict(FAMILY, num_local_experts=3, num_experts_per_tok=3, interleave_moe_layer_step=1, num_key_value_heads=2, rope_parameters=FAST),
    "without_experts": dict(FAMILY, moe_layers=[], attention_chunk_size=5, attn_temperature_tuning=False, rope_parameters=FAST),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    documents = make_documents(LENGTHS)
    loss, expected = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents)
    compare(tensors, model, loss, expected, 1e-5)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


def test_chunks_matter(tmp_path):
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    documents = make_documents(LENGTHS)
    short, _ = run_probe(tmp_path, documents=documents)
    short = short["logits"].clone()
    edit_config(tmp_path, attention_chunk_size=64)
    long, _ = run_probe(tmp_path, documents=documents)
    differing = (short - long["logits"]).abs().amax(1) > 1e-4
    # Of documents that are no longer than a chunk, and of each first chunk, nothing changes.
    first = torch.cat([torch.arange(length) < 16 for length in LENGTHS])
    assert not differing[first].any() and differing[~first].float().mean() > 0.9


@pytest.mark.parametrize("name", ["all_of_three", "without_experts"])
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    ours, theirs = closeness_of_bfloat16(tmp_path, CONFIGS[name])
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("name", ["plain", "named_layers"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_checkpoint(tmp_path, **CONFIGS[name])
    documents = make_documents(LENGTHS)
    plain, _ = run_probe(tmp_path, documents=documents, checkpoint=False)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, documents=documents, checkpoint=True)
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("targets", [dict(target_modules=["q_proj", "o_proj", "shared_expert.up_proj", "feed_forward.down_proj"]),
                                     dict(target_modules=["v_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
                                     dict(target_modules=["k_proj"], target_parameters=["1.feed_forward.experts.down_proj"]),
                                     dict(target_modules=["v_proj"], modules_to_save=["experts"])])
def test_adapters_equal_those_of_peft_and_merge(tmp_path, targets):
    """PEFT takes the experts' matrices for transposed ones: its A has their outputs."""
    lora = dict(targets, r=3, lora_alpha=5)
    save_checkpoint(tmp_path, **CONFIGS["plain"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path), LoraConfig(**lora, task_type="CAUSAL_LM"))
    randomise(model, 0.1)
    adapter = tmp_path / "adapter"
    model.save_pretrained(adapter)
    documents = make_documents(LENGTHS)
    loss, expected_logits = run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, lora=lora, adapter=str(adapter))
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], expected_logits)}
    expected = {"grad:" + probe_name(name): p.grad for name, p in model.named_parameters() if p.requires_grad}
    assert {key for key in tensors if key.startswith("grad:")} == set(expected)
    for key, gradient in expected.items():
        errors[key] = relative_error(tensors[key], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    strata("merge-adapter", adapter, tmp_path / "found", "--base_model", tmp_path)
    model.merge_and_unload().save_pretrained(tmp_path / "expected")
    merged, found = (load_file(tmp_path / f / "model.safetensors") for f in ("expected", "found"))
    assert found.keys() == merged.keys()
    assert all(relative_error(found[key], weight) < 1e-6 for key, weight in merged.items())


def test_a_language_model_is_taken_out_and_trained(inputs, tmp_path):
    """Out of a whole model under the names of published files; a run of it loads in transformers."""
    text = {key: value for key, value in tiny_llama.LLAMA4.items() if key != "family"}
    size = tiny_llama.save_tokenizer(tmp_path / "whole")
    torch.manual_seed(0)
    config = CONFIG_MAPPING["llama4"](
        text_config=dict(text, model_type="llama4_text", vocab_size=size, max_position_embeddings=128, bos_token_id=None, eos_token_id=2, pad_token_id=0),
        vision_config=dict({key: VISION[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "image_size", "patch_size")},
                           num_attention_heads=2, vision_output_dim=16, projector_input_dim=16, projector_output_dim=16))
    whole = AutoModelForImageTextToText.from_config(config).eval()
    whole.save_pretrained(tmp_path / "whole")
    assert any(name.startswith("language_model.model.layers.1.feed_forward.experts.gate_up") for name in load_file(tmp_path / "whole/model.safetensors"))
    strata("convert", tmp_path / "whole", tmp_path / "text", "--to", "text-model")
    ids = torch.randint(3, size, (2, 40))
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "text"), ids), logits(whole, ids))
    run = run_strata(base_flags(tmp_path / "text", inputs.data("messages"), tmp_path / "out", max_steps=2), 2)
    model, info = AutoModelForCausalLM.from_pretrained(run.folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info


@pytest.mark.parametrize("change,message", [
    (dict(attention_chunk_size=None), "found attention_chunk_size = None, expected a value"),
    (dict(attention_chunk_size=0), "found attention_chunk_size = 0, expected an integer of at least 1"),
    (dict(attn_temperature_tuning=None), "found attn_temperature_tuning = None, expected a value"),
    (dict(no_rope_layers=[1, 0]), "expected a list of num_hidden_layers = 3 integers"),
    (dict(layer_types=["chunked_attention"]), "expected a list of num_hidden_layers = 3 texts"),
    (dict(layer_types=["sliding_attention"] * 3), 'found "sliding_attention" in layer_types, expected full_attention or chunked_attention'),
    (dict(moe_layers="all"), "expected a list of numbers of layers"),
    (dict(moe_layers=[0]), 'found no tensor "model.layers.0.feed_forward.experts.'),
    (dict(num_experts_per_tok=6), "found num_experts_per_tok = 6, expected at most num_local_experts = 5"),
    (dict(hidden_act="gelu"), 'found hidden_act "gelu", expected "silu"'),
    (dict(num_key_value_heads=3), "found num_key_value_heads = 3, expected a divisor of"),
])
def test_what_is_refused(tmp_path, change, message):
    save_checkpoint(tmp_path, **FAMILY)
    edit_config(tmp_path, **change)
    run, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert run.returncode != 0 and message in run.stderr, run.stderr


def test_first_values_of_branches_of_experts_are_those_of_peft(tmp_path):
    save_checkpoint(tmp_path, **FAMILY)
    settings = dict(target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"], r=3)
    torch.manual_seed(11)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path), LoraConfig(**settings, task_type="CAUSAL_LM"))
    tensors, _ = run_probe(tmp_path, documents=make_documents((4,)), lora=settings, seed=11)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("experts" in name for name in trained)
    for name, parameter in trained.items():
        assert torch.equal(tensors["init:" + probe_name(name)].float(), parameter.float()), name
