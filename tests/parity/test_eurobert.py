# Oracle: transformers' EuroBERT for whole texts and PEFT over it, finite differences for dropout.
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSequenceClassification

from encoder_reference import bfloat16_is_as_close, compare_encoder, first_rows, make_task, make_texts, run_encoder, save_encoder
from probe import relative_error, run_probe, run_probe_raw
from test_bert import SAVED, edit_config, weights_of, write
from test_llama import YARN
from test_lora import probe_name, randomise

LENGTHS = (23, 1, 9, 40)
CONFIGS = {
    "late": {},
    "first": dict(classifier_pooling="bos", num_key_value_heads=2),
    "mean": dict(classifier_pooling="mean", num_labels=5),
    "odd": dict(vocab_size=101, hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=12, intermediate_size=44,
                attention_bias=True, mlp_bias=True, pad_token_id=5, rms_norm_eps=1e-3, rope_parameters=YARN),
    "one_head": dict(num_attention_heads=1, num_key_value_heads=1, pad_token_id=None, num_hidden_layers=1,
                     rope_parameters=dict(rope_type="default", rope_theta=70.0)),
    "number": dict(num_labels=1),
}


def texts_of(lengths=LENGTHS, seed=1):
    return make_texts(lengths, types=False, seed=seed)


def compare(tensors, model, texts, loss, logits, limit):
    if model.config.classifier_pooling != "bos":  # no row of a text has them by itself
        found = tensors["logits"]
        tensors = {**tensors, "logits": torch.zeros(sum(len(text["ids"]) for text in texts), logits.size(1))}
        tensors["logits"][first_rows(texts)] = logits.float()
        if model.config.classifier_pooling == "late":
            means = [rows.mean(0) for rows in found.split([len(text["ids"]) for text in texts])]
            tensors["logits"][first_rows(texts)] = torch.stack(means)
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
    save_encoder(tmp_path, family="eurobert", **CONFIGS[name])
    equals_transformers(tmp_path, kind="numbers" if name == "number" else "classes")


@pytest.mark.parametrize("lengths", [(64,), (1, 1, 2)])
def test_the_shortest_and_the_longest_texts(tmp_path, lengths):
    save_encoder(tmp_path, family="eurobert", num_key_value_heads=2)
    equals_transformers(tmp_path, lengths=lengths)


def test_names_of_a_body_and_of_a_model_that_predicts_tokens(tmp_path):
    save_encoder(tmp_path, family="eurobert")
    weights = weights_of(tmp_path)
    write(tmp_path, {**weights, "lm_head.weight": torch.ones(97, 32)})
    equals_transformers(tmp_path)
    write(tmp_path, {name.removeprefix("model."): value for name, value in weights.items()})
    equals_transformers(tmp_path)


@pytest.mark.parametrize("name", ["late", "odd"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_encoder(tmp_path, family="eurobert", **CONFIGS[name])
    request = dict(documents=texts_of(), task=make_task("classes", len(LENGTHS), 3))
    plain, _ = run_probe(tmp_path, checkpoint=False, **request)
    plain = {key: tensor.clone() for key, tensor in plain.items()}
    again, _ = run_probe(tmp_path, checkpoint=True, **request)
    assert all(torch.equal(plain[key], again[key]) for key in plain)


def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path):
    save_encoder(tmp_path, family="eurobert", scale=0.06)
    bfloat16_is_as_close(tmp_path, texts_of())


def loss_of(folder, checkpoint=False):
    tensors, _ = run_probe(folder, documents=texts_of((23, 9)), task=make_task("classes", 2, 3), training=True,
                           checkpoint=checkpoint)
    return tensors["loss"].double().item(), {name: value.clone() for name, value in tensors.items()}


def test_dropout_is_a_mask_that_backward_repeats(tmp_path):
    """With masks that depend on the tokens alone the loss along the gradients has their slope."""
    save_encoder(tmp_path, family="eurobert", attention_dropout=0.25)
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
    edit_config(tmp_path, attention_dropout=0.0)
    assert abs(loss_of(tmp_path)[0] - dropped) > 1e-3


@pytest.mark.parametrize("lora", [dict(target_modules="all-linear", r=3, lora_alpha=5),
                                  dict(target_modules=["q_proj", "down_proj"], r=4, use_dora=True),
                                  dict(target_modules=["embed_tokens", "o_proj"], r=2)], ids=["all", "dora", "embedding"])
def test_equals_peft(tmp_path, lora):
    lora = {"modules_to_save": SAVED, **lora}
    save_encoder(tmp_path, family="eurobert", scale=0.08)
    torch.manual_seed(42)
    model = get_peft_model(AutoModelForSequenceClassification.from_pretrained(tmp_path), LoraConfig(task_type="SEQ_CLS", **lora))
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    texts, task = texts_of(), make_task("classes", len(LENGTHS), 3)
    loss, _ = run_encoder(model, texts, task)
    tensors, report = run_probe(tmp_path, documents=texts, task=task, lora=lora, adapter=str(tmp_path / "adapter"), seed=42)
    errors = {"loss": relative_error(tensors["loss"], loss)}
    trained = {probe_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + n for n in trained}
    errors |= {n: relative_error(tensors["grad:" + n], gradient) for n, gradient in trained.items()}
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    assert set(report["target_modules"]) == set(model.peft_config["default"].target_modules)


@pytest.mark.parametrize("change,message", [
    (dict(classifier_pooling="cls"), 'found classifier_pooling = "cls", expected bos, mean or late'),
    (dict(hidden_act="gelu"), 'found hidden_act "gelu", expected "silu"'),
    (dict(layer_types=["sliding_attention"] * 2), 'found "sliding_attention" in layer_types'),
    (dict(architectures=["EuroBertForMaskedLM"]), 'found architectures ["EuroBertForMaskedLM"] of an encoder, expected EuroBertForSequence'),
])
def test_what_is_refused(tmp_path, change, message):
    save_encoder(tmp_path, family="eurobert")
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=texts_of((4,)), task=make_task("classes", 1, 3))
    assert process.returncode in (1, 2)
    assert message in process.stderr
