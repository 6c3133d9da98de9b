"""Oracle: PEFT's merge_and_unload on the same base and adapter: every weight of the merged model."""

import itertools
import json
import shutil
import subprocess

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from llama_reference import save_checkpoint
from probe import BUILD, relative_error
from running import PROGRAM, base_flags, environment, run_strata, strata
from test_lora import BIGCODE, GPT2, NEOX, OPT, OPT_350M, PHI3, attach, config_of, randomise

CASES = {
    "plain": ({}, dict(target_modules=["q_proj", "down_proj"], r=4, lora_alpha=16)),
    "rslora_patterns": ({}, dict(target_modules="all-linear", use_rslora=True,
                                 rank_pattern={"q_proj": 3}, alpha_pattern={"up_proj": 2})),
    "output_layer": ({}, dict(target_modules=["q_proj", "lm_head"], r=2)),
    "saved_modules": (dict(tie_word_embeddings=True),
                      dict(target_modules=["q_proj"], modules_to_save=["lm_head", "norm"])),
    "biases": (dict(attention_bias=True), dict(target_modules=["q_proj"], bias="all")),
    "branch_bias": (dict(attention_bias=True), dict(target_modules=["q_proj"], lora_bias=True)),
    "dora": ({}, dict(target_modules=["q_proj", "up_proj"], r=4, use_dora=True)),
    "pissa": ({}, dict(target_modules=["q_proj", "up_proj"], r=4, init_lora_weights="pissa")),
    "ia3": (dict(attention_bias=True), dict(peft_type="IA3")),
    "dora_embedding": ({}, dict(target_modules=["embed_tokens", "v_proj"], r=4, use_dora=True)),
    "dora_head": ({}, dict(target_modules=["q_proj", "lm_head"], r=4, use_dora=True)),
    "ia3_head": ({}, dict(peft_type="IA3", target_modules=["k_proj", "lm_head"],
                          feedforward_modules=["lm_head"])),
    "rslora_gaussian": ({}, dict(target_modules="all-linear", r=5, use_rslora=True,
                                 init_lora_weights="gaussian")),
    "vera": ({}, dict(peft_type="VERA", r=9)),
    "vera_unsaved": (dict(num_key_value_heads=2),
                     dict(peft_type="VERA", r=5, target_modules="all-linear", d_initial=0.4,
                          projection_prng_key=3, save_projection=False)),
    "phi3": (PHI3, dict(target_modules="all-linear", r=4, lora_alpha=16)),
    "gpt2": (GPT2, dict(target_modules="all-linear", r=4, lora_alpha=16)),
    "gpt2_dora": (GPT2, dict(target_modules=["c_attn", "attn.c_proj"], r=4, use_dora=True)),
    "gpt2_ia3": (GPT2, dict(peft_type="IA3")),
    "gpt2_vera": (GPT2, dict(peft_type="VERA", r=5, target_modules="all-linear", save_projection=False)),
    "gpt2_biases": (GPT2, dict(target_modules=["c_fc"], lora_bias=True)),
    "gpt2_untied": (dict(GPT2, tie_word_embeddings=False), dict(target_modules=["lm_head", "attn.c_proj"], r=2)),
    "bigcode": (BIGCODE, dict(target_modules="all-linear", r=4, modules_to_save=["ln_f"])),
    "neox": (NEOX, dict(target_modules="all-linear", r=4, modules_to_save=["final_layer_norm"])),
    "neox_head": (NEOX, dict(target_modules=["lm_head", "dense"], r=2)),
    "neox_ia3": (NEOX, dict(peft_type="IA3")),
    "opt": (OPT, dict(modules_to_save=["embed_positions"], r=4)),
    "opt_head": (dict(OPT_350M, tie_word_embeddings=False), dict(target_modules=["lm_head", "project_in"], r=2)),
    "gemma": (dict(family="gemma", head_dim=12),
              dict(target_modules=["o_proj", "gate_proj"], r=4, modules_to_save=["norm"])),
    "olora": ({}, dict(target_modules=["v_proj"], r=4, init_lora_weights="olora")),
}


# Over parameters. In bfloat16 PEFT rounds what it adds there before it adds it.
MATRICES = {
    "matrices": ({}, dict(target_modules=["q_proj"], target_parameters=["up_proj.weight", "1.self_attn.v_proj.weight"], r=4,
                          lora_alpha=16, rank_pattern={"v_proj.weight": 3, "up_proj": 2}, alpha_pattern={"up_proj.weight": 5})),
    "matrices_alone": (dict(tie_word_embeddings=False), dict(target_parameters=["lm_head.weight", "mlp.down_proj.weight"], target_modules=[])),
}


