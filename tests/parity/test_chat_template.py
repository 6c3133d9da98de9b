"""Oracle: transformers' apply_chat_template, text and assistant masks."""

import datetime
import json
import pathlib
import unicodedata

import pytest
import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template


TEMPLATES = {p.stem: p.read_text() for p in (pathlib.Path(__file__).parent / "templates").iterdir()}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_temperature",
        "description": "Current temperature — \"now\" in °C",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}, "n": {"type": ["integer", "null"]}},
            "required": ["location"],
            "x": [1, 2.5, 1e-7, True, None, {}, []],
        },
        "return": {"type": "number"},
    },
}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "id": "abcdEFGH1",
            "type": "function",
            "function": {"name": "get_temperature", "arguments": {"location": "Zürich, 北京", "n": 3}},
        }
    ],
}
SYSTEM = {"role": "system", "content": " You are \"helpful\". \n"}
USER = {"role": "user", "content": "  Héllo\n<b>&'\"\\ 👋🏽 "}
ANSWER = {"role": "assistant", "content": "Hi there!\n\nHow are you?  "}
RESULT = {"role": "tool", "tool_call_id": "abcdEFGH1", "name": "get_temperature", "content": "22.0"}
CHATS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER, USER],
    [SYSTEM, USER, ANSWER, USER, ANSWER],
    [USER, USER],
    [ANSWER],
    [SYSTEM],
    [SYSTEM, USER, CALL, RESULT, ANSWER],
    [USER, {"role": "assistant", "content": "x", "reasoning": "because"}],
]


def reference(template, messages, prompt=False, **extra):
    """The rendered text, or None where the template or Jinja refuses."""
    messages = [{k: v for k, v in m.items() if v is not None} for m in messages]
    try:
        texts, _ = render_jinja_template(
            [messages],
            chat_template=template,
            add_generation_prompt=prompt,
            **{"bos_token": "<s>", "eos_token": "</s>", **extra},
        )
    except Exception as error:  # the reference raises whatever Python raises
        return None, str(error)
    return texts[0], None


def same_text(probe, template, messages, prompt=False, **extra):
    theirs, why = reference(template, messages, prompt, **extra)
    ours = probe.ask(do="render", template=template, messages=messages, prompt=prompt, extra=extra)
    if theirs is None:
        assert "error" in ours, f"{template!r}: reference refuses ({why}), ours: {ours}"
    elif " at 0x" not in theirs:  # generators print as their address; they are refused here
        assert ours.get("text") == theirs, f"{template!r}: {ours}"
    return ours, why


@pytest.mark.parametrize("name", TEMPLATES)
def test_published_templates(probe, name):
    for chat in CHATS:
        for prompt in (False, True):
            for extra in ({}, {"tools": [TOOL]}, {"tools": [TOOL, TOOL]}):
                ours, why = same_text(probe, TEMPLATES[name], chat, prompt, **extra)
                if why and "must alternate" in why:
                    assert why in ours["error"]


# Some seventy published templates that TRL's package holds: Cohere, DeepSeek, Gemma, GLM, gpt-oss, LFM,
# Llama, Nemotron, Phi, Qwen, SmolVLM, with their training variants.
BUNDLED = {p.stem: p.read_text() for p in sorted((pathlib.Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))}
PARTS = [{"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": " this?"}]},
         {"role": "assistant", "content": [{"type": "text", "text": "A cat"}]}]
THINKING = [USER, {"role": "assistant", "reasoning_content": "hm", "content": "<think>\nold\n</think>\n\nx"}, USER,
            {"role": "assistant", "content": "", "thinking": "so", "tool_calls": CALL["tool_calls"]}, RESULT,
            {"role": "assistant", "content": "done"}]
RETURNED = [USER, CALL, {**RESULT, "content": {"celsius": [22, 0.5], "sure": True, "note": None}}, ANSWER]


def test_many_published_templates_are_bundled():
    assert len(BUNDLED) >= 50


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_templates(probe, name):
    today = datetime.date.today().isoformat()
    failures = []
    for chat in CHATS + [PARTS, THINKING, RETURNED]:
        for prompt in (False, True):
            for extra in ({}, {"tools": [TOOL]}, {"enable_thinking": False, "tools": [TOOL, TOOL]}):
                try:
                    same_text(probe, BUNDLED[name], chat, prompt, **extra)
                except AssertionError as error:
                    failures.append(f"{chat} {prompt} {sorted(extra)}: {str(error)[-600:]}")
    assert datetime.date.today().isoformat() == today, "midnight passed: run again"
    assert not failures, f"{len(failures)}: " + "\n".join(failures[:2])


