# Oracle: PEFT over transformers on the files of a run, and the run of one rank: adapters of the
# embedding, rows of single tokens, ties, with and without new tokens.
import json
import subprocess

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from running import PROGRAM, base_flags, environment, run_strata
from test_generate import run_probe

PROMPTS = [[5, 60, 31], [1, 2, 3, 262, 299, 30], [33] * 9]
CHATML = dict(chat_template_format="chatml")
# Base, settings of the program, the same for PEFT.
CASES = {
    "embedding": ("plain", dict(lora_target_modules=["q_proj", "embed_tokens"]), {}),
    "embedding_tied": ("tied", dict(lora_target_modules=["embed_tokens"]), {}),
    "embedding_dora": ("plain", dict(lora_target_modules=["q_proj", "embed_tokens"], use_dora=True),
                       dict(use_dora=True)),
    "embedding_and_head": ("plain", dict(lora_target_modules=["embed_tokens", "lm_head"]), {}),
    "tokens": ("plain", dict(trainable_token_indices="[1, 2, 30]"),
               dict(trainable_token_indices=[1, 2, 30])),
    "tokens_tied": ("tied", dict(trainable_token_indices='{"embed_tokens": [2, 40, 41]}'),
                    dict(trainable_token_indices={"embed_tokens": [2, 40, 41]})),
    "tokens_of_the_head": ("plain", dict(trainable_token_indices='{"lm_head": [2, 40, 41]}'),
                           dict(trainable_token_indices={"lm_head": [2, 40, 41]})),
    "tokens_of_a_tied_head": ("tied", dict(trainable_token_indices='{"lm_head": [2, 40, 41]}'),
                              dict(trainable_token_indices={"lm_head": [2, 40, 41]})),
    "tokens_of_the_head_and_embedding": ("tied", dict(lora_target_modules=["embed_tokens"],
                                                      trainable_token_indices='{"lm_head": [2, 40]}'),
                                         dict(trainable_token_indices={"lm_head": [2, 40]})),
    "saved_as_one": ("tied", dict(lora_modules_to_save=["embed_tokens"], ensure_weight_tying=True),
                     dict(modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "new_tokens": ("llama2", dict(CHATML, trainable_token_indices="330, 331, 332"),
                   dict(trainable_token_indices=[330, 331, 332])),
    "new_tokens_tied": ("llama2-tied", dict(CHATML, trainable_token_indices="[330, 331]"),
                        dict(trainable_token_indices=[330, 331])),
    "new_rows_and_embedding": ("llama2", dict(CHATML, lora_target_modules=["embed_tokens", "lm_head"]),
                               {}),
}
# 8-bit state, offload and codes beside them, so that each meets the others once.
MORE = {"embedding": dict(optim="adamw_8bit"), "tokens_tied": dict(load_in_4bit=True),
        "tokens_of_a_tied_head": dict(fsdp_offload_params=True), "tokens_of_the_head": dict(sharding_strategy="ZERO2"),
        "new_tokens": dict(fsdp_offload_params=True, sharding_strategy="SHARD_GRAD_OP"),
        "saved_as_one": dict(sharding_strategy="ZERO2")}


def continuations(model):
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0,
                                max_new_tokens=12, do_sample=False, eos_token_id=None)
        found.append(output[0, len(prompt):].tolist())
    return found


def base_model(folder, flags):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if "chat_template_format" in flags:
        model.resize_token_embeddings(336)
    return model


@pytest.mark.parametrize("name", CASES)
def test_adapter_is_what_peft_has(inputs, tmp_path, name):
    base, flags, lora = CASES[name]
    folder = inputs.model(base)
    flags = {"use_peft": True, "lora_r": 3, "lora_alpha": 6, "lora_dropout": 0,
             "lora_target_modules": ["q_proj"], "learning_rate": 1e-2, "max_steps": 5, **flags}

    def run(world, rows, **more):
        return run_strata(base_flags(folder, inputs.data("messages"), tmp_path / f"{world}",
                                     per_device_train_batch_size=rows, **flags, **more), world)

    quantised = {k: v for k, v in MORE.get(name, {}).items() if k == "load_in_4bit"}
    one, two = run(1, 4, **quantised), run(2, 2, **MORE.get(name, {}))
    tolerance = 2e-3 if "optim" in MORE.get(name, {}) else 1e-5
    assert two.losses == pytest.approx(one.losses, abs=tolerance)
    assert one.losses[0] - one.losses[-1] > 0.02, "nothing was learnt"

    out = tmp_path / "2"
    peft = get_peft_model(base_model(folder, flags), LoraConfig(
        task_type="CAUSAL_LM", r=3, lora_alpha=6, base_model_name_or_path=str(folder),
        target_modules=flags["lora_target_modules"], **lora))
    expected = {n: v for n, v in get_peft_model_state_dict(peft).items()
                if "original_module" not in n and ".modules_to_save." not in n}
    found = load_file(out / "adapter_model.safetensors")
    assert {n: tuple(v.shape) for n, v in found.items()} == {
        n: tuple(v.shape) for n, v in expected.items()}
    if quantised:
        return
    loaded = PeftModel.from_pretrained(base_model(folder, flags), out).eval()
    assert run_probe(tmp_path, model=str(out), prompts=PROMPTS,
                     max_new_tokens=12) == continuations(loaded)
    tokens = torch.tensor([PROMPTS[1]])
    logits = loaded(tokens).logits
    merged = subprocess.run([PROGRAM, "merge-adapter", out, tmp_path / "merged"], text=True,
                            capture_output=True, env=environment(), timeout=60)
    assert merged.returncode == 0, merged.stderr
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(whole(tokens).logits, logits, rtol=1e-4, atol=1e-4)
    if not base_model(folder, flags).config.tie_word_embeddings:
        theirs = loaded.merge_and_unload()
        torch.testing.assert_close(whole.get_input_embeddings().weight,
                                   theirs.get_input_embeddings().weight, rtol=1e-6, atol=1e-6)


def test_a_tie_that_ends_is_said(inputs, tmp_path):
    more = dict(use_peft=True, lora_target_modules=["q_proj"], max_steps=1)
    run = run_strata(base_flags(inputs.model("tied"), inputs.data("messages"), tmp_path / "a",
                                lora_modules_to_save=["lm_head"], **more))
    assert "note: adapter: embedding and output layer are one weight in the base" in run.text
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "b",
                                ensure_weight_tying=True, **more))
    assert "note: ensure_weight_tying: the model's embedding and output layer are not tied" in run.text


