# Oracle: transformers' BERT, RoBERTa, XLM-RoBERTa and DistilBERT for whole texts and PEFT over them, finite differences
# for dropout.
import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BitsAndBytesConfig

from encoder_reference import (compare_encoder, first_rows, make_task, make_texts, run_encoder,
                               save_encoder)
from probe import relative_error, run_probe, run_probe_raw
from quantised_reference import BASES
from test_lora import CONFIGS as CONFIGS_OF_PEFT
from test_lora import probe_name, randomise

LENGTHS = (23, 1, 9, 40)
FAMILIES = ["bert", "roberta", "xlm-roberta", "distilbert"]
ODD = dict(vocab_size=101, hidden_size=30, num_attention_heads=3, intermediate_size=44, num_hidden_layers=3)
CONFIGS = {
    **{family: dict(family=family) for family in FAMILIES},
    "odd": dict(family="bert", max_position_embeddings=40, num_labels=5, layer_norm_eps=1e-5, **ODD),
    "odd_roberta": dict(family="roberta", max_position_embeddings=48, pad_token_id=7, num_labels=1, **ODD),
    "odd_distilbert": dict(family="distilbert", vocab_size=101, dim=30, n_heads=3, hidden_dim=44, n_layers=3,
                           max_position_embeddings=41, num_labels=2, pad_token_id=5),
    "one_head": dict(family="bert", num_attention_heads=1, hidden_act="gelu_new", pad_token_id=None),
    "one_head_roberta": dict(family="roberta", num_attention_heads=1, hidden_act="relu", type_vocab_size=2),
    "one_head_distilbert": dict(family="distilbert", n_heads=1, activation="relu", sinusoidal_pos_embds=True),
    "silu": dict(family="xlm-roberta", hidden_act="silu", pad_token_id=0),
    "three_types": dict(family="bert", type_vocab_size=3, hidden_act="gelu_pytorch_tanh"),
}
WITH_TYPES = ("bert",)


def texts_of(settings, lengths=LENGTHS, seed=1):
    return make_texts(lengths, types=settings["family"] in WITH_TYPES, seed=seed)


def is_clear_of_kinks(model, texts):
    """Whether rounding turns no sign of what the head's max(x, 0) reads, which would turn a gradient on or off."""
    if not hasattr(model, "pre_classifier"):
        return True
    found = []
    with torch.no_grad():
        hook = model.pre_classifier.register_forward_hook(lambda module, inputs, output: found.append(output))
        for text in texts:
            model(torch.tensor([text["ids"]]))
        hook.remove()
    return torch.cat(found).abs().min() > 4e-3


def edit_config(folder, **change):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


def weights_of(folder):
    return load_file(folder / "model.safetensors")


def write(folder, weights):
    save_file({name: value.clone() for name, value in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})


def equals_transformers(folder, settings, kind="classes", limit=1e-5, dtype="float32", lengths=LENGTHS):
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=getattr(torch, dtype))
    texts = texts_of(settings, lengths)
    task = make_task(kind, len(texts), model.num_labels)
    loss, logits = run_encoder(model, texts, task)
    tensors, report = run_probe(folder, documents=texts, task=task, dtype=dtype)
    compare_encoder(tensors, model, texts, loss, logits, limit)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_encoder(tmp_path, **CONFIGS[name])
    equals_transformers(tmp_path, CONFIGS[name], kind="numbers" if CONFIGS[name].get("num_labels") == 1 else "classes")


@pytest.mark.parametrize("kind,labels", [("labels", 4), ("labels", 1), ("numbers", 2), ("classes", 2)])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_each_loss_equals_that_of_transformers(tmp_path, family, kind, labels):
    settings = dict(family=family, num_labels=labels)
    save_encoder(tmp_path, **settings)
    equals_transformers(tmp_path, settings, kind)


