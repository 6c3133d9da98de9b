"""Oracle: transformers' AutoTokenizer, on folders that hold a SentencePiece model and no tokenizer.json, for each class that
reads one: ids, ranges, named tokens, vocabulary and decoded text, over small trained models of both kinds."""

import io
import json

import pytest
import sentencepiece
from transformers import AutoTokenizer, XGLMTokenizer
from transformers.convert_slow_tokenizer import XGLMConverter, import_protobuf

from test_tokenizer import ADVERSARIAL, CORPUS, byte_ranges
from test_tokenizer_kinds import RANDOM

CODES = ["en_XX", "de_DE", "eng_Latn", "deu_Latn", "__eng__"]
TEXTS = CORPUS[:7] + ADVERSARIAL + RANDOM[:200] + [
    "Hello [CLS] a  [MASK] b[SEP]c <mask> d<mask>e </s>x <s> <pad> <unk> <user> <user>x y<user> <sep><cls>",
    "``quoted'' 1,234, 5, <extra_id_0> <extra_id_99>x <unk_5> <mask_1>a <mask_2> en_XX eng_Latn __eng__ <madeupword3> ▁▁a",
    "<s>NOTUSED </s>NOTUSED <unk>NOTUSED <eop> <eod> ▁<PRE> <FILL_ME> <start_of_turn>user\n"]
# As published models order their first pieces: those of T5 and Pegasus, of Llama and fairseq, of Gemma, of ALBERT.
FIRST = {"t5": dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1), "llama": dict(unk_id=0, bos_id=1, eos_id=2),
         "gemma": dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3),
         "albert": dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols="[CLS],[SEP],[MASK]"),
         "xlnet": dict(unk_id=0, bos_id=1, eos_id=2, control_symbols="<cls>,<sep>,<pad>,<mask>,<eod>,<eop>"),
         "marked": dict(unk_id=0, bos_id=1, eos_id=2, control_symbols="[CLS],[SEP],[MASK],<mask>")}
KINDS = {"unigram": dict(model_type="unigram", vocab_size=320),
         "unigram_user": dict(model_type="unigram", vocab_size=320, user_defined_symbols="<user>,<mask>x"),
         "bpe": dict(model_type="bpe", vocab_size=420, user_defined_symbols="<user>"),
         "bpe_bytes": dict(model_type="bpe", vocab_size=700, byte_fallback=True, normalization_rule_name="identity",
                           user_defined_symbols="<user>,\n\n")}
