# Oracle: bitsandbytes' quantisation of the same weights and transformers' loading of the folder.
import json
import subprocess

import pytest
import torch
from bitsandbytes import functional
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from running import PROGRAM, base_flags, environment, run_strata, run_strata_raw

ROWS = {
    "nf4": (["--to", "bnb-4bit"], dict(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "nf4_double": (["--to", "bnb-4bit", "--bnb_4bit_use_double_quant"],
                   dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                        bnb_4bit_use_double_quant=True)),
    "fp4_double": (["--to", "bnb-4bit", "--bnb_4bit_quant_type", "fp4", "--max_shard_size", "40KB",
                    "--bnb_4bit_use_double_quant"],
                   dict(load_in_4bit=True, bnb_4bit_quant_type="fp4",
                        bnb_4bit_use_double_quant=True)),
    "nf4_as_bfloat16": (["--to", "bnb-4bit", "--bnb_4bit_quant_storage", "bfloat16",
                         "--bnb_4bit_compute_dtype", "float16"],
                        dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                             bnb_4bit_quant_storage="bfloat16", bnb_4bit_compute_dtype="float16")),
    "fp4_as_float16": (["--to", "bnb-4bit", "--bnb_4bit_quant_type", "fp4",
                        "--bnb_4bit_quant_storage", "float16"],
                       dict(load_in_4bit=True, bnb_4bit_quant_type="fp4",
                            bnb_4bit_quant_storage="float16")),
    "nf4_as_float32": (["--to", "bnb-4bit", "--bnb_4bit_quant_storage", "float32",
                        "--bnb_4bit_use_double_quant"],
                       dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                            bnb_4bit_use_double_quant=True, bnb_4bit_quant_storage="float32")),
    "int8": (["--to", "bnb-8bit"], dict(load_in_8bit=True)),
    # The type asked for comes before the codes.
    "nf4_of_bfloat16": (["--to", "bnb-4bit", "--dtype", "bfloat16"],
                        dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"), torch.bfloat16),
    "fp4_of_float16": (["--to", "bnb-4bit", "--bnb_4bit_quant_type", "fp4", "--dtype", "float16"],
                       dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"), torch.float16),
    "int8_of_bfloat16": (["--to", "bnb-8bit", "--dtype", "bfloat16"], dict(load_in_8bit=True),
                         torch.bfloat16),
    "skipped": (["--to", "bnb-4bit", "--llm_int8_skip_modules", "q_proj,lm_head"],
                dict(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                     llm_int8_skip_modules=["q_proj", "lm_head"])),
}


def convert(*words):
    return subprocess.run([PROGRAM, "convert", *map(str, words)], capture_output=True, text=True,
                          env=environment(), timeout=60)


def decoded(layer):
    if isinstance(layer, Linear4bit):
        return functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
    scale = layer.weight.SCB if layer.weight.SCB is not None else layer.state.SCB
    return layer.weight.data.float() * scale[:, None] / 127


def same_bits(a, b):
    """Codes as floating numbers may be no numbers."""
    return a.shape == b.shape and torch.equal(a.flatten().view(torch.uint8),
                                              b.flatten().view(torch.uint8))


def tensors_of(folder):
    found = {}
    for file in folder.glob("*.safetensors"):
        found.update(load_file(file))
    return found


@pytest.mark.parametrize("name", ROWS)
def test_transformers_loads_what_is_written(inputs, tmp_path, name):
    words, settings, dtype = (*ROWS[name], torch.float32)[:3]
    base = inputs.model("wide")
    done = convert(base, tmp_path / "out", *words)
    assert done.returncode == 0, done.stderr
    expected = AutoModelForCausalLM.from_pretrained(
        base, dtype=dtype, device_map="cpu",
        quantization_config=BitsAndBytesConfig(**settings))
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", device_map="cpu")
    layers = 0
    for (path, ours), (_, theirs) in zip(found.named_modules(), expected.named_modules(),
                                         strict=True):
        assert type(ours) is type(theirs), path
        if isinstance(theirs, (Linear4bit, Linear8bitLt)):
            assert torch.equal(ours.weight.data.view(torch.uint8).flatten(),
                               theirs.weight.data.view(torch.uint8).flatten()), path
            assert torch.equal(decoded(ours), decoded(theirs)), path
            layers += 1
    assert layers == (12 if name == "skipped" else 14)
    for (path, ours), (_, theirs) in zip(found.named_parameters(), expected.named_parameters()):
        if ours.is_floating_point():
            assert same_bits(ours.data, theirs.data), path
    # Every key that the reference saves, and no other.
    expected.save_pretrained(tmp_path / "theirs")
    ours, theirs = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if "quant_state" in key:
            assert json.loads(bytes(ours[key].tolist())) == json.loads(bytes(value.tolist())), key
        else:
            assert ours[key].dtype == value.dtype and same_bits(ours[key], value), key
    configs = [json.loads((tmp_path / side / "config.json").read_text())["quantization_config"]
               for side in ("out", "theirs")]
    for key in ("bnb_4bit_quant_storage", "bnb_4bit_compute_dtype", "load_in_4bit"):
        assert configs[0][key] == configs[1][key], key


def test_a_run_over_it_is_that_over_the_plain_base(inputs, tmp_path):
    assert convert(inputs.model("wide"), tmp_path / "base", "--to", "bnb-4bit",
                   "--bnb_4bit_use_double_quant", "--bnb_4bit_blocksize", 128).returncode == 0
    more = dict(use_peft=True, lora_r=2, lora_dropout=0, max_steps=3,
                bnb_4bit_compute_dtype="float32")
    plain = run_strata(base_flags(
        inputs.model("wide"), inputs.data("messages"), tmp_path / "a", load_in_4bit=True,
        bnb_4bit_use_double_quant=True, bnb_4bit_blocksize=128, **more))
    over_codes = base_flags(tmp_path / "base", inputs.data("messages"), tmp_path / "b", **more)
    stored = run_strata(over_codes)
    assert stored.losses == plain.losses and "warning: load_in" not in stored.text
    # Its codes decide.
    asked = run_strata(dict(over_codes, load_in_4bit=True, bnb_4bit_quant_type="fp4",
                            output_dir=tmp_path / "c"))
    assert asked.losses == plain.losses
    assert "warning: load_in_4bit: has no effect, nor have the flags that go with it" in asked.text
    refused = run_strata_raw(dict(over_codes, load_in_8bit=True, output_dir=tmp_path / "d"))
    assert refused.returncode == 2
    assert "load_in_8bit: found over a checkpoint whose quantization_config says load_in_4bit" in (
        refused.text)


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize("width", ["4bit", "8bit"])
def test_a_run_rounds_before_it_quantises(inputs, tmp_path, width, sends):
    """The codes of a run of another type than the file's are those of the converted folder."""
    done = convert(inputs.model("wide"), tmp_path / "base", "--to", f"bnb-{width}", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    runs = [run_strata(base_flags(
        base, inputs.data("messages"), tmp_path / f"out{i}", max_steps=2, use_peft=True, lora_r=2,
        dtype=dtype, bnb_4bit_compute_dtype="float32" if width == "4bit" else None,
        fsdp_cpu_ram_efficient_loading=sends,
        **{f"load_in_{width}": True if i == 0 or dtype == "float32" else None}), 2 if sends else 1)
        for i, (base, dtype) in enumerate([(inputs.model("wide"), "bfloat16"),
                                           (tmp_path / "base", "bfloat16"),
                                           (inputs.model("wide"), "float32")])]
    assert runs[0].losses == runs[1].losses != runs[2].losses


def test_codes_in_the_order_of_a_gpu_are_refused(inputs, tmp_path):
    from safetensors.torch import save_file

    base = tmp_path / "base"
    assert convert(inputs.model("wide"), base, "--to", "bnb-8bit").returncode == 0
    tensors = load_file(base / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight_format"
    tensors[name] = torch.full_like(tensors[name], 2)
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    run = run_strata_raw(base_flags(base, inputs.data("messages"), tmp_path / "out", use_peft=True))
    assert run.returncode != 0 and f'"{name}": found the order 2 of codes, expected 0' in run.text


def test_plain_weights_take_the_type_asked_for(inputs, tmp_path):
    done = convert(inputs.model("wide"), tmp_path / "out", "--to", "bnb-8bit", "--dtype", "bfloat16")
    assert done.returncode == 0
    assert tensors_of(tmp_path / "out")["model.embed_tokens.weight"].dtype == torch.bfloat16
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == "bfloat16" and config["quantization_config"]["load_in_8bit"] is True


@pytest.mark.parametrize("name", ["nf4_double", "fp4_as_float16", "int8"])
def test_a_copy_in_another_type_keeps_its_codes(inputs, tmp_path, name):
    """Oracle: transformers loads the same codes; only what is beside them has the type asked for."""
    assert convert(inputs.model("wide"), tmp_path / "codes", *ROWS[name][0]).returncode == 0
    done = convert(tmp_path / "codes", tmp_path / "copy", "--to", "safetensors", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    before, after = tensors_of(tmp_path / "codes"), tensors_of(tmp_path / "copy")
    assert before.keys() == after.keys()
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / side, device_map="cpu")
              for side in ("codes", "copy")]
    quantised = {path for path, layer in models[0].named_modules()
                 if isinstance(layer, (Linear4bit, Linear8bitLt))}
    for key, value in before.items():
        if any(key.startswith(path + ".") for path in quantised):
            assert after[key].dtype == value.dtype and same_bits(after[key], value), key
        else:
            assert torch.equal(after[key], value.bfloat16()), key
    layers = [dict(model.named_modules()) for model in models]
    for path in quantised:
        assert torch.equal(decoded(layers[0][path]), decoded(layers[1][path])), path
    # The weights beside the codes were rounded: the copy is another base. A wider one is not.
    assert convert(tmp_path / "copy", tmp_path / "rounded", "--to", "safetensors", "--dtype",
                   "float32").returncode == 0
    assert convert(tmp_path / "codes", tmp_path / "same", "--to", "safetensors", "--dtype",
                   "float32").returncode == 0
    marks = {}
    for side in ("codes", "copy", "rounded", "same"):
        with safe_open(tmp_path / side / "model.safetensors", framework="pt") as file:
            marks[side] = file.metadata().get("base_fingerprint")
    assert marks == dict.fromkeys(("codes", "same"), marks["codes"]) | dict(copy=None, rounded=None)
    assert marks["codes"] is not None
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    run_strata(base_flags(tmp_path / "copy", inputs.data("messages"), tmp_path / "out", use_peft=True,
                          lora_r=2, max_steps=1, dtype="auto"))


def test_refusals(inputs, tmp_path):
    base = inputs.model("wide")
    assert convert(base, tmp_path / "four", "--to", "bnb-4bit").returncode == 0
    for words, message in [
        ((tmp_path / "four", tmp_path / "x", "--to", "bnb-4bit"), "found a quantised model"),
        ((base, tmp_path / "x", "--to", "bnb-4bit", "--bnb_4bit_blocksize", 48), "blocksize"),
        ((base, tmp_path / "x", "--to", "bnb-4bit", "--bnb_4bit_quant_type", "int8"), "nf4 or fp4"),
        ((base, tmp_path / "x", "--to", "bnb-4bit", "--bnb_4bit_quant_type", "fp8"),
         '--bnb_4bit_quant_type: found "fp8", expected nf4 or fp4'),
        ((base, tmp_path / "x", "--to", "bnb-4bit", "--bnb_4bit_blocksize", 64.5), "found 64.5"),
        ((base, tmp_path / "x", "--to", "bnb-8bit", "--llm_int8_skip_modules", "q_porj"), 'found "q_porj"'),
        ((base, tmp_path / "x", "--to", "bnb-4bit", "--bnb_4bit_compute_dtype", "half"), "float16"),
        ((base, tmp_path / "x", "--to", "bnb-4bit", "--bnb_4bit_quant_storage", "int4"), "uint8"),
        ((base, tmp_path / "x", "--to", "bnb-8bit", "--bnb_4bit_quant_storage", "uint8"), "found with --to bnb-8bit"),
        ((inputs.model("odd"), tmp_path / "x", "--to", "bnb-4bit", "--bnb_4bit_quant_storage",
          "float32"), "bytes of codes, expected whole elements of float32"),
        ((base, tmp_path / "x", "--to", "bin", "--llm_int8_threshold", 5), "found with --to bin"),
        ((base, tmp_path / "x", "--to", "bnb-8bit", "--bnb_4bit_quant_type", "nf4"),
         "--bnb_4bit_quant_type: found with --to bnb-8bit, expected bnb-4bit there"),
        ((base, tmp_path / "x", "--to", "bnb-8bit", "--bnb_4bit_use_double_quant"), "found with --to bnb-8bit"),
        ((base, tmp_path / "x", "--to", "bnb-4bit", "--llm_int8_threshold", 5),
         "--llm_int8_threshold: found with --to bnb-4bit, expected bnb-8bit there"),
        ((base, tmp_path / "four", "--to", "bnb-4bit"), "expected a new or empty folder"),
    ]:
        done = convert(*words)
        assert done.returncode != 0 and message in done.stderr, done.stderr
        assert not (tmp_path / "x").exists()
