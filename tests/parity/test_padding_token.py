"""Oracle: what TRL's trainers save of a model whose tokenizer has no token of padding."""
import json
import shutil

import pytest

import trl_reference
from running import base_flags, run_strata

KINDS = {"SFT": "messages", "DPO": "preference", "KTO": "rated", "Reward": "preference"}


@pytest.fixture(scope="module")
def unpadded(inputs, tmp_path_factory):
    folder = shutil.copytree(inputs.model("plain"), tmp_path_factory.mktemp("unpadded") / "model")
    for file, key in (("tokenizer_config.json", "pad_token"), ("config.json", "pad_token_id"), ("generation_config.json", "pad_token_id")):
        settings = json.loads((folder / file).read_text())
        settings.pop(key)
        (folder / file).write_text(json.dumps(settings))
    return folder


def saved_by_trl(name, flags, folder):
    datasets, _, _, transformers, _ = trl_reference.stack()
    args = trl_reference.trl_class(name + "Config")(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, report_to="none", save_strategy="no", disable_tqdm=True, max_steps=1)
    trainer = trl_reference.trl_class(name + "Trainer")(
        model=str(flags["model_name_or_path"]), args=args,
        train_dataset=trl_reference.load_rows(datasets, flags["dataset_name"] / "train.jsonl", str(folder)))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.save_model()
    return folder / "out"


def tokens_in(folder):
    found = {}
    for file in ("tokenizer_config.json", "config.json", "generation_config.json"):
        settings = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        found.update({f"{file}: {key}": settings[key] for key in ("pad_token", "pad_token_id", "eos_token", "eos_token_id") if key in settings})
    return found


@pytest.mark.parametrize("name", KINDS)
def test_a_result_names_its_padding(inputs, unpadded, tmp_path, name):
    flags = base_flags(unpadded, inputs.data(KINDS[name]), tmp_path / "out", max_steps=1)
    run = run_strata(flags, recipe=name.lower())
    expected = tokens_in(saved_by_trl(name, flags, tmp_path / "trl"))
    assert expected["tokenizer_config.json: pad_token"] == "<|im_end|>" and expected["config.json: pad_token_id"] == 2
    assert {key: text for key, text in tokens_in(run.folder).items() if key in expected} == expected


def test_a_token_without_a_row_is_not_named(inputs, unpadded, tmp_path):
    """The result loads in transformers, which checks that the model has a row for it."""
    _, _, _, transformers, _ = trl_reference.stack()
    folder = shutil.copytree(unpadded, tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<nowhere>"}))
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1))
    assert "pad_token" not in json.loads((run.folder / "tokenizer_config.json").read_text())
    transformers.AutoModelForCausalLM.from_pretrained(run.folder)


def test_an_adapter_names_its_padding(inputs, unpadded, tmp_path):
    """As its tokenizer is saved beside it; a token that was asked for goes before."""
    flags = base_flags(unpadded, inputs.data("messages"), tmp_path / "out", max_steps=1, use_peft=True)
    assert tokens_in(run_strata(flags).folder)["tokenizer_config.json: pad_token"] == "<|im_end|>"
    # CPO's trainer wants it set before, as TRL's script does.
    pairs = {**flags, "dataset_name": inputs.data("preference"), "output_dir": tmp_path / "cpo"}
    assert tokens_in(run_strata(pairs, recipe="cpo").folder)["tokenizer_config.json: pad_token"] == "<|im_end|>"
    run = run_strata({**flags, "pad_token": "<pad>", "output_dir": tmp_path / "asked"})
    assert tokens_in(run.folder)["tokenizer_config.json: pad_token"] == "<pad>" and "pad_token" not in run.text
