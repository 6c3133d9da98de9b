"""Oracle: the run's own evaluation, and transformers. Which layers of a base are codes belongs to an adapter that was
made from them, and what config.json says of codes and types is read alike by every command."""

import json

import pytest
from safetensors.torch import load_file, save_file

from running import base_flags, run_strata, run_strata_raw
from test_adapters_of_codes import CODES, EVALUATED, LIKE_TRAINING, answers, mark_of, strata, with_mark
from test_export import eval_loss, load, measured

# Default layers, and up_proj plain: it is one of the two that the adapter changes.
SKIPS = {"all": None, "some": ["up_proj", "lm_head"]}
WITHOUT = "nf4 of the weights as stored, blocks of 64, double, without up_proj, lm_head"


@pytest.fixture(scope="module")
def of_layers(inputs, tmp_path_factory):
    """By the layers that are codes: a run, its flags and a folder of such codes."""
    folder = tmp_path_factory.mktemp("of-layers")
    result = {}
    for name, skip in SKIPS.items():
        words = ["--llm_int8_skip_modules", ",".join(skip)] if skip else []
        written = strata("convert", inputs.model("wide"), folder / f"codes-{name}", "--to", "bnb-4bit",
                         *LIKE_TRAINING, *words)
        assert written.returncode == 0, written.stderr
        flags = base_flags(
            inputs.model("wide"), inputs.data("messages"), folder / name, use_peft=True, lora_r=3,
            lora_alpha=6, lora_target_modules=["q_proj", "up_proj"], init_lora_weights="olora",
            learning_rate=2e-2, max_steps=6, eval_steps=6, save_strategy="steps", save_steps=3,
            llm_int8_skip_modules=skip, **EVALUATED, **CODES)
        result[name] = (run_strata(flags), flags, folder / f"codes-{name}")
    return result


def mixes_layers(done, name, code=2, stored=False):
    """Whether the adapter of `name` is refused over the other's layers, with the flag to put it right."""
    text = done.stderr if isinstance(done.stderr, str) else done.text
    default = WITHOUT.partition(", without")[0]
    wanted, found = (WITHOUT, default) if name == "some" else (default, WITHOUT)
    if stored:
        found = found.replace("nf4 of the weights as stored", "stored nf4")
    flag = " --llm_int8_skip_modules up_proj,lm_head" if name == "some" else ", without --llm_int8_skip_modules"
    return (done.returncode == code and f"({wanted}), expected it over those and not over {found};" in text
            and f"either with --dtype float32{flag}" in text)


def skip_words(name):
    return ["--llm_int8_skip_modules", *SKIPS[name]] if SKIPS[name] else []


BOTH = pytest.mark.parametrize("name,other", [("all", "some"), ("some", "all")])


def test_the_mark_names_the_layers_that_are_no_codes(of_layers, tmp_path):
    (_, flags, codes), (run, _, skipped) = of_layers["all"], of_layers["some"]
    assert mark_of(run.folder).endswith(" as " + WITHOUT) and mark_of(run.folder) == mark_of(skipped)
    assert "without" not in mark_of(codes)
    # The output layer named is the default; without it, it is codes too.
    for skip, said in [(["lm_head"], ""), (["q_proj"], ", without q_proj"),
                       (["model.embed_tokens"], ", without exception"),
                       (["lm_head", "model.layers.1.mlp"],
                        ", without " + ", ".join(f"model.layers.1.mlp.{n}_proj" for n in ("gate", "up", "down"))
                        + ", lm_head")]:
        one = run_strata(dict(flags, llm_int8_skip_modules=skip, max_steps=1, eval_strategy="no",
                              output_dir=tmp_path / skip[-1]))
        assert mark_of(one.folder) == mark_of(codes) + said


