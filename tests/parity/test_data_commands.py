"""Oracle: `tokenizers` and transformers for `strata tokenize`; TRL's own labels (through the prepared
rows that tests/parity/test_data.py compares) and hand-made mistakes for `strata preview`."""

import json
import pathlib
import random
import re
import subprocess

import pytest
from running import PROGRAM, base_flags, environment, run_strata
from terminal import Terminal

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


def save(folder, rows):
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def preview(inputs, data, *flags):
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data, *flags)
    assert result.returncode == 0, result.stderr
    return result.stdout


def shown(html):
    """A page without its tags."""
    return re.sub("<[^>]*>", "", html)


def test_preview_shows_tokens_and_counts(inputs, tmp_path):
    rows = [{"prompt": f"question {i}", "completion": f" answer {i}"} for i in range(20)]
    page = tmp_path / "page.html"
    text = preview(inputs, save(tmp_path, rows), "--num_examples", 2, "--output_html", page,
                   "--per_device_train_batch_size", 4, "--num_train_epochs", 2)
    assert "question 0[[ answer 0<|im_end|>]]" in text and "question 1[[" in text and "question 2" not in text
    assert "20 with 20 documents" in text and "warning" not in text
    assert "10 on 1 rank, 4 rows each" in text
    html = page.read_text()
    assert html.count("<h3>Row ") == 2 and " answer 1&lt;|im_end|&gt;" in shown(html) and 'class="t s"' in html


