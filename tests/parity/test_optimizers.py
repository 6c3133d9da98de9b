# Oracle: TRL's SFTTrainer with the same `optim` (torch, transformers, bitsandbytes): loss and gradient
# norm of every step. 8-bit state is rounded to the nearest value in both, as published: on CPUs
# bitsandbytes rounds through a table, which the reference run replaces. And: ranks, and resuming.
import pytest
import torch

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


@pytest.mark.parametrize("optim", ["adafactor", "sgd", "adam", "lion_32bit", "adamw_8bit"])
def test_ranks_and_resuming(inputs, tmp_path, optim):
    flags = flags_of(inputs, tmp_path / "one", optim, rows=36, per_device_train_batch_size=6,
                     max_steps=8)
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
