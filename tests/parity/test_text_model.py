# Oracle: the whole model of texts and images in transformers, given texts: its logits, to the bit, from the
# language model that was taken out of it; the run that starts from the latter.
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer,
                          SiglipVisionConfig)

from running import base_flags, run_strata, strata
from tiny_llama import save_tokenizer

VISION = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, image_size=28,
              patch_size=14)
TEXT = dict(hidden_size=36, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=128)
GEMMA3 = dict(model_type="gemma3_text", **TEXT, head_dim=10, sliding_window=7,
              layer_types=["sliding_attention", "full_attention"])
# The last layer reads the keys of the one before, and of its own file's weights nothing.
GEMMA4 = dict(model_type="gemma4_text", **dict(TEXT, num_hidden_layers=3), head_dim=10, global_head_dim=14, sliding_window=7,
              layer_types=["sliding_attention"] + 2 * ["full_attention"], num_kv_shared_layers=1, hidden_size_per_layer_input=6)
# The kind of the whole, what its texts are, and whether the output layer is the embedding.
KINDS = {"gemma3": (GEMMA3, True), "mistral3": (dict(model_type="mistral", **TEXT, head_dim=10), False),
         "mistral3_ministral3": (dict(model_type="ministral3", **TEXT, head_dim=10, rope_parameters=dict(
             rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=8, llama_4_scaling_beta=0.3)), False),
         "llava": (dict(model_type="llama", **TEXT), False), "llava_qwen2": (dict(model_type="qwen2", **TEXT), True)}


def save_whole(folder, kind, dtype=torch.float32):
    text, is_tied = KINDS[kind]
    size = save_tokenizer(folder)
    ids = dict(bos_token_id=None, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind.split("_")[0]](
        text_config=dict(text, vocab_size=size, tie_word_embeddings=is_tied, **ids),
        vision_config=SiglipVisionConfig(**VISION), tie_word_embeddings=is_tied,
        **(dict(mm_tokens_per_image=4) if kind == "gemma3" else {}))
    model = AutoModelForImageTextToText.from_config(config).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.7, 1.3)
            else:
                parameter.normal_(0, 0.08)
    model.save_pretrained(folder)
    return model.eval()


def save_gemma4(folder, **more):
    """With weights that published files have and nothing reads: keys and values of a layer that takes another's."""
    size = save_tokenizer(folder)
    torch.manual_seed(0)
    config = CONFIG_MAPPING["gemma4"](
        text_config=dict(GEMMA4, vocab_size=size, vocab_size_per_layer_input=size, bos_token_id=None, eos_token_id=2, pad_token_id=0, **more),
        vision_config=dict(model_type="gemma4_vision", hidden_size=16, intermediate_size=24, num_hidden_layers=1, head_dim=8,
                           num_attention_heads=2, num_key_value_heads=2, patch_size=4, position_embedding_size=64),
        audio_config=None)
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "norm" in name or name.endswith("layer_scalar"):
                tensor.uniform_(0.7, 1.3)
            elif name.endswith("weight") or ".experts." in name:
                tensor.normal_(0, 0.08)
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    unread = {f"model.language_model.layers.2.self_attn.{name}.weight": torch.ones(14, columns)
              for name, columns in (("k_proj", 36), ("v_proj", 36))}
    save_file(load_file(file) | unread, file, metadata={"format": "pt"})
    return model.eval()


def rename(folder, change):
    weights = load_file(folder / "model.safetensors")
    save_file({change(name): tensor for name, tensor in weights.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})


def in_memory(name):
    """As transformers 5 names it while it runs, which other tools save."""
    if name.startswith("language_model.lm_head"):
        return name.removeprefix("language_model.")
    return name.replace("language_model.model.", "model.language_model.")


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def save_qwen3_5(folder, family, **text):
    size = save_tokenizer(folder)
    torch.manual_seed(0)
    text = dict(TEXT, model_type=f"{family}_text", vocab_size=size, head_dim=8, layer_types=["linear_attention", "full_attention"],
                linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=10,
                bos_token_id=None, eos_token_id=2, pad_token_id=0,
                rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5, mrope_section=[1, 1, 0]), **text)
    vision = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=4, out_hidden_size=36)
    whole = AutoModelForImageTextToText.from_config(CONFIG_MAPPING[family](text_config=text, vision_config=vision))
    whole.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"mtp.fc.weight": torch.ones(2, 2)}, file, metadata={"format": "pt"})
    return whole.eval()


