"""Oracle: transformers' special_tokens_map, which its chat templates see, and its ids, of tokens that only a model has a name for."""

import json

import pytest

TEMPLATE = ("{% for m in messages %}{{ user_token if m.role == 'user' else assistant_token }}{{ m.content }}{{ image_token }}{{ img }}"
            "{{ eos_token }}{% endfor %}{{ nothing_token is defined }}")
OBJECT = {"content": "<obj>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
TYPED = {"__type": "AddedToken", **OBJECT, "content": "<typed>"}
NAMED = {"user_token": "<U>", "assistant_token": "<A>"}
# tokenizer_config.json beside bos_token and eos_token, and special_tokens_map.json.
CASES = {
    "named": (NAMED, None),
    "extra": ({"extra_special_tokens": {"image_token": "<img>", "img": "<img2>"}}, None),
    "both": ({**NAMED, "extra_special_tokens": {"image_token": "<img>", "img": "<img2>"}}, None),
    "model's own": ({"model_specific_special_tokens": {"image_token": "<img>", "img": "<img2>"}}, None),
    "model's own beside others": ({**NAMED, "model_specific_special_tokens": {"img": "<img2>"}}, None),
    "a standard name": ({"extra_special_tokens": {"eos_token": "<new_end>", "image_token": "<img>"}}, None),
    "objects": ({"user_token": OBJECT, "assistant_token": TYPED, "image_token": "<img>"}, None),
    "added tokens": ({**NAMED, "added_tokens_decoder": {"9": {**OBJECT, "content": "<A>"}, "10": OBJECT}}, {"image_token": "<unseen>"}),
    "map": ({"assistant_token": "<A>"}, {"user_token": "<U>", "assistant_token": "<other>", "image_token": OBJECT, "bos_token": "<begin>"}),
    "map of extras": ({"assistant_token": "<A>"}, {"extra_special_tokens": {"img": "<img>"}, "additional_special_tokens": ["<more>"]}),
    "lists": ({**NAMED, "extra_special_tokens": ["<x>", "<U>"], "additional_special_tokens": ["<y>"]}, None),
    "no tokens": ({"user_token": None, "some_token": 3, "image_token_id": 7, "extra_special_tokens": {}}, None),
}
CHAT = [{"role": "user", "content": "q <U> w"}, {"role": "assistant", "content": "a<img>"}]


def save(folder, settings, map_of_specials):
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "q": 1, "w": 2, "a": 3, "<": 4, ">": 5, "<s>": 6, "</s>": 7, "U": 8}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if map_of_specials is not None:
        (folder / "special_tokens_map.json").write_text(json.dumps(map_of_specials))


def compare(probe, folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    ours = probe.ask(do="describe", folder=str(folder))
    own = {name: token for name, token in theirs.special_tokens_map.items() if name not in type(theirs).SPECIAL_TOKENS_ATTRIBUTES}
    assert dict(ours["own"]) == own
    assert ours["specials"] == [theirs.bos_token, theirs.eos_token, theirs.unk_token, theirs.pad_token]
    assert {token: int(number) for number, token in ours["tokens"].items()} == theirs.get_vocab()
    text = theirs.apply_chat_template(CHAT, tokenize=False)
    found = probe.ask(do="chat", folder=str(folder), messages=CHAT)
    assert (found["text"], found["ids"]) == (text, theirs(text, add_special_tokens=False)["input_ids"])
    return theirs, own


@pytest.mark.parametrize("name", CASES)
def test_names_that_only_a_model_has(name, probe, tmp_path):
    save(tmp_path / "first", *CASES[name])
    theirs, own = compare(probe, tmp_path / "first")
    assert bool(own) == (name != "no tokens")
    theirs.save_pretrained(tmp_path / "second")  # with the names in two places
    compare(probe, tmp_path / "second")


@pytest.mark.parametrize("name", ["CodeLlamaTokenizer", "SplinterTokenizer"])
def test_names_that_a_class_has_by_itself(name, probe, tmp_path):
    save(tmp_path, {"tokenizer_class": name}, None)
    if name == "SplinterTokenizer":
        document = json.loads((tmp_path / "tokenizer.json").read_text())
        document["model"] = {"type": "WordPiece", "vocab": document["model"]["vocab"], "unk_token": "[UNK]",
                             "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    else:
        document = json.loads((tmp_path / "tokenizer.json").read_text())
        document["model"] = {"type": "BPE", "vocab": document["model"]["vocab"], "merges": [], "unk_token": "[UNK]"}
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == name
    own = {token: text for token, text in theirs.special_tokens_map.items() if token not in type(theirs).SPECIAL_TOKENS_ATTRIBUTES}
    assert own and dict(probe.ask(do="describe", folder=str(tmp_path))["own"]) == own
