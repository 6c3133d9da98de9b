"""Runs the program in ranks that are forked from one which has loaded libtorch: a run costs its steps
then, and not the start of a launcher and of every rank, which takes longer."""

import atexit
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading

from running import BUILD, DEVICE_FLAGS, Run, environment, flag_words

RUN_SECONDS = 600  # against hangs, on a machine with much else to do


class RowServers:
    """Programs that fork the ranks of one run after the other (tools/row_server.cpp), one for each
    thread that asks."""

    def __init__(self):
        self.own = threading.local()
        self.all = []
        self.folder = tempfile.mkdtemp(prefix="strata-runs-")

    def run(self, flags, world=1, recipe="sft"):
        """As run_program(), without a launcher and without the start of a program for each rank."""
        server = self.server()
        output, errors = (pathlib.Path(self.folder, f"{threading.get_ident()}.{kind}")
                          for kind in ("output", "errors"))
        for file in (output, errors):
            file.unlink(missing_ok=True)
        words = [recipe, *DEVICE_FLAGS, *flag_words(flags)]
        alarm = threading.Timer(RUN_SECONDS, server.kill)
        alarm.start()
        order = {"words": words, "ranks": world, "folder": os.getcwd(), "output": str(output),
                 "errors": str(errors)}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        alarm.cancel()
        said = [file.read_text() if file.exists() else "" for file in (output, errors)]
        assert answer == "0\n", f"{words}\n{answer}\n{''.join(said)}"
        return Run(subprocess.CompletedProcess(words, 0, *said), flags["output_dir"])

    def server(self):
        """This thread's, with the variables of now."""
        process = getattr(self.own, "process", None)
        if process is None or process.poll() is not None or self.own.variables != environment():
            if process is not None:
                process.stdin.close()
            self.own.variables = environment()
            self.own.process = process = subprocess.Popen(
                [BUILD / "row_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=self.own.variables)
            self.all.append(process)
        return process

    def close(self):
        for process in self.all:
            process.stdin.close()
            process.wait()
        shutil.rmtree(self.folder)


SHARED = RowServers()  # of all tests that ask for single runs
atexit.register(SHARED.close)
