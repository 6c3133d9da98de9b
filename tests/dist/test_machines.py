# Oracle: the run on one machine for results, the kernel's counters for bytes, the clock for the end of
# a machine. Two network namespaces with delay and loss between them stand for two machines.
import os
import re
import signal
import subprocess
import sys
import time

import pytest

import tiny_llama
from running import PROGRAM, base_flags, environment, flag_words, run_strata
from two_machines import two_machines

STEPS = 6


@pytest.fixture(scope="module")
def machines():
    with two_machines(delay_ms=5, loss=0.005) as made:
        yield made


def launch_words(machine_rank, flags, launch=(), host="10.77.0.1"):
    return [PROGRAM, "launch", "--cpu", *([] if "--num_processes" in launch else ["--num_processes", 4]),
            "--num_machines", 2, "--machine_rank", machine_rank, "--main_process_ip", host, *launch, "sft",
            *flag_words(flags)]


def start_both(machines, flags, launch=()):
    return [machine.start(launch_words(rank, flags, launch), **environment())
            for rank, machine in enumerate(machines[:2])]


def finish(processes, timeout=100):
    texts = [process.communicate(timeout=timeout)[0] for process in processes]
    return [process.returncode for process in processes], texts


def run_on_both(machines, flags, launch=()):
    codes, texts = finish(start_both(machines, flags, launch))
    assert codes == [0, 0], texts
    return texts


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("plain"), inputs.data("messages"), output,
                      **{"max_steps": STEPS, **flags})


def losses(folder):
    rows = [re.search(r'"loss": ([\d.]+)', line) for line in (folder / "metrics.jsonl").open()]
    return [float(row.group(1)) for row in rows if row]


@pytest.fixture(scope="module")
def one_machine(inputs, tmp_path_factory):
    return run_strata(flags_of(inputs, tmp_path_factory.mktemp("one")), 4).losses


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "HYBRID_SHARD"])
def test_two_machines_train_as_one(inputs, tmp_path, machines, one_machine, strategy):
    before = [machine.sent_bytes() for machine in machines[:2]]
    texts = run_on_both(machines, flags_of(inputs, tmp_path, sharding_strategy=strategy))
    sent = [m.sent_bytes() - b for m, b in zip(machines[:2], before)]
    assert losses(tmp_path) == pytest.approx(one_machine, rel=1e-5)
    # Neither the address of machine 1 nor a name was given: the route tells it.
    assert "4 ranks (gloo)" in texts[0] and "[rank 2]" not in texts[0]
    counted = dict(re.findall(r"(shard group|copies|all ranks) ([\d.]+) MB", texts[0]))
    if strategy == "FULL_SHARD":
        # All of it leaves the machine, but for what goes to the neighbour on it.
        assert "shard group" in counted and float(counted["shard group"]) * 1e6 < sum(sent)
        return
    assert re.search(r"shard group [\d.]+ MB \(shm\), copies [\d.]+ MB \(gloo\)", texts[0])
    # What crosses between machines: every rank's share of the gradients, once a step.
    copies = float(counted["copies"]) * 1e6
    assert copies == pytest.approx(shard_size(inputs.model("plain")) * 4 * STEPS, abs=600)
    assert float(counted["shard group"]) * 1e6 > 2 * copies
    for machine in sent:
        assert 2 * copies < machine < 2 * copies * 1.3 + 100_000, (sent, copies)


