"""Oracle: the run's own evaluation, and transformers over what is merged. An adapter whose first values were
made from the codes of its base (OLoRA, LoftQ over --load_in_4bit) says something else over plain weights."""

import json
import subprocess

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

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
    return (run.returncode == 2 and f"{adapter}: found an adapter whose initial values were made from "
            in text and "(nf4 of the weights as stored, blocks of 64, double)" in text
            and f"not over {what}" in text)


@pytest.mark.parametrize("kind", KINDS)
def test_over_plain_weights_it_is_refused(inputs, trained, tmp_path, kind):
    base, adapter = inputs.model("wide"), trained[kind].folder
    assert refused(strata("merge-adapter", adapter, tmp_path / "merged"), adapter)
    assert refused(answers(base, adapter), adapter)
    assert refused(answers(base, adapter, "--load_in_4bit"), adapter,
                   "nf4 of the weights as stored, blocks of 64")
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


@pytest.mark.parametrize("init,said", [("olora", True), (None, False)])
def test_what_is_made_from_plain_weights_says_so_over_codes(inputs, tmp_path, init, said):
    """A LoRA that starts at zero is trained plain and asked over codes every day."""
    base = inputs.model("wide")
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2,
                                max_steps=1, init_lora_weights=init))
    assert strata("convert", base, tmp_path / "codes", "--to", "bnb-4bit").returncode == 0
    for done in [answers(tmp_path / "codes", run.folder), answers(base, run.folder, "--load_in_4bit"),
                 strata("merge-adapter", run.folder, tmp_path / "merged", "--dequantize", "--base_model",
                        tmp_path / "codes")]:
        assert done.returncode == 0, done.stderr
        assert ("was made from plain weights: over the codes of" in done.stderr) == said, done.stderr
    assert "plain weights" not in answers(base, run.folder).stderr


def mark_of(folder):
    with safe_open(next(folder.glob("*.safetensors")), framework="pt") as file:
        return file.metadata().get("base_fingerprint", "")


def with_mark(source, out, mark):
    """A copy of a folder whose file carries another mark, or none."""
    out.mkdir()
    for file in source.iterdir():
        if file.is_file():
            (out / file.name).write_bytes(file.read_bytes())
    weights = next(out.glob("*.safetensors"))
    save_file(load_file(weights), weights,
              metadata={"format": "pt"} | ({"base_fingerprint": mark} if mark else {}))
    return out


@pytest.fixture(scope="module")
def of_bfloat16(inputs, tmp_path_factory):
    """A run over codes of fp32 weights rounded to bf16, such codes, and those of the weights as they are."""
    folder = tmp_path_factory.mktemp("of-bfloat16")
    for name, words in [("rounded", ["--dtype", "bfloat16"]), ("codes", [])]:
        written = strata("convert", inputs.model("wide"), folder / name, "--to", "bnb-4bit",
                         *LIKE_TRAINING, *words)
        assert written.returncode == 0, written.stderr
    flags = base_flags(
        inputs.model("wide"), inputs.data("messages"), folder / "run", use_peft=True, lora_r=3,
        lora_alpha=6, init_lora_weights="olora", learning_rate=2e-2, max_steps=6, eval_steps=6,
        save_strategy="steps", save_steps=3, bnb_4bit_compute_dtype="float32",
        **EVALUATED | dict(dtype="bfloat16"), **CODES)
    return folder, run_strata(flags), flags


