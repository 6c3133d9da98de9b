# Oracle: pyarrow's own rows of the same columns; its full validation for damaged files.
import collections
import json
import random

import pytest

import data_probe


def probe(folder, **request):
    return data_probe.probe(folder, [request])[0]


def test_arrow_types(tmp_path):
    import pyarrow as pa

    table = pa.table({
        "large": pa.array(["x", None, "z"], pa.large_string()), "view": pa.array(["x", "y" * 50, None], pa.string_view()),
        "i8": pa.array([1, -2, None], pa.int8()), "u64": pa.array([1, 2**63, 3], pa.uint64()), "f": pa.array([0.5, None, 2.0], pa.float32()),
        "coded": pa.array(["a", "b", "a"]).dictionary_encode(), "fixed": pa.array([[1, 2], None, [5, 6]], pa.list_(pa.int32(), 2)),
        "many": pa.array([["p"], [], None], pa.large_list(pa.string())), "nothing": pa.array([None, None, None]),
        "when": pa.array([1, 2, 3], pa.timestamp("s")), "picture": pa.array([{"bytes": b"1"}] * 3),
    })
    expected = [{**row, "when": str(row["when"])} for row in table.drop_columns(["picture"]).to_pylist()]
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    with pa.OSFile(str(tmp_path / "stream.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ["file.arrow", "stream.arrow"]:
        assert probe(tmp_path, op="load", names=str(tmp_path / name)) == expected


def as_dicts(rows):
    """Maps are lists of pairs for pyarrow, objects in rows."""
    return [None if row is None else dict(row) for row in rows]


def as_parsed(array):
    return [None if text is None else json.loads(text) for text in array.to_pylist()]


def as_written(array):
    """Dates, times and decimals as Arrow itself writes them."""
    return array.cast("string").to_pylist()


def arrow_columns():
    """Columns of every type with what rows hold of them; None: they are left out, by the type's name."""
    import datetime
    import decimal

    import pyarrow as pa

    when = datetime.datetime(2024, 2, 29, 12, 30, 5, 250000)
    plain, pairs = lambda array: array.to_pylist(), [[("a", 1), ("b", None)], None, [], [("", 4), ("\u00e9", 5)]]
    texts, views = ["x", None, "a text of more than twelve bytes", ""], [[1, 2], None, [], [None, 5]]
    price = [decimal.Decimal("1.50"), None, decimal.Decimal("-0.07"), decimal.Decimal("0.00")]
    days, times = [when.date(), None, when.date(), datetime.date(1969, 12, 31)], [when.time(), None, datetime.time(), when.time()]
    stamps = [when.replace(microsecond=0), None, datetime.datetime(1969, 12, 31, 23, 59, 59), when.replace(microsecond=0)]
    struct = pa.struct([("k", pa.map_(pa.string(), pa.list_view(pa.float16()))), ("d", pa.date32())])
    cases = {
        "bool": (pa.array([True, None, False, True]), plain), "null": (pa.nulls(4), plain),
        "float16": (pa.array([1.5, None, -0.0, 65504.0], pa.float16()), plain), "float64": (pa.array([1e300, None, 0.1, -2.0]), plain),
        "string": (pa.array(texts), plain), "large_string": (pa.array(texts, pa.large_string()), plain),
        "string_view": (pa.array(texts, pa.string_view()), plain), "json": (pa.array(["7", None, '{"b": [1.5, null], "a": "x"}', "null"], pa.json_()), as_parsed),
        "dictionary": (pa.array(texts).dictionary_encode(), plain),
        "dictionary of numbers": (pa.array([7, None, 7, 9]).dictionary_encode(), plain),
        "list": (pa.array(views, pa.list_(pa.int32())), plain), "large_list": (pa.array(views, pa.large_list(pa.int32())), plain),
        "list_view": (pa.array(views, pa.list_view(pa.int32())), plain), "large_list_view": (pa.array(views, pa.large_list_view(pa.int32())), plain),
        "fixed list": (pa.array([[1, 2], None, [3, None], [5, 6]], pa.list_(pa.int8(), 2)), plain),
        "map": (pa.array(pairs, pa.map_(pa.string(), pa.int64())), lambda array: as_dicts(array.to_pylist())),
        "map of large strings": (pa.array(pairs, pa.map_(pa.large_string(), pa.int8())), lambda array: as_dicts(array.to_pylist())),
        "map of views": (pa.array(pairs, pa.map_(pa.string_view(), pa.int8())), lambda array: as_dicts(array.to_pylist())),
        "nested": (pa.array([{"k": [("a", [1.0, 2.5])], "d": when.date()}, None, {"k": None, "d": None}, {"k": [], "d": None}], struct),
                   lambda array: [row and {"k": row["k"] and dict(row["k"]) if row["k"] is None or row["k"] else {}, "d": row["d"] and str(row["d"])}
                                  for row in array.to_pylist()]),
        "date32": (pa.array(days, pa.date32()), as_written), "date64": (pa.array(days, pa.date64()), as_written),
        "time32": (pa.array(times, pa.time32("ms")), as_written), "time64": (pa.array(times, pa.time64("us")), as_written),
        "decimal32": (pa.array(price, pa.decimal32(5, 2)), as_written), "decimal64": (pa.array(price, pa.decimal64(9, 2)), as_written),
        "decimal128": (pa.array(price, pa.decimal128(20, 2)), as_written), "decimal256": (pa.array(price, pa.decimal256(50, 2)), as_written),
        "binary": (pa.array([b"1", None, b"", b"\xff"]), None), "large_binary": (pa.array([b"1", None, b"", b"\xff"], pa.large_binary()), None),
        "binary_view": (pa.array([b"1", None, b"", b"\xff"], pa.binary_view()), None),
        "fixed_size_binary": (pa.array([b"1", None, b"2", b"3"], pa.binary(1)), None),
        "duration": (pa.array([1, None, 2, 3], pa.duration("s")), None), "list of bytes": (pa.array([[b"1"], None, [], [b"2"]]), None),
        "map with numbers as keys": (pa.array([[(1, "a")], None, [], [(2, "b")]], pa.map_(pa.int32(), pa.string())), None),
        "map of bytes": (pa.array([[("a", b"1")], None, [], [("b", b"2")]], pa.map_(pa.string(), pa.binary())), None),
        "interval": (pa.array([(1, 2, 3), None, (4, 5, 6), (7, 8, 9)], pa.month_day_nano_interval()), None),
    }
    for unit in ("s", "ms", "us", "ns"):
        cases[f"timestamp {unit}"] = (pa.array(stamps, pa.timestamp(unit)), as_written)
    cases["timestamp of a zone"] = (pa.array(stamps, pa.timestamp("us", tz="UTC")), as_written)
    for kind in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        lowest, highest = (0, 2 ** int(kind[4:]) - 1) if kind[0] == "u" else (-2 ** (int(kind[3:]) - 1), 2 ** (int(kind[3:]) - 1) - 1)
        cases[kind] = (pa.array([lowest, None, highest, 7], getattr(pa, kind)()), plain)
    return cases


@pytest.mark.parametrize("kind", ["stream", "file", "parquet"])
def test_every_arrow_type(kind, tmp_path):
    """What pyarrow makes of each column, alone beside a text; slices too, whose values begin behind an offset."""
    import pyarrow as pa
    import pyarrow.parquet

    cases, requests = [], []
    for name, (array, expected_of) in arrow_columns().items():
        for part in (array, array.slice(2)):
            path = tmp_path / f"{len(cases)}.{'parquet' if kind == 'parquet' else 'arrow'}"
            table = pa.table({"text": [f"row {i}" for i in range(len(part))], "column": part})
            try:
                if kind == "parquet":
                    pa.parquet.write_table(table, path)
                    table = pa.parquet.read_table(path)  # coarser and finer units become those of parquet
                else:
                    with pa.OSFile(str(path), "wb") as sink, (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(sink, table.schema) as writer:
                        writer.write_table(table)
            except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
                assert kind == "parquet", name
                continue
            cases.append((name, expected_of, table))
            requests += [{"op": op, "names": str(path)} for op in ("load", "left_out")]
    answers = iter(data_probe.probe(tmp_path / "requests", requests))
    for name, expected_of, table in cases:
        found, left_out = next(answers), next(answers) or {}
        column = table["column"].combine_chunks()
        texts = [{"text": text} for text in table["text"].to_pylist()]
        if expected_of is None:
            assert found == texts and list(left_out.values()) == [len(table)], name
            assert f"column ({column.type})"[:30] in next(iter(left_out)), (name, left_out)
        else:
            assert found == [{**text, "column": value} for text, value in zip(texts, expected_of(column), strict=True)], name
            assert left_out == {}, name
    assert len(cases) > (60 if kind == "parquet" else 90)


def test_a_key_that_stands_twice_in_a_map(tmp_path):
    import pyarrow as pa

    column = pa.array([[("a", 1), ("b", 2), ("a", 3)]], pa.map_(pa.string(), pa.int64()))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink, pa.ipc.new_stream(sink, pa.table({"c": column}).schema) as writer:
        writer.write_table(pa.table({"c": column}))
    assert probe(tmp_path, op="load", names=str(tmp_path / "a.arrow")) == [{"c": dict(column.to_pylist()[0])}]


@pytest.mark.parametrize("case", ["twice", "bytes"])
def test_columns_of_which_no_row_can_be_made(case, tmp_path):
    """Of two columns of one name, which datasets refuses, too; texts as bytes, which it hands on and no recipe can read."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text"] * 2) if case == "twice" else pa.table({"text": [b"a"]})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    ours = data_probe.ask(tmp_path / "requests", [{"op": "load", "names": str(tmp_path / "a.parquet")}])
    assert ours.returncode != 0 and {"twice": 'the column "text" twice', "bytes": "text (binary)"}[case] in ours.stderr

    def theirs():
        return datasets.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=str(tmp_path / "cache"))

    if case == "twice":
        with pytest.raises(datasets.exceptions.DatasetGenerationError):
            theirs()
    else:
        assert theirs()[0] == {"text": b"a"}


def test_left_out_columns_are_counted_once_for_all_batches(tmp_path):
    """Over several files, row groups and batches; a long type is cut, between characters."""
    import pyarrow as pa
    import pyarrow.parquet

    wide = pa.struct([(f"f\u00e9{i}", pa.binary()) for i in range(20)])
    for i in range(2):
        table = pa.table({"text": [f"row {j}" for j in range(3000)], "image": [b"x"] * 3000, "wide": pa.nulls(3000, wide)})
        pa.parquet.write_table(table, tmp_path / f"train-0000{i}-of-00002.parquet", row_group_size=700)
    left_out = probe(tmp_path / "requests", op="left_out", names=str(tmp_path))
    assert left_out["image (binary)"] == 6000 and len(left_out) == 2
    cut = next(name for name in left_out if name.startswith("wide (struct<f\u00e9"))
    assert left_out[cut] == 6000 and cut.endswith("...)") and len(cut.encode()) <= 48


def test_dates_and_decimals_are_written_out(tmp_path):
    """As Arrow prints them, with the digits of their unit (parquet makes milliseconds of seconds): nothing that a row may name
    gets lost."""
    import datetime
    import decimal

    import pyarrow as pa
    import pyarrow.parquet

    when = datetime.datetime(2024, 2, 29, 12, 30, 5)
    table = pa.table({
        "text": ["x", "y"], "day": pa.array([when.date(), None], pa.date32()), "day64": pa.array([when.date(), when.date()], pa.date64()),
        "second": pa.array([when, None], pa.timestamp("s")), "micro": pa.array([when.replace(microsecond=250000), None], pa.timestamp("us")),
        "time": pa.array([when.time(), when.time()], pa.time64("us")), "price": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(5, 2)),
        "nested": pa.array([{"at": when.date()}, None], pa.struct([("at", pa.date32())])), "picture": pa.array([b"1", b"2"])})
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    first = {"text": "x", "day": "2024-02-29", "day64": "2024-02-29", "second": "2024-02-29 12:30:05.000", "micro": "2024-02-29 12:30:05.250000",
             "time": "12:30:05.000000", "price": "1.50", "nested": {"at": "2024-02-29"}}
    found = probe(tmp_path, op="load", names=str(tmp_path / "a.parquet"))
    assert found == [first, {**dict.fromkeys(first), "text": "y", "day64": "2024-02-29", "time": "12:30:05.000000"}]


def damaged(whole, places, rng):
    """Copies of a file with one number changed: what stands there becomes too large, negative, or another one."""
    for at in places:
        changed = bytearray(whole)
        kind = rng.randrange(3)
        if kind == 0:
            changed[at + 3] ^= 0x40
        elif kind == 1:
            changed[at:at + 4] = b"\xff\xff\xff\xff"
        else:
            changed[at] ^= 1 << rng.randrange(8)
        yield bytes(changed)


@pytest.mark.parametrize("kind", ["stream", "file", "parquet"])
def test_damaged_columns(kind, tmp_path):
    """Offsets and indices that lead out of their buffers: where Arrow's own full validation refuses the file, so do we by its name, and
    what it takes is read as it reads it."""
    import pyarrow as pa
    import pyarrow.parquet

    rng = random.Random(kind)
    texts = [f"text {i} \u00e9" if i % 5 else None for i in range(40)]
    table = pa.table({
        "text": pa.array(texts), "large": pa.array(texts, pa.large_string()), "view": pa.array([f"{t} and so on" for t in texts], pa.string_view()),
        "coded": pa.array([f"word {i % 6}" for i in range(40)]).dictionary_encode(),
        "tags": pa.array([[f"t{j}" for j in range(i % 4)] for i in range(40)]),
        "messages": pa.array([[{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": "a" * (i % 7)}] for i in range(40)]),
    })
    sink = pa.BufferOutputStream()
    if kind == "parquet":
        pa.parquet.write_table(table, sink, compression="none")
    else:
        with (pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file)(sink, table.schema) as writer:
            writer.write_table(table)
    whole, suffix = sink.getvalue().to_pybytes(), ".parquet" if kind == "parquet" else ".arrow"

    def read(data):
        if kind == "parquet":
            found = pa.parquet.read_table(pa.BufferReader(data))
        else:
            found = (pa.ipc.open_stream if kind == "stream" else pa.ipc.open_file)(pa.BufferReader(data)).read_all()
        found.validate(full=True)
        return found.to_pylist()

    files, requests = [], []
    for data in damaged(whole, rng.sample(range(0, len(whole) - 4, 4), min(700, len(whole) // 4 - 1)), rng):
        files.append(data)
        (tmp_path / f"{len(files)}{suffix}").write_bytes(data)
        requests.append({"op": "load", "names": str(tmp_path / f"{len(files)}{suffix}"), "may_fail": True})
    outcomes = collections.Counter()
    for i, (data, found) in enumerate(zip(files, data_probe.probe(tmp_path / "requests", requests), strict=True), 1):
        refuses = isinstance(found, dict) and f"{i}{suffix}" in found["error"]
        try:
            expected = read(data)
        except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
            assert refuses, (i, error, str(found)[:300])
            outcomes["refused"] += 1
        else:  # a name that is not UTF-8, metadata that end behind the file, a column that became one of bytes: pyarrow looks away
            is_same = found == expected
            assert is_same or refuses or found == [{name: row[name] for name in found[0]} for row in expected], i
            outcomes["read" if is_same else "stricter"] += 1
    assert outcomes["read"] > 50 and outcomes["refused"] > 150 and outcomes["stricter"] < 8, outcomes
