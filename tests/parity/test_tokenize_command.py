"""Oracle: `tokenizers` and transformers for `strata tokenize`."""

import json
import random
import subprocess

import pytest
from running import PROGRAM, environment

import tiny_llama


def run(*arguments, stdin=""):
    return subprocess.run([str(PROGRAM), *map(str, arguments)], input=stdin, capture_output=True,
                          text=True, timeout=120, env=environment())


def lines(result):
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_llama.save_tokenizer(folder)
    return folder


TEXTS = ["the cat sat", "", " naïve café 東京 🎉👩‍🚀", "<|im_end|>x<|im_start|>", '["a", 1]', '{"role": 1}', "tab\tand  spaces"]


def test_text(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = lines(run("tokenize", "--model", folder, stdin="\n".join(TEXTS) + "\n"))
    expected = [tokenizer.encode(text) for text in TEXTS]
    assert found == [{"ids": e.ids, "tokens": e.tokens, "offsets": [list(o) for o in e.offsets]} for e in expected]
    ids = "".join(json.dumps({"ids": row["ids"]} if i % 2 else row["ids"]) + "\n" for i, row in enumerate(found))
    for skip in [False, True]:
        back = lines(run("tokenize", "--model", folder, "--decode", "--skip_special_tokens", str(skip), stdin=ids))
        assert [row["text"] for row in back] == [tokenizer.decode(e.ids, skip_special_tokens=skip) for e in expected]


def test_conversations(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng = random.Random(1)
    chats = [[{"role": "user", "content": tiny_llama.sentence(rng)}, {"role": "assistant", "content": "ok é"}] for _ in range(5)]
    for prompt in [False, True]:
        flags = ["--add_generation_prompt"] if prompt else []
        stdin = "".join(json.dumps(c if i % 2 else {"messages": c, "extra": 1}) + "\n" for i, c in enumerate(chats))
        for row, chat in zip(lines(run("tokenize", "--model", folder, *flags, stdin=stdin)), chats, strict=True):
            assert row["text"] == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompt)
            encoded = tokenizer(row["text"], add_special_tokens=False, return_offsets_mapping=True)
            assert row["ids"] == encoded["input_ids"]
            assert row["offsets"] == [list(o) for o in encoded["offset_mapping"]]


SAID = [{"role": "user", "content": "the cat é"}, {"role": "assistant", "content": "sat"}]
SHARED = [{"from": "human", "value": "the cat é"}, {"from": "gpt", "value": "sat"}]
KINDLY = [{"role": "system", "content": "be kind"}, *SAID]
FORMS = {
    "messages": ({"messages": SAID}, SAID),
    "system": ({"messages": SAID, "system": "be kind"}, KINDLY),
    "sharegpt": ({"conversations": SHARED, "id": 3}, SAID),
    "sharegpt list": (SHARED, SAID),
    "sharegpt system": ({"system": "be kind", "conversations": SHARED}, KINDLY),
    "prompt and completion": ({"prompt": SAID[:1], "completion": SAID[1:]}, SAID),
    "alpaca": ({"instruction": "the cat", "input": "", "output": "sat"}, [{"role": "user", "content": "the cat"}, SAID[1]]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_conversation(form, folder):
    """The same text and ids as the messages that it stands for, with no flag and as JSON."""
    from transformers import AutoTokenizer

    row, messages = FORMS[form]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, return_dict=True)["input_ids"]
    for flags in [[], ["--input", "json"]]:
        found, = lines(run("tokenize", "--model", folder, *flags, stdin=json.dumps(row) + "\n"))
        assert found["ids"] == expected, flags


def test_variables_of_a_row(folder, tmp_path):
    """tools as JSON text and chat_template_kwargs, as training reads them; other members are variables too."""
    template = tmp_path / "t.jinja"
    template.write_text("{{ tools[0].name }} {{ mood }} {{ documents | length }}{% for m in messages %} {{ m.content }}{% endfor %}")
    row = {"messages": SAID, "tools": json.dumps([{"name": "add"}]), "chat_template_kwargs": {"mood": "calm"}, "documents": [1, 2]}
    found, = lines(run("tokenize", "--model", folder, "--chat_template_path", template, stdin=json.dumps(row) + "\n"))
    assert found["text"] == "add calm 2 the cat é sat"


@pytest.mark.parametrize("row, message", [
    ({"conversations": [{"from": "human"}]}, 'standard input:2: found no "content" in message 1 of "conversations"'),
    ({"messages": []}, 'standard input:2: found an empty list in "messages"'),
    ({"messages": SAID, "tools": "[1"}, "standard input:2: tools"),
])
def test_broken_conversations(row, message, folder):
    result = run("tokenize", "--model", folder, stdin="the cat\n" + json.dumps(row) + "\n")
    assert result.returncode == 1 and message in result.stderr, result.stderr


LENGTHS = {
    "fixed": {"padding": {"length": 12, "pad_id": 0, "pad_token": "<pad>"}},
    "multiple": {"padding": {"pad_to_multiple_of": 8, "direction": "left", "pad_id": 2, "pad_token": "<|im_end|>"}},
    "cut": {"truncation": {"max_length": 5}},
    "cut left": {"truncation": {"max_length": 5, "direction": "left", "strategy": "only_first", "stride": 2}},
    "both": {"truncation": {"max_length": 6}, "padding": {"length": 9, "pad_to_multiple_of": 4, "pad_token": "<pad>"}},
    "specials only": {"truncation": {"max_length": 1}},
}


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_the_file(name, folder, tmp_path):
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))])
    if "truncation" in LENGTHS[name]:
        tokenizer.enable_truncation(**LENGTHS[name]["truncation"])
    if "padding" in LENGTHS[name]:
        tokenizer.enable_padding(**LENGTHS[name]["padding"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    stdin = "\n".join(TEXTS) + "\n"
    for special in [True, False]:
        expected = [tokenizer.encode(text, add_special_tokens=special) for text in TEXTS]
        found = lines(run("tokenize", "--model", tmp_path, "--file_lengths", "--add_special_tokens", special, stdin=stdin))
        assert found == [{"ids": e.ids, "tokens": e.tokens, "offsets": [list(o) for o in e.offsets], "attention_mask": e.attention_mask}
                         for e in expected]
    tokenizer.no_truncation()
    tokenizer.no_padding()
    plain = lines(run("tokenize", "--model", tmp_path, stdin=stdin))
    assert [row["ids"] for row in plain] == [tokenizer.encode(text).ids for text in TEXTS], "as transformers and training"


@pytest.mark.parametrize("section, message", [
    ({"truncation": {"max_length": 0, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}}, None),
    ({"truncation": {"max_length": -3}}, 'truncation: found -3 as "max_length"'),
    ({"truncation": {"max_length": 3, "strategy": "OnlySecond"}}, 'found strategy "OnlySecond"'),
    ({"truncation": [1]}, "truncation: found array, expected an object or null"),
    ({"padding": {"strategy": "Shortest"}}, 'padding: found strategy "Shortest"'),
    ({"padding": {"strategy": "BatchLongest", "direction": "Up"}}, 'found direction "Up"'),
])
def test_lengths_that_nobody_can_follow(section, message, folder, tmp_path):
    document = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, **section}))
    result = run("tokenize", "--model", tmp_path, "--file_lengths", stdin="the cat\n")
    if message is None:
        assert lines(result)[0]["ids"] == []
    else:
        assert result.returncode == 1 and message in result.stderr and result.stderr.count("\n") == 1, result.stderr


TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}
STANDARD = "{% for m in messages %}{{ m.role }}: {{ m.content }};{% endfor %}"
WITH_TOOLS = "{{ tools | tojson }}" + STANDARD


@pytest.mark.parametrize("place", ["list", "object", "folder", "file over list"])
def test_templates_for_tools(place, folder, tmp_path):
    from transformers import AutoTokenizer

    for path in folder.iterdir():
        if path.suffix == ".json" and path.name != "config.json":
            (tmp_path / path.name).write_text(path.read_text())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    pair = {"default": STANDARD, "tool_use": WITH_TOOLS}
    config["chat_template"] = pair if place == "object" else [{"name": n, "template": t} for n, t in pair.items()]
    if place == "folder":
        config.pop("chat_template")
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(WITH_TOOLS)
    if place in ("folder", "file over list"):
        (tmp_path / "chat_template.jinja").write_text("!" + STANDARD)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "hi"}]
    rows = [{"messages": chat}, {"messages": chat, "tools": [TOOL]}, {"messages": chat, "tools": None}]
    found = lines(run("tokenize", "--model", tmp_path, stdin="".join(json.dumps(row) + "\n" for row in rows)))
    if place == "file over list":  # the reference then knows the file alone; the list's second one is kept here
        assert found[0]["text"] == "!user: hi;"
        return
    assert [row["text"] for row in found] == [
        tokenizer.apply_chat_template(chat, tokenize=False, tools=row.get("tools")) for row in rows]


