"""Oracle: transformers' tokenizers over the same folders, called with truncation=True as scripts for pairs of texts call them
(and `tokenizers` where a class reads no plain texts): ids, segments, what fits into a length, and whether models get segments."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from test_tokenizer_classes import CLASSES, TEXTS, files  # noqa: F401: a fixture

PICKED = ["", "a", *TEXTS[:2], TEXTS[14], TEXTS[64], "<s> [CLS]Abc ''quoted`` </s>", "word " * 30]
PAIRS = [[first, second] for i, first in enumerate(PICKED) for second in (*PICKED[:2], PICKED[-1], PICKED[(5 * i + 3) % len(PICKED)])]
ALONE = [[text] for text in PICKED]
LENGTHS = (0, 5, 13, 40)


def theirs_of(tokenizer, texts, length, reads_text=True):
    """Ids and types. Lists are what takes an empty second text for one."""
    if reads_text:
        columns = list(zip(*texts))
        settings = {"truncation": True, "max_length": length} if length else {}
        encoded = tokenizer(*map(list, columns), return_token_type_ids=True, **settings)
        return encoded["input_ids"], encoded["token_type_ids"]
    backend = tokenizer._tokenizer
    backend.no_padding()
    backend.enable_truncation(length) if length else backend.no_truncation()
    encoded = backend.encode_batch([tuple(text) if len(text) == 2 else text[0] for text in texts])
    return [one.ids for one in encoded], [one.type_ids for one in encoded]


def compare(probe, folder, tokenizer, reads_text=True, lengths=LENGTHS):
    """Returns whether a text was cut."""
    cut = False
    for texts in (PAIRS, ALONE):
        empty, _ = theirs_of(tokenizer, [["", ""][:len(texts[0])]], 0, reads_text)
        whole, _ = theirs_of(tokenizer, texts, 0, reads_text)
        for length in lengths:
            if 0 < length < len(empty[0]):
                continue  # the reference lets such texts be longer than that
            ids, types = theirs_of(tokenizer, texts, length, reads_text)
            ours = probe.ask(do="join_all", folder=str(folder), texts=texts, max_length=length)
            assert "error" not in ours, ours
            for i, text in enumerate(texts):
                assert ours["ids"][i] == ids[i], (text, length)
                assert len(text) == 1 or ours["types"][i] == types[i], (text, length)
                assert ours["are_cut"][i] == (len(ids[i]) < len(whole[i])), (text, length)
            cut |= any(ours["are_cut"])
            assert ours["gives_types"] == ("token_type_ids" in tokenizer.model_input_names)
    return cut


@pytest.mark.parametrize("name", CLASSES)
def test_class(probe, files, tmp_path, name):  # noqa: F811
    builder, configs, reads_text = CLASSES[name]
    for number, config in enumerate(configs):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "tokenizer.json").write_text(files(builder, True))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **config}))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        assert compare(probe, folder, AutoTokenizer.from_pretrained(folder), reads_text)


NAMES = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2}
TOKENS = [(name, i) for name, i in NAMES.items() if i > 0]
PROCESSORS = {
    "none": None,
    "byte_level": processors.ByteLevel(),
    "untrimmed": processors.ByteLevel(trim_offsets=False),
    "template": processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=TOKENS),
    "second_first": processors.TemplateProcessing(single="$A [SEP]", pair="[CLS]:3 $B:1 [SEP]:2 $A:0", special_tokens=TOKENS),
    "twice": processors.TemplateProcessing(single="$A", pair="$A $B:1 [SEP] $A:2 [SEP]", special_tokens=TOKENS),
    "many_tokens": processors.TemplateProcessing(single="two $A", pair="two $A two:1 $B:1", special_tokens=[
        {"id": "two", "ids": [1, 2], "tokens": ["[CLS]", "[SEP]"]}]),
    "bert": processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
    "roberta": processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1)),
    "sequence": processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="[CLS] $A", pair="[CLS] $A [SEP] $B:1", special_tokens=TOKENS)]),
}


def save_words(folder, processor, **config):
    words = {word: i for i, word in enumerate([*NAMES, *dict.fromkeys(" ".join(PICKED).split())])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if processor:
        tokenizer.post_processor = processor
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config}))
    return tokenizer


@pytest.mark.parametrize("name", PROCESSORS)
def test_each_post_processor(probe, tmp_path, name):
    save_words(tmp_path, PROCESSORS[name])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert compare(probe, tmp_path, tokenizer, lengths=(*range(1, 18), 30, 45))


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_side_that_gives_way(probe, tmp_path, side):
    save_words(tmp_path, PROCESSORS["template"], truncation_side=side)
    assert compare(probe, tmp_path, PreTrainedTokenizerFast.from_pretrained(tmp_path))


def test_the_side_that_tokenizer_json_says(probe, tmp_path):
    tokenizer = save_words(tmp_path, PROCESSORS["template"])
    tokenizer.enable_truncation(9, direction="left")
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert compare(probe, tmp_path, PreTrainedTokenizerFast.from_pretrained(tmp_path), lengths=LENGTHS[1:])


@pytest.mark.parametrize("names", [["input_ids", "token_type_ids", "attention_mask"], ["input_ids"]])
def test_the_files_say_whether_models_get_segments(probe, tmp_path, names):
    save_words(tmp_path, PROCESSORS["template"], model_input_names=names)
    compare(probe, tmp_path, PreTrainedTokenizerFast.from_pretrained(tmp_path), lengths=(0,))


@pytest.mark.parametrize("change,message", [
    (dict(truncation_side="up"), 'tokenizer_config.json: found truncation_side "up", expected left or right'),
    (dict(model_input_names="ids"), 'tokenizer_config.json: found model_input_names "ids", expected a list')])
def test_what_the_settings_cannot_be(probe, tmp_path, change, message):
    save_words(tmp_path, None, **change)
    assert message in probe.ask(do="join_all", folder=str(tmp_path), texts=[["a", "b"]])["error"]


@pytest.mark.parametrize("pair,message", [
    (None, 'post_processor: found no "pair", expected one for two texts'),
    ([{"Sequence": {"id": "C", "type_id": 0}}], 'post_processor: found sequence "C", expected A or B'),
    ([{"Sequence": {"id": "A", "type_id": 300}}], "post_processor: found type_id 300, expected 0 to 255"),
    ([{"SpecialToken": {"id": "[MASK]", "type_id": 0}}], 'found no "[MASK]", expected one')])
def test_what_a_template_cannot_be(probe, tmp_path, pair, message):
    save_words(tmp_path, PROCESSORS["template"])
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["post_processor"]["pair"] = pair
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert message in probe.ask(do="join_all", folder=str(tmp_path), texts=[["a", "b"]])["error"]
