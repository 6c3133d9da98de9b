# Oracle: huggingface_hub, which must find what was downloaded in its own cache; a local server that
# speaks the Hub's HTTP API and misbehaves.
import email.utils
import json
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time

import data_probe
import pytest
from hub_server import COMMIT, FILES, ROWS, environment_of, load, rows


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


def test_a_renamed_repository(hub, tmp_path):
    """Under the name that was asked for, as huggingface_hub keeps it."""
    import huggingface_hub

    assert rows(load(hub, tmp_path, names="org/old-name")) == ROWS
    folder = pathlib.Path(huggingface_hub.snapshot_download(
        "org/old-name", repo_type="dataset", cache_dir=tmp_path / "hub", local_files_only=True))
    assert (folder / "train.jsonl").read_bytes() == FILES["train.jsonl"]
    assert (folder / "data sets" / "\u00e9.jsonl").read_bytes() == FILES["data sets/\u00e9.jsonl"]
    names = [name for name in FILES if name != "picture.png"]
    code = f'from huggingface_hub import hf_hub_download as get; [get("org/old-name", n, repo_type="dataset", revision="{COMMIT}") for n in {names}]'
    subprocess.run([sys.executable, "-c", code], check=True,
                   env={**environment_of(hub, tmp_path / "theirs"), "HF_HUB_DISABLE_XET": "1"})
    blobs = [sorted(path.name for path in home.rglob("blobs/*"))
             for home in (tmp_path / "hub", tmp_path / "theirs" / "hub")]
    assert blobs[0] == blobs[1] and len(blobs[0]) == len(FILES) - 1


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


def asked(server):
    return [r for command, path, r, _ in server.log if command == "GET"]


@pytest.mark.parametrize("status, advice", [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (404, "check the name")])
def test_a_refusal_is_not_tried_again(status, advice, hub, tmp_path):
    hub.cdn.faults = [(status, [])] * 9
    result = load(hub, tmp_path)
    assert result.returncode == 1 and f"found status {status}" in result.stderr and advice in result.stderr, result.stderr
    assert "tries" not in result.stderr and len(asked(hub.cdn)) == 1


def test_a_full_disk_is_not_tried_again(hub, tmp_path):
    """A limit on the size of files stands in for it. What came is continued."""
    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    result = data_probe.ask(tmp_path, [{"op": "load", "names": "org/set"}], env=environment_of(hub, tmp_path), preexec_fn=limited)
    assert result.returncode == 1 and "file too large" in result.stderr and "tries" not in result.stderr, result.stderr
    assert asked(hub.cdn) == [None]
    assert rows(load(hub, tmp_path)) == ROWS
    assert asked(hub.cdn)[1].startswith("bytes=")


def test_a_host_that_is_not_there_is_not_tried_again(hub, tmp_path):
    result = load(hub, tmp_path, HF_ENDPOINT="http://nowhere.invalid")
    assert result.returncode == 1 and "nowhere.invalid" in result.stderr and "tries" not in result.stderr, result.stderr


def test_a_busy_server_is_asked_when_it_says(hub, tmp_path):
    in_seconds = [("Retry-After", "2")]
    as_date = [("Retry-After", email.utils.formatdate(time.time() + 5, usegmt=True))]
    hub.cdn.faults = [(429, in_seconds), (503, as_date)]
    begin = time.time()
    assert rows(load(hub, tmp_path)) == ROWS
    assert 3.9 < time.time() - begin < 30 and len(asked(hub.cdn)) == 3
    hub.cdn.faults = [(429, [("Retry-After", "3600")])] * 9
    result = load(hub, tmp_path / "other")
    assert result.returncode == 1 and "in 1 try (the last: the server is busy: status 429, retry in 3600 s)" in result.stderr, result.stderr
    assert len(asked(hub.cdn)) == 4


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
    threads = [threading.Thread(target=lambda i=i: results.append(load(hub, tmp_path / str(i), HF_HUB_CACHE=str(tmp_path / "hub"))))
               for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(rows(result) == ROWS for result in results) and len(results) == 4
    assert sum(command == "GET" for command, *_ in hub.cdn.log) == 1