def merge(folder, *words):
    return subprocess.run(
        [BUILD / "strata", "merge-adapter", folder / "adapter", folder / "merged", "--base_model",
         folder, *words],
        capture_output=True, text=True, timeout=60)


def make_adapter(folder, lora, dtype=torch.float32, **settings):
    save_checkpoint(folder, scale=0.08, **settings)
    if dtype != torch.float32:
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).save_pretrained(folder)
    model = attach(folder, lora, dtype, seed=3)
    randomise(model, 0.08)
    model.save_pretrained(folder / "adapter")
    return model


@pytest.mark.parametrize("name,dtype", [*itertools.product(CASES, ["float32", "bfloat16"]),
                                        *itertools.product(MATRICES, ["float32"])])
def test_equals_peft(tmp_path, name, dtype):
    settings, lora = (CASES | MATRICES)[name]
    model = make_adapter(tmp_path, lora, getattr(torch, dtype), **settings)
    process = merge(tmp_path, "--max_shard_size", "20KB")
    assert process.returncode == 0, process.stderr
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").state_dict()
    expected = model.merge_and_unload().state_dict()
    assert found.keys() == expected.keys()
    for weight, values in expected.items():
        assert found[weight].dtype == getattr(torch, dtype)
        # A sum that lies between two bf16 values may fall to either side.
        limit = 1e-6 if dtype == "float32" else 1e-3
        assert relative_error(found[weight], values) < limit, weight


WIDER = {name: CASES[name] for name in ("branch_bias", "ia3", "gpt2_ia3", "gpt2_biases")} | {
    "rows": ({}, dict(target_modules=["q_proj"], r=4, trainable_token_indices=[3, 5])),
    "ia3_biases": (dict(attention_bias=True), dict(peft_type="IA3", target_modules=["k_proj"], feedforward_modules=[]))}


@pytest.mark.parametrize("name", WIDER)
def test_a_result_that_is_wider_than_its_base(tmp_path, name):
    """Oracle: PEFT over the same base, loaded in float32."""
    settings, lora = WIDER[name]
    save_checkpoint(tmp_path, scale=0.08, **settings)
    AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).save_pretrained(tmp_path)
    model = attach(tmp_path, lora, torch.float32, seed=3)
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    process = merge(tmp_path, "--dtype", "float32")
    assert process.returncode == 0, process.stderr
    found = load_file(tmp_path / "merged" / "model.safetensors")
    expected = model.merge_and_unload().state_dict()
    assert found.keys() <= expected.keys()
    for weight, values in found.items():
        assert values.dtype == torch.float32
        assert relative_error(values, expected[weight]) < 1e-6, weight


def test_an_adapter_beside_a_config_of_its_base(inputs, tmp_path):
    """PEFT reads adapter_config.json, whatever lies beside it."""
    model = make_adapter(tmp_path, CASES["plain"][1])
    shutil.copy(tmp_path / "config.json", tmp_path / "adapter")
    process = subprocess.run([BUILD / "strata", "merge-adapter", tmp_path / "adapter", tmp_path / "merged"],
                             capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    found = load_file(tmp_path / "merged" / "model.safetensors")
    for weight, values in model.merge_and_unload().state_dict().items():
        assert relative_error(found[weight], values) < 1e-6, weight
    base = inputs.model("plain")
    first = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "first", use_peft=True, max_steps=1))
    shutil.copy(base / "config.json", first.folder)
    # An empty pattern of layers is none.
    config = json.loads((first.folder / "adapter_config.json").read_text())
    (first.folder / "adapter_config.json").write_text(json.dumps(config | dict(layers_pattern="")))
    run_strata(base_flags(base, inputs.data("messages"), tmp_path / "second", max_steps=1,
                          adapter_name_or_path=first.folder))
    strata("chat", "--model_name_or_path", first.folder, "--max_new_tokens", "2", input="hi\n")


