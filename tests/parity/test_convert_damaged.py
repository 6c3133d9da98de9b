# Oracle: states of the reference and of the program, each damaged at a known place; pickles that would run
# a program.
import os
import pathlib
import pickle
import shutil
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from converting import optimizer_of
from running import base_flags, run_strata, strata


class Call:
    def __init__(self, *words):
        self.words = words

    def __reduce__(self):
        return os.system, self.words


def test_hostile_files_are_refused_by_name(tmp_path):
    mark = tmp_path / "was_run"
    code = pickle.dumps({"w": Call(f"touch {mark}")}, 2)
    with zipfile.ZipFile(tmp_path / "model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", code)
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(code)
    for path in (tmp_path / "model.bin", tmp_path / "dcp"):
        message = strata("inspect", path, code=1)
        assert 'found the global "posix system"' in message and "nothing of it was run" in message
        strata("convert", path, tmp_path / "out", "--to", "safetensors", code=1)
    assert not mark.exists() and not (tmp_path / "out").exists()
    torch.save({"w": torch.ones(2)}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert "torch before 1.6" in strata("inspect", tmp_path / "old.bin", code=1)


def test_what_deepspeed_leaves_without_values_is_no_model(tmp_path):
    """ZeRO-3 without a gathered save: every rank's file, and a model's or adapter's, has weights of no elements."""
    tag = tmp_path / "checkpoint-5" / "global_step5"
    tag.mkdir(parents=True)
    weights = {"model.embed_tokens.weight": torch.zeros(0, dtype=torch.bfloat16), "model.norm.weight": torch.ones(2)}
    rank = tag / "zero_pp_rank_0_mp_rank_00_model_states.pt"
    torch.save({"module": weights, "param_shapes": [{"model.embed_tokens.weight": torch.Size([4, 2])}]}, rank)
    save_file(weights, tmp_path / "model.safetensors")
    for path in (rank, tmp_path / "model.safetensors"):
        message = strata("convert", path, tmp_path / "out", "--to", "safetensors", code=1)
        assert 'found no value in the weight "model.embed_tokens.weight" (shape [0])' in message, message
        assert not (tmp_path / "out").exists()
    (tmp_path / "checkpoint-5" / "latest").write_text("global_step5")
    script = tmp_path / "checkpoint-5" / "zero_to_fp32.py"
    script.write_text("")
    for path in (tag, tag.parent):
        message = strata("convert", path, tmp_path / "out", "--to", "safetensors", code=1)
        assert "found a checkpoint of DeepSpeed" in message and f"python {script} {tag.parent} OUT" in message, message


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "truncated":
        del data[len(data) // 2:]
    elif how == "flipped":
        data[len(data) // 3] ^= 4
    path.unlink() if how == "missing" else path.write_bytes(data)


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_damaged_states_are_found(fsdp2, saved_run, tmp_path, how):
    for kind, file in (("dcp", "pytorch_model_fsdp_0/__1_0.distcp"),
                       ("strata", "rank-00001.safetensors")):
        copy = tmp_path / kind
        shutil.copytree(fsdp2 if kind == "dcp" else saved_run.folder / "checkpoint-2", copy)
        for full in copy.glob("*.bin"):
            full.unlink()
        damage(copy / file, how)
        message = strata("inspect", copy, "--verify", code=1)
        assert pathlib.Path(file).name in message, message
        # Nothing is made of it either, though nobody asked for proof.
        message = strata("convert", copy, tmp_path / "out", "--to", "strata", code=1)
        assert pathlib.Path(file).name in message and not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["pytorch_model_fsdp.bin", "optimizer.bin"])
def test_a_flipped_bit_of_a_torch_file_is_not_converted(fsdp2, tmp_path, name):
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in ("pytorch_model_fsdp.bin", "optimizer.bin"):
        shutil.copy(fsdp2 / file, copy)
    data = bytearray((copy / name).read_bytes())
    with zipfile.ZipFile(copy / name) as archive:
        for record in archive.infolist():
            if record.file_size < 1000 or "/data/" not in record.filename:
                continue
            # In the middle of the record's bytes, which follow its header and padding.
            at = bytes(data).index(archive.read(record))
            damaged = data[:]
            damaged[at + record.file_size // 2] ^= 1
            break
    (copy / name).write_bytes(damaged)
    message = strata("convert", copy, tmp_path / "out", "--to", "strata", code=1)
    assert name in message and "found the checksum" in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["file", "dcp"])
def test_states_saved_without_checksums_are_read(saved_run, tmp_path, kind):
    """torch leaves their place zero: nothing can be proved, and nothing refused for it."""
    state, _ = optimizer_of(saved_run.folder / "checkpoint-4")
    weights = {name: kinds["parameter"] for name, kinds in state.items()}
    source = tmp_path / ("model.pt" if kind == "file" else "sharded")
    torch.serialization.set_crc32_options(False)
    try:
        if kind == "file":
            torch.save(weights, source)
        else:
            dcp.save(weights, checkpoint_id=source, no_dist=True)
    finally:
        torch.serialization.set_crc32_options(True)
    assert "verified: nothing: it was saved without checksums" in strata("inspect", source, "--verify")
    strata("convert", source, tmp_path / "out", "--to", "safetensors")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor), name
    # One record with a checksum, and a 0 is a checksum as any other.
    data = bytearray(source.read_bytes() if kind == "file" else b"")
    if kind == "file":
        entry = data.index(b"PK\x01\x02")
        data[entry + 16:entry + 20] = b"\x01\x02\x03\x04"
        source.write_bytes(data)
        assert "found the checksum" in strata("inspect", source, "--verify", code=1)


@pytest.mark.parametrize("name,goes_on", [("qwen3_moe", False), ("gpt_oss", True)])
def test_experts_in_one_tensor_are_no_state_of_a_model_whose_files_have_each(inputs, tmp_path, name, goes_on):
    """As FSDP saves what transformers trains; oracle for the family that has them so in its files, too: a run goes on."""
    from transformers import AutoModelForCausalLM

    base, state = inputs.model(name), tmp_path / "state"
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    weights = dict(model.named_parameters())
    moments = {n: dict(step=torch.tensor(1.0), exp_avg=torch.zeros_like(w), exp_avg_sq=torch.zeros_like(w)) for n, w in weights.items()}
    state.mkdir()
    torch.save(model.state_dict(), state / "pytorch_model_fsdp.bin")
    torch.save(dict(state=moments, param_groups=[dict(params=list(weights), lr=1e-3)]), state / "optimizer.bin")
    shutil.copy(base / "config.json", state)
    said = strata("convert", state, tmp_path / "out", "--to", "strata", code=0 if goes_on else 1)
    if goes_on:
        flags = base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=2, resume_from_checkpoint=True)
        assert run_strata(flags).state["global_step"] == 2
        return
    assert 'found the experts of a layer in one tensor ("model.layers.0.mlp.experts.' in said and "save_pretrained()" in said
    assert not (tmp_path / "out").exists()
    strata("convert", state, tmp_path / "model", "--to", "safetensors")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert all(torch.equal(again[n], w) for n, w in model.state_dict().items())
