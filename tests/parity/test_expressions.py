"""Oracle: PEFT and transformers. Expressions of settings and config.json mean what they mean there, in the order in
which they were given."""

import json
import subprocess

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from running import PROGRAM, base_flags, environment, run_strata, run_strata_raw
from test_adapters_of_codes import EVALUATED
from test_export import eval_loss, load, measured

PATTERNS = {
    "alpha": dict(alpha_pattern='{"q_proj": 64, ".*_proj": 8}'),
    "rank": dict(rank_pattern='{"q_proj|x": 4, "q_proj": 3}'),
    "both": dict(rank_pattern='{"v_proj": 4, ".*": 3}', alpha_pattern='{"v.*": 48, "q_proj|v_proj": 6}'),
}
SKIPPED = {
    "ending_with_a_point": ["model.layers.0.", "lm_head"],
    "behind": [".*(?<!v)_proj$", "lm_head"],
    "named_group": [r"model\.layers\.\d+\.(?P<x>mlp)\.", "lm_head"],
    "alternatives": ["model.layers.1.self_attn|model.layers.0", "lm_head"],
    "ending": ["q_proj", "lm_head"],
    "nothing": [],
}


def strata(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=60,
                          env=environment())


@pytest.mark.parametrize("name", PATTERNS)
def test_the_first_pattern_that_matches_decides_after_saving_too(inputs, tmp_path, name):
    base = inputs.model("wide")
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2,
                                lora_alpha=4, lora_target_modules=["q_proj", "v_proj"], max_steps=4, eval_steps=4,
                                learning_rate=2e-2, **PATTERNS[name], **EVALUATED))
    loss = pytest.approx(measured(run), abs=1e-5)
    assert eval_loss(PeftModel.from_pretrained(load(base), run.folder), base, inputs.data("messages")) == loss
    merged = strata("merge-adapter", run.folder, tmp_path / "merged")
    assert merged.returncode == 0, merged.stderr
    assert eval_loss(load(tmp_path / "merged"), base, inputs.data("messages")) == loss
    # Through a copy of the settings' text, too.
    assert strata("convert", run.folder, tmp_path / "copy", "--to", "safetensors").returncode == 0
    assert (tmp_path / "copy" / "adapter_config.json").read_text() == (
        run.folder / "adapter_config.json").read_text()
    chat = strata("chat", "--model_name_or_path", base, "--adapter", f"a={run.folder}", "--prompt", "the cat",
                  "--max_new_tokens", 2)
    assert chat.returncode == 0, chat.stderr


@pytest.fixture(scope="module")
def reference(inputs, tmp_path_factory):
    """By the skipped modules: the folder that transformers wrote, its loss and how many matrices are codes."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("skipped") / name
            config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=SKIPPED[name])
            model = AutoModelForCausalLM.from_pretrained(inputs.model("wide"), device_map="cpu", dtype=torch.float32,
                                                         quantization_config=config)
            model.save_pretrained(folder)
            for file in [*inputs.model("wide").glob("*token*"), *inputs.model("wide").glob("*.jinja")]:
                (folder / file.name).write_bytes(file.read_bytes())
            count = sum(type(layer).__name__ == "Linear4bit" for layer in model.modules())
            # bitsandbytes multiplies no matrix of so few rows on a CPU.
            model = model.dequantize(dtype=torch.float32)
            made[name] = folder, eval_loss(model, inputs.model("wide"), inputs.data("messages")), count
        return made[name]

    return make


# A list without names is no list on a command line.
@pytest.mark.parametrize("name,way", [(name, way) for name, skipped in SKIPPED.items()
                                      for way in ("stored", "flags", "converted") if skipped or way == "stored"])
def test_skipped_modules_are_those_of_transformers(inputs, reference, tmp_path, name, way):
    folder, loss, count = reference(name)
    flags = dict(use_peft=True, lora_r=2, lora_target_modules=["q_proj"], max_steps=1, eval_steps=1,
                 learning_rate=1e-30, bnb_4bit_compute_dtype="float32", **EVALUATED)
    if way == "flags":
        flags |= dict(load_in_4bit=True, llm_int8_skip_modules=SKIPPED[name])
        folder = inputs.model("wide")
    if way == "converted":
        done = strata("convert", inputs.model("wide"), tmp_path / "codes", "--to", "bnb-4bit",
                      "--llm_int8_skip_modules", ",".join(SKIPPED[name]))
        assert done.returncode == 0, done.stderr
        folder = tmp_path / "codes"
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "run", **flags))
    assert f"{count} matri" in run.text, run.text
    assert measured(run) == pytest.approx(loss, abs=1e-5)


def test_plain_weights_where_codes_are_said_to_be_are_refused(inputs, reference, tmp_path):
    folder, _, _ = reference("ending")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["llm_int8_skip_modules"] = None
    (tmp_path / "other").mkdir()
    for file in folder.iterdir():
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    run = run_strata_raw(base_flags(tmp_path / "other", inputs.data("messages"), tmp_path / "run", use_peft=True,
                                    lora_r=2, max_steps=1))
    assert run.returncode == 1, run.text
    assert 'self_attn.q_proj.weight": found plain values, expected codes' in run.text


def test_an_expression_that_is_none_is_refused(inputs, tmp_path):
    """As Python's re, which raises re.error."""
    done = strata("convert", inputs.model("wide"), tmp_path / "codes", "--to", "bnb-4bit",
                  "--llm_int8_skip_modules", "(q_proj")
    assert done.returncode == 2 and "llm_int8_skip_modules: found the expression" in done.stderr, done.stderr
