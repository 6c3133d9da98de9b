# Oracle: TRL's SFTTrainer with the same `optim` (torch, transformers, bitsandbytes): loss and gradient
# norm of every step. 8-bit state is rounded to the nearest value in both, as published: on CPUs
# bitsandbytes rounds through a table, which the reference run replaces. And: ranks, and resuming.
import collections
import inspect
import json
import logging
import sys
import types
from unittest import mock

import pytest
import torch

import tiny_t5
import trl_reference
from running import base_flags, run_strata
from test_trl_losses import compare

# Rates at which every rule learns without leaving the range where two roundings agree.
RATES = {"sgd": 0.3, "adafactor": 3e-3, "lion_32bit": 5e-4, "lion_8bit": 5e-4,
         "paged_lion_32bit": 5e-4, "paged_lion_8bit": 5e-4, "adamw_8bit": 1e-3,
         "paged_adamw_8bit": 1e-3}
OPTIMIZERS = ["sgd", "adafactor", "lion_32bit", "paged_lion_32bit", "paged_adamw_32bit",
              "adamw_8bit", "paged_adamw_8bit", "lion_8bit", "paged_lion_8bit"]


def flags_of(inputs, output, optim, rows=40, **more):
    return base_flags(inputs.model("wide"), inputs.data("messages", train=rows), output, optim=optim,
                      **{"learning_rate": RATES.get(optim, 3e-3), "max_steps": 20,
                         "weight_decay": 0.1, **more})


@pytest.fixture(autouse=True)
def nearest_codes(monkeypatch):
    from bitsandbytes.backends.cpu import ops

    def quantise(values, code, absmax_out, out, blocksize):
        blocks = torch.nn.functional.pad(values.flatten(), (0, -values.numel() % blocksize))
        blocks = blocks.view(-1, blocksize)
        absmax = blocks.abs().amax(1)
        scaled = blocks / torch.where(absmax > 0, absmax, 1)[:, None]
        codes = torch.bucketize(scaled, (code[1:] + code[:-1]) / 2)
        out.copy_(codes.flatten()[: values.numel()].view(values.shape))
        absmax_out.copy_(absmax)

    monkeypatch.setattr(ops, "_quant_blockwise_fp32_direct", quantise)


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_equals_the_reference(inputs, tmp_path, optim):
    flags = flags_of(inputs, tmp_path, optim)
    compare(run_strata(flags).state["log_history"], trl_reference.log_history(flags))


# Arguments as Trainer takes them, and as a ds_config has them.
MOMENTUM = [("momentum=0.9", {"momentum": 0.9}), ("momentum=0.7, nesterov=True", {"momentum": 0.7, "nesterov": True}),
            ("momentum=0.8,dampening=0.4", {"momentum": 0.8, "dampening": 0.4})]


@pytest.mark.parametrize("arguments,of_file", MOMENTUM)
def test_momentum_equals_the_reference(inputs, tmp_path, arguments, of_file):
    flags = flags_of(inputs, tmp_path / "flags", "sgd", learning_rate=0.1, optim_args=arguments)
    found = run_strata(flags)
    compare(found.state["log_history"], trl_reference.log_history(flags))
    del flags["optim_args"], flags["weight_decay"]
    flags["deepspeed"] = json.dumps({"optimizer": {"type": "SGD", "params": {"weight_decay": 0.1, **of_file}}})
    spared = run_strata({**flags, "output_dir": tmp_path / "file", "decay_norms_and_biases": False})
    assert spared.losses == found.losses