def fuse_experts(folder):
    """As the published mixtures are: a tensor for all experts of a layer, gate above up."""
    file = folder / "model.safetensors"
    weights = load_file(file)
    layers = {name.partition(".experts.")[0] for name in weights if ".experts." in name}
    for layer in layers:
        names = [f"{layer}.experts.{e}" for e in range(4)]
        rows = [torch.cat([weights.pop(f"{n}.gate_proj.weight"), weights.pop(f"{n}.up_proj.weight")]) for n in names]
        weights[f"{layer}.experts.gate_up_proj"] = torch.stack(rows)
        weights[f"{layer}.experts.down_proj"] = torch.stack([weights.pop(f"{n}.down_proj.weight") for n in names])
    assert len(layers) == 2
    save_file(weights, file, metadata={"format": "pt"})


@pytest.mark.parametrize("family,fused", [("qwen3_5", False), ("qwen3_5_moe", False), ("qwen3_5_moe", True)])
def test_the_language_model_of_qwen3_5(tmp_path, family, fused):
    mixture = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16)
    whole = save_qwen3_5(tmp_path / "whole", family, **(mixture if family == "qwen3_5_moe" else {}))
    if fused:
        fuse_experts(tmp_path / "whole")
    text = strata("convert", tmp_path / "whole", tmp_path / "text", "--to", "text-model")
    assert "left out: mtp, visual" in text
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", output_loading_info=True)
    assert model.config.model_type == f"{family}_text"
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    for each in (model, whole):
        each.set_experts_implementation("eager")
    ids = torch.randint(3, 300, (2, 11), generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits(model, ids), logits(whole, ids))


@pytest.mark.parametrize("name", ["exaone4", "exaone4_5_text"])  # of today's files and of the first
def test_the_language_model_of_exaone_4_5(tmp_path, name):
    folder = tmp_path / "whole"
    size = save_tokenizer(folder)
    torch.manual_seed(0)
    text = dict(TEXT, model_type="exaone4", vocab_size=size, head_dim=10, sliding_window=7, sliding_window_pattern=2, bos_token_id=None,
                eos_token_id=2, pad_token_id=0)
    vision = dict(depth=1, hidden_size=16, intermediate_size=24, num_heads=2, num_key_value_heads=1, patch_size=4, out_hidden_size=36)
    whole = AutoModelForImageTextToText.from_config(CONFIG_MAPPING["exaone4_5"](text_config=text, vision_config=vision)).eval()
    whole.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"mtp.fc.weight": torch.ones(2, 2)}, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["model_type"] = name
    (folder / "config.json").write_text(json.dumps(config))
    assert "left out: mtp, visual" in strata("convert", folder, tmp_path / "text", "--to", "text-model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "text")
    assert model.config.model_type == "exaone4"
    ids = torch.randint(3, size, (2, 11), generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits(model, ids), logits(whole, ids))


def test_experts_of_another_shape_are_named(tmp_path):
    save_qwen3_5(tmp_path / "whole", "qwen3_5_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
                 shared_expert_intermediate_size=16)
    fuse_experts(tmp_path / "whole")
    file = tmp_path / "whole" / "model.safetensors"
    name = "model.language_model.layers.1.mlp.experts.gate_up_proj"
    weights = load_file(file)
    for tensor, shape in ((weights[name].transpose(1, 2).contiguous(), "[4, 36, 32]"), (weights[name][:3].clone(), "[3, 32, 36]"),
                          (torch.cat([weights[name], weights[name][:1]]), "[5, 32, 36]")):
        save_file(weights | {name: tensor}, file, metadata={"format": "pt"})
        text = strata("convert", tmp_path / "whole", tmp_path / "text", "--to", "text-model", code=1)
        assert f'tensor "{name}" has shape {shape}, text_config' in text and not (tmp_path / "text").exists(), text


@pytest.mark.parametrize("more", [{}, dict(enable_moe_block=True, num_experts=4, top_k_experts=2, moe_intermediate_size=16)],
                         ids=["dense", "experts"])
def test_the_language_model_of_gemma4(tmp_path, more):
    whole = save_gemma4(tmp_path / "whole", **more)
    text = strata("convert", tmp_path / "whole", tmp_path / "text", "--to", "text-model")
    assert "left out: embed_vision, vision_tower" in text
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "text", output_loading_info=True)
    assert model.config.model_type == "gemma4_text"
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    ids = torch.randint(3, 300, (2, 11), generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits(model, ids), logits(whole, ids))


