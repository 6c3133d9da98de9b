"""Oracle: transformers' AutoTokenizer on sources and targets: mBART, mBART-50 and NLLB with languages set, M2M-100 and Marian, which it
runs over SentencePiece itself, with the ids of vocab.json."""

import io
import json

import pytest
import sentencepiece
from transformers import AutoTokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from test_tokenizer import ADVERSARIAL, CORPUS
from test_tokenizer_kinds import RANDOM
from tiny_translation import LANGUAGES, save_tokenizer

TEXTS = CORPUS[:7] + ADVERSARIAL + RANDOM[:150] + ["  two  spaces ", " ", "", "a\nb\tc", "E\u0301cole NAÏVE ﬁne \u2581x", ">>fra<< Hello", ">>xyz<<Hello",
                                                   ">>fra", "x >>fra<< y", "__en__ x", "</s> x <unk>y<pad>", "日本 😀 ﷺ"]
OTHER = ["Le chat dort sur la chaise verte et la pluie tombe encore.", "Où est la gare ? Elle est près d'ici, à gauche.", "Nous étions déjà partis hier soir."]


def pieces(lines, kind, **settings):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines * 3), model_writer=out, minloglevel=2, hard_vocab_limit=False,
                                             model_type=kind, vocab_size=330, **settings)
    return out.getvalue()


def names(model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def save_m2m_100(folder, kind, **settings):
    model = pieces(CORPUS, kind)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    kept = [name for i, name in enumerate(names(model)) if i > 2 and i % 9]  # some pieces have no id
    vocab = {name: i for i, name in enumerate(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *reversed(kept), "é"]))}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    codes = FAIRSEQ_LANGUAGE_CODES[settings.get("language_codes", "m2m100")]
    settings["additional_special_tokens"] = [f"__{code}__" for code in codes]  # as published files have them
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "M2M100Tokenizer", **settings}))


def save_marian(folder, kind, **settings):
    models = {"source": pieces(CORPUS, kind), "target": pieces(OTHER * 4 + CORPUS[:3], kind)}
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    joined = dict.fromkeys(name for model in models.values() for i, name in enumerate(names(model)) if i > 2 and i % 9)
    vocab = {name: i for i, name in enumerate(["</s>", "<unk>", ">>fra<<", *joined, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer", **settings}))


def compare(probe, folder, languages=None):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if languages is None and type(tokenizer).__name__ == "M2M100Tokenizer":
        tokenizer.tgt_lang = tokenizer.src_lang  # as the others do by themselves
    request = dict(do="translate_all", folder=str(folder), texts=TEXTS + OTHER)
    if languages:
        tokenizer.src_lang, tokenizer.tgt_lang = languages
        request.update(source=languages[0], target=languages[1])
    for length in (0, 9):
        bounds = dict(max_length=length, truncation=True) if length else {}
        ours = probe.ask(**request, max_length=length)
        assert "error" not in ours, ours
        for text, source, target in zip(request["texts"], ours["sources"], ours["targets"]):
            assert source == tokenizer(text, **bounds)["input_ids"], text
            assert target == tokenizer(text_target=text, **bounds)["input_ids"], text
    return tokenizer


def compare_decoded(probe, folder, tokenizer):
    for text in OTHER + CORPUS[:5]:
        ids = tokenizer(text_target=text)["input_ids"]
        assert probe.ask(do="decode", folder=str(folder), ids=ids)["text"].strip() == tokenizer.decode(ids, skip_special_tokens=True).strip()


@pytest.mark.parametrize("kind", LANGUAGES)
@pytest.mark.parametrize("turned", [False, True], ids=["to", "fro"])
def test_languages(probe, tmp_path, kind, turned):
    save_tokenizer(kind, tmp_path)
    compare(probe, tmp_path, LANGUAGES[kind][::-1] if turned else LANGUAGES[kind])
    error = probe.ask(do="translate_all", folder=str(tmp_path), texts=[], source="xx", target=LANGUAGES[kind][0])["error"]
    assert 'languages: found "xx", expected a language of' in error and LANGUAGES[kind][0] in error


def test_nllb_as_it_was(probe, tmp_path):
    save_tokenizer("nllb", tmp_path)
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "legacy_behaviour": True}))
    compare(probe, tmp_path, LANGUAGES["nllb"])


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("settings,languages", [({}, None), ({"src_lang": "fr"}, ("de", "zu")), ({"language_codes": "wmt21"}, ("en", "de"))])
def test_m2m_100(probe, tmp_path, kind, settings, languages):
    save_m2m_100(tmp_path, kind, **settings)
    tokenizer = compare(probe, tmp_path, languages)
    compare_decoded(probe, tmp_path, tokenizer)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_marian(probe, tmp_path, kind):
    save_marian(tmp_path, kind, source_lang="en", target_lang="fr")
    compare_decoded(probe, tmp_path, compare(probe, tmp_path))


def test_marian_with_two_vocabularies_is_refused(probe, tmp_path):
    save_marian(tmp_path, "unigram", separate_vocabs=True)
    error = probe.ask(do="encode_all", folder=str(tmp_path), texts=["x"])["error"]
    assert "found separate_vocabs true, expected one vocabulary for both languages" in error
