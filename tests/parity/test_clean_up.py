"""Oracle: transformers' decode() with clean_up_tokenization_spaces of tokenizer_config.json, whole and token by token."""

import itertools
import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer

# Every piece of the patterns, and characters that take no part.
PIECES = [" ", ".", "?", "!", ",", "'", "n", "t", "m", "s", "v", "r", "e", "x", "é", "漢"]
TEXTS = ["a . b ? c ! d , e", "do n't I 'm he 's we 've they 're", "x ' y", "a  .  b", "' ' '", " n 't 's  ' 's . '", "run n't over , never"]


def pieces_tokenizer(kind):
    """A token for each character, so that decoding gives the text itself."""
    vocab = {piece: i for i, piece in enumerate(PIECES + ["<unk>", "o", "d", "a", "b", "c", "I", "h", "w", "y", "u"])}
    if kind == "unigram":
        model = models.Unigram([(piece, -1.0) for piece in vocab], unk_id=vocab["<unk>"])
    else:
        model = {"words": lambda: models.WordLevel(vocab, unk_token="<unk>"), "bpe": lambda: models.BPE(vocab, [])}[kind]()
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer, vocab


SETTINGS = [{"clean_up_tokenization_spaces": True}, {"clean_up_tokenization_spaces": False}, {}, {
    "clean_up_tokenization_spaces": True, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}]


@pytest.mark.parametrize("kind", ["words", "unigram", "bpe"])
def test_clean_up(probe, tmp_path, kind):
    tokenizer, vocab = pieces_tokenizer(kind)
    rows = [[vocab[c] for c in text if c in vocab] for text in TEXTS]
    triples = list(itertools.product(PIECES[:12] + ["x"], repeat=3))
    rows += [[vocab[p] for p in triple] for triple in triples[::7]]
    changed = 0
    for number, settings in enumerate(SETTINGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **settings}))
        theirs = AutoTokenizer.from_pretrained(folder)
        for row in rows:
            decoded = probe.ask(do="decode", folder=str(folder), ids=row)
            assert decoded["text"] == theirs.decode(row, skip_special_tokens=True), row
            assert decoded["streamed"] == decoded["text"], row
            changed += decoded["text"] != theirs._tokenizer.decode(row)
    assert changed > 20
