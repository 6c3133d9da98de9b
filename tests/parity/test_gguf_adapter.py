# Oracle: PEFT's merged model under GGUF's names (the `gguf` package): the base's tensors and what llama.cpp adds to them, alpha
# over the rank times B A of the file; and what llama.cpp's loader asks for: keys, names of tensors and shapes.
import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gguf_files import MODELS, File, convert, expected_tensors, make_model
from running import base_flags, run_strata, strata

LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {
    "llama": ("llama", dict(target_modules=[*LAYERS, "lm_head", "embed_tokens"], r=4, lora_alpha=10)),
    "mistral": ("mistral", dict(target_modules="all-linear", r=5, lora_alpha=7)),
    "rslora": ("llama_tied", dict(target_modules=LAYERS, r=6, lora_alpha=9, use_rslora=True)),
    "ranks": ("qwen2", dict(target_modules=LAYERS, r=4, lora_alpha=8, rank_pattern={"q_proj": 8, "1.mlp.up_proj": 3})),
    "alphas": ("llama_biases", dict(target_modules=LAYERS, r=4, lora_alpha=8, alpha_pattern={"k_proj": 3, "down_proj": 0})),
    "rslora_ranks": ("qwen3", dict(target_modules=["q_proj", "v_proj"], r=4, use_rslora=True, rank_pattern={"v_proj": 9})),
    "gemma2": ("gemma2", dict(target_modules="all-linear", r=4)),
    "gemma3": ("gemma3", dict(target_modules=["q_proj", "down_proj"], r=4)),
    "phi3": ("phi3", dict(target_modules="all-linear", r=4)),
    "gpt2": ("gpt2", dict(target_modules=["c_attn", "c_proj", "c_fc"], r=4, fan_in_fan_out=True)),
    "matrices": ("llama", dict(target_modules=["q_proj"], target_parameters=["up_proj.weight", "1.self_attn.v_proj.weight"], r=4)),
    "experts": ("qwen3_moe", dict(target_modules=["q_proj", "k_proj"], r=2, lora_alpha=6)),
    "mixtral": ("mixtral", dict(target_modules=["q_proj", "o_proj"], r=3)),
}


class Adapters:
    """Random adapters, each beside its base and the model that PEFT merges it into."""

    def __init__(self, factory):
        self.factory, self.bases = factory, {}

    def base(self, name):
        if name not in self.bases:
            self.bases[name] = make_model(self.factory.mktemp(name) / "base", name)
        return self.bases[name]

    def make(self, name, config, folder):
        base = self.base(name)
        torch.manual_seed(7)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.normal_(0, 0.1)
        model.save_pretrained(folder / "adapter")
        return base, folder / "adapter", model

    def merged(self, base, adapter, folder):
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
        model.merge_and_unload().save_pretrained(folder)
        return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    return Adapters(tmp_path_factory)


def lora(**settings):
    return LoraConfig(task_type="CAUSAL_LM", **settings)


def added(file, name):
    """What llama.cpp adds to a tensor (llm_build_inp_embd, build_lora_mm, build_lora_mm_id)."""
    a, b = file.values(f"{name}.lora_a"), file.values(f"{name}.lora_b")
    scale = np.float32(file.keys["adapter.lora.alpha"]) / b.shape[-1]
    return scale * (a @ b.T if name == "token_embd.weight" else b @ a)


def require_loadable(file, shapes):
    """As llama_adapter_lora_init_impl() asks. `shapes`: of the base's tensors."""
    assert file.keys["general.type"] == "adapter" and file.keys["adapter.type"] == "lora" and file.keys["adapter.lora.alpha"] != 0
    assert file.reader.fields["adapter.lora.alpha"].types == [gguf.GGUFValueType.FLOAT32]
    names = {name.removesuffix(".lora_a").removesuffix(".lora_b") for name in file.tensors}
    for name in names:
        a, b = (file.tensors[f"{name}.{part}"].shape for part in ("lora_a", "lora_b"))  # the size of a row first, as ne
        base = shapes[name][::-1]
        if name == "token_embd.weight":
            assert (b[1], a[1]) == (base[0], base[1]) and a[0] == b[0]
        else:
            assert (a[0], b[1]) == (base[0], base[1]) and a[1] == b[0] and list(a[2:]) == list(b[2:]) == list(base[2:])
    return names


