"""Oracle: transformers' MBart, M2M100 and PegasusForConditionalGeneration and MarianMTModel: logits, loss, the gradient of every parameter, greedy
answers; PEFT over them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from running import strata
from test_bart import compare_bart, make_pairs, run_reference
from test_t5 import LENGTHS, VOCABULARY, inputs_of, run_probe_raw
from test_t5 import run_probe as run_probe_of_t5
from tiny_bart import save_bart

ODD = dict(d_model=30, encoder_attention_heads=5, decoder_attention_heads=2, encoder_layers=1, decoder_layers=3, encoder_ffn_dim=17)
M2M100 = dict(family="M2M100", encoder_layerdrop=0.0, decoder_layerdrop=0.0)
CONFIGS = {
    "mbart": dict(family="MBart", scale_embedding=True, pad_token_id=0),
    "mbart_odd": dict(family="MBart", **ODD, activation_function="relu", pad_token_id=2),
    "m2m_100": M2M100,
    "m2m_100_odd": dict(ODD, **M2M100, activation_function="gelu", scale_embedding=False, pad_token_id=0),
    "m2m_100_narrow": dict(M2M100, d_model=5, encoder_attention_heads=1, decoder_attention_heads=5),
    "marian": dict(family="Marian", scale_embedding=True, activation_function="swish", pad_token_id=100, decoder_start_token_id=100),
    "marian_odd": dict(family="Marian", **ODD, pad_token_id=0, decoder_start_token_id=0, eos_token_id=2),
    "pegasus": dict(family="Pegasus", scale_embedding=True, activation_function="relu"),
    "pegasus_odd": dict(family="Pegasus", **ODD),
    "pegasus_narrow": dict(family="Pegasus", d_model=5, encoder_attention_heads=1, decoder_attention_heads=5),
}


def run_probe(folder, **request):
    """mBART has no one token that answers follow."""
    return run_probe_of_t5(folder, **{"start": 2, **request})


def save(folder, name, **settings):
    return save_bart(folder, tokenizer=False, vocab_size=VOCABULARY, **{**CONFIGS[name], **settings})


def load(folder):
    """Positions that are computed get no gradient in the reference, which forgets on loading that they are frozen."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    for name, parameter in model.named_parameters():
        if model.config.model_type in ("marian", "pegasus") and "embed_positions" in name:
            parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize("name,checkpointing", [*((name, "full") for name in CONFIGS), *(
    (name, mode) for name in ("mbart", "m2m_100", "marian", "pegasus") for mode in ("none", "selective", "attention"))])
def test_equals_transformers(tmp_path, name, checkpointing):
    save(tmp_path, name)
    model = load(tmp_path)
    pairs = make_pairs(LENGTHS)
    loss, logits = run_reference(model, pairs)
    tensors, report = run_probe(tmp_path, pairs=pairs, checkpointing=checkpointing)
    compare_bart(tensors, model, loss, logits)
    names = [name for name in report["parameters"] if name != "final_logits_bias"]  # a buffer
    assert names == [name for name, parameter in model.named_parameters() if parameter.requires_grad]


@pytest.mark.parametrize("name", ["mbart", "m2m_100", "pegasus"])
def test_positions_end_where_the_reference_has_none(tmp_path, name):
    """M2M-100 has positions for texts of any length."""
    save(tmp_path, name)
    model = load(tmp_path)
    lengths = ((70, 3), (2, 45)) if name == "m2m_100" else ((40, 3), (2, 40))
    pairs = make_pairs(lengths)
    loss, logits = run_reference(model, pairs)
    compare_bart(run_probe(tmp_path, pairs=pairs)[0], model, loss, logits)
    if name == "m2m_100":
        return
    process, _ = run_probe_raw(tmp_path, pairs=make_pairs([(41, 3)]))
    assert process.returncode == 2 and "max_source_length: found a source of 41 tokens" in process.stderr


def test_padding_within_a_text_has_no_position(tmp_path):
    """M2M-100 counts the tokens that are not padding; a text may hold padding's."""
    save(tmp_path, "m2m_100")
    model = load(tmp_path)
    pairs = make_pairs(LENGTHS)
    pairs[0]["source"][2] = pairs[2]["source"][0] = pairs[2]["source"][5] = pairs[2]["target"][3] = 1
    loss, logits = run_reference(model, pairs)
    compare_bart(run_probe(tmp_path, pairs=pairs)[0], model, loss, logits)


