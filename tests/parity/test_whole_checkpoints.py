"""A sharded checkpoint tells all of the model. Oracle: the folder that the run itself wrote at the same step."""

import shutil

import pytest
from safetensors.torch import load_file

import tiny_llama
from running import base_flags, run_strata, strata

RUNS = {
    "plain": {},
    "whole_files": dict(fsdp_state_dict_type="FULL_STATE_DICT"),
    "tied": dict(base="tied"),
    "grown": dict(base="llama2", chat_template_format="chatml"),
    "end_of_turn": dict(base="llama2", chat_template_path="plain"),
    "mixture": dict(base="mixtral", router_aux_loss_coef=0.25),
    "reward": dict(recipe="reward", kind="preference_chat"),
    "reward_lora": dict(recipe="reward", kind="preference_chat", use_peft=True, learning_rate=1e-2),
    "lora": dict(use_peft=True, learning_rate=1e-2),
    "lora_grown": dict(base="llama2", chat_template_format="chatml", use_peft=True, learning_rate=1e-2),
}
# What a run leaves beside its result.
OF_THE_RUN = {"metrics.jsonl", "report.html", "trainer_state.json", "latest", "logs.txt"}


def files_of(folder):
    """{name: content} of what loaders read; of weights the tensors."""
    files = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() or name.startswith("checkpoint-") or name in OF_THE_RUN:
            continue
        files[name] = {n: t.tolist() for n, t in load_file(path).items()} if path.suffix == ".safetensors" else path.read_text()
    return files


@pytest.mark.parametrize("name", RUNS)
def test_a_converted_checkpoint_is_the_result_without_the_base(inputs, tmp_path, name):
    settings = dict(RUNS[name])
    base = tmp_path / "base"
    shutil.copytree(inputs.model(settings.pop("base", "plain")), base)
    recipe, data = settings.pop("recipe", "sft"), inputs.data(settings.pop("kind", "messages"))
    if "chat_template_path" in settings:
        settings["chat_template_path"] = inputs.model(settings["chat_template_path"])
    run = run_strata(base_flags(base, data, tmp_path / "out", max_steps=2, save_strategy="steps", save_steps=2, **settings),
                     world=2, recipe=recipe)
    if not settings.get("use_peft"):
        shutil.rmtree(base)
    strata("convert", run.folder / "checkpoint-2", tmp_path / "converted", "--to", "safetensors", "--weights_only")
    found, expected = files_of(tmp_path / "converted"), files_of(run.folder)
    assert found.keys() == expected.keys()
    assert {n for n in found if found[n] != expected[n]} == set()
