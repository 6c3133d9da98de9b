# Oracle: the documented behaviour of the launcher (exit codes, exact messages) and the kernel's view of
# its ranks.
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from bare_environment import run
from running import PROGRAM, environment

RECIPE = ["sft", "--model_name_or_path", "m", "--dataset_name", "d", "--output_dir", "out"]


def launch(*words, cwd=None, **variables):
    return subprocess.run([str(PROGRAM), "launch", *map(str, words)], capture_output=True, text=True,
                          timeout=60, cwd=cwd, env={**environment(), **variables})


def shell(script, *flags, **variables):
    return launch(*flags, "--no_python", "/bin/sh", "-c", script, **variables)


# Wrong settings: one message, exit code 2, no rank started.


def listener():
    found = socket.socket()
    found.bind(("", 0))
    found.listen()
    return found


TWO_MACHINES = ["--num_processes", "4", "--num_machines", "2"]
WRONG = {
    "host_name": ([*TWO_MACHINES, "--main_process_ip", "no-such-host.invalid"],
                  r'launch --main_process_ip: found "no-such-host\.invalid", which has no address \(.+\), '
                  r"expected the name or address of machine 0"),
    "host_name_on_one_machine": (["--num_processes", "2", "--main_process_ip", "nowhere.invalid"],
                                 r'launch --main_process_ip: found "nowhere\.invalid", which has no address'),
    "machine_rank": ([*TWO_MACHINES, "--machine_rank", "2", "--main_process_ip", "10.0.0.1"],
                     r"launch --machine_rank: found 2, expected less than num_machines \(2\)"),
    "machine_rank_alone": (["--machine_rank", "1"],
                           r"launch --machine_rank: found 1, expected less than num_machines \(1\)"),
    "num_processes": (["--num_processes", "5", "--num_machines", "2", "--main_process_ip", "1.2.3.4"],
                      r"launch --num_processes: found 5, expected a multiple of num_machines \(2\)"),
    "port_number": (["--main_process_port", "70000"], r"launch --main_process_port: found \"?70000\"?, expected"),
    "gpu_ids": (["--cpu", "--gpu_ids", "0,b"], r'launch --gpu_ids: found "b" in "0,b", expected numbers of devices'),
    "max_restarts": (["--max_restarts", "-1"], r"launch --max_restarts: found \"?-1\"?, expected"),
    "hang_timeout": (["--hang_timeout", "soon"], r"launch --hang_timeout: found \"?soon\"?, expected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_settings_start_no_rank(tmp_path, name):
    flags, message = WRONG[name]
    result = launch(*flags, *RECIPE, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert re.match("error: " + message, result.stderr), result.stderr
    assert result.stderr.count("\n") == 1 and result.stdout == ""
    assert list(tmp_path.iterdir()) == []


IN_A_FILE = {
    "host_name": ("main_process_ip: nowhere.invalid", ["--num_processes", "2"],
                  r'main_process_ip\): found "nowhere\.invalid", which has no address'),
    "port": ("main_process_port: TAKEN", [], r"main_process_port\): found \d+ in use, expected a free port"),
    "gpu_ids": ("gpu_ids: 0,x", ["--cpu"], r'gpu_ids\): found "x" in "0,x", expected numbers of devices'),
}


@pytest.mark.parametrize("name", IN_A_FILE)
def test_wrong_settings_of_a_file_name_its_line(tmp_path, name):
    line, flags, message = IN_A_FILE[name]
    file = tmp_path / "a.yaml"
    with listener() as taken:
        file.write_text("distributed_type: MULTI_CPU\n" + line.replace("TAKEN", str(taken.getsockname()[1])) + "\n")
        result = launch("--config_file", file, *flags, *RECIPE, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert re.match(rf"error: {re.escape(str(file))}:2 \(" + message, result.stderr), result.stderr
    assert result.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == [file]


MISSING = {
    "model": (["--model_name_or_path", "./m", "--dataset_name", "."],
              "./m: found no such folder, expected a checkpoint; check the path"),
    "model of the Hub": (["--model_name_or_path", "org/m", "--dataset_name", "."],
                         "org/m: found no such folder, and no model of that name in the Hub's cache, "
                         "expected a checkpoint; check the name, or let it be downloaded "
                         "(HF_HUB_OFFLINE is set)"),
    "data": (["--config_name", "c", "--dataset_name", "./c,./d"],
             "./d: found no such file or folder, expected the data of dataset_name; check the path"),
    "data of the Hub": (["--config_name", "c", "--dataset_name", "org/d"],
                        "org/d: found no such file or folder, expected the data of dataset_name; "
                        "check the path"),
    "training file": (["--config_name", "c", "--train_file", "./d.txt"],
                      "./d.txt: found no such file or folder, expected the data of train_file; check the path"),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_said_once(tmp_path, name):
    flags, message = MISSING[name]
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "config.json").write_text("{}")
    result = launch("--num_processes", 2, "--cpu", "sft", *flags, cwd=tmp_path, HF_HUB_OFFLINE="1")
    assert (result.returncode, result.stdout, result.stderr) == (1, "", f"error: {message}\n")


UNFIT = {
    "block": (["--fsdp_transformer_layer_cls_to_wrap", "BertLayer"],
              r'--fsdp_transformer_layer_cls_to_wrap: found "BertLayer", expected a block of this model'),
    "target": (["--use_peft", "--lora_target_modules", "q_prj"],
               r"--lora_target_modules: found no module matching \[q_prj\]"),
    "skipped": (["--use_peft", "--load_in_4bit", "--llm_int8_skip_modules", "q_prj"],
                r'--llm_int8_skip_modules: found "q_prj", which matches none of this model'),
    "shards": (["--fsdp_sharding_strategy", "HYBRID_SHARD", "--dp_shard_size", "2"],
               r"device mesh: found 3 ranks to be divided into shard groups of 2"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_the_model_is_said_once(inputs, tmp_path, name):
    flags, message = UNFIT[name]
    result = launch("--num_processes", 3, "--cpu", "sft", "--model_name_or_path", inputs.model("plain"),
                    "--dataset_name", inputs.data("messages"), "--output_dir", "out", *flags, cwd=tmp_path)
    errors = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    assert result.returncode == 2 and len(errors) == 1, result.stderr
    assert re.match("error: " + message, errors[0]) and list(tmp_path.iterdir()) == [], result.stderr


def test_more_ranks_than_processors_are_told(tmp_path):
    cores = len(os.sched_getaffinity(0))
    for ranks in (cores, cores + 1):
        result = launch("--num_processes", ranks, "--cpu", "sft", *MISSING["model"][0], cwd=tmp_path)
        assert result.returncode == 1 and ("they take turns" in result.stderr) == (ranks > cores), result.stderr
    dry = launch("--num_processes", cores + 1, "--cpu", "--dry_run", "sft", *MISSING["model"][0], cwd=tmp_path)
    assert "they take turns" not in dry.stderr


def launch_both(*flags):
    """Two machines of a static launch on this one; `flags`: those of each."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    launchers = [subprocess.Popen(
        [str(PROGRAM), "launch", *TWO_MACHINES, "--main_process_ip", "localhost",
         "--main_process_port", port, *own, "--no_python", "/bin/sh", "-c", "echo started"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        for own in flags]
    outputs = [launcher.communicate(timeout=60) for launcher in launchers]
    return [(launcher.returncode, *output) for launcher, output in zip(launchers, outputs)]


@pytest.mark.parametrize("first, second, message", [
    (["--machine_rank", "0", "--max_restarts", "1"], ["--machine_rank", "1"],
     r'launch: found "4 ranks, 0 restarts, static" on a machine \(\S+\) but "4 ranks, 1 restarts, '
     r'static" on machine 0, expected the same launch on all machines'),
    (["--machine_rank", "0"], ["--rdzv_backend", "c10d", "--rdzv_conf", "is_host=false"],
     r'launch: found "4 ranks, 0 restarts, c10d" on a machine'),
])
def test_machines_that_do_not_fit(first, second, message):
    for code, out, err in launch_both(first, second):
        assert code == 2 and out == ""
        assert re.match("error: " + message, err), err


@pytest.mark.parametrize("address, own, state", [
    ("localhost", ["--machine_rank", "0"], "1 of 2 machines are here"),
    ("localhost", ["--machine_rank", "1"], r"no launcher of machine 0 yet \(connection refused\)"),
    ("127.0.1.1", ["--machine_rank", "1"], r"no launcher of machine 0 yet \(connection refused\)"),
    ("::1", ["--rdzv_backend", "c10d"], "1 of 2 machines are here"),
])
def test_an_address_that_no_other_machine_reaches_is_told_at_once(address, own, state):
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    process = subprocess.Popen(
        [str(PROGRAM), "launch", *TWO_MACHINES, "--main_process_ip", address, "--main_process_port", port, *own,
         "--no_python", "/bin/true"], stderr=subprocess.PIPE, text=True, env=environment())
    try:
        start = time.monotonic()
        line = process.stderr.readline()
        assert time.monotonic() - start < 8, "not the ten seconds after which others are looked for"
    finally:
        process.kill()
        process.communicate()
    assert re.match(rf"rendezvous {re.escape(address)}:{port}: {state}; {re.escape(address)} is each machine itself: where the "
                    r"launchers are on several machines, give --main_process_ip the address that machine 0 has in the network "
                    r"\(strata env lists it there\) on all of them; waiting up to 120 s$", line), line


def test_a_request_to_stop_ends_a_launcher_without_ranks(inputs, tmp_path):
    """Its exit code is that of ranks which stop before they train."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    process = subprocess.Popen(
        [str(PROGRAM), "launch", "--num_processes", "2", "--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "localhost",
         "--main_process_port", port, "--cpu", "sft", "--model_name_or_path", inputs.model("plain"), "--dataset_name",
         inputs.data("text"), "--output_dir", tmp_path / "out"], stderr=subprocess.PIPE, text=True, env=environment())
    try:
        line = process.stderr.readline()
        assert "1 of 2 machines are here" in line, line
        process.send_signal(signal.SIGUSR1)
        told = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert process.returncode == 75 and "stopped on request while no ranks ran: start it again" in told, told


def test_an_address_to_listen_at_is_none_to_reach():
    for address in ("0.0.0.0", "::"):
        result = launch(*TWO_MACHINES, "--main_process_ip", address, "--no_python", "/bin/true")
        assert result.returncode == 2
        assert f'main_process_ip: found "{address}", at which one listens' in result.stderr, result.stderr


def test_port_in_use_of_several_machines():
    with listener() as taken:
        port = taken.getsockname()[1]
        result = launch(*TWO_MACHINES, "--main_process_ip", "localhost", "--main_process_port", port,
                        "--no_python", "/bin/true")
    assert result.returncode == 2
    assert result.stderr == (f"error: launch --main_process_port: found {port} in use, expected a free port; "
                             "choose another on all machines\n")


def test_all_machines_start_again_when_one_of_another_fails(tmp_path):
    """Machine 1 has ended well when a rank of machine 0 fails for the first time."""
    script = (f"echo $RANK >> {tmp_path}/$TORCHELASTIC_RESTART_COUNT; [ $RANK = 0 ] || exit 0; "
              "sleep 0.5; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 9")
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = str(probe.getsockname()[1])
    launchers = [subprocess.Popen(
        [str(PROGRAM), "launch", *TWO_MACHINES, "--main_process_ip", "localhost",
         "--main_process_port", port, "--machine_rank", rank, "--max_restarts", "3", "--no_python",
         "/bin/sh", "-c", script], stderr=subprocess.PIPE, text=True, env=environment())
        for rank in "01"]
    errors = [launcher.communicate(timeout=60)[1] for launcher in launchers]
    assert [launcher.returncode for launcher in launchers] == [0, 0], errors
    for attempt in "01":
        assert sorted((tmp_path / attempt).read_text().split()) == ["0", "1", "2", "3"]
    assert ("error: rank 0: found ended (ended with exit code 9) on another machine, expected it to "
            "train; see its message there; stopping the ranks of this machine\n") in errors[1]


def test_port_in_use(tmp_path):
    with listener() as taken:
        port = taken.getsockname()[1]
        for words in (RECIPE, ["--no_python", "/bin/true"]):
            result = launch("--main_process_port", port, *words, cwd=tmp_path)
            assert result.returncode == 2
            assert result.stderr == (f"error: launch --main_process_port: found {port} in use, expected a free "
                                     "port; choose another, or 0 for a free one\n")


def test_master_addr_of_another_launcher(tmp_path):
    result = subprocess.run(
        [str(PROGRAM), *RECIPE], capture_output=True, text=True, timeout=60, cwd=tmp_path,
        env={**environment(), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
             "LOCAL_RANK": "0", "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "29500"})
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith(
        '[rank 0] error: MASTER_ADDR: found "no-such-host.invalid", which has no address')


# Where ranks run.


def test_every_rank_has_cores_of_its_own():
    result = shell("echo $RANK $(grep Cpus_allowed_list /proc/self/status)", "--num_processes", 2,
                   "--enable_cpu_affinity")
    rows = dict(re.findall(r"(\d) Cpus_allowed_list:\s*([\d,-]+)", result.stdout))
    cores = [set() for _ in rows]
    for rank, text in rows.items():
        for part in text.split(","):
            first, _, last = part.partition("-")
            cores[int(rank)] |= set(range(int(first), int(last or first) + 1))
    allowed = os.sched_getaffinity(0)
    assert len(rows) == 2 and cores[0] | cores[1] == allowed
    assert not cores[0] & cores[1] or len(allowed) < 2


def test_devices_are_handed_on():
    result = shell("echo $CUDA_VISIBLE_DEVICES", "--num_processes", 2, "--gpu_ids", "3,1")
    assert sorted(result.stdout.splitlines()) == ["3,1", "[rank 1] 3,1"]


# The port of rank 0.


def test_an_own_program_can_listen_at_its_port():
    script = ("import os, socket; s = socket.socket(); "
              "s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); "
              "s.bind(('', int(os.environ['MASTER_PORT']))); s.listen(); print('listening')")
    result = launch("--no_python", "python3", "-c", script)
    assert result.stdout == "listening\n", result.stderr


# Restarts.


def test_failed_ranks_are_started_again(tmp_path):
    script = "echo try $TORCHELASTIC_RESTART_COUNT of $RANK; [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 9"
    result = shell(script, "--num_processes", 2, "--max_restarts", 5, "--log_dir", tmp_path)
    assert result.returncode == 0
    assert result.stdout == "try 0 of 0\ntry 1 of 0\ntry 2 of 0\n"
    assert (tmp_path / "rank_1.log").read_text() == (
        "try 0 of 1\n--- restart 1 ---\ntry 1 of 1\n--- restart 2 ---\ntry 2 of 1\n")
    assert "starting all ranks again: restart 1 of 5\n" in result.stderr


def test_restarts_are_limited():
    result = shell("echo $MASTER_PORT; exit 9", "--max_restarts", 2)
    assert result.returncode == 9
    ports = result.stdout.split()
    assert len(ports) == 3 and len(set(ports)) == 1, "the port stays the run's"


@pytest.mark.parametrize("code", [2, 75])
def test_some_ends_are_final(code):
    """Wrong settings stay wrong; 75 is a run that saved itself and asks to be continued later."""
    result = shell(f"echo once; exit {code}", "--num_processes", 2, "--max_restarts", 3)
    assert result.returncode == code
    assert result.stdout.count("once") == 2 and "again" not in result.stderr


def test_a_stopped_run_is_not_started_again():
    process = subprocess.Popen(
        [str(PROGRAM), "launch", "--max_restarts", "3", "--num_processes", "2", "--no_python", "/bin/sh",
         "-c", "echo started; exec sleep 60"], stdout=subprocess.PIPE, text=True, env=environment())
    assert "started" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert text.count("started") <= 1


def test_second_interrupt_ends_at_once():
    process = subprocess.Popen(
        [str(PROGRAM), "launch", "--num_processes", "2", "--no_python", "/bin/sh", "-c",
         "trap '' INT TERM; echo ready; while :; do sleep 0.1; done"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert "ready" in process.stdout.readline() and "ready" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT and time.monotonic() - start < 2


def test_wrong_launches():
    cases = [
        (["launch"], "error: strata launch: found nothing to run, expected sft"),
        (["selftest", "--num_processes", "2"], "error: strata selftest: found nothing to run, expected sft"),
        (["launch", "--num_machines", "2", "--num_processes", "2", "--main_process_ip", "127.0.0.1", "--no_python",
          "/bin/true"], 'found "127.0.0.1", which is each machine itself, with num_machines 2'),
        (["launch", "train"], "error: train: found an unknown recipe, expected sft"),
        (["launch", "trl.scripts.sft"], "error: trl.scripts.sft: found an unknown recipe, expected sft"),
        (["--num_gpus=2", "--master_port", "60000", "train.py"], "error: model_name_or_path: found nothing"),
        (["--include", "localhost:0,1", "train.py"], "expected a known one; use gpu_ids 0,1"),
        (["launch", "--num_proceses", "2", "sft"], "did you mean --num_processes?"),
        (["launch", "--num_processes", "3", "--num_machines", "2", "--main_process_ip", "a",
          "--no_python", "/bin/true"], "num_processes: found 3, expected a multiple of "
                                       "num_machines (2)"),
        (["launch", "--learning_rate", "1", "sft"],
         "found a flag of the recipe before its name, expected it after"),
        (["launch", "--tpu", "sft"], "error: launch --tpu: found \"true\", expected false; not "
                                     "supported in this version"),
    ]
    for arguments, message in cases:
        result = run(*arguments)
        assert result.returncode == 2, arguments
        assert message in result.stderr
