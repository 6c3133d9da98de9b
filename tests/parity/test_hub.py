"""Oracle: huggingface_hub, which must find what was downloaded in its own cache; a local server that
speaks the Hub's HTTP API and misbehaves."""

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import threading
import time

import pytest
from running import PROGRAM, flag_words
from terminal import Terminal

import data_probe
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"text": f"row {i} " + "x" * 1000} for i in range(300)]
FILES = {
    "train.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),  # a large file: SHA-256, another host
    "data sets/\u00e9.jsonl": b'{"text": "odd name"}\n',
    "test.jsonl": b'{"text": "t"}\n',
    "README.md": b"# A data set",
    "picture.png": b"not wanted",
}


class Hub(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.log, self.faults, self.token, self.files = [], [], None, dict(FILES)
        self.model = {}  # files of the repository org/model
        self.cdn = None
        self.stalled, self.num_stalled = threading.Event(), 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        from urllib.parse import unquote

        hub, path = self.server, unquote(self.path)
        hub.log.append((self.command, path, self.headers.get("Range"), self.headers.get("Authorization")))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.reply(401)
        fault = hub.faults.pop(0) if hub.faults and self.command == "GET" and "/api/" not in path else None
        if fault == "busy":
            return self.reply(503)
        for name, files in (("datasets/org/set", hub.files), ("models/org/model", hub.model)):
            if path in (f"/api/{name}/revision/main", f"/api/{name}/revision/{COMMIT}") and files:
                siblings = [{"rfilename": name} for name in files]
                return self.reply(200, json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode())
        for prefix, files in ((f"/datasets/org/set/resolve/{COMMIT}/", hub.files), ("/cdn/", hub.files),
                              (f"/org/model/resolve/{COMMIT}/", hub.model)):
            if path.startswith(prefix) and path[len(prefix):] in files:
                return self.send_file(path[len(prefix):], files, prefix == "/cdn/", fault)
        self.reply(404)

    def send_file(self, name, files, is_cdn, fault):
        hub, content = self.server, files[name]
        headers = [("X-Repo-Commit", COMMIT)]
        if name == "train.jsonl" and not is_cdn:
            headers += [("X-Linked-ETag", f'"{hashlib.sha256(FILES[name]).hexdigest()}"'), ("X-Linked-Size", str(len(FILES[name]))),
                        ("Location", f"{hub.cdn.url}/cdn/{name}")]
            return self.reply(302, b"", headers)
        git = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        headers.append(("ETag", f'"{git}"'))
        first = 0
        if self.headers.get("Range"):
            first = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            headers.append(("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}"))
        body = content[first:]
        if fault == "wrong":
            body = b"?" * len(body)
        if fault in ("cut", "stall"):
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            if fault == "stall":
                hub.num_stalled += 1
                hub.stalled.set()
                self.connection.recv(1)  # until the other side is gone
            self.close_connection = True
            return self.connection.shutdown(2)
        self.reply(206 if first else 200, body, headers)


@pytest.fixture
def hub():
    hub, cdn = Hub(), Hub()
    hub.cdn = cdn
    yield hub
    for server in (hub, cdn):
        server.shutdown()
        server.server_close()


def load(hub, home, names="org/set", **environment):
    return data_probe.ask(home, [{"op": "load", "names": names}], env=environment_of(hub, home, **environment))


def environment_of(hub, home, **more):
    own = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and k != "TRANSFORMERS_OFFLINE"}
    return {**own, "HF_HOME": str(home), "HF_ENDPOINT": hub.url, **more}


def rows(result):
    return data_probe.answers(result)[0]


def test_downloads_into_the_cache_that_huggingface_hub_reads(hub, tmp_path):
    assert rows(load(hub, tmp_path)) == ROWS
    import huggingface_hub

    folder = pathlib.Path(huggingface_hub.snapshot_download(
        "org/set", repo_type="dataset", cache_dir=tmp_path / "hub", local_files_only=True))
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == {name: content for name, content in FILES.items() if name != "picture.png"}
    assert (folder / "train.jsonl").is_symlink()
    assert not list((tmp_path / "hub").rglob("*.incomplete"))
    before = len(hub.log)
    assert rows(load(hub, tmp_path)) == ROWS
    assert len(hub.log) == before, "what is in the cache needs no network"
    assert rows(load(hub, tmp_path, HF_HUB_OFFLINE="1")) == ROWS
    mistyped = load(hub, tmp_path, names="org/sett", HF_HUB_OFFLINE="1")
    assert mistyped.returncode == 1 and mistyped.stderr.strip().endswith("; did you mean org/set?"), mistyped.stderr


