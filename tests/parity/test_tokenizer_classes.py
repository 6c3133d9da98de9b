"""Oracle: transformers' AutoTokenizer, on a small trained tokenizer.json with each class that puts its own pipeline in place
of the file's: ids, ranges, named tokens, vocabulary and decoded text."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer
from transformers.models.auto.tokenization_auto import MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS, TOKENIZER_MAPPING_NAMES

from test_tokenizer import ADVERSARIAL, CORPUS, byte_ranges
from test_tokenizer_kinds import RANDOM

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[PAD]", "<mask>"]
TEXTS = CORPUS[:7] + ADVERSARIAL + RANDOM[:250] + [
    "  <mask> [MASK]x</s>a <s> [CLS]Abc ''quoted`` <|endoftext|> <extra_id_3> en_XX eng_Latn __eng__ <ent> [UNK] <unk_5>",
    "E\u0301cole NAÏVE ﬁne 12 345 \u2581\u2581x  <unk> [QUESTION] <madeupword2> ▁<PRE> <FILL_ME> <|startoftext|>'S don't"]


def charsmap():
    """A Precompiled normalizer, as SentencePiece writes it."""
    import sentencepiece
    from google.protobuf import message  # noqa: F401: sentencepiece_model_pb2 needs it
    from transformers.convert_slow_tokenizer import import_protobuf

    import base64
    import io

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS), model_writer=model, vocab_size=300,
                                             hard_vocab_limit=False, minloglevel=2, normalization_rule_name="nmt_nfkc")
    proto = import_protobuf().ModelProto()
    proto.ParseFromString(model.getvalue())
    return base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()


def ends(tokenizer):
    """What the file itself puts around a text: two tokens that no class takes for both."""
    return processors.TemplateProcessing(single="<pad> $A <unk>", special_tokens=[
        (name, tokenizer.token_to_id(name)) for name in ("<pad>", "<unk>")])


def sentences(pre_tokenizer=None):
    trainer = trainers.UnigramTrainer(vocab_size=350, unk_token="<unk>", special_tokens=SPECIALS, show_progress=False)
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def marked_bpe():
    """BPE over words that begin with U+2581, with a token for every byte."""
    trainer = trainers.BpeTrainer(vocab_size=750, show_progress=False, limit_alphabet=90,
                                  special_tokens=SPECIALS + ["__eng__"] + [f"<0x{b:02X}>" for b in range(256)])
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainer)
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if "<0x" not in t["content"]]
    return Tokenizer.from_str(json.dumps(document))


def byte_bpe(*more):
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=SPECIALS + list(more))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_end_bpe():
    trainer = trainers.BpeTrainer(vocab_size=500, end_of_word_suffix="</w>", special_tokens=SPECIALS, show_progress=False)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def byte_word_end_bpe():
    trainer = trainers.BpeTrainer(vocab_size=600, end_of_word_suffix="</w>", special_tokens=SPECIALS, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator([text.lower() for text in CORPUS], trainer)
    return tokenizer


def word_pieces():
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIALS + ["<sep>", "<cls>", "."], show_progress=False)
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


WHISPER = ("<|startoftranscript|>", "<|transcribe|>", "<|translate|>", "<|notimestamps|>", "<|endoftext|>")
# The vocabulary, what tokenizer_config.json may say of the class, and whether `transformers` reads texts with it alone
# (LayoutLM and the like want words and boxes: their inner tokenizer is compared).
CLASSES = {
    "AlbertTokenizer": (sentences, [{}, {"do_lower_case": False, "keep_accents": True, "add_prefix_space": False}], True),
    "BarthezTokenizer": (sentences, [{}, {"add_prefix_space": False}], True),
    "BartTokenizer": (byte_bpe, [{}], True),
    "BertTokenizer": (word_pieces, [{"unk_token": "<unk>"}], True),
    "BigBirdTokenizer": (sentences, [{}, {"add_prefix_space": False}], True),
    "BlenderbotTokenizer": (byte_bpe, [{}, {"add_prefix_space": False}], True),
    "CamembertTokenizer": (sentences, [{}, {"additional_special_tokens": ["<extra>"]}], True),
    "CLIPTokenizer": (byte_word_end_bpe, [{"unk_token": "<unk>"}, {"unk_token": "<unk>", "pad_token": "<pad>"}], True),
    "CodeGenTokenizer": (byte_bpe, [{}, {"add_prefix_space": True}], True),
    "CodeLlamaTokenizer": (marked_bpe, [{}, {"add_prefix_space": False}], True),
    "CohereTokenizer": (byte_bpe, [{}, {"add_prefix_space": True, "bos_token": "<s>", "mask_token": "[MASK]"}], True),
    "ConvBertTokenizer": (word_pieces, [{}], True),
    "DebertaTokenizer": (byte_bpe, [{}, {"add_prefix_space": True}], True),
    "DebertaV2Tokenizer": (sentences, [{}, {"do_lower_case": True, "split_by_punct": True, "add_prefix_space": False}], True),
    "DistilBertTokenizer": (word_pieces, [{"unk_token": "<unk>", "do_lower_case": False}], True),
    "DPRReaderTokenizer": (word_pieces, [{"unk_token": "<unk>", "do_lower_case": False}], False),
    "ElectraTokenizer": (word_pieces, [{"unk_token": "<unk>", "strip_accents": False}], True),
    "FNetTokenizer": (sentences, [{}], True),
    "FunnelTokenizer": (word_pieces, [{}, {"do_lower_case": False, "clean_text": False, "unk_token": "[UNK]"}], True),
    "GemmaTokenizer": (marked_bpe, [{}], True),
    "GPT2Tokenizer": (byte_bpe, [{}, {"add_prefix_space": True}], True),
    "GPTNeoXTokenizer": (byte_bpe, [{}], True),
    "HerbertTokenizer": (word_end_bpe, [{}, {"unk_token": "[UNK]"}], True),
    "LasrTokenizer": (sentences, [{}], True),
    "LayoutLMv2Tokenizer": (word_pieces, [{"unk_token": "<unk>"}], False),
    "LayoutLMv3Tokenizer": (byte_bpe, [{}, {"add_prefix_space": False}], False),
    "LayoutXLMTokenizer": (sentences, [{}], False),
    "LlamaTokenizer": (marked_bpe, [{}, {"add_prefix_space": False}, {"legacy": True}], True),
    "LukeTokenizer": (byte_bpe, [{}], False),
    "MarkupLMTokenizer": (byte_bpe, [{"tags_dict": {"a": 0}}], False),
    "MBartTokenizer": (sentences, [{}, {"src_lang": "de_DE"}, {"additional_special_tokens": ["<extra>"]}], True),
    "MBart50Tokenizer": (sentences, [{}, {"src_lang": "de_DE"}], True),
    "MLukeTokenizer": (sentences, [{}], False),
    "MPNetTokenizer": (word_pieces, [{"unk_token": "<unk>"}], True),
    "NllbTokenizer": (marked_bpe, [{}, {"src_lang": "deu_Latn"}, {"legacy_behaviour": True}], True),
    "NougatTokenizer": (byte_bpe, [{}], True),
    "OpenAIGPTTokenizer": (word_end_bpe, [{}], True),
    "PegasusTokenizer": (sentences, [{}, {"offset": 8}], True),
    "Phi3Tokenizer": (marked_bpe, [{}], True),
    "Qwen2Tokenizer": (byte_bpe, [{}], True),
    "Qwen3_5Tokenizer": (byte_bpe, [{}, {"add_prefix_space": True, "pad_token": "<pad>"}], True),
    "ReformerTokenizer": (marked_bpe, [{}], True),
    "RemBertTokenizer": (sentences, [{}, {"do_lower_case": True, "keep_accents": False}], True),
    "RobertaTokenizer": (byte_bpe, [{}, {"add_prefix_space": True, "trim_offsets": False}], True),
    "SeamlessM4TTokenizer": (marked_bpe, [{}], True),
    "Siglip2Tokenizer": (marked_bpe, [{}], True),
    "SplinterTokenizer": (word_pieces, [{"unk_token": "<unk>"}], True),
    "T5Tokenizer": (sentences, [{}], True),
    "Tipsv2Tokenizer": (marked_bpe, [{}, {"do_lower_case": False}], True),
    "UdopTokenizer": (sentences, [{}], False),
    "VideoPrismTokenizer": (sentences, [{}], True),
    "WhisperTokenizer": (lambda: byte_bpe(*WHISPER), [{}, {"task": "translate", "predict_timestamps": True}], True),
    "XGLMTokenizer": (sentences, [{}, {"add_prefix_space": False}], True),
    "XLMRobertaTokenizer": (sentences, [{}], True),
    "XLNetTokenizer": (sentences, [{}, {"do_lower_case": True, "unk_id": 3}], True),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The vocabularies, trained once each, plain and with what their file may say beside the vocabulary."""
    made = {}
    precompiled = {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": charsmap()},
                                                        {"type": "Lowercase"}]}

    def file(builder, is_full):
        key = builder.__code__.co_firstlineno
        if key not in made:
            made[key] = builder()
        tokenizer = Tokenizer.from_str(made[key].to_str())
        if is_full:
            tokenizer.add_special_tokens([AddedToken("<extra_id_3>", special=True, rstrip=True)])
            tokenizer.post_processor = ends(tokenizer)
        document = json.loads(tokenizer.to_str())
        if is_full and document["model"]["type"] in ("Unigram", "BPE") and document["pre_tokenizer"]["type"] == "Metaspace":
            document["normalizer"] = precompiled
        return json.dumps(document, ensure_ascii=False)

    return file


