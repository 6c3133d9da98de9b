"""Oracle: TRL's own labels (through the prepared rows that tests/parity/test_data.py compares), counts made again here, and
hand-made mistakes for `strata preview`."""

import json
import pathlib
import random
import re
import subprocess

import pytest
from previewing import preview, run, save
from running import PROGRAM, base_flags, environment, run_strata
from terminal import Terminal


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
    assert "--violet" in html and "<main>" in html, "the look of report.html"
    assert html.count("<h2>Row ") == 2 and " answer 1&lt;|im_end|&gt;" in shown(html) and 'class="t s"' in html


@pytest.mark.parametrize("words, outlier", [(4, 0), (60, 0), (20, 400)], ids=["short", "long", "one outlier"])
def test_preview_counts_lengths_and_padding(words, outlier, inputs, tmp_path):
    """The histogram, on the terminal and in the page, and what padding would cost: counted again here."""
    from tokenizers import Tokenizer

    rng = random.Random(words)
    rows = [{"text": "the cat sat down " * rng.randint(0, words) + "end"} for _ in range(50)]
    rows += [{"text": "end " * outlier}] * (outlier > 0)
    tokenizer = Tokenizer.from_file(str(inputs.model("plain") / "tokenizer.json"))
    lengths = [len(tokenizer.encode(row["text"] + "<|im_end|>").ids) for row in rows]
    page = tmp_path / "page.html"
    text = preview(inputs, save(tmp_path, rows), "--output_html", page, "--per_device_train_batch_size", 4,
                   "--train_sampling_strategy", "sequential", "--max_length", 2000)
    batches = [lengths[i:i + 4] for i in range(0, len(lengths), 4)]
    waste = 1 - sum(lengths) / sum(max(batch) * len(batch) for batch in batches)
    assert f"none here; {100 * waste:.1f} % of a padded batch's tokens" in text and waste > 0.1
    assert re.search(rf"tokens per epoch +{sum(lengths)}, of which {sum(lengths)} ", text)
    assert f"{min(lengths)} to {max(lengths)}, {sum(lengths) / len(lengths):.0f} on average" in text

    width = next(width for width in (1, 2, 5, 10, 20, 50, 100, 200) if max(lengths) // width < 20)
    counts = [sum(length // width == i for length in lengths) for i in range(max(lengths) // width + 1)]
    # None before the first row; empty ones between rows are one.
    spans = [(i, i) for i, count in enumerate(counts) if count]
    gaps = [(a + 1, b - 1) for (a, _), (b, _) in zip(spans, spans[1:]) if b > a + 1]
    assert bool([gap for gap in gaps if gap[1] > gap[0]]) >= (outlier > 0)
    label = lambda begin, end: f"{begin}-{end}" if end > begin else str(begin)  # noqa: E731
    bars = {label(a * width, b * width + width - 1): counts[a] for a, b in sorted(spans + gaps)}
    drawn = text.split("\ntokens of a row\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in drawn] == list(bars)
    assert [int(line.split()[-1]) for line in drawn] == list(bars.values())
    assert [line.count("#") for line in drawn] == [-(-40 * count // max(counts)) for count in bars.values()]
    found = re.findall(r'<tr><td>([^<]+)</td><td><span class="bar" style="width:([0-9.]+)%"></span> (\d+)</td></tr>', page.read_text())
    assert found == [(label, f"{85 * count / max(counts):.1f}", str(count)) for label, count in bars.items()]


def test_preview_names_columns_that_nothing_is_made_of(inputs, tmp_path):
    rows = [{"text": f"line {i}", "id": i, "source": "web" if i % 2 else None} for i in range(8)]
    text = preview(inputs, save(tmp_path, rows))
    assert "columns without use: id (8 rows), source (4 rows); --dataset_columns maps other names" in text
    rows = [{"system": "Be kind.", "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 0}]}] * 2
    text = preview(inputs, save(tmp_path, rows), "--num_examples", 1)
    assert "without use" not in text and "Be kind." in text


def test_preferences_are_pointed_to_their_recipe(inputs, tmp_path):
    """With a conversation beside them they are columns that imitation does not use; without one, an error."""
    chat = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    text = preview(inputs, save(tmp_path, [{"prompt": "q", "messages": chat, "chosen": chat, "rejected": chat}] * 2))
    assert "prompt (2 rows), rejected (2 rows); --dataset_columns maps other names, strata dpo trains on preferences" in text
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", save(tmp_path, [{"chosen": chat, "rejected": chat}]))
    assert result.returncode == 1 and "train on both answers with strata dpo, or on the preferred ones with --dataset_columns messages=chosen" in result.stderr


def test_rated_answers_are_pointed_to_their_recipe(inputs, tmp_path):
    """sft imitates them all, those that somebody called bad, too."""
    text = preview(inputs, save(tmp_path, [{"prompt": "q", "completion": " a", "label": i % 2 == 0} for i in range(4)]))
    assert "label (4 rows); --dataset_columns maps other names, strata kto learns from answers whose label is true or false" in text


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


def test_files_in_place_of_a_data_set(inputs, tmp_path):
    """run_clm.py's flags give the rows and pieces that the names here give."""
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_text("".join(f"line {i} of {file.stem}\n" for i in range(40)))

    def lines(*words):
        result = run("preview", "--model_name_or_path", inputs.model("plain"), *words)
        assert result.returncode == 0, result.stderr
        return result.stdout.split("\n", 1)

    own = lines("--dataset_name", files[0], "--max_length", 32, "--packing", "--packing_strategy", "wrapped")
    assert lines("--train_file", files[0], "--block_size", 32)[1] == own[1] and "packed rows are full to" in own[1]
    test = lines("--train_file", files[0], "--validation_file", files[1], "--preview_split", "test")
    assert f"test split of {files[1]}" in test[0] and "line 0 of b<" in test[1] and "of a<" not in test[1]


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
    assert 'warning: 1 message has the role "oracle"' in text
    text = preview(inputs, save(tmp_path, [chat("assistant", "a" * 300)]), "--max_length", 20)
    assert "warning: no end token is trained in 1 of 1 documents" in text
    assert "warning: data: 1 row with more than 20 tokens (long_rows: truncate)" in text
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


def test_answers_of_pairs_are_counted_one_by_one(inputs, tmp_path):
    """kto over pairs: of four answers in two rows the long one is cut, and the one whose prompt is too long is left out with its pair's."""
    rows = [{"prompt": "a", "chosen": "x" * 100, "rejected": "b"}, {"prompt": "y" * 100, "chosen": "c", "rejected": "d"}]
    result = run("preview", "kto", "--model_name_or_path", inputs.model("plain"), "--dataset_name", save(tmp_path, rows), "--max_length", 20)
    assert result.returncode == 0, result.stderr
    for words in ("rows read                2", "left out                 2 answers without a trained token, 0 bad",
                  "longer than 20           3 answers (long_rows: truncate)", "left out 2 answers without a trained token after truncation to 20",
                  "data: 3 answers with more than 20 tokens (long_rows: truncate)"):
        assert words in result.stdout, result.stdout


def test_long_rows(inputs, tmp_path):
    rows = [{"text": "a"}, {"text": "x" * 100}, {"text": "b"}]
    data = save(tmp_path, rows)
    for policy, kept, tokens in [("truncate", 3, None), ("drop", 2, None), ("split", None, None)]:
        text = preview(inputs, data, "--max_length", 20, "--long_rows", policy, "--num_examples", 9)
        assert f"longer than 20           1 (long_rows: {policy})" in text
        assert f"1 row with more than 20 tokens (long_rows: {policy})" in text
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
    data = save(tmp_path, [{"text": text}, {"text": "y"}])
    shown = preview(inputs, data, "--tokenizer_name", tokenizer)
    assert (f"warning: 1 row is longer than the 30 tokens of the tokenizer's model_max_length (the longest has 31; {data}:1 with 31)" in shown) == warns
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
    assert "left out 1 bad row; the first: " in run(*flags, "--on_bad_row", "skip").stdout


def test_rows_of_a_stream(inputs, tmp_path):
    """With max_steps no more rows are prepared than will be used, in the files' order."""
    data = save(tmp_path, [{"text": f"row {i}"} for i in range(5000)])
    flags = ["--dataset_streaming", "--max_steps", 3, "--per_device_train_batch_size", 2, "--gradient_accumulation_steps", 2]
    text = preview(inputs, data, *flags, "--num_examples", 2)
    assert "12 with 12 documents" in text and "---- row 0 ----\nrow 0" in text.replace("[[", "") and "3 on 1 rank, 4 rows each" in text
    assert "24 with 24 documents" in preview(inputs, data, *flags, "--num_processes", 2)
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data, *flags, "--train_sampling_strategy", "random")
    assert "has no effect; dataset_streaming keeps the files' order" in result.stderr
