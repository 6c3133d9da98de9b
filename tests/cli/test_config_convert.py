# Oracle: the converted file read back gives the same settings as its source; accelerate's own
# DeepSpeedPlugin reads it and finds the same stage, clipping and accumulation.
import json
import re
import subprocess

import pytest
import yaml

from running import PROGRAM, environment


def strata(*words):
    return subprocess.run([str(PROGRAM), "config", *map(str, words)], text=True,
                          capture_output=True, env=environment(), timeout=60)


def shown(*words):
    result = strata("show", *words)
    assert result.returncode == 0, result.stderr
    return {name: yaml.safe_load(value)
            for name, value in re.findall(r"^(\w+): (.*?)  # ", result.stdout, re.M)}


OWN = """
fsdp_sharding_strategy: {strategy}
per_device_train_batch_size: 4
gradient_accumulation_steps: 3
max_grad_norm: 0.5
learning_rate: 1e-4
adam_beta2: 0.95
weight_decay: 0.01
decay_norms_and_biases: true
"""
KEPT = ["per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm",
        "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "bf16", "fp16",
        "lr_scheduler_type", "lr_scheduler_kwargs", "fp16_initial_scale", "fp16_scale_window",
        "fp16_hysteresis", "fp16_min_scale", "fp16_loss_scale", "offload_param_device",
        "offload_optimizer_device", "offload_optimizer_nvme_path", "fsdp_reshard_group_size"]

CASES = {
    "stage 3": (OWN.format(strategy="FULL_SHARD") + "bf16: true\n", 3),
    "stage 2": (OWN.format(strategy="ZERO2") + "bf16: false\n", 2),
    "stage 1": (OWN.format(strategy="ZERO1") + "fp16: true\nfp16_hysteresis: 3\n", 1),
    "stage 0": ("fsdp_sharding_strategy: NO_SHARD\n", 0),
    "offload": ("offload_optimizer_device: nvme\noffload_optimizer_nvme_path: /d\n"
                "offload_param_device: cpu\n", 3),
    "shared rows": ("fsdp_sharding_strategy: ZERO2\nsequence_parallel_size: 4\n", 2),
    "neighbours": ("fsdp_sharding_strategy: FULL_SHARD\nfsdp_reshard_group_size: 2\n", 3),
    "lion": ("optim: lion_32bit\nadam_beta1: 0.8\ndecay_norms_and_biases: true\n", 3),
    "adam": ("optim: adam\nadam_epsilon: 1e-6\ndecay_norms_and_biases: true\n", 3),
    "sgd": ("optim: sgd\nlearning_rate: 0.1\ndecay_norms_and_biases: true\n", 3),
    "momentum": ("optim: sgd\noptim_args: momentum=0.9,dampening=0.25\ndecay_norms_and_biases: true\n", 3),
    "scheduler": ("lr_scheduler_type: WarmupLR\nlr_scheduler_kwargs: {warmup_num_steps: 5}\n", 3),
}


@pytest.mark.parametrize("name", CASES)
def test_own_file_to_deepspeed_and_back(name, tmp_path):
    text, stage = CASES[name]
    source, target = tmp_path / "run.yaml", tmp_path / "ds.json"
    source.write_text(text)
    result = strata("convert", "--to", "deepspeed", source, "--output_file", target)
    assert result.returncode == 0, result.stderr
    file = json.loads(target.read_text())
    assert file["zero_optimization"]["stage"] == stage
    before, after = shown("--config", source), shown("--deepspeed", target)
    assert {key: after[key] for key in KEPT} == {key: before[key] for key in KEPT}
    if before["weight_decay"]:
        assert before["decay_norms_and_biases"] and after["decay_norms_and_biases"]
    assert after["optim"] == before["optim"] and after["optim_args"] == before["optim_args"]
    assert after["parallelism_config_sp_size"] == before["parallelism_config_sp_size"]
    assert after["fsdp_sharding_strategy"] == before["fsdp_sharding_strategy"]


def test_an_optimizer_that_spares_norms_is_left_to_the_flags(tmp_path):
    """With the block DeepSpeed would decay them."""
    source, target = tmp_path / "run.yaml", tmp_path / "ds.json"
    source.write_text(OWN.format(strategy="ZERO2").replace("decay_norms_and_biases: true", "decay_norms_and_biases: false"))
    result = strata("convert", "--to", "deepspeed", source, "--output_file", target)
    assert result.returncode == 0 and "optimizer" not in json.loads(target.read_text())
    assert "left out: the optimizer: DeepSpeed's would also decay norms and biases" in result.stderr
    assert "left out: adam_beta2, decay_norms_and_biases, learning_rate, weight_decay; " in result.stderr


def test_accelerate_reads_it(tmp_path):
    from accelerate.utils.dataclasses import DeepSpeedPlugin

    (tmp_path / "run.yaml").write_text(OWN.format(strategy="FULL_SHARD") + "bf16: true\n")
    strata("convert", "--to", "deepspeed", tmp_path / "run.yaml", "--output_file",
           tmp_path / "ds.json")
    plugin = DeepSpeedPlugin(hf_ds_config=str(tmp_path / "ds.json"))
    assert (plugin.zero_stage, plugin.gradient_clipping, plugin.gradient_accumulation_steps) == \
        (3, 0.5, 3)
    assert plugin.is_zero3_init_enabled() and plugin.zero3_save_16bit_model


def test_accelerates_file_to_deepspeed(tmp_path):
    source = tmp_path / "a.yaml"
    source.write_text("distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 8\n"
                      "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n")
    result = strata("convert", "--to", "deepspeed", source)
    file = json.loads(result.stdout)
    assert file["zero_optimization"]["stage"] == 2 and file["bf16"] == {"enabled": True}
    assert file["train_micro_batch_size_per_gpu"] == "auto"
    assert "left out: num_processes; a ds_config has no place for them" in result.stderr


def test_what_deepspeed_does_not_have_is_refused(tmp_path):
    source = tmp_path / "a.yaml"
    source.write_text("fsdp_sharding_strategy: HYBRID_SHARD\n")
    result = strata("convert", "--to", "deepspeed", source)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {source}:1: found HYBRID_SHARD, expected a strategy")
