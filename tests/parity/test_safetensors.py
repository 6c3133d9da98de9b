"""Oracle: the Python packages safetensors, json, huggingface_hub and peft, byte for byte."""

import json
import math
import os
import random
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STRATA_BUILD", ROOT / "build" / "release"))


def echo(*arguments):
    """Runs the echo program; returns the finished process."""
    command = [str(BUILD / "hf_echo"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def tensors_of_every_type():
    generator = torch.Generator().manual_seed(1)
    names = iter(["m", "b", "z", "a", "é\"\\\n", "q", "c", "y", "d", "x", "e", "w", "f", "v", "g"])
    tensors = {}
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
                  torch.float8_e5m2):
        tensors[next(names)] = torch.randn(7, 53, generator=generator).to(dtype)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32,
                  torch.uint16, torch.uint8):
        tensors[next(names)] = torch.randint(0, 100, (3, 5), generator=generator).to(dtype)
    tensors[next(names)] = torch.tensor([True, False, True])
    tensors["scalar"] = torch.tensor(1.5)
    tensors["empty"] = torch.zeros(0, 4)
    return tensors


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"format": "p\té\u0001/"}])
def test_copy_has_the_reference_writers_bytes(tmp_path, metadata):
    tensors = tensors_of_every_type()
    save_file(tensors, tmp_path / "in.safetensors", metadata=metadata)
    done = echo("safetensors", tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    assert done.returncode == 0, done.stderr
    ours = (tmp_path / "out.safetensors").read_bytes()
    assert ours == (tmp_path / "in.safetensors").read_bytes()
    for name, tensor in load_file(tmp_path / "out.safetensors").items():
        assert torch.equal(tensor.view(torch.uint8) if tensor.dim() else tensor,
                           tensors[name].view(torch.uint8) if tensor.dim() else tensors[name])


def test_reader_refuses_what_the_reference_refuses(tmp_path):
    def entry(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    cases = [
        ({"a": entry("U8", [2], 1, 3)}, 3),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, 3),
        ({"a": entry("U8", [2], 0, 2)}, 3),
        ({"a": entry("F32", [2], 0, 4)}, 4),
        ({"a": entry("X32", [1], 0, 4)}, 4),
        ({"a": entry("U8", [2], 0, 2), "__metadata__": {"k": 1}}, 2),
        ({"a": entry("U8", [3], 0, 3)}, 2),
        # and what it accepts
        ({"a": entry("F32", [1], 1, 5), "b": entry("U8", [1], 0, 1)}, 5),
        ({"a": entry("U8", [0], 0, 0)}, 0),
    ]
    for number, (header, data_bytes) in enumerate(cases):
        text = json.dumps(header).encode()
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data_bytes))
        try:
            load_file(path)
            accepted = True
        except Exception:  # the package raises its own type and others
            accepted = False
        done = echo("safetensors", path, tmp_path / "out")
        assert (done.returncode == 0) == accepted, (header, done.stderr)
        assert accepted or str(path) in done.stderr


def random_json(rng, depth=0):
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.randrange(-(2**63), 2**64)
    if kind == 2:
        return struct.unpack("<d", rng.randbytes(8))[0]
    if kind == 3:
        return rng.choice([0.1, 1e-5, 1e16, 2e-4, 1e22, 5e-324, math.inf, -math.inf, -0.0, 123.0,
                           rng.random(), rng.uniform(-1e6, 1e6), 10.0 ** rng.randrange(-30, 30)])
    if kind in (4, 5):
        alphabet = "ab\"\\/\b\f\n\r\t\x00\x1f\x7f\x80éß漢\u2028\uffff😀"
        return "".join(rng.choice(alphabet) for _ in range(rng.randrange(8)))
    if kind == 6:
        return [random_json(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {random_json_key(rng): random_json(rng, depth + 1) for _ in range(rng.randrange(5))}


def random_json_key(rng):
    return "".join(rng.choice("aBé漢😀_\n") for _ in range(rng.randrange(4)))


def test_json_text_equals_json_dumps(tmp_path):
    rng = random.Random(3)
    value = [random_json(rng) for _ in range(5000)]
    for ensure_ascii in (True, False):
        (tmp_path / "in.json").write_text(json.dumps(value, ensure_ascii=ensure_ascii), "utf-8")
        done = echo("json", tmp_path / "in.json", tmp_path / "out.json")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out.json").read_text() == json.dumps(value, indent=2, sort_keys=True)


def test_plan_equals_hugging_face_hub(tmp_path):
    from huggingface_hub import split_torch_state_dict_into_shards

    rng = random.Random(4)
    for limit in ("1KB", "2.5KB", "1MB"):
        sizes = [(f"layer.{i}.weight", rng.randrange(1, 1500)) for i in range(60)]
        state = {name: torch.zeros(size, dtype=torch.uint8) for name, size in sizes}
        split = split_torch_state_dict_into_shards(
            state, filename_pattern="model{suffix}.safetensors", max_shard_size=limit)
        index = {"metadata": {"total_parameters": 7, **split.metadata},
                 "weight_map": split.tensor_to_filename}
        request = {"tensors": sizes, "max_shard_size": limit, "total_parameters": 7}
        (tmp_path / "in.json").write_text(json.dumps(request))
        done = echo("plan", tmp_path / "in.json", tmp_path / "out.json")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out.json").read_text() == (
            json.dumps(index, indent=2, sort_keys=True) + "\n")


@pytest.mark.parametrize("options", [
    {"r": 4, "lora_alpha": 16, "lora_dropout": 0.05, "target_modules": ["q_proj"]},
    {"use_rslora": True, "modules_to_save": ["lm_head"], "target_modules": ".*v_proj"},
    {"init_lora_weights": "gaussian"},
    {"init_lora_weights": False, "task_type": None},
])
def test_adapter_config_travels_both_ways(tmp_path, options):
    from peft import LoraConfig, PeftConfig

    theirs = LoraConfig(**{"task_type": "CAUSAL_LM", "base_model_name_or_path": "some/model",
                           **options})
    theirs.inference_mode = True
    theirs.save_pretrained(tmp_path)
    done = echo("adapter", tmp_path, tmp_path / "ours" / "adapter_config.json")
    assert done.returncode == 1  # the folder is missing
    (tmp_path / "ours").mkdir()
    done = echo("adapter", tmp_path, tmp_path / "ours" / "adapter_config.json")
    assert (done.returncode, done.stderr) == (0, "")
    text = (tmp_path / "ours" / "adapter_config.json").read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True)
    written = json.loads((tmp_path / "adapter_config.json").read_text())
    for key, value in json.loads(text).items():
        assert value == written[key], key
    again = PeftConfig.from_pretrained(tmp_path / "ours").to_dict()
    expected = PeftConfig.from_pretrained(tmp_path).to_dict()
    again.pop("peft_version"), expected.pop("peft_version")
    assert again == expected


def test_folder_saved_by_transformers(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                         num_attention_heads=2, tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "many", max_shard_size="6KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 1
    for folder in ("one", "many"):
        done = echo("folder", tmp_path / folder)
        assert done.returncode == 0, done.stderr
        found = {line.split(" ")[0] for line in done.stdout.splitlines()}
        assert found == set(model.state_dict())
