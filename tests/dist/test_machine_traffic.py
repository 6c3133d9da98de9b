# Oracle: the kernel's counters of what left a machine's links, beside what theory says that a strategy moves.
import re

import pytest

import tiny_llama
from machine_runs import flags_of, run_on_both, shard_size
from two_machines import two_machines


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
