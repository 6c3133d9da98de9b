# Oracle: the rows, slices, shuffles and mixtures of the `datasets` package for the same files.
import gzip
import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("STRATA_BUILD", "build/release")

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
    path = folder / "requests.json"
    path.write_text(json.dumps([request]))
    result = subprocess.run([BUILD / "data_probe", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)[0]


@pytest.fixture(scope="module")
def dataset(datasets):
    return datasets.Dataset.from_list(ROWS)


WRITERS = {
    "a.parquet": lambda d, p: d.to_parquet(p),
    "small_groups.parquet": lambda d, p: d.to_parquet(p, batch_size=5),
    "a.jsonl": lambda d, p: d.to_json(p),
    "a.jsonl.gz": lambda d, p: d.to_json(p, compression="gzip"),
    "a.jsonl.zst": lambda d, p: d.to_json(p, compression="zstd"),
    "saved": lambda d, p: d.save_to_disk(p, num_shards=3),
}


@pytest.mark.parametrize("name", WRITERS)
def test_rows_of_every_format(name, dataset, tmp_path):
    path = tmp_path / name
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
    assert probe(tmp_path, op="load", names=str(path)) == dataset.to_list()


def test_arrow_types(datasets, tmp_path):
    import pyarrow as pa

    table = pa.table({
        "large": pa.array(["x", None, "z"], pa.large_string()), "view": pa.array(["x", "y" * 50, None], pa.string_view()),
        "i8": pa.array([1, -2, None], pa.int8()), "u64": pa.array([1, 2**63, 3], pa.uint64()), "f": pa.array([0.5, None, 2.0], pa.float32()),
        "coded": pa.array(["a", "b", "a"]).dictionary_encode(), "fixed": pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2)),
        "many": pa.array([["p"], [], None], pa.large_list(pa.string())), "nothing": pa.array([None, None, None]),
        "when": pa.array([1, 2, 3], pa.timestamp("s")), "picture": pa.array([{"bytes": b"1"}] * 3),
    })
    expected = table.drop_columns(["when", "picture"]).to_pylist()
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ["file.arrow", "stream.arrow"]:
        assert probe(tmp_path, op="load", names=str(tmp_path / name)) == expected


def test_csv_is_read_as_datasets_reads_text_columns(datasets, tmp_path):
    rows = [["a, b", 'say "x"', "line\nbreak"], ["\u00e9", "", "end"], ["  spaces ", "y", "1e5 apples"]]
    import csv

    with open(tmp_path / "a.csv", "w", newline="") as out:
        csv.writer(out).writerows([["p", "q", "r"]] + rows)
    expected = datasets.load_dataset("csv", data_files=str(tmp_path / "a.csv"), split="train",
                                     cache_dir=str(tmp_path / "c")).to_list()
    assert probe(tmp_path, op="load", names=str(tmp_path / "a.csv")) == expected


def test_text_files(datasets, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\n two \nlast")
    expected = datasets.load_dataset("text", data_files=str(tmp_path / "a.txt"), split="train",
                                     cache_dir=str(tmp_path / "c")).to_list()
    assert probe(tmp_path, op="load", names=str(tmp_path / "a.txt")) == expected


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