@BOTH
def test_merging_over_other_layers_is_refused(of_layers, inputs, tmp_path, name, other):
    run, codes = of_layers[name][0], of_layers[name][2]
    merge = ["merge-adapter", run.folder, tmp_path / "merged", "--dequantize", "--dtype", "float32", "--base_model"]
    assert mixes_layers(strata(*merge, of_layers[other][2]), name)
    # Codes whose writer left no mark: their config.json tells.
    unmarked = with_mark(of_layers[other][2], tmp_path / "other", "")
    assert mixes_layers(strata(*merge, unmarked), name, stored=True)
    assert not (tmp_path / "merged").exists()
    merged = strata(*merge, codes)
    assert merged.returncode == 0 and "note:" not in merged.stderr, merged.stderr
    assert eval_loss(load(tmp_path / "merged"), run.folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)
    merge[2] = tmp_path / "again"
    merged = strata(*merge, with_mark(codes, tmp_path / "own", ""))
    assert merged.returncode == 0 and "nothing says whether those of" in merged.stderr, merged.stderr


@BOTH
def test_answers_over_other_layers_are_refused(of_layers, inputs, name, other):
    base, (run, _, codes) = inputs.model("wide"), of_layers[name]
    in_4bit = ["--load_in_4bit", *LIKE_TRAINING]
    assert mixes_layers(answers(of_layers[other][2], run.folder), name)
    assert mixes_layers(answers(base, run.folder, *in_4bit, *skip_words(other)), name)
    stored, quantised = answers(codes, run.folder), answers(base, run.folder, *in_4bit, *skip_words(name))
    assert stored.returncode == quantised.returncode == 0, stored.stderr + quantised.stderr
    assert stored.stdout == quantised.stdout


@BOTH
def test_training_on_over_other_layers_is_refused(of_layers, inputs, tmp_path, name, other):
    run, flags, codes = of_layers[name]
    on = dict(flags, adapter_name_or_path=run.folder, output_dir=tmp_path / "on", max_steps=1, eval_on_start=True,
              eval_steps=9, save_strategy="no", **dict.fromkeys(
                  ["use_peft", "lora_r", "lora_alpha", "lora_target_modules", "init_lora_weights"]))
    assert mixes_layers(run_strata_raw(dict(on, llm_int8_skip_modules=SKIPS[other])), name)
    over_codes = dict(on, **dict.fromkeys([*CODES, "llm_int8_skip_modules"]))
    assert mixes_layers(run_strata_raw(dict(over_codes, model_name_or_path=of_layers[other][2])), name)
    for more in [on, dict(over_codes, model_name_or_path=codes)]:
        went_on = run_strata(more)
        first = next(row for row in went_on.history if "eval_loss" in row)
        assert first["eval_loss"] == pytest.approx(measured(run), abs=1e-5)
        assert mark_of(went_on.folder) == mark_of(run.folder)


@BOTH
def test_resuming_over_other_layers_is_refused(of_layers, tmp_path, name, other):
    run, flags, _ = of_layers[name]
    resumed = dict(flags, output_dir=tmp_path / "resumed", resume_from_checkpoint=run.folder / "checkpoint-3")
    assert mixes_layers(run_strata_raw(dict(resumed, llm_int8_skip_modules=SKIPS[other])), name, code=1)
    again = run_strata(resumed)
    assert again.losses == pytest.approx(run.losses, abs=1e-6)
    assert measured(again) == pytest.approx(measured(run), abs=1e-6)


def with_config(source, out, **changes):
    """A copy of a folder whose config.json says something else; None takes a key out."""
    with_mark(source, out, mark_of(source))
    config = json.loads((out / "config.json").read_text()) | changes
    (out / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return out


def test_null_is_no_quantisation(inputs, tmp_path):
    base = with_config(inputs.model("wide"), tmp_path / "null")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(dict(config, quantization_config=None)))
    shown = [json.loads(strata("inspect", folder, "--json").stdout)["base_fingerprint"]
             for folder in (base, inputs.model("wide"))]
    assert shown[0] == shown[1]
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2,
                                max_steps=2, eval_steps=2, **EVALUATED))
    merged = strata("merge-adapter", run.folder, tmp_path / "merged")
    assert merged.returncode == 0, merged.stderr
    assert eval_loss(load(tmp_path / "merged"), run.folder, inputs.data("messages")) == pytest.approx(
        measured(run), abs=1e-5)
    assert strata("convert", base, tmp_path / "codes", "--to", "bnb-4bit").returncode == 0