UNIGRAM, BPE = ["unigram", "unigram_user"], ["bpe", "bpe_bytes"]
MORE = {"additional_special_tokens": ["<user>", "<tool>"]}
# The order of the first pieces, the kinds of models, settings of tokenizer_config.json.
CLASSES = {
    "LlamaTokenizer": ("llama", BPE + UNIGRAM, [{}, {"legacy": True}, {"legacy": False, "add_prefix_space": False}, MORE]),
    "CodeLlamaTokenizer": ("llama", BPE, [{}, {"add_prefix_space": False}]),
    "GemmaTokenizer": ("gemma", BPE, [{}, MORE]),
    "Siglip2Tokenizer": ("gemma", BPE, [{}]),
    "Tipsv2Tokenizer": ("t5", BPE, [{}, {"do_lower_case": False}]),
    "T5Tokenizer": ("t5", UNIGRAM, [{}, {"extra_ids": 3}, {"additional_special_tokens": [f"<extra_id_{i}>" for i in range(100)]}]),
    "VideoPrismTokenizer": ("t5", UNIGRAM, [{}]),
    "LasrTokenizer": ("t5", UNIGRAM, [{}]),
    "UdopTokenizer": ("t5", UNIGRAM, [{}]),
    "PegasusTokenizer": ("t5", UNIGRAM, [{}, {"offset": 5, "mask_token": "<mask_2>", "mask_token_sent": "<mask_1>"},
                                         {"offset": 2, "mask_token_sent": None}]),
    "AlbertTokenizer": ("albert", UNIGRAM, [{}, {"do_lower_case": False, "keep_accents": True}]),
    "FNetTokenizer": ("albert", UNIGRAM, [{}]),
    "RemBertTokenizer": ("albert", UNIGRAM, [{}, {"do_lower_case": True}]),
    "DebertaV2Tokenizer": ("marked", UNIGRAM, [{}, {"split_by_punct": True, "do_lower_case": True}]),
    "BigBirdTokenizer": ("marked", UNIGRAM, [{}, {"mask_token": {"__type": "AddedToken", "content": "[MASK]", "lstrip": True}}]),
    "XLNetTokenizer": ("xlnet", UNIGRAM, [{}, {"do_lower_case": True}]),
    "XLMRobertaTokenizer": ("llama", UNIGRAM, [{}, {"mask_token": "<other>", "bos_token": "<b>"}]),
    "LayoutXLMTokenizer": ("llama", UNIGRAM, [{}]),
    "CamembertTokenizer": ("llama", UNIGRAM, [{}, {"add_prefix_space": False}, MORE]),
    "BarthezTokenizer": ("marked", UNIGRAM, [{}]),
    "MBartTokenizer": ("llama", UNIGRAM, [{}, {"src_lang": "de_DE"}]),
    "MBart50Tokenizer": ("llama", UNIGRAM, [{}, {"src_lang": "de_DE"}]),
    "NllbTokenizer": ("llama", BPE, [{}, {"additional_special_tokens": CODES, "src_lang": "deu_Latn"},
                                     {"additional_special_tokens": CODES, "legacy_behaviour": True}]),
    "SeamlessM4TTokenizer": ("llama", BPE, [{}, {"additional_special_tokens": CODES}]),
    "ReformerTokenizer": ("llama", BPE, [{}]),
    "SomethingTokenizer": ("llama", BPE + UNIGRAM, [{}, {"add_bos_token": True, "add_eos_token": True}]),
    "PreTrainedTokenizerFast": ("marked", ["bpe_bytes"], [
        {"added_tokens_decoder": {"1": {"content": "<begin>", "special": True}, "2": {"content": "</s>", "special": True}}}]),
}
# Without an unknown token and bytes, `tokenizers` leaves unknown characters out and its later offsets are that much too small.
WITHOUT_UNKNOWN = ("LlamaTokenizer", "Tipsv2Tokenizer")
# Those that want words and boxes: their inner tokenizer is compared.
OF_WORDS = ("UdopTokenizer", "LayoutXLMTokenizer")


@pytest.fixture(scope="module")
def models():
    """The trained models, each made once."""
    made = {}

    def model(first, kind):
        if (first, kind) not in made:
            out = io.BytesIO()
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS * 3), model_writer=out, minloglevel=2,
                                                     hard_vocab_limit=False, **FIRST[first], **KINDS[kind])
            made[first, kind] = out.getvalue()
        return made[first, kind]

    return model


def encoded_by(tokenizer, name):
    if name not in OF_WORDS:
        encoded = tokenizer(TEXTS, return_offsets_mapping=True)
        return encoded["input_ids"], encoded["offset_mapping"]
    tokenizer._tokenizer.no_padding()
    tokenizer._tokenizer.no_truncation()
    encoded = tokenizer._tokenizer.encode_batch(TEXTS)
    return [e.ids for e in encoded], [e.offsets for e in encoded]


def compare(probe, folder, tokenizer, name, has_ranges=True):
    ids, offsets = encoded_by(tokenizer, name)
    ours = probe.ask(do="encode_all", folder=str(folder), texts=TEXTS)
    assert "error" not in ours, ours
    described = probe.ask(do="describe", folder=str(folder))
    assert {v: int(k) for k, v in described["tokens"].items()} == {k: v for k, v in tokenizer.get_vocab().items() if k}
    assert described["specials"] == [tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, tokenizer.pad_token]
    for i, text in enumerate(TEXTS):
        assert ours["ids"][i] == ids[i], text
        assert not has_ranges or ours["ranges"][i] == byte_ranges(text, offsets[i]), text
    for row in ids[:20] + ids[-3:]:
        for skip in (True, False):
            decoded = probe.ask(do="decode", folder=str(folder), ids=row, skip=skip)
            assert decoded["text"] == tokenizer._tokenizer.decode(row, skip_special_tokens=skip)