@pytest.mark.parametrize("model, is_said", [("plain", True), ("odd", False)])
def test_biases_that_are_not_there_are_said(inputs, tmp_path, model, is_said):
    """PEFT trains the rest without a word."""
    run = run_strata(base_flags(inputs.model(model), inputs.data("messages"), tmp_path / "out", use_peft=True, bias="all",
                                lora_target_modules=["q_proj"], max_steps=1))
    assert ("note: bias: all has no effect, the layers that it means have none" in run.text) == is_said


def test_tokens_of_another_tokenizer_train(inputs, tmp_path):
    """TRL trains the rows of the tokens it cloned, and the output layer."""
    run_strata(base_flags(inputs.model("llama2"), inputs.data("messages"), tmp_path / "out",
                          chat_template_path=inputs.model("plain"), use_peft=True, lora_r=2,
                          lora_target_modules=["q_proj"], max_steps=2, learning_rate=1e-2), world=2)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    # Two marks and <pad>, and what fills the rows up to a multiple of 64.
    assert config["trainable_token_indices"] == list(range(330, 384))
    assert config["modules_to_save"] == ["lm_head"]
    model = AutoModelForCausalLM.from_pretrained(inputs.model("llama2"), dtype=torch.float32)
    model.resize_token_embeddings(384)
    peft = PeftModel.from_pretrained(model, tmp_path / "out").eval()
    assert run_probe(tmp_path, model=str(tmp_path / "out"), prompts=PROMPTS,
                     max_new_tokens=12) == continuations(peft)