# What the strategies differ by between forward and backward, and between micro-steps.
# 8 ranks have shard groups of 4 on each machine, which rest in parts of 2 between the passes.
@pytest.mark.parametrize("world,flags", [
    (4, dict(sharding_strategy="HYBRID_SHARD_ZERO2")),
    (4, dict(sharding_strategy="HYBRID_SHARD_ZERO2", gradient_accumulation_steps=2,
             per_device_train_batch_size=1)),
    (4, dict(sharding_strategy="HYBRID_SHARD", gradient_accumulation_steps=2,
             per_device_train_batch_size=1, sync_each_batch=False)),
    (8, dict(sharding_strategy="HYBRID_SHARD", fsdp_reshard_group_size=2,
             per_device_train_batch_size=1)),
], ids=["zero2", "zero2_accumulated", "no_sync", "parts"])
def test_other_hybrids_train_as_one(inputs, tmp_path, machines, one_machine, world, flags):
    texts = run_on_both(machines, flags_of(inputs, tmp_path, **flags),
                        ["--num_processes", world])
    assert losses(tmp_path) == pytest.approx(one_machine, rel=1e-5)
    assert re.search(r"shard group [\d.]+ MB \(shm\), copies [\d.]+ MB \(gloo\)", texts[0])
    assert bool(re.search(r"parts [\d.]+ MB \(shm\)", texts[0])) == (world == 8)


@pytest.fixture(scope="module")
def near_machines():
    with two_machines() as made:
        yield made[:2]


# What a packet carries beside data, by device: IPv4, TCP with time stamps, Ethernet on the loopback.
HEADS = {"cable": 20 + 32, "lo": 14 + 20 + 32}
FEW, MANY = 3, 23


class Wire:
    """A run between counters: bytes of data that each machine's links carried, and what it said."""

    def __init__(self, machines, flags):
        before = [self.carried(machine) for machine in machines]
        text = run_on_both(machines, flags)[0]
        after = [self.carried(machine) for machine in machines]
        self.sent = [{device: a[device] - b[device] for device in HEADS} for a, b in zip(after, before)]
        self.theory = {name: float(size) * 1e6 for name, size in re.findall(
            r"(all ranks|shard group|copies) ([\d.]+) MB", text)}
        self.into_tcp = float(re.search(r"moved by rank 0: .* ([\d.]+) MB into TCP", text).group(1)) * 1e6

    @staticmethod
    def carried(machine):
        counts = {device: machine.sent(device) for device in HEADS}
        return {device: size - packets * HEADS[device] for device, (size, packets) in counts.items()}


@pytest.fixture(scope="module")
def wires(inputs, near_machines, tmp_path_factory):
    """The runs, by strategy, steps and width of the model; each once."""
    models, known = {}, {}

    def wire(strategy, steps, width=128, **flags):
        if width not in models:
            models[width] = tmp_path_factory.mktemp("wide") / "model"
            tiny_llama.save_model(models[width], **dict(tiny_llama.PLAIN, hidden_size=width,
                                                        intermediate_size=3 * width))
        key = strategy, steps, width, *flags
        if key not in known:
            output = tmp_path_factory.mktemp("wire")
            known[key] = Wire(near_machines, dict(
                flags_of(inputs, output, max_steps=steps, sharding_strategy=strategy, **flags),
                model_name_or_path=models[width]))
        return known[key]

    wire.models = models
    return wire


def grown(many, few):
    """Of machine 0, on all its links; of its link to the other; by theory of its two ranks."""
    links = {device: many.sent[0][device] - few.sent[0][device] for device in HEADS}
    theory = {name: 2 * (many.theory[name] - few.theory[name]) for name in many.theory}
    return sum(links.values()), links["cable"], theory


def assert_near(measured, theory, of_a_step):
    """The lines that a run prints have thousands of bytes. Beside the theory: heads of Gloo's messages, sums
    of single numbers, of which each is its own message, and what launchers and ranks say by the clock."""
    assert -2000 <= measured - theory <= of_a_step * (MANY - FEW), (measured, theory)


def test_full_shard_sends_what_theory_says(wires):
    steps = MANY - FEW
    measured, between, theory = grown(wires("FULL_SHARD", MANY), wires("FULL_SHARD", FEW))
    assert_near(measured, sum(theory.values()), of_a_step=70_000)  # 1 % of it
    # In the ring of a gather one of the machine's two ranks hands on to the other machine; of a
    # reduce-scatter each of the two has gradients for both ranks there.
    whole = shard_size(wires.models[128], 4) * 4 * 4
    gathers = theory["shard group"] / 2 - steps * whole * 3 / 4
    assert_near(between, gathers + steps * whole, of_a_step=40_000)


