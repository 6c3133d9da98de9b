# Oracle: the rows that `datasets` makes of its own JSON columns (extension "arrow.json"), which it infers where values have mixed types.
import json
import os

import pytest

import data_probe


@pytest.fixture(scope="module")
def datasets():
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets

    datasets.disable_progress_bars()
    return datasets


MIXED = [
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "q1"}]}, {"role": "assistant", "content": "line one\nline \"two\""}]},
    {"messages": [{"role": "user", "content": "q2 \u00e9\U0001f389"}, {"role": "assistant", "content": None}]},
]
PROPERTIES = {"z": {"type": "integer", "default": 3}, "a": {"type": ["string", "null"], "enum": ["x", None, 1.5, -0.0, 2**63, True]}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES}}}


def call(arguments):
    return {"type": "function", "function": {"name": "f", "arguments": arguments}}


def answer(*calls):
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


TYPED = [{"messages": [{"role": "user", "content": "q", "tool_calls": None}, answer(call({"b": 1, "a": {"c": [1.0, None]}}), call(None))], "tools": [TOOL, None]},
         {"messages": [answer(call([])), answer(call("text")), answer(call(7)), answer(call('{"a": 1}'))], "tools": None},
         {"messages": [], "tools": []}]


def inferred(datasets, folder):
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MIXED))
    return datasets.load_dataset("json", data_files=str(folder / "in.jsonl"), split="train", cache_dir=str(folder / "cache"))


def typed(datasets, folder, decode=True):
    text, of_json = datasets.Value("string"), datasets.Json(decode=decode)
    function = {"name": text, "arguments": of_json}
    turn = {"role": text, "content": text, "tool_calls": datasets.List({"type": text, "function": function})}
    features = datasets.Features({"messages": datasets.List(turn), "tools": datasets.List(of_json)})
    return datasets.Dataset.from_list(TYPED, features=features)


def whole(datasets, folder):
    features = datasets.Features({"messages": datasets.List(datasets.Json()), "extra": datasets.Json(), "wide": datasets.LargeList(datasets.Json(decode=False))})
    rows = [{"messages": row["messages"], "extra": extra, "wide": [extra]} for row, extra in zip(MIXED + TYPED, [{"k": [1]}, None, [], 5, "a text"])]
    return datasets.Dataset.from_list(rows, features=features)


SETS = {"inferred": inferred, "typed": typed, "not decoded": lambda *of: typed(*of, decode=False), "whole messages": whole}


def save(dataset, kind, folder):
    import pyarrow as pa

    path = folder / f"saved.{kind}"
    if kind == "parquet":
        dataset.to_parquet(str(path))
    elif kind == "folder":
        dataset.save_to_disk(str(path))
    else:
        path = path.with_suffix(".arrow")
        table = dataset.data.table
        with pa.OSFile(str(path), "wb") as sink, (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


@pytest.mark.parametrize("kind", ["parquet", "folder", "stream", "file"])
@pytest.mark.parametrize("name", SETS)
def test_rows_of_json_columns(name, kind, datasets, tmp_path):
    dataset = SETS[name](datasets, tmp_path)
    assert "Json" in str(dataset.features)
    path = save(dataset, kind, tmp_path)
    found, = data_probe.probe(tmp_path / "requests", [{"op": "load", "names": str(path)}])
    assert found == list(dataset)
    assert [json.dumps(row) for row in found] == [json.dumps(row) for row in dataset]  # the order of keys; 1 and 1.0 and true


def test_json_of_parquet_without_arrows_schema(datasets, tmp_path):
    """Writers that know nothing of Arrow say that a text is JSON by parquet's own type."""
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table({"text": ["a", "b"], "extra": pa.array(['{"b": [1, "x"], "a": null}', None], pa.json_())})
    pa.parquet.write_table(table, tmp_path / "a.parquet", store_schema=False)
    expected = datasets.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=str(tmp_path / "cache"))
    assert expected[0]["extra"] == {"b": [1, "x"], "a": None}
    assert data_probe.probe(tmp_path / "requests", [{"op": "load", "names": str(tmp_path / "a.parquet")}]) == [list(expected)]


@pytest.mark.parametrize("broken", ['{"a": ', "", "{'a': 1}", "x", '{"a": 1} 2', "[" * 100_000])
def test_json_that_is_none(broken, datasets, tmp_path):
    """datasets stops at such a row, too."""
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"text": ["a", "b", "c"], "extra": pa.array(['{"a": 1}', broken, "2"], pa.json_())}), path)
    with pytest.raises(ValueError):
        list(datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")))
    result = data_probe.ask(tmp_path / "requests", [{"op": "load", "names": str(path)}])
    assert result.returncode == 1 and f"{path}:2: found a value of a JSON column that is no JSON" in result.stderr, result.stderr
    assert "UTF-8" not in result.stderr and len(result.stderr) < 600
