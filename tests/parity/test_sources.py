# Oracle: the rows, slices, shuffles and mixtures of the `datasets` package for the same files.
import gzip
import json
import os
import pathlib
import re

import pytest

import data_probe

ROWS = [
    {"id": i, "score": i / 4, "good": i % 3 == 0, "text": f"row {i} \u00e9\U0001f389" if i % 5 else None,
     "messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a" * (i % 7)}][: 1 + i % 2],
     "tags": [f"t{j}" for j in range(i % 4)], "nested": {"a": {"b": i}, "c": [[1, i], []]}}
    for i in range(37)
]


@pytest.fixture(scope="module")
def datasets():
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    return datasets


def probe(folder, **request):
    return data_probe.probe(folder, [request])[0]


@pytest.fixture(scope="module")
def dataset(datasets):
    return datasets.Dataset.from_list(ROWS)


WRITERS = {
    "a.parquet": lambda d, p: d.to_parquet(p),
    "small_groups.parquet": lambda d, p: d.to_parquet(p, batch_size=5),
    "a.jsonl": lambda d, p: d.to_json(p),
    "array.jsonl": lambda d, p: pathlib.Path(p).write_text(json.dumps(d.to_list(), indent=1)),
    "a.ndjson": lambda d, p: d.to_json(p),
    "a.jsonl.gz": lambda d, p: d.to_json(p, compression="gzip"),
    "a.ndjson.gz": lambda d, p: d.to_json(p, compression="gzip"),
    "a.jsonl.zst": lambda d, p: d.to_json(p, compression="zstd"),
    "saved": lambda d, p: d.save_to_disk(p, num_shards=3),
}


def save(name, dataset, folder):
    path = folder / name
    if name.endswith(".zst"):
        # pandas needs a package of its own for zstd, Arrow does not.
        import pyarrow

        text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
        with pyarrow.CompressedOutputStream(str(path), "zstd") as out:
            out.write(text)
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS[:20]).encode())
                         + gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS[20:]).encode()))
    else:
        WRITERS[name](dataset, str(path))
    return path


@pytest.mark.parametrize("name", WRITERS)
def test_rows_of_every_format(name, dataset, tmp_path):
    assert probe(tmp_path, op="load", names=str(save(name, dataset, tmp_path))) == dataset.to_list()


def test_csv_is_read_as_datasets_reads_text_columns(datasets, tmp_path):
    rows = [["a, b", 'say "x"', "line\nbreak"], ["\u00e9", "", "end"], ["  spaces ", "y", "1e5 apples"]]
    import csv

    with open(tmp_path / "a.csv", "w", newline="") as out:
        csv.writer(out).writerows([["p", "q", "r"]] + rows)
    expected = datasets.load_dataset("csv", data_files=str(tmp_path / "a.csv"), split="train",
                                     cache_dir=str(tmp_path / "c")).to_list()
    assert probe(tmp_path, op="load", names=str(tmp_path / "a.csv")) == expected


def test_csv_values(datasets, tmp_path):
    """Missing values are those of `datasets`; numbers and truth values stay as they are written, as `datasets` reads them into
    columns of text (it makes numbers of them otherwise, which no recipe can train on)."""
    lines = ["text,number,truth,missing", "a,1,True,NA", "b,2.50,false,", 'c,1e5,TRUE,""', "d,007,0,null", 'e,-1,yes,"None"', "",
             "nan,+3,no,N/A", "f,0x10,true,n/a", "NULL,1_000,False,<NA>", " NA ,inf,T,none", "g,NaN,F,NaN", "h,9999999999999999999,f,-nan"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "one.csv").write_text("text\nx\n\n1\n\"\"\nnull\n2\n")
    blank = "\n  \ntext{s}more\n \na{s}b\n\t \r\n   \r\t\n c{s} d \n{s}\n \n  "  # lines of blanks alone, which are no rows
    (tmp_path / "blank.csv").write_bytes(blank.format(s=",").encode())
    (tmp_path / "blank.tsv").write_bytes(blank.format(s="\t").replace("\t \r\n", " \r\n").replace("\r\t\n", "\r \n").encode())
    (tmp_path / "blank_one.csv").write_text("text\n \nx\n\t\n\" \"\n")
    for name, columns in (("a.csv", lines[0].split(",")), ("one.csv", ["text"]), ("blank.csv", ["text", "more"]), ("blank.tsv", ["text", "more"]),
                          ("blank_one.csv", ["text"])):
        features = datasets.Features({column: datasets.Value("string") for column in columns})
        expected = datasets.load_dataset("csv", data_files=str(tmp_path / name), split="train", features=features,
                                         sep="\t" if name.endswith("tsv") else ",", cache_dir=str(tmp_path / "c")).to_list()
        assert probe(tmp_path, op="load", names=str(tmp_path / name)) == expected


