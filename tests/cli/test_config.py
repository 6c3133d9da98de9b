# Oracle: documented precedence and messages of `strata config`, and files that accelerate itself writes.
import re
import subprocess
import sys

from bare_environment import ROOT, run


def shown(result):
    """name -> (value, origin) from the lines of `config show`."""
    assert result.returncode == 0, result.stderr
    rows = re.findall(r"^(\w+): (.*?)  # (.*)$", result.stdout, re.M)
    return {name: (value, origin) for name, value, origin in rows}


def test_a_folder_that_cannot_be_made_is_an_error_in_our_words():
    result = run("config", "default", "--config_file", "/proc/none/a.yaml")
    assert result.returncode == 1
    assert result.stderr == ("error: /proc/none: found no such file or directory, expected a path that "
                             "can be used; check it and its permissions\n")


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


def test_show_takes_the_recipe_as_plan_does():
    def values(*words):
        return {name: value for name, (value, _) in shown(run("config", "show", *words, "--seed", 8)).items()}

    assert values("dpo") == values("--recipe", "dpo") != values()


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
