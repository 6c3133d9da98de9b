# Oracle: the run that was read to its end; what a command says and answers where its output goes nowhere.
import resource
import signal
import subprocess

import pytest

from running import PROGRAM, base_flags, environment, output_files, read_until, words_of

# Of the shell that starts the program.
CLOSED = {"input": "<&-", "output": ">&-", "errors": "2>&-", "all": "<&- >&- 2>&-"}
FULL = {"output": ">/dev/full", "errors": "2>/dev/full", "both": ">/dev/full 2>/dev/full"}


def run_with(words, redirections, **options):
    return subprocess.run(["bash", "-c", f'"$@" {redirections}', "bash", *map(str, words)],
                          capture_output=True, text=True, env=environment(), timeout=60, **options)


@pytest.mark.parametrize("redirections", [*CLOSED.values(), *FULL.values()])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_needs_no_standard_streams(inputs, tmp_path, ranks, redirections):
    """A file of the run must not take the place of a closed one: it would be written to. The second
    --save_strategy is a warning."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=4,
                       save_strategy="steps", save_steps=2)
    whole = run_with(words_of({**flags, "output_dir": tmp_path / "whole"}, ranks), "")
    assert whole.returncode == 0, whole.stderr
    found = run_with([*words_of(flags, ranks), "--save_strategy", "steps"], redirections)
    assert found.returncode == 0, found.stdout + found.stderr
    assert output_files(tmp_path / "out") == output_files(tmp_path / "whole")
    for name in ["model.safetensors", "checkpoint-2/rank-00000.safetensors"]:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_a_late_reader_loses_nothing_behind_the_line_it_waits_for():
    """These tests read so: under load a run has said all before its reader's turn comes."""
    process = subprocess.Popen(["/bin/sh", "-c", "echo first; echo waited for; echo behind it"],
                               stdout=subprocess.PIPE, text=True)
    process.wait(timeout=60)
    assert read_until(process, "waited for") == "first\nwaited for\n"
    assert process.communicate(timeout=60)[0] == "behind it\n"


def test_an_error_that_finds_no_room_keeps_its_exit_code():
    assert run_with([PROGRAM, "sft", "--lerning_rate", 1], "2>/dev/full").returncode == 2


@pytest.mark.parametrize("words", [["--help"], ["config", "show"], ["env", "--json"]])
def test_a_command_whose_output_was_cut_off_fails(words):
    found = run_with([PROGRAM, *words], ">/dev/full")
    assert found.returncode == 1 and found.stderr.startswith("error: standard output: found "), found.stderr


def test_a_file_beyond_the_limit_is_named(inputs, tmp_path):
    """`ulimit -f`: where the signal of that has its default action, as in a shell."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=2)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))

    found = run_with(words_of(flags), "", preexec_fn=limit)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "model.safetensors: found file too large" in found.stderr
    assert not (tmp_path / "out" / "model.safetensors").exists()