def compare(file, base, merged):
    before, after = (expected_tensors(folder, file.architecture) for folder in (base, merged))
    names = require_loadable(file, {name: weight.shape for name, weight in before.items()})
    for name, weight in after.items():
        if name not in names:
            assert np.array_equal(weight, before[name]), name
            continue
        difference = weight - before[name]
        found = added(file, name)
        assert found.shape == difference.shape and np.abs(found - difference).max() <= 1e-6 * max(1, np.abs(weight).max()), name
    return names


@pytest.mark.parametrize("case", CASES)
def test_adds_what_peft_merges(adapters, tmp_path, case):
    name, settings = CASES[case]
    base, adapter, _ = adapters.make(name, lora(**settings), tmp_path)
    said = convert(adapter, tmp_path / "a.gguf")
    file = File(tmp_path / "a.gguf")
    names = compare(file, base, adapters.merged(base, adapter, tmp_path / "merged"))
    assert len(names) > 2 and file.keys["general.architecture"] == file.architecture
    # One alpha over each tensor's own rank is PEFT's scale, but for alpha_pattern and the root of different ranks.
    assert ("folded into their B" in said) == (case in ("alphas", "rslora_ranks")), said
    assert [p.name for p in tmp_path.glob("a.gguf*")] == ["a.gguf"]


def test_keys(adapters, tmp_path):
    _, adapter, _ = adapters.make("llama", lora(target_modules=["q_proj"], r=4, lora_alpha=10), tmp_path)
    convert(adapter, tmp_path / "a.gguf")
    assert File(tmp_path / "a.gguf").keys == {
        "general.architecture": "llama", "general.type": "adapter", "general.name": "adapter", "general.quantization_version": 2,
        "adapter.type": "lora", "adapter.lora.alpha": 10.0}
    lines = strata("inspect", tmp_path / "a.gguf").splitlines()
    assert lines[0] == f"{tmp_path / 'a.gguf'}: GGUF version 3, an adapter (lora) for llama" and "  adapter.lora.alpha: 10.0" in lines
    listing = json.loads(strata("inspect", tmp_path / "a.gguf", "--json"))
    assert {t["name"]: t["shape"] for t in listing["tensors"]} == {
        f"blk.{i}.attn_q.weight.lora_{part}": shape for i in range(3) for part, shape in (("a", [4, 64]), ("b", [64, 4]))}


TYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "q8_0": "Q8_0"}


@pytest.mark.parametrize("flag", [None, *TYPES])
def test_types(adapters, tmp_path, flag):
    """The rounding is the package's; rows of the rank, no whole blocks, are of F16 beside Q8_0."""
    _, adapter, _ = adapters.make("llama", lora(target_modules=["o_proj"], r=8), tmp_path)
    if flag is None:  # the type that the adapter has
        weights = {name: tensor.bfloat16() for name, tensor in load_file(adapter / "adapter_model.safetensors").items()}
        save_file(weights, adapter / "adapter_model.safetensors", {"format": "pt"})
    convert(adapter, tmp_path / "plain.gguf", "--dtype", "float32")
    said = convert(adapter, tmp_path / "a.gguf", *(["--dtype", flag] if flag else []))
    assert ("3 tensors in F16: rows are no multiple of 32 for Q8_0" in said) == (flag == "q8_0")
    plain, file = File(tmp_path / "plain.gguf"), File(tmp_path / "a.gguf")
    for name, tensor in file.tensors.items():
        kind = gguf.GGMLQuantizationType[TYPES[flag or "bfloat16"]]
        if kind == gguf.GGMLQuantizationType.Q8_0 and name.endswith("lora_b"):
            kind = gguf.GGMLQuantizationType.F16
        assert tensor.tensor_type == kind
        expected = gguf.quants.quantize(plain.values(name), kind)
        assert np.array_equal(tensor.data.view(np.uint8), expected.view(np.uint8)), name


def test_experts_of_a_file_of_layers(adapters, tmp_path):
    """Adapters of older versions of transformers have a branch for each expert's layer; some may have none, or another rank."""
    base = adapters.base("qwen3_moe")
    folder = tmp_path / "adapter"
    folder.mkdir()
    torch.manual_seed(3)
    weights, expected = {}, {}
    before = expected_tensors(base, "qwen3moe")
    for expert, rank in ((0, 2), (3, 4)):
        a, b = torch.randn(rank, 64), torch.randn(32, rank)
        path = f"model.layers.1.mlp.experts.{expert}.up_proj"
        weights |= {f"base_model.model.{path}.lora_A.weight": a, f"base_model.model.{path}.lora_B.weight": b}
        expected[expert] = (8 / rank * b @ a).numpy()
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", r=2, lora_alpha=8, target_modules=["up_proj"], rank_pattern={"experts.3.up_proj": 4}, base_model_name_or_path=str(base),
        task_type="CAUSAL_LM")))
    convert(folder, tmp_path / "a.gguf")
    file = File(tmp_path / "a.gguf")
    assert require_loadable(file, {n: w.shape for n, w in before.items()}) == {"blk.1.ffn_up_exps.weight"}
    found = added(file, "blk.1.ffn_up_exps.weight")
    for expert, values in enumerate(found):
        assert np.allclose(values, expected.get(expert, np.zeros((32, 64))), atol=1e-5)


