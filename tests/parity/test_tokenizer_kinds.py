"""Oracle: `tokenizers`: released kinds of pipelines trained here, over text, adversarial strings and 10,000 random
ones; and the grid of every model x every pre-tokenizer, over fewer."""

import json
import random
import unicodedata

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

from test_tokenizer import ADVERSARIAL, CORPUS, byte_ranges
from text_probe import ROOT

ADDED = [
    AddedToken("<|end|>", special=True, normalized=False),
    AddedToken("<|pad|>", special=True, normalized=False, rstrip=True),
    AddedToken("<|word|>", single_word=True, normalized=False),
    AddedToken("<|strip|>", lstrip=True, rstrip=True, normalized=False),
]
SPECIAL = ["<unk>", "[CLS]", "[SEP]"]
DOCUMENTS = [p.read_text() for p in sorted((ROOT / "docs").glob("**/*.md"))]


def random_strings(count):
    """Half of pools that exercise the rules, half of any characters that are assigned."""
    pick = random.Random(11)
    pools = ["abcXYZ019 '\n\r\t.,!?-_", "éßñ漢字カな한글абвعربي", "'s't'LL've <|end|>▁▁",
             "\u0301\u0308\u200d\ufe0f😀👩🏽🇩🇪\u00a0\u3000\u2028", "ﬁ①ｶﾞ㍿½²Ⅷ \u0323\u0302aeo"]
    known = [chr(c) for c in range(0x20000)
             if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    texts = []
    for i in range(count):
        chars = known if i % 2 else "".join(pools) if pick.random() < 0.5 else pick.choice(pools)
        texts.append("".join(pick.choice(chars) for _ in range(pick.randint(1, 30))))
    return texts


RANDOM = random_strings(10_000)
TEXTS = CORPUS[:7] + ADVERSARIAL + DOCUMENTS


def trained(model, trainer, pre_tokenizer, normalizer=None, decoder=None, post=None):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(CORPUS + DOCUMENTS[:6], trainer)
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.add_tokens(ADDED)
    if post:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


def unigram(pre_tokenizer, normalizer=None, vocab_size=400):
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, unk_token="<unk>", show_progress=False,
                                      special_tokens=SPECIAL)
    return trained(models.Unigram(), trainer, pre_tokenizer, normalizer, decoders.Metaspace(), ends)


def word_piece(pre_tokenizer, normalizer=None):
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]"] + SPECIAL,
                                        show_progress=False)
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizer, normalizer,
                   decoders.WordPiece(), ends)


def word_level(pre_tokenizer, normalizer=None):
    trainer = trainers.WordLevelTrainer(vocab_size=300, special_tokens=SPECIAL,
                                        show_progress=False)
    return trained(models.WordLevel(unk_token="<unk>"), trainer, pre_tokenizer, normalizer)