def test_a_base_that_is_named_on_the_hub(inputs, tmp_path, monkeypatch):
    """Oracle: the same merge with the base's folder named."""
    hub, commit = tmp_path / "hub", "0123456789abcdef0123456789abcdef01234567"
    kept = hub / "models--org--tiny"
    shutil.copytree(inputs.model("plain"), kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "v1").write_text(commit)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    run = run_strata(base_flags("org/tiny", inputs.data("messages"), tmp_path / "run", model_revision="v1", use_peft=True,
                                init_lora_weights="pissa", max_steps=2, save_strategy="steps", save_steps=2))
    strata("merge-adapter", run.folder, tmp_path / "expected", "--base_model", inputs.model("plain"))
    expected = load_file(tmp_path / "expected" / "model.safetensors")
    (kept / "refs" / "main").write_text(commit)
    for i, words in enumerate(([run.folder], [run.folder / "checkpoint-2"])):
        strata("merge-adapter", words[0], tmp_path / f"named-{i}")
        strata("merge-adapter", words[0], tmp_path / f"given-{i}", "--base_model", "org/tiny")
        for kind in ("named", "given"):
            found = load_file(tmp_path / f"{kind}-{i}" / "model.safetensors")
            assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
            assert (tmp_path / f"{kind}-{i}" / "tokenizer.json").exists()
    strata("convert", run.folder, tmp_path / "lora", "--to", "lora")
    shutil.rmtree(hub)
    said = strata("merge-adapter", run.folder, tmp_path / "none", code=2)
    assert 'found no folder of the base model that it names ("org/tiny")' in said


@pytest.mark.parametrize("family", [{}, dict(family="gemma", head_dim=12)], ids=["llama", "gemma"])
def test_a_branch_on_an_embedding_in_bfloat16(tmp_path, family):
    """PEFT rounds an embedding's branch before it adds it, that of a linear layer not; here the sum alone is."""
    model = make_adapter(tmp_path, dict(target_modules=["embed_tokens"], r=4), torch.bfloat16, **family)
    process = merge(tmp_path)
    assert process.returncode == 0, process.stderr
    name = "model.embed_tokens.weight"
    layer = model.base_model.model.model.embed_tokens
    branch = (layer.lora_embedding_B["default"].double() @ layer.lora_embedding_A["default"].double()).T
    exact = layer.base_layer.weight.double() + layer.scaling["default"] * branch
    found = load_file(tmp_path / "merged" / "model.safetensors")[name].double()
    assert ((found - exact).abs() <= exact.abs() * 2 ** -8 + 1e-7).all()
    of_peft = model.merge_and_unload().state_dict()[name].double()
    assert relative_error(found, exact) < relative_error(of_peft, exact) < 2 ** -8


def test_a_branch_on_a_tied_output_layer(tmp_path):
    """PEFT's merge_and_unload changes the embedding too; the oracle is its model before merging."""
    model = make_adapter(tmp_path, dict(target_modules=["lm_head", "v_proj"], r=3),
                         tie_word_embeddings=True).eval()
    process = merge(tmp_path)
    assert process.returncode == 0, process.stderr
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not merged.config.tie_word_embeddings
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert relative_error(merged(ids).logits, model(ids).logits) < 1e-5


@pytest.mark.parametrize("lora,change,layer", [
    (dict(target_modules=["q_proj", "v_proj"], r=3), dict(target_modules=["v_proj"]), "2 layers"),
    (dict(target_modules=["q_proj", "v_proj"], r=3), dict(layers_to_transform=[1]), "2 layers"),
    (dict(target_modules=["q_proj", "v_proj"], r=3), dict(exclude_modules=["layers.1.self_attn.q_proj"]), "a layer"),
    (dict(peft_type="IA3", target_modules=["q_proj", "v_proj"], feedforward_modules=[]),
     dict(target_modules=".*v_proj"), "2 layers")])
def test_tensors_of_layers_that_are_no_targets(tmp_path, lora, change, layer):
    """PEFT leaves them out: its model is another than the one that was trained."""
    model = make_adapter(tmp_path, lora)
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    base = AutoModelForCausalLM.from_pretrained(tmp_path)
    fewer = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().state_dict()
    whole = model.merge_and_unload().state_dict()
    left_out = [name for name in whole if not torch.equal(whole[name], fewer[name])]
    assert left_out
    process = merge(tmp_path)
    assert process.returncode == 2 and f"found tensors for {layer} that target_modules" in process.stderr
    assert f'"{left_out[0].removesuffix(".weight")}"' in process.stderr
    assert not (tmp_path / "merged").exists()


