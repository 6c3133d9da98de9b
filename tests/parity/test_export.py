# Oracle: transformers and PEFT load what a run wrote, unchanged, and compute the loss that the run
# itself measured with the weights it held.
import json
import shutil
import subprocess

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from llama_reference import make_documents, run_reference
from probe import relative_error, run_probe
from running import PROGRAM, base_flags, output_files, run_strata, run_strata_raw

LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.1, learning_rate=2e-2,
            lora_target_modules=["q_proj", "o_proj", "up_proj"])
TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
TRAINED = dict(max_steps=6, eval_strategy="steps", eval_steps=6, per_device_eval_batch_size=3)


def train(inputs, output, model="odd", world=2, **flags):
    return run_strata(base_flags(inputs.model(model), inputs.data("messages"), output,
                                 **TRAINED, **flags), world)


def eval_loss(model, folder, data):
    """Trainer's evaluation loss: the mean of the batches' losses weighted by their rows."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [json.loads(line)["messages"] for line in (data / "test.jsonl").open()]
    rows = [tokenizer.apply_chat_template(r, return_dict=False)[:64] for r in rows]
    model.eval()
    total, size = 0.0, 3
    for begin in range(0, len(rows), size):
        batch = rows[begin:begin + size]
        length = max(map(len, batch))
        ids = torch.tensor([r + [0] * (length - len(r)) for r in batch])
        mask = torch.tensor([[1] * len(r) + [0] * (length - len(r)) for r in batch])
        labels = ids.masked_fill(mask == 0, -100)
        with torch.no_grad():
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        total += loss.item() * len(batch)
    return total / len(rows)


def measured(run):
    return [row["eval_loss"] for row in run.history if "eval_loss" in row][-1]


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model


@pytest.mark.parametrize("name,world", [("odd", 1), ("odd", 3), ("tied", 1), ("tied", 3),
                                        ("mistral", 2), ("qwen2", 3), ("qwen3", 2), ("phi3", 2),
                                        ("smollm3", 2), ("granite", 3), ("gemma", 3), ("gemma3", 2),
                                        ("gemma2", 2), ("olmo2", 3), ("olmo3", 2), ("glm", 3), ("glm4", 2),
                                        ("seed_oss", 2), ("arcee", 3), ("apertus", 3), ("exaone4", 2), ("ernie4_5", 3),
                                        ("hunyuan", 2), ("ministral3", 2), ("internlm3", 2), ("cwm", 3), ("helium", 2), ("hyperclovax", 3), ("vaultgemma", 2), ("minicpm3", 3),
                                        ("gpt2", 3), ("bigcode", 2), ("gpt_neox", 3), ("opt", 2), ("opt_350m", 3), ("xglm", 2), ("nanochat", 3), ("granitemoe_swa", 2), ("persimmon", 3), ("gpt", 2),
                                        ("starcoder2", 3), ("cohere", 2), ("cohere2", 3), ("phi", 2), ("stablelm", 3), ("olmo", 2), ("nemotron", 3), ("jais2", 2), ("gptj", 2), ("codegen", 3), ("gpt_neo", 3),
                                        ("falcon", 2), ("falcon_40b", 3), ("bloom", 3), ("mpt", 2),
                                        ("qwen3_moe", 3), ("qwen2_moe", 2),
                                        ("mixtral", 2), ("glm4_moe", 3), ("gpt_oss", 3), ("lfm2_moe", 2), ("granitemoehybrid", 3),
                                        ("bamba", 2), ("falcon_h1", 3), ("nemotron_h", 3)])
def test_full_model(inputs, tmp_path, name, world):
    run = train(inputs, tmp_path / "out", name, world)
    folder = run.folder
    model = load(folder)
    is_tied = name in ("tied", "qwen2", "smollm3", "granite", "gemma", "gemma2", "gemma3", "gpt2", "bigcode",
                       "opt", "opt_350m", "xglm", "gpt", "starcoder2", "cohere", "cohere2", "gpt_neo", "falcon", "falcon_40b", "bloom", "mpt", "hyperclovax", "vaultgemma", "minicpm3", "ernie4_5", "lfm2_moe")
    assert model.config.tie_word_embeddings == is_tied
    assert eval_loss(model, folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)
    documents = make_documents((17, 1, 9), vocab_size=model.config.vocab_size)
    loss, logits = run_reference(model, documents)
    tensors, _ = run_probe(folder, documents=documents, dtype="float32")
    assert relative_error(tensors["logits"], logits) < 1e-5
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert (("embed_out.weight" if name == "gpt_neox" else "lm_head.weight") in file.keys()) == (not is_tied)
    # Training from the result starts where the run ended.
    again = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "again", max_steps=1,
                                  eval_on_start=True, eval_strategy="steps", eval_steps=9,
                                  per_device_eval_batch_size=3), 2)
    first = next(row for row in again.history if "eval_loss" in row)
    assert first["eval_loss"] == pytest.approx(measured(run), abs=1e-5)


def test_model_in_several_files(inputs, tmp_path):
    whole = train(inputs, tmp_path / "whole", "plain")
    parts = train(inputs, tmp_path / "parts", "plain", max_shard_size="40KB")
    index = json.loads((parts.folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert files == sorted(p for p in output_files(parts.folder) if p.endswith(".safetensors"))
    expected = load_file(whole.folder / "model.safetensors")
    found = {}
    for file in files:
        found.update(load_file(parts.folder / file))
    assert found.keys() == expected.keys() == index["weight_map"].keys()
    assert all(torch.equal(found[n], expected[n]) for n in expected)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in expected.values())
    load(parts.folder)


@pytest.mark.parametrize("asked, type", [
    (dict(dtype="bfloat16"), torch.bfloat16), (dict(dtype="float16"), torch.float16),
    (dict(dtype="auto", model="bf16"), torch.bfloat16), (dict(dtype="auto", model="org/bf16"), torch.bfloat16),
    (dict(dtype="bfloat16", save_dtype="float32"), torch.float32), (dict(save_dtype="float16"), torch.float16),
    (dict(save_dtype="compute", bf16=True), torch.bfloat16), (dict(save_dtype="compute", bf16=False), torch.float32),
    (dict(save_dtype="compute", fp16=True), torch.float16),
    (dict(bf16=None, deepspeed='{"bf16": {"enabled": true}, "zero_optimization": {"stage": 3, '
                    '"stage3_gather_16bit_weights_on_model_save": true}}'), torch.bfloat16),
])
def test_the_type_of_a_result(inputs, tmp_path, asked, type):
    """As transformers saves a model in the type in which it was loaded. Oracle: torch's rounding of the fp32 result, which
    the same run leaves otherwise; a checkpoint keeps fp32 to go on from, and is converted to the very files."""
    flags = dict(max_steps=2, save_strategy="steps", save_steps=2)
    data, model = inputs.data("messages"), inputs.model("odd")
    if name := asked.get("model"):
        narrow = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
        # As a folder, or as huggingface_hub keeps a model of the Hub.
        cached = tmp_path / "hub" / "models--org--bf16"
        folder = cached / "snapshots" / "0" if "/" in name else tmp_path / "bf16"
        shutil.copytree(model, folder)
        narrow.save_pretrained(folder)
        if "/" in name:
            (cached / "refs").mkdir()
            (cached / "refs" / "main").write_text("0")
            flags["cache_dir"] = tmp_path / "hub"
        model = name if "/" in name else folder
        asked = {key: value for key, value in asked.items() if key != "model"}
    def run(name, **more):
        return run_strata(base_flags(model, data, tmp_path / name, **{**flags, **more}), 2).folder
    wide = run("wide", **{**asked, "save_dtype": "float32"})
    found = run("found", **asked)
    expected = {k: v.to(type) for file in wide.glob("*.safetensors") for k, v in load_file(file).items()}
    tensors = {k: v for file in found.glob("*.safetensors") for k, v in load_file(file).items()}
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == type and torch.equal(tensor, expected[name]), name
    assert AutoModelForCausalLM.from_pretrained(found, dtype="auto").dtype == type
    assert json.loads((found / "config.json").read_text())["dtype"] == str(type).removeprefix("torch.")
    converted = tmp_path / "converted"
    subprocess.run([PROGRAM, "convert", found / "checkpoint-2", converted, "--to", "safetensors"],
                   check=True)
    for file in sorted(found.glob("model*")) + [found / "config.json"]:
        assert (converted / file.name).read_bytes() == file.read_bytes(), file.name


def test_the_type_of_an_adapter(inputs, tmp_path):
    def run(name, **flags):
        return train(inputs, tmp_path / name, **LORA, **flags).folder / "adapter_model.safetensors"
    wide, narrow = load_file(run("wide", dtype="bfloat16")), load_file(run("narrow", dtype="bfloat16", save_dtype="bfloat16"))
    assert all(torch.equal(narrow[name], tensor.to(torch.bfloat16)) for name, tensor in wide.items())
    assert all(tensor.dtype == torch.float32 for tensor in wide.values()) and narrow.keys() == wide.keys()
    base = AutoModelForCausalLM.from_pretrained(inputs.model("odd"))
    PeftModel.from_pretrained(base, tmp_path / "narrow")


def test_a_result_in_the_place_of_its_source_is_refused(inputs, tmp_path):
    model = shutil.copytree(inputs.model("plain"), tmp_path / "model")
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    run = run_strata_raw(base_flags(model, inputs.data("messages"), tmp_path / "." / "model", max_steps=1))
    assert run.returncode == 2 and "the folder of the model that this run starts from" in run.stderr, run.stderr
    assert before == {path.name: path.read_bytes() for path in model.iterdir() if path.is_file() and path.name in before}
    adapter = train(inputs, tmp_path / "adapter", **LORA).folder
    run = run_strata_raw(base_flags(inputs.model("odd"), inputs.data("messages"), adapter, max_steps=1,
                                    adapter_name_or_path=adapter))
    assert run.returncode == 2 and "the folder of the adapter that this run starts from" in run.stderr, run.stderr


def test_a_result_of_another_kind_is_refused(inputs, tmp_path):
    """Oracle: PEFT and transformers, which would take the other one's adapter_config.json or config.json."""
    for first, second, words in ((LORA, {}, "found adapter_config.json of an earlier run"), ({}, LORA, "found config.json of an earlier run")):
        folder = train(inputs, tmp_path / ("adapter" if first else "model"), **first).folder
        before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        run = run_strata_raw(base_flags(inputs.model("odd"), inputs.data("messages"), folder, max_steps=1, **second))
        assert run.returncode == 2 and words in run.stderr and "choose another folder" in run.stderr, run.stderr
        assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_an_earlier_result_is_told(inputs, tmp_path):
    first, second = (train(inputs, tmp_path / "out", "plain") for _ in range(2))
    words = f"warning: output_dir: found {tmp_path / 'out' / 'model.safetensors'} of an earlier run"
    assert words not in first.text and words in second.text


