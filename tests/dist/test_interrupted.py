# Oracle: the uninterrupted run, to the bit; what a run that was stopped, killed or disturbed must
# say and leave.
import ctypes
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
import safetensors.torch
import torch
import xxhash

import killing
import preloaded
from running import base_flags, command, environment, output_files, run_strata, run_strata_raw


def start(flags, world, **more):
    return subprocess.Popen(command(flags, world), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=environment(), **more)


def wait_for_step(process, output, step):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        rows = output / "metrics.jsonl"
        if rows.exists() and len(rows.read_text().splitlines()) >= step:
            return
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0])


@pytest.mark.parametrize("number,more", [
    (signal.SIGTERM, {}), (signal.SIGUSR1, {}), (signal.SIGTERM, {"save_only_model": True}),
    (signal.SIGUSR1, {"save_strategy": "no"})])
def test_a_request_to_stop_saves(inputs, tmp_path, number, more):
    """What can be resumed, also where other checkpoints could not be, or there are none."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=150,
                       **{"save_strategy": "steps", "save_steps": 100, **more})
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, 2)
    process = start(flags, 2)
    wait_for_step(process, tmp_path / "out", 3)
    process.send_signal(number)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    saved = [int(p.name.split("-")[1]) for p in (tmp_path / "out").glob("checkpoint-*")]
    assert f"checkpoint-{max(saved)} is saved" in text and max(saved) < 150
    assert not (tmp_path / "out" / "model.safetensors").exists()
    found = run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert killing.same_result(found, whole)
    assert not (tmp_path / "out" / ".lock").exists()


def test_a_request_to_stop_is_heard_during_an_evaluation(inputs, tmp_path):
    """An evaluation may outlast what a scheduler waits: the stop comes first, and what was broken off is
    made up for, so that the same checkpoint is the best one and the log the same."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages", test=1200), tmp_path / "out",
                       max_steps=4, eval_strategy="steps", eval_steps=2, save_strategy="steps",
                       save_steps=2, per_device_eval_batch_size=1, load_best_model_at_end=True)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, 2)
    process = start(flags, 2)
    wait_for_step(process, tmp_path / "out", 2)
    process.send_signal(signal.SIGUSR1)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert "checkpoint-2 is saved" in text and "begins with the evaluation that was broken off" in text
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [1, 2] and "eval_loss" not in rows[-1]
    found = run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert killing.same_result(found, whole)
    for key in ("best_metric", "best_global_step"):
        assert found.state[key] == whole.state[key]
    evaluated = [row["step"] for row in found.metrics if "eval_loss" in row]
    assert evaluated == [2, 4]
    progress = json.loads((tmp_path / "out" / "checkpoint-4" / "progress.json").read_text())
    assert "evaluation_due" not in progress


def test_a_checkpoint_without_an_optimizer_says_why_it_cannot_be_resumed(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2,
                       save_strategy="steps", save_steps=1, save_only_model=True)
    run_strata(flags)
    run = run_strata_raw({**flags, "max_steps": 3, "resume_from_checkpoint": True})
    assert run.returncode == 1
    assert "found no exp_avg of any weight, expected the optimizer's state" in run.text
    assert "save_only_model" in run.text


def limit_files(size, pids=None):
    """No file may grow beyond `size`, in this process or in others; None: any size."""
    soft = resource.RLIM_INFINITY if size is None else size
    for pid in pids or [0]:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))