# What DeepSpeed decays where a ds_config names the optimizer: the parameters as transformers' own code hands them over.
@pytest.mark.parametrize("optim,kind", [("adamw_torch", "AdamW"), ("lion_32bit", "Lion"), ("sgd", "SGD")])
def test_a_ds_config_with_an_optimizer_decays_every_weight(inputs, tmp_path, monkeypatch, optim, kind):
    import accelerate.utils
    import transformers
    from accelerate.utils.deepspeed import DummyOptim, DummyScheduler
    from transformers.integrations.deepspeed import deepspeed_init

    flags = flags_of(inputs, tmp_path / "all", optim, weight_decay=3.0, learning_rate=RATES.get(optim, 3e-3) / 3)
    file = {"zero_optimization": {"stage": 0}, "optimizer": {"type": kind, "params": {"weight_decay": "auto"}}}
    own = transformers.Trainer.create_optimizer

    class Config:
        config = {**file, "scheduler": {}}
        trainer_config_finalize = staticmethod(lambda *_: None)

    def create_optimizer(self, model=None):
        groups = own(self, model)
        plugin = types.SimpleNamespace(hf_ds_config=Config)
        trainer = types.SimpleNamespace(model=self.model, args=self.args, accelerator=types.SimpleNamespace(
            state=types.SimpleNamespace(deepspeed_plugin=plugin)))
        module = types.SimpleNamespace(logger=logging.getLogger("deepspeed"))
        with (mock.patch.dict(sys.modules, {"deepspeed": module, "deepspeed.utils": module}),
              mock.patch.multiple(accelerate.utils, create=True, DummyOptim=DummyOptim, DummyScheduler=DummyScheduler)):
            handed, _ = deepspeed_init(trainer, num_training_steps=1)
        assert len(groups.param_groups) == 2 and len(handed.params) == sum(len(g["params"]) for g in groups.param_groups)
        accepted = inspect.signature(type(groups)).parameters
        settings = {k: v for k, v in groups.param_groups[0].items() if k in accepted and k != "params"}
        self.optimizer = type(groups)(handed.params, **settings)
        return self.optimizer

    found = run_strata({**flags, "deepspeed": json.dumps(file)})
    spared = trl_reference.log_history(flags)
    monkeypatch.setattr(transformers.Trainer, "create_optimizer", create_optimizer)
    monkeypatch.setattr(trl_reference, "_log_history", trl_reference._log_history.__wrapped__)
    compare(found.state["log_history"], trl_reference.log_history(flags))
    with pytest.raises(AssertionError, match="but the reference has"):
        compare(found.state["log_history"], spared)


@pytest.mark.parametrize("optim,more", [
    ("adafactor", {}), ("sgd", {}), ("adam", {}), ("lion_32bit", {}), ("adamw_8bit", {}),
    ("sgd", dict(optim_args="momentum=0.8,dampening=0.2", learning_rate=0.1)), ("adafactor", dict(decay_norms_and_biases=True)),
    ("adamw_torch", dict(decay_norms_and_biases=True))])
def test_ranks_and_resuming(inputs, tmp_path, optim, more):
    flags = flags_of(inputs, tmp_path / "one", optim, rows=36, per_device_train_batch_size=6,
                     max_steps=8, **more)
    one = run_strata(flags)
    ranks = {**flags, "per_device_train_batch_size": 2, "output_dir": tmp_path / "three",
             "save_strategy": "steps", "save_steps": 4}
    three = run_strata(ranks, world=3)
    for ours, theirs in zip(three.history, one.history, strict=True):
        assert abs(ours["loss"] - theirs["loss"]) < 1e-5, (ours, theirs)
    resumed = run_strata({**ranks, "output_dir": tmp_path / "resumed", "save_strategy": "no",
                          "resume_from_checkpoint": three.folder / "checkpoint-4"}, world=3)
    assert resumed.losses == three.losses[-len(resumed.losses):]
    files = [(run.folder / "model.safetensors").read_bytes() for run in (three, resumed)]
    assert files[0] == files[1]


