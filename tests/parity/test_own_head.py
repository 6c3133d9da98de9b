"""Oracle: PEFT over transformers. A base whose config.json ties embedding and output layer and whose file holds another
output layer: adapters take hold of the file's, in both directions and in a merge."""

import copy
import json
import shutil
import subprocess

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from running import PROGRAM, base_flags, environment, run_strata
from test_adapters_of_codes import EVALUATED
from test_export import eval_loss, measured
from test_generate import add_adapter, reference_ids, run_probe

# Settings of the program, the same for PEFT.
CASES = {
    "lora": (dict(lora_target_modules=["q_proj", "lm_head"]), dict(target_modules=["q_proj", "lm_head"])),
    "dora": (dict(lora_target_modules=["lm_head"], use_dora=True), dict(target_modules=["lm_head"], use_dora=True)),
    "ia3": (dict(peft_type="IA3", lora_target_modules=["k_proj", "lm_head"], feedforward_modules=["lm_head"]),
            dict(peft_type="IA3", target_modules=["k_proj", "lm_head"], feedforward_modules=["lm_head"])),
    "vera": (dict(peft_type="VERA", lora_target_modules=["lm_head"]), dict(peft_type="VERA", target_modules=["lm_head"])),
    "whole": (dict(lora_modules_to_save=["lm_head"], lora_target_modules=["q_proj"]),
              dict(modules_to_save=["lm_head"], target_modules=["q_proj"])),
    "tokens": (dict(trainable_token_indices="[3, 40, 50]", lora_target_modules=["q_proj"]),
               dict(trainable_token_indices=[3, 40, 50], target_modules=["q_proj"])),
}


@pytest.fixture(scope="module")
def base(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("own-head") / "base"
    folder.mkdir()
    # bitsandbytes decodes rows shorter than a block wrongly on some processors.
    for file in inputs.model("wide").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | dict(tie_word_embeddings=True)))
    model = reference(folder)
    assert model.config.tie_word_embeddings and not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    return folder


