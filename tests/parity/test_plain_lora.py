"""Oracle: PEFT: the adapter as it was trained, over the base that PEFT changes again, and PEFT's own
conversion (path_initial_model_for_weight_conversion)."""

import json
import subprocess

import pytest
import torch
from peft import PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error
from running import PROGRAM, base_flags, environment, run_strata
from test_export import eval_loss, measured
from test_lora import config_of, randomise

CASES = {
    "pissa": dict(target_modules=["q_proj", "up_proj"], r=4, lora_alpha=6,
                  init_lora_weights="pissa"),
    "pissa_random": dict(target_modules=["q_proj", "up_proj"], r=4, init_lora_weights="pissa_niter_2"),
    "olora_rslora": dict(target_modules=["v_proj", "down_proj"], r=4, lora_alpha=7, use_rslora=True,
                         init_lora_weights="olora"),
    "pissa_patterns": dict(target_modules=["q_proj", "k_proj", "o_proj"], r=4, lora_alpha=8,
                           rank_pattern={"q_proj": 2}, alpha_pattern={"k_proj": 5},
                           init_lora_weights="pissa"),
    "pissa_dora": dict(target_modules=["o_proj"], r=4, init_lora_weights="pissa", use_dora=True),
    "olora_embedding": dict(target_modules=["embed_tokens", "v_proj"], r=4,
                            init_lora_weights="olora"),
}


def convert(adapter, out, *words):
    return subprocess.run([PROGRAM, "convert", adapter, out, "--to", "lora", *words],
                          capture_output=True, text=True, env=environment(), timeout=60)


def plain_base(folder):
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)


def make(folder, lora):
    """A trained adapter of PEFT's in folder/adapter, its first values in folder/start; the model."""
    save_checkpoint(folder, scale=0.08)
    torch.manual_seed(5)
    model = get_peft_model(plain_base(folder), config_of(lora))
    # PEFT's own way: a start that a later load does not take off the base again.
    model.peft_config["default"].init_lora_weights = True
    model.save_pretrained(folder / "start")
    model.peft_config["default"].init_lora_weights = lora["init_lora_weights"]
    randomise(model, 0.05)
    model.save_pretrained(folder / "adapter")
    return model


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("source", ["base", "start"])
def test_equals_the_trained_model(tmp_path, name, source):
    lora = CASES[name]
    model = make(tmp_path, lora)
    documents = make_documents((23, 1, 9))
    _, expected = run_reference(model, documents)
    words = (["--base_model", tmp_path] if source == "base" else
             ["--path_initial_model_for_weight_conversion", tmp_path / "start"])
    done = convert(tmp_path / "adapter", tmp_path / "plain", *words)
    if name == "pissa_random" and source == "base":
        assert done.returncode == 2 and "random directions cannot be drawn again" in done.stderr
        assert not (tmp_path / "plain").exists()
        return
    assert done.returncode == 0, done.stderr
    config = PeftConfig.from_pretrained(tmp_path / "plain")
    assert config.init_lora_weights is True and config.r == 8
    loaded = PeftModel.from_pretrained(plain_base(tmp_path), tmp_path / "plain", is_trainable=True)
    base = loaded.get_base_model().state_dict()
    changed = plain_base(tmp_path).state_dict()
    for key, value in changed.items():  # nothing is taken off the base any more
        path, end = key.rsplit(".", 1)
        assert torch.equal(value, base.get(key, base.get(f"{path}.base_layer.{end}"))), key
    _, found = run_reference(loaded, documents)
    assert relative_error(found, expected) < 1e-5
    # The adapter as it was says something else over the unchanged base.
    _, plain = run_reference(plain_base(tmp_path), documents)
    assert relative_error(plain, expected) > 1e-2


@pytest.mark.parametrize("name", ["pissa", "pissa_random", "olora_rslora"])
def test_equals_the_conversion_of_peft(tmp_path, name):
    model = make(tmp_path, CASES[name])
    model.save_pretrained(tmp_path / "theirs",
                          path_initial_model_for_weight_conversion=str(tmp_path / "start"))
    done = convert(tmp_path / "adapter", tmp_path / "ours",
                   "--path_initial_model_for_weight_conversion", tmp_path / "start")
    assert done.returncode == 0, done.stderr
    ours, theirs = (load_file(tmp_path / side / "adapter_model.safetensors")
                    for side in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    ours, theirs = (PeftConfig.from_pretrained(tmp_path / side) for side in ("ours", "theirs"))
    for key in ("r", "lora_alpha", "rank_pattern", "alpha_pattern", "init_lora_weights", "use_rslora"):
        assert getattr(ours, key) == getattr(theirs, key), key


@pytest.mark.parametrize("init", ["pissa", "olora", "pissa_niter_2"])
def test_what_a_run_leaves(inputs, tmp_path, init):
    """The run's own evaluation; a run of one step without a rate leaves what the other began with."""
    flags = base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", use_peft=True,
                       lora_r=3, lora_alpha=5, lora_target_modules=["q_proj", "down_proj"],
                       init_lora_weights=init, learning_rate=2e-2, max_steps=6, seed=3,
                       eval_strategy="steps", eval_steps=6, per_device_eval_batch_size=3)
    run = run_strata(flags, 2)
    words = []
    if init == "pissa_niter_2":
        run_strata({**flags, "output_dir": tmp_path / "start", "learning_rate": 0, "max_steps": 1})
        words = ["--path_initial_model_for_weight_conversion", tmp_path / "start"]
    done = convert(run.folder, tmp_path / "plain", *words)
    assert done.returncode == 0, done.stderr
    model = PeftModel.from_pretrained(plain_base(inputs.model("odd")), tmp_path / "plain")
    found = eval_loss(model, run.folder, inputs.data("messages"))
    assert found == pytest.approx(measured(run), abs=1e-5)
    assert abs(run.losses[0] - run.losses[-1]) > 0.01, "nothing was learnt"


@pytest.mark.parametrize("change,words,message", [
    (dict(init_lora_weights=True), [], "found init_lora_weights true, expected pissa"),
    (dict(init_lora_weights="loftq"), [], "found init_lora_weights loftq, expected pissa"),
    ({}, ["--dtype", "int8"], '--dtype: found "int8"'),
    ({}, ["--base_model", "other"], "expected [52, 32]; name the base that it was trained on"),
    ({}, ["--path_initial_model_for_weight_conversion", "base"], "found a model, expected an adapter"),
    ({}, ["--path_initial_model_for_weight_conversion", "small"], "with shape [2, 32]"),
])
def test_wrong_adapters_are_named(tmp_path, change, words, message):
    make(tmp_path, CASES["pissa"])
    save_checkpoint(tmp_path / "other", hidden_size=48)
    small = tmp_path / "other_rank"
    small.mkdir()
    make(small, dict(CASES["pissa"], r=2))
    places = {"other": tmp_path / "other", "base": tmp_path, "small": small / "start"}
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    words = [places.get(word, word) for word in words]
    if not words or words[0] == "--dtype":
        words += ["--base_model", tmp_path]
    done = convert(tmp_path / "adapter", tmp_path / "plain", *words)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "plain").exists()


def test_flags_of_other_targets_are_refused(tmp_path):
    make(tmp_path, CASES["pissa"])
    done = subprocess.run([PROGRAM, "convert", tmp_path / "adapter", tmp_path / "out", "--to", "bin",
                           "--base_model", tmp_path], capture_output=True, text=True,
                          env=environment(), timeout=60)
    assert done.returncode == 2
    assert "--base_model: found with --to bin, expected lora or gguf there" in done.stderr
