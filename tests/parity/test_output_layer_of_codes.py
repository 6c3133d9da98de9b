"""Oracle: PEFT over bitsandbytes' layers. An adapter of an output layer that is codes (without its name in
llm_int8_skip_modules): trained, loaded by PEFT and from it, merged, and answering; also where config.json ties that
layer and the file holds another one."""

import json
import subprocess

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from running import PROGRAM, base_flags, environment, run_strata
from test_adapters_of_codes import EVALUATED
from test_export import eval_loss, measured
from test_generate import add_adapter, reference_ids, run_probe
from test_merge import decoded_state

CODES = {"nf4": dict(load_in_4bit=True), "int8": dict(load_in_8bit=True)}
# 8 bits: products of rounded activations in both, which differ by more than sums.
LIMITS = {"nf4": 1e-5, "int8": 1e-3}
SKIPPED = dict(llm_int8_skip_modules=["v_proj"])
METHODS = {
    "lora": (dict(lora_target_modules=["q_proj", "lm_head"]), dict(target_modules=["q_proj", "lm_head"])),
    "dora": (dict(lora_target_modules=["lm_head"], use_dora=True), dict(target_modules=["lm_head"], use_dora=True)),
    "ia3": (dict(peft_type="IA3", lora_target_modules=["k_proj", "lm_head"], feedforward_modules=["lm_head"]),
            dict(peft_type="IA3", target_modules=["k_proj", "lm_head"], feedforward_modules=["lm_head"])),
}
# Base, codes, method. DoRA fails in bitsandbytes' layer of 8 bits outside training.
ROWS = [(base, codes, method) for base in ("untied", "called_tied") for codes in CODES for method in METHODS
        if (codes, method) != ("int8", "dora")]


@pytest.fixture(scope="module")
def bases(inputs, tmp_path_factory):
    """(folder, folder of its codes) by name and codes."""
    known = {}
    root = tmp_path_factory.mktemp("output-codes")

    def make(name, codes):
        if (name, codes) not in known:
            folder = root / name
            if not folder.exists():
                folder.mkdir()
                for file in inputs.model("wide").iterdir():
                    (folder / file.name).write_bytes(file.read_bytes())
                config = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps(config | dict(tie_word_embeddings=name != "untied")))
            stored = root / f"{name}-{codes}"
            model = quantised(folder, codes)
            assert type(model.lm_head).__name__ == {"nf4": "Linear4bit", "int8": "Linear8bitLt"}[codes]
            model.save_pretrained(stored)
            for file in [*folder.glob("*token*"), *folder.glob("*.jinja")]:
                (stored / file.name).write_bytes(file.read_bytes())
            known[name, codes] = folder, stored
        return known[name, codes]

    return make


def quantised(folder, codes):
    model = AutoModelForCausalLM.from_pretrained(
        folder, device_map="cpu", dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(**CODES[codes], bnb_4bit_quant_type="nf4", **SKIPPED))
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False  # a kernel in bf16, of other shapes
    return model


def plain(folder, codes):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.load_state_dict(decoded_state(quantised(folder, codes)))
    return model


def merged_loss(base, stored, adapter, out, data):
    done = subprocess.run([PROGRAM, "merge-adapter", adapter, out, "--base_model", stored, "--dequantize", "--dtype",
                           "float32"], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return eval_loss(AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32), base, data)


