# Oracle: the reference reads what was converted for it, and holds the same values, to the bit, as
# what it wrote itself.
import json
import os
import pathlib
import pickle
import shutil
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from converting import TRAINED, inspect, optimizer_of, run_fsdp2
from running import base_flags, run_strata, strata


def names(found, kind="parameter"):
    return {t["name"]: (t["dtype"], t["shape"]) for t in found["tensors"] if t["kind"] == kind}


def assert_same_state(found, expected, updates):
    """`found`: {"state": ...} of the reference; `expected`: of optimizer_of."""
    assert set(found["state"]) == set(expected)
    for weight, state in found["state"].items():
        assert float(state["step"]) == updates
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(state[kind], expected[weight][kind]), (weight, kind)


def test_states_of_the_reference_are_read(inputs, fsdp2, tmp_path):
    weights = torch.load(fsdp2 / "pytorch_model_fsdp.bin", weights_only=True)
    optimizer = torch.load(fsdp2 / "optimizer.bin", weights_only=True)
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(fsdp2 / name, sharded / name)
    full = tmp_path / "full"
    full.mkdir()
    for name in ("pytorch_model_fsdp.bin", "optimizer.bin"):
        shutil.copy(fsdp2 / name, full / name)
    for source in (sharded, full):
        found = inspect(source, "--verify")
        assert names(found) == {n: ("F32", list(t.shape)) for n, t in weights.items()}
        assert names(found, "exp_avg").keys() == weights.keys()
        assert found["num_updates"] == 3 and "verified" in found
        out = tmp_path / f"{source.name}-strata"
        strata("convert", source, out, "--to", "strata")
        state, manifest = optimizer_of(out / "checkpoint-3")
        assert (manifest["step"], manifest["num_updates"]) == (3, 3)
        for name, tensor in weights.items():
            assert torch.equal(state[name]["parameter"], tensor), name
        assert_same_state(optimizer, state, 3)
        model = tmp_path / f"{source.name}-hf"
        strata("merge-weights", source, model)
        for name, tensor in load_file(model / "model.safetensors").items():
            assert torch.equal(tensor, weights[name]), name
    # What came from the reference trains on here.
    found = run_strata(base_flags(inputs.model("odd"), inputs.data("messages"), out, max_steps=5,
                                  save_strategy="no", resume_from_checkpoint=True), 2)
    assert [row["step"] for row in found.history] == [4, 5]


def test_the_reference_reads_ours(inputs, saved_run, tmp_path):
    source = saved_run.folder / "checkpoint-2"
    state, _ = optimizer_of(source)
    out = tmp_path / "dcp"
    strata("convert", source, out, "--to", "dcp")
    for part in ("pytorch_model_fsdp_0", "optimizer_0"):
        metadata = dcp.FileSystemReader(out / part).read_metadata()
        assert metadata.state_dict_metadata
    loaded = {"model": {n: torch.full_like(s["parameter"], -1) for n, s in state.items()}}
    dcp.load(loaded, storage_reader=dcp.FileSystemReader(out / "pytorch_model_fsdp_0"),
             no_dist=True)
    for name, tensor in loaded["model"].items():
        assert torch.equal(tensor, state[name]["parameter"]), name
    from accelerate.utils import merge_fsdp_weights
    merge_fsdp_weights(str(out / "pytorch_model_fsdp_0"), str(tmp_path / "merged"))
    for name, tensor in load_file(tmp_path / "merged" / "model.safetensors").items():
        assert torch.equal(tensor, state[name]["parameter"]), name
    # accelerate loads weights and optimizer into an FSDP2 run of two ranks.
    saved = tmp_path / "saved"
    saved.mkdir()
    run_fsdp2(inputs.model("odd"), saved, out)
    weights = torch.load(saved / "pytorch_model_fsdp.bin", weights_only=True)
    for name, tensor in weights.items():
        assert torch.equal(tensor, state[name]["parameter"]), name
    optimizer = torch.load(saved / "optimizer.bin", weights_only=True)
    assert_same_state(optimizer, state, 2)
    assert [g["weight_decay"] for g in optimizer["param_groups"]] == [0.1, 0]