INVALID = {
    "a.jsonl": b'{"text": "x"}\n{"text": "\xff"}\n{"text": "z"}\n', "a.json": b'[{"text": "x"},\n{"text": "\xc3("}]',
    "a.csv": b"text\nx\n\xe6\x9d\nz\n", "a.tsv": b"text\tn\nx\t1\n\xff\t2\nz\t3\n", "a.txt": b"x\n\xf0\x9f\nz\n",
}


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", [*INVALID, "a.parquet", "a.arrow", "saved"])
def test_invalid_utf8_is_named_in_every_source(name, packing, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / (name + packing)
    if name not in INVALID:
        if packing:
            return  # these files have their own compression
        broken = pa.StringArray.from_buffers(3, pa.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])), pa.py_buffer(b"x\xffz"))
        table = pa.table({"text": broken})
        if name == "a.parquet":
            pa.parquet.write_table(table, path)
        else:
            file = path if name == "a.arrow" else path / "data-00000-of-00001.arrow"
            file.parent.mkdir(exist_ok=True)
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            if name == "saved":
                (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": file.name}]}))
                (path / "dataset_info.json").write_text("{}")
    elif packing == ".gz":
        path.write_bytes(gzip.compress(INVALID[name]))
    elif packing == ".zst":
        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(INVALID[name])
    else:
        path.write_bytes(INVALID[name])
    result = data_probe.ask(tmp_path, [{"op": "load", "names": str(path)}])
    assert result.returncode == 1 and "utf-8" in result.stderr.lower(), result.stderr
    line = {"a.csv": 3, "a.tsv": 3}.get(name, 2)
    assert f":{line}:" in result.stderr, result.stderr


@pytest.mark.parametrize("content", [b"one\n\n two \nlast", b"one\r\n\r\n two\r\n", b"one\r\r\rtwo\r\n\r", b"a\rb\nc\r\nd\n\re",
                                     "a\x0bb\x0cc\x1cd\x85e\u2028f\n".encode()])
def test_text_files(content, datasets, tmp_path):
    (tmp_path / "a.txt").write_bytes(content)
    expected = datasets.load_dataset("text", data_files=str(tmp_path / "a.txt"), split="train",
                                     cache_dir=str(tmp_path / "c")).to_list()
    assert probe(tmp_path, op="load", names=str(tmp_path / "a.txt")) == expected


def test_files_that_were_cut_off(dataset, tmp_path):
    """Each is an error that names the file; nothing of a broken file is taken for the whole."""
    text = "".join(json.dumps({"text": "some words " * 40, "n": i}) + "\n" for i in range(2000)).encode()
    import pyarrow

    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "a.json").write_bytes(b"[" + text.rstrip().replace(b"\n", b",") + b"]")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    with pyarrow.CompressedOutputStream(str(tmp_path / "a.jsonl.zst"), "zstd") as out:
        out.write(text)
    dataset.to_parquet(str(tmp_path / "a.parquet"))
    dataset.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "a.arrow").write_bytes(next((tmp_path / "saved").glob("*.arrow")).read_bytes())
    for name in ["a.jsonl", "a.json", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow", "saved/data-00000-of-00001.arrow"]:
        whole = (tmp_path / name).read_bytes()
        asked = tmp_path / name.split("/")[0]
        assert data_probe.ask(tmp_path, [{"op": "load", "names": str(asked)}]).returncode == 0, name
        for size in (len(whole) // 2 + 3, len(whole) - 9, 5):
            (tmp_path / name).write_bytes(whole[:size])
            result = data_probe.ask(tmp_path, [{"op": "load", "names": str(asked)}])
            assert result.returncode == 1 and pathlib.Path(name).name in result.stderr, (name, size, result.stderr)


SLICES = ["train[:10%]", "train[33%:66%]", "train[-15%:]", "train[5:-5]", "train[:3]+test[1:2]+train[30:]", "test[50%:]", "train[:50%]"]


@pytest.mark.parametrize("split", SLICES)
def test_slices(split, datasets, tmp_path):
    both = datasets.DatasetDict({"train": datasets.Dataset.from_list([{"v": i} for i in range(37)]),
                                 "test": datasets.Dataset.from_list([{"v": 100 + i} for i in range(5)])})
    both.save_to_disk(str(tmp_path / "saved"))
    for name, part in both.items():
        part.to_json(str(tmp_path / f"{name}.jsonl"))
    files = {name: str(tmp_path / f"{name}.jsonl") for name in both}
    expected = datasets.load_dataset("json", data_files=files, split=split, cache_dir=str(tmp_path / "c")).to_list()
    assert expected
    assert probe(tmp_path, op="load", names=str(tmp_path / "saved"), split=split) == expected
    hub = tmp_path / "hub" / "datasets--org--set"
    (hub / "refs").mkdir(parents=True)
    (hub / "refs" / "main").write_text("abc123")
    (hub / "snapshots" / "abc123" / "data").mkdir(parents=True)
    for name, part in both.items():
        part.to_parquet(str(hub / "snapshots" / "abc123" / "data" / f"{name}-00000-of-00001.parquet"))
    assert probe(tmp_path, op="load", names="org/set", split=split, hub_cache=str(tmp_path / "hub")) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_slices_and_mixtures_of_every_format(name, datasets, dataset, tmp_path):
    """Rows that are passed over are not read: the others are those of the whole."""
    path = save(name, dataset, tmp_path)
    count = len(ROWS)
    for split, rows in {"train[:10%]": dataset.select(range(4)), "train[20:]": dataset.select(range(20, count)),
                        "train[-3:]+train[7:8]": dataset.select([*range(count - 3, count), 7])}.items():
        assert probe(tmp_path, op="load", names=str(path), split=split) == rows.to_list(), split
    mixed = datasets.interleave_datasets([dataset.select(range(5, count)), dataset.select(range(5, count))], probabilities=[0.5, 0.5], seed=3)
    assert probe(tmp_path, op="load", names=f"{path},{path}", split="train[5:]", weights=[0.5, 0.5], seed=3) == mixed.to_list()


@pytest.mark.parametrize("seed", [0, 42, 2**40 + 7])
def test_shuffle(seed, datasets, tmp_path):
    for n in [1, 2, 10, 1000, 4097]:
        expected = datasets.Dataset.from_dict({"v": list(range(n))}).shuffle(seed=seed)["v"]
        assert probe(tmp_path, op="shuffle", num_rows=n, seed=seed) == list(expected)


@pytest.mark.parametrize("weights", [[0.7, 0.3], [0.2, 0.5, 0.3]])
def test_mixtures(weights, datasets, tmp_path):
    sets = [datasets.Dataset.from_list([{"v": 10000 * k + i} for i in range(400 + 700 * k)]) for k in range(len(weights))]
    names = []
    for k, one in enumerate(sets):
        names.append(str(tmp_path / f"{k}.jsonl"))
        one.to_json(names[-1])
    expected = datasets.interleave_datasets(sets, probabilities=weights, seed=11).to_list()
    assert probe(tmp_path, op="load", names=",".join(names), weights=weights, seed=11) == expected


CARD = """---
license: mit
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: "main/part-*.jsonl"
  - split: test
    path: [main/held.jsonl, main/out.jsonl]
- config_name: other
  data_dir: elsewhere
  data_files: "**/*.jsonl"
- config_name: words
  data_dir: by_name
---
# Some data
"""
CARD_FILES = ["main/part-0.jsonl", "main/part-1.jsonl", "main/held.jsonl", "main/out.jsonl", "main/left.jsonl",
              "elsewhere/x.jsonl", "elsewhere/deep/er/y.jsonl", "elsewhere/.hidden/z.jsonl", "by_name/train.jsonl", "by_name/test.jsonl"]
FOLDERS = {
    "one file of any name": ["notes.jsonl"],
    "words in names": ["my-train-set.jsonl", "dev.jsonl", "eval_2.jsonl"],
    "words in folders": ["training/a.jsonl", "training/b.jsonl", "val/c.jsonl", "readme/train.jsonl"],
    "deep folders": ["x/train/y/a.jsonl", "x/test/y/b.jsonl"],
    "shards": ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl", "data/validation-00000-of-00001.jsonl"],
    "a file and its relations": ["train.jsonl", "train-extra.jsonl", "train_2.jsonl", "test.jsonl", "test/x.jsonl"],
    "shards and more": ["data/train-00000-of-00001.jsonl", "data/train-extra.jsonl", "data/demo-00000-of-00001.jsonl", "test.jsonl"],
    "a folder and below": ["train/a.jsonl", "train/sub/b.jsonl", "other/train.jsonl"],
    "a file beside data": ["data/train-a.jsonl", "data/training.jsonl", "data/deep/train-x.jsonl", "train.jsonl"],
    "a file beside its shards": ["train.jsonl", "train-00000-of-00001.jsonl", "data/random-train.jsonl"],
    "shards of several kinds": ["data/train_prefs-00000-of-00001.jsonl", "data/train_sft-00000-of-00001.jsonl",
                                "data/test_prefs-00000-of-00001.jsonl"],
    "no words": ["a.jsonl", "sub/b.jsonl", "trainer.jsonl", "contest.jsonl"],
}


def lay_out(folder, files):
    for i, name in enumerate(files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"text": name, "n": i}) + "\n")
    return folder