RAG = "{% for d in documents %}[{{ d.title }}]{% endfor %}{{ messages[0].content }}"


@pytest.mark.parametrize("place", ["list", "object", "folder"])
def test_templates_by_their_names(place, folder, tmp_path):
    """Cohere's three: the standard one, that for tools, and one that is asked for by its name."""
    from transformers import AutoTokenizer

    for path in folder.iterdir():
        if path.suffix == ".json" and path.name != "config.json":
            (tmp_path / path.name).write_text(path.read_text())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    named = {"default": STANDARD, "tool_use": WITH_TOOLS, "rag": RAG}
    config["chat_template"] = named if place == "object" else [{"name": n, "template": t} for n, t in named.items()]
    if place == "folder":
        config.pop("chat_template")
        (tmp_path / "chat_template.jinja").write_text(STANDARD)
        (tmp_path / "additional_chat_templates").mkdir()
        for name in ("tool_use", "rag"):
            (tmp_path / "additional_chat_templates" / f"{name}.jinja").write_text(named[name])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "user", "content": "hi"}]
    for name, more in ((None, {}), (None, {"tools": [TOOL]}), ("rag", {"documents": [{"title": "A"}, {"title": "B"}]})):
        flags = ["--chat_template_path", name] if name else []
        row, = lines(run("tokenize", "--model", tmp_path, *flags, stdin=json.dumps({"messages": chat, **more})))
        assert row["text"] == tokenizer.apply_chat_template(chat, chat_template=name, tokenize=False, **more)
    result = run("tokenize", "--model", tmp_path, "--chat_template_path", "ragged", stdin=json.dumps(chat))
    assert result.returncode == 1 and "ragged" in result.stderr


def test_documents_and_other_arguments(folder, tmp_path):
    """What stands beside the messages reaches the template, as the arguments of apply_chat_template do."""
    from transformers import AutoTokenizer

    template = "{% for d in documents or [] %}[{{ d.title }}] {{ d.text }}{% endfor %}{{ mood }}{{ messages[0].content }}"
    (tmp_path / "documents.jinja").write_text(template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "hi"}]
    given = [{}, {"documents": [{"title": "A", "text": "first"}, {"title": "B", "text": "second"}]}, {"documents": [], "mood": "!"}]
    found = lines(run("tokenize", "--model", folder, "--chat_template_path", tmp_path / "documents.jinja",
                      stdin="".join(json.dumps({"messages": chat, **more}) + "\n" for more in given)))
    assert [row["text"] for row in found] == [
        tokenizer.apply_chat_template(chat, chat_template=template, tokenize=False, **more) for more in given]


@pytest.mark.parametrize("template, message", [
    (3, "chat_template: found number, expected text"), ([1], "chat_template: found number in the list"),
    ({"default": 1}, "chat_template"), ([{"name": "default"}], "chat_template")])
