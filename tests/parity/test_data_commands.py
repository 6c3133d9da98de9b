"""Oracle: `tokenizers` and transformers for `strata tokenize`; TRL's own labels (through the prepared
rows that tests/parity/test_data.py compares) and hand-made mistakes for `strata preview`."""

import json
import random
import re
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


@pytest.mark.parametrize("flags, stdin, message", [
    (["--input", "json"], '"fine"\n{"a": 1}\n', 'standard input:2: found an object without them, expected a string'),
    (["--input", "json"], '{"a": \n', "standard input:1:"),
    (["--decode"], "[1, -2]\n", "standard input:1: found -2 among the ids"),
    (["--decode"], '{"x": 1}\n', "expected a list of ids"),
    (["--chat_template_format", "llama-3"], "x\n", 'found no token "<|start_header_id|>" in the tokenizer'),
    (["--chat_template_format", "nonsense"], "x\n", "chat_template_format"),
])
def test_tokenize_refuses(flags, stdin, message, folder):
    result = run("tokenize", "--model", folder, *flags, stdin=stdin)
    assert result.returncode != 0 and message in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1


# Published renderings of these formats for one conversation, written down from their documentation.
BUILTIN = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n",
    "llama-2": "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A <|im_end|>",
    "alpaca": "S\n\n### Instruction:\nU\n\n### Response:\nA<|im_end|>\n\n",
    "vicuna": "S USER: U ASSISTANT: A<|im_end|>",
}


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


def test_on_bad_row(inputs, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "good"}\nnonsense\n{"text": 3}\n{"prompt": "x"}\n{"text": "fine"}\n')
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data)
    assert result.returncode == 1 and "data.jsonl:2:" in result.stderr
    text = preview(inputs, data, "--on_bad_row", "skip")
    assert "warning: data: left out 3 bad rows; the first: " in text and "2 with 2 documents" in text


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
