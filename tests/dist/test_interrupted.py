# Oracle: the uninterrupted run, to the bit; what a run that was stopped, killed or disturbed must
# say and leave.
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import time

import pytest
import safetensors.torch

import killing
import preloaded
from running import (PROGRAM, base_flags, environment, output_files, read_until, run_strata, run_strata_raw,
                     start_strata, wait_for_step, words_of)


@pytest.mark.parametrize("number,more", [
    (signal.SIGTERM, {}), (signal.SIGUSR1, {}), (signal.SIGTERM, {"save_only_model": True}),
    (signal.SIGUSR1, {"save_strategy": "no"}), (signal.SIGINT, {}), (signal.SIGHUP, {}),
    (signal.SIGINT, {"save_strategy": "no", "use_peft": True, "lora_r": 2})])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_to_stop_saves(inputs, tmp_path, number, more, ranks):
    """What can be resumed, also where other checkpoints could not be, or there are none; with and
    without a launcher."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=150,
                       **{"save_strategy": "steps", "save_steps": 100, **more})
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, ranks)
    process = start_strata(flags, ranks, words=words_of)
    wait_for_step(process, tmp_path / "out", 3)
    process.send_signal(number)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    saved = [int(p.name.split("-")[1]) for p in (tmp_path / "out").glob("checkpoint-*")]
    assert f"checkpoint-{max(saved)} is saved" in text and max(saved) < 150
    assert ("Ctrl-C again ends at once" in text) == (number == signal.SIGINT)
    assert not list((tmp_path / "out").glob("*model.safetensors"))
    found = run_strata({**flags, "resume_from_checkpoint": True}, ranks)
    assert killing.same_result(found, whole)
    assert not (tmp_path / "out" / ".lock").exists()


def pids_of_ranks(process, ranks):
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [process.pid] if ranks == 1 else [int(pid) for pid in children.read_text().split()]


def wait_for_handlers(process, ranks, number=signal.SIGINT):
    """Until every rank has its own answer to the signal: to SIGINT while it trains."""
    def catches(pid):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"SigCgt:\s*(\w+)", status).group(1), 16) >> (number - 1) & 1

    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        pids = pids_of_ranks(process, ranks)
        if len(pids) == ranks and all(map(catches, pids)):
            return
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0])


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_to_stop_while_a_run_loads(inputs, tmp_path, ranks):
    """As one that comes later: the code on which a job comes again, and no restart."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages", train=20000), tmp_path / "out", max_steps=2)
    def words(flags, ranks):
        found = words_of(flags, ranks)
        return found if ranks == 1 else [*found[:2], "--max_restarts", "2", *found[2:]]

    process = start_strata(flags, ranks, words=words)
    wait_for_handlers(process, ranks, signal.SIGUSR1)
    process.send_signal(signal.SIGUSR1)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert text.count("stopped on request before training began") == 1
    assert "restart" not in text and "error" not in text
    del flags["dataset_name"]
    assert run_strata({**flags, "dataset_name": inputs.data("messages")}, ranks).state["global_step"] == 2