@pytest.mark.parametrize("room_again", [True, False])
def test_a_stop_makes_a_save_again_that_failed_in_the_background(inputs, tmp_path, room_again):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out",
                       max_steps=400, save_strategy="steps", save_steps=1)
    process = start(flags, 2, restore_signals=False, preexec_fn=lambda: limit_files(30000))
    wait_for_step(process, tmp_path / "out", 3)
    if room_again:
        limit_files(None, [process.pid, *killing.ranks_of(process.pid)])
    process.send_signal(signal.SIGTERM)
    text = process.communicate(timeout=60)[0]
    assert "warning: checkpoint-1 was not saved" in text and "file too large" in text
    saved = sorted((tmp_path / "out").glob("checkpoint-*"))
    if not room_again:
        # Nothing could be saved: no code that says so, and no half.
        assert process.returncode not in (0, 75), text
        assert re.search(r"error: .*checkpoint-\d+ was not saved: .*file too large", text), text
        assert saved == [] and "is saved, resume with" not in text
        return
    assert process.returncode == 75, text
    last = max(int(path.name.split("-")[1]) for path in saved)
    assert f"stopped on request after step {last}: checkpoint-{last} is saved" in text
    flags["max_steps"] = last + 3
    flags["lr_scheduler_type"] = "constant"
    state = json.loads((tmp_path / "out" / f"checkpoint-{last}" / "trainer_state.json").read_text())
    assert state["global_step"] == last
    resumed = run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert [row["step"] for row in resumed.history][-1] == last + 3


def test_one_run_in_a_folder_of_a_file_system_without_locks(inputs, tmp_path):
    out = tmp_path / "out"
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), out, max_steps=4000)
    unlocked = {**environment(), **preloaded.variables(NO_LOCKS=1)}
    first = subprocess.Popen(command(flags, 2), env=unlocked, text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
    wait_for_step(first, out, 2)
    rank_0 = json.loads((out / ".lock-owner").read_text())["pid"]
    second = subprocess.run(command({**flags, "max_steps": 1}, 2), env=unlocked, text=True,
                            capture_output=True, timeout=60)
    assert second.returncode != 0
    assert f"found that process {rank_0} on " in second.stderr
    assert f"if that process is gone, remove {out / '.lock-owner'}" in second.stderr
    # What a killed run leaves holds nothing.
    for pid in [*killing.ranks_of(first.pid), first.pid]:
        os.kill(pid, signal.SIGKILL)
    first.communicate()
    assert (out / ".lock-owner").exists()
    third = subprocess.run(command({**flags, "max_steps": 1}, 2), env=unlocked, text=True,
                           capture_output=True, timeout=60)
    assert third.returncode == 0, third.stderr
    assert "has no locks (flock); the file .lock-owner in it keeps other runs out" in third.stdout
    assert not list(out.glob(".lock*"))


def test_one_run_in_a_folder(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1)
    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 12 on somewhere since yesterday")
        lock.flush()
        run = run_strata_raw(flags, 2)
    assert run.returncode != 0
    assert "found that process 12 on somewhere since yesterday writes to" in run.text
    assert output_files(tmp_path / "out") == [".lock"]
    run_strata(flags, 2)  # what a killed owner leaves is no lock


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_rank(inputs, tmp_path, seed):
    draw = random.Random(seed)
    flags = {**killing.flags_of(inputs, tmp_path / "out"), "max_steps": 60}
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, 2)
    # Behind a save, before the last: a checkpoint is there, and there is something left to do.
    steps = lambda: [int(p.name.split("-")[1]) for p in (tmp_path / "out").glob("checkpoint-*[0-9]")
                     if ".tmp" not in p.name]
    code = killing.kill_a_rank(flags, 2, 0, draw.randrange(2), after=lambda: max(steps(), default=0) > seed)
    assert code != 0
    found = killing.restart(flags, 2)
    assert killing.has_resumed(found) and killing.same_result(found, whole)
    assert not [p for p in output_files(tmp_path / "out") if ".tmp" in p]


def test_a_failed_save_stops_nothing(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "whole",
                       max_steps=6, save_strategy="steps", save_steps=2)
    whole = run_strata(flags)
    limit = (whole.folder / "model.safetensors").stat().st_size * 3 // 2
    # Weights fit, weights with moments do not.
    assert (whole.folder / "checkpoint-2" / "rank-00000.safetensors").stat().st_size > limit
    process = start({**flags, "output_dir": tmp_path / "out"}, 1, restore_signals=False,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert "warning: checkpoint-2 was not saved" in text and "file too large" in text
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        whole.folder / "model.safetensors").read_bytes()
    assert not list((tmp_path / "out").glob("checkpoint-*"))


