"""Oracle: the run's own evaluation, and transformers over what is merged. An adapter whose first values were
made from the codes of its base (OLoRA, LoftQ over --load_in_4bit) says something else over plain weights."""

import subprocess

import pytest

from running import PROGRAM, base_flags, environment, run_strata, run_strata_raw
from test_export import eval_loss, load, measured

CODES = dict(load_in_4bit=True, bnb_4bit_use_double_quant=True)
LIKE_TRAINING = ["--bnb_4bit_use_double_quant"]
EVALUATED = dict(eval_strategy="steps", per_device_eval_batch_size=3, dtype="float32")
KINDS = ["olora", "loftq"]


def strata(*words):
    return subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=60,
                          env=environment())


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    """A run by its first values."""
    folder = tmp_path_factory.mktemp("of-codes")
    return {kind: run_strata(base_flags(
        inputs.model("wide"), inputs.data("messages"), folder / kind, use_peft=True, lora_r=3,
        lora_alpha=6, lora_target_modules=["q_proj", "up_proj"], init_lora_weights=kind,
        learning_rate=2e-2, max_steps=6, eval_steps=6, save_strategy="steps", save_steps=3,
        **EVALUATED, **CODES), 2) for kind in KINDS}


def answers(base, adapter, *words):
    return strata("chat", "--model_name_or_path", base, "--adapter", f"a={adapter}", "--prompt",
                  "the cat", "--max_new_tokens", 6, *words)


def refused(run, adapter, what="plain weights"):
    text = run.stderr if isinstance(run.stderr, str) else run.text
    return (run.returncode == 2 and f"{adapter}: found an adapter whose first values were made from "
            in text and "(nf4, blocks of 64, double)" in text and f"not over {what}" in text)


@pytest.mark.parametrize("kind", KINDS)
def test_over_plain_weights_it_is_refused(inputs, trained, tmp_path, kind):
    base, adapter = inputs.model("wide"), trained[kind].folder
    assert refused(strata("merge-adapter", adapter, tmp_path / "merged"), adapter)
    assert refused(answers(base, adapter), adapter)
    assert refused(answers(base, adapter, "--load_in_4bit"), adapter, "nf4, blocks of 64")
    assert refused(run_strata_raw(base_flags(base, inputs.data("messages"), tmp_path / "on", max_steps=1,
                                             adapter_name_or_path=adapter)), adapter)
    plain = strata("convert", adapter, tmp_path / "lora", "--to", "lora")
    assert plain.returncode == 2
    assert ("taken off the codes of its base" if kind == "olora" else
            "found init_lora_weights true, expected pissa") in plain.stderr
    checkpoint = strata("merge-adapter", trained[kind].folder / "checkpoint-3", tmp_path / "merged")
    assert refused(checkpoint, trained[kind].folder / "checkpoint-3")
    assert not (tmp_path / "merged").exists() and not (tmp_path / "lora").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_over_its_codes_it_is_what_was_trained(inputs, trained, tmp_path, kind):
    base, run = inputs.model("wide"), trained[kind]
    written = strata("convert", base, tmp_path / "codes", "--to", "bnb-4bit", *LIKE_TRAINING)
    assert written.returncode == 0, written.stderr
    merged = strata("merge-adapter", run.folder, tmp_path / "merged", "--base_model",
                    tmp_path / "codes", "--dequantize")
    assert merged.returncode == 0, merged.stderr
    assert eval_loss(load(tmp_path / "merged"), run.folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)
    stored = answers(tmp_path / "codes", run.folder)
    quantised = answers(base, run.folder, "--load_in_4bit", *LIKE_TRAINING)
    assert stored.returncode == quantised.returncode == 0, stored.stderr + quantised.stderr
    assert stored.stdout == quantised.stdout
    # Training goes on from it, and from its checkpoint.
    again = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "again", max_steps=1,
                                  adapter_name_or_path=run.folder, eval_on_start=True, eval_steps=9,
                                  **EVALUATED, **CODES))
    first = next(row for row in again.history if "eval_loss" in row)
    assert first["eval_loss"] == pytest.approx(measured(run), abs=1e-5)
    assert refused(answers(base, again.folder), again.folder)


def test_a_lora_that_starts_at_zero_goes_anywhere(inputs, tmp_path):
    """As PEFT users do: trained over codes, merged into the plain model."""
    run = run_strata(base_flags(inputs.model("wide"), inputs.data("messages"), tmp_path / "run",
                                use_peft=True, lora_r=2, max_steps=1, **CODES))
    assert strata("merge-adapter", run.folder, tmp_path / "merged").returncode == 0
    assert answers(inputs.model("wide"), run.folder).returncode == 0