@pytest.mark.parametrize("lengths", [(1,), (64,), (1, 1, 2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_shortest_and_the_longest_texts(tmp_path, family, lengths):
    save_encoder(tmp_path, family=family)
    equals_transformers(tmp_path, dict(family=family), lengths=lengths)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_do_not_see_each_other(tmp_path, family):
    """Oracle: each text by itself, in either order."""
    save_encoder(tmp_path, family=family)
    texts = texts_of(dict(family=family))
    together, _ = run_probe(tmp_path, documents=texts)
    expected = together["logits"][first_rows(texts)].clone()
    turned = texts[::-1]
    found, _ = run_probe(tmp_path, documents=turned)
    assert relative_error(found["logits"][first_rows(turned)].flip(0), expected) < 1e-5
    for row, text in enumerate(texts):
        alone, _ = run_probe(tmp_path, documents=[text])
        assert relative_error(alone["logits"][:1], expected[row:row + 1]) < 1e-5


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_tokens_of_padding_inside_a_text(tmp_path, family):
    """They have the position of padding, and those behind them count on as if they were not there."""
    save_encoder(tmp_path, family=family)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    texts = make_texts((12, 5), types=False)
    for text, places in zip(texts, ((0, 3, 4, 11), (4,))):
        for place in places:
            text["ids"][place] = 1
    task = make_task("classes", 2, 3)
    # Each by itself: a row's own padding would look the same.
    losses = [run_encoder(model, [text], {**task, "targets": [task["targets"][row]]})
              for row, text in enumerate(texts)]
    tensors, _ = run_probe(tmp_path, documents=texts, task=task)
    logits = torch.cat([logits for _, logits in losses])
    assert relative_error(tensors["logits"][first_rows(texts)], logits) < 1e-5
    assert relative_error(tensors["loss"], sum(loss for loss, _ in losses) / 2) < 1e-5
    assert tensors["grad:roberta.embeddings.position_embeddings.weight"][1].count_nonzero() == 0


@pytest.mark.parametrize("name", [*FAMILIES, "odd"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_encoder(tmp_path, **CONFIGS[name])
    request = dict(documents=texts_of(CONFIGS[name]), task=make_task("classes", len(LENGTHS), 3))
    plain, _ = run_probe(tmp_path, checkpoint=False, **request)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, checkpoint=True, **request)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


@pytest.mark.parametrize("name", FAMILIES)
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, name):
    save_encoder(tmp_path, scale=0.04, **CONFIGS[name])
    rounded = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    exact = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16).float()
    texts = next(texts for texts in map(lambda seed: texts_of(CONFIGS[name], seed=seed), range(1, 200))
                 if is_clear_of_kinks(exact, texts))
    task = make_task("classes", len(texts), 3)
    run_encoder(rounded, texts, task)
    run_encoder(exact, texts, task)
    tensors, _ = run_probe(tmp_path, documents=texts, task=task, dtype="bfloat16")
    ours, theirs = 0.0, 0.0
    for (name, a), (_, b) in zip(rounded.named_parameters(), exact.named_parameters()):
        if name.endswith(("key.bias", "k_lin.bias")):
            continue
        ours += relative_error(tensors["grad:" + name], b.grad)
        theirs += relative_error(a.grad, b.grad)
    assert ours < 1.1 * theirs


@pytest.mark.parametrize("family", FAMILIES)
def test_names_that_files_have(tmp_path, family):
    """A norm's names in TensorFlow, the body's weights without its name, other heads and old buffers beside them."""
    settings = dict(family=family)
    save_encoder(tmp_path, **settings)
    weights = weights_of(tmp_path)
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
           for name, value in weights.items()}
    assert old.keys() != weights.keys()
    write(tmp_path, old)
    equals_transformers(tmp_path, settings)
    body = AutoModelForSequenceClassification.from_pretrained(tmp_path).base_model_prefix
    write(tmp_path, weights | {f"{body}.embeddings.position_ids": torch.arange(64)[None],
                               "cls.predictions.bias": torch.ones(97), "lm_head.bias": torch.ones(97),
                               "vocab_projector.weight": torch.ones(97, 32), **({} if family == "bert" else {
                                   f"{body}.pooler.dense.weight": torch.ones(32, 32)} if "roberta" in family else {})})
    equals_transformers(tmp_path, settings)


def loss_of(folder, settings, checkpoint=False):
    texts = make_texts((23, 9), types=settings["family"] in WITH_TYPES)
    tensors, _ = run_probe(folder, documents=texts, task=make_task("classes", 2, 3), training=True, checkpoint=checkpoint)
    return tensors["loss"].double().item(), {name: value.clone() for name, value in tensors.items()}


RATES = {"bert": ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"],
         "roberta": ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"],
         "distilbert": ["dropout", "attention_dropout", "seq_classif_dropout"]}


@pytest.mark.parametrize("family,rate", [(family, rate) for family, rates in RATES.items() for rate in rates])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, family, rate):
    """With masks that depend on the tokens alone the loss along the gradients has their slope."""
    settings = dict(family=family)
    # Without a rate of its own the head has that of the layers.
    others = {} if family == "distilbert" or rate == "classifier_dropout" else dict(classifier_dropout=0.0)
    save_encoder(tmp_path, **settings, **others, **{rate: 0.25})
    weights = weights_of(tmp_path)
    dropped, found = loss_of(tmp_path, settings)
    again = loss_of(tmp_path, settings, checkpoint=True)[1]
    assert found.keys() == again.keys() and all(torch.equal(found[key], again[key]) for key in found)
    moved = [key for key in weights if not key.endswith(("key.bias", "k_lin.bias"))]
    lengths = {key: found["grad:" + key].double().norm().item() for key in moved}
    slope, step = sum(lengths.values()), 1e-3
    sides = []
    for sign in (1, -1):
        write(tmp_path, {key: value + (sign * step * found["grad:" + key] / lengths[key] if key in lengths else 0)
                         for key, value in weights.items()})
        sides.append(loss_of(tmp_path, settings)[0])
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=5e-3)
    write(tmp_path, weights)
    edit_config(tmp_path, **{rate: 0.0})
    assert abs(loss_of(tmp_path, settings)[0] - dropped) > 1e-3


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_the_head_drops_as_the_layers_where_nothing_is_said(tmp_path, family):
    save_encoder(tmp_path, family=family, classifier_dropout=0.25)
    expected = loss_of(tmp_path, dict(family=family))[0]
    edit_config(tmp_path, classifier_dropout=None, hidden_dropout_prob=0.25)
    both = loss_of(tmp_path, dict(family=family))[0]
    edit_config(tmp_path, classifier_dropout=0.25)
    assert loss_of(tmp_path, dict(family=family))[0] == both != expected