def read_until(process, words):
    text = ""
    for line in process.stdout:
        text += line
        if words in line:
            return text
    raise AssertionError(text)


def start_on_a_disk_that_is_full_while(there, flags):
    """A run for whose rows there is no room as long as the file is there."""
    variables = {**environment(), **preloaded.variables(FULL_WHILE=there)}
    return subprocess.Popen(command(flags, 1), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, env=variables), there


def test_a_full_disk_keeps_rows_back_until_there_is_room(inputs, tmp_path):
    # Long enough to be at work still when there is room again.
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1000)
    process, full = start_on_a_disk_that_is_full_while(tmp_path / "full", flags)
    wait_for_step(process, tmp_path / "out", 30)
    full.touch()
    text = read_until(process, "rows are kept until there is room")
    time.sleep(0.3)
    full.unlink()
    text += process.communicate(timeout=120)[0]
    assert process.returncode == 0, text
    assert text.count("metrics.jsonl: found that a row cannot be written (no space left") == 1, text
    rows = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").open()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 1001))


@pytest.mark.parametrize("is_stopped,room_again", [(True, True), (True, False), (False, False)])
def test_rows_that_were_kept_back_are_tried_once_more_at_the_end(inputs, tmp_path, is_stopped,
                                                                 room_again):
    """What finds no room even then is counted, and is in the state beside it."""
    out, full = tmp_path / "out", tmp_path / "full"
    full.touch()
    # The end comes long before another row does.
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), out,
                       **({"max_steps": 4000, "logging_steps": 200} if is_stopped
                          else {"max_steps": 5}))
    process, _ = start_on_a_disk_that_is_full_while(full, flags)
    text = read_until(process, "rows are kept until there is room")
    if room_again:
        full.unlink()
    if is_stopped:
        process.send_signal(signal.SIGTERM)
    text += process.communicate(timeout=60)[0]
    assert process.returncode == (75 if is_stopped else 0), text
    assert text.count("metrics.jsonl: found that a row cannot be written (no space left") == (
        1 if room_again else 2), text
    folder = max(out.glob("checkpoint-*")) if is_stopped else out
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    steps = [200] if is_stopped else [1, 2, 3, 4, 5]
    assert [row["step"] for row in history if "loss" in row] == steps
    rows = [json.loads(line) for line in (out / "metrics.jsonl").open()]
    missing = re.search(r"(\d+) rows? (is|are) missing in it \(what is saved", text)
    if room_again:
        assert [row["step"] for row in rows if "loss" in row] == steps and not missing
    else:
        assert rows == [] and int(missing[1]) == len(history)


