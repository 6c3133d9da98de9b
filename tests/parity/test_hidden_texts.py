"""Oracle: Jinja2 in the Hugging Face environment (apply_chat_template): a text is hidden if another text in its place renders
the same. Over the published templates that TRL carries, and feature templates."""

import collections
import copy
import json
import pathlib

import jinja2
import pytest
import trl

from data_probe import probe
from test_assistant_spans import byte_tokenizer

TRL = pathlib.Path(trl.__file__).parent / "chat_templates"
PUBLISHED = sorted(path.name for path in TRL.glob("*.jinja") if "training" not in path.name)
TOOLS = [{"type": "function", "function": {"name": name, "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}} for name in ("add", "subtract")]
CALL = [{"id": "call00001", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def said(role, text, **more):
    return {"role": role, "content": text, **more}


RESULT = said("tool", "it is 2", name="add", tool_call_id="call00001")
ROWS = [
    {"messages": [said("user", "q1"), said("assistant", "a1")]},
    {"messages": [said("system", "Be kind."), said("user", "q1"), said("assistant", "a1"), said("user", "q2"), said("assistant", "a2")]},
    {"messages": [said("user", "q1"), said("critic", "q1"), said("assistant", "a1")]},
    {"messages": [said("user", "q1"), said("critic", "ok"), said("assistant", "ok then")]},
    {"messages": [said("user", "q1"), said("critic", "assistant"), said("critic", " \n"), said("assistant", "a1")]},
    {"messages": [said("user", "q1"), said("assistant", "a1"), said("system", "From now on in French."), said("user", "q2"), said("assistant", "a2")]},
    {"messages": [said("user", "q1"), said("assistant", "let me see", tool_calls=CALL), RESULT, said("assistant", "a1")]},
    {"messages": [said("user", "q1"), said("assistant", "", tool_calls=CALL), RESULT, said("assistant", "a1")], "tools": TOOLS},
    {"messages": [said("user", "add"), said("assistant", "subtract")], "tools": TOOLS},
    {"messages": [said("user", "  q1 <b>&\"x\"</b> \n"), said("assistant", "<think>\nhm\n</think>\n\nA1"), said("user", "Q2"),
                  said("assistant", "<think>\nso\n</think>\n\n\u00e9 \u65e5")]},
    {"messages": [said(role, [{"type": "text", "text": text}]) for role, text in (("user", "q1"), ("assistant", "a b"), ("user", "q2"), ("assistant", "c"))]},
    {"prompt": [said("user", "q1")], "completion": [said("critic", "no"), said("assistant", "a1")]},
]
FEATURES = {
    "knows two roles": "{% for m in messages %}{% if m.role in ('user', 'assistant') %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}",
    "no system": "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}",
    "upper case": "{% for m in messages %}{{ m.content | upper }};{% endfor %}",
    "json": "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ tools | tojson if tools }}",
    "the last first": "{% for m in messages | reverse %}{{ m.content }};{% endfor %}{% if tools %}{{ tools[-1].function.name }}{% endif %}",
    "the last alone": "{{ messages[-1].content }}",
    "refuses marks": "begin {% for m in messages %}{% if m.content | length > 2 and m.role == 'critic' %}{{ raise_exception('long') }}{% endif %}{% endfor %}",
    "nothing": "text",
}


def places_of(row):
    """What of a row can be hidden: its name, and a function that puts another text there."""

    def put_text(message, text):
        if isinstance(message["content"], str):
            message["content"] = message["content"].rstrip() + text
        else:
            message["content"][-1]["text"] += text

    def put_name(call, text):
        call["function"]["name"] += text

    places = []
    if row.get("tools"):
        places.append(("tools", lambda r, text: put_name(r["tools"][-1], text)))
    lists = [key for key in ("messages", "prompt", "completion") if key in row]
    for key in lists:
        for i, message in enumerate(row[key]):
            content = message["content"]
            shown = (content if isinstance(content, str) else content[-1]["text"]).split("</think>")[-1].strip()
            if shown:
                places.append((f'texts of role "{message["role"]}"', lambda r, text, key=key, i=i: put_text(r[key][i], text)))
            if message.get("tool_calls"):
                places.append((f'tool_calls of role "{message["role"]}"', lambda r, text, key=key, i=i: put_name(r[key][i]["tool_calls"][-1], text)))
    return places


def render(tokenizer, template, row):
    messages = row.get("messages") or row["prompt"] + row["completion"]
    return tokenizer.apply_chat_template(copy.deepcopy(messages), chat_template=template, tools=row.get("tools"), tokenize=False)


def hidden_by(tokenizer, template, row):
    """None: the template refuses the row itself. Empty if it refuses another text there."""
    try:
        plain = render(tokenizer, template, row)
    except (jinja2.exceptions.TemplateError, TypeError):
        return None
    hidden = collections.Counter()
    for name, put in places_of(row):
        changed = copy.deepcopy(row)
        put(changed, "zzz")
        try:
            hidden[name] += render(tokenizer, template, changed) == plain
        except (jinja2.exceptions.TemplateError, TypeError):
            return collections.Counter()
    return +hidden


def compare(tokenizer, template, folder):
    """How many texts were hidden, after each row of its own and all as one set were as the oracle says."""
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder / "tokenizer")
    expected = [hidden_by(tokenizer, template, row) for row in ROWS]
    kept = [(i, row) for i, row in enumerate(ROWS) if expected[i] is not None]
    requests = []
    for i, row in kept:
        (folder / f"{i}.jsonl").write_text(json.dumps(row) + "\n")
        requests.append({"op": "prepare", "tokenizer": str(folder / "tokenizer"), "data": str(folder / f"{i}.jsonl"), "batch_size": 1, "max_length": 0, "completion_only_loss": False})
    for (i, row), answer in zip(kept, probe(folder, requests), strict=True):
        found = answer["stats"]["hidden_texts"] or {}
        assert {name: texts["count"] for name, texts in found.items()} == dict(expected[i]), row
        assert all(texts["first"] == [f"{folder / f'{i}.jsonl'}:1"] for texts in found.values())
    return sum((expected[i] for i, _ in kept), collections.Counter())


@pytest.mark.parametrize("name", PUBLISHED)
def test_texts_that_published_templates_hide(name, tokenizer, tmp_path):
    compare(tokenizer, (TRL / name).read_text(), tmp_path)


SEEN = {
    "knows two roles": {'texts of role "system"': 2, 'texts of role "critic"': 4, 'texts of role "tool"': 2, 'tool_calls of role "assistant"': 2, "tools": 2},
    "no system": {'texts of role "system"': 2, 'tool_calls of role "assistant"': 2, "tools": 2},
    "json": {}, "upper case": None, "the last first": None, "the last alone": None, "refuses marks": None, "nothing": None,
}


@pytest.mark.parametrize("name", FEATURES)
def test_texts_that_feature_templates_hide(name, tokenizer, tmp_path):
    hidden = compare(tokenizer, FEATURES[name], tmp_path)
    assert SEEN[name] is None or hidden == SEEN[name]


def test_rows_are_counted_and_the_first_are_named(tokenizer, tmp_path):
    tokenizer.chat_template = FEATURES["knows two roles"]
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    critic = [said("user", "q"), said("critic", "x"), said("critic", "y"), said("assistant", "a")]
    rows = [critic if i % 3 == 1 else [said("user", "q"), said("assistant", "a")] for i in range(1300)]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in rows))
    for extra in ({}, {"assistant_only_loss": True}):
        answer, = probe(tmp_path / "requests", [{"op": "prepare", "tokenizer": str(tmp_path / "tokenizer"), "data": str(path), "batch_size": 1,
                                                 "max_length": 0, **extra}])
        assert answer["stats"]["hidden_texts"] == {'texts of role "critic"': {
            "count": 2 * sum(messages is critic for messages in rows), "first": [f"{path}:{line}" for line in (2, 5, 8)]}}


@pytest.mark.parametrize("settings, longest", [
    ({"max_length": 0}, [(900, 700), (901, 700), (3, 300)]), ({"max_length": 500}, [(3, 300), (900, 500), (901, 500)]),
    ({"max_length": 500, "long_rows": "drop"}, [(3, 300), (1, 20), (2, 20)]), ({"max_length": 500, "long_rows": "split"}, [(900, 500), (901, 500), (3, 300)]),
    ({"max_length": 400, "packing": True, "packing_strategy": "bfd_split"}, [(900, 400), (901, 400), (3, 300)]),
])
def test_the_longest_rows_are_named(settings, longest, tokenizer, tmp_path):
    """One token a byte: lengths are those of the texts, cut where the settings cut them."""
    lengths = [20] * 1000
    for line, length in ((3, 300), (900, 700), (901, 700)):
        lengths[line - 1] = length
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * length}) + "\n" for length in lengths))
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = "x"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    answer, = probe(tmp_path / "requests", [{"op": "prepare", "tokenizer": str(tmp_path / "tokenizer"), "data": str(path), "batch_size": 1, **settings}])
    found = [(row["where"], row["tokens"]) for row in answer["stats"]["longest_rows"]]
    assert found == sorted([(f"{path}:{line}", tokens) for line, tokens in longest], key=lambda row: -row[1])