@pytest.mark.parametrize("skip", [[1], "lm_head"])
def test_skipped_modules_must_be_names(inputs, of_layers, tmp_path, skip):
    """As BitsAndBytesConfig, which raises a TypeError; what lies there may be looked at."""
    run, _, codes = of_layers["all"]
    quantization = json.loads((codes / "config.json").read_text())["quantization_config"]
    broken = with_config(with_mark(codes, tmp_path / "unmarked", ""), tmp_path / "broken",
                         quantization_config=dict(quantization, llm_int8_skip_modules=skip))
    said = (f"config.json: llm_int8_skip_modules: found {json.dumps(skip)}, expected a list of names of modules")
    for done in [answers(broken, run.folder),
                 strata("merge-adapter", run.folder, tmp_path / "no", "--dequantize", "--base_model", broken)]:
        assert done.returncode == 2 and said in done.stderr, done.stderr
    shown = strata("inspect", broken)
    assert shown.returncode == 0 and "as stored codes" in shown.stdout, shown.stdout + shown.stderr


@pytest.mark.parametrize("value", ["nf4", [], 4, False])
def test_a_quantization_config_is_an_object_or_null(inputs, tmp_path, value):
    """As transformers, which takes null for plain weights and fails on the others."""
    base = with_config(inputs.model("wide"), tmp_path / "base", quantization_config=value)
    flags = base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2, max_steps=1)
    said = f"config.json: quantization_config: found {json.dumps(value)}, expected an object, or null"
    run = run_strata_raw(flags)
    assert run.returncode == 2 and said in run.text, run.text
    done = strata("convert", base, tmp_path / "codes", "--to", "bnb-4bit")
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert not (tmp_path / "codes").exists()


@pytest.mark.parametrize("key,value,expected", [
    ("load_in_4bit", "yes", "true, false or null"), ("bnb_4bit_use_double_quant", 1, "true, false or null"),
    ("bnb_4bit_quant_type", "int8", "nf4 or fp4"), ("bnb_4bit_quant_type", 4, "a name in quotes, or null"),
    ("bnb_4bit_compute_dtype", "half", "float32, bfloat16 or float16"),
    ("bnb_4bit_blocksize", "64", "a whole number, or null"), ("bnb_4bit_blocksize", 48, "a power of two")])
def test_values_of_a_quantization_config_are_checked(inputs, of_layers, tmp_path, key, value, expected):
    """As BitsAndBytesConfig.post_init, which raises TypeErrors; here before anything is read."""
    codes = of_layers["all"][2]
    quantization = json.loads((codes / "config.json").read_text())["quantization_config"]
    base = with_config(codes, tmp_path / "base", quantization_config=dict(quantization, **{key: value}))
    run = run_strata_raw(base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2,
                                    max_steps=1))
    assert run.returncode == 2, run.text
    assert f"config.json: {key}: found {json.dumps(value)}, expected {expected}" in run.text.replace("\n", " "), run.text


@pytest.mark.parametrize("named", ["torch.bfloat16", None])
def test_training_and_answers_take_one_type_from_a_model(inputs, tmp_path, named):
    """Oracle: the dtype that transformers takes. Written as torch does, or nowhere: then that of the first weight."""
    from transformers import AutoModelForCausalLM

    base = with_config(inputs.model("wide"), tmp_path / "base", dtype=named, torch_dtype=None)
    if named is None:
        tensors = load_file(base / "model.safetensors")
        tensors["lm_head.weight"] = tensors["lm_head.weight"].bfloat16()
        save_file(tensors, base / "model.safetensors", {"format": "pt"})
        assert str(AutoModelForCausalLM.from_pretrained(base, dtype="auto").dtype) == "torch.bfloat16"
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "run", use_peft=True, lora_r=2,
                                init_lora_weights="olora", max_steps=1, dtype="auto",
                                bnb_4bit_compute_dtype="float32", **CODES), 2)
    assert mark_of(run.folder).endswith(" as nf4 of the weights in bfloat16, blocks of 64, double")
    done = answers(base, run.folder, "--load_in_4bit", *LIKE_TRAINING)
    assert done.returncode == 0 and "note" not in done.stderr, done.stderr