def test_a_damaged_log_stops_no_resume(inputs, tmp_path):
    """A loss of power may leave zeros in it; the checkpoint has all that training needs."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=4,
                       save_strategy="steps", save_steps=2, lr_scheduler_type="constant")
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"})
    run_strata({**flags, "max_steps": 2})
    log = tmp_path / "out" / "metrics.jsonl"
    log.write_bytes(bytes(40) + log.read_bytes()[40:])
    found = run_strata({**flags, "resume_from_checkpoint": True})
    assert "warning: metrics.jsonl: found 1 line that is no row" in found.text
    assert killing.same_result(found, whole)
    assert [row["step"] for row in found.metrics if "loss" in row] == [2, 3, 4]


def test_what_lies_beside_the_result_is_known_from_the_start(inputs, tmp_path):
    """A cache that is cleaned and a log that is removed meanwhile cost no result."""
    model = shutil.copytree(inputs.model("odd"), tmp_path / "model")
    out = tmp_path / "out"
    process = start(base_flags(model, inputs.data("messages"), out, max_steps=400), 1)
    wait_for_step(process, out, 3)
    shutil.rmtree(model)
    (out / "metrics.jsonl").unlink()
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert (out / "tokenizer.json").read_bytes() == (inputs.model("odd") / "tokenizer.json").read_bytes()
    assert len(safetensors.torch.load_file(out / "model.safetensors")) > 0
    assert "<svg" in (out / "report.html").read_text()


def test_weights_alone_push_out_no_checkpoint_that_can_be_resumed(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1,
                       save_strategy="steps", save_steps=1)
    run_strata(flags)
    run = run_strata({**flags, "max_steps": 3, "resume_from_checkpoint": True, "save_only_model": True,
                      "save_total_limit": 1})
    assert {p.name for p in run.folder.glob("checkpoint-*")} == {"checkpoint-1", "checkpoint-3"}


@pytest.mark.parametrize("in_background", [True, False])
def test_ranks_agree_on_the_best_after_saves_that_failed(inputs, tmp_path, in_background):
    """One of them hears of a failure a step before the other: all judge the next evaluation alike, or
    one would save alone and wait for ever."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=40,
                       eval_strategy="steps", eval_steps=1, save_strategy="best",
                       metric_for_best_model="loss", async_save=in_background)
    process = start(flags, 2, restore_signals=False, preexec_fn=lambda: limit_files(30000))
    wait_for_step(process, tmp_path / "out", 9)
    limit_files(None, [process.pid, *killing.ranks_of(process.pid)])
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text
    assert re.search(r"warning: checkpoint-\d+ was not saved: .*file too large", text), text
    # Better than all that were saved, again and again: what failed takes its value back.
    saved = {int(p.name.split("-")[1]) for p in (tmp_path / "out").glob("checkpoint-*")}
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert state["best_global_step"] in saved and max(saved) <= 40
    losses = {row["step"]: row["eval_loss"] for row in state["log_history"] if "eval_loss" in row}
    assert state["best_metric"] == losses[state["best_global_step"]]
    assert len(losses) == 40