# The tokens that the published tokenizers of these families hold and their templates write. What else looks
# like a tag (<tools>, <think>, <function=...>, <<SYS>>) is plain text to one or another of them.
PUBLISHED_MARKS = {
    "cohere": ["<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>"],
    "deepseekv3": [f"<\uff5c{name}\uff5c>" for name in (
        "Assistant", "User", "end\u2581of\u2581sentence", "tool\u2581call\u2581begin", "tool\u2581call\u2581end",
        "tool\u2581calls\u2581begin", "tool\u2581calls\u2581end", "tool\u2581output\u2581begin", "tool\u2581output\u2581end",
        "tool\u2581outputs\u2581begin", "tool\u2581outputs\u2581end", "tool\u2581sep")],
    "gemma": ["<end_of_turn>", "<start_of_turn>"],
    "glm4moe": ["<sop>", "<|assistant|>", "<|observation|>", "<|system|>", "<|user|>", "[gMASK]"],
    "gptoss": ["<|call|>", "<|channel|>", "<|end|>", "<|message|>", "<|return|>", "<|start|>"],
    "idefics3": ["<end_of_utterance>", "<|begin_of_text|>"],
    "llama3": ["<|end_header_id|>", "<|eot_id|>", "<|start_header_id|>"],
    "llama3_1": ["<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|start_header_id|>"],
    "nemotron_3_nano": ["<|im_end|>", "<|im_start|>"],
    "phi3": ["<|assistant|>", "<|end|>", "<|system|>", "<|user|>"],
    "qwen2_5": ["<|im_end|>", "<|im_start|>"],
    "qwen3": ["<|im_end|>", "<|im_start|>"],
}


@pytest.fixture(scope="module")
def few_tokens(tmp_path_factory):
    """Makes folders of tokenizers that know the given tokens."""

    def make(tokens):
        folder = tmp_path_factory.mktemp("tokens")
        tokenizer = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
        tokenizer.add_special_tokens(list(tokens))
        tokenizer.save(str(folder / "tokenizer.json"))
        return str(folder)

    return make