@pytest.mark.parametrize("name", PUBLISHED)
def test_arguments_that_a_template_quotes_once_more(name, tokenizer, tmp_path):
    """JSON text, as OpenAI's format has it: told where the template shows it as the text of a text, and no object ever."""
    tokenizer.chat_template = (TRL / name).read_text()
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    text = '{"a": 17, "b": "\u00e9 \\"x\\""}'
    for arguments in (text, json.loads(text)):
        row = {"messages": [said("user", "q1"), said("assistant", "", tool_calls=[{**CALL[0], "function": {"name": "add", "arguments": arguments}}]),
                            RESULT, said("assistant", "a1")], "tools": TOOLS}
        try:
            is_quoted = json.dumps(text, ensure_ascii=False) in render(tokenizer, tokenizer.chat_template, row)
        except (jinja2.exceptions.TemplateError, TypeError):
            continue  # the template refuses such arguments
        assert not is_quoted or arguments is text
        (tmp_path / "row.jsonl").write_text(json.dumps(row) + "\n")
        answer, = probe(tmp_path / "requests", [{"op": "prepare", "tokenizer": str(tmp_path / "tokenizer"), "data": str(tmp_path / "row.jsonl"),
                                                 "batch_size": 1, "max_length": 0}])
        found = answer["stats"]["printed_parts"] or {}
        assert found == ({'arguments of role "assistant"': {"count": 1, "first": [f"{tmp_path / 'row.jsonl'}:1"]}} if is_quoted else {})