def test_a_checkpoint_and_another_base(inputs, tmp_path):
    run = run_strata(base_flags(inputs.model("qwen2"), inputs.data("messages"), tmp_path / "run", max_steps=2, save_steps=2,
                                save_strategy="steps", use_peft=True, lora_target_modules="all-linear", learning_rate=1e-2))
    said = convert(run.folder / "checkpoint-2", tmp_path / "checkpoint.gguf")
    assert "the optimizer's state is left out" in said
    base = shutil.copytree(inputs.model("qwen2"), tmp_path / "base")
    config = json.loads((run.folder / "adapter_config.json").read_text())
    (run.folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(tmp_path / "gone")}))
    assert "give --base_model FOLDER" in strata("convert", run.folder, tmp_path / "a.gguf", "--to", "gguf", code=2)
    convert(run.folder, tmp_path / "a.gguf", "--base_model", base)
    one, other = File(tmp_path / "checkpoint.gguf"), File(tmp_path / "a.gguf")
    assert one.tensors.keys() == other.tensors.keys() and len(one.tensors) > 10
    assert all(np.array_equal(one.values(name), other.values(name)) for name in one.tensors)


def test_a_base_in_codes(adapters, tmp_path):
    """QLoRA: what is loaded beside the file of the plain model needs its names and shapes alone."""
    base, adapter, _ = adapters.make("llama", lora(target_modules=["q_proj", "down_proj"], r=4), tmp_path)
    convert(adapter, tmp_path / "plain.gguf")
    strata("convert", base, tmp_path / "codes", "--to", "bnb-4bit")
    convert(adapter, tmp_path / "a.gguf", "--base_model", tmp_path / "codes")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "plain.gguf").read_bytes()


REFUSED = {
    "magnitudes": ("llama", dict(use_dora=True), "found magnitudes of DoRA (use_dora)"),
    "whole": ("llama", dict(modules_to_save=["lm_head"]), 'found "lm_head.weight", which trained whole (modules_to_save)'),
    "biases": ("llama_biases", dict(bias="all"), "a trained bias, expected branches of LoRA"),
    "branch_bias": ("llama_biases", dict(lora_bias=True), "biases of branches (lora_bias)"),
    "tokens": ("llama", dict(trainable_token_indices=[1, 5]), "rows of single tokens (trainable_token_indices)"),
    "pissa": ("llama", dict(init_lora_weights="pissa"), "make one with strata convert"),
    "tied_embedding": ("llama_tied", dict(target_modules=["embed_tokens"]), "a branch of an embedding that is the output layer, too"),
    "tied_head": ("llama_tied", dict(target_modules=["lm_head"]), "a branch of an output layer that is the embedding"),
    "positions": ("gpt2", dict(target_modules=["wpe"]), 'a branch of "position_embd.weight"'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_does_not_apply(adapters, tmp_path, case):
    name, settings, expected = REFUSED[case]
    _, adapter, _ = adapters.make(name, lora(**{"target_modules": ["q_proj"], "r": 4, **settings}), tmp_path)
    text = strata("convert", adapter, tmp_path / "a.gguf", "--to", "gguf", code=2)
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 1 and expected in lines[0] and not list(tmp_path.glob("a.gguf*")), text
    if "branch" in expected or "trained" in expected:
        assert f"strata merge-adapter {adapter} MODEL" in lines[0]


def test_other_methods(adapters, tmp_path):
    from peft import IA3Config, PromptTuningConfig

    for name, config, expected in (("ia3", IA3Config(task_type="CAUSAL_LM"), "found an adapter of type IA3"),
                                   ("prompt", PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3), "use it with its base")):
        _, adapter, _ = adapters.make("llama", config, tmp_path / name)
        assert expected in strata("convert", adapter, tmp_path / "a.gguf", "--to", "gguf", code=2)
    assert "--base_model: found with" in strata("convert", adapters.base("llama"), tmp_path / "m.gguf", "--to", "gguf",
                                                  "--base_model", adapters.base("llama"), code=2)
    assert not list(tmp_path.glob("*.gguf*"))
