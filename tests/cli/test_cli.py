# Oracle: the documented behaviour of the program (exit codes, exact messages), files that accelerate
# itself writes, and the kernel's list of processes.
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from terminal import Terminal

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRATA = str(ROOT / os.environ.get("STRATA_BUILD", "build/release") / "strata")

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("ACCELERATE_", "FSDP_", "SLURM_", "OMPI_", "PMI_", "STRATA_"))
    and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                     "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
}


@pytest.fixture(autouse=True)
def no_default_file(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "HF_HOME", str(tmp_path / "hf_home"))


def run(*arguments, **environment):
    return subprocess.run([STRATA, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**ENVIRONMENT, **environment})


def shown(result):
    """name -> (value, origin) from the lines of `config show`."""
    assert result.returncode == 0, result.stderr
    rows = re.findall(r"^(\w+): (.*?)  # (.*)$", result.stdout, re.M)
    return {name: (value, origin) for name, value, origin in rows}


# Commands and help.


def test_version_and_help():
    assert run("--version").stdout.startswith("strata ")
    overview = run("--help")
    assert overview.returncode == 0 and "strata launch" in overview.stdout
    for command in ("launch", "sft"):
        text = run(command, "--help")
        assert text.returncode == 0 and "usage: strata " + command in text.stdout
    assert "--learning_rate" in run("sft", "--help").stdout
    assert "--num_processes" in run("launch", "--help").stdout
    assert "--learning_rate" in run("launch", "sft", "--help").stdout


def test_a_folder_that_cannot_be_made_is_an_error_in_our_words():
    result = run("config", "default", "--config_file", "/proc/none/a.yaml")
    assert result.returncode == 1
    assert result.stderr == ("error: /proc/none: found no such file or directory, expected a path that "
                             "can be used; check it and its permissions\n")


def test_help_of_a_command_by_either_word():
    assert run("help", "launch").stdout == run("launch", "--help").stdout
    assert run("help", "lauch").returncode == 2


@pytest.mark.parametrize("columns", [60, 100])
def test_help_fits_the_terminal(columns):
    for command in ("sft", "launch", "slurm"):
        terminal = Terminal([STRATA, command, "--help"], columns=columns)
        assert terminal.end() == 0
        flags = terminal.text[terminal.text.index("--") - 2:].replace("\r", "").split("\n")
        known = [line for line in flags if line.startswith(("  --", "      "))]
        assert known and max(map(len, known)) <= columns, max(known, key=len)
        assert not [line for line in known if line.endswith(" ")]


def test_unknown_command():
    result = run("lauch")
    assert result.returncode == 2
    assert result.stderr == ("error: lauch: found an unknown command, expected a known one; did you "
                             "mean launch?\n")
    assert "expected one of launch, sft, " in run("zzz").stderr
    for word, advice in (("train", "; strata sft trains"), ("generate", "; strata chat answers"),
                         ("merge", "; strata merge-adapter folds"), ("train.py", "; write strata launch train.py\n")):
        result = run(word)
        assert result.returncode == 2 and f"error: {word}: found an unknown command" in result.stderr
        assert advice in result.stderr


