"""Oracle: transformers' neftune_post_forward_hook for where noise goes and how large it is; its models for what
follows from the rows that it made: loss and the gradient of every parameter."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations.neftune import neftune_post_forward_hook

from llama_reference import make_documents, save_checkpoint
from probe import relative_error, run_probe

LENGTHS = (23, 1, 9)
ALPHA = 4.0
CASES = {
    "llama": dict(num_key_value_heads=2),
    # The factor of the rows is part of the embedding; Granite's multiplier comes behind it.
    "gemma_padding": dict(family="gemma", head_dim=12, pad_token_id=5),
    "granite": dict(family="granite", embedding_multiplier=2.5),
    "gpt2": dict(family="gpt2"),
}


def embedded(model, documents):
    """[rows, longest, channels], padded at the right, and the batch."""
    length = max(len(d["ids"]) for d in documents)
    ids = torch.zeros(len(documents), length, dtype=torch.long)
    labels, mask = torch.full_like(ids, -100), torch.zeros_like(ids)
    for row, document in enumerate(documents):
        n = len(document["ids"])
        ids[row, :n], labels[row, :n] = torch.tensor(document["ids"]), torch.tensor(document["labels"])
        mask[row, :n] = 1
    return model.get_input_embeddings()(ids), labels, mask


@pytest.mark.parametrize("name", CASES)
def test_noise_is_added_to_the_embedding(tmp_path, name):
    save_checkpoint(tmp_path, **CASES[name])
    documents = make_documents(LENGTHS)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    rows, labels, mask = embedded(model, documents)

    # As strong as the hook's over the same padded batch.
    table = model.get_input_embeddings().train()
    table.neftune_noise_alpha = ALPHA
    torch.manual_seed(0)
    theirs = neftune_post_forward_hook(table, None, rows.detach()) - rows.detach()
    del table.neftune_noise_alpha
    bound = ALPHA / (max(LENGTHS) * rows.shape[2]) ** 0.5
    assert theirs.abs().max().item() == pytest.approx(bound, rel=0.02)

    strength = ALPHA / max(LENGTHS) ** 0.5  # what the trainer makes of the setting: embedding_noise_test.cpp
    plain, _ = run_probe(tmp_path, documents=documents, training=True)
    plain = {k: v.clone() for k, v in plain.items()}
    found, _ = run_probe(tmp_path, documents=documents, training=True, embedding_noise=strength)
    found = {k: v.clone() for k, v in found.items()}
    noise = (found["embedded"] - plain["embedded"]) / CASES[name].get("embedding_multiplier", 1)
    assert noise.abs().max().item() == pytest.approx(bound, rel=0.02)
    assert noise.square().mean().item() == pytest.approx(theirs[mask.bool()].square().mean().item(), rel=0.1)
    assert abs(noise.mean().item()) < 0.1 * bound

    padded = torch.zeros_like(rows)
    padded[mask.bool()] = noise
    logits = model(inputs_embeds=rows + padded, attention_mask=mask).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
    model.zero_grad()
    loss.backward()
    assert abs(found["loss"].item() - plain["loss"].item()) > 1e-4
    errors = {"loss": relative_error(found["loss"], loss.detach())}
    for parameter, value in model.named_parameters():
        errors[parameter] = relative_error(found["grad:" + parameter], value.grad)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"

    # Neither where nothing trains, nor other noise where the block runs again.
    evaluated, _ = run_probe(tmp_path, documents=documents, embedding_noise=strength)
    assert torch.equal(evaluated["loss"], plain["loss"])
    again, _ = run_probe(tmp_path, documents=documents, training=True, embedding_noise=strength, checkpoint=True)
    assert all(torch.equal(again[k], found[k]) for k in found)
