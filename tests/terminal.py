"""Runs a program on a terminal of its own."""

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import termios
import time

from running import environment

CONTROLS = "".join(map(chr, [*range(0x20), *range(0x7f, 0xa0)]))
DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
LINE_ENDS = "\u2028\u2029"


def escaped(text):
    """Python's JSON escapes, but for line ends and tabs, which stay."""
    obeyed = set(CONTROLS + DIRECTIONS + LINE_ENDS) - set("\n\t")
    short = {"\f": "\\u000c"}
    return "".join(short.get(c, json.dumps(c)[1:-1]) if c in obeyed else c for c in text)


class Terminal:
    """A program on a terminal of its own; what it wrote is in `text`."""

    def __init__(self, command, columns=None, **variables):
        self.main, side = pty.openpty()
        if columns:
            self.resize(columns)
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=side, stdout=side, stderr=side, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal
            env={**environment(), "TERM": "xterm", "COLUMNS": "200", **variables})
        os.close(side)
        self.text = ""

    def read_until_quiet(self, quiet_s, limit_s=60):
        """Until something came and then nothing more for a while."""
        deadline = time.monotonic() + limit_s
        got = False
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.main], [], [], quiet_s if got else 1)
            if not ready and got:
                return True
            if ready:
                try:
                    chunk = os.read(self.main, 65536)
                except OSError:  # the other side is closed: the program ended
                    return False
                if not chunk:
                    return False
                self.text += chunk.decode(errors="replace")
                got = True
        raise AssertionError(f"silent for {limit_s} s after {self.text[-500:]!r}")

    def resize(self, columns):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def read_until(self, text, limit_s=60):
        """Until the text has come."""
        deadline = time.monotonic() + limit_s
        while text not in self.text:
            assert time.monotonic() < deadline, f"found no {text!r} in {self.text[-500:]!r}"
            if select.select([self.main], [], [], 0.1)[0]:
                self.text += os.read(self.main, 65536).decode(errors="replace")

    def send(self, keys):
        os.write(self.main, keys.encode())

    def end(self):
        while self.read_until_quiet(0.2, 20):
            pass
        code = self.process.wait(timeout=20)
        os.close(self.main)
        return code
