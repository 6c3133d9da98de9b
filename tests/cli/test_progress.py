# Oracle: what a terminal shows, by the meaning of carriage return and "erase to the end of the line".
import contextlib
import os
import re
import subprocess
import termios
import time

import pytest

from running import base_flags, command, environment, run_program
from terminal import Terminal

BAR = re.compile(r"[\u2501\u2578\u2504]+ (\d+)/(\d+)")


def shown_lines(text):
    """The lines on the screen once all has been written."""
    assert "\x1b" not in text.replace("\x1b[K", ""), "found another control sequence"
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            erased = part.startswith("\x1b[K")
            part = part.replace("\x1b[K", "")
            shown = part if erased else part + shown[len(part):]
        lines.append(shown)
    return lines


def start(inputs, tmp_path, world=2, columns=100, launch=(), **flags):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out",
                       **{"disable_tqdm": None, **flags})
    words = command(flags, world)
    words[2:2] = map(str, launch)
    return Terminal(words, columns=columns, LC_ALL="C.UTF-8")


def test_one_bar_that_ends_full(inputs, tmp_path):
    terminal = start(inputs, tmp_path, max_steps=40, eval_strategy="steps", eval_steps=20)
    assert terminal.end() == 0, terminal.text
    drawn = [int(step) for step, _ in BAR.findall(terminal.text)]
    assert drawn == sorted(drawn) and drawn[-1] == 40, "only rank 0 draws"
    lines = shown_lines(terminal.text)
    bars = [line for line in lines if BAR.search(line)]
    assert len(bars) == 1 and "40/40" in bars[0] and "loss" in bars[0]
    evaluations = [line for line in lines if "eval_loss" in line]
    assert len(evaluations) == 2 and all(line.startswith("{") for line in evaluations)
    # As Trainer prints them above tqdm's bar.
    logged = [line for line in lines if line.startswith("{'loss'")]
    assert len(logged) == 40 and all("'grad_norm'" in line and "'learning_rate'" in line for line in logged)


def test_a_log_folder_takes_nothing_from_the_terminal(inputs, tmp_path):
    terminal = start(inputs, tmp_path, launch=["--log_dir", tmp_path / "logs"], max_steps=40,
                     eval_strategy="steps", eval_steps=20)
    assert terminal.end() == 0, terminal.text
    lines = shown_lines(terminal.text)
    assert len([line for line in lines if "40/40" in line]) == 1
    log = (tmp_path / "logs" / "rank_0.log").read_text()
    assert "\x1b" not in log and "\r" not in log
    assert log.splitlines() == lines[:-1], "the same lines, the bar as it stood in the end"
    assert (tmp_path / "logs" / "rank_1.log").exists()


def test_what_goes_to_a_file_has_no_control_codes(inputs, tmp_path):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=4,
                       disable_tqdm=None)
    for words in (["--log_dir", str(tmp_path / "logs")], []):
        line = command(flags, 2)
        line[2:2] = words
        result = subprocess.run(line, capture_output=True, text=True, timeout=60,
                                env={**environment(), "TERM": "xterm"})
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout + result.stderr and "\r" not in result.stdout
    assert (tmp_path / "logs" / "rank_0.log").read_text().count("'train_runtime'") == 1


@pytest.mark.parametrize("hides", [None, True])
def test_a_log_says_where_the_run_stands(inputs, tmp_path, hides):
    """A line before each of Trainer's, which are the same with and without."""
    run = run_program(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=6,
                                 logging_steps=2, eval_strategy="steps", eval_steps=3, disable_tqdm=hides))
    said = run.text.splitlines()
    shown = [line for line in said if line.startswith("{")]
    assert [re.match(r"{'(\w+)'", line)[1] for line in shown] == [
        "loss", "eval_loss", "loss", "loss", "eval_loss", "train_runtime"]
    places = [line for line in said if re.match(r"\d+/\d+ ", line)]
    if hides:
        assert places == []
        return
    number = r"[\d.]+[kMGT]?"
    for place, step in zip(places, [2, 3, 4, 6], strict=True):
        left = "" if step == 6 else r"  [\d:]+ left"
        assert re.fullmatch(rf"{step}/6  {number} tokens/s{left}  {number} [MG]B", place), places
    assert [said[said.index(place) + 1] for place in places] == shown[:4]


@pytest.mark.parametrize("logs", [False, True])
def test_the_bar_follows_the_width(inputs, tmp_path, logs):
    launch = ["--log_dir", tmp_path / "logs"] if logs else []
    terminal = start(inputs, tmp_path, columns=100, launch=launch, max_steps=100000, logging_strategy="no")
    terminal.read_until("tokens/s")
    terminal.resize(30)
    time.sleep(0.5)
    terminal.text = ""
    terminal.read_until("/100000")
    terminal.send("\x03")
    assert terminal.end() == 75
    drawn = terminal.text[:terminal.text.index("^C")].split("\r")[2:]
    assert drawn and max(len(part.replace("\x1b[K", "")) for part in drawn) < 30


def test_ctrl_c_ends_all_and_leaves_a_usable_terminal(inputs, tmp_path):
    terminal = start(inputs, tmp_path, max_steps=100000)
    before = termios.tcgetattr(terminal.main)
    terminal.read_until("/100000")
    ranks = [int(pid) for pid in open(
        f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children").read().split()]
    assert len(ranks) == 2
    terminal.send("\x03")
    assert terminal.end() == 75
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)
    lines = shown_lines(terminal.text)
    assert lines[-1] == "", "the next prompt has a line of its own"
    assert any(line.startswith("stopped on request after step ") for line in lines)
    assert "error" not in terminal.text
    assert before[3] & termios.ICANON


def test_ctrl_c_says_where_the_run_can_go_on(inputs, tmp_path):
    terminal = start(inputs, tmp_path, max_steps=100000, save_strategy="steps", save_steps=5, save_total_limit=1)
    terminal.read_until("checkpoint-5 is saved")
    terminal.send("\x03")
    assert terminal.end() == 75
    saved = [path.name for path in (tmp_path / "out").iterdir() if re.fullmatch(r"checkpoint-\d+", path.name)]
    assert any(line.startswith("stopped on request") and
               line.endswith(f"{saved[0]} is saved, resume with --resume_from_checkpoint true")
               for line in shown_lines(terminal.text)), terminal.text
    assert len(saved) == 1


def test_a_failure_is_not_written_into_the_bar(inputs, tmp_path):
    terminal = start(inputs, tmp_path, max_steps=100000)
    terminal.read_until("/100000")
    ranks = [int(pid) for pid in open(
        f"/proc/{terminal.process.pid}/task/{terminal.process.pid}/children").read().split()]
    for pid in ranks:
        with contextlib.suppress(OSError):
            if b"\0RANK=1\0" in open(f"/proc/{pid}/environ", "rb").read():
                os.kill(pid, 9)
    assert terminal.end() == 137
    lines = shown_lines(terminal.text)
    assert any(line.startswith("error: rank 1: killed by signal 9") for line in lines), lines
