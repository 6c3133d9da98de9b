"""Runs rows of a table in ranks that are forked from a program which has loaded libtorch: a row costs
its steps then, and not the start of a launcher and of every rank, which takes longer."""

import json
import pathlib
import subprocess
import threading

from running import BUILD, DEVICE_FLAGS, Run, environment, flag_words

ROW_SECONDS = 600  # against hangs, on a machine with much else to do


class RowServers:
    """Programs that fork the ranks of one row after the other (tools/row_server.cpp), one for each
    thread that asks."""

    def __init__(self):
        self.own = threading.local()
        self.all = []

    def run(self, flags, world=1, recipe="sft"):
        """As run_strata(), without a launcher and without the start of a program for each rank."""
        server = self.server()
        output = pathlib.Path(f"{flags['output_dir']}.txt")
        output.parent.mkdir(parents=True, exist_ok=True)
        words = [recipe, *DEVICE_FLAGS, *flag_words(flags)]
        alarm = threading.Timer(ROW_SECONDS, server.kill)
        alarm.start()
        order = {"words": words, "ranks": world, "output": str(output)}
        server.stdin.write(json.dumps(order) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        alarm.cancel()
        text = output.read_text() if output.exists() else ""
        assert answer == "0\n", f"{words}\n{answer}\n{text}"
        return Run(subprocess.CompletedProcess(words, 0, text, ""), flags["output_dir"])

    def server(self):
        if not hasattr(self.own, "process"):
            self.own.process = subprocess.Popen([BUILD / "row_server"], stdin=subprocess.PIPE,
                                                stdout=subprocess.PIPE, text=True,
                                                env=environment())
            self.all.append(self.own.process)
        return self.own.process

    def close(self):
        for process in self.all:
            process.stdin.close()
            process.wait()
