# Oracle: the operating system's limit of a program's memory: room for a few tensors, not for the model.
import json
import resource
import shutil
import subprocess

import pytest
import safetensors.torch
import torch

import tiny_llama
from running import PROGRAM, base_flags, environment, run_strata, strata


def limited(megabytes):
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20,) * 2)


@pytest.fixture(scope="module")
def program_data():
    """Megabytes of memory of its own (without maps of files) that the program starts with."""
    low, high = 16, 1024
    while high - low > 8:
        middle = (low + high) // 2
        process = subprocess.run(
            [str(PROGRAM), "--version"], capture_output=True, env=environment(), preexec_fn=limited(middle))
        low, high = (low, middle) if process.returncode == 0 else (middle, high)
    return high


@pytest.mark.parametrize("target", ["dcp", "bin", "strata", "safetensors", "adapter"])
def test_memory_is_bounded_by_the_largest_tensor(program_data, tmp_path, target):
    """A model of 16 tensors of 16 MB, converted with room for a few of them."""
    size = 16 << 20
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    tensors = {f"model.layers.{i}.self_attn.q_proj.weight": torch.full((2048, 2048), float(i))
               for i in range(16)}
    safetensors.torch.save_file(tensors, model / "model.safetensors")
    words = ["convert", model, tmp_path / "out", "--to", target]
    if target == "adapter":
        adapter = tmp_path / "adapter"
        adapter.mkdir()
        (adapter / "adapter_config.json").write_text(json.dumps(
            {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}))
        safetensors.torch.save_file(
            {f"base_model.model.{n.removesuffix('.weight')}.lora_{k}.weight": torch.ones(s)
             for n in tensors for k, s in (("A", (2, 2048)), ("B", (2048, 2)))},
            adapter / "adapter_model.safetensors")
        words = ["merge-adapter", adapter, tmp_path / "out", "--base_model", model]

    strata(*words, preexec_fn=limited(program_data + (6 * size >> 20)))
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) >= 16 * size


@pytest.fixture(scope="module")
def large(inputs, tmp_path_factory):
    """States of a model of 192 MB whose largest tensor has 16 MB, of every kind that is converted:
    saved by two ranks (weights, and a LoRA adapter), in safetensors, as DCP, as torch.save."""
    folder = tmp_path_factory.mktemp("large")
    model = tiny_llama.save_model(folder / "model", hidden_size=1024, intermediate_size=4096,
                                  num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4)
    flags = dict(max_steps=1, max_length=8, save_strategy="steps", save_steps=1, optim="sgd",
                 learning_rate=1e-3)
    lora = dict(use_peft=True, lora_r=2, lora_target_modules=["q_proj", "up_proj"])
    for name, more in (("sharded", {}), ("lora", lora)):
        run = run_strata(base_flags(model, inputs.data("messages"), folder / name, **flags, **more), 2)
        assert len(list(run.folder.glob("checkpoint-1/rank-*.safetensors"))) == 2
    found = {"model": model, "sharded": folder / "sharded" / "checkpoint-1",
             "lora": folder / "lora" / "checkpoint-1"}
    for kind in ("dcp", "bin"):
        found[kind] = folder / kind
        strata("convert", found["sharded"], found[kind], "--to", kind)
    yield found
    shutil.rmtree(folder)


@pytest.mark.parametrize("source,target", [("sharded", "safetensors"), ("sharded", "dcp"),
                                           ("sharded", "bin"), ("sharded", "merge-weights"),
                                           ("dcp", "safetensors"), ("dcp", "strata"),
                                           ("bin", "safetensors"), ("bin", "dcp"),
                                           ("lora", "merge-adapter")])
def test_memory_is_bounded_whatever_the_source(program_data, large, tmp_path, source, target):
    words = {"merge-weights": ["merge-weights", large[source], tmp_path / "out"],
             "merge-adapter": ["merge-adapter", large[source], tmp_path / "out", "--base_model",
                               large["model"]],
             }.get(target, ["convert", large[source], tmp_path / "out", "--to", target])
    strata(*words, preexec_fn=limited(program_data + 6 * 16))
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) > 190e6
    shutil.rmtree(tmp_path / "out")


@pytest.fixture(scope="module")
def moments(inputs, tmp_path_factory):
    """The state of an AdamW run of two ranks, three times 128 MB, in every format that holds it."""
    folder = tmp_path_factory.mktemp("moments")
    model = tiny_llama.save_model(folder / "model", hidden_size=1024, intermediate_size=4096,
                                  num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4)
    flags = dict(max_steps=1, max_length=8, save_strategy="steps", save_steps=1, learning_rate=1e-3)
    run_strata(base_flags(model, inputs.data("messages"), folder / "run", **flags), 2)
    found = {"sharded": folder / "run" / "checkpoint-1"}
    for kind in ("dcp", "bin"):
        found[kind] = folder / kind
        strata("convert", found["sharded"], found[kind], "--to", kind)
    yield found
    shutil.rmtree(folder)


@pytest.mark.parametrize("source,target", [("sharded", "dcp"), ("sharded", "bin"), ("sharded", "strata"),
                                           ("dcp", "strata"), ("bin", "strata"), ("bin", "dcp"),
                                           ("dcp", "merge-weights")])
def test_memory_is_bounded_with_moments(program_data, moments, tmp_path, source, target):
    out = tmp_path / "out"
    words = (["merge-weights", moments[source], out] if target == "merge-weights"
             else ["convert", moments[source], out, "--to", target])
    strata(*words, preexec_fn=limited(program_data + 6 * 16))
    parts = 1 if target == "merge-weights" else 3
    assert sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) > parts * 125e6
    shutil.rmtree(out)
