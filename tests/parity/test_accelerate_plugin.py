# Oracle: accelerate's own launcher and FullyShardedDataParallelPlugin, given the same YAML: its
# arguments, its exported variables and the plugin's resolved values.
import random
import re
import subprocess

import pytest
import yaml

from running import PROGRAM, environment


class Reference:
    """What accelerate makes of a file."""

    def __init__(self, path):
        import accelerate.utils.dataclasses as dataclasses
        import torch
        from accelerate.commands.launch import _validate_launch_command, launch_command_parser
        from accelerate.utils.launch import prepare_multi_gpu_env

        args = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
        self.args, _, _ = _validate_launch_command(args)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("accelerate.utils.launch.is_port_in_use", lambda port: False)
            exported = prepare_multi_gpu_env(self.args)
            self.exported = {k: v for k, v in exported.items()
                             if k.startswith(("ACCELERATE_", "FSDP_"))}
            for name, value in self.exported.items():
                patch.setenv(name, value)
            # The plugin asks for a device to which it would broadcast; there is none here.
            patch.setattr(dataclasses, "is_cuda_available", lambda: True)
            patch.setattr(torch.cuda, "current_device", lambda: 0)
            self.plugin = dataclasses.FullyShardedDataParallelPlugin()


def shown(*flags, **variables):
    """Values of `strata config show`."""
    result = subprocess.run([str(PROGRAM), "config", "show", *map(str, flags)], text=True,
                            capture_output=True, env={**environment(), **variables}, timeout=60)
    assert result.returncode == 0, result.stderr
    return {name: yaml.safe_load(value)
            for name, value in re.findall(r"^(\w+): (.*?)  # ", result.stdout, re.M)}


BASE = {"compute_environment": "LOCAL_MACHINE", "debug": False, "distributed_type": "FSDP",
        "downcast_bf16": "no", "machine_rank": 0, "main_training_function": "main",
        "num_machines": 1, "num_processes": 2, "rdzv_backend": "static", "same_network": True,
        "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False, "use_cpu": False}

STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
BOTH = {
    "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"],
    "fsdp_activation_checkpointing": [True, False],
    "fsdp_cpu_ram_efficient_loading": [True, False],
    "fsdp_state_dict_type": ["FULL_STATE_DICT", "SHARDED_STATE_DICT"],
    "fsdp_offload_params": [False, True],
}
ONE = {**BOTH,
       "fsdp_sharding_strategy": STRATEGIES + [1, 2, 3, 4, 5, "3", "shard_grad_op"],
       "fsdp_backward_prefetch": ["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"],
       "fsdp_forward_prefetch": [True, False],
       "fsdp_use_orig_params": [True, False],
       "fsdp_sync_module_states": [True]}
TWO = {**BOTH, "fsdp_reshard_after_forward": [True, False]}


def grid():
    """Every value once in a random company, from a fixed seed."""
    rng = random.Random(0)
    for version, choices in ((1, ONE), (2, TWO)):
        longest = max(map(len, choices.values()))
        for index in range(2 * longest):
            section = {"fsdp_version": version}
            for key, values in choices.items():
                section[key] = values[index % len(values)] if index < longest else rng.choice(values)
            if version == 1 and index % 3 == 2:
                del section["fsdp_version"]  # older files do not say it
            if section["fsdp_auto_wrap_policy"] == "TRANSFORMER_BASED_WRAP" and index % 2:
                section["fsdp_transformer_layer_cls_to_wrap"] = "LlamaDecoderLayer"
            if section["fsdp_auto_wrap_policy"] == "SIZE_BASED_WRAP":
                section["fsdp_min_num_params"] = rng.choice([1, 2000, 100000000])
            top = {"mixed_precision": rng.choice(["no", "bf16", "fp16"]),
                   "num_processes": rng.choice([2, 8])}
            if index % 4 == 3:
                top.update(num_machines=2, machine_rank=1, main_process_ip="10.0.0.1",
                           main_process_port=29501)
            yield {**BASE, **top, "fsdp_config": section}