def reference(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def merged_loss(base, adapter, out, data):
    done = subprocess.run([PROGRAM, "merge-adapter", adapter, out, "--base_model", base], capture_output=True,
                          text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return eval_loss(reference(out), base, data)


@pytest.mark.parametrize("world,rank_0_reads", [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("name", CASES)
def test_what_is_trained_is_what_peft_loads(inputs, base, tmp_path, name, world, rank_0_reads):
    data = inputs.data("messages")
    run = run_strata(base_flags(base, data, tmp_path / "run", use_peft=True, lora_r=2, max_steps=4, eval_steps=4,
                                learning_rate=2e-2, per_device_train_batch_size=4 // world,
                                fsdp_cpu_ram_efficient_loading=rank_0_reads, **CASES[name][0], **EVALUATED), world)
    loss = pytest.approx(measured(run), abs=1e-5)
    assert eval_loss(PeftModel.from_pretrained(reference(base), run.folder), base, data) == loss
    assert merged_loss(base, run.folder, tmp_path / "merged", data) == loss


@pytest.mark.parametrize("name", CASES)
def test_what_peft_wrote_is_what_it_was(inputs, base, tmp_path, name):
    data = inputs.data("messages")
    model = add_adapter(reference(base), dict(CASES[name][1]), tmp_path / "adapter")
    loss = pytest.approx(eval_loss(model, base, data), abs=1e-5)
    run = run_strata(base_flags(base, data, tmp_path / "run", adapter_name_or_path=tmp_path / "adapter", max_steps=1,
                                learning_rate=1e-30, eval_steps=1, **EVALUATED))
    assert measured(run) == loss
    assert merged_loss(base, tmp_path / "adapter", tmp_path / "merged", data) == loss
    prompts = [[5, 60, 31], [1, 2, 3, 62, 99, 30]]
    found = run_probe(tmp_path, model=str(base), adapter=str(tmp_path / "adapter"), prompts=prompts, max_new_tokens=8)
    assert found == [reference_ids(model, prompt)[:8] for prompt in prompts]


@pytest.mark.parametrize("name", ["minicpm3", "gemma2", "lfm2", "granite_swa", "youtu"])
def test_families_that_are_tied_where_the_file_does_not_say(inputs, tmp_path, name):
    base, data = shutil.copytree(inputs.model(name), tmp_path / "base"), inputs.data("messages")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({key: value for key, value in config.items() if not key.startswith("tie_")}))
    tensors = load_file(base / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    noise = torch.randn(embedding.shape, generator=torch.Generator().manual_seed(1))
    save_file(tensors | {"lm_head.weight": embedding + 0.05 * noise}, base / "model.safetensors", {"format": "pt"})
    assert reference(base).config.tie_word_embeddings
    target = "q_b_proj" if name in ("minicpm3", "youtu") else "q_proj"
    run = run_strata(base_flags(base, data, tmp_path / "run", use_peft=True, lora_r=2, max_steps=4, eval_steps=4, learning_rate=2e-2,
                                trainable_token_indices="[3, 40, 50]", lora_target_modules=[target], **EVALUATED))
    loss = pytest.approx(measured(run), abs=1e-5)
    assert eval_loss(PeftModel.from_pretrained(reference(base), run.folder), base, data) == loss
    assert merged_loss(base, run.folder, tmp_path / "merged", data) == loss


def test_new_tokens_keep_both(inputs, tmp_path):
    """With rows for new tokens both weights go into the adapter's file, as PEFT saves them."""
    base = tmp_path / "base"
    shutil.copytree(inputs.model("llama2-tied"), base)
    tensors = load_file(base / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2,
                                lora_target_modules=["q_proj"], max_steps=1, chat_template_format="chatml"))
    saved = load_file(run.folder / "adapter_model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        value, own = saved["base_model.model." + name], tensors[name]
        assert len(value) > len(own) and torch.equal(value[:len(own)], own), name


# Without the output layer's name it becomes codes, too: those of the file's own.
SKIPPED = dict(llm_int8_skip_modules=["q_proj"])


@pytest.fixture(scope="module")
def quantised(base, tmp_path_factory):
    """Folders of such codes by their writer, and the model with its codes decoded."""
    folder = tmp_path_factory.mktemp("own-head-codes")
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", **SKIPPED)
    model = AutoModelForCausalLM.from_pretrained(base, device_map="cpu", dtype=torch.float32, quantization_config=config)
    assert type(model.lm_head).__name__ == "Linear4bit"
    model.save_pretrained(folder / "stored")
    for file in [*base.glob("*token*"), *base.glob("*.jinja")]:
        (folder / "stored" / file.name).write_bytes(file.read_bytes())
    done = subprocess.run([PROGRAM, "convert", base, folder / "converted", "--to", "bnb-4bit", "--llm_int8_skip_modules",
                           "q_proj"], capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return folder, model.dequantize(dtype=torch.float32)


@pytest.mark.parametrize("way", ["flags", "stored", "converted"])
def test_codes_of_the_own_head(inputs, base, quantised, tmp_path, way):
    folder, model = quantised
    data = inputs.data("messages")
    more = dict(load_in_4bit=True, **SKIPPED) if way == "flags" else {}
    place = base if way == "flags" else folder / way
    flags = base_flags(place, data, tmp_path / "same", use_peft=True, lora_r=2, lora_target_modules=["q_proj", "v_proj"],
                       max_steps=1, eval_steps=1, learning_rate=1e-30, bnb_4bit_compute_dtype="float32", **EVALUATED, **more)
    assert measured(run_strata(flags)) == pytest.approx(eval_loss(model, base, data), abs=1e-5)
    run = run_strata(flags | dict(learning_rate=2e-2, max_steps=4, eval_steps=4, output_dir=tmp_path / "run"), 2)
    adapted = PeftModel.from_pretrained(copy.deepcopy(model), run.folder)
    assert measured(run) == pytest.approx(eval_loss(adapted, base, data), abs=1e-5)
    if way == "converted":
        out = tmp_path / "merged"
        done = subprocess.run([PROGRAM, "merge-adapter", run.folder, out, "--base_model", place, "--dequantize", "--dtype",
                               "float32"], capture_output=True, text=True, env=environment(), timeout=60)
        assert done.returncode == 0, done.stderr
        assert eval_loss(reference(out), base, data) == pytest.approx(measured(run), abs=1e-5)
    if way != "flags":
        prompts = [[5, 60, 31], [1, 2, 3, 62, 99, 30]]
        for asked, adapter in [(model, {}), (adapted, dict(adapter=str(run.folder)))]:
            found = run_probe(tmp_path, model=str(place), prompts=prompts, max_new_tokens=8, **adapter)
            assert found == [reference_ids(asked.eval(), prompt)[:8] for prompt in prompts]
        return
    answers = [subprocess.run([PROGRAM, "chat", "--model_name_or_path", source, "--adapter", f"a={run.folder}", *words,
                               "--do_sample", "false", "--prompt", "the cat", "--max_new_tokens", "6"], check=True,
                              capture_output=True, text=True, env=environment(), timeout=60).stdout
               for source, words in [(base, ["--load_in_4bit", "--llm_int8_skip_modules", "q_proj"]),
                                     (folder / "converted", [])]]
    assert answers[0] == answers[1]
