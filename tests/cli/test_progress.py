# Oracle: what a terminal shows, by the meaning of carriage return and "erase to the end of the line".
import contextlib
import os
import re
import termios
import time

from running import base_flags, command
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


def start(inputs, tmp_path, world=2, columns=100, **flags):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out",
                       **{"disable_tqdm": None, **flags})
    return Terminal(command(flags, world), columns=columns, LC_ALL="C.UTF-8")


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


def test_the_bar_follows_the_width(inputs, tmp_path):
    terminal = start(inputs, tmp_path, columns=100, max_steps=100000)
    terminal.read_until("tokens/s")
    terminal.resize(30)
    time.sleep(0.5)
    terminal.text = ""
    terminal.read_until("/100000")
    terminal.send("\x03")
    assert terminal.end() == 130
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
    assert terminal.end() == 130
    assert not any(os.path.exists(f"/proc/{pid}") for pid in ranks)
    lines = shown_lines(terminal.text)
    assert lines[-1] == "", "the next prompt has a line of its own"
    assert "error" not in terminal.text
    assert before[3] & termios.ICANON


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
