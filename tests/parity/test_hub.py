"""Oracle: huggingface_hub, which must find what was downloaded in its own cache; a local server that
speaks the Hub's HTTP API and misbehaves."""

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("STRATA_BUILD", "build/release")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"text": f"row {i} " + "x" * 1000} for i in range(300)]
FILES = {
    "train.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),  # a large file: SHA-256, another host
    "data sets/\u00e9.jsonl": b'{"text": "odd name"}\n',
    "test.jsonl": b'{"text": "t"}\n',
    "README.md": b"not wanted",
}


class Hub(http.server.ThreadingHTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.log, self.faults, self.token, self.files = [], [], None, dict(FILES)
        self.cdn = None
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
        if path == "/api/datasets/org/set/revision/main":
            siblings = [{"rfilename": name} for name in hub.files]
            return self.reply(200, json.dumps({"id": "org/set", "sha": COMMIT, "siblings": siblings}).encode())
        for prefix in (f"/datasets/org/set/resolve/{COMMIT}/", "/cdn/"):
            if path.startswith(prefix) and path[len(prefix):] in hub.files:
                return self.send_file(path[len(prefix):], prefix == "/cdn/", fault)
        self.reply(404)

    def send_file(self, name, is_cdn, fault):
        hub, content = self.server, self.server.files[name]
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
        if fault == "cut":
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
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
    request = home / "request.json"
    home.mkdir(exist_ok=True)
    request.write_text(json.dumps([{"op": "load", "names": names}]))
    own = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and k != "TRANSFORMERS_OFFLINE"}
    return subprocess.run([BUILD / "data_probe", request], capture_output=True, text=True, timeout=60,
                          env={**own, "HF_HOME": str(home), "HF_ENDPOINT": hub.url, **environment})


def rows(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)[0]


def test_downloads_into_the_cache_that_huggingface_hub_reads(hub, tmp_path):
    assert rows(load(hub, tmp_path)) == ROWS
    import huggingface_hub

    folder = pathlib.Path(huggingface_hub.snapshot_download(
        "org/set", repo_type="dataset", cache_dir=tmp_path / "hub", local_files_only=True))
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == {name: content for name, content in FILES.items() if name != "README.md"}
    assert (folder / "train.jsonl").is_symlink()
    assert not list((tmp_path / "hub").rglob("*.incomplete"))
    before = len(hub.log)
    assert rows(load(hub, tmp_path)) == ROWS
    assert len(hub.log) == before, "what is in the cache needs no network"
    assert rows(load(hub, tmp_path, HF_HUB_OFFLINE="1")) == ROWS


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
