# Oracle: PEFT, for what adapter_config.json and the adapter's file say against each other: what it refuses is
# refused, and keys of later versions, which it warns of, are warned of by every command that reads them.
import json
import re
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM

from running import base_flags, run_strata, run_strata_raw, strata


@pytest.fixture(scope="module")
def adapter(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "good"
    get_peft_model(AutoModelForCausalLM.from_pretrained(inputs.model("plain")), LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "embed_tokens"])).save_pretrained(folder)
    return folder


def altered(adapter, folder, **keys):
    shutil.copytree(adapter, folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    return folder


@pytest.mark.parametrize("keys,rank,weight", [
    (dict(r=2), 2, "model.layers.0.self_attn.q_proj.weight"),
    (dict(rank_pattern={"q_proj": 8}), 8, "model.layers.1.self_attn.q_proj.weight"),
    (dict(rank_pattern={"embed_tokens": 3}), 3, "model.embed_tokens.weight"),
])
def test_merging_refuses_another_rank_than_the_file_has(inputs, adapter, tmp_path, keys, rank, weight):
    folder = altered(adapter, tmp_path / "adapter", **keys)
    model = inputs.model("plain")
    with pytest.raises(RuntimeError, match="size mismatch"):
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder)
    text = strata("merge-adapter", folder, tmp_path / "merged", "--base_model", model, code=2)
    assert f'a branch of rank 4, {rank} in adapter_config.json, for "{weight}"' in text, text
    assert not (tmp_path / "merged").exists()


def logits_of(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.arange(7)[None]).logits


def require_refused(inputs, model, folder, output, message):
    """By what would use the adapter's values."""
    texts = [
        strata("chat", "--model_name_or_path", model, "--adapter_name_or_path", folder, "--prompt", "a", code=None),
        run_strata_raw(base_flags(model, inputs.data("messages"), output, max_steps=1, adapter_name_or_path=folder)).text]
    for text in texts:
        assert message in text, text
    assert not list(output.glob("adapter_*"))


def test_a_trained_bias_that_the_config_does_not_mention(inputs, tmp_path):
    """PEFT applies what is in the file, whatever `bias` says."""
    model = inputs.model("qwen2")
    trained = get_peft_model(AutoModelForCausalLM.from_pretrained(model), LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["q_proj"], bias="lora_only"))
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if name.endswith(".base_layer.bias"):
                parameter.add_(3)
    trained.save_pretrained(tmp_path / "good")
    folder = altered(tmp_path / "good", tmp_path / "altered", bias="none")
    found = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder)
    assert torch.equal(logits_of(found), logits_of(trained))
    assert not torch.allclose(logits_of(found), logits_of(AutoModelForCausalLM.from_pretrained(model)), atol=1e-2)
    require_refused(inputs, model, folder, tmp_path / "out",
                    'found the trained bias "base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias", '
                    "adapter_config.json says bias none, expected lora_only")
    strata("chat", "--model_name_or_path", model, "--adapter_name_or_path", tmp_path / "good", "--prompt", "a",
           "--max_new_tokens", "1")


@pytest.mark.parametrize("kind", [PrefixTuningConfig, PromptTuningConfig])
def test_virtual_tokens_that_peft_leaves_out(inputs, tmp_path, kind):
    """Without a task_type PEFT's model is one that puts nothing before the tokens."""
    model = inputs.model("plain")
    get_peft_model(AutoModelForCausalLM.from_pretrained(model), kind(
        task_type="CAUSAL_LM", num_virtual_tokens=3)).save_pretrained(tmp_path / "good")
    folder = altered(tmp_path / "good", tmp_path / "altered", task_type=None)
    base = logits_of(AutoModelForCausalLM.from_pretrained(model))
    left_out, applied = (logits_of(PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), f))[:, -7:]
                         for f in (folder, tmp_path / "good"))
    assert torch.equal(left_out, base) and not torch.allclose(applied, base, atol=1e-3)
    require_refused(inputs, model, folder, tmp_path / "out", 'task_type: found null with')


def test_a_key_of_a_later_version_is_warned_of(inputs, adapter, tmp_path):
    folder = altered(adapter, tmp_path / "adapter", later_config={"a": 1})
    model = inputs.model("plain")
    with pytest.warns(UserWarning, match="later_config"):
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), folder)
    texts = [
        run_strata(base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=1,
                              adapter_name_or_path=folder)).text,
        strata("merge-adapter", folder, tmp_path / "merged", "--base_model", model),
        strata("chat", "--model_name_or_path", model, "--adapter_name_or_path", folder, "--prompt", "a",
               "--max_new_tokens", "1")]
    for text in texts:
        assert "later_config: unknown key, it has no effect" in text, text


@pytest.mark.parametrize("flags,subtitle,settings", [
    (dict(use_peft=True, lora_r=2), "LoRA on", {"peft_type": "LORA", "lora_r": "2", "lora_alpha": "32.0",
                                                "lora_target_modules": "q_proj, v_proj"}),
    (dict(adapter_name_or_path="good"), "LoRA on", {"lora_r": "4", "lora_alpha": "8.0"}),
    (dict(use_peft=True, peft_type="IA3"), "IA3 on", {"peft_type": "IA3"}),
])
def test_the_page_of_a_run_has_the_settings_of_its_adapter(inputs, adapter, tmp_path, flags, subtitle, settings):
    flags = {name: adapter if value == "good" else value for name, value in flags.items()}
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out",
                                **{"max_steps": 1, "logging_steps": 10, **flags}))
    page = (run.folder / "report.html").read_text()
    assert f'<p class="subtitle">{subtitle}' in page
    shown = dict(re.findall(r"<tr><t[hd]>(\w+)</t[hd]><td>(.*?)</td></tr>", page))
    config = json.loads((run.folder / "adapter_config.json").read_text())
    assert settings.items() <= shown.items()
    # PEFT writes a set, in any order.
    assert shown["lora_target_modules"].split(", ") == config["target_modules"]
    assert shown.get("lora_r") == (None if "r" not in config else str(config["r"]))
    # A run too short for a log has a loss, too.
    assert "training loss" in page