def test_hybrid_shard_sends_an_all_reduce_between_machines(wires):
    steps = MANY - FEW
    many, few = wires("HYBRID_SHARD", MANY), wires("HYBRID_SHARD", FEW)
    measured, between, theory = grown(many, few)
    # Of two ranks and N bytes 2 * (2 - 1) / 2 * N each; N is a shard, and a machine has two.
    assert theory["copies"] == pytest.approx(2 * shard_size(wires.models[128], 2) * 4 * steps, abs=2000)
    assert_near(between, theory["copies"], of_a_step=60_000)  # 3 %
    # Gathers and reduce-scatters went through no socket at all.
    assert_near(measured, theory["copies"], of_a_step=70_000)
    assert theory["shard group"] > 2 * theory["copies"]


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "HYBRID_SHARD"])
def test_a_rank_knows_what_it_handed_to_tcp(wires, strategy):
    many, few = wires(strategy, MANY), wires(strategy, FEW)
    theory = {name: many.theory[name] - few.theory[name] for name in many.theory}
    expected = theory["copies"] if strategy == "HYBRID_SHARD" else sum(theory.values())
    assert_near(many.into_tcp - few.into_tcp, expected, of_a_step=20_000)


@pytest.mark.parametrize("strategy,shards,leaves_rank_0,leaves_machine", [
    # Rank 0 keeps its part; two of the three others are on the other machine.
    ("FULL_SHARD", 4, 3 / 4, 2 / 4),
    # Inside a machine through shared memory; then each of two ranks to its copy.
    ("HYBRID_SHARD", 2, 1 / 2, 1),
])
def test_weights_leave_rank_0_once(wires, strategy, shards, leaves_rank_0, leaves_machine):
    read = wires(strategy, 1, width=256)
    sent = wires(strategy, 1, width=256, fsdp_cpu_ram_efficient_loading=True)
    size = shard_size(wires.models[256], shards) * 4 * shards
    _, between, _ = grown(sent, read)
    # A rank's own connections carry nothing else that differs between the runs.
    assert sent.into_tcp - read.into_tcp == pytest.approx(size * leaves_rank_0, rel=0.02), size
    # The launchers on the same link ask each other five times a second, and one run may take longer.
    assert between == pytest.approx(size * leaves_machine, abs=0.05 * size), size


def test_a_machine_whose_own_name_is_its_loopback(inputs, tmp_path, one_machine):
    """As Debian's /etc/hosts has it; the others know the name by its address in the network."""
    with two_machines() as machines:
        machines[0].set_hosts("127.0.0.1 localhost\n127.0.1.1 first\n")
        machines[1].set_hosts("127.0.0.1 localhost\n10.77.0.1 first\n")
        flags = flags_of(inputs, tmp_path)
        words = [launch_words(rank, flags, host="first") for rank in range(2)]
        codes, texts = finish([machine.start(line, **environment())
                               for machine, line in zip(machines[:2], words)])
    assert codes == [0, 0], texts
    assert losses(tmp_path) == pytest.approx(one_machine, rel=1e-5)