def test_token_goes_to_the_hub_only(hub, tmp_path):
    hub.token = "hf_secret"
    result = load(hub, tmp_path)
    assert result.returncode == 1 and "found status 401" in result.stderr and "HF_TOKEN" in result.stderr
    assert rows(load(hub, tmp_path, HF_TOKEN="hf_secret")) == ROWS
    assert hub.cdn.log and all(authorization is None for *_, authorization in hub.cdn.log)


def test_continues_a_broken_download(hub, tmp_path):
    hub.cdn.faults = ["cut", "busy", "cut"]
    assert rows(load(hub, tmp_path)) == ROWS
    ranges = [r for command, path, r, _ in hub.cdn.log if command == "GET"]
    size = len(FILES["train.jsonl"])
    assert ranges[0] is None and ranges[1] == f"bytes={size // 2}-" and ranges[3] == f"bytes={size // 2 + (size - size // 2) // 2}-"


def test_continues_after_a_killed_process(hub, tmp_path):
    """What a killed download left is continued by the next process; nothing of it is taken for the whole before."""
    size = len(FILES["train.jsonl"])
    for fault in ("stall", "stall"):
        hub.cdn.faults = [fault]
        hub.cdn.stalled.clear()
        path = tmp_path / "requests.json"
        path.write_text(json.dumps([{"op": "load", "names": "org/set"}]))
        process = subprocess.Popen([data_probe.BUILD / "data_probe", path], env=environment_of(hub, tmp_path), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        assert hub.cdn.stalled.wait(60)
        blobs = tmp_path / "hub" / "datasets--org--set" / "blobs"
        expected = size // 2 if hub.cdn.num_stalled == 1 else size // 2 + (size - size // 2) // 2
        for _ in range(600):
            if any(p.stat().st_size == expected for p in blobs.glob("*.incomplete")):
                break
            time.sleep(0.1)
        process.kill()
        assert process.wait(60) == -9
        assert [p.stat().st_size for p in blobs.glob("*.incomplete")] == [expected]
        offline = load(hub, tmp_path, HF_HUB_OFFLINE="1")
        assert offline.returncode == 1 and "in the Hub cache" in offline.stderr
    assert rows(load(hub, tmp_path)) == ROWS
    ranges = [r for command, path, r, _ in hub.cdn.log if command == "GET"]
    assert ranges == [None, f"bytes={size // 2}-", f"bytes={size // 2 + (size - size // 2) // 2}-"]
    assert not list((tmp_path / "hub").rglob("*.incomplete"))


def test_throws_away_wrong_bytes(hub, tmp_path):
    hub.cdn.faults = ["wrong"]
    assert rows(load(hub, tmp_path)) == ROWS
    hub.cdn.faults = ["wrong"] * 9
    result = load(hub, tmp_path / "other")
    assert result.returncode == 1 and "another checksum" in result.stderr
    assert not list((tmp_path / "other").rglob("train.jsonl"))


def test_refuses_what_is_not_there(hub, tmp_path):
    result = load(hub, tmp_path, names="org/nothing")
    assert result.returncode == 1 and "found status 404" in result.stderr
    result = load(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert result.returncode == 1 and "datasets--org--set" in result.stderr
    hub.files = {"../../evil.jsonl": b"{}"}
    result = load(hub, tmp_path)
    assert result.returncode == 1 and "inside the repository" in result.stderr
    assert not list(tmp_path.rglob("evil.jsonl"))


def test_processes_share_one_download(hub, tmp_path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(load(hub, tmp_path / str(i), HF_HUB_CACHE=str(tmp_path / "hub"))))
               for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(rows(result) == ROWS for result in results) and len(results) == 4
    assert sum(command == "GET" for command, *_ in hub.cdn.log) == 1


@pytest.fixture
def model_hub(hub, inputs):
    hub.model = {p.name: p.read_bytes() for p in inputs.model("plain").iterdir() if p.is_file()}
    hub.model["pytorch_model.bin"] = b"not wanted"
    return hub


def strata(hub, home, *words, **environment):
    home.mkdir(exist_ok=True)
    own = {k: v for k, v in environment_of(hub, home, **environment).items() if not k.startswith(("ACCELERATE_", "FSDP_"))}
    result = subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True, timeout=120,
                            env={**own, "OMP_NUM_THREADS": "1"}, input="")
    assert result.returncode == 0, result.stderr
    return result


def fetched(hub):
    return sorted(path.rsplit("/", 1)[1] for command, path, *_ in hub.log if command == "GET" and "/resolve/" in path)


def test_a_plan_needs_the_configuration_alone(model_hub, tmp_path):
    """Nothing of it passes for the model later."""
    for _ in range(2):
        plan = strata(model_hub, tmp_path, "plan", "--model_name_or_path", "org/model")
        assert "36000 parameters" in plan.stdout and fetched(model_hub) == ["config.json"]
    local = strata(model_hub, tmp_path, "tokenize", "--model", "org/model")
    assert "tokenizer.json" in fetched(model_hub) and "downloading tokenizer.json: " in local.stderr
    assert not any(name.endswith((".safetensors", ".bin")) for name in fetched(model_hub)), "needs no weights"
    chat = strata(model_hub, tmp_path, "chat", "--prompt", "hi", "--max_new_tokens", 1, "--model_name_or_path", "org/model")
    assert "downloading model.safetensors: " in chat.stderr and "pytorch_model.bin" not in fetched(model_hub)
    assert fetched(model_hub).count("tokenizer.json") == 1


@pytest.mark.parametrize("how", ["cache_dir", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"])
def test_chat_with_a_model_by_its_name(how, model_hub, inputs, tmp_path):
    words = ["chat", "--prompt", "hello", "--max_new_tokens", 5, "--model_name_or_path"]
    expected = strata(model_hub, tmp_path / "home", *words, inputs.model("plain")).stdout
    cache = {"HF_HOME": tmp_path / "home" / "hub"}.get(how, tmp_path / "cache")
    flags = ["--cache_dir", cache] if how == "cache_dir" else []
    environment = {how: str(cache)} if how.startswith("H") and how != "HF_HOME" else {}
    result = strata(model_hub, tmp_path / "home", *words, "org/model", *flags, **environment)
    assert result.stdout == expected and "downloading model.safetensors: " in result.stderr
    snapshot = cache / "models--org--model" / "snapshots" / COMMIT
    assert {p.name for p in snapshot.iterdir()} == set(model_hub.model) - {"pytorch_model.bin"}
    before = len(model_hub.log)
    again = strata(model_hub, tmp_path / "home", *words, "org/model", *flags, **environment)
    assert again.stdout == expected and "downloading" not in again.stderr and len(model_hub.log) == before


def test_training_on_names_of_the_hub(model_hub, tmp_path):
    flags = {"model_name_or_path": "org/model", "dataset_name": "org/set", "output_dir": tmp_path / "out", "bf16": False,
             "max_length": 64, "max_steps": 2, "per_device_train_batch_size": 2, "save_strategy": "no", "disable_tqdm": True}
    strata(model_hub, tmp_path / "home", "launch", "--num_processes", 2, "--cpu", "sft", *flag_words(flags))
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert sorted(set(fetched(model_hub))) == fetched(model_hub), "one rank downloads, the other waits"


def test_progress_on_a_terminal(model_hub, tmp_path):
    environment = environment_of(model_hub, tmp_path, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="0")
    terminal = Terminal([str(PROGRAM), "tokenize", "--model", "org/model"], columns=50, **environment)
    terminal.read_until("downloading tokenizer_config.json: ")
    terminal.send("\x04")
    assert terminal.end() == 0, terminal.text
    size = len(model_hub.model["tokenizer.json"])
    assert f"downloading tokenizer.json: {size / 1e6:.1f} of {size / 1e6:.1f} MB (100 %)" in terminal.text.replace("\r\n", "\n")


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