@pytest.mark.parametrize("forced", [{}, dict(forced_bos_token_id=7), dict(forced_eos_token_id=9)], ids=lambda forced: "-".join(["greedy", *forced]))
@pytest.mark.parametrize("name", ["mbart", "m2m_100", "marian", "pegasus"])
def test_greedy_answers(tmp_path, name, forced):
    save(tmp_path, name)
    model = load(tmp_path).eval()
    pairs = make_pairs(LENGTHS)
    eos, start = model.config.eos_token_id, 11 if name == "mbart" else model.config.decoder_start_token_id
    wanted = {"forced_bos_token_id": None, "forced_eos_token_id": None, **forced}
    _, report = run_probe(tmp_path, pairs=pairs, max_new_tokens=13, eos=eos, start=start,
                          **{key.removesuffix("_token_id"): value for key, value in wanted.items() if value is not None})
    model.generation_config.update(**wanted, decoder_start_token_id=start)
    expected = model.generate(**inputs_of(pairs), max_new_tokens=13, do_sample=False, num_beams=1)
    for answer, ids in zip(report["answers"], expected.tolist()):
        ids = ids[1:]
        assert answer == (ids[:ids.index(eos) + 1] if eos in ids else ids)


def test_answers_without_what_is_banned(tmp_path):
    """Marian's files ban padding, whose logit is 0 by nature."""
    save(tmp_path, "marian")
    model = load(tmp_path).eval()
    pairs = make_pairs(LENGTHS)
    inputs, bounds = inputs_of(pairs), dict(max_new_tokens=9, do_sample=False, num_beams=1)
    model.generation_config.update(forced_eos_token_id=None)
    free = model.generate(**inputs, **bounds)[:, 1:]
    banned = sorted({*free[:, :2].flatten().tolist()} - {0})
    assert banned
    expected = model.generate(**inputs, **bounds, bad_words_ids=[[id] for id in [*banned, 0]])
    _, report = run_probe(tmp_path, pairs=pairs, max_new_tokens=9, eos=0, start=model.config.decoder_start_token_id, banned=banned)
    for answer, ids in zip(report["answers"], expected.tolist()):
        ids = ids[1:]
        assert answer == (ids[:ids.index(0) + 1] if 0 in ids else ids) and not {*answer} & {*banned}