@pytest.mark.parametrize("words", [["--help"], ["config", "docs"], ["config", "show"], ["env", "--json"]])
def test_a_full_disk_behind_standard_output_is_an_error(words):
    with open("/dev/full", "w") as full:
        result = subprocess.run([STRATA, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1, words
    assert "standard output: found " in result.stderr


def test_no_before_a_switch_that_is_off():
    result = run("sft", "--no_packing")
    assert result.returncode == 2
    assert result.stderr == ("error: --no_packing: found an unknown flag, expected a known one; write --packing "
                             "false, which it is by default\n")


@pytest.mark.parametrize("prefix", [["sft"], ["launch", "sft"], ["config", "show"]])
def test_unknown_flag_names_the_closest_and_exits_with_2(prefix):
    result = run(*prefix, "--learning-rat", "1")
    assert result.returncode == 2
    assert result.stderr == ("error: --learning-rat: found an unknown flag, expected a known one; "
                             "did you mean --learning_rate?\n")


@pytest.mark.parametrize("words, more", [
    (["merge-adapter", "--model_name_or_path", "base", "--adapter_name_or_path", "a"], "; the base is --base_model FOLDER"),
    (["merge-adapter", "--adapter-name-or-path=a", "--output_dir", "b"], ""), (["convert", "a", "--output_dir", "b"], ""),
    (["inspect", "--model", "a"], "")])
def test_commands_on_files_say_that_folders_stand_without_flags(words, more):
    result = run(*words)
    assert result.returncode == 2
    flag = next(word for word in words if word.startswith("--")).split("=")[0]
    assert result.stderr == (f"error: {flag}: found an unknown flag, expected the folders without flags before them, in the "
                             f"order that strata {words[0]} --help says{more}\n")


def test_required_settings_are_asked_for_before_any_rank_starts():
    for prefix in (["sft"], ["launch", "--num_processes", "2", "sft"]):
        result = run(*prefix)
        assert result.returncode == 2
        assert result.stderr.startswith("error: model_name_or_path: found nothing")


# config show, config check, config docs.


def test_show_prints_values_and_origins(tmp_path):
    own = tmp_path / "run.yaml"
    own.write_text("learning_rate: 3e-4\npacking: yes\nseed: 7\n")
    values = shown(run("config", "show", "--config", own, "--max-steps", 5, "--seed=8",
                       ACCELERATE_MIXED_PRECISION="no"))
    assert values["learning_rate"] == ("0.0003", f"{own}:1")
    assert values["packing"] == ("true", f"{own}:2")
    assert values["seed"] == ("8", "--seed")
    assert values["max_steps"] == ("5", "--max-steps")
    assert values["bf16"] == ("false",
                              "environment variable ACCELERATE_MIXED_PRECISION (mixed_precision)")
    assert values["max_length"] == ("1024", "default")


def test_check_names_file_and_line(tmp_path):
    own = tmp_path / "run.yaml"
    own.write_text("seed: 1\nmax_step: 5\n")
    result = run("config", "check", own)
    assert result.returncode == 2
    assert result.stderr == (f'error: {own}:2: found the unknown key "max_step", expected a known '
                             "setting; did you mean max_steps?\n")
    own.write_text("seed: 1\nmax_steps: 5\n")
    assert run("config", "check", own).stdout == f"{own}: no errors\n"
    assert run("config", "check", tmp_path / "missing.yaml").returncode == 2


def test_check_knows_files_of_other_kinds(tmp_path):
    model = tmp_path / "config.json"
    model.write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8}')
    result = run("config", "check", model)
    assert result.returncode == 2 and result.stderr.count("\n") == 1
    assert f"error: {model}: found a model's configuration" in result.stderr
    rows = tmp_path / "train.jsonl"
    rows.write_text('{"text": "a"}\n{"text": "b"}\n')
    result = run("config", "check", rows)
    assert result.returncode == 2
    assert "found 2 mappings, one after the other, expected a single one of settings" in result.stderr
    rows.write_text('a: 1\n---\nb: 2\n')
    assert "found 2 documents (after lines" in run("config", "check", rows).stderr


def test_accelerates_own_files_are_read(tmp_path):
    """accelerate's writer is the oracle for its file format."""
    script = """
import sys
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.utils import DistributedType
config = ClusterConfig(compute_environment="LOCAL_MACHINE", distributed_type=DistributedType.FSDP,
    mixed_precision="bf16", use_cpu=False, debug=False, num_processes=2, same_network=True,
    downcast_bf16="no", tpu_env=[],
    fsdp_config={"fsdp_version": 2, "fsdp_reshard_after_forward": False,
                 "fsdp_offload_params": False, "fsdp_state_dict_type": "SHARDED_STATE_DICT",
                 "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                 "fsdp_cpu_ram_efficient_loading": True, "fsdp_activation_checkpointing": True})
config.to_yaml_file(sys.argv[1])
config.to_json_file(sys.argv[2])
"""
    files = tmp_path / "a.yaml", tmp_path / "a.json"
    subprocess.run([sys.executable, "-c", script, *map(str, files)], check=True,
                   capture_output=True)
    for file in files:
        result = run("config", "show", "--config_file", file)
        values = shown(result)
        assert values["num_processes"][0] == "2"
        assert values["fsdp_sharding_strategy"][0] == "SHARD_GRAD_OP"
        assert values["bf16"][0] == "true"
        assert values["gradient_checkpointing"][0] == "true"
        assert result.stderr == ""


def test_docs_page_is_what_the_program_prints():
    assert run("config", "docs").stdout == (ROOT / "docs" / "guide" / "settings.md").read_text()


# launch.


def launch(script, *flags, **environment):
    return run("launch", *flags, "--no_python", "/bin/sh", "-c", script, **environment)


def test_ranks_know_each_other():
    result = launch("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR "
                    "$MASTER_PORT $OMP_NUM_THREADS $STRATA_LAUNCH_TIME", "--num_processes", 3)
    assert result.returncode == 0
    rows = {}
    for line in result.stdout.splitlines():
        words = re.sub(r"^\[rank \d+\] ", "", line).split()
        assert line.startswith(f"[rank {words[0]}] ") == (words[0] != "0")
        rows[int(words[0])] = words
    assert sorted(rows) == [0, 1, 2]
    for rank, words in rows.items():
        assert words[1:5] == [str(rank), "3", "3", "127.0.0.1"]
        assert words[5] == rows[0][5] and int(words[5]) > 0
        assert words[6] == str(max(len(os.sched_getaffinity(0)) // 3, 1))
        assert abs(time.time() - float(words[7])) < 60


def test_the_users_thread_count_is_kept():
    assert launch("echo $OMP_NUM_THREADS", OMP_NUM_THREADS="5").stdout == "5\n"
    assert launch("echo $OMP_NUM_THREADS", "--num_cpu_threads_per_process", 7).stdout == "7\n"


def test_two_machines():
    """Both launchers on this one: they meet, and their ranks get what accelerate's would."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    launchers = [subprocess.Popen(
        [STRATA, "launch", "--num_processes", "4", "--num_machines", "2", "--machine_rank", str(rank),
         "--main_process_ip", "localhost", "--main_process_port", str(port), "--no_python", "/bin/sh",
         "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $MASTER_PORT"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        for rank in (1, 0)]
    second, first = (launcher.communicate(timeout=60) for launcher in launchers)
    assert [launcher.returncode for launcher in launchers] == [0, 0], (first, second)
    meeting = first[0].split()[-1]
    assert sorted(first[0].splitlines()) == [f"0 0 4 localhost {meeting}",
                                             f"[rank 1] 1 1 4 localhost {meeting}"]
    assert sorted(second[0].splitlines()) == [f"[rank 2] 2 0 4 localhost {meeting}",
                                              f"[rank 3] 3 1 4 localhost {meeting}"]


def test_one_dying_rank_ends_all_with_its_code():
    start = time.monotonic()
    result = launch("[ $RANK = 1 ] && { echo reason >&2; exit 5; }; sleep 100", "--num_processes", 3)
    assert time.monotonic() - start < 10
    assert result.returncode == 5
    assert "[rank 1] reason\nerror: rank 1: ended with exit code 5; stopping the other ranks\n" \
        in result.stderr


def test_a_killed_rank_is_named():
    start = time.monotonic()
    result = launch("[ $RANK = 1 ] && kill -9 $$; sleep 100", "--num_processes", 2)
    assert time.monotonic() - start < 10
    assert result.returncode == 137
    assert "error: rank 1: killed by signal 9 (Killed)" in result.stderr


def test_log_dir(tmp_path):
    result = launch("echo out $RANK", "--num_processes", 2, "--log_dir", tmp_path / "logs")
    assert result.stdout == "out 0\n"
    for rank in (0, 1):
        assert (tmp_path / "logs" / f"rank_{rank}.log").read_text() == f"out {rank}\n"
    result = launch("echo out $RANK", "--num_processes", 2, "--log_dir", tmp_path / "logs", "-t", 3)
    assert sorted(result.stdout.splitlines()) == ["[rank 1] out 1", "out 0"]


def children_of(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def is_running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_a_stopped_launcher(number):
    process = subprocess.Popen([STRATA, "launch", "--num_processes", "2", "--no_python", "/bin/sleep",
                                "100"], env=ENVIRONMENT)
    deadline = time.monotonic() + 10
    while len(children_of(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks = children_of(process.pid)
    assert len(ranks) == 2
    process.send_signal(number)
    code = process.wait(timeout=10)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    while any(map(is_running, ranks)) and time.monotonic() < deadline + 10:
        time.sleep(0.02)
    assert not any(map(is_running, ranks))


def test_rank_0_keeps_the_terminal():
    main, side = pty.openpty()
    process = subprocess.Popen(
        [STRATA, "launch", "--num_processes", "2", "--no_python", "/bin/sh", "-c",
         "if [ -t 1 ]; then echo $RANK terminal; else echo $RANK pipe; fi"],
        stdin=side, stdout=side, stderr=side, env=ENVIRONMENT)
    assert process.wait(timeout=20) == 0
    os.close(side)
    text = b""
    try:
        while chunk := os.read(main, 4096):
            text += chunk
    except OSError:  # the terminal is gone once its other side is closed
        pass
    os.close(main)
    assert b"0 terminal" in text and b"[rank 1] 1 pipe" in text


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


def test_a_script_name_means_the_recipe():
    result = run("launch", "train.py", "--max_seq_len", "16")
    assert "train.py: running the built-in recipe sft in its place\n" in result.stderr
    assert "error: model_name_or_path: found nothing" in result.stderr


@pytest.mark.parametrize("words,recipe", [
    (["launch", "-m", "trl.scripts.sft"], "sft"), (["launch", "--num_processes", "2", "--module", "trl.scripts.dpo"], "dpo"),
    (["launch", "-m", "trl.scripts.reward"], "reward"), (["plan", "--cpu", "-m", "my.train_dpo"], "dpo"),
    (["slurm", "--gpus_per_node", "2", "-m", "my.train"], "sft"),
])
def test_a_module_means_the_recipe_of_its_last_word(words, recipe):
    result = run(*words)
    assert f"{words[-1]}: running the built-in recipe {recipe} in its place\n" in result.stderr
    assert "error: model_name_or_path: found nothing" in result.stderr


# What another method would train is another model.
@pytest.mark.parametrize("words,method", [
    (["launch", "examples/scripts/dpo_vlm.py"], "vlm"), (["launch", "--num_processes", "2", "run_mlm.py"], "mlm"),
    (["--num_gpus=2", "train-GRPO.py"], "grpo"), (["kto", "--beta", "0.1"], "kto"), (["plan", "prm.py"], "prm"),
    (["launch", "-m", "trl.scripts.grpo"], "grpo"),
])
def test_a_script_of_another_method_is_refused(words, method):
    result = run(*words)
    assert result.returncode == 2
    assert f"{words[-1] if words[0] != 'kto' else 'kto'}: found another method ({method}), expected supervised " \
           "fine-tuning (sft, seq2seq) or pairs of answers, one preferred to the other (dpo, reward)" in result.stderr
    assert "in its place" not in result.stderr


@pytest.mark.parametrize("name", ["train_promptsource.py", "sft_llama.py", "report.py", "podpourri.py", "sft_vs_vlm.py"])
def test_a_part_of_a_word_is_no_method(name):
    assert f"{name}: running the built-in recipe sft in its place" in run("launch", name).stderr


# Ranks that other launchers started.


def test_ranks_with_inconsistent_variables_are_refused():
    flags = ["sft", "--model_name_or_path", "m", "--dataset_name", "d"]
    result = run(*flags, RANK="2", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT="1")
    assert result.returncode == 2
    assert result.stderr.startswith("[rank 2] error: rank: found 2, expected less than the world")


def test_a_file_that_asks_for_more_ranks_is_refused(tmp_path):
    own = tmp_path / "run.yaml"
    own.write_text("model_name_or_path: m\ndataset_name: d\nnum_processes: 2\n")
    result = run("sft", "--config", own)
    assert result.returncode == 2
    assert result.stderr == (f"error: num_processes: found 2 ({own}:3) with 1 running, expected the "
                             "same; start with strata launch\n")


def test_ranks_get_the_launchers_settings(tmp_path):
    config = tmp_path / "fsdp.yaml"
    config.write_text("distributed_type: MULTI_CPU\nnum_processes: 1\n")
    script = f"{STRATA} config show"
    result = run("launch", "--config_file", config, "--no_python", "/bin/sh", "-c",
                 "echo $STRATA_LAUNCH_FLAGS; " + script)
    assert f'["--config_file", "{config}", "--no_python"]' in result.stdout