def test_nothing_of_an_earlier_result_stays(inputs, tmp_path):
    """Oracle: the same run into a new folder, and how AutoTokenizer writes its conversation."""
    first, second = (shutil.copytree(inputs.model("plain"), tmp_path / name) for name in ("first", "second"))
    (first / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.3, "eos_token_id": 2}')
    (first / "additional_chat_templates").mkdir()
    (first / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    (second / "generation_config.json").unlink(missing_ok=True)
    own = json.loads((second / "tokenizer_config.json").read_text())
    own["chat_template"] = (second / "chat_template.jinja").read_text()
    (second / "tokenizer_config.json").write_text(json.dumps(own))
    (second / "chat_template.jinja").unlink()
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}")

    def run(model, output, **flags):
        run_strata(base_flags(model, inputs.data("messages"), output, max_steps=1, **flags))

    used, fresh = tmp_path / "used", tmp_path / "fresh"
    run(first, used, chat_template_path=other)
    names = {"chat_template.jinja", "generation_config.json", "additional_chat_templates/tool_use.jinja"}
    assert names <= set(output_files(used))
    (used / "vocab.txt").write_text("of an earlier tokenizer")
    kept = ["notes.txt", "additional_chat_templates/notes.txt"]
    for name in kept:
        (used / name).write_text("mine")
    run(second, used)
    run(second, fresh)
    assert output_files(used) == sorted(output_files(fresh) + kept)
    chat = [{"role": "user", "content": "hi"}]
    found, expected = (AutoTokenizer.from_pretrained(f).apply_chat_template(chat, tokenize=False) for f in (used, fresh))
    assert found == expected != "[user]hi"
    # Without files of others the folder of templates goes, too; what is no result of a run stays whole.
    (used / kept[1]).unlink()
    (used / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    run(second, used)
    assert not (used / "additional_chat_templates").exists()
    (used / "settings.json").unlink()
    (used / "generation_config.json").write_text("{}")
    run(second, used)
    assert (used / "generation_config.json").read_text() == "{}"


def test_every_file_of_a_full_result(inputs, tmp_path):
    run = train(inputs, tmp_path / "out", "plain")
    assert set(output_files(run.folder)) == TOKENIZER_FILES | {
        "config.json", "generation_config.json", "model.safetensors", "metrics.jsonl",
        "trainer_state.json", "report.html", "settings.json", "README.md"}
    source = inputs.model("plain")
    for name in TOKENIZER_FILES:
        assert (run.folder / name).read_bytes() == (source / name).read_bytes()


# What (IA)^3 has no use for.
OF_LORA_OFF = dict(lora_r=None, lora_alpha=None, lora_dropout=None, lora_target_modules=None)
LORA_CASES = {
    "plain": ("plain", {}),
    "rslora": ("odd", dict(use_rslora=True)),
    "saved_modules": ("plain", dict(lora_modules_to_save=["lm_head", "norm"])),
    "tied": ("tied", {}),
    "dora": ("odd", dict(use_dora=True)),
    "dora_head": ("plain", dict(use_dora=True, lora_target_modules=["v_proj", "lm_head"])),
    "pissa": ("plain", dict(init_lora_weights="pissa")),
    "olora": ("odd", dict(init_lora_weights="olora")),
    "branch_bias": ("odd", dict(lora_bias=True, lora_target_modules=["q_proj", "o_proj"],
                                lora_modules_to_save=["norm"])),
    # With settings of LoRA's that a run names as without effect.
    "ia3": ("odd", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2,
                        trainable_token_indices="[3, 17]", ensure_weight_tying=True)),
    "vera": ("odd", dict(OF_LORA_OFF, peft_type="VERA", lora_r=9, learning_rate=5e-2,
                         lora_target_modules=["q_proj", "down_proj"],
                         exclude_modules=["layers.0.self_attn.q_proj"])),
    "vera_unsaved": ("plain", dict(OF_LORA_OFF, peft_type="VERA", lora_r=5, learning_rate=5e-2,
                                   save_projection=False, projection_prng_key=4)),
    "prompt": ("tied", dict(OF_LORA_OFF, peft_type="PROMPT_TUNING", num_virtual_tokens=5,
                            prompt_tuning_init="SAMPLE_VOCAB", learning_rate=5e-2)),
    "prompt_text": ("plain", dict(OF_LORA_OFF, peft_type="PROMPT_TUNING", num_virtual_tokens=4,
                                  prompt_tuning_init="TEXT", learning_rate=5e-2,
                                  prompt_tuning_init_text="the cat sat on a mat")),
    "prefix": ("odd", dict(OF_LORA_OFF, peft_type="PREFIX_TUNING", num_virtual_tokens=3,
                           learning_rate=5e-2)),
    "apertus_activation": ("apertus", dict(lora_target_modules=["up_proj", "o_proj"], lora_modules_to_save=["act_fn"])),
    "granite": ("granite", dict(lora_target_modules="all-linear")),
    "gpt2": ("gpt2", dict(lora_target_modules=["c_attn", "c_fc"])),
    "qwen3_moe": ("qwen3_moe", dict(lora_target_modules="all-linear", lora_dropout=0.0)),
    "mixtral": ("mixtral", dict(lora_target_modules=None)),
    "mixtral_experts": ("mixtral", dict(lora_target_modules=["v_proj", "gate", "w1", "w2", "w3"], lora_dropout=0.0)),
    "mixtral_down": ("mixtral", dict(lora_target_modules=["w2"], lora_dropout=0.0)),
    "gpt_oss": ("gpt_oss", dict(lora_target_modules="all-linear")),
    "gpt_oss_router": ("gpt_oss", dict(lora_target_modules=["q_proj"], lora_modules_to_save=["router"])),
    "gpt_oss_prefix": ("gpt_oss", dict(OF_LORA_OFF, peft_type="PREFIX_TUNING", num_virtual_tokens=3,
                                       learning_rate=5e-2)),
    "qwen2_moe": ("qwen2_moe", dict(lora_target_modules=["q_proj", "shared_expert_gate"])),
    "qwen2_moe_ia3": ("qwen2_moe", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2,
                                        feedforward_modules=["shared_expert.up_proj"],
                                        lora_target_modules=["k_proj", "shared_expert.up_proj"])),
    "glm4_moe": ("glm4_moe", dict(lora_target_modules="all-linear", lora_dropout=0.0)),
    "glm4_moe_router": ("glm4_moe", dict(lora_target_modules=["q_proj"], lora_modules_to_save=["mlp.gate"])),
    "glm4_moe_ia3": ("glm4_moe", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2,
                                      feedforward_modules=["shared_experts.up_proj"],
                                      lora_target_modules=["k_proj", "shared_experts.up_proj", "layers.0.mlp.up_proj"])),
    "minimax_m2": ("minimax_m2", dict(lora_target_modules="all-linear", lora_dropout=0.0)),
    "ernie4_5_moe_router": ("ernie4_5_moe", dict(lora_target_modules=["q_proj"], lora_modules_to_save=["mlp.gate"])),
    "exaone_moe_router": ("exaone_moe", dict(lora_target_modules=["q_proj"], lora_modules_to_save=["mlp.gate"])),
    "afmoe": ("afmoe", dict(lora_target_modules="all-linear", lora_dropout=0.0)),
    "mellum": ("mellum", dict(lora_target_modules="all-linear", lora_dropout=0.0)),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", dict(lora_target_modules="all-linear", lora_dropout=0.0)),
    "granitemoeshared_experts": ("granitemoeshared", dict(lora_target_modules=["q_proj", "input_linear"], lora_dropout=0.0,
                                                          lora_target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    "granitemoe_swa_experts": ("granitemoe_swa", dict(lora_target_modules=["q_proj", "input_linear"], lora_dropout=0.0,
                                                      lora_target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    "nanochat": ("nanochat", dict(lora_target_modules="all-linear")),
    "persimmon": ("persimmon", dict(lora_target_modules="all-linear")),
    "gpt": ("gpt", dict(lora_target_modules="all-linear")),
    "xglm": ("xglm", dict(lora_target_modules="all-linear")),
    "granitemoe_router": ("granitemoe", dict(lora_target_modules=["q_proj"], lora_modules_to_save=["router"])),
    "llama4_branches": ("llama4_text", dict(lora_target_modules=["q_proj"], lora_dropout=0.0,
                                            lora_target_parameters=["experts.gate_up_proj", "experts.down_proj"])),
    "llama4_experts": ("llama4_text", dict(lora_target_modules=["q_proj"], lora_modules_to_save=["experts"])),
    "lfm2": ("lfm2", dict(lora_target_modules="all-linear")),
    "granitemoehybrid": ("granitemoehybrid", dict(lora_target_modules=["in_proj", "out_proj", "input_linear"], lora_modules_to_save=["router"], lora_dropout=0.0)),
    "bamba": ("bamba", dict(lora_target_modules="all-linear")),
    "falcon_h1": ("falcon_h1", dict(lora_target_modules=["in_proj", "k_proj", "gate_proj"], lora_modules_to_save=["conv1d"])),
    "nemotron_h": ("nemotron_h", {}),
    "gpt2_ia3": ("gpt2", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2)),
    "bigcode": ("bigcode", dict(lora_target_modules="all-linear")),
    "gpt_neox": ("gpt_neox", dict(lora_target_modules="all-linear")),
    "opt_350m": ("opt_350m", dict(lora_target_modules="all-linear")),
    "cohere": ("cohere", dict(lora_target_modules="all-linear")),
    "stablelm": ("stablelm", dict(lora_target_modules="all-linear")),
    "olmo": ("olmo", dict(lora_target_modules="all-linear")),
    "gptj": ("gptj", dict(lora_target_modules=["q_proj", "out_proj", "fc_in"])),
    "codegen": ("codegen", dict(lora_target_modules="all-linear")),
    "gpt_neo": ("gpt_neo", dict(lora_target_modules=["q_proj", "c_proj"], lora_modules_to_save=["wpe"])),
    "gpt_neo_ia3": ("gpt_neo", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2)),
    "nemotron": ("nemotron", dict(lora_target_modules="all-linear", lora_modules_to_save=["input_layernorm"])),
    "bloom": ("bloom", dict(lora_target_modules="all-linear")),
    "mpt": ("mpt", dict(lora_target_modules=["Wqkv", "out_proj", "up_proj"])),
    "minicpm3": ("minicpm3", dict(lora_target_modules="all-linear")),
    "opt_ia3": ("opt", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2)),
    "gpt_neox_ia3": ("gpt_neox", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2)),
    "phi3": ("phi3", dict(lora_target_modules=["qkv_proj", "gate_up_proj", "down_proj"])),
    "phi3_prefix": ("phi3", dict(OF_LORA_OFF, peft_type="PREFIX_TUNING", num_virtual_tokens=3,
                                 learning_rate=5e-2)),
    "ia3_head": ("plain", dict(OF_LORA_OFF, peft_type="IA3", learning_rate=5e-2,
                               lora_target_modules=["k_proj", "down_proj", "lm_head"],
                               feedforward_modules=["down_proj"])),
}