def test_the_type_before_the_codes_belongs_to_the_base(inputs, of_bfloat16, tmp_path):
    base, (folder, run, flags) = inputs.model("wide"), of_bfloat16
    adapter = run.folder
    assert mark_of(adapter) == mark_of(folder / "rounded")
    assert mark_of(adapter).endswith(" as nf4 of the weights in bfloat16, blocks of 64, double")

    def refuses(done, code=2):
        text = done.stderr if isinstance(done.stderr, str) else done.text
        return (done.returncode == code and "(nf4 of the weights in bfloat16, blocks of 64, double)" in text
                and "not over nf4 of the weights as stored, blocks of 64, double" in text
                and "--to bnb-4bit and name OUT, either with --dtype bfloat16" in text)

    merge = ["merge-adapter", adapter, tmp_path / "merged", "--dequantize", "--dtype", "float32"]
    assert refuses(strata(*merge, "--base_model", folder / "codes"))
    assert refuses(answers(folder / "codes", adapter))
    assert refuses(answers(base, adapter, "--load_in_4bit", *LIKE_TRAINING, "--dtype", "float32"))
    again = base_flags(base, inputs.data("messages"), tmp_path / "again", max_steps=1,
                       adapter_name_or_path=adapter, eval_on_start=True, eval_steps=9,
                       bnb_4bit_compute_dtype="float32", **EVALUATED, **CODES)
    assert refuses(run_strata_raw(again))
    resumed = dict(flags, output_dir=tmp_path / "resumed", resume_from_checkpoint=adapter / "checkpoint-3")
    assert refuses(run_strata_raw(dict(resumed, dtype="float32")), code=1)
    # Over the codes it was trained on it is what was trained.
    merged = strata(*merge, "--base_model", folder / "rounded")
    assert merged.returncode == 0 and "note:" not in merged.stderr, merged.stderr
    assert eval_loss(load(tmp_path / "merged"), adapter, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)
    stored = answers(folder / "rounded", adapter, "--dtype", "bfloat16")
    quantised = answers(base, adapter, "--load_in_4bit", *LIKE_TRAINING, "--dtype", "bfloat16")
    assert stored.returncode == quantised.returncode == 0, stored.stderr + quantised.stderr
    assert stored.stdout == quantised.stdout
    went_on = run_strata(dict(again, dtype="bfloat16"))
    first = next(row for row in went_on.history if "eval_loss" in row)
    assert first["eval_loss"] == pytest.approx(measured(run), abs=1e-5)
    assert mark_of(went_on.folder) == mark_of(adapter)
    assert run_strata(resumed).losses == pytest.approx(run.losses, abs=1e-6)


def test_what_nobody_wrote_down_is_said(inputs, of_bfloat16, tmp_path):
    folder, run, _ = of_bfloat16
    said = "nothing says whether those of"
    # A mark without the type, and codes without a mark.
    old = with_mark(run.folder, tmp_path / "old", mark_of(run.folder).replace(
        " of the weights in bfloat16", ""))
    unmarked = with_mark(folder / "rounded", tmp_path / "unmarked", "")
    for adapter, base in [(old, folder / "rounded"), (run.folder, unmarked)]:
        merged = strata("merge-adapter", adapter, tmp_path / adapter.name, "--base_model", base,
                        "--dequantize") if adapter is not old else answers(base, adapter)
        assert merged.returncode == 0 and said in merged.stderr, merged.stderr
    # Other codes are others, whatever their weights.
    other = strata("convert", inputs.model("wide"), tmp_path / "fp4", "--to", "bnb-4bit",
                   "--bnb_4bit_quant_type", "fp4")
    assert other.returncode == 0
    other = strata("merge-adapter", run.folder, tmp_path / "no", "--dequantize", "--base_model",
                   with_mark(tmp_path / "fp4", tmp_path / "unmarked-fp4", ""))
    assert other.returncode == 2 and "not over stored fp4, blocks of 64" in other.stderr


def test_codes_have_a_mark_of_their_own(inputs, of_bfloat16, tmp_path):
    """Codes that another program wrote: what is made from them goes over nothing else."""
    unmarked = with_mark(of_bfloat16[0] / "rounded", tmp_path / "unmarked", "")
    flags = base_flags(unmarked, inputs.data("messages"), tmp_path / "olora", use_peft=True, lora_r=2,
                       init_lora_weights="olora", max_steps=1, bnb_4bit_compute_dtype="float32")
    run = run_strata(flags)
    assert mark_of(run.folder).endswith(" as stored nf4, blocks of 64, double")
    refused = answers(inputs.model("wide"), run.folder, "--load_in_4bit", *LIKE_TRAINING)
    assert refused.returncode == 2 and "trained on a base with the fingerprint" in refused.stderr
    assert answers(unmarked, run.folder).returncode == 0
    # One that starts at zero is of no codes.
    plain = run_strata(dict(flags, init_lora_weights=None, output_dir=tmp_path / "lora"))
    assert mark_of(plain.folder) == ""
    # Over codes of a known base it is of that base.
    known = run_strata(dict(flags, init_lora_weights=None, output_dir=tmp_path / "known",
                            model_name_or_path=of_bfloat16[0] / "rounded"))
    shown = json.loads(strata("inspect", inputs.model("wide"), "--json").stdout)
    assert mark_of(known.folder) == shown["base_fingerprint"]
    # And of no other, whose codes know it too.
    other = tmp_path / "other"
    with_mark(inputs.model("wide"), other, "")
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] += 1
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    assert strata("convert", other, tmp_path / "codes", "--to", "bnb-4bit").returncode == 0
    refused = strata("merge-adapter", known.folder, tmp_path / "no", "--dequantize", "--base_model",
                     tmp_path / "codes")
    assert refused.returncode == 2 and "name the base that it was trained on" in refused.stderr
    assert strata("merge-adapter", known.folder, tmp_path / "yes", "--base_model",
                  inputs.model("wide")).returncode == 0