@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_to_stop_reaches_all_ranks_while_a_run_loads(inputs, tmp_path, rank):
    """One rank alone is told: the other, which waits for it, is by the launcher, with the same end."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages", train=20000), tmp_path / "out", max_steps=2)
    process = start_strata(flags, 2)
    wait_for_handlers(process, 2, signal.SIGUSR1)
    os.kill(pids_of_ranks(process, 2)[rank], signal.SIGUSR1)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert text.count("stopped on request before training began") == 1
    assert "error" not in text and not list((tmp_path / "out").glob("*.safetensors"))


def holds(pid, number):
    """Whether the signal waits there."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return int(re.search(r"SigBlk:\s*(\w+)", status).group(1), 16) >> (number - 1) & 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_to_stop_in_a_programs_first_moments(inputs, tmp_path, ranks):
    """It waits from before the libraries' constructors on, as one to save (SIGUSR2) does."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2)
    process = start_strata(flags, ranks, words=words_of)
    while process.poll() is None and not holds(process.pid, signal.SIGUSR2):
        time.sleep(0.0005)
    process.send_signal(signal.SIGUSR1)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert "error" not in text


def test_ranks_are_told_to_stop_as_they_begin(inputs, tmp_path):
    """Before any code of theirs runs: the launcher holds for them what comes while it starts them."""
    def is_rank(pid):
        return b"sft" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1:2]

    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2)
    process = start_strata(flags, 2, words=words_of)
    while process.poll() is None and len(pids := [*filter(is_rank, pids_of_ranks(process, 2))]) < 2:
        time.sleep(0.0005)
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 75, text
    assert "error" not in text and not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize("command", [["chat", "--model_name_or_path", "MODEL"], ["tokenize", "--model", "MODEL"]])
def test_other_commands_answer_as_the_system_has_it(inputs, command):
    """Nothing waits where nobody asks for it."""
    words = [inputs.model("plain") if word == "MODEL" else word for word in command]

    def ask_before_it_begins():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        os.kill(os.getpid(), signal.SIGUSR1)

    process = subprocess.Popen([PROGRAM, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               env=environment(), preexec_fn=ask_before_it_begins)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGUSR1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_request_to_stop_while_the_result_is_written(inputs, tmp_path, number, ranks):
    """There is nothing to come back for."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, ranks)
    process, pids = start_and_hold_at_the_end(flags, ranks)
    process.send_signal(number)
    time.sleep(0.3)  # a launcher passes it on
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "result: " in text, text
    assert text.count("interrupted") == text.count("training is over") == (number == signal.SIGINT)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert [row["step"] for row in whole.metrics] == [1, 2, 2]


def start_and_hold_at_the_end(flags, ranks):
    """A run whose ranks are stopped between the last step and the result."""
    for _ in range(20):  # a result may be there sooner than they are stopped
        process = start_strata(flags, ranks, words=words_of)
        read_until(process, "train_runtime")
        try:
            pids = pids_of_ranks(process, ranks)
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            if len(pids) == ranks and not (flags["output_dir"] / "model.safetensors").exists():
                return process, pids
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        except (ProcessLookupError, FileNotFoundError):
            pass
        process.communicate(timeout=60)
        shutil.rmtree(flags["output_dir"])
    raise AssertionError("every result was there before its run could be stopped")


