"""A sharded checkpoint tells all of the model. Oracle: the folder that the run itself wrote at the same step."""

import base64
import json
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
    "tekken": dict(vocabulary="tekken"),
    "tekken_lora": dict(vocabulary="tekken", use_peft=True, learning_rate=1e-2),
}
# What a run leaves beside its result.
OF_THE_RUN = {"metrics.jsonl", "report.html", "trainer_state.json", "settings.json", "README.md", "latest", "logs.txt"}


def use_tekken(folder):
    """Bytes as Mistral writes a vocabulary, in place of the folder's tokenizer.json."""
    (folder / "tokenizer.json").unlink()
    tokens = [{"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode()} for byte in range(256)]
    (folder / "tekken.json").write_text(json.dumps({"vocab": tokens, "config": {
        "pattern": r"\S+|\s+", "default_vocab_size": 276, "default_num_special_tokens": 20}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 128}))


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
    if settings.pop("vocabulary", "") == "tekken":
        use_tekken(base)
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


def test_a_merged_adapter_has_a_vocabulary_of_any_kind(inputs, tmp_path):
    """The adapter's; where that has settings alone, the base's with those settings."""
    base = tmp_path / "base"
    shutil.copytree(inputs.model("plain"), base)
    use_tekken(base)
    run = run_strata(base_flags(base, inputs.data("messages"), tmp_path / "out", max_steps=1, use_peft=True))
    strata("merge-adapter", run.folder, tmp_path / "merged")
    settings = tmp_path / "settings"
    shutil.copytree(run.folder, settings)
    (settings / "tekken.json").unlink()
    (settings / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    strata("merge-adapter", settings, tmp_path / "with_settings")
    for found, adapter in ((tmp_path / "merged", run.folder), (tmp_path / "with_settings", settings)):
        assert (found / "tekken.json").read_bytes() == (base / "tekken.json").read_bytes()
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            assert (found / name).read_bytes() == (adapter / name).read_bytes()
    # A template among the settings is hidden by no file of the base's.
    (base / "chat_template.jinja").write_text("of the base")
    (settings / "chat_template.jinja").unlink()
    words = json.loads((settings / "tokenizer_config.json").read_text()) | dict(chat_template="of the adapter")
    (settings / "tokenizer_config.json").write_text(json.dumps(words))
    strata("merge-adapter", settings, tmp_path / "with_template")
    assert not (tmp_path / "with_template" / "chat_template.jinja").exists()
    assert json.loads((tmp_path / "with_template" / "tokenizer_config.json").read_text()) == words
    # As a run of the whole model gives them: <s>, </s> and <pad>.
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert [config[kind + "_token_id"] for kind in ("bos", "eos", "pad")] == [1, 2, 11]
