"""Oracle: the rows' own lengths and roles, rendered by transformers; escapes as Python's json writes them. What preview and
training say of data before anything is trained, and how they show what a terminal would obey."""

import json
import re
import shutil
import subprocess
import unicodedata

import pytest
from previewing import preview, run, save
from running import PROGRAM, base_flags, environment, run_strata
from terminal import CONTROLS, DIRECTIONS, LINE_ENDS, Terminal, escaped


def is_harmless(text):
    """Nothing but what a terminal shows, and the colours of the preview itself."""
    text = re.sub("\x1b\\[[0-9;]*m|\x1b\\[K", "", text)
    return not any(unicodedata.category(c) == "Cc" and c not in "\n\t\r" or c in DIRECTIONS + LINE_ENDS for c in text)


NASTY = "a\x1b[2J\x1b]0;title\x07b\rc\b\x00" + CONTROLS + DIRECTIONS + LINE_ENDS + "\u00e9 \u65e5 \U0001f469\u200d\U0001f680 end"


def test_what_a_terminal_would_obey_is_escaped(inputs, tmp_path):
    page = tmp_path / "page.html"
    rows = [{"prompt": NASTY, "completion": NASTY, "col\x1b[31mumn": 1}]
    text = preview(inputs, save(tmp_path, rows), "--html", page, "--max_length", 2000)
    assert f"{escaped(NASTY)}[[{escaped(NASTY)}<|im_end|>]]" in text and is_harmless(text)
    assert "columns without use: col\\u001b[31mumn" in text
    html = page.read_text()
    shown = re.sub("<[^>]*>", "", html).replace("\u21b5", "").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    assert shown.count(escaped(NASTY)) == 2 and is_harmless(html.replace("\r", "?"))
    assert "col\\u001b[31mumn" in shown


def test_the_same_on_a_terminal(inputs, tmp_path):
    data = save(tmp_path, [{"prompt": NASTY, "completion": " yes\x1b[2J"}])
    flags = ["--model_name_or_path", inputs.model("plain"), "--dataset_name", data, "--no_dataset_cache", "--max_length", 2000]
    terminal = Terminal([PROGRAM, "preview", *flags], columns=200)
    assert terminal.end() == 0, terminal.text
    drawn = re.sub("\x1b\\[[0-9;]*m", "", terminal.text.replace("\r\n", "\n").split("\r\x1b[K")[-1])
    assert escaped(NASTY).replace("\n", "\u21b5") in drawn.replace("\u21b5\n", "\u21b5") and " yes\\u001b[2J<|im_end|>" in drawn
    assert is_harmless(terminal.text.replace("\r\n", "\n"))


def test_messages_are_escaped(inputs, tmp_path):
    """A role, a column, a path and a template's own words in errors and warnings."""
    chat = [{"role": "or\x1b[1macle\u202e", "content": "x"}, {"role": "assistant", "content": "y"}]
    text = preview(inputs, save(tmp_path, [{"messages": chat}]))
    assert 'has the role "or\\u001b[1macle\\u202e"' in text and is_harmless(text)
    folder = tmp_path / "fol\x1b[7mder"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"te\\u001b[2Jxt": 1}\n')
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", folder / "a.jsonl")
    assert result.returncode == 1 and "fol\\u001b[7mder/a.jsonl:1: found columns [te\\u001b[2Jxt]" in result.stderr
    assert is_harmless(result.stderr)
    template = tmp_path / "t.jinja"
    template.write_text("{{ raise_exception(messages[0].content) }}")
    data = save(tmp_path, [{"messages": [{"role": "user", "content": "\x1b[2Jgone\x07"}]}])
    result = run("preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", data, "--chat_template_path", template)
    assert result.returncode == 1 and "\\u001b[2Jgone\\u0007" in result.stderr and is_harmless(result.stderr)