@pytest.mark.parametrize("ranks,saved", [(1, False), (2, False), (2, True)])
def test_a_second_interrupt_ends_at_once(inputs, tmp_path, ranks, saved):
    """A step may be long, and who presses Ctrl-C twice will not wait for it."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages", train=4000), tmp_path / "out",
                       max_steps=3, save_strategy="steps", save_steps=1)
    if saved:
        run_strata({**flags, "max_steps": 1}, ranks)
    process = start_strata({**flags, "gradient_accumulation_steps": 4000, "resume_from_checkpoint": saved},
                           ranks, words=words_of)
    wait_for_handlers(process, ranks)
    time.sleep(0.5)  # the step has begun
    process.send_signal(signal.SIGINT)
    read_until(process, "Ctrl-C again ends at once")
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    text = process.communicate(timeout=20)[0]
    assert process.returncode == (-signal.SIGINT if ranks == 1 else 128 + signal.SIGINT), text
    assert time.monotonic() - start < 2
    assert [p.name for p in (tmp_path / "out").glob("checkpoint-*")] == ["checkpoint-1"] * saved
    if ranks == 2:
        where = (f"interrupted: {tmp_path / 'out' / 'checkpoint-1'} is the newest checkpoint; continue from it with "
                 "--resume_from_checkpoint true" if saved else "interrupted: this run has saved nothing yet")
        assert where in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_signal_that_is_ignored_stays_ignored(inputs, tmp_path, ranks, number):
    """As Ctrl-C in the background of a shell's script, where it is meant for others, and the terminal's end
    under nohup. Not even two of them end a launcher's ranks."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=60)
    process = start_strata(flags, ranks, words=words_of, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    wait_for_step(process, tmp_path / "out", 3)
    for _ in range(2):
        process.send_signal(number)
        time.sleep(0.05)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "Ctrl-C" not in text and "interrupted" not in text, text
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_outlives_the_reader_of_its_output(inputs, tmp_path, ranks):
    """Ctrl-C ends the `tee` behind a run as well, at once; the run has then yet to save."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=4000)
    process = start_strata(flags, ranks, words=words_of)
    wait_for_step(process, tmp_path / "out", 3)
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 75
    last = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert [path.name for path in (tmp_path / "out").glob("checkpoint-*")] == [f"checkpoint-{last}"]


# Early stopping counts the evaluation that was broken off once, too.
@pytest.mark.parametrize("more", [{}, dict(max_steps=8, early_stopping_patience=1,
                                           early_stopping_threshold=9.0)], ids=["plain", "early_stopping"])
def test_a_request_to_stop_is_heard_during_an_evaluation(inputs, tmp_path, more):
    """An evaluation may outlast what a scheduler waits: the stop comes first, and what was broken off is
    made up for, so that the same checkpoint is the best one and the log the same."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages", test=1200), tmp_path / "out",
                       eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2,
                       per_device_eval_batch_size=1, load_best_model_at_end=True,
                       **{"max_steps": 4, **more})
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, 2)
    process = start_strata(flags, 2)
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


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("place,left,kept", [
    # The last save is there, and older ones were to go.
    ("checkpoint-2.tmp-removed", [2, 3, 4], [3, 4]),
    # It is there, and was yet to be named as the latest.
    ("/latest", [1], [1])])
def test_a_kill_between_a_save_and_what_follows_it(inputs, tmp_path, place, left, kept, ranks):
    """However little is left to do for the next run, it leaves what this one would have."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=max(left),
                       save_strategy="steps", save_steps=1, save_total_limit=2)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, ranks)
    process = start_strata(flags, ranks, preloaded.variables(DIES_RENAMING_TO=place), words=words_of)
    text = process.communicate(timeout=60)[0]
    assert process.returncode == (-signal.SIGKILL if ranks == 1 else 128 + signal.SIGKILL), text
    there = lambda: sorted(int(p.name.split("-")[1]) for p in (tmp_path / "out").glob("checkpoint-*[0-9]")
                           if ".tmp" not in p.name)
    assert there() == left
    (tmp_path / "out" / ".write-test-a1B2c3").touch()
    (tmp_path / "out" / ".write-test-of-mine").touch()
    found = run_strata({**flags, "resume_from_checkpoint": True}, ranks)
    assert killing.has_resumed(found) and killing.same_result(found, whole)
    assert there() == kept and (tmp_path / "out" / "latest").read_text() == f"checkpoint-{max(kept)}\n"
    gone = [step for step in left if step not in kept]
    assert [int(step) for step in re.findall(r"checkpoint-(\d+) is removed \(save_total_limit\)", found.text)] == gone
    assert output_files(tmp_path / "out") == sorted([".write-test-of-mine", *output_files(tmp_path / "whole")])


def test_a_renamed_checkpoint_is_named_as_it_is_called(inputs, tmp_path):
    """`latest` means a folder that is there, or the run behind the next would go on from an older one."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2,
                       save_strategy="steps", save_steps=1)
    run_strata(flags)
    (tmp_path / "out" / "checkpoint-2").rename(tmp_path / "out" / "checkpoint-5")
    (tmp_path / "out" / "latest").unlink()
    for _ in range(2):
        found = run_strata({**flags, "max_steps": 3, "save_strategy": "no", "resume_from_checkpoint": True})
        assert "checkpoint-5: step 2 of 3" in found.text, found.text
        assert (tmp_path / "out" / "latest").read_text() == "checkpoint-5\n"


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
    process = start_strata(base_flags(model, inputs.data("messages"), out, max_steps=400), 1)
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