@pytest.mark.parametrize("words", [4, 60])
def test_preview_counts_lengths_and_padding(words, inputs, tmp_path):
    """The histogram, on the terminal and in the page, and what padding would cost: counted again here."""
    from tokenizers import Tokenizer

    rng = random.Random(words)
    rows = [{"text": "the cat sat down " * rng.randint(0, words) + "end"} for _ in range(50)]
    tokenizer = Tokenizer.from_file(str(inputs.model("plain") / "tokenizer.json"))
    lengths = [len(tokenizer.encode(row["text"] + "<|im_end|>").ids) for row in rows]
    page = tmp_path / "page.html"
    text = preview(inputs, save(tmp_path, rows), "--output_html", page, "--per_device_train_batch_size", 4,
                   "--train_sampling_strategy", "sequential", "--max_length", 2000)
    batches = [lengths[i:i + 4] for i in range(0, len(lengths), 4)]
    waste = 1 - sum(lengths) / sum(max(batch) * len(batch) for batch in batches)
    assert f"none here; {100 * waste:.1f} % of a padded batch's tokens" in text and waste > 0.1
    assert re.search(rf"tokens per epoch +{sum(lengths)}, of which {sum(lengths)} ", text)
    assert f"{min(lengths)} to {max(lengths)}, {sum(lengths) / len(lengths):.0f} in the mean" in text

    width = next(width for width in (1, 2, 5, 10, 20, 50, 100) if max(lengths) // width < 20)
    counts = [sum(length // width == i for length in lengths) for i in range(max(lengths) // width + 1)]
    bars = {f"{i * width}-{i * width + width - 1}" if width > 1 else str(i): count for i, count in enumerate(counts)}
    bars = dict(list(bars.items())[next(i for i, count in enumerate(counts) if count):])
    drawn = text.split("\ntokens of a row\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in drawn] == list(bars)
    assert [int(line.split()[-1]) for line in drawn] == list(bars.values())
    assert [line.count("#") for line in drawn] == [-(-40 * count // max(counts)) for count in bars.values()]
    found = re.findall(r'<tr><td>([^<]+)</td><td><span class="bar" style="width:([0-9.]+)rem"></span> (\d+)</td></tr>', page.read_text())
    assert found == [(label, f"{24 * count / max(counts):.1f}", str(count)) for label, count in bars.items()]


def test_preview_names_columns_that_nothing_is_made_of(inputs, tmp_path):
    rows = [{"text": f"line {i}", "id": i, "source": "web" if i % 2 else None} for i in range(8)]
    text = preview(inputs, save(tmp_path, rows))
    assert "columns that nothing is made of: id (8 rows), source (4 rows); --dataset_columns maps other names" in text
    rows = [{"system": "Be kind.", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 0}]}] * 2
    text = preview(inputs, save(tmp_path, rows), "--num_examples", 1)
    assert "nothing is made of" not in text and "Be kind." in text


def patched_program(path):
    """The program with another build id, as another build would have."""
    data = bytearray(pathlib.Path(PROGRAM).read_bytes())
    note = data.find(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
    assert note >= 0, "a note of the linker"
    data[note + 16] ^= 0xFF
    path.write_bytes(data)
    path.chmod(0o755)
    return path


def test_another_build_makes_its_own_rows(inputs, tmp_path):
    data = save(tmp_path, [{"text": f"line {i}"} for i in range(8)])
    other = patched_program(tmp_path / "strata")
    kept = tmp_path / "home" / "strata" / "tokens"

    def names_after(program):
        result = subprocess.run([str(program), "preview", "--model_name_or_path", str(inputs.model("plain")), "--dataset_name", str(data),
                                 "--dataset_cache", "true"], capture_output=True, text=True, timeout=120,
                                env={**environment(), "HF_HOME": str(tmp_path / "home")})
        assert result.returncode == 0, result.stderr
        return {path.name for path in kept.glob("*.tokens")}

    first = names_after(PROGRAM)
    assert len(first) == 1 and names_after(PROGRAM) == first
    both = names_after(other)
    assert len(both) == 2 and first < both
    assert names_after(other) == both


def test_preview_shows_packing(inputs, tmp_path):
    rows = [{"text": f"line {i} <b>"} for i in range(8)]
    page = tmp_path / "page.html"
    text = preview(inputs, save(tmp_path, rows), "--packing", "--max_length", 60, "--output_html", page)
    assert "-- document 2 of " in text and "packed rows are full to" in text
    assert "line 1 &lt;b&gt;" in shown(page.read_text()) and "<b>" not in page.read_text()


def test_preview_finds_mistakes(inputs, tmp_path):
    chat = lambda role, text: {"messages": [{"role": "user", "content": text}, {"role": role, "content": "x"}]}
    text = preview(inputs, save(tmp_path, [chat("assistant", "a"), chat("assistant", "a"), chat("oracle", "b")]))
    assert "warning: 1 of 3 documents are the same as an earlier one" in text
    assert 'warning: 1 messages have the role "oracle"' in text
    text = preview(inputs, save(tmp_path, [chat("assistant", "a" * 300)]), "--max_length", 20)
    assert "warning: no end token is trained in 1 of 1 documents" in text
    assert "warning: data: 1 rows have more than 20 tokens (long_rows: truncate)" in text
    text = preview(inputs, save(tmp_path, [{"input_ids": [5, 6], "labels": [-100, -100]}, {"input_ids": [5, 2], "labels": [5, 2]}]),
                   "--max_length", 20)
    assert "1 without a trained token" in text


def test_preview_finds_marks_and_masks(inputs, tmp_path):
    from tokenizers import Tokenizer, processors

    chats = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    data = save(tmp_path, chats)
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}<|made_up|>{{ m.content }}<start_of_turn>{{ eos_token }}{% endfor %}")
    text = preview(inputs, data, "--chat_template_path", template)
    assert f"warning: {template} writes <start_of_turn>, <|made_up|>, which this tokenizer does not know as one token" in text
    flags = base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1, chat_template_path=template)
    assert f"warning: {template} writes <start_of_turn>, <|made_up|>, which" in run_strata(flags).text
    model = inputs.model("plain")
    twice = tmp_path / "twice"
    twice.mkdir()
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))])
    tokenizer.save(str(twice / "tokenizer.json"))
    config = json.loads((model / "tokenizer_config.json").read_text())
    (twice / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|im_start|>"}))
    (twice / "chat_template.jinja").write_text((model / "chat_template.jinja").read_text())
    text = preview(inputs, data, "--tokenizer_name", twice, "--add_special_tokens", "true")
    assert "warning: 1 of 1 documents begin with the BOS token twice" in text
    assert "warning" not in preview(inputs, data, "--tokenizer_name", twice)  # the line end behind chatml's end is no end
    rows = [{"input_ids": [5, 6], "labels": [-100, -100]}, {"input_ids": [5, 2], "labels": [5, 2]}]
    text = preview(inputs, save(tmp_path, rows), "--packing", "--max_length", 20)
    assert "warning: 1 of 2 documents have no trained token" in text


def test_preview_on_a_terminal(inputs, tmp_path):
    """Colours for what is trained, and how far the preparation is, which is gone in the end."""
    data = save(tmp_path, [{"prompt": f"question {i}", "completion": " yes"} for i in range(4000)])
    terminal = Terminal([PROGRAM, "preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data,
                         "--num_examples", 1, "--no_dataset_cache"], columns=200)
    assert terminal.end() == 0, terminal.text
    assert re.search(r"\rpreparing train split of \S+: \d+ rows \(\d+ %\)", terminal.text), terminal.text[:300]
    drawn, shown = terminal.text.split("\r\x1b[K", 1)
    assert drawn.count("\n") == 0 and "preparing" not in shown
    assert "".join(re.findall("\x1b\\[30;42m(?:\x1b\\[1;4m)?([^\x1b]*)\x1b\\[0m", shown)) == " yes<|im_end|>"
    assert "\x1b[2m" in shown and "\x1b[30;42m\x1b[1;4m<|im_end|>\x1b[0m" in shown


def test_on_bad_row(inputs, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "good"}\nnonsense\n{"text": 3}\n{"prompt": "x"}\n{"text": "fine"}\n')
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data)
    assert result.returncode == 1 and "data.jsonl:2:" in result.stderr
    text = preview(inputs, data, "--on_bad_row", "skip")
    assert "warning: data: left out 3 bad rows; the first: " in text and "2 with 2 documents" in text
    assert re.search(r"rows read +5\n", text)


