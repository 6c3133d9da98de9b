# Oracle: accelerate's own questionnaire, driven by the same keys through a terminal, and accelerate's
# own reader of the files that `strata config` writes.
import json
import os
import subprocess
import sys
import termios

import pytest
import yaml

from running import PROGRAM, environment
from terminal import Terminal

DOWN = "\x1b[B"
ACCELERATE = [sys.executable, "-m", "accelerate.commands.accelerate_cli"]


def drive(command, answers, quiet_s):
    """Types each answer once the program waits for it. Returns exit code and text."""
    terminal = Terminal(command)
    for answer in answers:
        assert terminal.read_until_quiet(quiet_s), f"ended before {answer!r}: {terminal.text[-800:]}"
        terminal.send(answer)
    return terminal.end(), terminal.text


def pick(index):
    return DOWN * index + "\r"


# Keys of one way through the questions: menus by arrow keys (some by number), lines with return.
# The same strings drive both programs.
FSDP_1 = [pick(0), pick(4), "1\r", "no\r", "\r", "\r", "yes\r",  # one machine of GPUs, FSDP
          "\x1b[A\r",                                             # version 1: one up from 2
          pick(1), "\r", pick(0), "\r", "LlamaDecoderLayer\r", pick(1), pick(2), "yes\r", "no\r",
          "no\r", "yes\r", "yes\r", "8\r", pick(2)]
FSDP_2 = ["\r", "4\r", "2\r", pick(1), "10.0.0.7\r", "29501\r", "no\r", "c10d\r", "\r", "\r", "\r",
          "yes\r", "\r", "no\r", "yes\r", pick(1), "2000000\r", "\r", "\r", "\r", "yes\r", "2\r",
          "4\r", "\r", "\r", "16\r", pick(1)]
FSDP_2_SHARED_ROWS = [*FSDP_2[:-3], "2\r", pick(1), "16\r", pick(1)]
MULTI_CPU = ["\r", pick(1), "\r", "yes\r", "\r", "\r", "3\r", "\r"]
MULTI_GPU = ["\r", pick(4), "\r", "\r", "\r", "\r", "\r", "\r", "2\r", "0,1\r", "yes\r", pick(2)]
PATHS = {"fsdp1": FSDP_1, "fsdp2": FSDP_2, "fsdp2_shared_rows": FSDP_2_SHARED_ROWS, "multi_cpu": MULTI_CPU, "multi_gpu": MULTI_GPU}


@pytest.mark.parametrize("name", PATHS)
def test_same_keys_give_accelerates_file(name, tmp_path):
    ours, theirs = tmp_path / "ours.yaml", tmp_path / "theirs.yaml"
    code, text = drive([PROGRAM, "config", "--config_file", ours], PATHS[name], 0.03)
    assert code == 0, text
    assert f"accelerate configuration saved at {ours}" in text
    code, text = drive([*ACCELERATE, "config", "--config_file", theirs], PATHS[name], 0.25)
    assert code == 0, text
    assert ours.read_text() == theirs.read_text()


# The same questions as plain lines: no terminal, so options by number or text.
PLAIN_FSDP_1 = ["0", "multi-GPU", "1", "no", "", "", "yes", "1", "SHARD_GRAD_OP", "", "0", "",
                "LlamaDecoderLayer", "1", "2", "yes", "no", "no", "yes", "yes", "8", "bf16"]


def answer_lines(lines, *arguments):
    return subprocess.run([str(PROGRAM), "config", *map(str, arguments)],
                          input="".join(line + "\n" for line in lines), capture_output=True,
                          text=True, timeout=30, env=environment())


def test_plain_lines_give_the_file_of_the_menus(tmp_path):
    plain, keys = tmp_path / "plain.yaml", tmp_path / "keys.yaml"
    result = answer_lines(PLAIN_FSDP_1, "--config_file", plain)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "\x1b" not in result.stdout
    drive([PROGRAM, "config", "--config_file", keys], FSDP_1, 0.03)
    assert plain.read_text() == keys.read_text()


def test_wrong_answers_are_asked_again(tmp_path):
    file = tmp_path / "a.yaml"
    lines = ["7", "1", "0",               # a wrong number, then the cloud, then this machine
             "TPU", "multi-CPU", "none", "0", "2", "256", "1", "10.0.0.1", "70000", "29500", "maybe",
             "", "", "yes", "no", "", "4", "fp8", "no"]
    result = answer_lines(lines, "--config_file", file)
    assert result.returncode == 0, result.stdout + result.stderr
    for text in ("expected a number from 0 to 1, or one of the texts",
                 "expected an integer from 1 to 65535", "expected yes or no",
                 "fp8 is not supported here", "start the ranks with `mpirun"):
        assert text in result.stdout
    written = yaml.safe_load(file.read_text())
    assert written["num_machines"] == 2 and written["main_process_port"] == 29500
    assert written["distributed_type"] == "MULTI_CPU" and written["machine_rank"] == 1


def test_nothing_is_written_when_the_answers_end(tmp_path):
    file = tmp_path / "a.yaml"
    result = answer_lines(["0", "1"], "--config_file", file)
    assert result.returncode == 2
    assert "found its end, expected an answer to" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_in_a_menu_restores_the_terminal_and_writes_nothing(tmp_path):
    file = tmp_path / "a.yaml"
    terminal = Terminal([PROGRAM, "config", "--config_file", file])
    before = termios.tcgetattr(terminal.main)[3]
    terminal.read_until_quiet(0.05)
    assert termios.tcgetattr(terminal.main)[3] & termios.ICANON == 0
    terminal.send("\x03")
    terminal.process.wait(timeout=10)
    assert terminal.process.returncode == 130
    assert termios.tcgetattr(terminal.main)[3] == before
    os.close(terminal.main)
    assert not file.exists()