@pytest.mark.parametrize("case", LORA_CASES)
def test_adapter(inputs, tmp_path, case):
    name, settings = LORA_CASES[case]
    run = train(inputs, tmp_path / "out", name, 2, **{**LORA, **settings})
    assert set(output_files(run.folder)) == TOKENIZER_FILES | {
        "adapter_config.json", "adapter_model.safetensors", "metrics.jsonl", "trainer_state.json",
        "report.html", "settings.json", "README.md"}
    base = AutoModelForCausalLM.from_pretrained(inputs.model(name))
    model = PeftModel.from_pretrained(base, run.folder)
    assert eval_loss(model, run.folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)
    if "num_virtual_tokens" not in settings:
        merged = model.merge_and_unload()
        assert eval_loss(merged, run.folder, inputs.data("messages")) == pytest.approx(
            measured(run), abs=1e-4)
    again = run_strata(base_flags(
        inputs.model(name), inputs.data("messages"), tmp_path / "again", max_steps=1,
        adapter_name_or_path=run.folder, eval_on_start=True, eval_strategy="steps", eval_steps=9,
        per_device_eval_batch_size=3), 3)
    first = next(row for row in again.history if "eval_loss" in row)
    assert first["eval_loss"] == pytest.approx(measured(run), abs=1e-5)