def expected(reference, file):
    """The plugin's values under this program's names."""
    plugin, args, section = reference.plugin, reference.args, file["fsdp_config"]
    values = {
        "num_processes": args.num_processes,
        "num_machines": args.num_machines,
        "machine_rank": args.machine_rank,
        "bf16": reference.exported["ACCELERATE_MIXED_PRECISION"] == "bf16",
        "fp16": reference.exported["ACCELERATE_MIXED_PRECISION"] == "fp16",
    }
    if "main_process_ip" in file:
        values["main_process_ip"] = args.main_process_ip
        values["main_process_port"] = args.main_process_port
    if plugin.fsdp_version == 2:
        values["fsdp_sharding_strategy"] = ("FULL_SHARD" if plugin.reshard_after_forward
                                            else "SHARD_GRAD_OP")
    else:
        values["fsdp_sharding_strategy"] = plugin.sharding_strategy.name.lstrip("_")
        values["fsdp_backward_prefetch"] = (plugin.backward_prefetch.name
                                            if plugin.backward_prefetch else "NO_PREFETCH")
        values["fsdp_forward_prefetch"] = plugin.forward_prefetch
    policy = {None: "NO_WRAP", "transformer_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
              "size_based_auto_wrap_policy": "SIZE_BASED_WRAP"}
    values["fsdp_auto_wrap_policy"] = policy[getattr(plugin.auto_wrap_policy, "__name__", None)]
    values["fsdp_transformer_layer_cls_to_wrap"] = plugin.transformer_cls_names_to_wrap or []
    if plugin.min_num_params is not None:
        values["fsdp_min_num_params"] = plugin.min_num_params
    if plugin.activation_checkpointing:  # false leaves the choice to gradient_checkpointing
        values["gradient_checkpointing"] = True
    # Version 1 has a switch here, version 2 a policy or none.
    offload = plugin.cpu_offload
    values["fsdp_offload_params"] = (getattr(offload, "offload_params", None)
                                     if plugin.fsdp_version == 1
                                     else type(offload).__name__ == "CPUOffloadPolicy")
    assert values["fsdp_offload_params"] == section["fsdp_offload_params"]
    return values


def test_resolved_values_equal_the_plugins(tmp_path):
    count = 0
    for index, file in enumerate(grid()):
        path = tmp_path / f"{index}.yaml"
        path.write_text(yaml.safe_dump(file))
        reference = Reference(path)
        wanted = expected(reference, file)
        from_file = shown("--config_file", path)
        assert {name: from_file[name] for name in wanted} == wanted, path.read_text()
        # The launcher's exported variables say the same as its file.
        launch_only = {"num_processes", "num_machines", "machine_rank", "main_process_ip",
                       "main_process_port"}
        from_environment = shown(**reference.exported)
        wanted = {name: value for name, value in wanted.items() if name not in launch_only}
        assert {name: from_environment[name] for name in wanted} == wanted, reference.exported
        count += 1
    assert count >= 25


# accelerate ignores these; here they count, or are refused by name.
@pytest.mark.parametrize("section, ours", [
    ({"fsdp_version": 1, "fsdp_reshard_after_forward": "SHARD_GRAD_OP"},
     {"fsdp_sharding_strategy": "SHARD_GRAD_OP"}),
    ({"fsdp_version": 1, "fsdp_backward_prefetch_policy": "BACKWARD_POST"},
     {"fsdp_backward_prefetch": "BACKWARD_POST"}),
])
def test_known_differences(tmp_path, section, ours):
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({**BASE, "mixed_precision": "bf16", "fsdp_config": section}))
    reference = Reference(path)
    assert reference.plugin.sharding_strategy.name == "FULL_SHARD"
    assert reference.plugin.backward_prefetch is None
    values = shown("--config_file", path)
    assert {name: values[name] for name in ours} == ours


@pytest.mark.parametrize("change", [
    {"mixed_precison": "bf16"},
    {"distributed_type": None},
    {"distributed_type": "FSPD"},
    {"mixed_precision": "bf17"},
    {"fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER_WRAP"}},
    {"fsdp_config": {"fsdp_sharding_strategy": "SHARD"}},
    {"fsdp_config": {"fsdp_cpu_ram_efficient_loading": True, "fsdp_sync_module_states": False}},
    {"fsdp_config": {"fsdp_activation_checkpointing": True, "fsdp_version": 1,
                     "fsdp_activation_checkpointing_offload": True}},
])
def test_what_accelerate_refuses_is_refused(tmp_path, change):
    file = {**BASE, "mixed_precision": "bf16", "fsdp_config": {"fsdp_version": 1}, **change}
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in file.items() if v is not None}))
    with pytest.raises(Exception):
        Reference(path)
    result = subprocess.run([str(PROGRAM), "config", "check", str(path)], text=True,
                            capture_output=True, env=environment(), timeout=60)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ") and str(path) in result.stderr