def in_run(name):
    """PEFT's name of a trained tensor as a run of ours has it."""
    name = name.replace(".default", "")
    return name.removeprefix("base_model.model.").replace(".modules_to_save", "") if ".modules_to_save" in name else name


def test_adapters_of_the_reference_and_back(inputs, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model, saved = inputs.model("plain"), tmp_path / "saved"
    saved.mkdir()
    run_fsdp2(model, saved, "--lora")
    weights, optimizer = (torch.load(saved / f"{name}.bin", weights_only=True)
                          for name in ("pytorch_model_fsdp", "optimizer"))
    assert any(".lora_A.default." in name for name in weights) and any("modules_to_save" in n for n in weights)
    sources = {"sharded": ["pytorch_model_fsdp_0", "optimizer_0"], "full": ["pytorch_model_fsdp.bin", "optimizer.bin"]}
    for kind, names in sources.items():
        (tmp_path / kind).mkdir()
        for name in names:
            (saved / name).rename(tmp_path / kind / name)
        out = tmp_path / f"{kind}-strata"
        said = strata("convert", tmp_path / kind, tmp_path / "no", "--to", "safetensors", code=2)
        assert "expected adapter_config.json next to it" in said
        shutil.copy(saved / "adapter" / "adapter_config.json", tmp_path / kind)
        strata("convert", tmp_path / kind, out, "--to", "strata")
        state, manifest = optimizer_of(out / "checkpoint-3")
        assert state.keys() == {in_run(name) for name in weights} and manifest["num_updates"] == 3
        for name, tensor in weights.items():
            assert torch.equal(state[in_run(name)]["parameter"], tensor), name
            for moment in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(state[in_run(name)][moment], optimizer["state"][name][moment]), name
        # PEFT reads the adapter, and it is merged.
        strata("convert", tmp_path / kind, tmp_path / f"{kind}-peft", "--to", "safetensors")
        peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), tmp_path / f"{kind}-peft")
        live = peft.state_dict()
        assert all(torch.equal(live[name], tensor) for name, tensor in weights.items())
        strata("merge-adapter", tmp_path / kind, tmp_path / f"{kind}-merged")
        merged = load_file(tmp_path / f"{kind}-merged" / "model.safetensors")
        for name, tensor in peft.merge_and_unload().state_dict().items():
            assert torch.allclose(merged[name], tensor, atol=1e-6), name
    # It goes on here, and what was trained here goes on there.
    run = run_strata(base_flags(model, inputs.data("messages"), tmp_path / "sharded-strata", max_steps=5, use_peft=True,
                                lora_r=4, lora_alpha=8, lora_dropout=0.0, lora_target_modules=["q_proj", "v_proj"],
                                lora_modules_to_save=["model.norm"], save_strategy="steps", save_steps=5,
                                resume_from_checkpoint=True), 2)
    assert [row["step"] for row in run.history] == [4, 5]
    ours, _ = optimizer_of(run.folder / "checkpoint-5")
    for kind in ("dcp", "bin"):
        strata("convert", run.folder / "checkpoint-5", tmp_path / kind, "--to", kind)
    written = torch.load(tmp_path / "bin" / "optimizer.bin", weights_only=True)
    assert written["state"].keys() == optimizer["state"].keys()
    assert ([sorted(group["params"]) for group in written["param_groups"]]
            == [sorted(group["params"]) for group in optimizer["param_groups"]])
    again = tmp_path / "again"
    again.mkdir()
    run_fsdp2(model, again, tmp_path / "dcp", "--lora")
    weights, optimizer = (torch.load(again / f"{name}.bin", weights_only=True)
                          for name in ("pytorch_model_fsdp", "optimizer"))
    assert {in_run(name) for name in weights} == ours.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, ours[in_run(name)]["parameter"]), name
    assert_same_state({"state": {in_run(n): s for n, s in optimizer["state"].items()}}, ours, 5)