def test_branches_of_all_experts_together_are_named(tmp_path):
    """PEFT trains experts so where transformers holds them as one tensor; its base is the right one."""
    model = make_adapter(tmp_path, dict(target_modules="all-linear", r=2), family="qwen3_moe", num_experts=3)
    assert any(name.endswith("experts.lora_A.default.weight") for name, _ in model.named_parameters())
    process = merge(tmp_path)
    assert process.returncode == 2 and not (tmp_path / "merged").exists()
    assert "found branches of all experts of a layer together (target_parameters" in process.stderr, process.stderr
    assert "merge it with PEFT" in process.stderr and "name the base" not in process.stderr


@pytest.mark.parametrize("kind", ["PROMPT_TUNING", "PREFIX_TUNING"])
def test_rows_before_the_prompt_are_no_part_of_a_weight(tmp_path, kind):
    make_adapter(tmp_path, dict(peft_type=kind, num_virtual_tokens=3))
    process = merge(tmp_path)
    assert process.returncode == 2 and f"found an adapter of type {kind}" in process.stderr
    assert not (tmp_path / "merged").exists()


def test_quantised_base(tmp_path):
    make_adapter(tmp_path, dict(target_modules=["q_proj"], r=4), hidden_size=64,
                 intermediate_size=128)
    adapter = tmp_path / "adapter"
    plain = merge(tmp_path)
    assert plain.returncode == 0, plain.stderr
    base = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, device_map="cpu", quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True))
    folder = tmp_path / "quantised"
    base.save_pretrained(folder)
    adapter.rename(folder / "adapter")
    refused = merge(folder)
    assert refused.returncode != 0 and "--dequantize" in refused.stderr
    assert not (folder / "merged").exists()
    process = merge(folder, "--dequantize")
    assert process.returncode == 0, process.stderr
    assert "quantization_config" not in json.loads((folder / "merged/config.json").read_text())
    found = load_file(folder / "merged" / "model.safetensors")
    branch = load_file(folder / "adapter" / "adapter_model.safetensors")
    for path in ("model.layers.1.self_attn.q_proj", "model.layers.0.mlp.up_proj"):
        layer = base.get_submodule(path)
        import bitsandbytes.functional as functional
        expected = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
        prefix = f"base_model.model.{path}.lora_"
        if prefix + "A.weight" in branch:
            expected = expected + branch[prefix + "B.weight"] @ branch[prefix + "A.weight"] * 2
        assert relative_error(found[path + ".weight"], expected) < 1e-6, path


BNB = {
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "fp4_double": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4",
                       bnb_4bit_use_double_quant=True),
    "int8": dict(load_in_8bit=True),
}
OVER_CODES = [
    ("nf4", dict(target_modules="all-linear", r=4, use_dora=True)),
    ("nf4", dict(peft_type="VERA", r=9, save_projection=False)),
    ("fp4_double", dict(target_modules=["q_proj", "lm_head"], r=4, use_rslora=True)),
    ("fp4_double", dict(peft_type="IA3")),
    ("int8", dict(target_modules=["v_proj", "up_proj"], r=4, modules_to_save=["norm"])),
    ("int8", dict(target_modules=["q_proj"], r=4, use_dora=True)),
]


def decoded_state(model):
    """The plain weights of a model with layers of bitsandbytes."""
    from test_convert_quantised import Linear4bit, Linear8bitLt, decoded

    state = {}
    for path, module in model.named_modules():
        for name, value in module.named_parameters(prefix=path, recurse=False):
            is_code = isinstance(module, (Linear4bit, Linear8bitLt)) and name.endswith(".weight")
            state[name] = (decoded(module) if is_code else value).detach().float().clone()
    return state


@pytest.mark.parametrize("kind,lora", OVER_CODES)
def test_decoded_bases(tmp_path, kind, lora):
    """PEFT's merge over the weights that bitsandbytes decodes."""
    save_checkpoint(tmp_path, scale=0.08, hidden_size=64, intermediate_size=128)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, device_map="cpu",
                                            quantization_config=BitsAndBytesConfig(**BNB[kind]))
    base.save_pretrained(tmp_path / "quantised")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    plain.load_state_dict(decoded_state(base))
    torch.manual_seed(3)
    model = get_peft_model(plain, config_of(lora))
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "quantised" / "adapter")
    process = merge(tmp_path / "quantised", "--dequantize")
    assert process.returncode == 0, process.stderr
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "quantised" / "merged").state_dict()
    expected = model.merge_and_unload().state_dict()
    assert found.keys() == expected.keys()
    for weight, values in expected.items():
        assert relative_error(found[weight], values) < 1e-6, weight