def sentence_piece_bpe(split):
    """As released SentencePiece models come: the whole text is one piece, bytes for the unknown."""
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=SPECIAL
                                  + [f"<0x{b:02X}>" for b in range(256)], limit_alphabet=60)
    first = trained(models.BPE(unk_token="<unk>"), trainer, pre_tokenizers.Metaspace())
    document = json.loads(first.to_str())
    document["model"].update(byte_fallback=True, fuse_unk=True)
    document["added_tokens"] = [t for t in document["added_tokens"] if "<0x" not in t["content"]]
    document["pre_tokenizer"]["split"] = split
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def ends(tokenizer):
    return processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[
        (name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")])


def words_with_suffix():
    trainer = trainers.BpeTrainer(vocab_size=600, end_of_word_suffix="</w>", show_progress=False,
                                  special_tokens=SPECIAL)
    return trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"), trainer,
                   pre_tokenizers.Whitespace(), normalizers.NFD(), decoders.BPEDecoder())


def words_with_prefix():
    trainer = trainers.BpeTrainer(vocab_size=600, continuing_subword_prefix="##",
                                  show_progress=False, special_tokens=SPECIAL)
    return trained(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"), trainer,
                   pre_tokenizers.BertPreTokenizer(), None, decoders.WordPiece())


P, N = pre_tokenizers, normalizers
KINDS = {
    "unigram": lambda: unigram(P.Metaspace()),
    "unigram_words": lambda: unigram(P.Sequence([P.WhitespaceSplit(), P.Metaspace()])),
    "unigram_whole": lambda: unigram(P.Metaspace(split=False), N.Replace(Regex(" {2,}"), " ")),
    "unigram_nmt": lambda: unigram(P.Metaspace(prepend_scheme="first"),
                                   N.Sequence([N.Nmt(), N.NFKC()])),
    "unigram_digits": lambda: unigram(P.Sequence([P.Digits(True), P.Punctuation(), P.Metaspace()])),
    "bert": lambda: word_piece(P.BertPreTokenizer(), N.BertNormalizer()),
    "bert_cased": lambda: word_piece(P.BertPreTokenizer(), N.BertNormalizer(lowercase=False)),
    "bert_accents": lambda: word_piece(P.BertPreTokenizer(), N.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)),
    "word_piece": lambda: word_piece(P.Whitespace(), N.Sequence([N.Lowercase(), N.StripAccents()])),
    "word_level": lambda: word_level(P.Whitespace()),
    "word_level_scripts": lambda: word_level(P.UnicodeScripts(), N.Strip()),
    "word_level_characters": lambda: word_level(P.CharDelimiterSplit("e")),
    "word_level_lengths": lambda: word_level(P.FixedLength(3)),
    "word_level_digits": lambda: word_level(P.Sequence(
        [P.Digits(False), P.Punctuation("merged_with_previous"), P.WhitespaceSplit()])),
    "sentence_piece_bpe": lambda: sentence_piece_bpe(False),
    "sentence_piece_bpe_split": lambda: sentence_piece_bpe(True),
    "bpe_suffix": words_with_suffix,
    "bpe_prefix": words_with_prefix,
}


@pytest.fixture(scope="module", params=KINDS)
def built(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = KINDS[request.param]()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, tokenizer


def compare(probe, folder, tokenizer, texts):
    ours = probe.ask(do="encode_all", folder=str(folder), texts=texts)
    assert "error" not in ours, ours
    for text, ids, ranges, theirs in zip(texts, ours["ids"], ours["ranges"],
                                         tokenizer.encode_batch(texts), strict=True):
        assert ids == theirs.ids, repr(text)
        assert ranges == byte_ranges(text, theirs.offsets), repr(text)


def test_ids_and_ranges(probe, built):
    folder, tokenizer = built
    compare(probe, folder, tokenizer, TEXTS + RANDOM)


def test_decoding(probe, built):
    folder, tokenizer = built
    pick = random.Random(5)
    lists = [tokenizer.encode(text).ids for text in TEXTS[:40] + RANDOM[:200]]
    lists += [[pick.randrange(tokenizer.get_vocab_size()) for _ in range(20)] for _ in range(100)]
    for ids in lists:
        for skip in (True, False):
            ours = probe.ask(do="decode", folder=str(folder), ids=ids, skip=skip)
            assert ours["text"] == tokenizer.decode(ids, skip_special_tokens=skip)
            assert ours["streamed"] == ours["text"]


# --- every model x every pre-tokenizer -------------------------------------------------------

BEHAVIORS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
GRID_TEXTS = CORPUS[:7] + ADVERSARIAL + RANDOM[:250]
PRE_TOKENIZERS = {
    "none": lambda: None,
    **{f"byte_level_{p}_{r}": lambda p=p, r=r: P.ByteLevel(add_prefix_space=p, use_regex=r) for p in (False, True) for r in (False, True)},
    "whitespace": P.Whitespace,
    "whitespace_split": P.WhitespaceSplit,
    "bert": P.BertPreTokenizer,
    **{f"punctuation_{b}": lambda b=b: P.Punctuation(b) for b in BEHAVIORS},
    **{f"digits_{i}": lambda i=i: P.Digits(individual_digits=i) for i in (False, True)},
    "delimiter": lambda: P.CharDelimiterSplit(" "),
    "lengths": lambda: P.FixedLength(4),
    "scripts": P.UnicodeScripts,
    **{f"metaspace_{s}_{c}": lambda s=s, c=c: P.Metaspace(prepend_scheme=s, split=c)
       for s in ("always", "first", "never") for c in (False, True)},
    **{f"split_{b}_{i}": lambda b=b, i=i: P.Split(Regex(r"\s+|\p{P}"), b, i) for b in BEHAVIORS for i in (False, True)},
    "sequence": lambda: P.Sequence([P.WhitespaceSplit(), P.Punctuation(), P.Digits(True)]),
    "sequence_of_bytes": lambda: P.Sequence([P.UnicodeScripts(), P.ByteLevel(add_prefix_space=False)]),
}
QUIET = {"show_progress": False, "special_tokens": SPECIAL}
GRID = {
    "bpe": (lambda: models.BPE(unk_token="<unk>"), lambda: trainers.BpeTrainer(vocab_size=300, limit_alphabet=80, **QUIET)),
    "bpe_bytes": (lambda: models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True), lambda: trainers.BpeTrainer(
        vocab_size=500, limit_alphabet=60, **{**QUIET, "special_tokens": SPECIAL + [f"<0x{b:02X}>" for b in range(256)]})),
    "bpe_affixes": (lambda: models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>"),
                    lambda: trainers.BpeTrainer(vocab_size=300, limit_alphabet=80, continuing_subword_prefix="##",
                                                end_of_word_suffix="</w>", **QUIET)),
    "unigram": (models.Unigram, lambda: trainers.UnigramTrainer(vocab_size=200, unk_token="<unk>", n_sub_iterations=1, **QUIET)),
    "word_piece": (lambda: models.WordPiece(unk_token="<unk>"), lambda: trainers.WordPieceTrainer(vocab_size=300, limit_alphabet=80, **QUIET)),
    "word_level": (lambda: models.WordLevel(unk_token="<unk>"), lambda: trainers.WordLevelTrainer(vocab_size=200, **QUIET)),
}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_grid(probe, tmp_path, name):
    for kind, (model, trainer) in GRID.items():
        tokenizer = Tokenizer(model())
        pre_tokenizer = PRE_TOKENIZERS[name]()
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        # Lines, so that what cuts nothing leaves words that come again.
        tokenizer.train_from_iterator([line[:40] for text in CORPUS for line in text.splitlines()], trainer())
        tokenizer.add_tokens(ADDED)
        (tmp_path / kind).mkdir()
        tokenizer.save(str(tmp_path / kind / "tokenizer.json"))
        compare(probe, tmp_path / kind, tokenizer, GRID_TEXTS)


