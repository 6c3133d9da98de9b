# Oracle: the disk's own errors (a folder that takes no files, a tmpfs that is full); what fails names them, and
# what was saved is whole: the run goes on from it as one that had room.
import fcntl
import json
import os
import re
import signal
import subprocess
import time

import pytest

import preloaded
from failing import fail, flags_of
from running import PROGRAM, base_flags, environment, output_files, read_until, run_strata, start_strata, strata, wait_for_step, words_of


def test_output_folder_under_a_file(inputs, tmp_path):
    (tmp_path / "file").write_text("")
    flags = flags_of(inputs, inputs.model("plain"), tmp_path)
    text = fail({**flags, "output_dir": tmp_path / "file" / "out"})
    assert str(tmp_path / "file") in text
    assert text.count("error: ") >= 1


def test_output_folder_that_takes_no_files(inputs, tmp_path):
    """/proc/self is a folder in which nobody, not even root, can create a file."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path)
    text = fail({**flags, "output_dir": "/proc/self/task"})
    assert "/proc/self/task" in text


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder],
                             capture_output=True, text=True)
    assert mounted.returncode == 0, f"this test mounts a tmpfs, which needs root: {mounted.stderr}"
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_disk_too_small_for_the_saves(inputs, tmp_path, small_disk):
    """Ten saves of the plain model take 4.4 MB: known before the first step."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, save_strategy="steps", save_steps=1)
    text = fail({**flags, "output_dir": small_disk})
    assert re.search(r"output_dir: found .* MB free .* expected .* MB for 10 checkpoints", text), text
    assert not list(small_disk.glob("checkpoint-*"))


def test_disk_too_small_for_a_gguf_file(inputs, small_disk):
    """Known before the first tensor; nothing is left."""
    (small_disk / "others").write_bytes(bytes(1900 << 10))
    text = strata("convert", inputs.model("plain"), small_disk / "m.gguf", "--to", "gguf", code=1)
    assert re.search(r"m\.gguf\.tmp-\d+: found no space left on device with \d+ bytes free, expected room for \d+ bytes; free space", text), text
    assert [p.name for p in small_disk.iterdir()] == ["others"]


@pytest.mark.parametrize("held", ["by a lock", "on a file server", "by nobody"])
@pytest.mark.parametrize("kind", ["safetensors", "bnb-4bit", "gguf"])
def test_what_a_process_of_the_same_number_writes_stays(inputs, tmp_path, kind, held):
    """Oracle: the folder itself. In two containers, or on two machines, processes have the same numbers."""
    words = map(str, [PROGRAM, "convert", inputs.model("plain"), tmp_path / "out", "--to", kind])
    variables = preloaded.variables(FILE_SYSTEM="0x6969") if held == "on a file server" else {}
    process = subprocess.Popen(["sh", "-c", 'read go; exec "$@"', "sh", *words], stdin=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, env={**environment(), **variables})
    others = tmp_path / f"out.tmp-{process.pid}"
    others.mkdir()
    (others / "model.safetensors").write_text("weights of another")
    descriptor = os.open(others, os.O_RDONLY)
    if held == "by a lock":
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    text = "".join(process.communicate("go\n", timeout=60))
    os.close(descriptor)
    if held == "by nobody":
        assert process.returncode == 0 and f"removed {others}, which a killed process left" in text, text
        return
    assert process.returncode == 1 and f"{others}: found it there, and a process of the same number" in text, text
    assert (others / "model.safetensors").read_text() == "weights of another"
    assert [path.name for path in tmp_path.iterdir()] == [others.name]


