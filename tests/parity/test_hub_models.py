# Oracle: the same model in a folder of this machine; the log of a local server that speaks the Hub's HTTP API.
import json

import pytest

from hub_server import COMMIT, TAGGED, environment_of, fetched, strata
from running import PROGRAM, flag_words
from terminal import Terminal
from tiny_t5 import save_t5


def test_a_plan_needs_the_configuration_alone(model_hub, tmp_path):
    """Nothing of it passes for the model later."""
    for _ in range(2):
        plan = strata(model_hub, tmp_path, "plan", "--model_name_or_path", "org/model")
        assert "36000 parameters" in plan.stdout and fetched(model_hub) == ["config.json"]
    local = strata(model_hub, tmp_path, "tokenize", "--model", "org/model")
    assert "tokenizer.json" in fetched(model_hub) and "downloading tokenizer.json: " in local.stderr
    assert not any(name.endswith((".safetensors", ".bin")) for name in fetched(model_hub)), "needs no weights"
    chat = strata(model_hub, tmp_path, "chat", "--prompt", "hi", "--max_new_tokens", 1, "--model_name_or_path", "org/model")
    assert "downloading model.safetensors: " in chat.stderr and "pytorch_model.bin" not in fetched(model_hub)
    assert fetched(model_hub).count("tokenizer.json") == 1


def test_a_plan_of_answers_needs_what_bounds_them(hub, tmp_path):
    """Answers of 900 tokens, as generation_config.json bounds them, are planned of a model that is not here yet."""
    folder = save_t5(tmp_path / "model")
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_new_tokens": 900}))
    hub.model = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    words = ["plan", "seq2seq", "--predict_with_generate", "true", "--eval_strategy", "epoch", "--per_device_eval_batch_size", 64]

    def planned(model, home):
        plan = strata(hub, tmp_path / home, *words, "--model_name_or_path", model).stdout
        return [line for line in plan.splitlines() if line.startswith(("parameters", "activations"))]

    expected = planned(folder, "home")
    for _ in range(2):
        assert planned("org/model", "home") == expected
        assert fetched(hub) == ["config.json", "generation_config.json"]
    del hub.model["generation_config.json"]
    assert planned("org/model", "other") != expected