def test_a_folder_of_trainer_with_fsdp_keeps_its_optimizer(inputs, fsdp2, tmp_path):
    folder = shutil.copytree(inputs.model("odd"), tmp_path / "checkpoint-7")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 7}))
    said = strata("convert", folder, tmp_path / "weights", "--to", "strata")
    assert "weights only" in said and (tmp_path / "weights" / "checkpoint-7").is_dir()
    optimizer = torch.load(fsdp2 / "optimizer.bin", weights_only=True)
    shutil.copy(fsdp2 / "pytorch_model_fsdp.bin", folder / "pytorch_model.bin")
    for name in ("pytorch_model_fsdp.bin", "optimizer.bin"):
        shutil.copy(fsdp2 / name, folder / name)
    said = strata("convert", folder, tmp_path / "out", "--to", "strata")
    state, manifest = optimizer_of(tmp_path / "out" / "checkpoint-7")
    assert "weights only" not in said and (manifest["step"], manifest["num_updates"]) == (7, 3)
    assert_same_state(optimizer, state, 3)


def test_numbered_states_of_accelerate_are_refused(inputs, tmp_path):
    from transformers import AutoModelForCausalLM

    folder = shutil.copytree(inputs.model("plain"), tmp_path / "state")
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.arange(9)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")
    for weights in ("model.safetensors", "pytorch_model.bin"):
        if weights.endswith(".bin"):
            torch.save(model.state_dict(), folder / weights)
            (folder / "model.safetensors").unlink()
        for target in ("strata", "dcp"):
            said = strata("convert", folder, tmp_path / "out", "--to", target, code=2)
            assert "found optimizer.bin as accelerate's save_state()" in said and "--weights_only" in said
            assert not (tmp_path / "out").exists()
        assert "the states of optimizer.bin are numbered" in json.loads(strata("inspect", folder, "--json"))["resume"]
        strata("convert", folder, tmp_path / weights, "--to", "strata", "--weights_only")
        strata("convert", folder, tmp_path / f"{weights}-model", "--to", "safetensors")


def test_files_of_torch_with_an_index(inputs, tmp_path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(inputs.model("plain"))
    folder = shutil.copytree(inputs.model("plain"), tmp_path / "model")
    (folder / "model.safetensors").unlink()
    weights = model.state_dict()
    files = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.bin" for i, name in enumerate(weights)}
    for file in set(files.values()):
        torch.save({n: t.clone() for n, t in weights.items() if files[n] == file}, folder / file)
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    strata("convert", folder, tmp_path / "out", "--to", "safetensors")
    found, expected = (AutoModelForCausalLM.from_pretrained(f).state_dict() for f in (tmp_path / "out", folder))
    assert found.keys() == expected.keys() and all(torch.equal(found[n], t) for n, t in expected.items())
    name = next(iter(files))
    for change, words in (({name: "../" + files[name]}, "the name of a file next to the index"),
                          ({"no.weight": files[name]}, '"no.weight" in no file'),
                          ({name: "pytorch_model-3.bin"}, "found no file pytorch_model-3.bin")):
        index.write_text(json.dumps({"weight_map": files | change}))
        assert words in strata("convert", folder, tmp_path / "no", "--to", "safetensors", code=1)


def test_a_state_written_under_python_3_13(fsdp2, tmp_path, monkeypatch):
    """Its paths are of the module pathlib._local; the rest of the metadata is the same."""
    folder = tmp_path / "sharded"
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        shutil.copytree(fsdp2 / name, folder / name)
        file = folder / name / ".metadata"
        metadata = pickle.loads(file.read_bytes())
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "pathlib._local", pathlib)
            patch.setattr(pathlib.PosixPath, "__module__", "pathlib._local")
            file.write_bytes(pickle.dumps(metadata))
        assert b"pathlib._local" in file.read_bytes()
    found, expected = inspect(folder, "--verify"), inspect(fsdp2, "--verify")
    assert found["tensors"] == expected["tensors"] and found["num_updates"] == 3