@pytest.mark.parametrize("codes", [None, "uint8", "bfloat16", "float32"])
def test_vera_draws_with_the_precision_that_peft_draws(inputs, tmp_path, codes):
    """Rounded to the type of a plain base, not beside codes, whatever type those are stored under. A run
    that keeps the matrices and one that draws them again merge to the same weights."""
    base = tmp_path / "base"
    kind = (["--to", "bnb-4bit", "--bnb_4bit_quant_storage", codes] if codes else
            ["--to", "safetensors"])
    subprocess.run([PROGRAM, "convert", inputs.model("wide"), base, *kind, "--dtype", "bfloat16"],
                   check=True, capture_output=True, env=environment())
    merged = {}
    for kept in (True, False):
        run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / f"{kept}", max_steps=2,
                                    use_peft=True, peft_type="VERA", lora_r=9, dtype="auto",
                                    lora_target_modules=["q_proj", "down_proj"],
                                    projection_prng_key=3, save_projection=kept, learning_rate=0.1))
        done = subprocess.run(
            [PROGRAM, "merge-adapter", run.folder, tmp_path / f"merged-{kept}",
             *(["--dequantize"] if codes else [])], capture_output=True, text=True,
            env=environment())
        assert done.returncode == 0, done.stderr
        merged[kept] = load_file(tmp_path / f"merged-{kept}" / "model.safetensors")
    assert all(torch.equal(merged[False][n], t) for n, t in merged[True].items())
    found = load_file(tmp_path / "True" / "adapter_model.safetensors")
    peft = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base, device_map="cpu", dtype=torch.bfloat16),
        config_of(dict(peft_type="VERA", r=9, target_modules=["q_proj", "down_proj"],
                       projection_prng_key=3)))
    for name in ("vera_A", "vera_B"):
        matrix = getattr(peft.base_model, name)["default"].float()
        assert torch.equal(found[f"base_model.{name}"], matrix), name
        assert torch.equal(matrix, matrix.bfloat16().float()) != bool(codes)


@pytest.mark.parametrize("dtype, codes", [("float32", {}), ("bfloat16", {}), ("auto", {}), ("auto", dict(load_in_4bit=True)),
                                          ("bfloat16", dict(load_in_8bit=True))])
def test_a_checkpoint_draws_vera_as_its_run_did(inputs, tmp_path, dtype, codes):
    """Frozen weights, and these matrices with them, have the run's type, whatever that of the file: the run's
    own adapter, which holds the matrices, merges to the same weights."""
    base = tmp_path / "base"
    strata("convert", inputs.model("wide"), base, "--to", "safetensors", "--dtype", "float32" if dtype == "bfloat16" else "bfloat16")
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "run", max_steps=2, use_peft=True, peft_type="VERA",
                                lora_r=9, dtype=dtype, learning_rate=0.1, save_strategy="steps", save_steps=2, **codes))
    merged = {}
    for name, adapter in (("expected", run.folder), ("found", run.folder / "checkpoint-2")):
        strata("merge-adapter", adapter, tmp_path / name, "--dtype", "float32")
        merged[name] = load_file(tmp_path / name / "model.safetensors")
    assert all(torch.equal(merged["found"][n], t) for n, t in merged["expected"].items())


@pytest.mark.parametrize("kind", BNB)
def test_a_base_that_was_quantised_again(tmp_path, kind):
    """OLoRA takes its first directions off the decoded weights, and quantises what is left. The oracle is
    PEFT's model: what its base decodes to, and its branches."""
    save_checkpoint(tmp_path, scale=0.08, hidden_size=64, intermediate_size=128)
    base = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, device_map="cpu",
                                            quantization_config=BitsAndBytesConfig(**BNB[kind]))
    base.save_pretrained(tmp_path / "quantised")
    before = decoded_state(base)
    torch.manual_seed(3)
    model = get_peft_model(base, config_of(dict(target_modules=["q_proj", "down_proj"], r=4,
                                                lora_alpha=6, init_lora_weights="olora")))
    randomise(model, 0.02)
    model.save_pretrained(tmp_path / "quantised" / "adapter")
    process = merge(tmp_path / "quantised", "--dequantize")
    assert process.returncode == 0, process.stderr
    found = load_file(tmp_path / "quantised" / "merged" / "model.safetensors")
    changed = decoded_state(model.get_base_model())
    for name, values in before.items():
        path = name.removesuffix(".weight")
        if f"{path}.base_layer.weight" in changed:
            layer = model.get_base_model().get_submodule(path)
            values = changed[f"{path}.base_layer.weight"] + 1.5 * (
                layer.lora_B["default"].weight @ layer.lora_A["default"].weight)
            assert relative_error(values, before[name]) > 1e-2
        assert relative_error(found[name], values.detach()) < 1e-6, name


