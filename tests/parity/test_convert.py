# Oracle: the reference reads what was converted for it, and holds the same values, to the bit, as
# what it wrote itself.
import json
import os
import pathlib
import pickle
import resource
import shutil
import subprocess
import sys
import zipfile

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

from running import PROGRAM, base_flags, environment, run_strata, run_strata_raw

TRAINED = dict(max_steps=4, save_strategy="steps", save_steps=2, weight_decay=0.1)
HERE = pathlib.Path(__file__).parent


def strata(*words, code=0, **options):
    process = subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True,
                             env=environment(), timeout=120, **options)
    assert process.returncode == code, process.stdout + process.stderr
    return process.stdout + process.stderr


def inspect(path, *flags):
    return json.loads(strata("inspect", path, "--json", *flags))


def names(found, kind="parameter"):
    return {t["name"]: (t["dtype"], t["shape"]) for t in found["tensors"] if t["kind"] == kind}


def optimizer_of(checkpoint):
    """A checkpoint's state as {weight: {kind: tensor}}, read without the program."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    files = {p.name: load_file(p) for p in checkpoint.glob("*.safetensors")}
    state = {}
    for name, record in manifest["tensors"].items():
        kind, weight = name.split("/", 1)
        whole = torch.cat([files[p["file"]][p["key"]] for p in record["pieces"]])
        state.setdefault(weight, {})[kind] = whole.reshape(record["shape"])
    return state, manifest


def assert_same_state(found, expected, updates):
    """`found`: {"state": ...} of the reference; `expected`: of optimizer_of."""
    assert set(found["state"]) == set(expected)
    for weight, state in found["state"].items():
        assert float(state["step"]) == updates
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(state[kind], expected[weight][kind]), (weight, kind)


@pytest.fixture(scope="module")
def run(inputs, tmp_path_factory):
    return run_strata(base_flags(inputs.model("odd"), inputs.data("messages"),
                                 tmp_path_factory.mktemp("run"), **TRAINED), 3)


def reference(*words):
    process = subprocess.run([sys.executable, str(HERE / "fsdp2_reference.py"), *map(str, words)],
                             capture_output=True, text=True, env=environment(), timeout=150)
    assert process.returncode == 0, process.stderr[-4000:]


@pytest.fixture(scope="module")
def fsdp2(inputs, tmp_path_factory):
    """What accelerate saves of an FSDP2 run on two ranks."""
    folder = tmp_path_factory.mktemp("fsdp2")
    reference(inputs.model("odd"), folder)
    return folder


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


def test_the_reference_reads_ours(inputs, run, tmp_path):
    source = run.folder / "checkpoint-2"
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
    reference(inputs.model("odd"), saved, out)
    weights = torch.load(saved / "pytorch_model_fsdp.bin", weights_only=True)
    for name, tensor in weights.items():
        assert torch.equal(tensor, state[name]["parameter"]), name
    optimizer = torch.load(saved / "optimizer.bin", weights_only=True)
    assert_same_state(optimizer, state, 2)
    assert [g["weight_decay"] for g in optimizer["param_groups"]] == [0.1, 0]


def test_torch_files_and_back(run, tmp_path):
    source = run.folder / "checkpoint-4"
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


def test_another_precision_of_storage_goes_on(inputs, run, tmp_path):
    strata("convert", run.folder / "checkpoint-2", tmp_path / "out", "--to", "strata", "--dtype",
           "bfloat16")
    assert {t["dtype"] for t in inspect(tmp_path / "out" / "checkpoint-2")["tensors"]
            if t["kind"] == "parameter"} == {"BF16"}
    found = run_strata(base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out",
                                  **{**TRAINED, "save_strategy": "no"}, resume_from_checkpoint=True), 3)
    expected = run.losses[2:]
    # Weights of 8 bits of fraction.
    assert found.losses[-2:] == pytest.approx(expected, rel=2e-2) and found.losses[-2:] != expected


def test_a_model_out_of_a_checkpoint(run, tmp_path):
    from transformers import AutoModelForCausalLM

    strata("merge-weights", run.folder / "checkpoint-4", tmp_path / "hf")
    assert (tmp_path / "hf" / "tokenizer.json").exists()
    # The last checkpoint holds what the result holds.
    assert ((tmp_path / "hf" / "model.safetensors").read_bytes()
            == (run.folder / "model.safetensors").read_bytes())
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    strata("convert", run.folder / "checkpoint-4", tmp_path / "bf16", "--to", "safetensors",
           "--dtype", "bfloat16", "--max_shard_size", "40KB")
    model16 = AutoModelForCausalLM.from_pretrained(tmp_path / "bf16")
    assert model16.dtype == torch.bfloat16 and (tmp_path / "bf16" / "model.safetensors.index.json").exists()
    for name, tensor in model.state_dict().items():
        assert torch.equal(model16.state_dict()[name], tensor.to(torch.bfloat16)), name
    strata("merge-weights", run.folder / "checkpoint-4", tmp_path / "pt", "--unsafe_serialization")
    weights = torch.load(tmp_path / "pt" / "pytorch_model.bin", weights_only=True)
    assert all(torch.equal(model.state_dict()[n], t) for n, t in weights.items())


def files_of(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_only_a_checkpoint_is_removed_after_its_conversion(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "run")
    before = files_of(tmp_path)
    checkpoint = tmp_path / "run" / "checkpoint-4"
    # A run's folder opens as the model that it holds.
    for source, out in ((tmp_path / "run", tmp_path / "out"), (checkpoint, checkpoint / "merged"),
                        (checkpoint, tmp_path / "new" / ".." / "run" / "checkpoint-4" / "a" / "b")):
        message = strata("merge-weights", source, out, "--remove_checkpoint_dir", code=2)
        assert "--remove_checkpoint_dir: found " in message
        assert files_of(tmp_path) == before
    strata("merge-weights", f"{checkpoint}/", tmp_path / "out", "--remove_checkpoint_dir")
    assert ((tmp_path / "out" / "model.safetensors").read_bytes()
            == (run.folder / "model.safetensors").read_bytes())
    assert not list((tmp_path / "run").glob("checkpoint-4*"))
    kept = {p: d for p, d in before.items() if checkpoint not in p.parents}
    assert files_of(tmp_path / "run") == kept


ADAPTERS = {
    "lora": dict(r=3, lora_alpha=12, target_modules=["q_proj", "up_proj"]),
    "rslora": dict(r=4, lora_alpha=5, target_modules="all-linear", use_rslora=True),
    "dora": dict(r=3, lora_alpha=12, target_modules=["q_proj", "down_proj"], use_dora=True),
    "patterns": dict(r=3, lora_alpha=12, target_modules=["q_proj", "v_proj"],
                     rank_pattern={"v_proj": 5}, alpha_pattern={"layers.1.self_attn.q_proj": 3}),
    "saved": dict(r=2, target_modules=["o_proj"], modules_to_save=["lm_head"]),
    "embedding": dict(r=2, target_modules=["o_proj"], modules_to_save=["embed_tokens"]),
}


@pytest.mark.parametrize("name,dtype", [*((name, "float32") for name in ADAPTERS),
                                        ("lora", "bfloat16"), ("dora", "bfloat16")])
def test_merged_adapter(inputs, tmp_path, name, dtype):
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    base_name = "tied" if name == "embedding" else "odd"
    type_of = getattr(torch, dtype)
    base = AutoModelForCausalLM.from_pretrained(inputs.model(base_name), dtype=type_of)
    base.save_pretrained(tmp_path / "base")
    torch.manual_seed(1)
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name]))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(tmp_path / "adapter")
    strata("merge-adapter", tmp_path / "adapter", tmp_path / "out", "--base_model",
           tmp_path / "base")
    found, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    expected = PeftModel.from_pretrained(fresh, tmp_path / "adapter").merge_and_unload()
    assert found.dtype == expected.dtype
    # One rounding of the base's type.
    limit = 1e-6 if dtype == "float32" else 2 ** -7
    for (key, theirs), ours in zip(expected.state_dict().items(), found.state_dict().values()):
        error = (ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()
        assert error <= limit, (key, error)
    ids = torch.arange(20)[None]
    with torch.no_grad():
        ours, theirs = found(ids).logits.float(), expected(ids).logits.float()
    assert (ours - theirs).abs().max() / theirs.abs().max() < (1e-5 if dtype == "float32" else 3e-2)


def test_an_adapter_out_of_a_sharded_run(inputs, tmp_path):
    run = run_strata(base_flags(
        inputs.model("odd"), inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=3,
        lora_alpha=12, lora_target_modules=["q_proj", "up_proj"], lora_modules_to_save=["lm_head"],
        learning_rate=2e-2, **TRAINED), 2)
    strata("merge-adapter", run.folder, tmp_path / "a")
    strata("merge-adapter", run.folder / "checkpoint-4", tmp_path / "b")
    assert ((tmp_path / "a" / "model.safetensors").read_bytes()
            == (tmp_path / "b" / "model.safetensors").read_bytes())
    strata("convert", run.folder / "checkpoint-4", tmp_path / "adapter", "--to", "safetensors")
    ours, theirs = (load_file(f / "adapter_model.safetensors")
                    for f in (tmp_path / "adapter", run.folder))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[n], t) for n, t in theirs.items())
    found = inspect(run.folder / "checkpoint-4")
    assert "LoRA of rank 3" in found["resume"]
    message = strata("merge-weights", run.folder / "checkpoint-4", tmp_path / "c", code=2)
    assert "use strata merge-adapter" in message and not (tmp_path / "c").exists()
    message = strata("merge-adapter", run.folder, tmp_path / "d", "--base_model",
                     inputs.model("plain"), code=2)
    assert "name the base that it was trained on" in message and not (tmp_path / "d").exists()


def test_an_adapter_knows_its_base(inputs, tmp_path):
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "run", use_peft=True,
                       lora_r=3, lora_target_modules=["q_proj"], **TRAINED)
    run = run_strata(flags, 2)
    mark = inspect(run.folder)["base_fingerprint"]
    assert mark == inspect(run.folder / "checkpoint-2")["base_fingerprint"]
    assert mark == inspect(inputs.model("odd"))["base_fingerprint"]
    # The same shapes, one value another; and an exact copy cut into files.
    tensors = load_file(inputs.model("odd") / "model.safetensors")
    copy, other = tmp_path / "copy", tmp_path / "other"
    strata("convert", inputs.model("odd"), copy, "--to", "safetensors", "--max_shard_size", "30KB")
    shutil.copytree(inputs.model("odd"), other)
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] += 1
    safetensors.torch.save_file(tensors, other / "model.safetensors", {"format": "pt"})
    for adapter in (run.folder, run.folder / "checkpoint-4"):
        strata("merge-adapter", adapter, tmp_path / f"{adapter.name}-merged", "--base_model", copy)
        message = strata("merge-adapter", adapter, tmp_path / "no", "--base_model", other, code=2)
        assert str(adapter) in message and mark in message and str(other) in message
        assert "name the base that it was trained on" in message and not (tmp_path / "no").exists()
    for settings in (dict(resume_from_checkpoint=run.folder / "checkpoint-2"),
                     dict(adapter_name_or_path=run.folder, use_peft=None, lora_r=None,
                          lora_target_modules=None)):
        again = {**flags, **settings, "output_dir": tmp_path / "again"}
        refused = run_strata_raw({**again, "model_name_or_path": other}, 2)
        assert refused.returncode != 0 and mark in refused.text and str(other) in refused.text
        run_strata({**again, "model_name_or_path": copy}, 2)
        shutil.rmtree(tmp_path / "again")
    # What is made of an adapter carries the mark on.
    for source, kind in ((run.folder, "safetensors"), (run.folder / "checkpoint-4", "safetensors"),
                         (run.folder / "checkpoint-4", "strata")):
        out = tmp_path / f"{source.name}-{kind}"
        strata("convert", source, out, "--to", kind)
        found = out / "checkpoint-4" if kind == "strata" else out
        assert inspect(found)["base_fingerprint"] == mark
        if kind == "strata":  # to be resumed; it has no settings of an adapter to merge with
            continue
        message = strata("merge-adapter", found, tmp_path / "no", "--base_model", other, code=2)
        assert mark in message and not (tmp_path / "no").exists()
    told = strata("convert", run.folder, tmp_path / "as-bin", "--to", "bin")
    assert "the mark of the adapter's base is left out" in told
    # The way out: a copy of the adapter that says nothing of its base.
    strata("convert", run.folder, tmp_path / "unmarked", "--to", "safetensors", "--forget_base")
    strata("merge-adapter", tmp_path / "unmarked", tmp_path / "yes", "--base_model", other)


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

    def limited(megabytes):
        return lambda: resource.setrlimit(resource.RLIMIT_DATA, (megabytes << 20,) * 2)

    strata(*words, preexec_fn=limited(program_data + (6 * size >> 20)))
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) >= 16 * size


@pytest.fixture(scope="module")
def large(inputs, tmp_path_factory):
    """States of a model of 192 MB whose largest tensor has 16 MB, of every kind that is converted:
    saved by two ranks (weights, and a LoRA adapter), in safetensors, as DCP, as torch.save."""
    import tiny_llama

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
    megabytes = program_data + 6 * 16
    strata(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA,
                                                         (megabytes << 20,) * 2))
    assert sum(p.stat().st_size for p in (tmp_path / "out").rglob("*") if p.is_file()) > 190e6
    shutil.rmtree(tmp_path / "out")


@pytest.fixture(scope="module")
def moments(inputs, tmp_path_factory):
    """The state of an AdamW run of two ranks, three times 128 MB, in every format that holds it."""
    import tiny_llama

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
    megabytes = program_data + 6 * 16
    strata(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA,
                                                         (megabytes << 20,) * 2))
    parts = 1 if target == "merge-weights" else 3
    assert sum(p.stat().st_size for p in out.rglob("*") if p.is_file()) > parts * 125e6
    shutil.rmtree(out)


@pytest.fixture(scope="module")
def program_data():
    """Megabytes of memory of its own (without maps of files) that the program starts with."""
    low, high = 16, 1024
    while high - low > 8:
        middle = (low + high) // 2
        process = subprocess.run(
            [str(PROGRAM), "--version"], capture_output=True, env=environment(),
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (middle << 20,) * 2))
        low, high = (low, middle) if process.returncode == 0 else (middle, high)
    return high


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


def damage(path, how):
    data = bytearray(path.read_bytes())
    if how == "truncated":
        del data[len(data) // 2:]
    elif how == "flipped":
        data[len(data) // 3] ^= 4
    path.unlink() if how == "missing" else path.write_bytes(data)


@pytest.mark.parametrize("how", ["truncated", "flipped", "missing"])
def test_damaged_states_are_found(fsdp2, run, tmp_path, how):
    for kind, file in (("dcp", "pytorch_model_fsdp_0/__1_0.distcp"),
                       ("strata", "rank-00001.safetensors")):
        copy = tmp_path / kind
        shutil.copytree(fsdp2 if kind == "dcp" else run.folder / "checkpoint-2", copy)
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
def test_states_saved_without_checksums_are_read(run, tmp_path, kind):
    """torch leaves their place zero: nothing can be proved, and nothing refused for it."""
    state, _ = optimizer_of(run.folder / "checkpoint-4")
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


def test_inspect_says_what_there_is(inputs, run):
    text = strata("inspect", run.folder / "checkpoint-4", "--verify")
    assert "Strata checkpoint, version 2, step 4, 4 updates, written by 3 ranks" in text
    assert ("can be resumed: --resume_from_checkpoint, any number of ranks and any sharding strategy, "
            "6 rows a step (ranks x batch x accumulation), model " in text)
    assert "exp_avg_sq:" in text and "verified: " in text and "more (--all)" in text
    assert "Hugging Face model" in strata("inspect", inputs.model("odd"), "--all")
    message = strata("inspect", run.folder.parent, code=1)
    assert "expected a checkpoint, a model or adapter" in message
    message = strata("inspect", run.folder / "checkpoint-4", "--verfy", code=2)
    assert "did you mean --verify?" in message


def test_existing_folders_are_not_overwritten(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    message = strata("convert", run.folder / "checkpoint-4", tmp_path / "out", "--to", "dcp", code=2)
    assert "expected a new or empty folder" in message
    assert os.listdir(tmp_path / "out") == ["mine"]
