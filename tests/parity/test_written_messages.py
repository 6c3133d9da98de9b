# Oracle: the same conversations as lists of messages, one on each line.
import csv
import json
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import data_probe

CHATML = ("{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
          "{% if add_generation_prompt %}<assistant>{% endif %}")
CHATS = [[{"role": "user", "content": f"q{i}, \"é\"\n"}, {"role": "assistant", "content": "a" * i + " it's"}] for i in range(5)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = CHATML
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save_pretrained(folder)
    return str(folder)


def prepare(path, tokenizer, folder):
    return data_probe.probe(folder / "probe", [{"op": "prepare", "tokenizer": tokenizer, "data": str(path), "batch_size": 1,
                                                "may_fail": True}])[0]


@pytest.fixture(scope="module")
def expected(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("expected")
    path = folder / "lists.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in CHATS))
    rows = prepare(path, tokenizer, folder)["rows"]
    assert len(rows) == len(CHATS)
    return rows


def write_table(path, write, delimiter=","):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, ["id", "messages"], delimiter=delimiter)
        table.writeheader()
        table.writerows({"id": i, "messages": write(chat)} for i, chat in enumerate(CHATS))


def write_parquet(path, columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


WRITERS = {
    "text.csv": lambda path: write_table(path, json.dumps),
    "text.tsv": lambda path: write_table(path, json.dumps, "\t"),
    "text.jsonl": lambda path: path.write_text("".join(json.dumps({"messages": json.dumps(chat)}) + "\n" for chat in CHATS)),
    "text.parquet": lambda path: write_parquet(path, {"messages": [json.dumps(chat) for chat in CHATS]}),
    "lists.parquet": lambda path: write_parquet(path, {"messages": [
        {key: [message[key] for message in chat] for key in ("role", "content")} for chat in CHATS]}),
    "lists.jsonl": lambda path: path.write_text("".join(json.dumps({"conversations": {
        "from": [{"user": "human", "assistant": "gpt"}[message["role"]] for message in chat],
        "value": [message["content"] for message in chat]}}) + "\n" for chat in CHATS)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_other_forms_of_a_list(name, tokenizer, expected, tmp_path):
    WRITERS[name](tmp_path / name)
    assert prepare(tmp_path / name, tokenizer, tmp_path)["rows"] == expected


def write_as_python_prints(path):
    rows = [{"messages": str(chat)} for chat in CHATS]
    if path.name == "array.json":
        path.write_text(json.dumps(rows, indent=1))
    elif path.suffix in (".json", ".jsonl"):
        path.write_text("\ufeff" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n \n")
    else:
        write_table(path, str, "\t" if path.suffix == ".tsv" else ",")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "lines.json", "array.json", "mark.csv", "two words.csv", "rewritten.jsonl"])
def test_what_python_prints(name, tokenizer, expected, tmp_path):
    """The error's command makes a file that is read, and leaves what it reads as it was."""
    path = tmp_path / name
    write_as_python_prints(path)
    if name == "mark.csv":  # as spreadsheets write tables; the column is the first
        path.write_text("\ufeffmessages\n" + "".join('"' + str(chat).replace('"', '""') + '"\n' for chat in CHATS))
    before = path.read_bytes()
    error = prepare(path, tokenizer, tmp_path)["error"]
    assert "it is as Python prints it, write it as JSON: python3 -c '" in error
    command = error[error.index("python3 -c"):].replace("python3", sys.executable, 1)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert path.read_bytes() == before
    rewritten = tmp_path / command.rsplit(" > ", 1)[1]
    assert prepare(rewritten, tokenizer, tmp_path)["rows"] == expected