def test_first_values_that_codes_cannot_have_are_refused(tmp_path):
    make_adapter(tmp_path, dict(target_modules=["q_proj"], r=4, init_lora_weights="pissa"),
                 hidden_size=64, intermediate_size=128)
    AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(**BNB["nf4"])).save_pretrained(tmp_path / "quantised")
    (tmp_path / "adapter").rename(tmp_path / "quantised" / "adapter")
    process = merge(tmp_path / "quantised", "--dequantize")
    assert process.returncode == 2 and "found init_lora_weights pissa over codes" in process.stderr
    assert not (tmp_path / "quantised" / "merged").exists()


def test_rows_of_a_tied_output_layer_alone_part_it(tmp_path):
    """PEFT's model as it is: its merge changes the embedding too, and answers otherwise than its adapter."""
    model = make_adapter(tmp_path, dict(target_modules=["q_proj"], trainable_token_indices={"lm_head": [3, 9]}),
                         tie_word_embeddings=True).eval()
    process = merge(tmp_path)
    assert process.returncode == 0, process.stderr
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not merged.config.tie_word_embeddings
    ids = torch.tensor([[3, 9, 5, 3, 1, 9]])
    expected = model(input_ids=ids).logits
    assert relative_error(merged(input_ids=ids).logits, expected) < 1e-5
    assert relative_error(model.merge_and_unload()(input_ids=ids).logits, expected) > 0.1


def test_rows_of_a_tied_output_layer_that_nobody_named_are_refused(tmp_path):
    make_adapter(tmp_path, dict(target_modules=["q_proj"], trainable_token_indices={"lm_head": [3, 9]}),
                 tie_word_embeddings=True)
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | dict(trainable_token_indices=[3, 9])))
    process = merge(tmp_path)
    assert process.returncode == 2 and 'rows that "model.embed_tokens.weight" has not' in process.stderr
    assert not (tmp_path / "merged").exists()


def test_a_whole_model_is_no_adapter(inputs, tmp_path):
    done = subprocess.run([PROGRAM, "merge-adapter", inputs.model("plain"), tmp_path / "out"],
                          capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 2 and "found no weights of an adapter" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()


def test_a_bias_of_a_branch_needs_one_in_the_base(tmp_path):
    """Where PEFT's merge raises; the adapter is not said to belong to another base."""
    model = make_adapter(tmp_path, dict(target_modules=["q_proj"], r=4, lora_bias=True))
    with pytest.raises(RuntimeError, match="base layer has no bias"):
        model.merge_and_unload()
    process = merge(tmp_path)
    assert process.returncode == 2, process.stderr
    assert "found a trained bias (lora_bias) of " in process.stderr and "use the adapter with its base" in process.stderr
    assert "name the base" not in process.stderr and not (tmp_path / "merged").exists()


def test_broken_adapters(tmp_path):
    make_adapter(tmp_path, dict(target_modules=["q_proj"], r=4))
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = sorted(tensors)[1]
    broken = {**tensors, name: torch.full_like(tensors[name], float("nan"))}
    save_file(broken, file)
    process = merge(tmp_path)
    assert process.returncode != 0 and "found NaN or infinity" in process.stderr
    save_file({**tensors, name: tensors[name][:, :1].contiguous()}, file)
    process = merge(tmp_path)
    assert process.returncode != 0 and "expected an adapter of" in process.stderr
    # Of another base: what does not fit is listed.
    save_file({name: tensors[name] if name.endswith("lora_B.weight") else
               torch.zeros(4, 48) for name in tensors}, file)
    process = merge(tmp_path)
    assert process.stderr.count("found a branch of [4, 48] and [32, 4] for") == 1, process.stderr
    assert process.stderr.count("a branch of [4, 48] and [32, 4] for") == len(tensors) // 2 == 2
    assert not (tmp_path / "merged").exists()
