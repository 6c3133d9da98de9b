"""Small random checkpoints of T5, mT5 and UMT5, their tokenizer and data sets of pairs, for tests of seq2seq.

Everything is a pure function of its arguments; nothing is downloaded.
"""

import collections
import json
import math
import random

from tiny_llama import sentence, write_rows

PLAIN = dict(d_model=24, d_kv=8, d_ff=40, num_layers=2, num_heads=3, dropout_rate=0.0)
# The reference's own cache fails where the decoder has more layers than the encoder.
GATED = dict(PLAIN, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=3,
             num_decoder_layers=2)
LABELS = {"rose": "positive", "fell": "negative", "held": "neutral"}


def save_tokenizer(folder):
    """A Unigram tokenizer of T5's kind in which every label is one token; returns its size. A quarter of the
    words are several tokens: what a trainer finds is another vocabulary every time."""
    from transformers import T5Tokenizer

    rng = random.Random(0)
    words = collections.Counter(" ".join(sentence(rng) for _ in range(180)).split())
    words.update({word: 60 for word in LABELS})
    words.update({label: 1000 for label in LABELS.values()})
    total = sum(words.values())
    whole = [word for i, (word, _) in enumerate(words.most_common()) if (i + 1) % 4]
    ends = sorted({word[i:i + 2] for word in words for i in range(len(word) - 1)})
    vocab = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    vocab += [("▁" + word, math.log(words[word] / total)) for word in whole]
    vocab += [(piece, -12.0 - i / 100) for i, piece in enumerate(ends)]
    vocab += [(piece, -15.0 - i / 100) for i, piece in enumerate(["▁", *sorted({*"".join(words)})])]
    tokenizer = T5Tokenizer(vocab=vocab, extra_ids=2)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def save_t5(folder, seed=0, vocab_size=None, own_head=False, tokenizer=True, scale=0.2,
            original_keys=False, family="T5", **settings):
    """Checkpoint folder; all weights random and large enough that losses move within few steps.

    original_keys: tie_word_embeddings says how outputs are scaled, as in the first checkpoints.
    """
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    size = save_tokenizer(folder) if tokenizer else 0
    torch.manual_seed(seed)
    config, model = (getattr(transformers, family + end) for end in ("Config", "ForConditionalGeneration"))
    model = model(config(
        vocab_size=vocab_size or size, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
        **{**PLAIN, **settings}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layer_norm" in name:
                parameter.uniform_(0.7, 1.3)
            else:
                parameter.normal_(0, 1.0 if name == "shared.weight" else scale)
    model.save_pretrained(folder)
    if original_keys:
        file = folder / "config.json"
        config = json.loads(file.read_text())
        config["tie_word_embeddings"] = config.pop("scale_decoder_outputs")
        file.write_text(json.dumps(config))
    if own_head:
        add_head(folder)
    return folder


def add_head(folder):
    """An output layer that is not the embedding, as T5 v1.1 has it."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
    torch.manual_seed(5)
    weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"]) * 0.3
    save_file(weights, file, {"format": "pt"})


def make_pairs(count, seed=0):
    """Sentences whose label a single word decides."""
    rng = random.Random(f"pairs{seed}")
    rows = []
    for _ in range(count):
        word = rng.choice(list(LABELS))
        text = f"{sentence(rng, 1, 5)} {word} {sentence(rng, 1, 5)}"
        rows.append({"sentence": text, "label": LABELS[word]})
    return rows


def save_pairs(folder, train=48, validation=11):
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.jsonl", make_pairs(train))
    write_rows(folder / "validation.jsonl", make_pairs(validation, seed=1))
    return folder


def teach(folder, rows, steps=14, rate=1e-2):
    """Trains the whole checkpoint a little, so that its answers are labels, if often wrong ones."""
    import torch
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = T5ForConditionalGeneration.from_pretrained(folder).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        part = [rows[(step * 16 + i) % len(rows)] for i in range(16)]
        batch = tokenizer([row["sentence"] for row in part], padding=True, return_tensors="pt")
        labels = tokenizer([row["label"] for row in part], padding=True,
                           return_tensors="pt").input_ids
        inputs = {k: batch[k] for k in ("input_ids", "attention_mask")}
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