def test_buffers_are_not_counted_and_take_the_type_of_the_weights(tmp_path):
    """As transformers loads and saves them: only parameters count, of which results hold no positions."""
    model = AutoModelForSeq2SeqLM.from_pretrained(save(tmp_path / "model", "marian"), dtype=torch.bfloat16)
    expected = sum(p.numel() for n, p in model.named_parameters() if "embed_positions" not in n)
    assert "final_logits_bias" in dict(model.named_buffers()) and model.final_logits_bias.dtype == torch.bfloat16
    model.save_pretrained(tmp_path / "narrow")
    strata("convert", tmp_path / "narrow", tmp_path / "sharded", "--to", "safetensors", "--max_shard_size", "20KB")
    index = json.loads((tmp_path / "sharded" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_parameters"] == expected and "final_logits_bias" in index["weight_map"]
    strata("convert", tmp_path / "model", tmp_path / "out", "--to", "safetensors", "--dtype", "bfloat16")
    ours, theirs = (load_file(tmp_path / f / "model.safetensors")["final_logits_bias"] for f in ("out", "narrow"))
    assert torch.equal(ours, theirs) and ours.dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["mbart", "m2m_100"])
def test_adapter_equals_peft(tmp_path, name):
    import re

    from peft import LoraConfig, PeftModel, get_peft_model
    save(tmp_path, name)
    model = get_peft_model(load(tmp_path), LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    torch.manual_seed(2)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "lora_B" in key:
                parameter.normal_(0, 0.3)
    model.save_pretrained(tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(load(tmp_path), tmp_path / "adapter", is_trainable=True)
    pairs = make_pairs(LENGTHS)
    loss, logits = run_reference(loaded, pairs)
    tensors, _ = run_probe(tmp_path, pairs=pairs, checkpointing="full", adapter=str(tmp_path / "adapter"))
    compare_bart({re.sub(r"\.(lora_[AB])\b", r".\1.default", k): v for k, v in tensors.items()}, loaded, loss, logits)


@pytest.mark.parametrize("name", ["mbart", "m2m_100"])
def test_layers_are_left_out_of_passes_of_training(tmp_path, name):
    """transformers with the same layers taken away; what is left out is the same in recomputation."""
    save(tmp_path, name, encoder_layers=4, decoder_layers=4, encoder_layerdrop=0.4, decoder_layerdrop=0.4)
    pairs = make_pairs(LENGTHS)
    tensors, _ = run_probe(tmp_path, pairs=pairs, training=True)
    for checkpointing in ("selective", "full"):
        again, _ = run_probe(tmp_path, pairs=pairs, training=True, checkpointing=checkpointing)
        assert all(torch.equal(tensors[key], again[key]) for key in tensors)
    model = load(tmp_path)
    used = {}
    for stack in ("encoder", "decoder"):
        layers = getattr(model.model, stack).layers
        used[stack] = [i for i in range(4) if tensors[f"grad:model.{stack}.layers.{i}.fc1.weight"].count_nonzero()]
        for i in set(range(4)) - set(used[stack]):
            assert not any(value.count_nonzero() for key, value in tensors.items() if key.startswith(f"grad:model.{stack}.layers.{i}."))
        setattr(getattr(model.model, stack), "layers", torch.nn.ModuleList(layers[i] for i in used[stack]))
    assert 0 < len(used["encoder"]) + len(used["decoder"]) < 8
    loss, _ = run_reference(model, pairs)
    assert tensors["loss"].item() == pytest.approx(loss.item(), abs=1e-5)
    for stack in used:
        for i, layer in enumerate(getattr(model.model, stack).layers):
            expected = layer.fc1.weight.grad
            found = tensors[f"grad:model.{stack}.layers.{used[stack][i]}.fc1.weight"]
            assert torch.allclose(found, expected, rtol=0, atol=1e-5 * expected.abs().max().item())


def weights_of(folder):
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def test_positions_that_files_hold(tmp_path):
    """Pegasus's, which not all files hold; others are refused."""
    save(tmp_path, "pegasus")
    pairs = make_pairs(LENGTHS)
    expected, _ = run_probe(tmp_path, pairs=pairs)
    weights = weights_of(tmp_path)
    key = "model.encoder.embed_positions.weight"
    assert key in weights
    save_file({name: value for name, value in weights.items() if "embed_positions" not in name}, tmp_path / "model.safetensors", {"format": "pt"})
    model = load(tmp_path)
    assert torch.equal(model.state_dict()[key], weights[key])
    found, _ = run_probe(tmp_path, pairs=pairs)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    save_file(weights | {key: weights[key] + 0.01}, tmp_path / "model.safetensors", {"format": "pt"})
    process, _ = run_probe_raw(tmp_path, pairs=pairs)
    assert process.returncode == 2 and f'found "{key}" with other values than the sinusoids of 40 positions' in process.stderr


@pytest.mark.parametrize("name,change,message", [
    ("mbart", dict(pad_token_id=None), "found pad_token_id = null, expected a token"),
    ("mbart", dict(tie_word_embeddings=False), "use a checkpoint of MBartForConditionalGeneration"),
    ("m2m_100", dict(encoder_layerdrop=1.0), "found encoder_layerdrop = 1, expected a number from 0 on"),
    ("m2m_100", dict(decoder_start_token_id=None), "found decoder_start_token_id = null, expected a token"),
    ("marian", dict(share_encoder_decoder_embeddings=False), "found share_encoder_decoder_embeddings false, expected true"),
    ("marian", dict(decoder_vocab_size=99), "found decoder_vocab_size = 99, expected that of vocab_size = 101"),
    ("pegasus", dict(max_position_embeddings=39), "expected those"),
])
def test_wrong_config_is_named(tmp_path, name, change, message):
    save(tmp_path, name)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    process, _ = run_probe_raw(tmp_path, pairs=make_pairs(LENGTHS))
    assert process.returncode in (1, 2)
    assert message in process.stderr
