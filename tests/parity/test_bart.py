"""Oracle: transformers' BartForConditionalGeneration: logits, loss, the gradient of every parameter, greedy answers; PEFT over it."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from test_t5 import LENGTHS, VOCABULARY, compare, inputs_of, padded, run_probe, run_probe_raw
from test_t5 import make_pairs as make_pairs_of_t5
from tiny_bart import save_bart

CONFIGS = {
    "plain": {},
    "odd": dict(d_model=30, encoder_attention_heads=5, decoder_attention_heads=2, encoder_layers=1, decoder_layers=3, encoder_ffn_dim=17),
    "scaled": dict(scale_embedding=True, activation_function="relu", pad_token_id=5, decoder_start_token_id=0),
    "gelu_new": dict(activation_function="gelu_new", encoder_layers=3, decoder_layers=1, encoder_attention_heads=1),
}
LONG = ((40, 3), (2, 40), (17, 33))


def make_pairs(lengths, seed=1):
    """Labels of the reference's masked places are padding to the decoder."""
    return make_pairs_of_t5(lengths, seed, masked=0.0)


def save(folder, **settings):
    return save_bart(folder, tokenizer=False, vocab_size=VOCABULARY, **settings)


def run_reference(model, pairs):
    model.eval()
    labels = padded([pair["target"] for pair in pairs], -100)
    output = model(**inputs_of(pairs), labels=labels)
    model.zero_grad()
    output.loss.backward()
    mask = padded([[1] * len(pair["target"]) for pair in pairs], 0).bool()
    return output.loss.detach(), output.logits.detach()[mask]


def compare_bart(tensors, model, loss, logits, limit=1e-5):
    """Biases of keys have no gradient but that of rounding."""
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.bias") and "grad:" + name in tensors:
            of_values = dict(model.named_parameters())[name.replace("k_proj", "v_proj")].grad.norm()
            assert tensors["grad:" + name].norm() < 1e-5 * of_values
            tensors["grad:" + name] = parameter.grad.clone()
    compare(tensors, model, loss, logits, limit)


@pytest.mark.parametrize("name,checkpointing", [*((name, "full") for name in CONFIGS), ("plain", "none"), ("plain", "selective"),
                                                ("plain", "attention")])
def test_equals_transformers(tmp_path, name, checkpointing):
    save(tmp_path, **CONFIGS[name])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    pairs = make_pairs(LENGTHS)
    loss, logits = run_reference(model, pairs)
    tensors, report = run_probe(tmp_path, pairs=pairs, checkpointing=checkpointing)
    compare_bart(tensors, model, loss, logits)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


def test_the_longest_texts(tmp_path):
    save(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    pairs = make_pairs(LONG)
    loss, logits = run_reference(model, pairs)
    compare_bart(run_probe(tmp_path, pairs=pairs, max_new_tokens=40)[0], model, loss, logits)
    for lengths, words in (((41, 3), "max_source_length: found a source of 41 tokens"), ((3, 41), "max_target_length: found a target of 41")):
        process, _ = run_probe_raw(tmp_path, pairs=make_pairs([lengths]))
        assert process.returncode == 2 and words in process.stderr
    process, _ = run_probe_raw(tmp_path, pairs=make_pairs(LONG), max_new_tokens=41, eos=-5)
    assert process.returncode == 2 and "generation_max_length: found an answer of 41 tokens, expected at most 40" in process.stderr


@pytest.mark.parametrize("forced", [{}, dict(forced_bos_token_id=7), dict(forced_eos_token_id=2), dict(forced_bos_token_id=0, forced_eos_token_id=9)],
                         ids=lambda forced: "-".join(["greedy", *forced]))
@pytest.mark.parametrize("name", ["plain", "scaled"])
def test_greedy_answers(tmp_path, name, forced):
    save(tmp_path, **CONFIGS[name])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    pairs = make_pairs(LENGTHS)
    wanted = {"forced_bos_token_id": None, "forced_eos_token_id": None, **forced}
    _, report = run_probe(tmp_path, pairs=pairs, max_new_tokens=11, eos=2,
                          **{key.removesuffix("_token_id"): value for key, value in wanted.items() if value is not None})
    model.generation_config.update(**wanted)
    expected = model.generate(**inputs_of(pairs), max_new_tokens=11, do_sample=False, num_beams=1)
    for answer, ids in zip(report["answers"], expected.tolist()):
        ids = ids[1:]
        assert answer == (ids[:ids.index(2) + 1] if 2 in ids else ids)


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_dropout_is_the_same_in_recomputation(tmp_path, rate):
    save(tmp_path, **{rate: 0.3})
    pairs = make_pairs(LENGTHS)
    kept, _ = run_probe(tmp_path, pairs=pairs, training=True)
    for checkpointing in ("selective", "attention", "full"):
        again, _ = run_probe(tmp_path, pairs=pairs, training=True, checkpointing=checkpointing)
        assert all(torch.equal(kept[name], again[name]) for name in kept)
    off, _ = run_probe(tmp_path, pairs=pairs)
    assert abs(kept["loss"] - off["loss"]) > 1e-3


@pytest.mark.parametrize("settings", [
    dict(target_modules=["q_proj", "v_proj"]), dict(target_modules=["fc2", "out_proj"], use_dora=True),
    dict(target_modules=["encoder_attn.k_proj", "encoder_attn.v_proj"]),
    dict(peft_type="IA3", target_modules=["q_proj", "v_proj", "fc2"], feedforward_modules=["fc2"])],
    ids=lambda settings: "-".join([*settings, *settings["target_modules"]]))
def test_adapter_equals_peft(tmp_path, settings):
    import re

    from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
    settings = dict(settings)
    save(tmp_path)
    config = (IA3Config(task_type="SEQ_2_SEQ_LM", **settings) if settings.pop("peft_type", "") else
              LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=16, **settings))
    model = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(tmp_path), config)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "ia3" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(tmp_path), tmp_path / "adapter", is_trainable=True)
    pairs = make_pairs(LENGTHS)
    loss, logits = run_reference(loaded, pairs)
    tensors, _ = run_probe(tmp_path, pairs=pairs, checkpointing="full", adapter=str(tmp_path / "adapter"))
    own = re.compile(r"\.(lora_[AB]|ia3_l|lora_magnitude_vector)\b")
    tensors = {own.sub(r".\1.default", k): v for k, v in tensors.items()}
    tensors = {k + ".weight" if k.endswith("vector.default") else k: v for k, v in tensors.items()}
    compare(tensors, loaded, loss, logits, 1e-5)


