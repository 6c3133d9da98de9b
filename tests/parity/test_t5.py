"""Oracle: transformers' T5, MT5 and UMT5ForConditionalGeneration: logits, loss, the gradient of every parameter,
greedy answers."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, T5ForConditionalGeneration

from probe import BUILD, relative_error
from tiny_t5 import GATED, save_t5

VOCABULARY = 101
LENGTHS = ((7, 4), (1, 1), (12, 9), (3, 2))
CONFIGS = {
    "plain": {},
    "v1_1": dict(GATED, own_head=True, original_keys=True),
    "v1_1_saved_by_transformers_5": dict(GATED, own_head=True),
    "gated_tied_unscaled": GATED,
    "scaled_with_own_head": dict(own_head=True),
    "one_head": dict(num_heads=1, d_kv=5, num_decoder_layers=1),
    "one_layer_each": dict(num_layers=1, feed_forward_proj="gated-silu"),
    "few_buckets": dict(relative_attention_num_buckets=6, relative_attention_max_distance=7,
                        feed_forward_proj="gelu_new", layer_norm_epsilon=1e-3),
    "mt5": dict(family="MT5", feed_forward_proj="gated-gelu", own_head=True),
    "mt5_tied": dict(family="MT5", feed_forward_proj="relu", num_decoder_layers=1),
    "umt5": dict(family="UMT5", feed_forward_proj="gated-gelu", own_head=True, num_layers=3, num_decoder_layers=2),
    "umt5_few_buckets": dict(family="UMT5", num_heads=1, d_kv=5, relative_attention_num_buckets=6,
                             relative_attention_max_distance=7),
}
LONG = ((190, 3), (2, 170), (40, 33))


def make_pairs(lengths, seed=1, masked=0.2):
    generator = torch.Generator().manual_seed(seed)
    pairs = []
    for source, target in lengths:
        ids = torch.randint(3, VOCABULARY, (source + target,), generator=generator)
        labels = ids[source:].clone()
        labels[torch.rand(target, generator=generator) < masked] = -100
        labels[-1] = 1
        pairs.append({"source": ids[:source].tolist(), "target": labels.tolist()})
    return pairs


def padded(rows, value):
    length = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (length - len(row)) for row in rows])


def inputs_of(pairs):
    ids = padded([pair["source"] for pair in pairs], 0)
    mask = padded([[1] * len(pair["source"]) for pair in pairs], 0)
    return {"input_ids": ids, "attention_mask": mask}


def run_reference(model, pairs):
    """Loss, logits of all target tokens in order, gradients left in the model. Dropout is off."""
    model.eval()
    labels = padded([pair["target"] for pair in pairs], -100)
    output = model(**inputs_of(pairs), labels=labels)
    model.zero_grad()
    output.loss.backward()
    mask = padded([[1] * len(pair["target"]) for pair in pairs], 0).bool()
    return output.loss.detach(), output.logits.detach()[mask]


def run_probe_raw(folder, **request):
    folder = pathlib.Path(folder)
    request_file, output = folder / "request.json", folder / "probe.safetensors"
    request_file.write_text(json.dumps({"model": str(folder), **request}))
    return subprocess.run([BUILD / "seq2seq_probe", request_file, output], capture_output=True,
                          text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"}), output


def run_probe(folder, **request):
    process, output = run_probe_raw(folder, **request)
    assert process.returncode == 0, process.stderr
    return {k: v.clone() for k, v in load_file(output).items()}, json.loads(process.stdout)


def compare(tensors, model, loss, logits, limit):
    errors = {"loss": relative_error(tensors["loss"], loss),
              "logits": relative_error(tensors["logits"], logits)}
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        errors[name] = relative_error(tensors["grad:" + name], parameter.grad)
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + n for n in trained}
    worst = max(errors, key=errors.get)
    assert errors[worst] < limit, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("name,checkpointing", [
    *((name, "full") for name in CONFIGS), ("plain", "none"), ("plain", "selective"),
    ("v1_1", "none"), ("v1_1", "selective"), ("v1_1", "attention"), ("umt5", "none"), ("umt5", "selective"),
    ("umt5", "attention")])
def test_equals_transformers(tmp_path, name, checkpointing):
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY, **CONFIGS[name])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    pairs = make_pairs(LENGTHS)
    loss, logits = run_reference(model, pairs)
    tensors, report = run_probe(tmp_path, pairs=pairs, checkpointing=checkpointing)
    compare(tensors, model, loss, logits, 1e-5)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", ["plain", "v1_1", "umt5"])
def test_distances_beyond_the_last_bucket(tmp_path, name):
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY, **CONFIGS[name])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    pairs = make_pairs(LONG)
    loss, logits = run_reference(model, pairs)
    tensors, _ = run_probe(tmp_path, pairs=pairs, checkpointing="full")
    compare(tensors, model, loss, logits, 1e-5)


@pytest.mark.parametrize("name", ["plain", "v1_1", "one_head", "mt5", "umt5"])
def test_greedy_answers(tmp_path, name):
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY, **CONFIGS[name])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    pairs = make_pairs(LENGTHS)
    _, report = run_probe(tmp_path, pairs=pairs, max_new_tokens=11)
    expected = model.generate(**inputs_of(pairs), max_new_tokens=11, do_sample=False, num_beams=1)
    for answer, ids in zip(report["answers"], expected.tolist()):
        ids = ids[1:]
        assert answer == (ids[:ids.index(1) + 1] if 1 in ids else ids)


def test_dropout_is_the_same_in_recomputation(tmp_path):
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY, **dict(GATED, dropout_rate=0.3))
    pairs = make_pairs(LENGTHS)
    kept, _ = run_probe(tmp_path, pairs=pairs, training=True)
    for checkpointing in ("selective", "attention", "full"):
        again, _ = run_probe(tmp_path, pairs=pairs, training=True, checkpointing=checkpointing)
        assert all(torch.equal(kept[name], again[name]) for name in kept)
    off, _ = run_probe(tmp_path, pairs=pairs)
    assert abs(kept["loss"] - off["loss"]) > 1e-3


# The last: in the decoder alone, what reads the encoder's output, behind which nothing trains.
@pytest.mark.parametrize("settings", [
    dict(target_modules=["q", "v"]), dict(target_modules=["wo", "o"]),
    dict(target_modules=["decoder.block.1.layer.0.SelfAttention.q"]),
    dict(target_modules=["EncDecAttention.k", "EncDecAttention.v"]),
    dict(target_modules=["EncDecAttention.v", "EncDecAttention.o"], use_dora=True),
    dict(peft_type="IA3", target_modules=["EncDecAttention.k", "EncDecAttention.v"],
         feedforward_modules=["EncDecAttention.v"])],
    ids=lambda settings: "-".join([*settings, *settings["target_modules"]]))
def test_adapter_equals_peft(tmp_path, settings):
    from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
    settings = dict(settings)
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY)
    base = T5ForConditionalGeneration.from_pretrained(tmp_path)
    config = (IA3Config(task_type="SEQ_2_SEQ_LM", **settings) if settings.pop("peft_type", "") else
              LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=16, **settings))
    model = get_peft_model(base, config)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name or "ia3" in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(T5ForConditionalGeneration.from_pretrained(tmp_path),
                                       tmp_path / "adapter", is_trainable=True)
    pairs = make_pairs(LENGTHS)
    loss, logits = run_reference(loaded, pairs)
    tensors, _ = run_probe(tmp_path, pairs=pairs, checkpointing="full",
                           adapter=str(tmp_path / "adapter"))
    own = re.compile(r"\.(lora_[AB]|ia3_l|lora_magnitude_vector)\b")
    tensors = {own.sub(r".\1.default", k): v for k, v in tensors.items()}
    tensors = {k + ".weight" if k.endswith("vector.default") else k: v for k, v in tensors.items()}
    compare(tensors, loaded, loss, logits, 1e-5)


def test_old_file_with_the_embedding_under_three_names(tmp_path):
    from safetensors.torch import save_file
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY)
    pairs = make_pairs(LENGTHS)
    expected, _ = run_probe(tmp_path, pairs=pairs)
    file = tmp_path / "model.safetensors"
    weights = {k: v.clone() for k, v in load_file(file).items()}
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight",
                 "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"):
        weights[name] = weights["shared.weight"].clone()
    save_file(weights, file, {"format": "pt"})
    found, report = run_probe(tmp_path, pairs=pairs)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert "lm_head.weight" not in report["parameters"]


@pytest.mark.parametrize("change,message", [
    (dict(feed_forward_proj="gated-tanh"), "found feed_forward_proj \"gated-tanh\", expected relu"),
    (dict(decoder_start_token_id=None), "found no decoder_start_token_id"),
    (dict(decoder_start_token_id=VOCABULARY), f"found decoder_start_token_id = {VOCABULARY}"),
    (dict(relative_attention_num_buckets=7), "found relative_attention_num_buckets = 7"),
    (dict(relative_attention_max_distance=16), "expected more than half of"),
    (dict(dropout_rate=1.0), "found dropout_rate = 1, expected"),
    (dict(is_encoder_decoder=False), "found is_encoder_decoder false"),
    (dict(d_kv=9), "config.json implies [27, 24]"),
    (dict(num_decoder_layers=3), "found no tensor \"decoder.block.2.layer.0.SelfAttention.q.weight"),
    (dict(model_type="llama", num_attention_heads=4), "found a model without an encoder"),
])
def test_wrong_config_is_named(tmp_path, change, message):
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    process, _ = run_probe_raw(tmp_path, pairs=make_pairs(LENGTHS))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_files_that_say_little(tmp_path):
    """What the classes of mT5 and UMT5 add to a config.json without these keys."""
    for family in ("MT5", "UMT5"):
        folder = tmp_path / family
        save_t5(folder, tokenizer=False, vocab_size=VOCABULARY, family=family, feed_forward_proj="gated-gelu")
        pairs = make_pairs(LENGTHS)
        expected, _ = run_probe(folder, pairs=pairs)
        file = folder / "config.json"
        config = json.loads(file.read_text())
        for key in ("decoder_start_token_id", "feed_forward_proj", "relative_attention_num_buckets"):
            config.pop(key)
        file.write_text(json.dumps({**config, "tie_word_embeddings": False}))
        loss, _ = run_reference(AutoModelForSeq2SeqLM.from_pretrained(folder), pairs)
        found, report = run_probe(folder, pairs=pairs)
        assert relative_error(found["loss"], loss) < 1e-5 and torch.equal(found["loss"], expected["loss"])
        assert "lm_head.weight" not in report["parameters"]
        file.write_text(json.dumps({**config, "decoder_start_token_id": None}))
        process, _ = run_probe_raw(folder, pairs=pairs)
        assert process.returncode in (1, 2) and "found no decoder_start_token_id" in process.stderr


def test_other_embedding_of_the_decoder_is_refused(tmp_path):
    from safetensors.torch import save_file
    save_t5(tmp_path, tokenizer=False, vocab_size=VOCABULARY)
    file = tmp_path / "model.safetensors"
    weights = {k: v.clone() for k, v in load_file(file).items()}
    weights["decoder.embed_tokens.weight"] = weights["shared.weight"] * 2
    save_file(weights, file, {"format": "pt"})
    process, _ = run_probe_raw(tmp_path, pairs=make_pairs(LENGTHS))
    assert process.returncode == 2 and "expected one embedding" in process.stderr