FORMS = {"NFC": normalizers.NFC(), "NFD": normalizers.NFD(), "NFKC": normalizers.NFKC(), "NFKD": normalizers.NFKD(),
         "Lowercase": normalizers.Lowercase(), "Nmt": normalizers.Nmt(), "StripAccents": normalizers.StripAccents(),
         "decomposed": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
         "Bert": normalizers.BertNormalizer(), "Bert cased": normalizers.BertNormalizer(lowercase=False, strip_accents=True)}


@pytest.mark.parametrize("name", FORMS)
def test_every_code_point(probe, tmp_path, name):
    """Each alone, and where its combining class decides: before a mark of a low class and behind one of a high."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.normalizer = FORMS[name]
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    points = [chr(c) for c in (*range(0x20, 0xD800), *range(0xF900, 0x33500), *range(0xE0000, 0xE0200))]
    for pattern in ("a{}b", "a{}\u0334", "a\u0315{}"):
        texts = ["\n".join(pattern.format(c) for c in points[i:i + 64]) for i in range(0, len(points), 64)]
        ours = probe.ask(do="encode_all", folder=str(tmp_path), texts=texts)
        assert "error" not in ours, ours
        for i, (ids, theirs) in enumerate(zip(ours["ids"], tokenizer.encode_batch(texts), strict=True)):
            assert ids == theirs.ids, (pattern, hex(ord(points[64 * i])))


def test_every_script(probe, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.UnicodeScripts()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = [pattern.format(chr(c)) for c in (*range(0x20, 0xD800), *range(0xF900, 0x33500))
             for pattern in ("a{}", "\u0431{}", "\u6f22{}a", "\u2ac1{}", "\u0301{}", "\u0628{}", "\u0915{}")]
    ours = probe.ask(do="encode_all", folder=str(tmp_path), texts=texts)
    for text, ids, theirs in zip(texts, ours["ids"], tokenizer.encode_batch(texts), strict=True):
        assert ids == theirs.ids, hex(ord(text[1]))
