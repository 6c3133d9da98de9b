"""Oracle: `tokenizers` and transformers' AutoTokenizer, on tokenizers trained here."""

import json
import random
import unicodedata

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from text_probe import ROOT

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Of gpt-oss: words by the case of their letters, with marks and endings.
O200K = "|".join([
    *(rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]{first}[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]{rest}"
      r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?" for first, rest in ("*+", "+*")),
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
QWEN2 = LLAMA3.replace("{1,3}", "")
CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock, isn't it?\n\n",
    "Übergrößen kosten 3,50 € – naïve café déjà vu; Ærø, Šumava, Łódź.\n",
    "Быстрая коричневая лиса прыгает через ленивую собаку.\r\n",
    "敏捷的棕色狐狸跳过懒狗。すばやい茶色の狐。한국어 문장입니다.\n",
    "def f(x):\n    return x ** 2  # comment\n\tif x:\n\t\tpass\n",
    "שלום עולם مرحبا بالعالم नमस्ते दुनिया ก็ได้ 👩‍👩‍👧‍👦 🇩🇪 👍🏽\n",
    'He said: "We\'ll see!" They\'ve gone... I\'M DONE, you\'RE NOT.\n',
] * 4
ADVERSARIAL = [
    "",
    " ",
    "\n",
    "   \n\n \t x",
    "a\n\n  b",
    "Hello  world",
    "I'LL don't 'ſtop 'S 's",
    "12345678 ١٢٣٤ ²³ Ⅷ ½",
    "(abc) ¿qué?  \n  \r\n x\r\r\n",
    "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 o\u0308\u0323 \u1100\u1161\u11a8 \ufb01 ſ K Å",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad",
    "\u00a0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u0085\u180e end",
    "\x00\x01\x07\x08\x0b\x0c\x1b\x1c\x1f\x7f\x80\x9f",
    "a" * 3000,
    " " * 1000 + "x" + " " * 1000,
    "\n" * 500 + "\t" * 500,
    "!" * 777 + "?" * 3,
    "ab" * 2000,
    "é" * 1500,
    "漢字" * 700,
    "<|end|>text<|end|> <|end|>\n<|pad|>  <|word|>x <|word|> y  <|strip|>  z",
    "<|en<|end|>d|> <|END|> <|norm|>e\u0301<|norm|>",
    "\U0001f600\U000e0001\U0010fffd\ufffd\ufffe",
    "مَرْحَبًا नि कि ก็ Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢",
]
ADDED = [
    AddedToken("<|end|>", special=True, normalized=False),
    AddedToken("<|pad|>", special=True, normalized=False, rstrip=True),
    AddedToken("<|word|>", single_word=True, normalized=False),
    AddedToken("<|strip|>", lstrip=True, rstrip=True, normalized=False),
    AddedToken("<|norm|>é", normalized=True),
]


def random_texts(count):
    pick = random.Random(7)
    pools = [
        "abcXYZ019 '\n\r\t.,!?-_",
        "éßñ漢字カな한글абвعربי",
        "\u0301\u0308\u200d\ufe0f😀👩🏽🇩🇪\u00a0\u3000\u2028",
        "'s't'LL've <|end|>",
    ]
    texts = []
    for _ in range(count):
        chars = "".join(pools) if pick.random() < 0.5 else pick.choice(pools)
        texts.append("".join(pick.choice(chars) for _ in range(pick.randint(1, 60))))
    for _ in range(count // 4):  # any character that Unicode 14 assigns in the first two planes
        chars = [chr(pick.randint(0, 0x1FFFF)) for _ in range(40)]
        texts.append("".join(c for c in chars if unicodedata.category(c) not in ("Cn", "Cs")))
    return texts


TEXTS = CORPUS[:7] + ADVERSARIAL + random_texts(400)


def train(pre_tokenizer, normalizer=None, post=None, **options):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if options:
        document = json.loads(tokenizer.to_str())
        document["model"].update(options)
        tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.add_tokens(ADDED)
    if post:
        tokenizer.post_processor = post(tokenizer)
    return tokenizer


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior, invert),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def bos(tokenizer):
    return processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<|end|> $A",
                special_tokens=[("<|end|>", tokenizer.token_to_id("<|end|>"))],
            ),
        ]
    )


def byte_level(prefix):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix)


BUILDERS = {
    "gpt2": lambda: train(byte_level(False)),
    "gpt2_prefix": lambda: train(
        byte_level(True), post=lambda t: processors.ByteLevel(trim_offsets=True)
    ),
    "llama3": lambda: train(split(LLAMA3), post=bos),
    "llama3_ignore_merges": lambda: train(split(LLAMA3), ignore_merges=True, post=bos),
    "o200k": lambda: train(split(O200K)),
    "qwen2": lambda: train(split(QWEN2), normalizers.NFC()),
    "nfkc_lower": lambda: train(
        byte_level(False), normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "nfd_replace": lambda: train(
        byte_level(False),
        normalizers.Sequence([normalizers.NFD(), normalizers.Replace("o", "00")]),
    ),
    "digits": lambda: train(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), byte_level(False)])
    ),
    "removed": lambda: train(split(r"\s+", "removed")),
    "previous": lambda: train(split(r"[.,]", "merged_with_previous")),
    "next": lambda: train(split(r"[A-Z ]", "merged_with_next")),
    "contiguous": lambda: train(split(r"\W", "contiguous")),
    "invert": lambda: train(split(r"\w+|\n", "removed", True)),
}