def reference_rows(datasets, folder, tmp_path, split, name=None):
    return datasets.load_dataset(str(folder), name=name, split=split, cache_dir=str(tmp_path / "cache")).to_list()


@pytest.mark.parametrize("config, split", [
    (None, "train"), (None, "test"), ("main", "train"), ("other", "train"), ("words", "train"), ("words", "test")])
def test_configurations_of_a_card(config, split, datasets, tmp_path):
    folder = lay_out(tmp_path / "set", CARD_FILES)
    (folder / "README.md").write_text(CARD)
    expected = reference_rows(datasets, folder, tmp_path, split, config)
    assert expected
    assert probe(tmp_path, op="load", names=str(folder), split=split, config=config or "") == expected


@pytest.mark.parametrize("name", FOLDERS)
def test_splits_of_folders(name, datasets, tmp_path):
    folder = lay_out(tmp_path / "set", FOLDERS[name])
    splits = datasets.get_dataset_split_names(str(folder))
    assert splits
    for split in splits:
        assert probe(tmp_path, op="load", names=str(folder), split=split) == reference_rows(datasets, folder, tmp_path, split), split


def test_a_word_of_several_splits_is_none_of_them(datasets, tmp_path):
    """ultrafeedback_binarized without its card: "train" was the rows of both train_prefs and train_sft."""
    folder = lay_out(tmp_path / "set", FOLDERS["shards of several kinds"])
    with pytest.raises(ValueError, match='Unknown split "train"'):
        reference_rows(datasets, folder, tmp_path, "train")
    result = data_probe.ask(tmp_path, [{"op": "load", "names": str(folder), "split": "train"}])
    assert result.returncode == 1, result.stdout
    assert 'set: found test_prefs, train_prefs, train_sft, expected a split "train"' in result.stderr


