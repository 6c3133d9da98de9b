# Oracle: the same model in a folder of this machine; the log of a local server that speaks the Hub's HTTP API.
import pytest

from hub_server import COMMIT, environment_of, fetched, strata
from running import PROGRAM, flag_words
from terminal import Terminal


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


def test_progress_on_a_terminal(model_hub, tmp_path):
    environment = environment_of(model_hub, tmp_path, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="0")
    terminal = Terminal([str(PROGRAM), "tokenize", "--model", "org/model"], columns=50, **environment)
    terminal.read_until("downloading tokenizer_config.json: ")
    terminal.send("\x04")
    assert terminal.end() == 0, terminal.text
    size = len(model_hub.model["tokenizer.json"])
    assert f"downloading tokenizer.json: {size / 1e6:.1f} of {size / 1e6:.1f} MB (100 %)" in terminal.text.replace("\r\n", "\n")