def test_state_has_the_form_of_bitsandbytes(inputs, tmp_path):
    """Codes and scales of a checkpoint, decoded by bitsandbytes, are the moments of 32 bits."""
    from bitsandbytes import functional
    from safetensors.torch import load_file

    states = {}
    for optim in ("adamw_torch", "adamw_8bit"):
        flags = flags_of(inputs, tmp_path / optim, optim, max_steps=1, weight_decay=0.0,
                         max_grad_norm=0.0, save_strategy="steps", save_steps=1)
        run = run_strata(flags)
        states[optim] = load_file(run.folder / "checkpoint-1" / "rank-00000.safetensors")
    codes = [name for name in states["adamw_8bit"] if name.startswith("state1/")]
    assert len(codes) > 4 and not any("embed_tokens" in name for name in codes)
    for name in codes:
        weight = name.removeprefix("state1/")
        for number, moment, signed in ((1, "exp_avg", True), (2, "exp_avg_sq", False)):
            state = states["adamw_8bit"][f"state{number}/{weight}"].flatten()
            absmax = states["adamw_8bit"][f"absmax{number}/{weight}"].flatten()
            assert state.dtype == torch.uint8 and absmax.numel() == -(-state.numel() // 256)
            decoded = functional.dequantize_blockwise(
                state, absmax=absmax, code=functional.create_dynamic_map(signed=signed),
                blocksize=256)
            exact = states["adamw_torch"][f"{moment}/{weight}"].flatten()
            bound = absmax.repeat_interleave(256)[: exact.numel()] * 0.008
            assert ((decoded - exact).abs() <= bound).all(), (weight, moment)


def named_state(folder):
    """Tensors of a checkpoint by kind and weight, without the weights themselves."""
    from safetensors.torch import load_file

    found = {}
    for file in sorted(folder.glob("rank-*.safetensors")):
        for name, value in load_file(file).items():
            if not name.startswith("parameter/"):
                found[name] = value.flatten()
    return found


@pytest.mark.parametrize("optim", ["adamw_8bit", "lion_8bit"])
def test_state_goes_through_bitsandbytes(inputs, tmp_path, optim):
    """Converted, loaded by bitsandbytes' optimizer, saved by it and converted back: the same bits."""
    import subprocess

    from bitsandbytes.optim import AdamW8bit, Lion8bit
    from running import PROGRAM, environment

    def convert(*words):
        done = subprocess.run([PROGRAM, "convert", *map(str, words)], capture_output=True,
                              text=True, env=environment(), timeout=60)
        assert done.returncode == 0, done.stderr

    run = run_strata(flags_of(inputs, tmp_path / "run", optim, max_steps=3,
                              save_strategy="steps", save_steps=3))
    convert(run.folder / "checkpoint-3", tmp_path / "bin", "--to", "bin")
    weights = torch.load(tmp_path / "bin" / "pytorch_model_fsdp.bin", weights_only=True)
    saved = torch.load(tmp_path / "bin" / "optimizer.bin", weights_only=True)
    names = [name for group in saved["param_groups"] for name in group["params"]]
    assert set(names) == saved["state"].keys()

    kind = AdamW8bit if optim == "adamw_8bit" else Lion8bit
    parameters = {name: torch.nn.Parameter(weights[name]) for name in names}
    optimizer = kind([{"params": [parameters[name] for name in group["params"]]}
                      for group in saved["param_groups"]])
    ids = {name: i for i, name in enumerate(names)}
    own = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": {ids[name]: state for name, state in saved["state"].items()},
                               "param_groups": own})
    for parameter in parameters.values():
        state = optimizer.state[parameter]
        assert state["step"] == 3
        if state["state1"].dtype == torch.uint8:
            assert state["qmap1"].numel() == state["qmap1"].unique().numel() == 256
            assert state["state1"].shape == parameter.shape

    again = optimizer.state_dict()
    (tmp_path / "again").mkdir()
    torch.save(weights, tmp_path / "again" / "pytorch_model_fsdp.bin")
    torch.save({"state": {name: again["state"][ids[name]] for name in names},
                "param_groups": saved["param_groups"]}, tmp_path / "again" / "optimizer.bin")
    convert(tmp_path / "again", tmp_path / "back", "--to", "strata")
    before, after = named_state(run.folder / "checkpoint-3"), named_state(
        tmp_path / "back" / "checkpoint-3")
    assert before.keys() == after.keys()
    assert any(value.dtype == torch.uint8 for value in before.values())
    assert all(torch.equal(before[name], after[name]) for name in before)

    # And it can go on from there.
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    assert all(optimizer.state[p]["step"] == 4 for p in parameters.values())