def test_torch_files_and_back(saved_run, tmp_path):
    source = saved_run.folder / "checkpoint-4"
    state, _ = optimizer_of(source)
    strata("convert", source, tmp_path / "bin", "--to", "bin")
    weights = torch.load(tmp_path / "bin" / "pytorch_model_fsdp.bin", weights_only=True)
    assert {n: t.tolist() for n, t in weights.items()} == {
        n: s["parameter"].tolist() for n, s in state.items()}
    optimizer = torch.load(tmp_path / "bin" / "optimizer.bin", weights_only=True)
    assert_same_state(optimizer, state, 4)
    assert [g["weight_decay"] for g in optimizer["param_groups"]] == [0.1, 0.0]
    assert sorted(sum((g["params"] for g in optimizer["param_groups"]), [])) == sorted(state)
    for kind in ("dcp", "strata"):
        strata("convert", tmp_path / "bin", tmp_path / kind, "--to", kind)
    strata("convert", tmp_path / "dcp", tmp_path / "round", "--to", "strata")
    for folder in ("strata", "round"):
        again, manifest = optimizer_of(tmp_path / folder / "checkpoint-4")
        assert again.keys() == state.keys() and manifest["num_updates"] == 4
        for weight, kinds in state.items():
            for kind, tensor in kinds.items():
                assert torch.equal(again[weight][kind], tensor), (weight, kind)


def test_another_precision_of_storage_goes_on(inputs, saved_run, tmp_path):
    strata("convert", saved_run.folder / "checkpoint-2", tmp_path / "out", "--to", "strata", "--dtype",
           "bfloat16")
    assert {t["dtype"] for t in inspect(tmp_path / "out" / "checkpoint-2")["tensors"]
            if t["kind"] == "parameter"} == {"BF16"}
    found = run_strata(base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out",
                                  **{**TRAINED, "save_strategy": "no"}, resume_from_checkpoint=True), 3)
    expected = saved_run.losses[2:]
    # Weights of 8 bits of fraction.
    assert found.losses[-2:] == pytest.approx(expected, rel=2e-2) and found.losses[-2:] != expected


def test_a_model_out_of_a_checkpoint(saved_run, tmp_path):
    from transformers import AutoModelForCausalLM

    strata("merge-weights", saved_run.folder / "checkpoint-4", tmp_path / "hf")
    assert (tmp_path / "hf" / "tokenizer.json").exists()
    # The last checkpoint holds what the result holds.
    assert ((tmp_path / "hf" / "model.safetensors").read_bytes()
            == (saved_run.folder / "model.safetensors").read_bytes())
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    strata("convert", saved_run.folder / "checkpoint-4", tmp_path / "bf16", "--to", "safetensors",
           "--dtype", "bfloat16", "--max_shard_size", "40KB")
    model16 = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16")
    assert model16.dtype == torch.bfloat16 and (tmp_path / "bf16" / "model.safetensors.index.json").exists()
    for name, tensor in model.state_dict().items():
        assert torch.equal(model16.state_dict()[name], tensor.to(torch.bfloat16)), name
    strata("merge-weights", saved_run.folder / "checkpoint-4", tmp_path / "pt", "--unsafe_serialization")
    weights = torch.load(tmp_path / "pt" / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(model.state_dict()[n], t) for n, t in weights.items())