def test_templates_that_are_no_text(template, message, folder, tmp_path):
    for path in folder.iterdir():
        if path.suffix == ".json":
            (tmp_path / path.name).write_text(path.read_text())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": template}))
    result = run("tokenize", "--model", tmp_path, stdin="x\n")
    assert result.returncode == 1 and message in result.stderr and result.stderr.count("\n") == 1, result.stderr


@pytest.mark.parametrize("flags, stdin, message", [
    (["--input", "json"], '"fine"\n{"a": 1}\n', 'standard input:2: found an object without them, expected a string'),
    (["--input", "json"], '{"a": \n', "standard input:1:"),
    (["--decode"], "[1, -2]\n", "standard input:1: found -2 among the ids"),
    (["--decode"], '{"x": 1}\n', "expected a list of ids"),
    (["--decode"], "[1]\n[1, 999999]\n", "standard input:2: found id 999999, which no token has, expected ids below "),
    (["--decode"], "[1]\n[1,\n", "standard input:2:"),
    ([], "fine\n" + '{"messages": [{"role": "user", "content": "x"}\n', "standard input:2:"),
    ([], '[{"role": "user", "content": \n', "pass --input text if it is no conversation"),
    ([], b"fine\nab\xffc\n", "standard input:2: found a byte 0xff that is not UTF-8 after 2 bytes"),
    (["--input", "json"], b'"\xc3"\n', "standard input:1: found a byte 0xc3 that is not UTF-8"),
    (["--input", "json"], b'"cut \xe6\x9d', "standard input:1: found a byte 0xe6 that is not UTF-8"),
    (["--chat_template_format", "llama-3"], "x\n", 'found no token "<|start_header_id|>" in the tokenizer'),
    (["--chat_template_format", "nonsense"], "x\n", "chat_template_format"),
])
def test_tokenize_refuses(flags, stdin, message, folder):
    if isinstance(stdin, str):
        stdin = stdin.encode()
    result = subprocess.run([str(PROGRAM), "tokenize", "--model", str(folder), *flags], input=stdin, capture_output=True,
                            timeout=120, env=environment())
    error = result.stderr.decode()
    assert result.returncode != 0 and message in error, error
    assert error.count("\n") == 1
    # What came before the bad line is whole.
    assert all(isinstance(json.loads(line), dict) for line in result.stdout.splitlines())


@pytest.mark.parametrize("line", ["{ return x; }", "[a, b] is a list", "{", '{"text": "x"', "{{ messages }}", "[INST] hi [/INST]"])
def test_text_that_looks_like_json(line, folder):
    from tokenizers import Tokenizer

    row, = lines(run("tokenize", "--model", folder, stdin=line + "\n"))
    assert row["ids"] == Tokenizer.from_file(str(folder / "tokenizer.json")).encode(line).ids


# Published renderings of these formats for one conversation, written down from their documentation.
BUILTIN = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n",
    "llama-2": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A <|im_end|>",
    "alpaca": "S\n\n### Instruction:\nU\n\n### Response:\nA<|im_end|>\n\n",
    "vicuna": "S USER: U ASSISTANT: A<|im_end|>",
}


def test_builtin_templates_with_tokens_of_their_own(folder, tmp_path):
    """llama-3 and oasst need tokens that the tokenizer must have."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|prompter|>", "<|assistant|>", "<|endoftext|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
    for name, text in {
        "llama-3": "".join(f"<|start_header_id|>{r}<|end_header_id|>\n\n{c}<|eot_id|>" for r, c in [("system", "S"), ("user", "U"), ("assistant", "A")]),
        "oasst": "<|system|>S<|endoftext|><|prompter|>U<|endoftext|><|assistant|>A<|endoftext|>",
    }.items():
        row, = lines(run("tokenize", "--model", tmp_path, "--chat_template_format", name, stdin=json.dumps(chat)))
        assert row["text"] == text


@pytest.mark.parametrize("name", BUILTIN)
def test_builtin_templates(name, folder):
    chat = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"}]
    row, = lines(run("tokenize", "--model", folder, "--chat_template_format", name, stdin=json.dumps(chat)))
    assert row["text"] == BUILTIN[name]