def test_a_file_name_that_is_not_utf8(inputs, tmp_path):
    name = tmp_path / "n\udce9.jsonl"
    name.write_text('{"text": "one"}\nnonsense\n')
    flags = ["preview", "--model_name_or_path", inputs.model("plain"), "--dataset_name", str(name)]
    result = run(*flags)
    assert result.returncode == 1 and "n\\xe9.jsonl:2:" in result.stderr and is_harmless(result.stderr)
    for _ in range(2):  # prepared, and kept
        result = run(*flags, "--on_bad_row", "skip")
        assert result.returncode == 0 and "left out 1 bad row" in result.stdout, result.stderr


def test_tokenize_on_a_terminal(inputs, tmp_path):
    """JSON for a program is as it is; on a terminal it has the same meaning without what the terminal would obey."""
    line = json.dumps([{"role": "user", "content": "a\x7f\x9b31m\u202eb"}])
    plain = run("tokenize", "--model", inputs.model("plain"), "--input", "json", stdin=line + "\n").stdout
    terminal = Terminal(["sh", "-c", f"printf '%s\\n' '{line}' | {PROGRAM} tokenize --model {inputs.model('plain')} --input json"], columns=2000)
    assert terminal.end() == 0, terminal.text
    assert json.loads(terminal.text) == json.loads(plain) and is_harmless(terminal.text.replace("\r\n", "\n"))
    assert "a\\u007f\\u009b31m\\u202eb" in terminal.text and "\u202e" in plain