def files_of(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_only_a_checkpoint_is_removed_after_its_conversion(saved_run, tmp_path):
    shutil.copytree(saved_run.folder, tmp_path / "run")
    before = files_of(tmp_path)
    checkpoint = tmp_path / "run" / "checkpoint-4"
    # A run's folder opens as the model that it holds.
    for source, out in ((tmp_path / "run", tmp_path / "out"), (checkpoint, checkpoint / "merged"),
                        (checkpoint, tmp_path / "new" / ".." / "run" / "checkpoint-4" / "a" / "b")):
        message = strata("merge-weights", source, out, "--remove_checkpoint_dir", code=2)
        assert "--remove_checkpoint_dir: found " in message
        assert files_of(tmp_path) == before
    for number, words in enumerate((["--remove_checkpoint_dir=false"], ["--remove_checkpoint_dir", "False"],
                                    ["--unsafe_serialization=no", "--remove_checkpoint_dir=0"])):
        strata("merge-weights", checkpoint, tmp_path / f"kept{number}", *words)
        assert (tmp_path / f"kept{number}" / "model.safetensors").exists()
    assert {p: d for p, d in files_of(tmp_path).items() if "kept" not in str(p.relative_to(tmp_path))} == before
    strata("merge-weights", f"{checkpoint}/", tmp_path / "out", "--remove_checkpoint_dir")
    assert ((tmp_path / "out" / "model.safetensors").read_bytes()
            == (saved_run.folder / "model.safetensors").read_bytes())
    assert not list((tmp_path / "run").glob("checkpoint-4*"))
    kept = {p: d for p, d in before.items() if checkpoint not in p.parents}
    assert files_of(tmp_path / "run") == kept


def test_switches_of_file_commands_are_booleans(inputs, tmp_path):
    model = inputs.model("odd")
    assert "verified" in strata("inspect", model, "--verify", "true")
    assert "verified" not in strata("inspect", "--verify", "false", model)
    message = strata("inspect", model, "--verify=banana", code=2)
    assert '--verify: found "banana", expected true or false' in message
    assert "--verifi: found an unknown flag, expected a known one; did you mean --verify?" in strata(
        "inspect", model, "--verifi", code=2)
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    assert f"gone is a link to {tmp_path / 'nothing'}, which is not there" in strata(
        "inspect", tmp_path / "gone", code=1)
    assert "found 2 paths, expected 1; see strata inspect --help" in strata("inspect", model, model, code=2)
    for number in ("1e999", "inf", "nan", "-1"):
        message = strata("convert", model, tmp_path / "out", "--to", "bnb-8bit", f"--llm_int8_threshold={number}",
                         code=2)
        assert f'--llm_int8_threshold: found "{number}", expected a number of at least 0' in message
    message = strata("convert", model, tmp_path / "out", "--to", "safetensors", "--max_shard_size", "0", code=2)
    assert '--max_shard_size: found "0", expected a size like 50GB' in message
    assert not (tmp_path / "out").exists()


def test_inspect_says_what_there_is(inputs, saved_run):
    text = strata("inspect", saved_run.folder / "checkpoint-4", "--verify")
    assert "Strata checkpoint, version 2, step 4, 4 updates, written by 3 ranks" in text
    assert ("can be resumed: --resume_from_checkpoint, any number of ranks and any sharding strategy, "
            "6 rows per step (ranks x batch x accumulation), model " in text)
    assert "exp_avg_sq:" in text and "verified: " in text and "more (--all)" in text
    assert "Hugging Face model" in strata("inspect", inputs.model("odd"), "--all")
    message = strata("inspect", saved_run.folder.parent, code=1)
    assert "expected a checkpoint, a model or adapter" in message
    message = strata("inspect", saved_run.folder / "checkpoint-4", "--verfy", code=2)
    assert "did you mean --verify?" in message


def test_existing_folders_are_not_overwritten(saved_run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    message = strata("convert", saved_run.folder / "checkpoint-4", tmp_path / "out", "--to", "dcp", code=2)
    assert "expected a new or empty folder" in message
    assert os.listdir(tmp_path / "out") == ["mine"]