@pytest.mark.parametrize("change", [None, in_memory], ids=["on_disk", "in_memory"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_language_model_of_a_model_of_images(kind, change, tmp_path):
    whole = save_whole(tmp_path / "whole", kind)
    if change:
        before = set(load_file(tmp_path / "whole" / "model.safetensors"))
        rename(tmp_path / "whole", change)
        assert before != set(load_file(tmp_path / "whole" / "model.safetensors"))
    text = strata("convert", tmp_path / "whole", tmp_path / "text", "--to", "text-model")
    assert "left out: multi_modal_projector, vision_tower" in text
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "text")
    assert model.config.model_type == KINDS[kind][0]["model_type"]
    ids = torch.randint(3, 300, (2, 11), generator=torch.Generator().manual_seed(1))
    assert torch.equal(logits(model, ids), logits(whole, ids))
    assert model.config.tie_word_embeddings == KINDS[kind][1]
    assert AutoTokenizer.from_pretrained(tmp_path / "text").chat_template
    assert set(load_file(tmp_path / "text" / "model.safetensors")) == {
        name for name in model.state_dict() if not (KINDS[kind][1] and name == "lm_head.weight")}


def test_it_trains(inputs, tmp_path):
    save_whole(tmp_path / "whole", "gemma3", torch.bfloat16)
    strata("convert", tmp_path / "whole", tmp_path / "text", "--to", "text-model", "--max_shard_size", "20KB")
    assert (tmp_path / "text" / "model.safetensors.index.json").exists()
    assert json.loads((tmp_path / "text" / "config.json").read_text())["dtype"] == "bfloat16"
    flags = base_flags(tmp_path / "text", inputs.data("messages"), tmp_path / "out", max_steps=3)
    run = run_strata({**flags, "use_peft": True, "lora_r": 2}, 2)
    assert run.losses[-1] < run.losses[0]


def test_what_is_no_such_model_is_refused(inputs, tmp_path):
    out = tmp_path / "out"
    said = strata("convert", inputs.model("odd"), out, "--to", "text-model", code=2)
    assert "found no text_config with a model_type in config.json" in said
    assert "found no config.json" in strata("convert", tmp_path, out, "--to", "text-model", code=2)
    whole = tmp_path / "whole"
    save_whole(whole, "gemma3")
    said = strata("plan", whole, code=2)
    assert "take its language model out of it with strata convert FOLDER OUT --to text-model" in said
    said = strata("convert", whole, out, "--to", "text-model", "--bnb_4bit_blocksize", "64", code=2)
    assert "bnb_4bit_blocksize: found with --to text-model" in said
    config = json.loads((whole / "config.json").read_text())
    for change, found in [({"model_type": "mamba"}, 'found model_type "mamba"'),
                          ({"intermediate_size": 40}, "text_config in config.json implies [40, 36]"),
                          ({"num_hidden_layers": 1, "layer_types": ["full_attention"]},
                           "layers.1.input_layernorm.weight\" in the language model, which text_config"),
                          ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
                           'found no tensor "model.layers.2.')]:
        damaged = json.dumps({**config, "text_config": {**config["text_config"], **change}})
        (whole / "config.json").write_text(damaged)
        said = strata("convert", whole, out, "--to", "text-model", code=2 if "model_type" in change else 1)
        assert found in said and not out.exists(), said
