"""Oracle: PEFT over transformers. A base whose config.json ties embedding and output layer and whose file holds another
output layer: adapters take hold of the file's, in both directions and in a merge."""

import subprocess

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from running import PROGRAM, base_flags, environment, run_strata
from test_adapters_of_codes import EVALUATED
from test_export import eval_loss, measured
from test_generate import add_adapter, reference_ids, run_probe

# Settings of the program, the same for PEFT.
CASES = {
    "lora": (dict(lora_target_modules=["q_proj", "lm_head"]), dict(target_modules=["q_proj", "lm_head"])),
    "dora": (dict(lora_target_modules=["lm_head"], use_dora=True), dict(target_modules=["lm_head"], use_dora=True)),
    "ia3": (dict(peft_type="IA3", lora_target_modules=["k_proj", "lm_head"], feedforward_modules=["lm_head"]),
            dict(peft_type="IA3", target_modules=["k_proj", "lm_head"], feedforward_modules=["lm_head"])),
    "vera": (dict(peft_type="VERA", lora_target_modules=["lm_head"]), dict(peft_type="VERA", target_modules=["lm_head"])),
    "whole": (dict(lora_modules_to_save=["lm_head"], lora_target_modules=["q_proj"]),
              dict(modules_to_save=["lm_head"], target_modules=["q_proj"])),
    "tokens": (dict(trainable_token_indices="[3, 40, 50]", lora_target_modules=["q_proj"]),
               dict(trainable_token_indices=[3, 40, 50], target_modules=["q_proj"])),
}


@pytest.fixture(scope="module")
def base(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own-head") / "base"
    folder.mkdir()
    for file in inputs.model("tied").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    torch.manual_seed(9)
    tensors["lm_head.weight"] = torch.randn_like(tensors["model.embed_tokens.weight"]) * 0.08
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    model = reference(folder)
    assert model.config.tie_word_embeddings and not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    return folder


def reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def merged_loss(base, adapter, out, data):
    done = subprocess.run([PROGRAM, "merge-adapter", adapter, out, "--base_model", base], capture_output=True,
                          text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return eval_loss(reference(out), base, data)


@pytest.mark.parametrize("world,rank_0_reads", [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("name", CASES)
def test_what_is_trained_is_what_peft_loads(inputs, base, tmp_path, name, world, rank_0_reads):
    data = inputs.data("messages")
    run = run_strata(base_flags(base, data, tmp_path / "run", use_peft=True, lora_r=2, max_steps=4, eval_steps=4,
                                learning_rate=2e-2, per_device_train_batch_size=4 // world,
                                fsdp_cpu_ram_efficient_loading=rank_0_reads, **CASES[name][0], **EVALUATED), world)
    loss = pytest.approx(measured(run), abs=1e-5)
    assert eval_loss(PeftModel.from_pretrained(reference(base), run.folder), base, data) == loss
    assert merged_loss(base, run.folder, tmp_path / "merged", data) == loss


@pytest.mark.parametrize("name", CASES)
def test_what_peft_wrote_is_what_it_was(inputs, base, tmp_path, name):
    data = inputs.data("messages")
    model = add_adapter(reference(base), dict(CASES[name][1]), tmp_path / "adapter")
    loss = pytest.approx(eval_loss(model, base, data), abs=1e-5)
    run = run_strata(base_flags(base, data, tmp_path / "run", adapter_name_or_path=tmp_path / "adapter", max_steps=1,
                                learning_rate=1e-30, eval_steps=1, **EVALUATED))
    assert measured(run) == loss
    assert merged_loss(base, tmp_path / "adapter", tmp_path / "merged", data) == loss
    prompts = [[5, 60, 31], [1, 2, 3, 62, 99, 30]]
    found = run_probe(tmp_path, model=str(base), adapter=str(tmp_path / "adapter"), prompts=prompts, max_new_tokens=8)
    assert found == [reference_ids(model, prompt)[:8] for prompt in prompts]


def test_new_tokens_keep_both(inputs, base, tmp_path):
    """With rows for new tokens both weights go into the adapter's file, as PEFT saves them."""
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2,
                                lora_target_modules=["q_proj"], max_steps=1, chat_template_format="chatml"))
    saved = load_file(run.folder / "adapter_model.safetensors")
    tensors = load_file(base / "model.safetensors")
    found = {name: value for name, value in saved.items() if "lm_head" in name or "embed_tokens" in name}
    for name, value in found.items():
        own = tensors[name.removeprefix("base_model.model.").replace(".base_layer.", ".")]
        assert torch.equal(value[:len(own)], own), name
