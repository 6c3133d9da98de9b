# Oracle: the documented behaviour of the program: its help, exit codes and exact messages.
import subprocess

import pytest

from bare_environment import STRATA, run
from terminal import Terminal


def test_version_and_help():
    assert run("--version").stdout.startswith("strata ")
    overview = run("--help")
    assert overview.returncode == 0 and "strata launch" in overview.stdout
    for command in ("launch", "sft"):
        text = run(command, "--help")
        assert text.returncode == 0 and "usage: strata " + command in text.stdout
    assert "--learning_rate" in run("sft", "--help").stdout
    assert "--num_processes" in run("launch", "--help").stdout
    assert "--learning_rate" in run("launch", "sft", "--help").stdout


def test_help_of_a_command_by_either_word():
    assert run("help", "launch").stdout == run("launch", "--help").stdout
    assert run("help", "lauch").returncode == 2


@pytest.mark.parametrize("columns", [60, 100])
def test_help_fits_the_terminal(columns):
    for command in ("sft", "launch", "slurm"):
        terminal = Terminal([STRATA, command, "--help"], columns=columns)
        assert terminal.end() == 0
        flags = terminal.text[terminal.text.index("--") - 2:].replace("\r", "").split("\n")
        known = [line for line in flags if line.startswith(("  --", "      "))]
        assert known and max(map(len, known)) <= columns, max(known, key=len)
        assert not [line for line in known if line.endswith(" ")]


def test_unknown_command():
    result = run("lauch")
    assert result.returncode == 2
    assert result.stderr == ("error: lauch: found an unknown command, expected a known one; did you "
                             "mean launch?\n")
    assert "expected one of launch, sft, " in run("zzz").stderr
    for word, advice in (("train", "; strata sft trains"), ("generate", "; use strata chat"),
                         ("merge", "; strata merge-adapter folds"), ("deepspeed", "; use strata launch instead\n"),
                         ("accelerate", "; leave the word out: strata launch"), ("train.py", "; write strata launch train.py\n")):
        result = run(word)
        assert result.returncode == 2 and f"error: {word}: found an unknown command" in result.stderr
        assert advice in result.stderr


@pytest.mark.parametrize("words", [["--help"], ["config", "docs"], ["config", "show"], ["env", "--json"]])
def test_a_full_disk_behind_standard_output_is_an_error(words):
    with open("/dev/full", "w") as full:
        result = subprocess.run([STRATA, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1, words
    assert "standard output: found " in result.stderr


def test_no_before_a_switch_that_is_off():
    result = run("sft", "--no_packing")
    assert result.returncode == 2
    assert result.stderr == ("error: --no_packing: found an unknown flag, expected a known one; write --packing "
                             "false, which it is by default\n")


@pytest.mark.parametrize("prefix", [["sft"], ["launch", "sft"], ["config", "show"]])
def test_unknown_flag_names_the_closest_and_exits_with_2(prefix):
    result = run(*prefix, "--learning-rat", "1")
    assert result.returncode == 2
    assert result.stderr == ("error: --learning-rat: found an unknown flag, expected a known one; "
                             "did you mean --learning_rate?\n")


@pytest.mark.parametrize("words, more", [
    (["merge-adapter", "--model_name_or_path", "base", "--adapter_name_or_path", "a"], "; the base is --base_model FOLDER"),
    (["merge-adapter", "--adapter-name-or-path=a", "--output_dir", "b"], ""), (["convert", "a", "--output_dir", "b"], ""),
    (["inspect", "--model", "a"], "")])
def test_commands_on_files_say_that_folders_stand_without_flags(words, more):
    result = run(*words)
    assert result.returncode == 2
    flag = next(word for word in words if word.startswith("--")).split("=")[0]
    assert result.stderr == (f"error: {flag}: found an unknown flag, expected the folders without flags before them, in the "
                             f"order that strata {words[0]} --help says{more}\n")


def test_required_settings_are_asked_for_before_any_rank_starts():
    for prefix in (["sft"], ["launch", "--num_processes", "2", "sft"]):
        result = run(*prefix)
        assert result.returncode == 2
        assert result.stderr.startswith("error: model_name_or_path: found nothing")
