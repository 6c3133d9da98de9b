"""Oracle: transformers' generate(): the tokens of every answer that a beam search finds, with all that a model's file may ask of it."""

import random

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from test_t5 import inputs_of, run_probe
from tiny_bart import save_bart
from tiny_t5 import save_t5

SOURCES = (7, 1, 12, 3, 5)
# Vocabularies: beams may be as many as its tokens, or few beside it.
MODELS = {
    "t5": (save_t5, dict(vocab_size=101)),
    "t5_of_few_words": (save_t5, dict(vocab_size=11)),
    "umt5": (save_t5, dict(vocab_size=37, family="UMT5", own_head=True)),
    "bart": (save_bart, dict(vocab_size=37, decoder_start_token_id=2, scale=0.4)),
    "mbart": (save_bart, dict(vocab_size=101, family="MBart", scale=0.4)),
    "m2m_100": (save_bart, dict(vocab_size=37, family="M2M100", encoder_layerdrop=0.0, decoder_layerdrop=0.0)),
    "marian": (save_bart, dict(vocab_size=23, family="Marian", pad_token_id=22, decoder_start_token_id=22, eos_token_id=0)),
    "pegasus": (save_bart, dict(vocab_size=101, family="Pegasus")),
}
NUM_SEARCHES = 12


def make_search(rng, vocabulary):
    """Some of the settings of generate(), under the probe's names; many ends, so that answers of one batch end at many lengths."""
    ids = rng.sample(range(1, vocabulary), vocabulary - 1)
    num_ends = rng.choice([1, vocabulary // 8, vocabulary // 3])
    search = {"num_beams": rng.choice([1, 2, 3, 4, 5, 8, 13]), "max_new_tokens": rng.choice([1, 2, 6, 9, 14]),
              "length_penalty": rng.choice([1.0, 1.0, 0.0, 0.6, 2.0, -1.0]), "early_stopping": rng.choice([False, True, "never"]),
              "eos": ids[:num_ends]}
    choices = {"no_repeat_ngram_size": rng.choice([1, 2, 3]), "min_new_tokens": rng.choice([1, 3, 20]), "forced_bos": ids[-3],
               "forced_eos": ids[0], "banned": ids[-6:], "renormalize_logits": True}
    return search | {key: value for key, value in choices.items() if rng.random() < 0.25}


def generate(model, inputs, start, search):
    """Up to the first end. Ids that generate() fills rows up with may be words of the model."""
    renamed = {"eos": "eos_token_id", "forced_bos": "forced_bos_token_id", "forced_eos": "forced_eos_token_id"}
    settings = {renamed.get(key, key): value for key, value in search.items() if key != "banned"}
    if "banned" in search:
        settings["bad_words_ids"] = [[id] for id in search["banned"]]
    rows = model.generate(**inputs, do_sample=False, decoder_start_token_id=start, **settings)[:, 1:].tolist()
    cuts = [min((i + 1 for i, id in enumerate(row) if id in search["eos"]), default=len(row)) for row in rows]
    return [row[:cut] for row, cut in zip(rows, cuts)]


@pytest.mark.parametrize("name", MODELS)
def test_answers_of_beams(tmp_path, name):
    rng = random.Random(name)
    save, settings = MODELS[name]
    vocabulary = settings["vocab_size"]
    save(tmp_path, tokenizer=False, **settings)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    model.generation_config.update(forced_bos_token_id=None, forced_eos_token_id=None)
    pairs = [{"source": [rng.randrange(3, vocabulary) for _ in range(length)], "target": [1]} for length in SOURCES]
    start = 2 if model.config.decoder_start_token_id is None else model.config.decoder_start_token_id
    searches = [make_search(rng, vocabulary) for _ in range(NUM_SEARCHES)]
    _, report = run_probe(tmp_path, pairs=pairs, start=start, searches=searches)
    num_short = num_others = 0
    for search, found in zip(searches, report["searched"], strict=True):
        expected = generate(model, inputs_of(pairs), start, search)
        assert found == expected, search
        num_short += sum(len(answer) < search["max_new_tokens"] for answer in expected)
        num_others += search["num_beams"] > 1 and expected != generate(model, inputs_of(pairs), start, search | {"num_beams": 1})
    assert num_short >= 4 and num_others > 0