def test_in_the_background_or_not_is_the_same(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "a", max_steps=4,
                       save_strategy="steps", save_steps=2)
    run_strata(flags, 2)
    run_strata({**flags, "output_dir": tmp_path / "b", "async_save": False}, 2)
    for name in ("checkpoint-2/rank-00001.safetensors", "checkpoint-4/rank-00000.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.fixture(scope="module")
def poisoned(inputs, tmp_path_factory):
    """A model in which one character's embedding is not a number, and data with it in one row."""
    folder = tmp_path_factory.mktemp("poisoned")
    model = shutil.copytree(inputs.model("odd"), folder / "model")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    token = tokenizer["model"]["vocab"]["~"]
    tensors = safetensors.torch.load_file(model / "model.safetensors")
    tensors["model.embed_tokens.weight"][token] = torch.nan
    safetensors.torch.save_file(tensors, model / "model.safetensors", {"format": "pt"})
    data = folder / "data"
    data.mkdir()
    rows = [f"row {i} {'~' if i == 5 else 'ok'} and some more text" for i in range(12)]
    (data / "train.jsonl").write_text("".join(json.dumps({"text": r}) + "\n" for r in rows))
    return base_flags(model, data, folder / "out", max_steps=6, per_device_train_batch_size=1,
                      train_sampling_strategy="sequential", max_grad_norm=0)


def test_a_batch_that_is_not_finite_ends_the_run(poisoned, tmp_path):
    run = run_strata_raw({**poisoned, "output_dir": tmp_path / "out"}, 2)
    assert run.returncode == 1
    # Two ranks with a row each: step 3 holds rows 4 and 5.
    assert "step 3: found a loss of nan, expected a finite one, in rows 4, 5" in run.text


@pytest.mark.parametrize("accumulation,rows", [(1, "rows 4, 5"), (2, "rows 4, 5")])
def test_rollback_leaves_the_batch_out(poisoned, tmp_path, accumulation, rows):
    flags = {**poisoned, "on_nan": "rollback", "gradient_accumulation_steps": accumulation,
             "max_steps": 6 // accumulation, "save_strategy": "steps", "save_steps": 1}
    run = run_strata({**flags, "output_dir": tmp_path / "out"}, 2)
    bad = 3 if accumulation == 1 else 2
    assert f"warning: step {bad}: found a loss of nan" in run.text and f"in {rows} of" in run.text
    steps = [row["step"] for row in run.metrics if "loss" in row]
    assert steps == [s for s in range(1, 6 // accumulation + 1) if s != bad]
    # Nothing of the batch reached weights or moments.
    for rank in range(2):
        before, after = (run.folder / f"checkpoint-{s}" / f"rank-0000{rank}.safetensors"
                         for s in (bad - 1, bad))
        assert before.read_bytes() == after.read_bytes()
    manifest = json.loads((run.folder / f"checkpoint-{bad}" / "manifest.json").read_text())
    assert manifest["num_updates"] == bad - 1
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    shutil.copytree(run.folder / f"checkpoint-{bad}", resumed / f"checkpoint-{bad}")
    shutil.copy(run.folder / "metrics.jsonl", resumed)
    found = run_strata({**flags, "output_dir": resumed, "resume_from_checkpoint": True}, 2)
    assert killing.same_result(found, run)


def test_a_spike_is_left_out(inputs, tmp_path):
    # Weights that stand still: some batch is above the mean of those before.
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out",
                       max_steps=12, learning_rate=1e-12, max_loss_spike=1.0001)
    run = run_strata_raw(flags, 1)
    assert run.returncode == 1
    assert "expected at most 1.0001 times the running mean" in run.text
    losses = run_strata({**flags, "max_loss_spike": 0}, 1).losses
    spikes = [i + 1 for i in range(5, 12) if losses[i] > 1.0001 * sum(losses[:i]) / i]
    assert f"step {spikes[0]}: found a loss of {losses[spikes[0] - 1]:.3f}" in run.text


@pytest.fixture(scope="module")
def surprising(inputs, tmp_path_factory):
    """Rows of one letter, which a model learns soon, and from row 24 to 29 rows of noise."""
    folder = tmp_path_factory.mktemp("surprising")
    draw = random.Random(1)
    noise = ["".join(draw.choice("bcdfghjklmnpqrstvwxz0123456789") for _ in range(60))
             for _ in range(6)]
    rows = ["a" * 60] * 24 + noise + ["a" * 60] * 10
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": r}) + "\n" for r in rows))
    return base_flags(inputs.model("odd"), folder, folder / "out", per_device_train_batch_size=1,
                      train_sampling_strategy="sequential", lr_scheduler_type="constant",
                      max_loss_spike=1.5, on_nan="rollback", save_strategy="steps")


def test_a_spike_is_rolled_back(surprising, tmp_path):
    """A batch of noise leaves no trace in weights and moments."""
    flags = {**surprising, "max_steps": 14, "save_steps": 1, "per_device_train_batch_size": 2,
             "max_loss_spike": 1.25}
    # Two ranks with two rows each: step 7 holds rows 24 to 27, step 8 rows 28 to 31, half of them
    # letters.
    run = run_strata({**flags, "output_dir": tmp_path / "out", "max_steps": 9}, 2)
    assert re.search(r"warning: step 7: found a loss of \d\S*, expected at most 1.25 times the running "
                     r"mean of \d\S*, in rows 24, 25, 26, 27 of the training data", run.text), run.text
    left_out = sorted({int(n) for n in re.findall(r"warning: step (\d+): found", run.text)})
    steps = [row["step"] for row in run.metrics if "loss" in row]
    assert steps == [s for s in range(1, 10) if s not in left_out]
    for rank in range(2):
        before, after = (run.folder / f"checkpoint-{s}" / f"rank-0000{rank}.safetensors"
                         for s in (6, 7))
        assert before.read_bytes() == after.read_bytes()
    manifest = json.loads((run.folder / "checkpoint-9" / "manifest.json").read_text())
    assert manifest["num_updates"] == 9 - len(left_out)


def test_three_spikes_in_a_row_go_back_to_a_checkpoint(surprising, tmp_path):
    flags = {**surprising, "max_steps": 18, "save_steps": 5}
    run = run_strata({**flags, "output_dir": tmp_path / "out"}, 2)
    for step, rows in ((13, "24, 25"), (14, "26, 27"), (15, "28, 29")):
        assert re.search(rf"warning: step {step}: found a loss of \S+, expected at most 1.5 times .* in "
                         rf"rows {rows} of", run.text), run.text
    assert "weights and optimizer are those of checkpoint-10 again" in run.text
    # The same as weights of step 10 that go on at step 15.
    oracle = tmp_path / "oracle"
    shutil.copytree(run.folder / "checkpoint-10", oracle / "checkpoint-15")
    set_step(oracle / "checkpoint-15", 15)
    shutil.copy(run.folder / "metrics.jsonl", oracle)
    found = run_strata({**flags, "output_dir": oracle, "resume_from_checkpoint": True}, 2)
    assert [row["loss"] for row in run.history if row["step"] > 15] == [
        row["loss"] for row in found.history if row["step"] > 15]
    assert ((run.folder / "model.safetensors").read_bytes()
            == (found.folder / "model.safetensors").read_bytes())


def rewrite(checkpoint, change):
    """Changes a checkpoint's tensors and manifest as a program would that saved them so."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["checksum"]
    change(manifest)
    for record in manifest["tensors"].values():
        for piece in record["pieces"]:
            tensors = safetensors.torch.load_file(checkpoint / piece["file"])
            data = tensors[piece["key"]].numpy().tobytes()
            piece["xxh3"] = xxhash.xxh3_64_hexdigest(data)
    for name, record in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        record.update(bytes=len(data), xxh3=xxhash.xxh3_64_hexdigest(data))
    text = json.dumps(manifest, indent=1)[:-2] + ",\n "
    text += f'"checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n'
    (checkpoint / "manifest.json").write_text(text)


def spoil(checkpoint):
    for file in checkpoint.glob("*.safetensors"):
        tensors = safetensors.torch.load_file(file)
        spoilt = {n: torch.full_like(t, torch.nan) if n.startswith("parameter/") else t
                  for n, t in tensors.items()}
        safetensors.torch.save_file(spoilt, file)
    rewrite(checkpoint, lambda manifest: None)


def set_step(checkpoint, step):
    """The same state as that of another step; the updates stay as many as they were."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["global_step"] = step
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))
    rewrite(checkpoint, lambda manifest: manifest.update(step=step))


@pytest.mark.parametrize("settings", [
    dict(sharding_strategy="FULL_SHARD"),
    dict(sharding_strategy="NO_SHARD", gradient_accumulation_steps=2),
    dict(zero_stage=1, optim="adamw_8bit"),
], ids=["full", "none_accumulating", "zero1_8bit"])
def test_weights_that_are_bad_go_back_to_the_last_good_ones(inputs, tmp_path, settings):
    # What is trained on is known by the batch, so weights of step 2 that go on at step 10 are the
    # same run as weights of step 2 that come back after step 10.
    flags = base_flags(inputs.model("odd"), inputs.data("messages", train=80), tmp_path / "out",
                       max_steps=12, save_strategy="steps", save_steps=2, on_nan="rollback",
                       **settings)
    short = run_strata({**flags, "output_dir": tmp_path / "short", "max_steps": 4,
                        "lr_scheduler_type": "constant"}, 2)
    flags["lr_scheduler_type"] = "constant"
    for folder in ("out", "oracle"):
        (tmp_path / folder).mkdir()
        shutil.copy(short.folder / "metrics.jsonl", tmp_path / folder)
    for step in (2, 4):
        shutil.copytree(short.folder / f"checkpoint-{step}", tmp_path / f"out/checkpoint-{step}")
    spoil(tmp_path / "out" / "checkpoint-4")
    shutil.copytree(short.folder / "checkpoint-2", tmp_path / "oracle" / "checkpoint-10")
    set_step(tmp_path / "oracle" / "checkpoint-10", 10)
    found = run_strata({**flags, "resume_from_checkpoint": True, "save_total_limit": 1}, 2)
    oracle = run_strata({**flags, "output_dir": tmp_path / "oracle",
                         "resume_from_checkpoint": tmp_path / "oracle" / "checkpoint-10"}, 2)
    for step in range(5, 11):
        assert f"warning: step {step}: found a loss of nan" in found.text, found.text
    # First the newest, which is spoilt as well; the three batches after it say so.
    for step, checkpoint in ((7, 4), (10, 2)):
        line = next(l for l in found.text.splitlines() if f"step {step}: found" in l)
        assert f"weights and optimizer are those of checkpoint-{checkpoint} again" in line
    assert [row["loss"] for row in found.history if row["step"] > 10] == [
        row["loss"] for row in oracle.history if row["step"] > 10]
    assert ((found.folder / "model.safetensors").read_bytes()
            == (oracle.folder / "model.safetensors").read_bytes())
    for name in ("rank-00000.safetensors", "rank-00001.safetensors"):
        if (oracle.folder / "checkpoint-12" / name).exists():
            assert ((found.folder / "checkpoint-12" / name).read_bytes()
                    == (oracle.folder / "checkpoint-12" / name).read_bytes())


def test_bad_weights_without_a_way_back_end_the_run(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=12,
                       save_strategy="steps", save_steps=4, on_nan="rollback")
    run_strata({**flags, "max_steps": 4}, 2)
    spoil(tmp_path / "out" / "checkpoint-4")
    # What another run saved in this folder is no way back.
    run_strata({**flags, "output_dir": tmp_path / "other", "max_steps": 2, "save_steps": 2}, 2)
    shutil.copytree(tmp_path / "other" / "checkpoint-2", tmp_path / "out" / "checkpoint-2")
    run = run_strata_raw({**flags, "resume_from_checkpoint": True}, 2)
    assert run.returncode == 1
    assert "are those of checkpoint-4 again" in run.text
    assert "expected a whole checkpoint of before step 4 to return to" in run.text
    run = run_strata_raw({**flags, "resume_from_checkpoint": tmp_path / "out" / "checkpoint-4",
                          "output_dir": tmp_path / "none", "save_strategy": "no"}, 2)
    assert run.returncode == 1 and "expected a whole checkpoint of before step 5" in run.text


def test_a_save_says_what_it_cost(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2,
                       save_strategy="steps", save_steps=1)
    text = run_strata(flags, 2).text
    for step in (1, 2):
        assert re.search(rf"checkpoint-{step} is saved: \d+\.\d MB of rank 0 in \d+\.\d{{3}} s; training "
                         r"stood still for \d+\.\d{3} s \(\d+\.\d{3} s of it the copy to host memory", text), text
    text = run_strata({**flags, "output_dir": tmp_path / "b", "async_save": False}, 2).text
    assert "training stood still for" in text and "host memory" not in text


def without_root_rights():
    """Root without CAP_DAC_OVERRIDE is held by a folder's mode, as everybody else is."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP


def test_a_read_only_folder_is_named_before_the_first_step(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o555)
    process = start(flags, 2, preexec_fn=without_root_rights)
    text = process.communicate(timeout=60)[0]
    (tmp_path / "out").chmod(0o755)
    assert process.returncode not in (0, None)
    assert f"{tmp_path / 'out'}: found permission denied" in text, text
    assert "expected a writable folder" in text and not output_files(tmp_path / "out")