@pytest.mark.parametrize("how", ["cache_dir", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"])
def test_chat_with_a_model_by_its_name(how, model_hub, inputs, tmp_path):
    words = ["chat", "--prompt", "hello", "--max_new_tokens", 5, "--model_name_or_path"]
    expected = strata(model_hub, tmp_path / "home", *words, inputs.model("plain")).stdout
    cache = {"HF_HOME": tmp_path / "home" / "hub"}.get(how, tmp_path / "cache")
    flags = ["--cache_dir", cache] if how == "cache_dir" else []
    environment = {how: str(cache)} if how.startswith("H") and how != "HF_HOME" else {}
    result = strata(model_hub, tmp_path / "home", *words, "org/model", *flags, **environment)
    assert result.stdout == expected and "downloading model.safetensors: " in result.stderr
    snapshot = cache / "models--org--model" / "snapshots" / COMMIT
    assert {p.name for p in snapshot.iterdir()} == set(model_hub.model) - {"pytorch_model.bin"}
    before = len(model_hub.log)
    again = strata(model_hub, tmp_path / "home", *words, "org/model", *flags, **environment)
    assert again.stdout == expected and "downloading" not in again.stderr and len(model_hub.log) == before


def test_training_on_names_of_the_hub(model_hub, tmp_path):
    flags = {"model_name_or_path": "org/model", "dataset_name": "org/set", "output_dir": tmp_path / "out", "bf16": False,
             "max_length": 64, "max_steps": 2, "per_device_train_batch_size": 2, "save_strategy": "no", "disable_tqdm": True}
    strata(model_hub, tmp_path / "home", "launch", "--num_processes", 2, "--cpu", "sft", *flag_words(flags))
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert sorted(set(fetched(model_hub))) == fetched(model_hub), "one rank downloads, the other waits"


@pytest.fixture
def tagged_hub(model_hub, inputs):
    """The same with another model under the tag v1.0."""
    model_hub.tagged = {p.name: p.read_bytes() for p in inputs.model("odd").iterdir() if p.is_file()}
    return model_hub


TUNED = {"dataset_name": "org/set", "bf16": False, "max_length": 64, "max_steps": 2, "per_device_train_batch_size": 2,
         "save_strategy": "no", "disable_tqdm": True, "use_peft": True, "lora_r": 4}


def test_training_on_a_revision(tagged_hub, inputs, tmp_path):
    """Oracle: the run over that model's folder. The adapter names the revision, which chat then reads."""
    def tune(out, *words, **flags):
        return strata(tagged_hub, tmp_path / "home", *words, "sft", *flag_words({**TUNED, "output_dir": out, **flags}))

    local, out = tmp_path / "local", tmp_path / "out"
    tune(local, model_name_or_path=inputs.model("odd"))
    tune(out, "launch", "--num_processes", 1, "--cpu", model_name_or_path="org/model", model_revision="v1.0")
    assert (out / "adapter_model.safetensors").read_bytes() == (local / "adapter_model.safetensors").read_bytes()
    asked = [path for _, path, *_ in tagged_hub.log if "/org/model/" in path]
    assert any(f"/resolve/{TAGGED}/model.safetensors" in path for path in asked)
    assert not any(f"/{COMMIT}/" in path or path.endswith("/main") for path in asked)
    assert json.loads((out / "adapter_config.json").read_text())["revision"] == "v1.0"
    assert json.loads((local / "adapter_config.json").read_text())["revision"] is None
    words = ["chat", "--prompt", "row", "--max_new_tokens", 5]
    answer = strata(tagged_hub, tmp_path / "home", *words, "--model_name_or_path", out, HF_HUB_OFFLINE="1")
    assert answer.stdout == strata(tagged_hub, tmp_path / "home", *words, "--model_name_or_path", local).stdout


@pytest.mark.parametrize("flags,code,message", [
    (["--model_name_or_path", "org/model", "--model_revision", "v9"], 1, "got no model of that name and revision v9 from the Hub"),
    (["--model_name_or_path", "FOLDER", "--model_revision", "v1.0"], 2, "expected the name of a model on the Hub; remove it"),
    (["--model_name_or_path", "org/model", "--model_revision", "../x"], 2, 'found "../x" for org/model, expected a branch, tag or commit'),
])
def test_a_revision_that_is_none(flags, code, message, tagged_hub, inputs, tmp_path):
    words = [inputs.model("plain") if word == "FOLDER" else word for word in flags]
    for command in (["plan"], ["sft", "--dataset_name", "org/set", "--output_dir", tmp_path / "out"]):
        assert message in strata(tagged_hub, tmp_path / "home", *command, *words, code=code).stderr


def test_progress_on_a_terminal(model_hub, tmp_path):
    environment = environment_of(model_hub, tmp_path, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="0")
    terminal = Terminal([str(PROGRAM), "tokenize", "--model", "org/model"], columns=50, **environment)
    terminal.read_until("downloading tokenizer_config.json: ")
    terminal.send("\x04")
    assert terminal.end() == 0, terminal.text
    size = len(model_hub.model["tokenizer.json"])
    assert f"downloading tokenizer.json: {size / 1e6:.1f} of {size / 1e6:.1f} MB (100 %)" in terminal.text.replace("\r\n", "\n")


def test_a_base_out_of_reach_may_be_named(model_hub, inputs, tmp_path):
    """An adapter of a base that the Hub has not: a folder of it is asked for, by the flag that takes it."""
    local = tmp_path / "local"
    strata(model_hub, tmp_path / "home", "sft", *flag_words({**TUNED, "output_dir": local, "model_name_or_path": inputs.model("plain")}))
    config = json.loads((local / "adapter_config.json").read_text())
    (local / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/nothing"}))
    for name in ("settings.json", "README.md"):
        (local / name).unlink()
    for words in (["merge-adapter", local, tmp_path / "out"], ["convert", local, tmp_path / "a.gguf", "--to", "gguf"]):
        said = strata(model_hub, tmp_path / "home", *words, code=1).stderr
        assert "org/nothing: found no such folder" in said and f"name the folder of the base of {local} with --base_model" in said
        strata(model_hub, tmp_path / "home", *words, "--base_model", inputs.model("plain"))
    said = strata(model_hub, tmp_path / "home", "chat", "--prompt", "hi", "--model_name_or_path", local, code=1).stderr
    assert f"the folder of the base with --model_name_or_path and {local} with --adapter_name_or_path" in said
