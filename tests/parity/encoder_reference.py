"""Small random encoders with a head for whole texts, and their results in transformers, for the parity tests."""

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from probe import relative_error, run_probe
from tiny_encoder import BASES

PROBLEMS = {"classes": "single_label_classification", "labels": "multi_label_classification", "numbers": "regression"}


def make_encoder(family="bert", scale=0.15, **settings):
    """All weights random, also those of norms and biases."""
    torch.manual_seed(0)
    settings = {**BASES[family], "num_labels": 3, **settings}
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(family, **settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name.lower() and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, scale)
    return model


def save_encoder(folder, **settings):
    make_encoder(**settings).save_pretrained(folder)


def make_texts(lengths, vocab_size=97, types=True, seed=1):
    """Documents of random tokens, of which about the second half is a second text."""
    generator = torch.Generator().manual_seed(seed)
    texts = []
    for length in lengths:
        ids = torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        text = {"ids": ids, "labels": [-100] * length}
        texts.append({**text, "types": [int(i > length // 2) for i in range(length)]} if types else text)
    return texts


def make_task(kind, documents, labels):
    """What the head is asked for: random targets, [documents] of classes and [documents * labels] of others."""
    generator = torch.Generator().manual_seed(2)
    if kind == "classes":
        targets = torch.randint(0, labels, (documents,), generator=generator)
    elif kind == "labels":
        targets = torch.randint(0, 2, (documents * labels,), generator=generator)
    else:
        targets = torch.randn(documents * labels, generator=generator)
    return {"loss": kind, "targets": targets.tolist()}


def run_encoder(model, texts, task):
    """Loss, logits of the texts, and gradients (left in the model). Rows are padded, as a collator does it."""
    length = max(len(text["ids"]) for text in texts)
    padding = model.config.pad_token_id or 0
    ids = torch.full((len(texts), length), padding)
    mask, types = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, :len(text["ids"])] = torch.tensor(text["ids"])
        mask[row, :len(text["ids"])] = 1
        if "types" in text:
            types[row, :len(text["ids"])] = torch.tensor(text["types"])
    config = model.config
    config.problem_type = PROBLEMS[task["loss"]]
    labels = torch.tensor(task["targets"])
    if task["loss"] != "classes":
        labels = labels.float().view(len(texts), -1)
    extra = {"token_type_ids": types} if "types" in texts[0] else {}
    model.zero_grad()
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels, **extra)
    outputs.loss.backward()
    return outputs.loss.detach(), outputs.logits.detach()


def first_rows(texts):
    """Which of all tokens' logits are those of the texts."""
    starts, at = [], 0
    for text in texts:
        starts.append(at)
        at += len(text["ids"])
    return starts


def compare_encoder(tensors, model, texts, loss, logits, limit):
    errors = {"loss": relative_error(tensors["loss"], loss),
              "logits": relative_error(tensors["logits"][first_rows(texts)], logits)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}
    sees_one = all(len(text["ids"]) == 1 for text in texts)
    most = max(gradient.norm().item() for gradient in gradients.values())
    for name, gradient in gradients.items():
        # What moves all scores of a row alike has no gradient but that of rounding.
        layer, _, kind = name.rpartition(".")
        module = layer.rpartition(".")[2]
        has_none = module in ("key", "k_lin") and (sees_one or kind == "bias") or module in ("query", "q_lin") and sees_one
        if has_none:
            value = {"key": "value", "k_lin": "v_lin", "query": "value", "q_lin": "v_lin"}[module]
            other = gradients[f"{layer.removesuffix(module)}{value}.{kind}"]
            errors[name] = (tensors["grad:" + name].double().norm() / other.double().norm()).item() / 10
        elif "encoder." in name and gradient.norm() < 1e-6 * most:
            errors[name] = tensors["grad:" + name].norm().item() / most
        else:
            errors[name] = relative_error(tensors["grad:" + name], gradient)
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + name for name in gradients}
    worst = max(errors, key=errors.get)
    assert errors[worst] < limit, f"{worst}: {errors[worst]}"


def bfloat16_is_as_close(folder, texts):
    """Gradients in bf16 are about as far from those of the same weights in fp32 as transformers' are."""
    rounded = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16)
    exact = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).float()
    task = make_task("classes", len(texts), 3)
    run_encoder(rounded, texts, task)
    run_encoder(exact, texts, task)
    tensors, _ = run_probe(folder, documents=texts, task=task, dtype="bfloat16")
    ours, theirs = 0.0, 0.0
    for (key, a), (_, b) in zip(rounded.named_parameters(), exact.named_parameters()):
        ours += relative_error(tensors["grad:" + key], b.grad)
        theirs += relative_error(a.grad, b.grad)
    assert ours < 1.1 * theirs
