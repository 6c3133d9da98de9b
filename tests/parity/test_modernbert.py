# Oracle: transformers' ModernBERT for whole texts and PEFT over it, finite differences for dropout.
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from encoder_reference import bfloat16_is_as_close, compare_encoder, first_rows, make_task, make_texts, run_encoder, save_encoder
from probe import relative_error, run_probe, run_probe_raw
from test_bert import SAVED, edit_config, weights_of, write
from test_lora import probe_name, randomise

LENGTHS = (23, 1, 9, 40)
CONFIGS = {
    "plain": {},
    "mean": dict(classifier_pooling="mean"),
    "odd": dict(vocab_size=101, hidden_size=30, num_attention_heads=3, intermediate_size=44, num_labels=5, local_attention=5,
                norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True, norm_eps=1e-3),
    "one_head": dict(num_attention_heads=1, hidden_activation="silu", classifier_activation="relu", pad_token_id=None),
    "own_token_alone": dict(local_attention=1, classifier_pooling="mean"),
    "wider_than_texts": dict(local_attention=128),
    "named_layers": dict(layer_types=["sliding_attention", "sliding_attention", "full_attention"]),
    "other_rotations": dict(rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=500.0),
                                                 sliding_attention=dict(rope_type="linear", factor=2.0, rope_theta=70.0))),
    "number": dict(num_labels=1, num_hidden_layers=1),
}


def texts_of(lengths=LENGTHS, seed=1):
    return make_texts(lengths, types=False, seed=seed)


def compare(tensors, model, texts, loss, logits, limit):
    if model.config.classifier_pooling == "mean":  # which no row of a text has by itself
        tensors = {**tensors, "logits": torch.zeros(sum(len(text["ids"]) for text in texts), logits.size(1))}
        tensors["logits"][first_rows(texts)] = logits.float()
    compare_encoder(tensors, model, texts, loss, logits, limit)


def equals_transformers(folder, kind="classes", lengths=LENGTHS, limit=1e-5):
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    texts = texts_of(lengths)
    task = make_task(kind, len(texts), model.num_labels)
    loss, logits = run_encoder(model, texts, task)
    tensors, report = run_probe(folder, documents=texts, task=task)
    compare(tensors, model, texts, loss, logits, limit)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_encoder(tmp_path, family="modernbert", **CONFIGS[name])
    equals_transformers(tmp_path, kind="numbers" if CONFIGS[name].get("num_labels") == 1 else "classes")


def test_keys_of_older_files(tmp_path):
    settings = dict(family="modernbert", num_hidden_layers=4)
    save_encoder(tmp_path, **settings)
    edit_config(tmp_path, layer_types=None, rope_parameters=None, global_attn_every_n_layers=2, global_rope_theta=800.0,
                local_rope_theta=90.0)
    equals_transformers(tmp_path)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("lengths", [(1,), (64,), (1, 1, 2), (5, 4, 6)])
def test_the_shortest_and_the_longest_texts(tmp_path, lengths, pooling):
    save_encoder(tmp_path, family="modernbert", classifier_pooling=pooling)
    equals_transformers(tmp_path, lengths=lengths)


def test_texts_do_not_see_each_other(tmp_path):
    """Oracle: each text by itself, in either order."""
    save_encoder(tmp_path, family="modernbert")
    texts = texts_of()
    expected = run_probe(tmp_path, documents=texts)[0]["logits"][first_rows(texts)].clone()
    turned = texts[::-1]
    found, _ = run_probe(tmp_path, documents=turned)
    assert relative_error(found["logits"][first_rows(turned)].flip(0), expected) < 1e-5
    for row, text in enumerate(texts):
        alone, _ = run_probe(tmp_path, documents=[text])
        assert relative_error(alone["logits"][:1], expected[row:row + 1]) < 1e-5