# What adapters and a family of another name make of embeddings: flags, PEFT's settings.
EMBEDDINGS = {
    "t5": ({}, None),
    "lora_embedding": (dict(lora_r=16, lora_target_modules=["q_proj", "embed_tokens"]),
                       dict(r=16, target_modules=["q_proj", "embed_tokens"])),
    "saved_embedding": (dict(lora_r=64, lora_target_modules=["q_proj"],
                             lora_modules_to_save=["embed_tokens", "lm_head"]),
                        dict(r=64, target_modules=["q_proj"],
                             modules_to_save=["embed_tokens", "lm_head"])),
    "prompt": (dict(peft_type="PROMPT_TUNING", num_virtual_tokens=70),
               dict(peft_type="PROMPT_TUNING", num_virtual_tokens=70)),
    "prefix": (dict(peft_type="PREFIX_TUNING", num_virtual_tokens=140, prefix_projection=True,
                    encoder_hidden_size=130),
               dict(peft_type="PREFIX_TUNING", num_virtual_tokens=140, prefix_projection=True,
                    encoder_hidden_size=130)),
}


def state_of_trainer(model, folder):
    """How many weights of each size Trainer's optimizer keeps with and without codes."""
    from bitsandbytes.optim import GlobalOptimManager
    from transformers import Trainer, TrainingArguments

    manager = GlobalOptimManager.get_instance()
    manager.initialize()  # it remembers models that were trained before
    ids = torch.arange(3, 9)
    trainer = Trainer(model=model, train_dataset=[dict(input_ids=ids, labels=ids)] * 2,
                      args=TrainingArguments(folder, use_cpu=True, report_to="none", max_steps=1,
                                             optim="adamw_8bit", save_strategy="no",
                                             per_device_train_batch_size=1, disable_tqdm=True))
    trainer.train()
    manager.initialize()
    return collections.Counter((p.numel(), state["state1"].dtype == torch.uint8)
                               for p, state in trainer.optimizer.state.items())


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_keep_32_bits(inputs, tmp_path, name):
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, T5ForConditionalGeneration

    more = dict(optim="adamw_8bit", max_steps=1, save_strategy="steps", save_steps=1)
    flags, settings = EMBEDDINGS[name]
    if settings is None:
        folder = tiny_t5.save_t5(tmp_path / "t5", d_model=64, d_ff=80)
        run = run_strata({"model_name_or_path": folder, "output_dir": tmp_path / "out",
                          "dataset_name": tiny_t5.save_pairs(tmp_path / "pairs"),
                          "disable_tqdm": True, "max_source_length": 12, "max_target_length": 4,
                          **more}, recipe="seq2seq")
        model = T5ForConditionalGeneration.from_pretrained(folder)
    else:
        from peft import get_peft_model
        from test_lora import config_of

        run = run_strata(base_flags(inputs.model("wide"), inputs.data("messages"), tmp_path / "out",
                                    use_peft=True, **more, **flags))
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(inputs.model("wide")),
                               config_of(settings))
    saved = load_file(run.folder / "checkpoint-1" / "rank-00000.safetensors")
    found = collections.Counter((value.numel(), key.startswith("state1/"))
                                for key, value in saved.items()
                                if key.startswith(("state1/", "exp_avg/")))
    assert found == state_of_trainer(model, tmp_path / "theirs")
    large = {bits for size, bits in found if size >= 4096}
    assert large == ({False} if name == "prompt" else {False, True} - (
        {False} if name == "lora_embedding" else set()))
