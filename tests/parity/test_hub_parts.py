# Oracle: what a new cache gets of the same repository; huggingface_hub, which must find the completed snapshot.
import json
import subprocess

import pytest

from hub_server import COMMIT, FILES, ROWS, environment_of, fetched, load, rows, strata
from running import PROGRAM


@pytest.fixture
def sharded_hub(model_hub):
    """The same model in two files."""
    from safetensors.numpy import load, save

    tensors = load(model_hub.model.pop("model.safetensors"))
    names = sorted(tensors)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    weight_map = {name: file for file, part in shards.items() for name in part}
    for file, part in shards.items():
        model_hub.model[file] = save({name: tensors[name] for name in part}, {"format": "pt"})
    model_hub.model["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    model_hub.model.update({"original/params.json": b"{}", "consolidated.safetensors": b"not wanted"})
    return model_hub


UNWANTED = {"pytorch_model.bin", "original/params.json", "consolidated.safetensors"}
SHARD = "model-00002-of-00002.safetensors"
# What a broken download, or a program that fetches single files, left of the model; whether huggingface_hub's
# listing is there; what is known to be missing without the network (nothing: it is used as it is).
PARTS = {
    "config alone": (["config.json"], False, "model.safetensors"),
    "a shard missing": ([SHARD], False, SHARD),
    "a shard missing, listed": ([SHARD], True, SHARD),
    "no template, listed": (["chat_template.jinja"], True, "chat_template.jinja"),
    "a small file": (["generation_config.json"], False, None),
    "all there": ([], False, None),
}


def lay_out(cache, name, files, missing, is_listed, hub_files):
    repository = cache / name
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    kept = {file: content for file, content in files.items() if file not in missing}
    if missing == ["config.json"]:
        kept = {"config.json": files["config.json"]}
    for file, content in kept.items():
        (snapshot / file).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / file).write_bytes(content)
    if is_listed:
        from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache

        write_tree_cache(str(repository), COMMIT, {f: TreeCacheEntry(len(c), "0" * 40) for f, c in hub_files.items()})
    return snapshot


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_model_is_completed(name, sharded_hub, tmp_path):
    missing, is_listed, known = PARTS[name]
    wanted = {f: c for f, c in sharded_hub.model.items() if f not in UNWANTED}
    cache = tmp_path / "home" / "hub"
    lay_out(cache, "models--org--model", wanted, missing, is_listed, wanted)
    words = ["chat", "--prompt", "hello", "--max_new_tokens", 5, "--model_name_or_path", "org/model"]

    def offline(**environment):
        return subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True, timeout=120, input="",
                              env={**environment_of(sharded_hub, tmp_path / "home", **environment), "OMP_NUM_THREADS": "1"})

    for where in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        if known is not None and "HF_ENDPOINT" in where:
            continue  # tries again for seconds
        result = offline(**where)
        if known is None:
            assert result.returncode == 0, result.stderr
        else:
            assert result.returncode == 1 and result.stderr.count("\n") == 1, result.stderr
            assert "found a part of its files in the Hub cache" in result.stderr and known in result.stderr
            assert "HF_HUB_OFFLINE" in result.stderr
    assert not sharded_hub.log
    expected = strata(sharded_hub, tmp_path / "fresh", *words).stdout
    sharded_hub.log.clear()
    assert strata(sharded_hub, tmp_path / "home", *words).stdout == expected
    kept = {"config.json"} if missing == ["config.json"] else set(wanted) - set(missing)
    assert set(fetched(sharded_hub)) == set(wanted) - kept
    sharded_hub.log.clear()
    strata(sharded_hub, tmp_path / "home", *words)
    assert not sharded_hub.log, "what is whole is asked for once"
    assert offline(HF_HUB_OFFLINE="1").returncode == 0


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_part_of_a_data_set_is_completed(is_listed, hub, tmp_path):
    wanted = {f: c for f, c in FILES.items() if f != "picture.png"}
    snapshot = lay_out(tmp_path / "hub", "datasets--org--set", wanted, ["train.jsonl"], is_listed, wanted)
    result = load(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert result.returncode == 1 and ("train.jsonl, expected all" if is_listed else "train") in result.stderr, result.stderr
    assert rows(load(hub, tmp_path)) == ROWS and (snapshot / "train.jsonl").is_symlink()
    import huggingface_hub

    assert huggingface_hub.snapshot_download("org/set", repo_type="dataset", cache_dir=tmp_path / "hub",
                                             local_files_only=True) == str(snapshot)
    assert sorted(path.rsplit("/", 1)[1] for command, path, *_ in hub.cdn.log if command == "GET") == ["train.jsonl"]


def test_a_removed_blob_is_fetched_again(model_hub, tmp_path):
    words = ["tokenize", "--model", "org/model"]
    strata(model_hub, tmp_path, *words)
    link = tmp_path / "hub" / "models--org--model" / "snapshots" / COMMIT / "tokenizer.json"
    link.resolve().unlink()
    model_hub.log.clear()
    strata(model_hub, tmp_path, *words)
    assert fetched(model_hub) == ["tokenizer.json"] and link.exists()
