"""Oracle: PEFT's LoRA over parameters (`target_parameters`) of transformers' experts, and its merging."""

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import test_generate
import tiny_llama
from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from running import base_flags, run_strata, run_strata_raw, strata
from test_gpt_oss import SMALL, decoded, packed_checkpoint, save_decoded

LENGTHS = (23, 1, 9)
PROMPT = test_generate.PROMPTS[1]
GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
FLAGS = dict(use_peft=True, lora_r=3, lora_dropout=0.0, learning_rate=0.02)
CASES = {
    "both": dict(target_parameters=[GATE_UP, DOWN]),
    "all_linear": dict(target_parameters=[DOWN, GATE_UP], target_modules="all-linear"),
    "by_layer": dict(target_parameters=["0." + DOWN, "1." + GATE_UP], target_modules=["v_proj"], use_rslora=True),
    "by_full_name": dict(target_parameters=["model.layers.1." + DOWN]),
    "patterns": dict(target_parameters=["experts.gate_up_proj", "experts.down_proj"], target_modules=["q_proj"],
                     rank_pattern={"1.mlp.experts.down_proj": 2, "gate_up_proj": 4}, alpha_pattern={"down_proj": 3}),
    "beside_router": dict(target_parameters=["gate_up_proj"], modules_to_save=["router"]),
}


def base_of(folder, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)


def file_name(name):
    return name.replace(".modules_to_save.default", "").replace(".default", "")


