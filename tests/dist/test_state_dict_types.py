# Oracle: the run with SHARDED_STATE_DICT, to the bit; from_pretrained() of transformers and PEFT.
import json
import shutil
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

from running import PROGRAM, base_flags, environment, run_program, run_strata

TYPES = ["SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"]
LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, learning_rate=2e-2,
            lora_target_modules=["q_proj", "up_proj"], lora_modules_to_save=["lm_head"])


def flags_of(inputs, output, kind, lora, **flags):
    return base_flags(inputs.model("odd"), inputs.data("messages"), output, max_steps=4,
                      save_strategy="steps", save_steps=2, fsdp_state_dict_type=kind,
                      **{**(LORA if lora else {}), **flags})


@pytest.fixture(scope="module")
def runs(inputs, tmp_path_factory):
    known = {}

    def run(kind, lora):
        if (kind, lora) not in known:
            folder = tmp_path_factory.mktemp("run")
            known[kind, lora] = run_strata(flags_of(inputs, folder, kind, lora), 2)
        return known[kind, lora]

    return run


def load(inputs, folder, lora):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    if lora:
        base = AutoModelForCausalLM.from_pretrained(inputs.model("odd"))
        return PeftModel.from_pretrained(base, folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model


def weights_file(lora):
    return "adapter_model.safetensors" if lora else "model.safetensors"


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", TYPES)
def test_the_result_is_loaded(inputs, runs, kind, lora):
    found, oracle = runs(kind, lora), runs("SHARDED_STATE_DICT", lora)
    name = weights_file(lora)
    assert found.history == oracle.history
    assert (found.folder / name).read_bytes() == (oracle.folder / name).read_bytes()
    load(inputs, found.folder, lora)


@pytest.mark.parametrize("kind", TYPES)
def test_a_branch_that_gets_no_gradient_is_saved(inputs, tmp_path, kind):
    """Behind the layer the model multiplies by zeros, as in a block that was added as an identity. It was an error."""
    model = shutil.copytree(inputs.model("odd"), tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.self_attn.o_proj.weight"].zero_()
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    run = run_strata({**flags_of(inputs, tmp_path / "out", kind, lora=True), "model_name_or_path": model}, 2)
    assert "was not saved" not in run.text
    saved = load_file(run.folder / "adapter_model.safetensors")
    path = "base_model.model.model.layers.{}.self_attn.q_proj.lora_B.weight"
    assert [bool(saved[path.format(layer)].any()) for layer in range(3)] == [True, False, True]


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_a_checkpoint_of_whole_tensors_is_a_model_folder(inputs, runs, tmp_path, lora):
    from transformers import AutoTokenizer

    run = runs("FULL_STATE_DICT", lora)
    checkpoint = run.folder / "checkpoint-4"
    assert not list(checkpoint.glob("rank-*"))
    # Two ranks wrote one file: it is the result's, to the bit.
    name = weights_file(lora)
    assert (checkpoint / name).read_bytes() == (run.folder / name).read_bytes()
    ours, result = (load(inputs, f, lora).state_dict() for f in (checkpoint, run.folder))
    assert all(torch.equal(ours[key], value) for key, value in result.items())
    AutoTokenizer.from_pretrained(checkpoint)
    moments = load_file(checkpoint / "optimizer.safetensors")
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert {n: r["shape"] for n, r in manifest["tensors"].items() if not n.startswith("parameter/")} == {
        n: list(t.shape) for n, t in moments.items()}
    # What accelerate calls a full state, out of either kind.
    for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        subprocess.run([str(PROGRAM), "convert", runs(kind, lora).folder / "checkpoint-4",
                        tmp_path / kind, "--to", "bin"], check=True, env=environment())
    for file in ("adapter_model.bin" if lora else "pytorch_model_fsdp.bin", "optimizer.bin"):
        full, sharded = (torch.load(tmp_path / kind / file, weights_only=True)
                         for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"))
        full, sharded = full.get("state", full), sharded.get("state", sharded)
        assert full.keys() == sharded.keys()
        for key, value in full.items():
            if isinstance(value, dict):
                assert all(torch.equal(v, sharded[key][k]) for k, v in value.items()), key
            else:
                assert torch.equal(value, sharded[key]), key


@pytest.mark.parametrize("world,kind,lora", [(2, "FULL_STATE_DICT", False), (3, "FULL_STATE_DICT", True),
                                             (1, "SHARDED_STATE_DICT", False),
                                             (2, "LOCAL_STATE_DICT", False)])
def test_every_kind_is_resumed_by_every_other(inputs, runs, tmp_path, world, kind, lora):
    whole = runs("FULL_STATE_DICT", lora)
    shutil.copytree(whole.folder / "checkpoint-2", tmp_path / "out" / "checkpoint-2")
    shutil.copy(whole.folder / "metrics.jsonl", tmp_path / "out")
    batches = dict(per_device_train_batch_size=4 // world) if world != 3 else {}
    found = run_strata(flags_of(inputs, tmp_path / "out", kind, lora, resume_from_checkpoint=True,
                                **batches), world)
    if world == 2:
        assert found.history == whole.history
        assert ((found.folder / "model.safetensors").read_bytes()
                == (whole.folder / "model.safetensors").read_bytes())
    elif world == 1:
        assert [row["loss"] for row in found.history] == pytest.approx(whole.losses, abs=1e-5)


@pytest.fixture(scope="module")
def large_model(tmp_path_factory):
    """67 MB of weights, 201 MB of state: what goes past the page cache, and shows in memory."""
    import tiny_llama

    return tiny_llama.save_model(
        tmp_path_factory.mktemp("large") / "model", hidden_size=512, intermediate_size=2048,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4)


def test_whole_tensors_take_no_more_memory_than_ranges(inputs, large_model, tmp_path):
    def flags(kind, **more):
        return base_flags(large_model, inputs.data("messages"), tmp_path / kind, max_steps=2,
                          save_strategy="steps", save_steps=1, learning_rate=1e-4,
                          fsdp_state_dict_type=kind, **more)

    peaks, results = {}, {}
    for kind in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
        run = run_program(flags(kind), 2)
        # Of rank 0, which would hold the whole if anything was gathered: 201 MB instead of 101.
        peaks[kind] = run.metrics[-1]["peak_rss_mb"]
        results[kind] = (run.folder / "model.safetensors").read_bytes()
    assert peaks["FULL_STATE_DICT"] < peaks["SHARDED_STATE_DICT"] + 20, peaks
    assert results["FULL_STATE_DICT"] == results["SHARDED_STATE_DICT"]
    full = tmp_path / "FULL_STATE_DICT"
    assert (full / "checkpoint-2" / "model.safetensors").read_bytes() == results["FULL_STATE_DICT"]
    subprocess.run([str(PROGRAM), "inspect", full / "checkpoint-2", "--verify"], check=True,
                   env=environment(), capture_output=True)
    shutil.rmtree(full / "checkpoint-2")
    (full / "latest").write_text("checkpoint-1\n")
    again = run_program(flags("FULL_STATE_DICT", resume_from_checkpoint=True), 2)
    assert (again.folder / "model.safetensors").read_bytes() == results["FULL_STATE_DICT"]
