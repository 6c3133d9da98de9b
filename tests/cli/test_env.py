# Oracle: what Python's own standard library says of this machine, and provoked faults.
import json
import os
import resource
import socket
import subprocess

import pytest

from bare_environment import ENVIRONMENT, STRATA, run


def report(*flags, **environment):
    result = run("env", "--json", *flags, **environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def findings(facts, severity):
    return [row["text"] for row in facts["findings"] if row["severity"] == severity]


def test_facts_are_those_of_this_machine():
    facts = report()
    assert facts["build"]["strata"] and facts["build"]["libtorch"].startswith("2.")
    assert facts["processor"]["cores_usable"] == len(os.sched_getaffinity(0))
    assert facts["processor"]["cores_online"] == os.cpu_count()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert abs(facts["memory"]["total_bytes"] - total) < 1 << 20
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert facts["limits"]["open files (-n)"] == {"soft": soft, "hard": hard}
    assert facts["network"]["host"] == socket.gethostname()
    disk = os.statvfs(os.getcwd())
    assert facts["disks"]["working folder"]["path"] == os.getcwd()
    assert facts["disks"]["working folder"]["size_bytes"] == disk.f_blocks * disk.f_bsize
    with open("/proc/cpuinfo") as file:
        flags = next(line for line in file if line.startswith(("flags", "Features"))).split()
    assert set(facts["processor"]["features"]) <= set(flags)
    assert ("avx512_bf16" in flags) == (facts["processor"]["bf16"] == "native")


def test_text_has_every_section_and_ds_report_is_the_same_command():
    text = run("env").stdout
    for section in ("build", "processor", "memory", "limits", "disks", "network", "settings",
                    "findings"):
        assert f"\n{section}" in "\n" + text
    other = run("ds_report").stdout
    assert [line.split()[0] for line in other.splitlines()] == \
        [line.split()[0] for line in text.splitlines()]


def test_environment_shows_what_runs_react_to_and_no_secret():
    facts = report(OMP_NUM_THREADS="999", HF_TOKEN="secret", NCCL_API_KEY="secret")
    assert facts["environment"]["OMP_NUM_THREADS"] == "999"
    assert "secret" not in json.dumps(facts)
    assert any(text.startswith("OMP_NUM_THREADS: found 999") for text in findings(facts, "warning"))


@pytest.mark.parametrize("environment, start", [
    ({"RANK": "1"}, "WORLD_SIZE: found nothing although RANK is set"),
    ({"GLOO_SOCKET_IFNAME": "nosuch0"}, "GLOO_SOCKET_IFNAME: found nosuch0"),
    ({"FSDP_BACKWARD_PREFETCH": "9"}, "environment variable FSDP_BACKWARD_PREFETCH: found \"9\""),
    ({"TMPDIR": "/proc/1"}, "temporary files (/proc/1): found"),
])
def test_what_would_fail_is_named(environment, start):
    assert any(text.startswith(start) for text in findings(report(**environment), "error"))


def test_low_limits_come_with_advice():
    result = subprocess.run(["bash", "-c", 'ulimit -S -n 200; exec "$0" env --json', STRATA],
                            capture_output=True, text=True, env=ENVIRONMENT)
    texts = findings(json.loads(result.stdout), "warning")
    assert any("open files: found a limit of 200" in text and "ulimit -n 1024" in text
               for text in texts)


def test_default_file_of_accelerate_is_judged(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_parms: true\n")
    texts = findings(report("--config_file", file), "error")
    assert len(texts) == 1 and f"{file}:3: found the unknown key" in texts[0]
    file.write_text("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 3\n")
    facts = report("--config_file", file)
    assert "num_processes: 3" in facts["settings"]["given"]
    assert not findings(facts, "error")