def weights_of(folder):
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def test_names_that_files_have(tmp_path):
    """A body alone, the embedding under all its names, buffers; an output layer of its own."""
    save(tmp_path)
    pairs = make_pairs(LENGTHS)
    expected, _ = run_probe(tmp_path, pairs=pairs)
    weights = weights_of(tmp_path)
    assert weights["final_logits_bias"].count_nonzero() == 0  # as published
    bare = {name.removeprefix("model."): value for name, value in weights.items() if name.startswith("model.")}
    every = weights | {name: weights["model.shared.weight"].clone() for name in (
        "lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")}
    for names in (bare, every, every | {"model.encoder.version": torch.ones(1)}):
        save_file(names, tmp_path / "model.safetensors", {"format": "pt"})
        found, report = run_probe(tmp_path, pairs=pairs)
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert "lm_head.weight" not in report["parameters"]
    save_file(every | {"lm_head.weight": torch.randn(VOCABULARY, 24)}, tmp_path / "model.safetensors", {"format": "pt"})
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert not torch.equal(model.lm_head.weight, model.model.shared.weight)
    loss, logits = run_reference(model, pairs)
    compare_bart(run_probe(tmp_path, pairs=pairs)[0], model, loss, logits)


def test_what_adds_to_logits_is_refused(tmp_path):
    save(tmp_path)
    save_file(weights_of(tmp_path) | {"final_logits_bias": torch.ones(1, VOCABULARY)}, tmp_path / "model.safetensors", {"format": "pt"})
    process, _ = run_probe_raw(tmp_path, pairs=make_pairs(LENGTHS))
    assert process.returncode == 2 and 'found "final_logits_bias" with other values than 0' in process.stderr


@pytest.mark.parametrize("change,message", [
    (dict(activation_function="tanh"), 'found activation_function "tanh", expected gelu_new'),
    (dict(encoder_layerdrop=1.0), "found encoder_layerdrop = 1, expected a number from 0 on"),
    (dict(decoder_attention_heads=5), "found d_model = 24, expected a multiple of decoder_attention_heads = 5"),
    (dict(decoder_start_token_id=None), "found decoder_start_token_id = null, expected a token"),
    (dict(decoder_start_token_id=VOCABULARY), f"found decoder_start_token_id = {VOCABULARY}, expected a token"),
    (dict(is_encoder_decoder=False), "found is_encoder_decoder false, expected true"),
    (dict(tie_word_embeddings=False), "found tie_word_embeddings false, expected true"),
    (dict(dropout=1.0), "found dropout = 1, expected a number from 0 on"),
    (dict(decoder_ffn_dim=9), "config.json implies [9, 24]"),
])
def test_wrong_config_is_named(tmp_path, change, message):
    save(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    process, _ = run_probe_raw(tmp_path, pairs=make_pairs(LENGTHS))
    assert process.returncode in (1, 2)
    assert message in process.stderr