@pytest.mark.parametrize("card, config, message", [
    (CARD, "nothing", 'dataset_config: found "nothing", expected a configuration of'),
    (CARD.replace("  default: true\n", ""), "", "found several configurations (main, other, words), expected the name of one"),
    (CARD.replace("main/part-*", "none/part-*"), "", 'found no data file that matches "none/part-*.jsonl"'),
    ("---\nconfigs:\n- data_files: x\n---\n", "", 'README.md:3: found no usable "config_name"'),
    ("---\nconfigs:\n- config_name: a\n  data_files:\n  - [1]\n---\n", "", 'README.md:5: found no usable "data_files"'),
    ("---\nconfigs: [\n---\n", "", "README.md:"),
    ("---\nconfigs:\n- config_name: a\n  data_files: []\n---\n", "", 'README.md:4: found no usable "data_files"'),
    (CARD.replace("  - split: test\n", "  - split: train\n"), "", 'README.md:9: found no usable "split" of a configuration, expected each split once'),
    (CARD.replace("  - split: test\n", "  - a.jsonl\n  - split: test\n"), "", 'README.md:7: found no usable "data_files" of a configuration, expected patterns alone'),
    (CARD.replace("  data_dir: by_name\n", "  data_dir: by_name\n  sep: ';'\n"), "words",
     'README.md:16: found "sep" in the configuration "words", expected none that changes how files are read'),
    (CARD.replace("  data_dir: elsewhere\n", "  sample_by: document\n"), "other", 'README.md:12: found "sample_by" in the configuration "other"'),
    (CARD.replace("  - split: test\n", "  - split: test\n    encoding: latin-1\n"), "",
     'README.md:9: found no usable "data_files" of a configuration, expected entries of "split" and "path" alone'),
    ("# no card\n", "nothing", 'dataset_config: found "nothing", expected a folder of that name'),
])
def test_configurations_that_are_not_there(card, config, message, tmp_path):
    folder = lay_out(tmp_path / "set", CARD_FILES)
    (folder / "README.md").write_text(card)
    result = data_probe.ask(tmp_path, [{"op": "load", "names": str(folder), "config": config}])
    assert result.returncode == 1 and message in result.stderr, result.stderr


