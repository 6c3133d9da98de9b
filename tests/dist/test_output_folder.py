# Oracle: the operating system's locks and rights; what a run says that finds its folder held or closed,
# and what it leaves there.
import fcntl
import json
import os
import signal
import subprocess

import killing
import preloaded
from limits import without_root_rights
from running import (base_flags, command, environment, output_files, run_strata, run_strata_raw, start_strata,
                     wait_for_step)


def test_one_run_in_a_folder_of_a_file_system_without_locks(inputs, tmp_path):
    out = tmp_path / "out"
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), out, max_steps=4000)
    unlocked = preloaded.variables(NO_LOCKS=1)
    first = start_strata(flags, 2, unlocked)
    wait_for_step(first, out, 2)
    rank_0 = json.loads((out / ".lock-owner").read_text())["pid"]
    second = subprocess.run(command({**flags, "max_steps": 1}, 2), env={**environment(), **unlocked},
                            text=True, capture_output=True, timeout=60)
    assert second.returncode != 0
    assert f"found that process {rank_0} on " in second.stderr
    assert f"if that process is gone, remove {out / '.lock-owner'}" in second.stderr
    # What a killed run leaves holds nothing.
    for pid in [*killing.ranks_of(first.pid), first.pid]:
        os.kill(pid, signal.SIGKILL)
    first.communicate()
    assert (out / ".lock-owner").exists()
    third = subprocess.run(command({**flags, "max_steps": 1}, 2), env={**environment(), **unlocked},
                           text=True, capture_output=True, timeout=60)
    assert third.returncode == 0, third.stderr
    assert "has no locks (flock); the file .lock-owner in it keeps other runs out" in third.stdout
    assert not list(out.glob(".lock*"))


def test_a_folder_is_shared_though_a_rank_saw_it_before_its_lock(inputs, tmp_path):
    """A client of a file server answers from memory for half a minute."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1)
    process = start_strata(flags, 2, preloaded.variables(SAW_NO_LOCK=1))
    text = process.communicate(timeout=60)[0]
    assert process.returncode == 0, text


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


def test_a_read_only_folder_is_named_before_the_first_step(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out").chmod(0o555)
    process = start_strata(flags, 2, preexec_fn=without_root_rights)
    text = process.communicate(timeout=60)[0]
    (tmp_path / "out").chmod(0o755)
    assert process.returncode not in (0, None)
    assert f"{tmp_path / 'out'}: found permission denied" in text, text
    assert "expected a writable folder" in text and not output_files(tmp_path / "out")
