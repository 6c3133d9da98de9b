# Oracle: the kernel's limit on a process's own memory (RLIMIT_DATA: heap and private pages), a fraction of
# what is read and of what is written.
import gzip
import json
import resource
import shutil
import subprocess

import pytest
from running import Run, base_flags, environment, words_of

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


def write_zstd(path, part):
    import pyarrow

    text = lines(part)
    with pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        for _ in range(SIZE // len(text) + 1):
            file.write(text)


def write_array(path, part):
    text = ",\n".join(json.dumps(row) for row in part).encode()
    with open(path, "wb") as file:
        file.write(b"[" + text)
        for _ in range(SIZE // len(text)):
            file.write(b",\n" + text)
        file.write(b"]")


def write_csv(path, part):
    text = "".join(f'"{row["text"]}","{row["notes"]}"\n' for row in part).encode()
    with open(path, "wb") as file:
        file.write(b"text,notes\n")
        for _ in range(SIZE // len(text) + 1):
            file.write(text)


def write_text(path, part):
    repeat(path, "".join(f"{row['text']} {row['notes']}\n" for row in part).encode(), int(1.2 * LIMIT))


def write_saved(path, part):
    import datasets
    import pyarrow

    dataset = datasets.Dataset.from_list(part)
    dataset.save_to_disk(str(path))
    table = dataset.data.table
    file, = path.glob("*.arrow")
    with pyarrow.OSFile(str(file), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        for _ in range(SIZE // table.nbytes + 1):
            writer.write_table(table, max_chunksize=1000)


def train(inputs, data, folder, **flags):
    flags = base_flags(inputs.model("plain"), data, folder / "out", max_steps=3, **flags)
    process = subprocess.run(words_of(flags), capture_output=True, text=True, timeout=170,
                             env={**environment(), "HF_HOME": str(folder / "home")},
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT)))
    run = Run(process, folder / "out")
    assert run.returncode == 0, run.text
    assert len(run.losses) == 3
    return next((folder / "home" / "strata" / "tokens").glob("*.tokens")).stat().st_size


@pytest.mark.parametrize("name, write", [
    ("train.jsonl", write_lines), ("train.jsonl.gz", write_gzip), ("train.parquet", write_parquet), ("train.arrow", write_arrow),
    ("train.jsonl.zst", write_zstd), ("train.json", write_array), ("train.csv", write_csv), ("train.txt", write_text), ("saved", write_saved)])
def test_files_larger_than_memory(name, write, inputs, tmp_path):
    part = rows(4000, 8, NOTES)
    data = tmp_path / name
    write(data, part)
    size = sum(path.stat().st_size for path in ([data] if data.is_file() else data.iterdir()))
    assert name.endswith((".gz", ".zst")) or size > 1.1 * LIMIT
    train(inputs, data, tmp_path)
    shutil.rmtree(data) if data.is_dir() else data.unlink()


@pytest.mark.parametrize("flags", [{}, {"shuffle_dataset": True, "packing": True}], ids=["rows", "shuffled and packed"])
def test_tokens_larger_than_memory(flags, inputs, tmp_path):
    data = tmp_path / "train.jsonl"
    repeat(data, lines(rows(4000, 60)), int(0.6 * LIMIT))
    assert train(inputs, data, tmp_path, long_rows="split", **flags) > 1.8 * LIMIT
    for path in [data, *(tmp_path / "home").rglob("*.tokens")]:
        path.unlink()
