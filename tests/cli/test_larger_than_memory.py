# Oracle: the kernel's limit on a process's own memory (RLIMIT_DATA: heap and private pages), a fraction of
# what is read and of what is written.
import gzip
import json
import resource
import subprocess

import pytest
from running import Run, base_flags, command, environment

LIMIT = 160 << 20  # a set of ten rows needs 100 MB: libtorch, the model, its optimizer, stacks of threads
SIZE = 2 * LIMIT
NOTES = "a column that nobody asks for " * 60


def rows(count, text_words, notes=""):
    return [{"text": f"row {i} " + "the cat sat on the mat " * text_words, "notes": notes} for i in range(count)]


def lines(part):
    return "".join(json.dumps(row) + "\n" for row in part).encode()


def repeat(path, part, size):
    with open(path, "wb") as file:
        for _ in range(size // len(part) + 1):
            file.write(part)


def write_lines(path, part):
    repeat(path, lines(part), SIZE)


def write_gzip(path, part):
    text = lines(part)
    packed = gzip.compress(text, 1)
    repeat(path, packed, SIZE * len(packed) // len(text))


def write_parquet(path, part):
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(part)
    with pyarrow.parquet.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(SIZE // table.nbytes + 1):
            writer.write_table(table)


def write_arrow(path, part):
    import pyarrow

    table = pyarrow.Table.from_pylist(part)
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        for _ in range(SIZE // table.nbytes + 1):
            writer.write_table(table, max_chunksize=1000)


def train(inputs, data, folder, **flags):
    flags = base_flags(inputs.model("plain"), data, folder / "out", max_steps=3, **flags)
    process = subprocess.run(command(flags), capture_output=True, text=True, timeout=170,
                             env={**environment(), "HF_HOME": str(folder / "home")},
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT)))
    run = Run(process, folder / "out")
    assert run.returncode == 0, run.text
    assert len(run.losses) == 3
    return next((folder / "home" / "strata" / "tokens").glob("*.tokens")).stat().st_size


@pytest.mark.parametrize("name, write", [
    ("train.jsonl", write_lines), ("train.jsonl.gz", write_gzip), ("train.parquet", write_parquet), ("train.arrow", write_arrow)])
def test_files_larger_than_memory(name, write, inputs, tmp_path):
    part = rows(4000, 8, NOTES)
    data = tmp_path / name
    write(data, part)
    assert name.endswith(".gz") or data.stat().st_size > 1.9 * LIMIT
    train(inputs, data, tmp_path)
    data.unlink()


@pytest.mark.parametrize("flags", [{}, {"shuffle_dataset": True, "packing": True}], ids=["rows", "shuffled and packed"])
def test_tokens_larger_than_memory(flags, inputs, tmp_path):
    data = tmp_path / "train.jsonl"
    repeat(data, lines(rows(4000, 60)), int(0.6 * LIMIT))
    assert train(inputs, data, tmp_path, long_rows="split", **flags) > 1.8 * LIMIT
    for path in [data, *(tmp_path / "home").rglob("*.tokens")]:
        path.unlink()