def test_a_second_start_reads_the_cache(inputs, tmp_path):
    home = tmp_path / "home"
    data = save(tmp_path, [{"text": "one"}])
    flags = ["preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data]
    env = {**environment(), "HF_HOME": str(home)}
    first = subprocess.run([str(PROGRAM), *map(str, flags)], capture_output=True, text=True, env=env)
    kept = list((home / "strata" / "tokens").glob("*.tokens"))
    assert first.returncode == 0 and len(kept) == 1
    before = kept[0].read_bytes()
    second = subprocess.run([str(PROGRAM), *map(str, flags)], capture_output=True, text=True, env=env)
    assert second.stdout == first.stdout and kept[0].read_bytes() == before
    save(tmp_path, [{"text": "two"}])
    third = subprocess.run([str(PROGRAM), *map(str, flags)], capture_output=True, text=True, env=env)
    assert "two" in third.stdout and len(list((home / "strata" / "tokens").glob("*.tokens"))) == 2


def test_long_rows(inputs, tmp_path):
    rows = [{"text": "a"}, {"text": "x" * 100}, {"text": "b"}]
    data = save(tmp_path, rows)
    for policy, kept, tokens in [("truncate", 3, None), ("drop", 2, None), ("split", None, None)]:
        text = preview(inputs, data, "--max_length", 20, "--long_rows", policy, "--num_examples", 9)
        assert f"longer than 20           1 (long_rows: {policy})" in text
        assert f"1 rows have more than 20 tokens (long_rows: {policy})" in text
        counted = int(re.search(r"rows to train on +(\d+)", text)[1])
        assert counted == kept if kept else counted > 4
        assert text.count("x") >= (100 if policy == "split" else 0) and ("xxxx" in text) == (policy != "drop")


@pytest.mark.parametrize("limit, warns", [(30, True), (31, False), (None, False), (1000000000000000019884624838656, False)])
def test_rows_beyond_model_max_length(limit, warns, inputs, tmp_path):
    """As the reference's tokenizer, which warns of them and cuts nothing."""
    from transformers import AutoTokenizer

    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    for path in inputs.model("plain").glob("*token*"):
        (tokenizer / path.name).write_text(path.read_text())
    config = json.loads((tokenizer / "tokenizer_config.json").read_text())
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": limit}))
    text = "x" * 30  # and the end token
    assert len(AutoTokenizer.from_pretrained(tokenizer)(text)["input_ids"]) == 30
    shown = preview(inputs, save(tmp_path, [{"text": text}, {"text": "y"}]), "--tokenizer_name", tokenizer)
    assert ("warning: 1 rows are longer than the 30 tokens of the tokenizer's model_max_length (the longest has 31)" in shown) == warns
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": "many"}))
    result = run("tokenize", "--model", tokenizer, stdin="x\n")
    assert result.returncode == 1 and 'tokenizer_config.json: model_max_length: found "many", expected a positive number' in result.stderr


def test_a_template_error_names_row_and_line(inputs, tmp_path):
    template = tmp_path / "strict.jinja"
    template.write_text("{% for m in messages %}\n{% if m.role == 'oracle' %}\n{{ raise_exception('no oracles here') }}\n{% endif %}{{ m.content }}{% endfor %}")
    chat = lambda role: {"messages": [{"role": role, "content": "the cat sat"}]}
    data = save(tmp_path, [chat("user"), chat("oracle"), chat("user")])
    flags = ["preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data, "--chat_template_path", template]
    result = run(*flags)
    assert result.returncode == 1 and f"{data}:2: {template}: line 3: no oracles here" in result.stderr, result.stderr
    assert "left out 1 bad rows; the first: " in run(*flags, "--on_bad_row", "skip").stdout


def test_rows_of_a_stream(inputs, tmp_path):
    """With max_steps no more rows are prepared than will be used, in the files' order."""
    data = save(tmp_path, [{"text": f"row {i}"} for i in range(5000)])
    flags = ["--dataset_streaming", "--max_steps", 3, "--per_device_train_batch_size", 2, "--gradient_accumulation_steps", 2]
    text = preview(inputs, data, *flags, "--num_examples", 2)
    assert "12 with 12 documents" in text and "---- row 0 ----\nrow 0" in text.replace("[[", "") and "3 on 1 rank, 4 rows each" in text
    assert "24 with 24 documents" in preview(inputs, data, *flags, "--num_processes", 2)
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data, *flags, "--train_sampling_strategy", "random")
    assert "has no effect; dataset_streaming keeps the files' order" in result.stderr