OVER_CODES = {
    "nf4_double_rslora": (dict(load_in_4bit=True, bnb_4bit_use_double_quant=True),
                          dict(LORA, use_rslora=True)),
    "fp4_dora": (dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"), dict(LORA, use_dora=True)),
    "nf4_vera": (dict(load_in_4bit=True), LORA_CASES["vera"][1]),
    "nf4_prefix": (dict(load_in_4bit=True), LORA_CASES["prefix"][1]),
    "int8_lora": (dict(load_in_8bit=True), LORA),
    "int8_ia3": (dict(load_in_8bit=True), LORA_CASES["ia3"][1]),
}


@pytest.mark.parametrize("case", OVER_CODES)
def test_adapter_over_codes(inputs, tmp_path, case):
    """PEFT over bitsandbytes' layers loads what was trained over codes. 8 bits: products of rounded
    activations in both, which differ by more than sums."""
    codes, settings = OVER_CODES[case]
    run = train(inputs, tmp_path / "out", "wide", 2, **{"use_peft": True, **settings, **codes})
    base = AutoModelForCausalLM.from_pretrained(
        inputs.model("wide"), dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(**{"bnb_4bit_quant_type": "nf4", **codes}))
    for layer in base.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False  # a kernel in bf16, of other shapes
    model = PeftModel.from_pretrained(base, run.folder)
    limit = 1e-3 if "load_in_8bit" in codes else 1e-5
    assert eval_loss(model, run.folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=limit)
    losses = [row["loss"] for row in run.history if "loss" in row]
    assert losses[0] - losses[-1] > 10 * limit, "nothing was learnt"


def test_adapter_of_a_bfloat16_base(inputs, tmp_path):
    """--dtype bfloat16 keeps the frozen base in 16 bits; computing in fp32 loses nothing more."""
    run = train(inputs, tmp_path / "out", "plain", 2, **LORA, dtype="bfloat16")
    base = AutoModelForCausalLM.from_pretrained(inputs.model("plain"), dtype=torch.bfloat16)
    model = PeftModel.from_pretrained(base.float(), run.folder)
    assert eval_loss(model, run.folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)


def test_a_model_from_scratch_loads(inputs, tmp_path):
    flags = base_flags(None, inputs.data("messages"), tmp_path / "out",
                       config_name=inputs.model("plain"), **TRAINED)
    run = run_strata(flags, 2)
    assert eval_loss(load(run.folder), run.folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)