def test_what_a_model_writes(inputs, tmp_path):
    """A model that says nothing but ESC: a file gets it, a terminal sees what it is."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(inputs.model("plain"))
    tokenizer = AutoTokenizer.from_pretrained(inputs.model("plain"))
    escape, = tokenizer("\x1b", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.get_input_embeddings().weight.fill_(1)
        model.model.norm.weight.fill_(1)
        model.get_output_embeddings().weight[escape].fill_(1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    flags = ["chat", "--model_name_or_path", tmp_path, "--prompt", "hi", "--max_new_tokens", 3]
    result = run(*flags)
    assert result.returncode == 0 and result.stdout == "\x1b" * 3 + "\n", result.stderr
    terminal = Terminal([PROGRAM, *flags], columns=200)
    assert terminal.end() == 0 and "\\u001b" * 3 in terminal.text and is_harmless(terminal.text.replace("\r\n", "\n"))


def role_rows():
    chat = lambda *messages: {"messages": [{"role": role, "content": text} for role, text in messages]}
    plain = chat(("user", "q"), ("assistant", "a"))
    return [plain, chat(("user", "q"), ("critic", "no"), ("assistant", "a")), plain, chat(("critic", "x"), ("critic", "y"), ("user", "q"), ("assistant", "a")),
            *[chat(("system", "s"), ("user", "q"), ("assistant", "a"))] * 5]


def test_roles_that_the_template_leaves_out(inputs, tmp_path):
    template = tmp_path / "two.jinja"
    template.write_text("{% for m in messages %}{% if m.role in ('user', 'assistant') %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}")
    data = save(tmp_path, role_rows())
    text = preview(inputs, data, "--chat_template_path", template)
    critic = f'warning: {template} leaves out 3 texts of role "critic" ({data}:2, {data}:4, ...): the model never sees them'
    system = f'warning: {template} leaves out 5 texts of role "system" ({data}:5, {data}:6, {data}:7, ...): the model never sees them'
    assert critic in text and system in text
    again = preview(inputs, data, "--chat_template_path", template)
    assert again == text, "kept with the tokens"
    log = run_strata(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1, chat_template_path=template)).text
    assert log.count(critic) == 1 and log.count(system) == 1
    assert "leaves out" not in preview(inputs, data), "chatml shows every role"


def test_rows_of_evaluation_are_looked_at_too(inputs, tmp_path):
    template = tmp_path / "two.jinja"
    template.write_text("{% for m in messages %}{% if m.role != 'critic' %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}")
    rows = role_rows()
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:1] * 4))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [rows[0], rows[1]]))
    text = preview(inputs, tmp_path, "--chat_template_path", template, "--preview_split", "test")
    assert f'warning: evaluation: {template} leaves out 1 texts of role "critic" ({tmp_path}/test.jsonl:2): ' in text


def test_marks_are_looked_for_in_instructions_too(inputs, tmp_path):
    """Rows without a list of messages are conversations as well."""
    template = tmp_path / "marks.jinja"
    template.write_text("{% for m in messages %}<|made_up|>{{ m.content }}{{ eos_token }}{% endfor %}")
    data = save(tmp_path, [{"instruction": "q", "input": "", "output": "a"}])
    assert f"warning: {template} writes <|made_up|>, which this tokenizer does not know" in preview(inputs, data, "--chat_template_path", template)


def test_files_of_another_kind_are_named(inputs, tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "rows.jsonl").write_text(json.dumps(role_rows()[0]) + "\n")
    for i in range(7):
        (folder / f"note {i}.tsv").touch()
        (folder / f"rows {i}.jsonl").write_text(json.dumps(role_rows()[0]) + "\n")
    named = ", ".join(f"note {i}.tsv" for i in range(5))
    told = f"data: train split of {folder}: left out {named} and 2 more: a data set has one kind of files, the most frequent"
    assert told in preview(inputs, folder)
    log = run_strata(base_flags(inputs.model("plain"), folder, tmp_path / "out", max_steps=1)).text
    assert log.count(told) == 1


POSITIONS = 128  # of the tiny model


@pytest.mark.parametrize("flags, warning", [
    (["--max_length", "1000"], "2 rows are longer than the 128 tokens of the model's max_position_embeddings (the longest has 201; {data}:4 with 201, {data}:2 with 130)"),
    (["--max_length", "150"], "2 rows are longer than the 128 tokens of the model's max_position_embeddings (the longest has 150; {data}:4 with 150, {data}:2 with 130)"),
    (["--max_length", "128"], None), (["--max_length", "150", "--long_rows", "split"], "2 rows are longer than the 128 tokens"),
    (["--max_length", "150", "--long_rows", "drop"], "1 row is longer than the 128 tokens of the model's max_position_embeddings (the longest has 130; {data}:2 with 130)"),
    (["--max_length", "150", "--packing"], "2 rows are longer"),
    (["--max_length", "150", "--packing", "--packing_strategy", "wrapped"], "(the longest has 150; {data}:4 with 150, {data}:2 with 130)"),
])
def test_rows_beyond_the_models_positions(flags, warning, inputs, tmp_path):
    """A token a letter and the end token; nothing is said where truncation keeps every document within the limit."""
    data = save(tmp_path, [{"text": "x"}, {"text": "x" * 129}, {"text": "y" * 127}, {"text": "z" * 200}])
    config = json.loads((inputs.model("plain") / "config.json").read_text())
    assert config["max_position_embeddings"] == POSITIONS
    text = preview(inputs, data, *flags)
    if warning is None:
        assert "max_position_embeddings" not in text
    else:
        assert "warning: " in text and warning.format(data=data) in text
    if flags == ["--max_length", "150"]:
        log = run_strata(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1, max_length=150)).text
        assert log.count("warning: " + warning.format(data=data)) == 1


@pytest.mark.parametrize("family, key", [("gptj", "n_positions"), ("codegen", "n_positions"), ("mpt", "max_seq_len")])
def test_rows_beyond_the_positions_of_older_families(family, key, inputs, tmp_path):
    """Whose config.json has another name for them."""
    model = shutil.copytree(inputs.model("plain"), tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config.pop("max_position_embeddings")
    (model / "config.json").write_text(json.dumps(config | {"model_type": family, key: 100}))
    data = save(tmp_path, [{"text": "x" * 120}])
    done = subprocess.run([PROGRAM, "preview", "--model_name_or_path", model, "--dataset_name", data, "--max_length", "150"],
                          capture_output=True, text=True, env=environment())
    assert f"1 row is longer than the 100 tokens of the model's {key}" in done.stdout + done.stderr


@pytest.mark.parametrize("scaling, warns", [
    (None, True), ({"rope_type": "linear", "factor": 2.0}, False), ({"rope_type": "yarn", "factor": 1.5}, True),
    ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, False),
    ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, True),
])
def test_scaled_positions_reach_further(scaling, warns, inputs, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    for path in inputs.model("plain").iterdir():
        if path.suffix in (".json", ".jinja"):
            (model / path.name).write_text(path.read_text())
    config = json.loads((model / "config.json").read_text())
    config.pop("rope_parameters", None)
    if scaling:
        config["rope_scaling"] = scaling
    (model / "config.json").write_text(json.dumps(config))
    result = run("preview", "--model_name_or_path", model, "--dataset_name", save(tmp_path, [{"text": "x" * 200}]), "--max_length", 1000)
    assert result.returncode == 0 and ("max_position_embeddings" in result.stdout) == warns, result.stderr


@pytest.mark.parametrize("given, meant", [
    ("data/trian.jsonl", "data/train.jsonl"), ("data/train.json", "data/train.jsonl"), ("dta/train.jsonl", "data/train.jsonl"),
    ("dta", "data"), ("data/other.parquet", "data/other.csv"), ("dat?/../dta/*.jsonl", None), ("dta/*.jsonl", "data"), ("data/nothing-like-it.jsonl", None),
])
@pytest.mark.parametrize("is_absolute", [True, False])
def test_mistyped_paths_of_data(given, meant, is_absolute, inputs, tmp_path):
    for name in ("train.jsonl", "other.csv"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text('{"text": "x"}\n')
    before = f"{tmp_path}/" if is_absolute else ""
    result = subprocess.run([str(PROGRAM), "preview", "--model_name_or_path", str(inputs.model("plain")), "--dataset_name", before + given],
                            capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**environment(), "HF_HUB_OFFLINE": "1"})
    assert result.returncode == 1 and given in result.stderr and result.stderr.count("\n") == 1, result.stderr
    if meant is None:
        assert "did you mean" not in result.stderr
    else:
        assert f"; did you mean {before}{meant}?\n" in result.stderr, result.stderr


@pytest.mark.parametrize("flag", ["preview", "tokenize", "sft"])
def test_mistyped_paths_of_a_model(flag, inputs, tmp_path):
    model = inputs.model("plain")
    wrong = model.parent / "model-plian"
    words = {"preview": ["--model_name_or_path", wrong, "--dataset_name", save(tmp_path, [{"text": "x"}])], "tokenize": ["--model", wrong],
             "sft": ["--model_name_or_path", wrong, "--dataset_name", save(tmp_path, [{"text": "x"}]), "--output_dir", tmp_path / "out", "--cpu"]}[flag]
    result = run(flag, *words, stdin="x\n")
    assert result.returncode == 1 and "did you mean " in result.stderr and str(model) in result.stderr.split("did you mean")[1], result.stderr


def test_left_out_columns_are_named_once(inputs, tmp_path):
    """By preview and by training, with all rows of all files; rows of CSV beside them name only what they have."""
    import pyarrow as pa
    import pyarrow.parquet

    for i in range(2):
        table = pa.table({"text": [f"row {j}" for j in range(30)], "image": [b"x"] * 30, "kind": ["k"] * 30, "took": pa.array([1] * 30, pa.duration("s"))})
        pa.parquet.write_table(table, tmp_path / f"train-0000{i}-of-00002.parquet", row_group_size=7)
    line = "data: columns without use: image (binary) (60 rows), kind (60 rows), took (duration[s]) (60 rows); --dataset_columns maps other names"
    text = preview(inputs, tmp_path)
    assert text.count(line) == 1 and text.count("image") == 1
    log = run_strata(base_flags(inputs.model("plain"), tmp_path, tmp_path / "out", max_steps=1)).text
    assert log.count(line) == 1 and log.count("image") == 1


def test_special_tokens_that_the_tokenizer_splits(inputs, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(inputs.model("plain"), folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    data = save(tmp_path, [{"text": "the cat"}])
    for splits in (False, True):
        (folder / "tokenizer_config.json").write_text(json.dumps({**config, "split_special_tokens": splits}))
        result = run("preview", "--model_name_or_path", folder, "--dataset_name", data)
        assert result.returncode == 0, result.stderr
        assert ("split_special_tokens in tokenizer_config.json" in result.stdout + result.stderr) is splits


def test_answers_that_are_empty_or_missing_are_told(inputs, tmp_path):
    """Oracle: the rows themselves. Trained as the reference trains them, but not without a word."""
    def turn(role, content, **more):
        return {"role": role, "content": content, **more}

    call = {"type": "function", "function": {"name": "now", "arguments": {}}}
    rows = [[turn("user", "a"), turn("assistant", "b")],
            [turn("user", "c"), turn("assistant", " \n")],
            [turn("system", "s"), turn("user", "d")],
            [turn("user", "e"), turn("assistant", "", weight=0), turn("user", "f"), turn("assistant", "g")],
            [turn("user", "h"), turn("assistant", "", tool_calls=[call])],
            [turn("user", "i"), turn("assistant", ""), turn("user", "j"), turn("assistant", "")]]
    data = save(tmp_path, [{"messages": row} for row in rows])
    told = run_strata(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1)).text
    assert f"2 rows with an empty answer ({data}:2, {data}:6): the model learns to end at once" in told, told
    assert f"1 row without an answer ({data}:3): the model learns to ask, not to answer" in told, told


def test_pairs_that_are_cut_and_answers_that_teach_nothing(inputs, tmp_path):
    """Oracle: a token a letter and the end token."""
    data = save(tmp_path, [{"prompt": "a", "chosen": "", "rejected": "c"}, {"prompt": "a", "chosen": "b", "rejected": "b"},
                           {"prompt": "a", "chosen": "b", "rejected": ""}])
    told = run_strata(base_flags(inputs.model("plain"), data, tmp_path / "out", max_steps=1), recipe="dpo").text
    assert f"1 row with an empty answer ({data}:1): the model learns to end at once" in told, told
    assert "1 of 3 pairs have two answers that are the same: nothing tells them apart" in told, told


NO_SUCH_COLUMN = "has no effect; no row of the training data uses that column"
NO_NEW_ROWS = "has no effect; the model gets no rows for new tokens"
FORMATS_NO_ROW = ("formats no row, because none of the training data is a conversation; the result's tokenizer has it")


@pytest.mark.parametrize("row, setting, reason", [
    ({"text": "a b"}, {"chat_template_format": "chatml"}, FORMATS_NO_ROW),
    ({"prompt": "a", "completion": " b"}, {"chat_template_path": "TEMPLATE"}, FORMATS_NO_ROW),
    # What stands in a column that this row is not made of does not count.
    ({"prompt": "a", "completion": " b", "messages": [{"role": "user", "content": "a"}]},
     {"chat_template_path": "TEMPLATE"}, FORMATS_NO_ROW),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
     {"dataset_text_field": "content"}, NO_SUCH_COLUMN),
    ({"prompt": "a", "completion": " b"}, {"dataset_text_field": "content"}, NO_SUCH_COLUMN),
    ({"input_ids": [5, 6, 7]}, {"dataset_text_field": "content"}, NO_SUCH_COLUMN),
    ({"text": "a b"}, {"mean_resizing": "false"}, NO_NEW_ROWS),
    ({"text": "a b"}, {"resize_to_multiple_of": 64}, NO_NEW_ROWS),
    # Where they have one, nothing is said.
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
     {"chat_template_format": "chatml"}, None),
    ({"instruction": "a", "output": "b"}, {"chat_template_format": "chatml"}, None),
    ({"content": "a b"}, {"dataset_text_field": "content"}, None),
    # The reference looks there for where a text ends.
    ({"prompt": "a", "completion": " b"}, {"dataset_text_field": "completion"}, None),
    ({"text": "a b"}, {"mean_resizing": "false", "chat_template_format": "zephyr"}, None),
    ({"text": "a b"}, {"resize_to_multiple_of": 64, "chat_template_format": "zephyr"}, None),
])
def test_settings_for_other_rows_are_told(inputs, tmp_path, row, setting, reason):
    """No setting is ignored without a word."""
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    setting = {name: str(template) if value == "TEMPLATE" else value for name, value in setting.items()}
    flags = base_flags(inputs.model("plain"), save(tmp_path, [row] * 4), tmp_path / "out", max_steps=1, **setting)
    name = next(iter(setting))
    said = [line for line in run_strata(flags).text.splitlines() if line.startswith(f"warning: {name}:")]
    expected = [f"warning: {name}: {reason}"] if reason else []
    assert said == expected