@pytest.mark.parametrize("way", ["none", "[]", "file", "converted"])
def test_an_empty_list_skips_no_module(inputs, tmp_path, way):
    """Not the default, as in transformers: the output layer is codes."""
    base, data = inputs.model("wide"), inputs.data("messages")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=[])
    theirs = AutoModelForCausalLM.from_pretrained(base, device_map="cpu", dtype=torch.float32, quantization_config=config)
    assert type(theirs.lm_head).__name__ == "Linear4bit"
    flags = base_flags(base, data, tmp_path / "run", use_peft=True, lora_r=2, lora_target_modules=["q_proj", "lm_head"],
                       max_steps=1, eval_steps=1, learning_rate=1e-30, bnb_4bit_compute_dtype="float32", **EVALUATED)
    if way == "converted":
        flags["model_name_or_path"] = tmp_path / "codes"
        subprocess.run([PROGRAM, "convert", base, tmp_path / "codes", "--to", "bnb-4bit", "--llm_int8_skip_modules", "[]"],
                       check=True, env=environment(), timeout=60)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "codes", device_map="cpu")
        assert type(loaded.lm_head).__name__ == "Linear4bit"
    elif way == "file":
        (tmp_path / "more.yaml").write_text("load_in_4bit: true\nllm_int8_skip_modules: []\n")
        flags["config"] = tmp_path / "more.yaml"
    else:
        flags |= dict(load_in_4bit=True, llm_int8_skip_modules=way)
    run = run_strata(flags)
    assert "quantised base: 15 matrices" in run.text, run.text
    assert measured(run) == pytest.approx(eval_loss(theirs.dequantize(dtype=torch.float32), base, data), abs=1e-5)


@pytest.mark.parametrize("name,codes,method", ROWS)
def test_trained_here(inputs, bases, tmp_path, name, codes, method):
    base, stored = bases(name, codes)
    data = inputs.data("messages")
    flags = base_flags(base, data, tmp_path / "run", use_peft=True, lora_r=2, max_steps=4, eval_steps=4,
                       learning_rate=2e-2, per_device_train_batch_size=2, bnb_4bit_compute_dtype="float32", **METHODS[method][0], **CODES[codes],
                       **SKIPPED, **EVALUATED)
    run = run_strata(flags, 2)
    assert run.losses[-1] < run.losses[0]
    adapted = PeftModel.from_pretrained(quantised(base, codes), run.folder)
    assert eval_loss(adapted, base, data) == pytest.approx(measured(run), abs=LIMITS[codes])
    expected = eval_loss(PeftModel.from_pretrained(plain(base, codes), run.folder), base, data)
    assert merged_loss(base, stored, run.folder, tmp_path / "merged", data) == pytest.approx(expected, abs=1e-5)
    one = run_strata(flags | dict(output_dir=tmp_path / "one", per_device_train_batch_size=4))
    assert one.losses == pytest.approx(run.losses, abs=LIMITS[codes])
    from_codes = run_strata(flags | dict(model_name_or_path=stored, output_dir=tmp_path / "stored", per_device_train_batch_size=4) |
                            dict.fromkeys([*CODES[codes], *SKIPPED]))
    assert from_codes.losses == one.losses


@pytest.mark.parametrize("name,codes,method", ROWS)
def test_trained_by_peft(inputs, bases, tmp_path, name, codes, method):
    base, stored = bases(name, codes)
    data = inputs.data("messages")
    model = add_adapter(quantised(base, codes), dict(METHODS[method][1]), tmp_path / "adapter")
    loss = eval_loss(model, base, data)
    flags = base_flags(base, data, tmp_path / "run", adapter_name_or_path=tmp_path / "adapter", max_steps=1,
                       learning_rate=1e-30, eval_steps=1, bnb_4bit_compute_dtype="float32", **CODES[codes], **SKIPPED,
                       **EVALUATED)
    assert measured(run_strata(flags)) == pytest.approx(loss, abs=LIMITS[codes])
    expected = eval_loss(add_adapter(plain(base, codes), dict(METHODS[method][1]), tmp_path / "plain"), base, data)
    assert merged_loss(base, stored, tmp_path / "adapter", tmp_path / "merged", data) == pytest.approx(
        expected, abs=1e-5)
    prompts = [[5, 60, 31], [1, 2, 3, 62, 99, 30]]
    found = run_probe(tmp_path, model=str(stored), adapter=str(tmp_path / "adapter"), prompts=prompts, max_new_tokens=8)
    assert found == [reference_ids(model, prompt)[:8] for prompt in prompts]
