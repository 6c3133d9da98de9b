# Oracle: where transformers' BERT, RoBERTa, XLM-RoBERTa and DistilBERT drop values in training, and what their loss is on average
# while they do.
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from encoder_reference import make_task, make_texts, run_encoder, save_encoder
from probe import run_probe

FAMILIES = ["bert", "roberta", "xlm-roberta", "distilbert"]
OF_BERT = {"hidden": "hidden_dropout_prob", "scores": "attention_probs_dropout_prob", "head": "classifier_dropout"}
RATES = {**dict.fromkeys(FAMILIES, OF_BERT), "distilbert": {"hidden": "dropout", "scores": "attention_dropout", "head": "seq_classif_dropout"}}
# Of values that are all 0 nothing is dropped: the last parameters before each place.
PLACES = {"embeddings": ("embeddings.LayerNorm.",), "attention": ("attention.output.dense.", "out_lin."),
          "mlp": ("layer.0.output.dense.", "layer.1.output.dense.", "lin2.")}


def save(folder, family, quiet=(), **rates):
    names = RATES[family]
    save_encoder(folder, family=family, **{names[kind]: rates.get(kind, 0.0) for kind in names})
    weights = load_file(folder / "model.safetensors")
    for place in quiet:
        silenced = [name for name in weights if any(part in name for part in PLACES[place])]
        assert len(silenced) == (2 if place == "embeddings" else 4), silenced
        for name in silenced:
            weights[name].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind,quiet", [
    ("hidden", ()), ("hidden", ("embeddings", "mlp")), ("hidden", ("embeddings", "attention")), ("hidden", ("attention", "mlp")),
    ("hidden", ("embeddings", "attention", "mlp")), ("scores", ()), ("scores", ("attention",)), ("head", ())],
    ids=lambda value: value if isinstance(value, str) else "without_" + "_".join(value or ("none",)))
@pytest.mark.parametrize("family", FAMILIES)
def test_drops_where_transformers_drops(tmp_path, family, kind, quiet):
    save(tmp_path, family, quiet, **{kind: 0.5})
    texts, task = make_texts((23, 9), types=family == "bert"), make_task("classes", 2, 3)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    whole = run_encoder(model.eval(), texts, task)[0].item()
    torch.manual_seed(1)
    theirs = run_encoder(model.train(), texts, task)[0].item()
    ours = run_probe(tmp_path, documents=texts, task=task, training=True)[0]["loss"].item()
    assert (abs(ours - whole) > 1e-3) == (abs(theirs - whole) > 1e-3), (ours, theirs, whole)
    if abs(theirs - whole) <= 1e-3:
        assert ours == pytest.approx(whole, abs=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mean_loss_under_dropout_is_that_of_transformers(tmp_path, family):
    """Of many equal texts, each with masks of its own: the mean of squares knows means and variances of what the head tells."""
    save(tmp_path, family, hidden=0.3, scores=0.2, head=0.25)
    count = 4000
    texts = make_texts((3,), types=False) * count
    task = {"loss": "numbers", "targets": [0.0] * 3 * count}
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    whole = run_encoder(model.eval(), texts[:1], {**task, "targets": [0.0] * 3})[0].item()
    torch.manual_seed(1)
    losses = run_encoder(model.train(), texts, task)[1].square().mean(1)
    ours = run_probe(tmp_path, documents=texts, task=task, training=True)[0]["loss"].item()
    error = 4 * math.sqrt(2 / count) * losses.std().item()
    assert abs(ours - losses.mean().item()) < error < abs(losses.mean().item() - whole)
