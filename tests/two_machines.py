"""Two "machines": network namespaces whose only connection is a program that hands on their packets.

The kernel's own delay and loss (netem) is not everywhere; a TUN device in each namespace and a loop in
between is. Needs root; where namespaces or /dev/net/tun are missing, the tests that ask for them fail.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import pathlib
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import time

TUN_NO_INFO = 0x0001 | 0x1000
SET_INTERFACE = 0x400454CA
LARGEST_PACKET = 60000
COUNT = itertools.count()


def enter_namespace(file):
    if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
        raise OSError(ctypes.get_errno(), f"setns {file.name}")


def open_tun(namespace):
    with open("/proc/self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        enter_namespace(there)
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(tun, SET_INTERFACE, struct.pack("16sH", b"cable", TUN_NO_INFO))
        enter_namespace(home)  # the end of a machine is not the cable's
    return tun


def relay(first, second, delay_s, loss):
    """Hands packets on, each after `delay_s`, but for a share of `loss`. SIGUSR1 cuts the cable."""
    ends = [open_tun(first), open_tun(second)]
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    is_cut = []
    signal.signal(signal.SIGUSR1, lambda *_: is_cut.append(True))
    print("open", flush=True)
    rng = random.Random(1)
    on_the_way, order = [], itertools.count()
    while True:
        wait = max(on_the_way[0][0] - time.monotonic(), 0) if on_the_way else None
        for end in select.select(ends, [], [], wait)[0]:
            with contextlib.suppress(BlockingIOError):
                while packet := os.read(end, 65536):
                    if not is_cut and rng.random() >= loss:
                        heapq.heappush(on_the_way, (time.monotonic() + delay_s, next(order),
                                                    other[end], packet))
        while on_the_way and on_the_way[0][0] <= time.monotonic():
            _, _, end, packet = heapq.heappop(on_the_way)
            with contextlib.suppress(OSError):  # a device that is down takes nothing
                os.write(end, packet)


def ip(*words):
    result = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert result.returncode == 0, f"this test makes network namespaces, which needs root: {result}"


class Machine:
    def __init__(self, namespace, address):
        self.namespace, self.address = namespace, address

    def command(self, words):
        return ["ip", "netns", "exec", self.namespace, *map(str, words)]

    def start(self, words, **variables):
        return subprocess.Popen(self.command(words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, env=variables)

    def sent(self, device="cable"):
        """Bytes and packets as the kernel counts what left through the link, headers included."""
        files = [f"/sys/class/net/{device}/statistics/tx_{unit}" for unit in ("bytes", "packets")]
        result = subprocess.run(self.command(["cat", *files]), capture_output=True, text=True, check=True)
        return [int(number) for number in result.stdout.split()]

    def sent_bytes(self):
        return self.sent()[0]

    def kill_all(self):
        pids = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True)
        for pid in pids.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


    def set_hosts(self, text):
        """What /etc/hosts says on this machine alone; goes with the machine."""
        folder = pathlib.Path("/etc/netns", self.namespace)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").write_text(text)


class Link:
    def __init__(self, process):
        self.process = process

    def cut(self):
        self.process.send_signal(signal.SIGUSR1)


@contextlib.contextmanager
def two_machines(delay_ms=0, loss=0.0):
    """Yields two machines and the link between them."""
    names = [f"strata-{os.getpid()}-{next(COUNT)}" for _ in range(2)]
    machines = [Machine(name, f"10.77.0.{number + 1}") for number, name in enumerate(names)]
    process = None
    try:
        for name in names:
            ip("netns", "add", name)
        process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__)), *names, str(delay_ms / 1000), str(loss)],
            stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "open\n", "found no /dev/net/tun, expected one"
        for machine in machines:
            inside = ["-n", machine.namespace]
            ip(*inside, "link", "set", "lo", "up")
            ip(*inside, "addr", "add", f"{machine.address}/24", "dev", "cable")
            ip(*inside, "link", "set", "cable", "mtu", str(LARGEST_PACKET), "up")
        yield (*machines, Link(process))
    finally:
        for machine in machines:
            machine.kill_all()
        if process:
            process.kill()
            process.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(f"/etc/netns/{name}", ignore_errors=True)


if __name__ == "__main__":
    relay(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