@pytest.mark.parametrize("name", ["plain", "mean", "odd"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_encoder(tmp_path, family="modernbert", **CONFIGS[name])
    task = make_task("classes", len(LENGTHS), CONFIGS[name].get("num_labels", 3))
    plain, _ = run_probe(tmp_path, checkpoint=False, documents=texts_of(), task=task)
    plain = {key: tensor.clone() for key, tensor in plain.items()}
    again, _ = run_probe(tmp_path, checkpoint=True, documents=texts_of(), task=task)
    assert all(torch.equal(plain[key], again[key]) for key in plain)


@pytest.mark.parametrize("name", ["plain", "mean"])
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    save_encoder(tmp_path, family="modernbert", scale=0.06, **CONFIGS[name])
    bfloat16_is_as_close(tmp_path, texts_of())


def loss_of(folder, checkpoint=False):
    tensors, _ = run_probe(folder, documents=texts_of((23, 9)), task=make_task("classes", 2, 3), training=True,
                           checkpoint=checkpoint)
    return tensors["loss"].double().item(), {name: value.clone() for name, value in tensors.items()}


@pytest.mark.parametrize("rate", ["embedding_dropout", "attention_dropout", "mlp_dropout", "classifier_dropout"])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, rate):
    """With masks that depend on the tokens alone the loss along the gradients has their slope."""
    save_encoder(tmp_path, family="modernbert", **{rate: 0.25})
    weights = weights_of(tmp_path)
    dropped, found = loss_of(tmp_path)
    again = loss_of(tmp_path, checkpoint=True)[1]
    assert found.keys() == again.keys() and all(torch.equal(found[key], again[key]) for key in found)
    lengths = {key: found["grad:" + key].double().norm().item() for key in weights}
    slope, step = sum(lengths.values()), 1e-3
    sides = []
    for sign in (1, -1):
        write(tmp_path, {key: value + sign * step * found["grad:" + key] / lengths[key] for key, value in weights.items()})
        sides.append(loss_of(tmp_path)[0])
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=5e-3)
    write(tmp_path, weights)
    edit_config(tmp_path, **{rate: 0.0})
    assert abs(loss_of(tmp_path)[0] - dropped) > 1e-3


@pytest.mark.parametrize("lora", [dict(target_modules=["Wqkv"]), dict(target_modules="all-linear", r=3, lora_alpha=5),
                                  dict(target_modules=["Wo", "Wi"], r=4, use_dora=True),
                                  dict(target_modules=["tok_embeddings", "Wqkv"], r=2)],
                         ids=["one", "all", "dora", "embedding"])
def test_equals_peft(tmp_path, lora):
    lora = {"modules_to_save": SAVED, **lora}
    save_encoder(tmp_path, family="modernbert", scale=0.08)
    torch.manual_seed(42)
    model = get_peft_model(AutoModelForSequenceClassification.from_pretrained(tmp_path), LoraConfig(task_type="SEQ_CLS", **lora))
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    texts, task = texts_of(), make_task("classes", len(LENGTHS), 3)
    loss, logits = run_encoder(model, texts, task)
    tensors, report = run_probe(tmp_path, documents=texts, task=task, lora=lora, adapter=str(tmp_path / "adapter"), seed=42)
    errors = {"loss": relative_error(tensors["loss"], loss),
              "logits": relative_error(tensors["logits"][first_rows(texts)], logits)}
    trained = {probe_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + n for n in trained}
    errors |= {n: relative_error(tensors["grad:" + n], gradient) for n, gradient in trained.items()}
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    assert set(report["target_modules"]) == set(model.peft_config["default"].target_modules)


@pytest.mark.parametrize("change,message", [
    (dict(num_attention_heads=5), "found hidden_size = 32, expected a multiple of num_attention_heads = 5"),
    (dict(classifier_pooling="max"), 'found classifier_pooling = "max", expected cls or mean'),
    (dict(hidden_activation="tanh"), 'found hidden_activation "tanh", expected'),
    (dict(local_attention=0), "found local_attention = 0, expected"),
    (dict(layer_types=["chunked_attention"] * 3), 'found "chunked_attention" in layer_types'),
    (dict(rope_parameters=7), "found rope_parameters = 7, expected an object"),
    (dict(rope_parameters=dict(full_attention=7)), "found rope_parameters.full_attention = 7, expected an object"),
    (dict(attention_dropout=1.5), "found attention_dropout = 1.5, expected a number from 0 on and below 1"),
    (dict(architectures=["ModernBertForMaskedLM"]), 'found architectures ["ModernBertForMaskedLM"] of an encoder, expected ModernBertForSeq'),
    (dict(intermediate_size=40), "mlp.Wi.weight\" has shape [104, 32], config.json implies [80, 32]"),
    (dict(norm_bias=True), 'found no tensor "model.embeddings.norm.bias"'),
])
def test_what_is_refused(tmp_path, change, message):
    save_encoder(tmp_path, family="modernbert")
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=texts_of((4,)), task=make_task("classes", 1, 3))
    assert process.returncode in (1, 2)
    assert message in process.stderr