ZERO_3 = ["0", "multi-GPU", "1", "", "", "yes", "no", "3", "nvme", "cpu", "/scratch", "4", "yes",
          "0.5", "yes", "yes", "", "8", "bf16"]
DS_FILE = ["0", "multi-GPU", "2", "0", "10.0.0.1", "29500", "", "", "", "yes", "yes", "ds.json", "",
           "", "standard", "16"]


def test_accelerate_reads_every_written_file(tmp_path):
    """Each way through, YAML and JSON, default, update and convert: one process of accelerate."""
    written = {}

    def run(*arguments):
        result = subprocess.run([str(PROGRAM), "config", *map(str, arguments)], capture_output=True,
                                text=True, timeout=30, env=environment())
        assert result.returncode == 0, result.stderr

    for name, lines in (("fsdp1", PLAIN_FSDP_1), ("zero3", ZERO_3), ("ds_file", DS_FILE)):
        for kind in ("yaml", "json"):
            file = tmp_path / f"{name}.{kind}"
            result = answer_lines(lines, "--config_file", file)
            assert result.returncode == 0, result.stdout + result.stderr
            written[file] = None
    run("default", "--config_file", tmp_path / "default.yaml", "--mixed_precision", "bf16")
    old = tmp_path / "old.yaml"
    old.write_text("distributed_type: FSDP\nnum_processes: 2\nmixed_precision: no\n")
    run("update", "--config_file", old)
    run("convert", "--to", "fsdp2", tmp_path / "fsdp1.yaml", "--output_file", tmp_path / "v2.yaml")
    files = [*written, tmp_path / "default.yaml", old, tmp_path / "v2.yaml"]
    script = """
import json, sys
from accelerate.commands.config.config_args import load_config_from_file
print(json.dumps([load_config_from_file(f).to_dict() for f in sys.argv[1:]], default=str))
"""
    result = subprocess.run([sys.executable, "-c", script, *map(str, files)], capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    read = dict(zip((f.name for f in files), json.loads(result.stdout)))
    assert read["fsdp1.yaml"] == read["fsdp1.json"] and read["zero3.yaml"] == read["zero3.json"]
    assert read["fsdp1.yaml"]["fsdp_config"]["fsdp_reshard_after_forward"] == "SHARD_GRAD_OP"
    assert read["zero3.yaml"]["deepspeed_config"] == {
        "gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "offload_optimizer_device": "nvme",
        "offload_optimizer_nvme_path": "/scratch", "offload_param_device": "cpu",
        "zero3_init_flag": True, "zero3_save_16bit_model": True, "zero_stage": 3}
    assert read["ds_file.yaml"]["deepspeed_config"]["deepspeed_config_file"] == "ds.json"
    assert "mixed_precision" not in read["ds_file.yaml"]
    assert read["default.yaml"]["mixed_precision"] == "bf16"
    assert read["old.yaml"]["mixed_precision"] is False  # YAML 1.1 read the unquoted no
    assert read["v2.yaml"]["fsdp_config"]["fsdp_version"] == 2


FSDP_1_FILES = [
    {"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_backward_prefetch": "BACKWARD_PRE",
     "fsdp_use_orig_params": True, "fsdp_offload_params": False},
    {"fsdp_version": 1, "fsdp_reshard_after_forward": "HYBRID_SHARD", "fsdp_forward_prefetch": True,
     "fsdp_sync_module_states": True, "fsdp_min_num_params": 100},
    {"fsdp_sharding_strategy": "NO_SHARD", "fsdp_transformer_layer_cls_to_wrap": "T5Block,a: b #c",
     "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_activation_checkpointing": False},
]


@pytest.mark.parametrize("section", FSDP_1_FILES)
def test_to_fsdp2_equals_accelerates(section, tmp_path):
    source, theirs, ours = tmp_path / "v1.yaml", tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    source.write_text(yaml.safe_dump({"distributed_type": "FSDP", "mixed_precision": "no",
                                      "main_process_ip": "10.0.0.1", "fsdp_config": section}))
    script = ("import sys, yaml; from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2; "
              "print(yaml.safe_dump(convert_config_to_fsdp2(yaml.safe_load(open(sys.argv[1])))), "
              "end='')")
    theirs.write_text(subprocess.run([sys.executable, "-c", script, str(source)], check=True,
                                     capture_output=True, text=True).stdout)
    result = subprocess.run([str(PROGRAM), "to-fsdp2", "--config_file", str(source),
                             "--output_file", str(ours)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert ours.read_text() == theirs.read_text()
    again = subprocess.run([str(PROGRAM), "to-fsdp2", "--config_file", str(ours)],
                           capture_output=True, text=True)
    assert again.returncode == 2
    assert again.stderr == (f"error: {ours}: fsdp_version: found 2 already, expected 1; there is "
                            "nothing to convert\n")


def test_existing_files_are_kept(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("fsdp_config: {fsdp_version: 1, fsdp_offload_params: false}\n")
    before = file.read_text()
    other = tmp_path / "b.yaml"
    other.write_text("old")
    for arguments in (["default", "--config_file", file],
                      ["convert", "--to", "fsdp2", file, "--output_file", other]):
        result = subprocess.run([str(PROGRAM), "config", *map(str, arguments)], capture_output=True,
                                text=True)
        assert result.returncode == 2 and "expected none" in result.stderr
    assert file.read_text() == before and other.read_text() == "old"