@pytest.fixture(scope="module", params=BUILDERS)
def built(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer = BUILDERS[request.param]()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, tokenizer


def byte_ranges(text, offsets):
    position = [0]
    for char in text:
        position.append(position[-1] + len(char.encode()))
    return [[position[begin], position[end]] for begin, end in offsets]


def same_ids(probe, folder, tokenizer, text, special):
    ours = probe.ask(do="encode", folder=str(folder), text=text, special=special)
    assert "error" not in ours, ours
    theirs = tokenizer.encode(text, add_special_tokens=special)
    assert ours["ids"] == theirs.ids, repr(text)
    return ours, theirs


def test_ids_and_decoding(probe, built):
    folder, tokenizer = built
    for text in TEXTS:
        for special in (True, False):
            ours, theirs = same_ids(probe, folder, tokenizer, text, special)
        for skip in (True, False):
            decoded = probe.ask(do="decode", folder=str(folder), ids=ours["ids"], skip=skip)
            assert decoded["text"] == tokenizer.decode(theirs.ids, skip_special_tokens=skip)
            assert decoded["streamed"] == decoded["text"]


def test_ranges(probe, built):
    folder, tokenizer = built
    for text in TEXTS:
        ours, theirs = same_ids(probe, folder, tokenizer, text, True)
        assert ours["ranges"] == byte_ranges(text, theirs.offsets), repr(text)


def test_decoding_of_random_ids(probe, built):
    folder, tokenizer = built
    pick = random.Random(3)
    for _ in range(100):
        ids = [pick.randrange(tokenizer.get_vocab_size()) for _ in range(pick.randint(1, 30))]
        ours = probe.ask(do="decode", folder=str(folder), ids=ids, skip=True)
        assert ours["text"] == tokenizer.decode(ids, skip_special_tokens=True)
        assert ours["streamed"] == ours["text"]


def test_reference_text(probe, tmp_path):
    tokenizer = train(split(LLAMA3), post=bos)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in sorted(ROOT.glob("**/*.md"))[:20] + sorted((ROOT / "src").glob("**/*.cpp"))[:20]:
        same_ids(probe, tmp_path, tokenizer, path.read_text(), True)


def test_byte_fallback_and_unknown(probe, tmp_path):
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "ab": 5, "▁ab": 6}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    bytes_ = {f"<0x{b:02X}>": 7 + b for b in range(256)}
    for name, model in {
        "fallback": models.BPE(
            {**vocab, **bytes_}, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True
        ),
        "fused": models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True),
        "single": models.BPE(vocab, merges, unk_token="<unk>"),
        "dropped": models.BPE(vocab, merges),
    }.items():
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        tokenizer.decoder = decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        )
        (tmp_path / name).mkdir()
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        for text in ["ab a b", "éé x ab", "漢 b", " a", "", "aab\n\nb"]:
            ours, theirs = same_ids(probe, tmp_path / name, tokenizer, text, True)
            decoded = probe.ask(do="decode", folder=str(tmp_path / name), ids=ours["ids"])
            assert decoded["text"] == tokenizer.decode(theirs.ids) == decoded["streamed"]


CLASSES = {
    "llama_byte_level": ("llama", {"tokenizer_class": "LlamaTokenizer"}),
    "fast": ("llama", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}),
    "gpt2": ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}),
    "qwen2": ("qwen2", {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|pad|>"}),
    "qwen2_declared_otherwise": ("qwen2", {"tokenizer_class": "PreTrainedTokenizerFast"}),
    "extra": (
        "llama",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True},
            "additional_special_tokens": ["<|a|>", "<|b|>"],
            "added_tokens_decoder": {
                "0": {"content": "<|end|>", "lstrip": True, "special": True, "normalized": False}
            },
        },
    ),
}


@pytest.mark.parametrize("name", CLASSES)
def test_class_rules(probe, tmp_path, name):
    model_type, config = CLASSES[name]
    tokenizer = train(split(LLAMA3), post=bos)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    ours = probe.ask(do="describe", folder=str(tmp_path))
    assert "error" not in ours, ours
    assert {v: int(k) for k, v in ours["tokens"].items()} == theirs.get_vocab()
    named = [theirs.bos_token, theirs.eos_token, theirs.unk_token, theirs.pad_token]
    assert ours["specials"] == named
    for text in TEXTS[:80] + ["<s>a</s> <|a|>b<|b|> 12345 e\u0301", "x <|endoftext|> <|end|>"]:
        ids = theirs(text)["input_ids"]
        mine = probe.ask(do="encode", folder=str(tmp_path), text=text)
        assert mine["ids"] == ids, repr(text)
        decoded = probe.ask(do="decode", folder=str(tmp_path), ids=ids)
        assert decoded["text"] == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("legacy", [None, False, True])
def test_llama_class(probe, tmp_path, legacy):
    letters = ["▁", "a", "b", "[", "▁a", "▁b", "ab", "▁ab", "▁["]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{b:02X}>": 3 + b for b in range(256)}}
    vocab.update({t: 259 + i for i, t in enumerate(letters)})
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b"), ("▁", "[")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}
    if legacy is not None:
        config["legacy"] = legacy
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in ["</s>[a", " a", "a  b", "ab é</s> b", "", "<s>a<s>b c"]:
        ids = theirs(text)["input_ids"]
        assert probe.ask(do="encode", folder=str(tmp_path), text=text)["ids"] == ids, repr(text)
        decoded = probe.ask(do="decode", folder=str(tmp_path), ids=ids)
        assert decoded["text"] == theirs.decode(ids, skip_special_tokens=True), repr(text)


def test_long_runs_are_quick(probe, tmp_path):
    tokenizer = train(split(LLAMA3))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for text in ["a" * 200_000, " " * 200_000, "é" * 100_000, "ab" * 100_000, "!" * 200_000]:
        same_ids(probe, tmp_path, tokenizer, text, True)