def test_dropout_is_for_training(tmp_path):
    settings = dict(family="bert", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    save_encoder(tmp_path, **settings)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    texts, task = texts_of(settings), make_task("classes", len(LENGTHS), 3)
    loss, logits = run_encoder(model, texts, task)
    tensors, _ = run_probe(tmp_path, documents=texts, task=task)
    compare_encoder(tensors, model, texts, loss, logits, 1e-5)


@pytest.mark.parametrize("family,change,message", [
    ("bert", dict(hidden_act="tanh"), 'found hidden_act "tanh", expected gelu_new'),
    ("bert", dict(num_attention_heads=5), "found hidden_size = 32, expected a multiple of num_attention_heads = 5"),
    ("bert", dict(is_decoder=True), "found is_decoder true, expected false"),
    ("roberta", dict(add_cross_attention=True), "found add_cross_attention true, expected false"),
    ("bert", dict(position_embedding_type="relative_key"), 'found position_embedding_type "relative_key", expected absolute'),
    ("bert", dict(hidden_dropout_prob=1.0), "found hidden_dropout_prob = 1, expected a number from 0 on and below 1"),
    ("bert", dict(pad_token_id=97), "found pad_token_id = 97, expected a token of the vocabulary of 97"),
    ("roberta", dict(pad_token_id=None), "found no pad_token_id, expected a token, from which positions count"),
    ("roberta", dict(max_position_embeddings=2), "found max_position_embeddings = 2, expected more than pad_token_id + 1 = 2"),
    ("distilbert", dict(n_heads=5), "found dim = 32, expected a multiple of n_heads = 5"),
    ("bert", dict(architectures=["BertForMaskedLM"]), 'found architectures ["BertForMaskedLM"] of an encoder, expected BertForSequence'),
    ("bert", dict(intermediate_size=40), "intermediate.dense.weight\" has shape [52, 32], config.json implies [40, 32]"),
])
def test_what_is_refused(tmp_path, family, change, message):
    save_encoder(tmp_path, family=family)
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_texts((4,), types=False), task=make_task("classes", 1, 3))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_a_second_text_without_its_type_is_named(tmp_path):
    save_encoder(tmp_path, family="bert", type_vocab_size=1)
    run_probe(tmp_path, documents=make_texts((4,), types=False))
    process, _ = run_probe_raw(tmp_path, documents=make_texts((4,)))
    assert process.returncode == 2 and "found type_vocab_size = 1 with rows of two texts" in process.stderr


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_beyond_the_positions_is_named(tmp_path, family):
    save_encoder(tmp_path, family=family)
    run_probe(tmp_path, documents=make_texts((64, 3), types=False))
    process, _ = run_probe_raw(tmp_path, documents=make_texts((3, 65), types=False))
    assert process.returncode == 2
    assert "found a document of 65 tokens, expected at most 64" in process.stderr