def adapted(folder, dtype=torch.float32, **settings):
    """A model with an adapter whose values are random, which also lies in folder/adapter."""
    torch.manual_seed(3)
    model = get_peft_model(base_of(folder, dtype), LoraConfig(r=3, lora_alpha=5, task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder / "adapter")
    return model


@pytest.mark.parametrize("kind", ["plain", "checkpointed"])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients(tmp_path, case, kind):
    save_checkpoint(tmp_path, **SMALL)
    settings = CASES[case]
    model = adapted(tmp_path, **settings)
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path, documents=documents, lora=dict(settings, r=3, lora_alpha=5),
                                adapter=str(tmp_path / "adapter"), checkpoint=kind == "checkpointed")
    expected = {file_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert sorted(report["adapter_tensors"]) == sorted(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    errors = {"loss": relative_error(tensors["loss"], loss), "logits": relative_error(tensors["logits"], logits)}
    for key, gradient in expected.items():
        name = key if ".lora_" in key else key.removeprefix("base_model.model.")
        errors[key] = relative_error(tensors["grad:" + name], gradient)
    worst = max(errors, key=errors.get)
    assert errors[worst] < 2e-5, f"{worst}: {errors[worst]}"
    order = [file_name(n) for n, p in model.named_parameters() if p.requires_grad and ".lora_" in n]
    assert [n for n in report["parameters"] if ".lora_" in n] == order


def test_an_expert_without_rows_and_one_row(tmp_path):
    """Of 5 experts one token has 4."""
    save_checkpoint(tmp_path, **SMALL)
    model = adapted(tmp_path, **CASES["both"])
    documents = make_documents((2,))
    run_reference(model, documents)
    tensors, _ = run_probe(tmp_path, documents=documents, lora=dict(CASES["both"], r=3, lora_alpha=5),
                           adapter=str(tmp_path / "adapter"))
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert relative_error(tensors["grad:" + file_name(name)], parameter.grad) < 2e-5, name


@pytest.mark.parametrize("init", ["true", "gaussian", "false"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_first_values_are_those_of_peft(tmp_path, init, dtype):
    save_checkpoint(tmp_path, **SMALL)
    value = {"true": True, "false": False}.get(init, init)
    settings = dict(CASES["patterns"], init_lora_weights=value, r=3, lora_alpha=5)
    base = base_of(tmp_path, getattr(torch, dtype))
    torch.manual_seed(11)
    model = get_peft_model(base, LoraConfig(**settings))
    tensors, report = run_probe(tmp_path, documents=make_documents((4,)), lora=settings, seed=11, dtype=dtype)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(tensors["init:" + file_name(name)].float(), parameter.float()), name
    trainable, everything = model.get_nb_trainable_parameters()
    assert report["trainable"].startswith(f"trainable params: {trainable:,} || all params: {everything:,} ||")


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("case", ["both", "by_layer"])
def test_peft_loads_what_a_run_wrote(inputs, tmp_path, world, case):
    folder = inputs.model("gpt_oss")
    settings = dict(CASES[case])
    flags = dict(FLAGS, lora_target_parameters=settings["target_parameters"], use_rslora=settings.get("use_rslora", False),
                 lora_target_modules=settings.get("target_modules"), max_steps=3, eval_strategy="steps", eval_steps=3)
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", **flags), world)
    config = json.loads((run.folder / "adapter_config.json").read_text())
    assert config["target_parameters"] == settings["target_parameters"]
    assert config["target_modules"] == settings.get("target_modules")
    model = PeftModel.from_pretrained(base_of(folder), run.folder, is_trainable=True)
    expected = get_peft_model(base_of(folder), LoraConfig(r=3, **settings))
    assert {n for n, _ in model.named_parameters()} == {n for n, _ in expected.named_parameters()}
    found = load_file(run.folder / "adapter_model.safetensors")
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            assert torch.equal(found[file_name(name)], parameter) and parameter.abs().max() > 0, name
    # The loss of the file as the program evaluates it, by continuing with a rate of 0.
    again = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "again", use_peft=True, max_steps=1,
                                  adapter_name_or_path=run.folder, learning_rate=0, eval_strategy="steps", eval_steps=1), world)
    losses = [row["eval_loss"] for r in (run, again) for row in r.history if "eval_loss" in row]
    assert abs(losses[-1] - losses[-2]) < 1e-6
    documents = make_documents(LENGTHS)
    _, logits = run_reference(model, documents)
    tensors, _ = run_probe_copy(folder, tmp_path, documents, config, run.folder)
    assert relative_error(tensors["logits"], logits) < 2e-5


def run_probe_copy(folder, tmp_path, documents, config, adapter):
    """run_probe() writes into the folder of the model, which others read."""
    import shutil

    copy = shutil.copytree(folder, tmp_path / "copy")
    keys = ("target_parameters", "target_modules", "r", "lora_alpha", "use_rslora")
    return run_probe(copy, documents=documents, lora={k: config[k] for k in keys if config[k] is not None},
                     adapter=str(adapter))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["both", "patterns", "by_layer"])
def test_merged_weights_are_those_of_peft(tmp_path, case, dtype):
    kind = getattr(torch, dtype)
    base = tiny_llama.save_model(tmp_path / "model", dtype=dtype, **tiny_llama.GPT_OSS)
    model = adapted(base, kind, **CASES[case])
    strata("merge-adapter", base / "adapter", tmp_path / "merged", "--base_model", base)
    found = load_file(tmp_path / "merged" / "model.safetensors")
    before = base_of(base, kind).state_dict()
    expected = model.merge_and_unload().state_dict()
    assert found.keys() == expected.keys()
    changed = 0
    for name, weight in expected.items():
        assert relative_error(found[name], weight) < (5e-3 if dtype == "bfloat16" else 1e-6), name
        assert torch.equal(found[name], before[name]) == torch.equal(weight, before[name]), name
        changed += not torch.equal(weight, before[name])
    assert changed >= 2


def test_answers_are_those_of_peft(tmp_path):
    """With the adapter beside the base, folded in while it answers, and taken out again."""
    save_checkpoint(tmp_path, **test_generate.MODELS["gpt_oss"], scale=0.3)
    expected, commands, answers = {"": test_generate.reference_ids(base_of(tmp_path).eval(), PROMPT)}, [""], []
    for name in ("both", "by_layer", "patterns"):
        model = adapted(tmp_path, **CASES[name])
        model.save_pretrained(tmp_path / name)
        expected[name] = test_generate.reference_ids(model.eval(), PROMPT)
    assert len({tuple(ids) for ids in expected.values()}) == len(expected)
    answers.append(expected["both"])  # the first one given is in use at first
    for name in ("by_layer", "", "patterns", "both"):
        commands += ["use " + name, "merge", "unmerge"] if name else ["use "]
        answers += [expected[name]] * (3 if name else 1)
    found = test_generate.run_probe(tmp_path, model=str(tmp_path), prompts=[PROMPT] * len(commands), commands=commands,
                                    adapters={n: str(tmp_path / n) for n in ("both", "by_layer", "patterns")},
                                    max_new_tokens=test_generate.NEW_TOKENS)
    assert found == answers


def test_answers_over_a_packed_base_are_those_over_the_decoded_one(tmp_path):
    packed = packed_checkpoint(tmp_path / "packed")
    plain = save_decoded(packed, tmp_path / "plain")
    torch.manual_seed(5)
    adapters = {"down": CASES["by_full_name"], "both": CASES["both"], "attention": dict(target_modules=["v_proj"]),
                "whole": dict(target_modules=["v_proj"], modules_to_save=["experts"])}
    for name, settings in adapters.items():
        model = get_peft_model(decoded(packed), LoraConfig(r=3, lora_alpha=5, task_type="CAUSAL_LM", **settings))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data.normal_(0, 0.3)
        model.save_pretrained(tmp_path / name)
    commands = ["use ", "use down", "merge", "unmerge", "use both", "merge", "use attention", "merge", "use whole", "merge",
                "unmerge", "use "]
    found = [test_generate.run_probe(tmp_path, model=str(base), prompts=[PROMPT] * len(commands), commands=commands[1:],
                                     adapters={n: str(tmp_path / n) for n in adapters},
                                     max_new_tokens=test_generate.NEW_TOKENS) for base in (packed, plain)]
    assert found[0] == found[1] and len({tuple(ids) for ids in found[0]}) > 4


def test_checkpoints_convert_to_adapters(inputs, tmp_path):
    """A sharded checkpoint of 2 ranks, and from torch's files without adapter_config.json."""
    run = run_strata(base_flags(inputs.model("gpt_oss"), inputs.data("messages"), tmp_path / "out", max_steps=2,
                                save_strategy="steps", save_steps=2, lora_target_parameters=["1." + DOWN, GATE_UP],
                                lora_target_modules=["q_proj"], **FLAGS), 2)
    expected = load_file(run.folder / "adapter_model.safetensors")
    strata("convert", run.folder / "checkpoint-2", tmp_path / "adapter", "--to", "safetensors")
    found = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert found.keys() == expected.keys() and all(torch.equal(found[n], expected[n]) for n in found)
    model = PeftModel.from_pretrained(base_of(inputs.model("gpt_oss")), tmp_path / "adapter")
    names = {file_name(n) for n, _ in model.named_parameters() if ".lora_" in n}
    assert names == expected.keys()


@pytest.mark.parametrize("settings,message", [
    (dict(lora_dropout=0.05), "lora_dropout: found 0.05 with target_parameters, expected 0"),
    (dict(use_dora=True), "use_dora: found true with target_parameters"),
    (dict(lora_bias=True), "lora_bias: found true with target_parameters"),
    (dict(init_lora_weights="pissa"), "init_lora_weights: found pissa with target_parameters"),
    (dict(init_lora_weights="orthogonal", lora_r=2), "init_lora_weights: found orthogonal with target_parameters"),
    (dict(lora_r=21), "lora_r: found 21 for the experts of"),
    (dict(lora_target_parameters="gate_up_proj_bias"),
     'target_parameters: found "gate_up_proj_bias" matching "model.layers.0.mlp.experts.gate_up_proj_bias"'),
    (dict(lora_target_parameters="q_proj.weight"), 'found "q_proj.weight" matching "model.layers.0.self_attn.q_proj.weight"'),
    (dict(lora_target_parameters="mlp.experts.gate_proj"), "target_parameters: found no parameter matching"),
    (dict(lora_target_parameters=["mlp.experts.down_proj", "7.mlp.experts.down_proj"]),
     'target_parameters: found "7.mlp.experts.down_proj", which matches none'),
    (dict(lora_modules_to_save=["experts"]), "trained whole, which target_parameters gives a branch"),
    (dict(rank_pattern='{"up_proj": 2}'), 'rank_pattern: found "up_proj"'),
    (dict(model="odd"), "for a model without parameters of experts"),
])
def test_what_cannot_be_is_refused(inputs, tmp_path, settings, message):
    flags = {**FLAGS, "lora_target_parameters": [GATE_UP, DOWN], "model": "gpt_oss", **settings}
    run = run_strata_raw(base_flags(inputs.model(flags.pop("model")), inputs.data("messages"), tmp_path / "out",
                                    max_steps=1, **flags))
    assert run.returncode == 2 and message in run.text, run.text


@pytest.mark.parametrize("case", ["both", "by_layer"])
def test_over_a_packed_base(inputs, tmp_path, case):
    """A run over experts in MXFP4 is one over the decoded ones; its adapter is merged into decoded weights."""
    folder = packed_checkpoint(tmp_path / "model")
    save_decoded(folder, tmp_path / "plain")
    settings = CASES[case]
    flags = dict(FLAGS, dtype="bfloat16", max_steps=3, lora_target_parameters=settings["target_parameters"],
                 lora_target_modules=settings.get("target_modules"))
    runs = [run_strata(base_flags(base, inputs.data("messages"), tmp_path / name, **flags), 2)
            for name, base in (("packed-out", folder), ("plain-out", tmp_path / "plain"))]
    assert runs[0].losses == runs[1].losses and len(set(runs[0].losses)) == 3
    assert "experts in MXFP4: 4 weights" in runs[0].text
    text = strata("merge-adapter", runs[0].folder, tmp_path / "merged", "--base_model", folder, code=2)
    assert "holds in MXFP4, expected plain weights to merge into; pass --dequantize" in text
    assert not (tmp_path / "merged").exists()
    strata("merge-adapter", runs[0].folder, tmp_path / "merged", "--base_model", folder, "--dequantize")
    expected = PeftModel.from_pretrained(decoded(folder), runs[0].folder).merge_and_unload().state_dict()
    before = decoded(folder).state_dict()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert found[name].dtype == torch.bfloat16 and relative_error(found[name], weight) < 5e-3, name
        if torch.equal(weight, before[name]):
            assert torch.equal(found[name], weight), name
    assert "quantization_config" not in json.loads((tmp_path / "merged" / "config.json").read_text())


def test_files_of_another_base_are_named(tmp_path):
    save_checkpoint(tmp_path, **SMALL)
    adapted(tmp_path, **CASES["both"])
    other = tiny_llama.save_model(tmp_path / "other", **dict(tiny_llama.GPT_OSS, num_local_experts=4))
    text = strata("merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", other, code=2)
    assert 'for "model.layers.0.mlp.experts.down_proj"' in text
    process, _ = run_probe_raw(other, documents=make_documents((4,)), adapter=str(tmp_path / "adapter"),
                               lora=dict(CASES["both"], r=3, lora_alpha=5))
    assert process.returncode in (1, 2) and "mlp.experts.lora_A.weight" in process.stderr
