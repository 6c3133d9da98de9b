"""Oracle: PEFT's LoRA over parameters (`target_parameters`) of experts whose files hold layers of each (LFM2-MoE, Nemotron-H), and its merging."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

import test_generate
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe
from running import base_flags, run_strata, run_strata_raw, strata
from test_hybrids import LFM2
from test_mamba_hybrids import NEMOTRON_H
from test_target_parameters import FLAGS, LENGTHS, PROMPT, adapted, base_of, file_name

GATE_UP, UP, DOWN = "experts.gate_up_proj", "experts.up_proj", "experts.down_proj"
CASES = {
    "lfm2": (LFM2["lfm2_moe"], dict(target_parameters=[GATE_UP, DOWN])),
    "lfm2_beside_linears": (LFM2["lfm2_moe_all_sparse"], dict(target_parameters=[DOWN, GATE_UP], target_modules="all-linear")),
    "lfm2_by_layer": (LFM2["lfm2_moe_all_sparse"], dict(target_parameters=["2.feed_forward." + GATE_UP, "1.feed_forward." + DOWN],
                                                        target_modules=["in_proj"], use_rslora=True)),
    "lfm2_ranks": (LFM2["lfm2_moe_no_bias"], dict(target_parameters=[GATE_UP, DOWN], rank_pattern={"gate_up_proj": 4}, alpha_pattern={"down_proj": 3})),
    "nemotron": (NEMOTRON_H["nemotron_h_experts"], dict(target_parameters=[UP, DOWN])),
    "nemotron_latents": (NEMOTRON_H["nemotron_h_latents"], dict(target_parameters=[DOWN, UP], target_modules=["q_proj", "down_proj", "fc1_latent_proj"])),
    "nemotron_by_layer": (NEMOTRON_H["nemotron_h_experts"], dict(target_parameters=["4.mixer." + UP, "1.mixer." + DOWN])),
}


@pytest.mark.parametrize("kind", ["plain", "checkpointed"])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients(tmp_path, case, kind):
    model_settings, settings = CASES[case]
    save_checkpoint(tmp_path, **model_settings)
    model = adapted(tmp_path, **settings)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents, lora=dict(settings, r=3, lora_alpha=5),
                                adapter=str(tmp_path / "adapter"), checkpoint=kind == "checkpointed")
    assert sorted(report["adapter_tensors"]) == sorted(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    expected = {file_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert any(".experts." in name for name in expected)
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    for name, gradient in expected.items():
        errors[name] = relative_error(tensors["grad:" + name], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-5, f"{worst}: {errors[worst]}"


@pytest.mark.parametrize("case", ["lfm2", "nemotron"])
def test_experts_without_rows(tmp_path, case):
    model_settings, settings = CASES[case]
    save_checkpoint(tmp_path, **model_settings)
    model = adapted(tmp_path, **settings)
    documents = make_documents((1,))
    run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, lora=dict(settings, r=3, lora_alpha=5), adapter=str(tmp_path / "adapter"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.grad is not None:
            assert torch.allclose(tensors["grad:" + file_name(name)], parameter.grad, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize("init", [True, "gaussian"])
@pytest.mark.parametrize("case", ["lfm2_beside_linears", "nemotron_latents"])
def test_first_values_are_those_of_peft(tmp_path, case, init):
    model_settings, settings = CASES[case]
    save_checkpoint(tmp_path, **model_settings)
    settings = dict(settings, init_lora_weights=init, r=3, lora_alpha=5)
    base = base_of(tmp_path)
    torch.manual_seed(11)
    model = get_peft_model(base, LoraConfig(**settings))
    tensors, report = run_probe(tmp_path, documents=make_documents((4,)), lora=settings, seed=11)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(tensors["init:" + file_name(name)].float(), parameter.float()), name
    trainable, everything = model.get_nb_trainable_parameters()
    assert report["trainable"].startswith(f"trainable params: {trainable:,} || all params: {everything:,} ||")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["lfm2_by_layer", "lfm2_ranks", "nemotron_latents"])
def test_merged_weights_are_those_of_peft(tmp_path, case, dtype):
    model_settings, settings = CASES[case]
    kind = getattr(torch, dtype)
    save_checkpoint(tmp_path, **model_settings)
    base_of(tmp_path, kind).save_pretrained(tmp_path)
    model = adapted(tmp_path, kind, **settings)
    before = {name: weight.clone() for name, weight in base_of(tmp_path, kind).state_dict().items()}
    strata("merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", tmp_path)
    found = base_of(tmp_path / "merged", kind).state_dict()
    expected = model.merge_and_unload().state_dict()
    assert found.keys() == expected.keys()
    changed = 0
    for name, weight in expected.items():
        assert relative_error(found[name], weight) < (5e-3 if dtype == "bfloat16" else 1e-6), name
        assert torch.equal(found[name], before[name]) == torch.equal(weight, before[name]), name
        changed += ".experts." in name and not torch.equal(weight, before[name])
    assert changed >= 2


def answers_of(model):
    # Its grouped products do not take rows of such widths.
    model.eval().set_experts_implementation("eager")
    return test_generate.reference_ids(model, PROMPT)


@pytest.mark.parametrize("family,cases", [("lfm2", ["lfm2", "lfm2_ranks"]), ("nemotron", ["nemotron", "nemotron_by_layer"])])
def test_answers_are_those_of_peft(tmp_path, family, cases):
    """With the adapter beside the base, folded in while it answers, and taken out again."""
    save_checkpoint(tmp_path, scale=0.3, **CASES[cases[0]][0])
    expected, commands, answers = {"": answers_of(base_of(tmp_path))}, [""], []
    for name in cases:
        model = adapted(tmp_path, **CASES[name][1])
        model.save_pretrained(tmp_path / name)
        expected[name] = answers_of(model)
    assert len({tuple(ids) for ids in expected.values()}) == len(expected)
    answers.append(expected[cases[0]])  # the first one given is in use at first
    for name in (cases[1], "", cases[0]):
        commands += ["use " + name, "merge", "unmerge"] if name else ["use "]
        answers += [expected[name]] * (3 if name else 1)
    found = test_generate.run_probe(tmp_path, model=str(tmp_path), prompts=[PROMPT] * len(commands), commands=commands,
                                    adapters={n: str(tmp_path / n) for n in cases}, max_new_tokens=test_generate.NEW_TOKENS)
    assert found == answers


RUNS = {"lfm2_moe": [GATE_UP, DOWN], "nemotron_h": [UP, DOWN]}


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", RUNS)
def test_peft_loads_what_a_run_wrote(inputs, tmp_path, name, world):
    folder = inputs.model(name)
    flags = dict(FLAGS, lora_target_parameters=RUNS[name], max_steps=3, save_strategy="steps", save_steps=3)
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", **flags), world)
    assert json.loads((run.folder / "adapter_config.json").read_text())["target_parameters"] == RUNS[name]
    found = load_file(run.folder / "adapter_model.safetensors")
    model = PeftModel.from_pretrained(base_of(folder), run.folder)
    branches = {file_name(n): p for n, p in model.named_parameters() if ".lora_" in n}
    assert branches.keys() == found.keys() and all(torch.equal(found[n], p) and p.abs().max() > 0 for n, p in branches.items())
    strata("convert", run.folder / "checkpoint-3", tmp_path / "adapter", "--to", "safetensors")
    converted = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert converted.keys() == found.keys() and all(torch.equal(converted[n], found[n]) for n in found)


def test_files_of_another_base_are_named(tmp_path):
    save_checkpoint(tmp_path, **CASES["lfm2"][0])
    adapted(tmp_path, **CASES["lfm2"][1])
    save_checkpoint(tmp_path / "other", **dict(CASES["lfm2"][0], num_experts=4))
    text = strata("merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", tmp_path / "other", code=2)
    assert 'for "model.layers.1.feed_forward.experts.0.w1.weight"' in text and not (tmp_path / "merged").exists()


@pytest.mark.parametrize("settings,message", [
    (dict(lora_target_parameters="experts.w1"), "target_parameters: found no parameter matching [experts.w1], expected some of experts.down_proj, experts.gate_up_proj"),
    (dict(lora_dropout=0.05), "lora_dropout: found 0.05 with target_parameters, expected 0"),
    (dict(lora_r=13), "lora_r: found 13 for the experts of"),
])
def test_what_cannot_be_is_refused(inputs, tmp_path, settings, message):
    run = run_strata_raw(base_flags(inputs.model("lfm2_moe"), inputs.data("messages"), tmp_path / "out", max_steps=1,
                                    **{**FLAGS, "lora_target_parameters": [GATE_UP, DOWN], **settings}))
    assert run.returncode == 2 and message in run.text, run.text
