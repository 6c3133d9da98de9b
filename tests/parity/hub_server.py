"""A local server that speaks the Hub's HTTP API and misbehaves, and programs that ask it."""

import hashlib
import http.server
import json
import os
import subprocess
import threading

import data_probe
from running import PROGRAM

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TAGGED = "89abcdef0123456789abcdef0123456789abcdef"  # what the tag v1.0 of org/model names
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
        self.tagged = {}  # the same at its tag v1.0
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
        if isinstance(fault, tuple):  # a status and its headers
            return self.reply(fault[0], b"", fault[1])
        if path.startswith("/datasets/org/old-name/"):  # renamed: the path on the same host, and nothing of the file
            return self.reply(307, b"", [("Location", self.path.replace("old-name", "set"))])
        if path.startswith("/api/datasets/org/old-name/"):
            return self.reply(307, b"", [("Location", hub.url + self.path.replace("old-name", "set"))])
        for name, revision, commit, files in (("datasets/org/set", "main", COMMIT, hub.files),
                                              ("models/org/model", "main", COMMIT, hub.model),
                                              ("models/org/model", "v1.0", TAGGED, hub.tagged)):
            if path in (f"/api/{name}/revision/{revision}", f"/api/{name}/revision/{commit}") and files:
                siblings = [{"rfilename": name} for name in files]
                return self.reply(200, json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode())
        for prefix, files in ((f"/datasets/org/set/resolve/{COMMIT}/", hub.files), ("/cdn/", hub.files),
                              (f"/org/model/resolve/{COMMIT}/", hub.model), (f"/org/model/resolve/{TAGGED}/", hub.tagged)):
            if path.startswith(prefix) and path[len(prefix):] in files:
                commit = TAGGED if files is hub.tagged else COMMIT
                return self.send_file(path[len(prefix):], files, prefix == "/cdn/", fault, commit)
        self.reply(404)

    def send_file(self, name, files, is_cdn, fault, commit):
        hub, content = self.server, files[name]
        headers = [("X-Repo-Commit", commit)]
        if name == "train.jsonl" and not is_cdn:
            headers += [("X-Linked-ETag", f'"{hashlib.sha256(FILES[name]).hexdigest()}"'),
                        ("X-Linked-Size", str(len(FILES[name]))), ("Location", f"{hub.cdn.url}/cdn/{name}")]
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


def load(hub, home, names="org/set", **environment):
    return data_probe.ask(home, [{"op": "load", "names": names}], env=environment_of(hub, home, **environment))


def environment_of(hub, home, **more):
    own = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and k != "TRANSFORMERS_OFFLINE"}
    return {**own, "HF_HOME": str(home), "HF_ENDPOINT": hub.url, **more}


def rows(result):
    return data_probe.answers(result)[0]


def strata(hub, home, *words, code=0, **environment):
    home.mkdir(exist_ok=True)
    own = {k: v for k, v in environment_of(hub, home, **environment).items() if not k.startswith(("ACCELERATE_", "FSDP_"))}
    result = subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True, timeout=120,
                            env={**own, "OMP_NUM_THREADS": "1"}, input="")
    assert result.returncode == code, result.stderr
    return result


def fetched(hub):
    return sorted(path.rsplit("/", 1)[1] for command, path, *_ in hub.log if command == "GET" and "/resolve/" in path)
