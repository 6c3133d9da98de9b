# Oracle: the run on one machine for results, the kernel's counters for bytes. Two network namespaces with delay
# and loss between them stand for two machines.
import re
import subprocess
import sys

import pytest

from machine_runs import STEPS, finish, flags_of, launch_words, losses, run_on_both, shard_size
from running import environment, run_strata
from two_machines import two_machines


@pytest.fixture(scope="module")
def machines():
    with two_machines(delay_ms=5, loss=0.005) as made:
        yield made


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


# Of ranks that share rows those of a machine, or all of both.
@pytest.mark.parametrize("sharers,transport", [(2, "shm"), (4, "gloo")])
def test_shared_rows_train_as_one(inputs, tmp_path, machines, one_machine, sharers, transport):
    texts = run_on_both(machines, flags_of(inputs, tmp_path, sequence_parallel_size=sharers,
                                           per_device_train_batch_size=2 * sharers))
    assert losses(tmp_path) == pytest.approx(one_machine, rel=1e-5)
    assert re.search(rf"sequences [\d.]+ MB \({transport}\)", texts[0]), texts[0]


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_machine_whose_own_name_is_its_loopback(inputs, tmp_path, one_machine, backend):
    """As Debian's /etc/hosts has it; the others know the name by its address in the network."""
    with two_machines() as machines:
        machines[0].set_hosts("127.0.0.1 localhost\n127.0.1.1 first\n")
        machines[1].set_hosts("127.0.0.1 localhost\n10.77.0.1 first\n")
        flags = flags_of(inputs, tmp_path)
        words = [launch_words(rank, flags, ["--rdzv_backend", backend], host="first") for rank in range(2)]
        if backend == "c10d":  # which numbers the machines itself
            words = [[word for at, word in enumerate(line) if "--machine_rank" not in line[max(at - 1, 0):at + 1]]
                     for line in words]
        codes, texts = finish([machine.start(line, **environment())
                               for machine, line in zip(machines[:2], words)])
    assert codes == [0, 0], texts
    assert losses(tmp_path) == pytest.approx(one_machine, rel=1e-5)


def test_different_settings_of_machines_are_named(inputs, tmp_path, machines):
    processes = [machine.start(launch_words(rank, flags_of(inputs, tmp_path / "out", seed=rank)),
                               **environment()) for rank, machine in enumerate(machines[:2])]
    codes, texts = finish(processes)
    assert codes == [2, 2], texts
    for text, (own, other), (rank, that) in zip(texts, ((0, 1), (1, 0)), ((0, 2), (2, 0))):
        assert (f'error: settings: found "seed: {own} (--seed)" on rank {rank} but "seed: {other} '
                f'(--seed)" on rank {that}, expected the same on all ranks') in text, text
    assert not (tmp_path / "out").exists()


def test_where_namespaces_cannot_be_made_these_tests_fail():
    """They neither pass nor are skipped."""
    without = ["setpriv", "--bounding-set", "-sys_admin,-net_admin", "--inh-caps", "-all"]
    process = subprocess.run(
        [*without, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         f"{__file__}::test_two_machines_train_as_one"], capture_output=True, text=True, timeout=60)
    assert process.returncode == 1, process.stdout
    assert "this test makes network namespaces, which needs root" in process.stdout
    assert "2 errors" in process.stdout and "skipped" not in process.stdout