KEYS = CARD.replace("  data_dir: elsewhere\n", "  data_dir: elsewhere\n  sep: ';'\n  license: mit\n").replace(
    "  default: true\n", "  default: true\n  license: mit\n  pretty_name: Some data\n")


@pytest.mark.parametrize("config", [None, "words"])
def test_keys_of_a_card_that_mean_nothing_for_what_is_read(config, datasets, tmp_path):
    """Those of a configuration that nobody asked for, and those that no loader knows, which are named."""
    folder = lay_out(tmp_path / "set", CARD_FILES)
    (folder / "README.md").write_text(KEYS)
    assert probe(tmp_path, op="load", names=str(folder), config=config or "") == reference_rows(datasets, folder, tmp_path, "train", config)
    told = probe(tmp_path, op="ignored", names=str(folder), config=config or "")
    where = f"{folder}/README.md"
    assert told == ([] if config else [f'found "license" ({where}:6), "pretty_name" ({where}:7) in a configuration, which is not supported'])


# A set is of one kind; with the kind that is read.
KINDS = {
    "a licence": (["data.jsonl", "LICENSE.txt"], ".jsonl"),
    "more texts than rows": (["data.jsonl", "LICENSE.txt", "requirements.txt"], ".txt"),
    "parquet and lines": (["train_a.parquet", "train_a.jsonl"], ".parquet"),
    "two tables and lines": (["a.csv", "b.csv", "c.jsonl"], ".csv"),
    "two endings of one kind": (["a.json", "b.jsonl", "c.csv"], (".json", ".jsonl")),
    "most of one ending": (["a.json", "b.jsonl", "c.txt", "d.txt"], ".txt"),
    "a table and a text": (["a.csv", "b.txt"], ".csv"),
    "a table with tabs and a text": (["a.tsv", "b.txt"], ".txt"),
    "lines under another name and a text": (["a.ndjson", "b.txt"], ".txt"),
    "arrow and lines": (["a.arrow", "b.jsonl"], ".arrow"),
    "parquet and arrow": (["a.arrow", "b.parquet"], ".parquet"),
    "packed": (["a.jsonl.gz", "b.jsonl", "c.txt", "d.txt"], (".jsonl", ".jsonl.gz")),
    "metadata of pictures": (["metadata.jsonl", "a.txt"], ".txt"),
    "in folders of splits": (["train/a.jsonl", "train/LICENSE.txt", "test/b.jsonl"], ".jsonl"),
    "a split of its own": (["train.csv", "LICENSE.txt"], ".csv"),
}


