"""Small translation models with tokenizers that mark languages (mBART, mBART-50, NLLB), and data as run_translation.py reads it.
Everything is a pure function of its arguments; nothing is downloaded."""

import json
import random

from tiny_bart import save_bart
from tiny_llama import WORDS

FAMILIES = {"mbart": "MBart", "mbart50": "MBart", "nllb": "M2M100"}
LANGUAGES = {"mbart": ("en_XX", "ro_RO"), "mbart50": ("en_XX", "de_DE"), "nllb": ("eng_Latn", "fra_Latn")}


def translated(word):
    return word[::-1]


def save_tokenizer(kind, folder):
    """Whole words of both languages as pieces, and their characters; returns its size."""
    import transformers

    words = [*dict.fromkeys(WORDS)]
    pieces = ["▁" + word for word in [*words, *map(translated, words)]]
    letters = ["▁", *sorted({*"".join(words)})]
    if kind == "nllb":
        vocab = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *letters])}
        merges = []
        for piece in pieces:
            for i in range(1, len(piece)):
                merged = piece[:i + 1]
                if merged not in vocab:
                    vocab[merged] = len(vocab)
                    merges.append((piece[:i], piece[i]))
        tokenizer = transformers.NllbTokenizer(vocab=vocab, merges=merges, additional_special_tokens=["eng_Latn", "fra_Latn", "deu_Latn"])
    else:
        codes = transformers.models.mbart.tokenization_mbart.FAIRSEQ_LANGUAGE_CODES
        codes = codes if kind == "mbart" else transformers.models.mbart50.tokenization_mbart50.FAIRSEQ_LANGUAGE_CODES
        vocab = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        vocab += [(piece, -3.0 - i / 100) for i, piece in enumerate(dict.fromkeys(pieces))]
        vocab += [(letter, -12.0 - i / 100) for i, letter in enumerate(letters)]
        vocab += [(code, 0.0) for code in codes] + [("<mask>", 0.0)]
        tokenizer = (transformers.MBartTokenizer if kind == "mbart" else transformers.MBart50Tokenizer)(vocab=vocab)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def save_translator(kind, folder, **settings):
    folder.mkdir(parents=True, exist_ok=True)
    size = save_tokenizer(kind, folder)
    layerdrop = dict(encoder_layerdrop=0.0, decoder_layerdrop=0.0) if kind == "nllb" else {}
    return save_bart(folder, vocab_size=size, tokenizer=False, family=FAMILIES[kind], scale_embedding=True, **{**layerdrop, **settings})


def save_translations(folder, kind, train=24, validation=6):
    """Sentences of two to five words; their translation is spelt backwards. Keys are languages without their countries."""
    source, target = (code.split("_")[0] for code in LANGUAGES[kind])
    rng = random.Random(5)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("validation", validation)):
        rows = []
        for _ in range(count):
            words = rng.choices(WORDS, k=rng.randint(2, 5))
            rows.append({"translation": {source: " ".join(words), target: " ".join(map(translated, words))}})
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