def shard_size(model, shards=2):
    """Elements of a shard: tensors of a unit and the shards of units fill blocks of 256."""
    from safetensors import safe_open

    def whole_blocks(size):
        return -(-size // 256) * 256

    units = {}
    with safe_open(model / "model.safetensors", "np") as file:
        for name in file.keys():
            layer = re.search(r"layers\.(\d+)\.", name)
            unit = layer.group(1) if layer else "first" if "embed" in name else "last"
            units[unit] = units.get(unit, 0) + whole_blocks(file.get_tensor(name).size)
    return sum(whole_blocks(-(-size // shards)) for size in units.values())


def wait_for_step(folder, processes):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (folder / "metrics.jsonl").exists() and losses(folder):
            return
        assert all(p.poll() is None for p in processes), processes[0].communicate()[0]
        time.sleep(0.05)
    raise AssertionError("found no step in 60 s")


def test_a_machine_that_dies_ends_the_other(inputs, tmp_path, machines):
    processes = start_both(machines, flags_of(inputs, tmp_path, max_steps=100000))
    wait_for_step(tmp_path, processes)
    start = time.monotonic()
    machines[1].kill_all()
    text, _ = processes[0].communicate(timeout=60)
    seconds = time.monotonic() - start
    processes[1].communicate(timeout=10)
    assert processes[0].returncode == 1 and seconds < 10, (seconds, text)
    assert re.search(r"error: (collective [a-z-]+ of rank \d: found a failed peer \(.*10\.77\.0\.2"
                     r"|machine 1 \(10\.77\.0\.2\): found gone)", text), text


def test_a_machine_that_goes_silent_ends_the_other(inputs, tmp_path):
    """Without power or network it closes no connection."""
    with two_machines() as machines:
        processes = start_both(machines, flags_of(inputs, tmp_path, max_steps=100000))
        wait_for_step(tmp_path, processes)
        start = time.monotonic()
        machines[2].cut()
        codes, texts = finish(processes, timeout=60)
        seconds = time.monotonic() - start
    assert codes == [1, 1] and seconds < 40, texts
    # Ranks and launcher notice it on their own; who is first speaks.
    assert re.search(r"error: (collective [a-z-]+ of rank \d: found a failed peer \(.*10\.77\.0\.2"
                     r"|machine 1 \(10\.77\.0\.2\): found gone)", texts[0]), texts[0]


def test_different_settings_of_machines_are_named(inputs, tmp_path, machines):
    processes = [machine.start(launch_words(rank, flags_of(inputs, tmp_path / "out", seed=rank)),
                               **environment()) for rank, machine in enumerate(machines[:2])]
    codes, texts = finish(processes)
    assert codes == [2, 2], texts
    for text, (own, other), (rank, that) in zip(texts, ((0, 1), (1, 0)), ((0, 2), (2, 0))):
        assert (f'error: settings: found "seed: {own} (--seed)" on rank {rank} but "seed: {other} '
                f'(--seed)" on rank {that}, expected the same on all ranks') in text, text
    assert not (tmp_path / "out").exists()


C10D = ["--rdzv_backend", "c10d", "--rdzv_conf", "join_timeout=30"]


def c10d_words(flags, launch=()):
    """The same line on every machine: they are numbered as they come."""
    return [PROGRAM, "launch", "--cpu", "--num_processes", 4, "--num_machines", 2,
            "--main_process_ip", "10.77.0.1", *C10D, *launch, "sft", *flag_words(flags)]


def meeting_words(kind, machine, machines, flags, launch=()):
    """c10d has no numbers, static has nothing else."""
    if kind == "c10d":
        return c10d_words(flags, launch)
    return launch_words(machines.index(machine), flags, ["--rdzv_conf", "timeout=30", *launch])


def wait_for_save(folder, processes):
    deadline = time.monotonic() + 60
    while not (folder / "latest").exists() and time.monotonic() < deadline:
        assert all(p.poll() is None for p in processes), processes[0].communicate()[0]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def twenty_steps(inputs, tmp_path_factory):
    flags = flags_of(inputs, tmp_path_factory.mktemp("twenty"), max_steps=20)
    return run_strata(flags, 4).losses


@pytest.mark.parametrize("kind", ["c10d", "static"])
def test_machines_start_again_together(inputs, tmp_path, machines, twenty_steps, kind):
    flags = flags_of(inputs, tmp_path / "out", max_steps=20, save_strategy="steps", save_steps=5)
    processes = [machine.start(meeting_words(kind, machine, machines, flags, ["--max_restarts", 2]),
                               **environment()) for machine in reversed(machines[:2])]
    wait_for_save(tmp_path / "out", processes)
    ranks = [pid for pid in pids_in(machines[1]) if b"\0LOCAL_RANK=1\0" in variables_of(pid)]
    os.kill(ranks[0], signal.SIGKILL)
    codes, texts = finish(processes)
    assert codes == [0, 0], texts
    assert "restart 1: going on from the newest checkpoint" in texts[1]
    for text in texts:
        assert "starting all ranks again: restart 1 of 2" in text
    assert "error: rank 3: killed by signal 9" in texts[0]
    # Neither is sooner than the other to call it a failure of its own.
    assert "restart 2 of 2" not in texts[0] + texts[1]
    assert losses(tmp_path / "out") == pytest.approx(twenty_steps, rel=1e-5)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_machine_that_died_comes_back(inputs, tmp_path, machines, twenty_steps, victim):
    """Its launcher and ranks are gone at once; whoever starts the same line again joins the run."""
    flags = flags_of(inputs, tmp_path / "out", max_steps=20, save_strategy="steps", save_steps=5)
    launch = ["--max_restarts", 2]

    def start(machine):
        return machine.start(meeting_words("static", machine, machines, flags, launch),
                             **environment())

    processes = [start(machine) for machine in machines[:2]]
    wait_for_save(tmp_path / "out", processes)
    machines[victim].kill_all()
    processes[victim].communicate(timeout=10)
    processes[victim] = start(machines[victim])
    codes, texts = finish(processes)
    assert codes == [0, 0], texts
    survivor = texts[1 - victim]
    assert f"machine {victim} (10.77.0.{victim + 1}): found gone" in survivor, survivor
    assert "starting all ranks again: restart 1 of 2" in survivor
    assert "restart 1: going on from the newest checkpoint" in texts[0]
    assert losses(tmp_path / "out") == pytest.approx(twenty_steps, rel=1e-5)


def test_a_machine_that_stays_away_ends_the_run(inputs, tmp_path, machines):
    flags = flags_of(inputs, tmp_path, max_steps=100000)
    launch = ["--max_restarts", 2, "--rdzv_conf", "timeout=3"]
    processes = start_both(machines, flags, launch)
    wait_for_step(tmp_path, processes)
    machines[1].kill_all()
    codes, texts = finish(processes, timeout=60)
    assert codes[0] == 1, texts
    assert texts[0].rstrip().endswith(
        "error: rendezvous 10.77.0.1:29500: found 1 of 2 machines after 3 s, expected all; start the "
        "others, or raise rdzv_conf join_timeout"), texts[0]
    assert pids_in(machines[0]) == []


def pids_in(machine):
    words = ["ip", "netns", "pids", machine.namespace]
    return [int(pid) for pid in subprocess.run(words, capture_output=True, text=True).stdout.split()]


def variables_of(pid):
    try:
        return open(f"/proc/{pid}/environ", "rb").read()
    except OSError:
        return b""


def test_a_machine_that_never_comes_is_waited_for_in_vain(inputs, tmp_path, machines):
    flags = flags_of(inputs, tmp_path / "out")
    both = {"c10d": [PROGRAM, *c10d_words(flags, [])[1:]],
            "static": launch_words(0, flags, ["--rdzv_conf", "timeout=2"])}
    both["c10d"][both["c10d"].index("join_timeout=30")] = "join_timeout=2"
    for name, words in both.items():
        start = time.monotonic()
        process = machines[0].start(words, **environment())
        text, _ = process.communicate(timeout=60)
        assert process.returncode == 1 and time.monotonic() - start < 15, text
        assert "error: rendezvous 10.77.0.1:29500: found " in text, text
        assert "found 1 of 2 machines after 2 s" in text


def test_where_namespaces_cannot_be_made_these_tests_fail():
    """They neither pass nor are skipped."""
    without = ["setpriv", "--bounding-set", "-sys_admin,-net_admin", "--inh-caps", "-all"]
    process = subprocess.run(
        [*without, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         f"{__file__}::test_two_machines_train_as_one"], capture_output=True, text=True, timeout=60)
    assert process.returncode == 1, process.stdout
    assert "this test makes network namespaces, which needs root" in process.stdout
    assert "2 errors" in process.stdout and "skipped" not in process.stdout
