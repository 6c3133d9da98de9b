# Oracle: PEFT's merge_and_unload of the same adapter; the base's fingerprint, which one changed value changes.
import shutil

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from converting import TRAINED, inspect
from running import base_flags, run_strata, run_strata_raw, strata

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
