"""Oracle: PEFT, whose Python keeps the last of a repeated key at the place of the first: in adapter_config.json, and in
the flags of a run."""

import json
import re
import subprocess

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from llama_reference import save_checkpoint
from probe import relative_error
from running import PROGRAM, base_flags, environment, run_strata
from test_lora import attach, randomise

# The last value counts, in the first place: q_proj has rank 4, and "v_proj" of the alphas is tried first.
RANKS = '{"q_proj": 2, "layers.1.self_attn.v_proj": 3, "v_proj": 6, "q_proj": 4}'
ALPHAS = '{"v_proj": 2, "q_proj": 8, "layers.0.self_attn.v_proj": 64, "v_proj": 32}'


def test_in_the_file_of_an_adapter(tmp_path):
    save_checkpoint(tmp_path, scale=0.08)
    model = attach(tmp_path, dict(target_modules=["q_proj", "v_proj"], rank_pattern=json.loads(RANKS),
                                  alpha_pattern=json.loads(ALPHAS)), dtype=torch.float32, seed=3)
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    text = file.read_text()
    for key, value in [("rank_pattern", RANKS), ("alpha_pattern", ALPHAS)]:
        text, count = re.subn(rf'"{key}": {{[^}}]*}}', f'"{key}": {value}', text)
        assert count == 1
    file.write_text(text)
    base = AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().state_dict()
    done = subprocess.run([PROGRAM, "merge-adapter", tmp_path / "adapter", tmp_path / "merged", "--base_model", tmp_path],
                          capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    for name, value in expected.items():
        assert relative_error(found[name], value) < 1e-6, name


def test_in_the_flags_of_a_run(inputs, tmp_path):
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", use_peft=True, lora_r=2,
                                lora_target_modules=["q_proj", "v_proj"], rank_pattern=RANKS, alpha_pattern=ALPHAS,
                                max_steps=1))
    config = json.loads((run.folder / "adapter_config.json").read_text())
    for key, text in [("rank_pattern", RANKS), ("alpha_pattern", ALPHAS)]:
        assert list(config[key].items()) == list(json.loads(text).items())
    base = AutoModelForCausalLM.from_pretrained(inputs.model("plain"))
    layers = dict(PeftModel.from_pretrained(base, run.folder).named_modules())
    ranks = {n[-26:]: m.r["default"] for n, m in layers.items() if hasattr(m, "lora_A") and hasattr(m, "r")}
    assert sorted(ranks.values()) == [3, 4, 4, 6], ranks