def test_what_lies_on_a_file_server_stays(inputs, tmp_path):
    """Its process is not seen here: another machine may have it."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    others = tmp_path / f"out.tmp-{gone.pid}"
    others.mkdir()
    done = subprocess.run([PROGRAM, *map(str, ["convert", inputs.model("plain"), tmp_path / "out", "--to", "safetensors"])],
                          capture_output=True, text=True, timeout=60,
                          env={**environment(), **preloaded.variables(FILE_SYSTEM="0x6969")})
    assert done.returncode == 0 and others.exists(), done.stderr
    assert f"left {others} where it is: another machine may be writing it" in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["safetensors", "bnb-4bit", "gguf"])
def test_what_a_killed_conversion_left_goes(inputs, tmp_path, kind):
    """Each was killed before its result got its name; what the next one writes is all that is there."""
    words = ["convert", inputs.model("plain"), tmp_path / "out", "--to", kind]
    for _ in range(2):
        killed = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=60,
                                env={**environment(), **preloaded.variables(DIES_RENAMING_TO=str(tmp_path / "out"))})
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        left = [p.name for p in tmp_path.iterdir()]
        assert len(left) == 1 and re.fullmatch(r"out\.tmp-\d+", left[0]), left
    text = strata(*words)
    assert f"removed {tmp_path / left[0]}, which a killed process left" in text, text
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_disk_too_small_for_the_prepared_data(inputs, tmp_path, small_disk):
    """They stand in a file without a name, whose folder is what can be acted upon."""
    rows = json.dumps({"input_ids": [1, 2, 3, 4] * 8}) + "\n"
    (tmp_path / "train.jsonl").write_text(rows * 9000)
    flags = base_flags(inputs.model("plain"), tmp_path / "train.jsonl", tmp_path / "out", max_steps=1)
    process = start_strata(flags, 1, {"HF_HOME": small_disk, "TMPDIR": small_disk}, words=words_of)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 1 and re.search(
        rf"^error: {small_disk}: found no space left on device after \d+ bytes", text, re.M), text
    # The folder for temporary files may have the room that they need.
    process = start_strata(flags, 1, {"HF_HOME": small_disk, "TMPDIR": tmp_path}, words=words_of)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and re.search(
        rf"tokenized rows are not kept for the next run: {small_disk}/.*no space left on device", text), text
    assert not list(small_disk.rglob("*.tokens*"))


def test_a_disk_that_fills_up_while_rows_wait_to_be_packed(inputs, tmp_path, small_disk):
    """Long rows wait in a file without a name, which moves to the folder for temporary files, with what is in it. The
    steps are those of the same rows with room."""
    rows = [json.dumps({"input_ids": [1 + (i + j) % 90 for j in range(3000 + i % 7)]}) for i in range(1000)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows))
    flags = base_flags(inputs.model("plain"), tmp_path / "train.jsonl", tmp_path / "out", max_steps=2, packing=True,
                       max_length=4096, per_device_train_batch_size=1)
    losses = []
    for home in (small_disk, tmp_path / "home"):
        process = start_strata(flags, 1, {"HF_HOME": home, "TMPDIR": tmp_path}, words=words_of)
        text = process.communicate(timeout=120)[0]
        assert process.returncode == 0, text
        assert ("not kept for the next run" in text) == (home == small_disk), text
        losses.append([json.loads(line)["loss"] for line in (tmp_path / "out" / "metrics.jsonl").open() if '"loss"' in line])
    assert losses[0] == losses[1] and len(losses[0]) == 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_file_that_is_cut_off_while_it_is_mapped_is_named(inputs, tmp_path, ranks):
    """As by a program that writes it anew, or where the disk fails: reading memory has no other error."""
    flags = base_flags(inputs.model("plain"), inputs.data("messages", train=3000), tmp_path / "out", max_steps=9999)
    process = start_strata(flags, ranks, {"HF_HOME": tmp_path / "home"}, words=words_of)
    wait_for_step(process, tmp_path / "out", 2)
    kept = next((tmp_path / "home").rglob("*.tokens"))
    os.truncate(kept, 4096)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == (-signal.SIGBUS if ranks == 1 else 128 + signal.SIGBUS), text
    assert f"error: {kept}: found that it can no longer be read" in text, text


def fill_until_a_save_fails(process, folder):
    """Another program takes all that is left, again and again: a save that still succeeds makes room by
    removing an older one. After a failure less is left than a save takes."""
    while True:
        with pytest.raises(OSError), open(folder / "ballast", "ab", buffering=0) as ballast:
            while True:
                ballast.write(b"x" * 65536)
        text = read_until(process, r"checkpoint-\d+ (is|was not) saved")
        if "was not saved" in text:
            return text.splitlines()[-1]


@pytest.mark.parametrize("room_again", [True, False])
def test_disk_full_at_save(inputs, tmp_path, small_disk, room_again):
    """Another program fills the disk while the run goes on: saves fail and training does not; with room
    again they succeed, and without it a request to stop ends in the error."""
    subprocess.run(["mount", "-o", "remount,size=80m", small_disk], check=True)
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, save_strategy="steps", save_steps=5,
                     save_total_limit=2, max_steps=1000000, lr_scheduler_type="constant")
    process = start_strata({**flags, "output_dir": small_disk}, 2)
    try:
        read_until(process, "checkpoint-5 is saved")
        failed = fill_until_a_save_fails(process, small_disk)
        assert re.search(r"warning: checkpoint-\d+ was not saved: .*no space left on device", failed), failed
        assert "earlier checkpoints are as they were, training goes on" in failed
        before = (small_disk / "latest").read_text().strip()
        assert (small_disk / before / "manifest.json").exists()
        if room_again:
            (small_disk / "ballast").unlink()
            read_until(process, r"checkpoint-\d+ is saved")
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode == 75) == room_again and process.returncode != 0, text
    if not room_again:
        assert re.search(r"error: .*checkpoint-\d+ was not saved: .*no space left on device", text), text
        (small_disk / "ballast").unlink()
    saved = sorted((p.name for p in small_disk.glob("checkpoint-*")), key=lambda n: int(n[11:]))
    assert not [p for p in output_files(small_disk) if "tmp" in p]
    assert (small_disk / "latest").read_text().strip() == saved[-1] and len(saved) <= 2
    assert room_again == (saved[-1] != before)
    rows = [json.loads(line)["step"] for line in (small_disk / "metrics.jsonl").open()]
    assert rows == list(range(1, len(rows) + 1)) and (not room_again or rows[-1] == int(saved[-1][11:]))
    # What was saved is whole: with room again, the run goes on from it.
    last = int(saved[-1][11:]) + 5
    resumed = run_strata({**flags, "output_dir": small_disk, "max_steps": last,
                          "resume_from_checkpoint": True}, 2)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole", "max_steps": last}, 2)
    assert resumed.history[-1] == whole.history[-1]


# Room before the first step that another program takes afterwards.
ROOM = 10**9


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("room_again", [True, False])
def test_disk_full_at_export(inputs, tmp_path, small_disk, ranks, room_again):
    """Nothing but the run's memory holds what was trained: it waits for room, and with it the result is that of
    a run that had it from the start; a request to stop gives it up, and nothing is there in part."""
    (small_disk / "ballast").write_bytes(b"x" * (2 * 1024 * 1024 - 100 * 1024))
    full = tmp_path / "full"  # for rows of the log
    full.touch()
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, max_steps=1)
    process = start_strata({**flags, "output_dir": small_disk}, ranks,
                           preloaded.variables(FREE_BYTES=ROOM, FULL_WHILE=full))
    try:
        text = read_until(process, r"warning: .*model\.safetensors.*no space left on device.*only in memory")
        assert not [p for p in output_files(small_disk) if "safetensors" in p or "tmp" in p]
        if room_again:
            process.send_signal(signal.SIGINT)  # one alone means: when the result is written
            time.sleep(0.5)
            full.unlink()
            (small_disk / "ballast").unlink()
        else:
            process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode == 0) == room_again, text
    assert not [p for p in output_files(small_disk) if "tmp" in p]
    if room_again:
        whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, ranks)
        assert ((small_disk / "model.safetensors").read_bytes()
                == (whole.folder / "model.safetensors").read_bytes())
        # So do the rows that had no room either.
        assert "metrics.jsonl has the 2 rows now that were missing" in text
        rows = [json.loads(line) for line in (small_disk / "metrics.jsonl").open()]
        assert [row["step"] for row in rows] == [1, 1] and "loss" in rows[0] and "train_runtime" in rows[1]
    else:
        assert re.search(r"error: .*model\.safetensors.*no space left on device", text, re.IGNORECASE), text
        assert not [p for p in output_files(small_disk) if "safetensors" in p]


def test_a_folder_that_is_away_at_export(inputs, tmp_path):
    """As of a file server that is not there for a while: once it is back, the result is written."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, max_steps=2000)
    folder = tmp_path / "out"
    process = start_strata({**flags, "output_dir": folder}, 1)
    try:
        wait_for_step(process, folder, 2)
        away = tmp_path / "away"
        folder.rename(away)
        folder.write_text("a file in its place")
        read_until(process, r"warning: .*only in memory")
        folder.unlink()
        away.rename(folder)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, text
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("weights_alone", [False, True])
def test_disk_full_at_export_behind_a_checkpoint(inputs, tmp_path, small_disk, weights_alone):
    """What is lost is nothing, and the message says how to go on."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, max_steps=2, save_strategy="steps", save_steps=2,
                     save_only_model=weights_alone)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, 2)
    saved = sum(p.stat().st_size for p in (whole.folder / "checkpoint-2").iterdir())
    result = (whole.folder / "model.safetensors").stat().st_size
    (small_disk / "ballast").write_bytes(b"x" * (2 * 1024 * 1024 - saved - result))
    flags["output_dir"] = small_disk
    text = fail(flags, FREE_BYTES=ROOM)
    way = ("; the weights are complete in {0}: strata convert {0} NEW_FOLDER --to safetensors makes" if weights_alone else
           "; what was trained is complete in {0}: .*--resume_from_checkpoint true writes")
    assert re.search(r"model\.safetensors.*no space left on device.*" + way.format(f"{small_disk}/checkpoint-2"),
                     text, re.IGNORECASE), text
    (small_disk / "ballast").unlink()
    folder = small_disk
    if weights_alone:
        folder = tmp_path / "new"
        strata("convert", small_disk / "checkpoint-2", folder, "--to", "safetensors")
    else:
        run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert (folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_disk_full_while_logging(inputs, tmp_path, small_disk):
    """Rows wait for room, and no step does: none is lost, and none is there in part."""
    (small_disk / "ballast").write_bytes(b"x" * (2 * 1024 * 1024 - 16 * 1024))
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, max_steps=1000000)
    process = start_strata({**flags, "output_dir": small_disk}, 3, preloaded.variables(FREE_BYTES=ROOM))
    try:
        read_until(process, r"metrics\.jsonl.*no space left on device.*rows are kept until there is room")
        lines = (small_disk / "metrics.jsonl").read_text().splitlines(keepends=True)
        assert lines and all(json.loads(line) and line.endswith("\n") for line in lines)
        time.sleep(0.3)
        (small_disk / "ballast").unlink()
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 75 and "missing" not in text, text
    last = int(re.search(r"stopped on request after step (\d+)", text)[1])
    rows = [json.loads(line)["step"] for line in (small_disk / "metrics.jsonl").open()]
    assert rows == list(range(1, last + 1)) and last > len(lines)


def test_a_file_system_without_shared_maps(inputs, tmp_path):
    """Model, prepared rows, result and checkpoint lie on one, as on cloud storage that FUSE mounts."""
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=4,
                       save_strategy="steps", save_steps=2)
    variables = preloaded.variables(NO_SHARED_MAPS=1)
    results = []
    for more in ({}, variables, {**variables, "RESUME": "yes"}):
        again = {"resume_from_checkpoint": flags["output_dir"] / "checkpoint-2"} if more.pop("RESUME", None) else {}
        process = start_strata({**flags, **again}, 2, {**more, "HF_HOME": tmp_path / "home"})
        text = process.communicate(timeout=60)[0]
        assert process.returncode == 0, text
        results.append((tmp_path / "out" / "model.safetensors").read_bytes())
    assert results == results[:1] * 3


def test_a_log_that_fills_its_disk_is_named_once(small_disk):
    """The rank goes on, and whoever watches sees every line. Oracle: what the rank wrote."""
    lines = 30000
    result = subprocess.run(
        [str(PROGRAM), "launch", "--num_processes", "1", "--cpu", "--log_dir", str(small_disk / "logs"), "--no_python",
         "/bin/sh", "-c", f"yes {'x' * 99} | head -n {lines}"],
        capture_output=True, text=True, timeout=60, env=environment())
    assert result.returncode == 0, result.stderr
    shown = result.stdout.splitlines()
    warning = (rf"warning: {small_disk}/logs/rank_0.log: found no space left on device when writing to it, "
               "expected room for every line; from here on some are missing in it")
    assert shown.count(warning) == 1
    assert [line for line in shown if line != warning] == ["x" * 99] * lines
    assert (small_disk / "logs" / "rank_0.log").stat().st_size < 100 * lines