def test_marks_of_published_templates(probe, few_tokens):
    """Which of them a tokenizer without any lacks: those, and no plain text."""
    empty = few_tokens([])
    for name, tokens in PUBLISHED_MARKS.items():
        marks = sorted(tokens)
        found = probe.ask(do="marks", folder=empty, template=BUNDLED[name])["marks"]
        assert found == marks, name
        assert probe.ask(do="marks", folder=few_tokens(marks[1:]), template=BUNDLED[name])["marks"] == marks[:1]
    for name in ("llama2", "mistral", "zephyr"):
        assert probe.ask(do="marks", folder=empty, template=TEMPLATES[name], own=True)["marks"] == [], name
    known = ["[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
    assert probe.ask(do="marks", folder=few_tokens(known), template=TEMPLATES["mistral"])["marks"] == ["[TOOL_CALLS]"]


DOCUMENTS = [{"title": "A", "text": "first \u00e9"}, {"title": "B <b>", "contents": "second", "n": 2}]


def test_documents(probe):
    """The argument of templates that answer from documents, and templates that do not look at it."""
    source = ("{% if documents %}{% for d in documents %}{{ loop.index0 }} {{ d['title'] }}: {{ d.get('text', d.contents) }}\n"
              "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% else %}none{% endif %}"
              "{{ documents | tojson }}{{ documents is defined }}{{ documents | length if documents else 0 }}{{ messages[0].content }}")
    for extra in ({}, {"documents": DOCUMENTS}, {"documents": []}, {"documents": DOCUMENTS, "tools": [TOOL]}):
        same_text(probe, source, CHATS[3], **extra)
        for name in ("cohere2", "llama3_1", "qwen3", "glm4moe"):
            same_text(probe, BUNDLED[name], CHATS[3], True, **extra)


def test_llama31_options(probe):
    for extra in (
        {"builtin_tools": ["code_interpreter", "brave_search"]},
        {"tools": [TOOL], "tools_in_user_message": False},
        {"custom_tools": [TOOL], "date_string": "1 Jan 2030"},
        {"builtin_tools": ["get_temperature"], "tools": [TOOL]},
    ):
        for chat in CHATS:
            same_text(probe, TEMPLATES["llama31"], chat, True, **extra)


def test_assistant_masks(probe, tmp_path):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([USER["content"], ANSWER["content"], "Hello user"] * 5, trainer)
    backend.add_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.chat_template = TEMPLATES["chatml_generation"]
    tokenizer.save_pretrained(tmp_path)
    described = probe.ask(do="describe", folder=str(tmp_path))
    assert described["template"] == tokenizer.chat_template
    for chat in CHATS[:6]:
        theirs = tokenizer.apply_chat_template(
            chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        rendered = probe.ask(do="render", template=tokenizer.chat_template, messages=chat)
        ours = probe.ask(
            do="encode", folder=str(tmp_path), text=rendered["text"], special=False
        )
        assert ours["ids"] == theirs["input_ids"]
        mask = [0] * len(ours["ids"])
        for begin, end in rendered["spans"]:
            for i, (first, last) in enumerate(ours["ranges"]):
                mask[i] |= int(first < end and last > begin)
        assert mask == theirs["assistant_masks"]


EXPRESSIONS = """
7/2 | -7//2 | -7 % 3 | 7.5 // 2 | 2**3 | 2**-1 | -2**2 | 1 + 2 * 3 - 4 | 10 % 3.5 | 1e3 | 1e16 | 1e-5 | 0.1 + 0.2
true | none | [1, 'a', none, 2.0, "it's", 'q"'] | {'a': [1, (2,), ()], 1: true} | (1, 2) | 'a\\n\\t\\\\\\'é\\x41\\u00e9'
'a' ~ 1 ~ none ~ [1] | 'ab' 'cd' | 'a' * 3 | [1, 2] * 2 | 'x%sy%d%%' % ('a', 3) | not true or 1 and 2 | 1 < 2 < 3 | 1 < 2 > 3
1 if false | 1 if false else 2 | 'b' in 'abc' | 2 not in [1, 2] | 'k' in {'k': 1} | missing is defined | missing | missing.x
missing['x'] | missing + 1 | missing ~ 'x' | 'abc'[1] | 'héllo'[1:3] | 'abc'[::-1] | [1,2,3][-1] | [1,2,3][5] | [1,2,3,4][1:-1:2] | 'abc'[10:] | [1,2,3][::-2]
'abc'.upper() | ' a b  c '.split() | 'a,b,,c'.split(',') | 'a,b,c'.split(',', 1) | 'a,b,c'.rsplit(',', 1) | '  x '.strip() ~ '|' | 'xxaxx'.strip('x') | 'xxa'.lstrip('x')
'hello world'.title() | 'hELLO'.capitalize() | "they're bill's".title() | 'abc'.startswith('a') | 'abc'.endswith(('b', 'c')) | 'abc'.find('c') | 'abcabc'.rfind('b') | 'abab'.count('ab') | 'a-b'.replace('-', '+') | 'aaa'.replace('a', 'b', 2) | ','.join(['a', 'b'])
'a\\nb\\r\\nc'.splitlines() | 'a=b=c'.partition('=') | 'a=b=c'.rpartition('=') | 'abc'.isdigit() | '123'.isdigit() | 'ab'.center(7) ~ '|' | 'ab'.ljust(4, '.') | 'ab'.rjust(4) | 'prefix-x'.removeprefix('prefix-') | 'Σας ΟΔΟΣ'.lower() | 'straße'.upper()
{'a': 1}.get('b') | {'a': 1}.get('b', 2) | {'a': 1, 'b': 2}.items()|list | {'a': 1}.keys()|list | {'items': 5}['items'] | {'a': 1}.a | {'a': 1}.zzz | {'a': 1}['zzz'] is defined | {'a': {'b': 2}}.a.b
[3, 1, 2] | sort | [3, 1, 2] | sort(reverse=true) | ['b', 'A', 'c'] | sort | ['b', 'A', 'c'] | sort(case_sensitive=true) | [{'x': 2}, {'x': 1}] | sort(attribute='x') | {'b': 1, 'a': 2} | dictsort | {'b': 1, 'a': 2} | dictsort(by='value')
[1, 2, 3] | join(', ') | ['a'] | join | [1, 2, 3] | first | [] | first | [1, 2, 3] | last | 'abc' | first | [1, 2] | length | 'é漢' | length | {'a': 1} | length | missing | length | 'abc' | list | [1, 2, 3] | reverse | list | 'abc' | reverse
[1, 2, 3, 4] | select('odd') | list | [1, 0, 2] | select | list | [1, 2, 3] | reject('gt', 1) | list | [{'a': 1}, {'a': 2}, {}] | selectattr('a') | list | [{'a': 1}, {'a': 2}] | selectattr('a', 'eq', 2) | list | [{'a': 1}, {'a': 2}] | rejectattr('a', 'equalto', 2) | list
[{'a': 1}, {'a': 2}] | map(attribute='a') | list | ['a', 'b'] | map('upper') | list | [{'a': {'b': 3}}] | map(attribute='a.b') | list | [{}] | map(attribute='a', default='d') | list | ['x'] | map('replace', 'x', 'y') | list
missing | default('d') | '' | default('d') | '' | default('d', true) | none | default('d') | '  x ' | trim ~ '|' | 'xyx' | trim('x') | 'abc' | replace('b', 'X') | 'A B' | lower | 'a b' | upper | 'heLLo wORld' | title | 'heLLo' | capitalize
'3.7' | int | 'x' | int(5) | 3.9 | int | '4.5' | float | 3 | float | 2.5 | round | 3.14159 | round(2) | 2.675 | round(2) | 2.1 | round(0, 'ceil') | -3 | abs | [1, 2, 3] | sum | [{'a': 2}] | sum(attribute='a') | [3, 1] | min | [3, 1] | max | ['b', 'A'] | min
[1, 1, 2] | unique | list | ['a', 'A'] | unique | list | 'a\\nb\\n\\nc' | indent(2) | 'a\\nb' | indent(2, true) | [1, 2, 3] | batch(2) | list | 'a b  c' | wordcount | 5 | string | [1] | string | {'a': 1} | items | list | '<&>"' | e
[{'k': 'b', 'v': 1}, {'k': 'a', 'v': 2}, {'k': 'b', 'v': 3}] | groupby('k') | list | 'x' is string | 1 is number | true is number | [] is iterable | 'a' is sequence | {} is mapping | none is none | 4 is divisibleby(2) | 3 is odd | 'AB' is upper | 1 is integer | 1.0 is float | true is boolean | 5 is ge 5 | 'a' is in ['a'] | 5 is not string
messages | tojson | messages | tojson(indent=2) | {'b': 1, 'a': [1.0, none, true, 'é"<\\n\\x7f\\x01']} | tojson | {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) | 'é' | tojson(ensure_ascii=true) | '😀' | tojson(ensure_ascii=true) | [] | tojson(indent=2) | {} | tojson(indent=2) | [[1], {}] | tojson(indent=1) | 1e100 | tojson
range(3)|list | range(5, 1, -2)|list | dict(a=1, b='x') | namespace(a=1).a | [1, 2].index(2) | [1, 2, 1].count(1) | [1].append(2) | {}.update({}) | 'x'.nope() | nope() | 'a' + 1 | 1 / 0 | [] < {} | 'x' | nope | 1 is nope
raise_exception('no!') | range(200000) | [1, [2, [3]]] == [1, [2, [3]]] | 1 == 1.0 | true == 1 | 'a' < 'b' | (1, 2) < (1, 3) | none == missing | 1_000 | 0x1F | messages[0].role | messages[-1]['content'] | messages | map(attribute='role') | join('/')
'a' if missing else 'b' | (1 if true else 2) + 3 | not 1 in [2] | [] or 'x' | 'x' and 'y' | -(1 + 2) | +3 | - 3 | abs | 'a' ~ 'b' * 2 | 2 + 3 ~ 4 | 'é'.__class__ | ''.__class__.x | 3 | float | string | 1.5e300 * 1e10
""".strip()

STATEMENTS = [
    "{% for m in messages %}\n  {% if loop.first %}\n    A{{ m.content|trim }}\n  {% endif %}\n{% endfor %}\nEND\n",
    "{% for i in [1,2,3] %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a','b') }};{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}",
    "{% for i in range(10) if i % 2 %}{{ i }}{% if loop.last %}!{% endif %}{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }},{% endfor %}",
    "{% for k in {'a': 1} %}{{ k }}{% endfor %}{% for c in 'hé' %}[{{ c }}]{% endfor %}{% for x in missing %}{% else %}none{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace() %}{% set ns._x = 1 %}",
    "{% set d = {} %}{% set d.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, %}{{ t }}",
    "{% set x %}  hi {{ 1 }} {% endset %}[{{ x }}]{% set y | upper | trim %} a {% endset %}[{{ y }}]",
    "{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, c=5) }}{{ f(b=3, a=4) }}{{ f.name }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(z=2) }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, z=3) }}",
    "{% macro f(a) %}[{{ a }}|{{ caller('x') }}]{% endmacro %}{% call(v) f(1) %}body {{ v }}{% endcall %}",
    "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% set y = 1 %}{% macro f() %}{{ y }}{% endmacro %}{% set y = 2 %}{{ f() }}",
    "{% filter upper | trim %}  abc {{ 'd' }} {% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% set c = 9 %}{% endwith %}{{ a }}{{ c }}",
    "{% raw %}{{ not }} {% if %}{% endraw %}|{%- raw -%}  x {{ y }}  {%- endraw -%}  z",
    "a {#- comment -#}  b {# x #}\n c{# y #}\n\nd",
    "  {% if true %}\n  x\n  {% endif %}\n  y  {% if true %} z {% endif %}\n",
    "  {%+ if true %}\n  x\n  {%+ endif %}\n y",
    "  {%- if true -%}\n  x\n  {%- endif -%}\n y",
    "{% if true +%}\nx{% endif +%}\ny",
    "{{ 1 -}}   \n  {{- 2 }}\n{{ 3 }}\n\n",
    "a\r\nb\rc\n{{ 'x' }}\r\n",
    "{{ {'a': {'b': 1}}['a']['b'] }}{{ {} }}{{ {'a':{}} }}",
    "{{ '}}' }}{{ \"{%\" }}{% if '%}' == '%}' %}ok{% endif %}",
    "{% set ns = namespace() %}{% for a in [1, 2] %}{% for b in [1] recursive %}<{{ b }}{{ loop.depth }}{{ big }}>{% set ns.f = loop %}{% endfor %}{% endfor %}{{ ns.f([1, 2]) }}",
    "{% set ns = namespace() %}{% macro m(x) %}{% for b in [1] recursive %}<{{ x }}{{ b }}>{% set ns.f = loop %}{% endfor %}{% endmacro %}{{ m(7) }}{{ m(8) }}{{ ns.f([1, 2]) }}",
    "{% set ns = namespace() %}{% for a in [[1, [2]], 3] recursive %}{% if a is sequence %}({{ loop(a) }}){% set ns.f = loop %}{% else %}{{ a }}.{{ loop.depth }}{% endif %}{% endfor %}|{{ ns.f([9, [8]]) }}",
    "{% set ns = namespace() %}{% for a in [1] %}{% set ns.f = loop %}{% endfor %}{{ ns.f([1]) }}",
    "{% set ns = namespace(x=1) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | length }}",
    "{% set ns = namespace(x=1) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{% for i in [1,[2,[3]]] recursive %}{% if i is number %}{{ i }}@{{ loop.depth }}{% else %}({{ loop(i) }}){% endif %}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set j = joiner(', ') %}{{ j() }}x{{ j() }}y",
    "{% for m in messages %}{% if loop.changed(m.role) %}{{ m.role }}{% endif %}{% endfor %}",
    "{{ f(*[1, 2], **{'c': 3}) }}",
    "{% macro f(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(*[1, 2], **{'c': 3}) }}",
    "{% if messages[0].role == 'system' %}s{% elif messages[0]['role'] == 'user' %}u{% else %}o{% endif %}",
    "{{ messages[0]['content'][:5] }}{{ messages[1:] | length }}{{ messages[0].nope }}{{ messages[0].nope is defined }}",
    "{{ messages[0].nope.x }}",
    "{% for m in messages %}{% for c in m.content.split('l') %}{{ loop.index }}{{ c }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}{{ bos_token }}{{ sep_token is defined }}",
    "{% generation %}x{% set q = 1 %}{% endgeneration %}{{ q }}",
    "{% filter upper %}a{% filter trim %} b {% endfilter %}{% endfilter %}", "{% filter length %}{% endfilter %}", "{% filter length %}ab{% endfilter %}",
    "{% filter int %}5{% endfilter %}", "{% filter list %}ab{% endfilter %}", "{% filter upper | length %}ab{% endfilter %}", "{% filter first %}{% endfilter %}",
    "{% include 'x' %}", "{% bogus %}", "{% if %}{% endif %}", "{% if true %}", "{{ 1", "{{ 'abc }}", "{% endif %}",
    "{{ }}", "{{ 1 2 }}", "{{ a. }}", "{# open", "{% for %}{% endfor %}", "{{ [1, }}", "{{ ) }}", "{{ 'a'|}}", "{% break %}",
    "{% set %}", "{% macro %}{% endmacro %}", "{{ 1 if }}", "{{ x is }}", "{{ $ }}", "{% set true = 1 %}", "{% set x.y.z = 1 %}",
]


def test_language(probe):
    expressions = [e.strip() for line in EXPRESSIONS.splitlines() for e in line.split(" | ")]
    # A bare filter name belongs to the expression before it.
    chains = []
    for expression in expressions:
        chains.append("{{ " + expression + " }}")
        if len(chains) > 1:
            chains.append("{{ " + expressions[len(chains) // 2 - 1] + " | " + expression + " }}")
    lines = ["{{ " + line.strip() + " }}" for line in EXPRESSIONS.splitlines()]
    failures = []
    for template in chains + lines + STATEMENTS:
        try:
            same_text(probe, template, CHATS[3])
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
    assert not failures, "\n".join(failures)


GENERATED = [f"{{% set x = {made} %}}{use}" for made in (
    "[3, 1, 2] | map('string')", "[0, 3, 3, 1] | select", "[] | select", "messages | selectattr('role', 'equalto', 'user')",
    "[3, 1, 2] | reverse", "[3, 3, 1] | unique", "[3, 1, 2] | batch(2)", "[3, 1, 2] | slice(2)", "{'a': 1} | items", "none | map('upper')",
    "missing | items", "[1, 2] | select | reverse", "missing | reverse") for use in (
    "{{ 'yes' if x else 'no' }}", "{% for a in x %}{{ a }},{% endfor %}|{% for a in x %}{{ a }},{% endfor %}", "{{ x | list }}{{ x | list }}",
    "{{ x | first }}|{{ x | join(',') }}", "{{ x | length }}", "{{ x | last }}", "{{ x[0] }}", "{{ x | tojson }}", "{{ 3 in x }}{{ x | list }}",
    "{{ x is iterable }}{{ x is sequence }}{{ x is mapping }}{{ x is string }}{{ x is callable }}{{ x == x }}{{ x == [] }}{{ x is none }}",
    "{{ x + [] }}", "{{ x | sort | string }}{{ x | list }}", "{{ x | select | list }}{{ x | list }}", "{{ x.items() }}", "{{ x | default('d', true) | list }}",
    "{% for a in x %}{{ loop.length }}{{ loop.last }}{% endfor %}", "{% set n = namespace(y=x) %}{{ n.y | list }}{{ x | list }}", "{{ x < x }}",
    "{{ {'k': 1}[x] is defined }}", "{{ x | sum }}", "{% set a, b, c = x %}{{ a }}{{ b }}{{ c }}", "{{ x | map('string') | join }}")]


def test_what_filters_give_is_handed_out_once(probe):
    """Generators: true even when empty, without length, and with nothing for a second loop."""
    failures = []
    for template in GENERATED:
        try:
            same_text(probe, template, CHATS[3])
        except AssertionError as error:
            failures.append(str(error).splitlines()[0])
    assert not failures, "\n".join(failures)


def test_a_generator_that_is_printed_is_told(probe):
    for template in ("{{ [1] | map('string') }}", "a{{ '' ~ (messages | select) }}", "{{ [[1] | reverse] }}"):
        answer = probe.ask(do="render", template=template, messages=CHATS[0])
        assert answer.get("error", "").endswith("printed as a whole, expected its items; write | list after that filter"), answer


# What Jinja makes a marked text of.
MARKED = """
'<b>'|safe + 'x' ; 'x' + ('<b>'|safe) ; ('<b>'|safe) * 2 ; 2 * ('<b>'|safe) ; ('<b>'|safe)[0] ; ('<b>'|safe)[1:] ; '<b>'|safe|upper ; '<b>'|safe|lower
'<b>'|safe|capitalize ; '<b>'|safe|trim ; '<b>'|safe|trim('<') ; '<b>'|safe|string ; '<b>'|safe|indent ; '<b>'|safe|center(9) ; '<b>'|safe|truncate(9)
'<b b b'|safe|truncate(5, leeway=0) ; '<b>'|safe|reverse ; '<b>'|safe|last ; '<%s>'|safe|format('x') ; ('<%s>'|safe) % 5 ; '<b>'|safe|e ; '<b>'|forceescape
('<b>'|safe).upper() ; ('<b>'|safe).replace('b', 'c') ; ('-'|safe).join(['x', 'y']) ; ('<b c>'|safe).split()[0] ; ('<b c>'|safe).partition(' ')[2]
('<{}>'|safe).format('x') ; ('<{k}>'|safe).format_map({'k': 1}) ; ('<b>'|safe).ljust(5) ; ('<b>'|safe).zfill(5) ; ('<b>'|safe).splitlines()[0]
['<b>'|safe]|map('upper')|first ; '<b>'|safe|default('x')
""".strip().replace("\n", " ; ").split(" ; ")


def test_texts_that_jinja_would_escape_are_told(probe):
    """Beside `safe` and `escape` an operator escapes the other text: an error where that would change it."""
    for template in ("{{ '<a>' + ('x' | safe) }}", "{{ ('x' | safe) + '<a>' }}", "{{ ('%s' | escape) % '<a>' }}",
                     *(f"{{{{ ({made}) + '<a>' }}}}" for made in MARKED),
                     "{{ ('%s' | safe) % ('<a>',) }}", "{{ ('%(k)s' | safe) % {'k': '<a>'} }}", "{{ '%s %s' | safe | format('x', '<a>') }}",
                     "{{ ('{}' | safe).format('<a>') }}", "{{ ('{k}' | safe).format_map({'k': '<a>'}) }}", "{{ ('{0[0]}' | safe).format(['<a>']) }}",
                     "{{ ('x' | safe).replace('x', '<a>') }}", "{{ ('-' | safe).join(['<a>', 'b']) }}", "{{ 'a b c d' | safe | truncate(5, end='<a>', leeway=0) }}"):
        theirs, _ = reference(template, CHATS[0])
        assert "&lt;a&gt;" in theirs
        answer = probe.ask(do="render", template=template, messages=CHATS[0])
        assert answer["error"].endswith("expected plain texts; remove that filter"), answer
    for template in ("{{ 'a' + ('<b>' | safe) }}", "{{ ('<b>' | safe) + ('<c>' | e) }}", "{{ '<a>' ~ ('<b>' | safe) }}",
                     "{{ ['<a>', '<b>' | safe] | join }}", "{{ '%s' % ('<b>' | safe) }}",
                     "{{ '<b>' | safe | e }}", "{{ '<b>' | e | e }}", "{{ '<b>' | e | forceescape }}", "{{ {'a': '<b>' | safe} | xmlattr }}",
                     "{{ ('<b>' | safe | title) + '<a>' }}", "{{ ('<b>' | safe | replace('b', 'c')) + '<a>' }}", "{{ ([1] | join('<b>' | safe)) + '<a>' }}",
                     "{{ ('<b>' | safe ~ '') + '<a>' }}", "{{ ('<b>' | safe | first) + '<a>' }}", "{{ ('<b>' | safe | list)[0] + '<a>' }}",
                     "{{ '<b>'.join(['<a>' | safe, 'x']) + '<a>' }}", "{{ ('%s %d' | safe) % ('<b>' | safe, 5) }}", "{{ ('{}{:<4}' | safe).format('<b>' | safe, 'x') }}",
                     "{{ ('%r' | safe) % 5 }}", "{{ ('%c' | safe) % 'x' }}", "{{ ('%x' | safe) % 255 }}", "{{ ('%*d' | safe) % (5, 3) }}",
                     "{{ ('{:>5}' | safe).format('x' | safe) }}", "{{ ('<b>' | safe).find('b') }}", "{{ '<b>' | safe | wordcount }}"):
        same_text(probe, template, CHATS[0])


@pytest.mark.parametrize("template", """
{% set x = [1, 2, 3] | map('string') %}{% for a in x %}{{ a }}{% break %}{% endfor %}|{% for a in x %}{{ a }}{% endfor %}
{% set x = [1, 2, 3, 4] | select %}{% for a in x if a > 1 %}{{ a }}{% break %}{% endfor %}|{{ x | list }}
{% set x = [1, 2, 3, 4] | select %}{% for a in x %}{{ a }}{{ loop.last }}{% break %}{% endfor %}|{{ x | list }}
{% set x = [1, 2, 3, 4] | select %}{% for a in x %}{{ a }}{{ loop.nextitem }}{% if a == 2 %}{% break %}{% endif %}{% endfor %}|{{ x | list }}
{% set x = [1, 2, 3, 4] | select %}{% for a in x %}{{ loop.length }}{{ loop.revindex }}{% break %}{% endfor %}|{{ x | list }}
{% set x = [1, 2, 3, 4] | select %}{% for a in x %}{{ a }}{{ x | first }};{% endfor %}
{% set x = [1, 2, 3] | select %}{% for a in x %}{{ a }}:{{ x | list }}{% else %}none{% endfor %}{% for a in x %}{% else %}none{% endfor %}
{% set n = namespace(done=false) %}{% for a in [1, 2, 3] if not n.done %}{{ a }}{% set n.done = a == 2 %}{% endfor %}
{% set n = namespace(f=0) %}{% for a in [1, 2, 3] if a == 1 or n.f.index == 1 %}{{ a }}{% set n.f = loop %}{% endfor %}
{% set n = namespace(i=0) %}{% for a in [1, 2, 3, 4] if a > n.i %}{{ a }}{{ loop.last }}{{ loop.index }}{% set n.i = a + 1 %}{% endfor %}
""".strip().splitlines())
def test_a_loop_takes_items_one_by_one(probe, template):
    ours, why = same_text(probe, template, CHATS[0])
    assert why is None and "text" in ours


BIG = {"big": 2**64 + 1, "next": 2**64, "small": -(10**30), "edge": 2**63, "huge": 10**400, "inf": float("inf")}


@pytest.mark.parametrize("expression", """
big | big|tojson | [big, small]|tojson | {'k': edge} | {'k': edge}|tojson(indent=2) | big|string | big ~ small | '%s %r' % (big, edge)
'{}'.format(small) | '%.2f' % big | big is integer | big is number | big is float | big is boolean | big == big | big == edge
big > 1 | small < 1 | big > edge | small < small | big <= 18446744073709551616.0 | big == 18446744073709551616.0 | 1e300 > big
big > 0.5 | small < -0.5 | small|abs | big|abs | +big | big|int | big|float | big / 2 | big + 0.5 | 'x' if big else 'y'
[big, small, edge, 1]|sort | [big, small]|max | [big, big, edge]|unique|list | big|round | big in [big] | edge in [big]
{big: 1, big - 0.0: 2}|length | {big: 1, edge: 2}[edge] | {9007199254740993: 1, 9007199254740992: 2}|length | {9007199254740993: 1}[9007199254740992.0] | {1: 2}[1.0] | {2**53: 1}[9007199254740992.0]
{next: 1, big: 2}|length | {next: 1}[big] | {big: 'a', next: 'b'}[big] | 9007199254740993 == 9007199254740992.0 | 9007199254740993 > 9007199254740992.0 | huge == huge | huge > 1e300 | 'x' if huge else 'y' | huge|string
huge < inf | huge > -inf | huge == inf | '18446744073709551617'|int | ' -0018446744073709551617 '|int | '1_8446744073709551617'|int | '1e30'|int | 1e30|int | 9.3e18|int | '9223372036854775808'|int | huge|string|int == huge
""".replace("\n", " | ").strip(" |").split(" | "))
def test_integers_beyond_64_bits(probe, expression):
    """Numbers of tool calls, such as ids, keep their digits; what a double cannot hold was printed as one."""
    ours, why = same_text(probe, "{{ " + expression + " }}", CHATS[0], **BIG)
    assert why is None and "text" in ours


@pytest.mark.parametrize("expression", ["big + 1", "big * 2", "-edge", "big % 10", "big|round(-2)", "'{:d}'.format(big)", "'%x' % big"])
def test_arithmetic_beyond_64_bits_is_refused(probe, expression):
    answer = probe.ask(do="render", template="{{ " + expression + " }}", messages=CHATS[0], extra=BIG)
    assert answer.get("error", "").endswith(": found an integer beyond 64 bits"), answer


@pytest.mark.parametrize("expression", ["huge / 2", "huge + 0.5", "huge|float", "'%.2f' % huge", "'{:e}'.format(huge)", "inf|int"])
def test_integers_that_no_float_holds_are_refused_as_there(probe, expression):
    _, why = same_text(probe, "{{ " + expression + " }}", CHATS[0], **BIG)
    assert "too large" in why or "infinity" in why


def test_digits_of_another_base_beyond_64_bits_are_told(probe):
    answer = probe.ask(do="render", template="{{ 'ffffffffffffffffff'|int(base=16) }}", messages=CHATS[0])
    assert answer["error"].endswith(": found an integer beyond 64 bits"), answer


def test_a_loop_that_its_own_filter_looks_ahead_of_is_refused_as_there(probe):
    _, why = same_text(probe, "{% set n = namespace(f=0) %}{% for a in [1, 2, 3] if a == 1 or n.f.length %}{% set n.f = loop %}{% endfor %}", CHATS[0])
    assert why == "generator already executing"


def test_every_character_prints_as_python_prints_it(probe):
    points = [p for p in range(0, 0x3000) if unicodedata.category(chr(p)) != "Cn"]
    for start in range(0, len(points), 500):
        text = "".join(chr(p) for p in points[start : start + 500])
        chat = [{"role": "user", "content": text}]
        for template in ("{{ messages }}", "{{ messages | tojson }}", "{{ messages[0].content | trim }}"):
            same_text(probe, template, chat)


HOSTILE = {
    "endless loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "large text": "{% set x = 'a' * 1000000000 %}{{ x }}",
    "doubling text": "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling list": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "nested sharing": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "nested comparison": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "self reference": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
    "huge power": "{{ 9 ** 999999999 }}",
    "deep brackets": "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}",
    "deep lists": "{{ " + "[" * 100000 + "]" * 100000 + " }}",
    "long chain": "{{ 1" + " + 1" * 100000 + " }}",
    "long dots": "{{ a" + ".a" * 100000 + " }}",
    "long filters": "{{ 1" + "|string" * 100000 + " }}",
    "long nots": "{{ " + "not " * 100000 + "1 }}",
    "long minus": "{{ " + "-" * 100000 + "1 }}",
    "deep ifs": "{% if 1 %}" * 10000 + "{% endif %}" * 10000,
    "indent": "{{ 'a'|indent(1000000000) }}",
    "center": "{{ 'a'.center(10000000000) }}",
    "center with a wide fill": "{{ 'a'.center(4611686018427387904, '😀') }}",
    "a wide field": "{{ '{:>99999999999}'.format('a') }}",
    "a wide conversion": "{{ '%99999999999s' % 'a' }}",
    "many slices": "{{ [1]|slice(10000000000)|list }}",
    "a large rounding": "{{ 9223372036854775807|round(-18) + 9223372036854775807|round(-18) }}",
    "batch": "{{ [1]|batch(1000000000, 'x')|list }}",
    "mutation": "{{ messages.append(1) }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_an_error(probe, name):
    answer = probe.ask(do="render", template=HOSTILE[name], messages=CHATS[0])
    assert "error" in answer and answer["error"].startswith("chat template: line "), answer


def test_errors_name_line_and_cause(probe):
    for template, expected in {
        "a\nb\n{{ x | nope }}": "chat template: line 3: no filter named 'nope'",
        "{% if x is nope %}{% endif %}": "chat template: line 1: no test named 'nope'",
        "\n{{ nope() }}": "chat template: line 2: 'nope' is undefined",
        "\n\n{% nope %}": "chat template: line 3: unknown tag 'nope'",
        "{{ raise_exception('Only user!') }}": "chat template: line 1: Only user!",
    }.items():
        answer = probe.ask(do="render", template=template, messages=CHATS[0])
        assert answer == {"error": expected}
    answer = probe.ask(do="render", template="x", messages=[])
    assert "no messages" in answer["error"]
    answer = probe.ask(do="render", template="x", messages=[json.dumps(1)])
    assert "message 0" in answer["error"]
