# Oracle: transformers' tokenizer out of the GGUF file, its ids of the same texts as the folder's; the `gguf` package's
# reading of the keys; published vocabularies (Mistral's) and trained ones.
import json
import shutil

import pytest
import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.integrations.gguf import gguf_tokenizer_mapping as theirs
from transformers.integrations.mistral.tokenizer import MistralConverter

import tiny_llama
from gguf_files import SIZES, File, convert
from test_tokenizer import ADVERSARIAL, CORPUS
from test_tokenizer_files import MISTRAL
from test_tokenizer_kinds import RANDOM

TEXTS = CORPUS[:7] + [text for text in ADVERSARIAL if "\u2581" not in text and "[PAD" not in text] + RANDOM[:400]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def save_model(folder, vocab_size, family="llama", **more):
    """A model around a tokenizer that lies there, with a config.json of its own."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    tokenizer = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != "config.json"}
    settings = {**SIZES, **dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1,
                                vocab_size=vocab_size, bos_token_id=None, eos_token_id=None), **more}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**settings)).save_pretrained(folder)
    for name, content in tokenizer.items():
        (folder / name).write_bytes(content)
    return folder


def byte_level(folder, pre_tokenizer, ignore_merges=False, specials=("<|end|>", "<|begin|>"), added=(), post=None, **named):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=500, special_tokens=list(specials), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens(list(added))
    if post:
        tokenizer.post_processor = post
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", **named).save_pretrained(folder)
    return len(tokenizer.get_vocab())


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# The name of llama.cpp's rule: how tokenizer.json cuts, and whether it takes words whole.
RULES = {
    "gpt-2": (pre_tokenizers.ByteLevel(add_prefix_space=False), False),
    "smollm": (pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False)]), False),
    **{name: (split(theirs.GGUF_PRE_TOKENIZER_SPLITS[name]), name in ("llama-bpe", "tekken"))
       for name in ("llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o")},
}


def same_ids(folder, file, texts=TEXTS, has_prefix=True):
    ours = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    own = AutoTokenizer.from_pretrained(folder)
    if not has_prefix:  # the key that transformers does not read for Llama
        ours.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    for text in texts:
        assert ours(text)["input_ids"] == own(text)["input_ids"], repr(text)


@pytest.mark.parametrize("name", RULES)
def test_rules_of_bytes(tmp_path, name):
    pre_tokenizer, ignores_merges = RULES[name]
    size = byte_level(tmp_path / "model", pre_tokenizer, ignores_merges, added=[
        AddedToken("<think>", normalized=False), AddedToken("<|tool|>", special=True, normalized=False)])
    folder = save_model(tmp_path / "model", size + 3)
    said = convert(folder, tmp_path / "m.gguf")
    assert ("cuts words at combining marks" in said) == (name in ("tekken", "gpt-4o"))
    keys = File(tmp_path / "m.gguf").keys
    assert (keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]) == ("gpt2", name)
    if name != "smollm":  # which transformers has no rule for
        same_ids(folder, tmp_path / "m.gguf")
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    tokens, kinds = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == size + 3
    special = {"<|end|>", "<|begin|>", "<|tool|>"}
    for token, i in vocabulary.items():
        assert tokens[i] == token
        assert kinds[i] == (CONTROL if token in special else USER_DEFINED if token == "<think>" else NORMAL), token
    assert [(tokens[i], kinds[i]) for i in range(size, size + 3)] == [(f"[PAD{i}]", UNUSED) for i in range(size, size + 3)]
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    assert keys["tokenizer.ggml.merges"] == [" ".join(pair) for pair in merges]


ENDS = {
    "none": (None, False, False),
    "bos": (processors.TemplateProcessing("<|begin|> $A", "<|begin|> $A <|begin|> $B", [("<|begin|>", 1)]), True, False),
    "both": (processors.TemplateProcessing("<|begin|> $A <|end|>", None, [("<|begin|>", 1), ("<|end|>", 0)]), True, True),
    "eos": (processors.TemplateProcessing("$A <|end|>", None, [("<|end|>", 0)]), False, True),
}


@pytest.mark.parametrize("name", ENDS)
def test_named_tokens_and_those_around_a_text(tmp_path, name):
    post, adds_bos, adds_eos = ENDS[name]
    size = byte_level(tmp_path / "model", RULES["llama-bpe"][0], True, post=post, bos_token="<|begin|>", pad_token="<|pad|>",
                      unk_token="<|unk|>", specials=("<|end|>", "<|begin|>", "<|pad|>", "<|unk|>"))
    folder = save_model(tmp_path / "model", size)
    convert(folder, tmp_path / "m.gguf")
    keys = File(tmp_path / "m.gguf").keys
    ids = {key: keys[f"tokenizer.ggml.{key}_token_id"] for key in ("eos", "bos", "padding", "unknown")}
    assert ids == {"eos": 0, "bos": 1, "padding": 2, "unknown": 3}
    assert (keys["tokenizer.ggml.add_bos_token"], keys["tokenizer.ggml.add_eos_token"]) == (adds_bos, adds_eos)
    same_ids(folder, tmp_path / "m.gguf")


def test_templates_and_ends_of_answers(tmp_path):
    size = byte_level(tmp_path / "model", RULES["qwen2"][0], specials=("<|end|>", "<|im_end|>", "<stop>", "<halt>"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.chat_template = {"default": tiny_llama.CHATML, "tool_use": "{{ tools }}", "rag": "{{ documents }}"}
    tokenizer.save_pretrained(tmp_path / "model")
    folder = save_model(tmp_path / "model", size)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1, 2, 3]}))
    said = convert(folder, tmp_path / "m.gguf")
    keys = File(tmp_path / "m.gguf").keys
    assert keys["tokenizer.chat_template"] == tiny_llama.CHATML
    assert keys["tokenizer.chat_template.tool_use"] == "{{ tools }}"
    assert keys["tokenizer.chat_template.rag"] == "{{ documents }}"
    assert sorted(keys["tokenizer.chat_templates"]) == ["rag", "tool_use"]
    # <|im_end|> it knows by itself, of the others one has a key.
    assert keys["tokenizer.ggml.eot_token_id"] == 2
    assert "<halt> end answers, too" in said


def train_pieces(folder, **options):
    folder.mkdir()
    with open(folder / "tokenizer.model", "wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS * 3), model_writer=out, model_type="bpe", byte_fallback=True, minloglevel=2,
            vocab_size=560, normalization_rule_name="identity", remove_extra_whitespaces=False, **options)
    return folder


def write_settings(folder, name, model_type="llama", **more):
    settings = {"tokenizer_class": name, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **more}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


# Llama's space before a text, none, and one at the beginning alone; with tokenizer.json and without.
PIECES = {"llama": dict(add_bos_token=True), "legacy": dict(legacy=True, add_bos_token=True, add_eos_token=True),
          "no_prefix": dict(add_prefix_space=False), "no_bos": dict(add_bos_token=False)}


@pytest.mark.parametrize("with_json", [False, True])
@pytest.mark.parametrize("name", PIECES)
def test_pieces(tmp_path, name, with_json):
    folder = train_pieces(tmp_path / "model")
    write_settings(folder, "LlamaTokenizer", **PIECES[name])
    size = len(AutoTokenizer.from_pretrained(folder))
    if with_json:
        AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
        (folder / "tokenizer.model").unlink()
    save_model(folder, size + 2)
    convert(folder, tmp_path / "m.gguf")
    keys = File(tmp_path / "m.gguf").keys
    assert keys["tokenizer.ggml.model"] == "llama"
    assert keys["tokenizer.ggml.add_space_prefix"] == (name != "no_prefix")
    assert keys["tokenizer.ggml.add_bos_token"] == PIECES[name].get("add_bos_token", False)
    assert keys["tokenizer.ggml.add_eos_token"] == PIECES[name].get("add_eos_token", False)
    own = sentencepiece.SentencePieceProcessor(model_proto=(tmp_path / "model" / "tokenizer.model").read_bytes()) \
        if not with_json else None
    kinds, scores = keys["tokenizer.ggml.token_type"], keys["tokenizer.ggml.scores"]
    assert kinds[:3] == [UNKNOWN, CONTROL, CONTROL] and kinds[3:259] == [BYTE] * 256 and kinds[size:] == [UNUSED] * 2
    if own:
        # The scores of what merges make are those of the model's file.
        pieces = [i for i in range(259, size) if len(own.id_to_piece(i)) > 1]
        assert [scores[i] for i in pieces] == [own.get_score(i) for i in pieces] and len(pieces) > 100
    same_ids(folder, tmp_path / "m.gguf", [t for t in TEXTS if t.strip()], has_prefix=name != "no_prefix")


def test_published_pieces(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    shutil.copy(MISTRAL / "mistral_instruct_tokenizer_240323.model.v3", folder / "tokenizer.model")
    write_settings(folder, "LlamaTokenizer", add_bos_token=True)
    own = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    save_model(folder, len(AutoTokenizer.from_pretrained(folder)))
    convert(folder, tmp_path / "m.gguf")
    keys = File(tmp_path / "m.gguf").keys
    # Runs of spaces, the last to be joined in the model's file, are the first in transformers', which goes by their ids.
    made = [i for i in range(own.get_piece_size()) if keys["tokenizer.ggml.token_type"][i] == NORMAL
            and len(own.id_to_piece(i)) > 1 and own.id_to_piece(i).strip("\u2581")]
    assert len(made) > 20000
    assert [keys["tokenizer.ggml.scores"][i] for i in made] == [own.get_score(i) for i in made]
    same_ids(folder, tmp_path / "m.gguf", [t for t in TEXTS if t.strip()])


def test_tekken(tmp_path):
    """Ids of a file of Mistral's own, as transformers converts it, are what llama.cpp's rule makes of them."""
    folder = tmp_path / "model"
    folder.mkdir()
    source = json.loads((MISTRAL / "tekken_240911.json").read_text())
    # A tenth of the published vocabulary, so that the readers are quick.
    source["vocab"] = source["vocab"][:13_000]
    source["config"].update(default_vocab_size=13_000)
    (folder / "tekken.json").write_text(json.dumps(source))
    write_settings(folder, "PreTrainedTokenizerFast", "mistral")
    save_model(folder, 13_000, "mistral")
    convert(folder, tmp_path / "m.gguf")
    keys = File(tmp_path / "m.gguf").keys
    assert keys["tokenizer.ggml.pre"] == "tekken" and len(keys["tokenizer.ggml.tokens"]) == 13_000
    own = MistralConverter(str(folder / "tekken.json")).converted()
    ours = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    for text in TEXTS:
        assert ours(text)["input_ids"] == own.encode(text).ids, repr(text)


def test_runs_of_spaces_of_gemma(tmp_path):
    """User-defined pieces: spaces that merges make stay pieces, others are written as they are in a text."""
    folder = train_pieces(tmp_path / "model", user_defined_symbols=["\u2581\u2581", "\u2581\u2581\u2581", "\n\n", "<end_of_turn>"],
                          pad_id=3)
    write_settings(folder, "GemmaTokenizer", "gemma2", pad_token="<pad>")
    size = len(AutoTokenizer.from_pretrained(folder))
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    (folder / "tokenizer.model").unlink()
    save_model(folder, size, "gemma2", num_hidden_layers=2, head_dim=4, query_pre_attn_scalar=4)
    convert(folder, tmp_path / "m.gguf")
    keys = File(tmp_path / "m.gguf").keys
    assert keys["tokenizer.ggml.add_space_prefix"] is False
    same_ids(folder, tmp_path / "m.gguf", [t for t in CORPUS[:7] + RANDOM[:200] if t.strip()])


def test_added_tokens_beyond_the_embedding(tmp_path):
    """As Gemma 3's mark of images is in its models of texts."""
    size = byte_level(tmp_path / "model", RULES["gpt-2"][0], added=[AddedToken("<image>", special=True, normalized=False)])
    folder = save_model(tmp_path / "model", size - 1)
    said = convert(folder, tmp_path / "m.gguf")
    assert f"1 added token beyond the {size - 1} rows of the embedding left out" in said
    assert len(File(tmp_path / "m.gguf").keys["tokenizer.ggml.tokens"]) == size - 1
