"""Oracle: transformers' AutoTokenizer, ids and offsets, with settings of tokenizer_config.json that change how a text is cut
whatever the class is."""

import json

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from test_tokenizer import ADVERSARIAL, CORPUS, LLAMA3, split, train
from test_tokenizer_files import compare
from test_tokenizer_kinds import RANDOM, unigram

MARKED = ["<s>a</s>", "x <unk><pad> y", "<|im_start|>user\nHi<|im_end|>", "a <tool>b</tool> c", "<|im_<s>start|>", "<s><s> </s>"]
TEXTS = MARKED + CORPUS[:7] + ADVERSARIAL + RANDOM[:800]
MORE = [AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<tool>", special=False, normalized=False),
        AddedToken("<|im_end|>", special=True, normalized=False, rstrip=True), AddedToken("</tool>", special=False)]


def write_folder(folder, tokenizer, model_config=None, **config):
    tokenizer.add_tokens(MORE)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps(model_config or {"model_type": "mixtral"}))


@pytest.mark.parametrize("config", [
    {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"},
    {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"},
    {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>"},
], ids=lambda config: config["tokenizer_class"])
@pytest.mark.parametrize("splits", [True, False])
def test_split_special_tokens(probe, tmp_path, config, splits):
    is_t5 = config["tokenizer_class"] == "T5Tokenizer"
    write_folder(tmp_path, unigram(pre_tokenizers.Metaspace()) if is_t5 else train(split(LLAMA3)), split_special_tokens=splits, **config)
    compare(probe, tmp_path, TEXTS, specials=False)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    mark = theirs.convert_tokens_to_ids("<|im_start|>")
    ids = probe.ask(do="encode", folder=str(tmp_path), text="<|im_start|>user", special=False)["ids"]
    assert (mark in ids) is not splits
    assert theirs.convert_tokens_to_ids("<tool>") in probe.ask(do="encode", folder=str(tmp_path), text="a <tool>")["ids"]


def test_split_special_tokens_must_be_a_flag(probe, tmp_path):
    write_folder(tmp_path, train(split(LLAMA3)), tokenizer_class="PreTrainedTokenizerFast", split_special_tokens="yes")
    error = probe.ask(do="encode", folder=str(tmp_path), text="a")["error"]
    assert 'tokenizer_config.json: found string for "split_special_tokens", expected true or false' in error


def large(pre_tokenizer, num_more=100_100):
    """Byte-level BPE of so many tokens that transformers looks whether it is one of Mistral's."""
    vocab = {c: i for i, c in enumerate(bytes_to_unicode().values())}
    merges = []
    for word in ["ab", "ld", "oW", "Wo", "2", "éB"]:
        pieces = [bytes_to_unicode()[b] for b in word.encode()]
        for i in range(1, len(pieces)):
            pair = ("".join(pieces[:i]), pieces[i])
            if "".join(pair) not in vocab:
                vocab["".join(pair)] = len(vocab)
                merges.append(pair)
    for i in range(num_more):
        vocab[f"##{i}"] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_level(regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def wrong_split():
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\w+|[^\w]+"), "isolated"), byte_level()])


MISTRALS = {
    "mistral3": (wrong_split, 100_100, {"model_type": "mistral3", "transformers_version": "4.57.1"}),
    "of no version": (wrong_split, 100_100, {"model_type": "mistral"}),
    "of no type": (wrong_split, 100_100, {"transformers_version": "4.40.0"}),
    "of version 5": (wrong_split, 100_100, {"model_type": "mistral", "transformers_version": "5.0.0"}),
    "of another type": (wrong_split, 100_100, {"model_type": "llama", "transformers_version": "4.57.1"}),
    "small": (wrong_split, 1000, {"model_type": "mistral"}),
    "without a sequence": (lambda: byte_level(True), 100_100, {"model_type": "mistral"}),
    "metaspace": (lambda: pre_tokenizers.Metaspace(), 100_100, {"model_type": "pixtral"}),
}


@pytest.mark.parametrize("name", MISTRALS)
def test_fix_mistral_regex(probe, tmp_path, name):
    pre_tokenizer, num_more, model_config = MISTRALS[name]
    write_folder(tmp_path, large(pre_tokenizer(), num_more), model_config, tokenizer_class="PreTrainedTokenizerFast", fix_mistral_regex=True)
    texts = ["helloWorld abAB 12 22", "oWorld éB 2222", "it'S ab  \n\n x/ y//\n"] + CORPUS[:7] + ADVERSARIAL[:20]
    compare(probe, tmp_path, texts, specials=False)


def test_a_version_that_nobody_knows(probe, tmp_path):
    tokenizer = train(split(LLAMA3))
    (tmp_path / "tokenizer.json").write_text(json.dumps({**json.loads(tokenizer.to_str()), "version": "2.0"}))
    with pytest.raises(Exception, match="Unknown tokenizer version '2.0'"):
        Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    error = probe.ask(do="encode", folder=str(tmp_path), text="a")["error"]
    assert 'tokenizer.json: found version "2.0", expected "1.0"' in error