def write(folder, data, name, config, file="tokenizer.model"):
    folder.mkdir()
    (folder / file).write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **config}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


@pytest.mark.parametrize("name", CLASSES)
def test_class(probe, models, tmp_path, name):
    first, kinds, configs = CLASSES[name]
    for kind in kinds:
        for number, config in enumerate(configs):
            folder = tmp_path / f"{kind}{number}"
            write(folder, models(first, kind), name, config)
            has_ranges = name not in WITHOUT_UNKNOWN or kind == "bpe_bytes"
            compare(probe, folder, AutoTokenizer.from_pretrained(folder), name, has_ranges)


@pytest.mark.parametrize("file", ["spiece.model", "sentencepiece.bpe.model", "spm.model", "sentencepiece.model"])
def test_names_of_the_file(probe, models, tmp_path, file):
    name = {"spiece.model": "T5Tokenizer", "sentencepiece.bpe.model": "XLMRobertaTokenizer", "spm.model": "DebertaV2Tokenizer",
            "sentencepiece.model": "RemBertTokenizer"}[file]
    write(tmp_path / "x", models(CLASSES[name][0], "unigram"), name, {}, file)
    compare(probe, tmp_path / "x", AutoTokenizer.from_pretrained(tmp_path / "x"), name)


def test_xglm_as_its_converter_orders_the_pieces(probe, models, tmp_path):
    """Oracle: XGLMTokenizer over the pieces that XGLMConverter lists; AutoTokenizer does not look for the published file."""
    write(tmp_path / "x", models("llama", "unigram"), "XGLMTokenizer", {}, "sentencepiece.bpe.model")
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(models("llama", "unigram"))
    theirs = XGLMTokenizer(vocab=XGLMConverter.vocab(None, proto),
                           _spm_precompiled_charsmap=proto.normalizer_spec.precompiled_charsmap)
    compare(probe, tmp_path / "x", theirs, "XGLMTokenizer")


@pytest.mark.parametrize("name", ["MLukeTokenizer", "GPT2Tokenizer", "CohereTokenizer", "HerbertTokenizer", "BertTokenizer"])
def test_classes_that_do_not_read_such_a_model(probe, models, tmp_path, name):
    write(tmp_path / "x", models("llama", "bpe"), name, {})
    error = probe.ask(do="encode_all", folder=str(tmp_path / "x"), texts=["x"])["error"]
    assert f'found tokenizer_class "{name}" with a SentencePiece model' in error and "load the tokenizer with transformers" in error


@pytest.mark.parametrize("name", ["GPTSw3Tokenizer", "SiglipTokenizer", "PLBartTokenizer", "BertGenerationTokenizer", "CpmTokenizer"])
def test_classes_in_python_are_refused_by_name(probe, models, tmp_path, name):
    write(tmp_path / "x", models("llama", "bpe"), name, {})
    error = probe.ask(do="encode_all", folder=str(tmp_path / "x"), texts=["x"])["error"]
    assert f'found tokenizer_class "{name}", which transformers runs in Python' in error


def test_a_model_of_the_other_kind_is_refused(probe, models, tmp_path):
    for name in ("BarthezTokenizer", "CamembertTokenizer"):
        write(tmp_path / name, models("llama", "bpe"), name, {})
        error = probe.ask(do="encode_all", folder=str(tmp_path / name), texts=["x"])["error"]
        assert "BPE" in error and "Unigram" in error


def test_a_class_of_such_models_with_other_files(probe, tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\na\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "NllbTokenizer"}))
    error = probe.ask(do="encode_all", folder=str(tmp_path), texts=["x"])["error"]
    assert 'found vocab.txt for tokenizer_class "NllbTokenizer"' in error