def write_kind(path, row):
    import pyarrow as pa
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    table, line = pa.table({name: [value] for name, value in row.items()}), json.dumps(row) + "\n"
    if path.suffix == ".parquet":
        pa.parquet.write_table(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix in (".csv", ".tsv"):
        separator = "," if path.suffix == ".csv" else "\t"
        path.write_text(separator.join(row) + "\n" + separator.join(row.values()) + "\n")
    else:
        path.write_bytes(gzip.compress(line.encode()) if path.suffix == ".gz" else line.encode())


@pytest.mark.parametrize("name", KINDS)
def test_files_of_several_kinds(name, datasets, tmp_path):
    files, kind = KINDS[name]
    for i, file in enumerate(files):
        write_kind(tmp_path / "set" / file, {"text": f"{file} is called so", "more": f"number {i} of them"})
    expected = reference_rows(datasets, tmp_path / "set", tmp_path, "train")
    assert expected
    assert probe(tmp_path / "requests", op="load", names=str(tmp_path / "set")) == expected
    told = probe(tmp_path / "requests", op="ignored", names=str(tmp_path / "set"))
    left_out = [file for file in sorted(files) if not file.endswith(kind) and (not file.startswith("L") or name != "a split of its own")]
    assert [line.split(": ")[:2] for line in told] == ([[f"train split of {tmp_path / 'set'}", f"left out {', '.join(left_out)}"]] if left_out else [])


def test_a_file_that_would_change_the_kind_is_told(tmp_path):
    """A run must not write what its next start would read, or what leaves its rows out."""
    for file in ("a.jsonl", "b.txt"):
        write_kind(tmp_path / "set" / file, {"text": "x"})
    assert [probe(tmp_path / "requests", op="would_read", names=str(tmp_path / "set"), file=str(tmp_path / "set" / file))
            for file in ("c.txt", "c.jsonl", "c.csv")] == [True, True, False]


def test_a_folder_stands_for_a_configuration(tmp_path):
    folder = lay_out(tmp_path / "set", ["german/train.jsonl", "french/train.jsonl"])
    rows = probe(tmp_path, op="load", names=str(folder), config="french")
    assert rows == [{"text": "french/train.jsonl", "n": 1}]


@pytest.mark.parametrize("names, message", [
    (["data/train-00000-of-00002.jsonl"], "data: found 1 of the 2 files of split train (train-00000-of-00002 and so on)"),
    (["train-00000-of-00003.jsonl", "train-00002-of-00003.jsonl"], "found 2 of the 3 files of split train"),
    (["data/train-00001-of-00002-0123456789abcdef.jsonl"], "found 1 of the 2 files of split train"),
    (["other/x/train-00000-of-00002.jsonl"], "found 1 of the 2 files of split train"),
    (["main/train-00000-of-00002.jsonl"], "found 1 of the 2 files of split train"),
])
def test_parts_that_are_missing(names, message, tmp_path):
    """Half of a data set is no data set, wherever its parts lie."""
    folder = lay_out(tmp_path / "set", names)
    if names[0].startswith("main"):
        (folder / "README.md").write_text('---\nconfigs:\n- config_name: a\n  data_files: "main/*"\n---\n')
    result = data_probe.ask(tmp_path, [{"op": "load", "names": str(folder)}])
    assert result.returncode == 1 and message in result.stderr, result.stderr
    assert len(probe(tmp_path, op="load", names=str(folder / names[0]))) == 1, "a file by its name is what was asked for"
    count = int(re.search(r"-of-(\d+)", names[0])[1])
    lay_out(folder, [re.sub(r"-\d+-of", f"-{i:05}-of", names[0]) for i in range(count)])
    assert len(probe(tmp_path, op="load", names=str(folder))) == count


@pytest.mark.parametrize("names, splits", [
    (["my-train-set.jsonl", "dev.jsonl", "eval_2.jsonl"], ["test", "train", "validation"]), (["training/a.jsonl", "val/c.jsonl"], ["train", "validation"]),
    (["notes.jsonl"], ["notes", "train"]), ([], None),
])
def test_a_split_that_is_not_there(names, splits, tmp_path):
    folder = lay_out(tmp_path / "set", names)
    folder.mkdir(exist_ok=True)
    result = data_probe.ask(tmp_path, [{"op": "load", "names": str(folder), "split": "holdout"}])
    assert result.returncode == 1 and 'expected a split "holdout"' in result.stderr, result.stderr
    listed = result.stderr.split(": found ")[1].split(", expected")[0]
    assert listed == "no splits" if splits is None else set(splits) <= set(listed.split(", ")), result.stderr