def theirs_of(tokenizer, reads_text):
    if reads_text:
        encoded = tokenizer(TEXTS, return_offsets_mapping=True)
        return encoded["input_ids"], encoded["offset_mapping"]
    tokenizer._tokenizer.no_padding()
    tokenizer._tokenizer.no_truncation()
    encoded = tokenizer._tokenizer.encode_batch(TEXTS)
    return [e.ids for e in encoded], [e.offsets for e in encoded]


@pytest.mark.parametrize("is_full", [False, True], ids=["bare", "full"])
@pytest.mark.parametrize("name", CLASSES)
def test_class(probe, files, tmp_path, name, is_full):
    builder, configs, reads_text = CLASSES[name]
    for number, config in enumerate(configs):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "tokenizer.json").write_text(files(builder, is_full))
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name, **config}))
        (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids, offsets = theirs_of(tokenizer, reads_text)
        ours = probe.ask(do="encode_all", folder=str(folder), texts=TEXTS)
        assert "error" not in ours, ours
        for i, text in enumerate(TEXTS):
            assert ours["ids"][i] == ids[i], (config, text)
            assert ours["ranges"][i] == byte_ranges(text, offsets[i]), (config, text)
        described = probe.ask(do="describe", folder=str(folder))
        assert described["specials"] == [tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, tokenizer.pad_token]
        assert {v: int(k) for k, v in described["tokens"].items()} == {k: v for k, v in tokenizer.get_vocab().items() if k}
        for row in ids[:40] + ids[-2:]:
            for skip in (True, False):
                decoded = probe.ask(do="decode", folder=str(folder), ids=row, skip=skip)
                assert decoded["text"] == tokenizer._tokenizer.decode(row, skip_special_tokens=skip), config
                assert decoded["streamed"] == decoded["text"]


def test_registered_classes(probe):
    """The class of every model type whose tokenizer_config.json names none."""
    for model_type, name in TOKENIZER_MAPPING_NAMES.items():
        if name is None:
            continue  # its class needs a package that is not installed here
        expected = {"MistralCommonBackend": "TokenizersBackend"}.get(name, name).removesuffix("Fast")
        alias = {"BartTokenizer": "RobertaTokenizer", "LEDTokenizer": "RobertaTokenizer", "MvpTokenizer": "RobertaTokenizer",
                 "LxmertTokenizer": "BertTokenizer", "MobileBertTokenizer": "BertTokenizer"}
        ours = probe.ask(do="class", model_config={"model_type": model_type})
        assert ours["class"] == alias.get(expected, expected), model_type
        other = probe.ask(do="class", model_config={"model_type": model_type}, tokenizer_config={"tokenizer_class": "GPT2TokenizerFast"})
        trusts = model_type not in MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS and expected != "TokenizersBackend"
        assert other["class"] == ("GPT2Tokenizer" if trusts or expected == "GPT2Tokenizer" else ours["class"]), model_type


@pytest.mark.parametrize("name, cause", [
    ("MarianTokenizer", "which transformers runs in Python"), ("EsmcTokenizer", "which has a fixed vocabulary of its own"),
    ("RoFormerTokenizer", "rjieba"), ("ByT5TokenizerFast", "which transformers runs in Python")])
def test_classes_that_cannot_be_had(probe, files, tmp_path, name, cause):
    (tmp_path / "tokenizer.json").write_text(files(word_pieces, False))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    error = probe.ask(do="encode_all", folder=str(tmp_path), texts=["x"])["error"]
    assert f'found tokenizer_class "{name.removesuffix("Fast")}"' in error and cause in error and "PreTrainedTokenizerFast" in error


@pytest.mark.parametrize("name, files", [("ByT5Tokenizer", []), ("MarianTokenizer", ["source.spm", "vocab.json"]),
                                         ("M2M100Tokenizer", ["sentencepiece.bpe.model"])])
def test_classes_that_cannot_be_had_are_named_before_their_files(probe, tmp_path, name, files):
    for file in files:
        (tmp_path / file).write_bytes(b"{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    error = probe.ask(do="encode_all", folder=str(tmp_path), texts=["x"])["error"]
    assert f'found tokenizer_class "{name}", which transformers runs in Python' in error and "if you have such a file" in error