SAVED = ["classifier", "score"]  # what PEFT adds for SEQ_CLS
PEFT = {
    "lora": ("bert", {}),
    "lora_roberta": ("roberta", dict(r=4, lora_alpha=12)),
    "lora_xlm_roberta": ("xlm-roberta", {}),
    "distilbert": ("distilbert", dict(target_modules=["q_lin", "lin2"], r=3)),
    "all_linear": ("bert", dict(target_modules="all-linear", r=3, lora_alpha=5)),
    "all_linear_roberta": ("roberta", dict(target_modules="all-linear", r=3, lora_alpha=5)),
    "dora": ("bert", dict(target_modules=["query", "output.dense", "pooler.dense"], r=4, use_dora=True)),
    "ia3": ("bert", dict(peft_type="IA3")),
    "ia3_roberta": ("roberta", dict(peft_type="IA3")),
    "vera": ("bert", dict(peft_type="VERA", r=5)),
    "embedding": ("bert", dict(target_modules=["word_embeddings", "value"], r=2)),
    "tokens": ("roberta", dict(trainable_token_indices={"word_embeddings": [5, 2, 40]})),
    "norms_and_tables": ("bert", dict(modules_to_save=[*SAVED, "LayerNorm", "position_embeddings", "token_type_embeddings"])),
}


@pytest.mark.parametrize("name", PEFT)
def test_equals_peft(tmp_path, name, capsys):
    family, lora = PEFT[name]
    lora = {"modules_to_save": SAVED, **lora}
    save_encoder(tmp_path, family=family, scale=0.08)
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    settings = dict(lora, task_type="SEQ_CLS")
    torch.manual_seed(42)
    model = get_peft_model(base, CONFIGS_OF_PEFT[settings.pop("peft_type", "LORA")](**settings))
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    texts, task = texts_of(dict(family=family)), make_task("classes", len(LENGTHS), 3)
    loss, logits = run_encoder(model, texts, task)
    tensors, report = run_probe(tmp_path, documents=texts, task=task, lora=lora, adapter=str(tmp_path / "adapter"), seed=42)
    errors = {"loss": relative_error(tensors["loss"], loss),
              "logits": relative_error(tensors["logits"][first_rows(texts)], logits)}
    trained = {probe_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + n for n in trained}
    errors |= {n: relative_error(tensors["grad:" + n], gradient) for n, gradient in trained.items()}
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    assert set(report["adapter_tensors"]) == {n for n in get_peft_model_state_dict(model)
                                              if n not in ("base_model.vera_A", "base_model.vera_B")}
    capsys.readouterr()
    model.print_trainable_parameters()
    assert report["trainable"] == capsys.readouterr().out.strip()
    assert set(report["target_modules"]) == set(model.peft_config["default"].target_modules)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("bits", ["nf4", "int8"])
@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_lora_over_codes_equals_peft(tmp_path, family, bits):
    """As transformers quantises it where the head is named among what stays plain; a pooler becomes codes."""
    save_encoder(tmp_path, family=family, scale=0.08, hidden_size=64, intermediate_size=128)
    settings, asked = BASES[bits]
    base = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, dtype=torch.float32, device_map="cpu", quantization_config=BitsAndBytesConfig(
            **{"bnb_4bit_compute_dtype": torch.float32, "llm_int8_skip_modules": ["classifier"], **settings}))
    model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS")).train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    texts, task = texts_of(dict(family=family)), make_task("classes", len(LENGTHS), 3)
    loss, logits = run_encoder(model, texts, task)
    tensors, _ = run_probe(tmp_path, documents=texts, task=task, quantization=asked, lora={"modules_to_save": SAVED},
                           adapter=str(tmp_path / "adapter"), training=True)
    errors = {"loss": relative_error(tensors["loss"], loss)}
    if bits != "int8":  # whose logits are those of answers, which multiply rounded activations; the loss is training's
        errors["logits"] = relative_error(tensors["logits"][first_rows(texts)], logits)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            errors[name] = relative_error(tensors["grad:" + probe_name(name)], parameter.grad)
    assert any("lora" in name for name in errors)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
