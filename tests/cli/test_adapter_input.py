# Oracle: wrong adapters and settings of adapters end before training with a message that names
# them, and leave nothing behind.
import json
import shutil
import subprocess

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from running import PROGRAM, base_flags, environment, flag_words, run_strata_raw

LORA = dict(use_peft=True, lora_r=2)


def save_adapter(folder, model, config):
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def adapters(inputs, tmp_path_factory):
    """A folder with an adapter of the model "plain" and broken copies of it."""
    root = tmp_path_factory.mktemp("adapters")
    lora = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"])
    save_adapter(root / "good", inputs.model("plain"), lora)
    save_adapter(root / "wide", inputs.model("wide"), lora)
    save_adapter(root / "biased", inputs.model("plain"), LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], lora_bias=True))
    save_adapter(root / "projected", inputs.model("plain"), PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2, prefix_projection=True))
    save_adapter(root / "prefix", inputs.model("wide"), PrefixTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=2))
    for name in ("nan", "renamed", "missing"):
        shutil.copytree(root / "good", root / name)
        file = root / name / "adapter_model.safetensors"
        tensors = load_file(file)
        first = sorted(tensors)[0]
        if name == "nan":
            tensors[first][0, 0] = float("nan")
        else:
            values = tensors.pop(first)
            if name == "renamed":
                tensors[first.replace("q_proj", "query")] = values
        save_file(tensors, file)
    shutil.copytree(root / "good", root / "torch")  # as PEFT before 0.6 and safe_serialization=False
    torch.save(load_file(root / "torch" / "adapter_model.safetensors"),
               root / "torch" / "adapter_model.bin")
    (root / "torch" / "adapter_model.safetensors").unlink()
    shutil.copytree(root / "good", root / "other_method")
    config = json.loads((root / "good" / "adapter_config.json").read_text())
    (root / "other_method" / "adapter_config.json").write_text(
        json.dumps(dict(config, peft_type="LOHA")))
    return root


TRAINING = [
    (dict(LORA, lora_target_modules=["query", "key"]),
     "found no module matching [query, key], expected some of down_proj, gate_proj, k_proj"),
    (dict(LORA, load_in_4bit=True, load_in_8bit=True), "load_in_4bit: found with --load_in_8bit"),
    (dict(LORA, lora_r=33), "lora_r: found 33 for \"model.layers.0.self_attn.q_proj\" [32, 32], "
                            "expected at most 32"),
    (dict(LORA, init_lora_weights="loftq", load_in_8bit=True), "found loftq over the quantised"),
    (dict(LORA, init_lora_weights="loftq", load_in_4bit=True, loftq_iter=2),
     "loftq_iter: found 2 over the quantised"),
    (dict(LORA, init_lora_weights="loftq", loftq_bits=5), "loftq_bits: found 5, expected 4 or 8"),
    (dict(use_peft=True, peft_type="PROMPT_TUNING"), "num_virtual_tokens: found nothing"),
    (dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=2,
          prompt_tuning_init="TEXT"), "prompt_tuning_init_text: found nothing"),
    (dict(use_peft=True, peft_type="LOHA"), "peft_type"),
    (dict(LORA, load_in_4bit=True, bnb_4bit_quant_storage="int3"),
     "--bnb_4bit_quant_storage: found \"int3\", expected"),
    # Eight tensors, of which five are shown.
    (dict(adapter_name_or_path="wide"), "adapter and base config imply [2, 32], and 3 more"),
    (dict(adapter_name_or_path="prefix"), "tensor \"prompt_embeddings\" has shape"),
    (dict(adapter_name_or_path="renamed"), "found no tensor \"base_model.model.model.layers.0"),
    (dict(adapter_name_or_path="missing"), "found no tensor \"base_model.model.model.layers.0"),
    (dict(adapter_name_or_path="nan"), "holds NaN or infinity"),
    (dict(adapter_name_or_path="projected"), "found prefix_projection true"),
    (dict(adapter_name_or_path="other_method"), "peft_type: found \"LOHA\", expected LORA, IA3"),
]


@pytest.mark.parametrize("flags,message", TRAINING)
def test_before_training(inputs, adapters, tmp_path, flags, message):
    flags = dict(flags)
    if "adapter_name_or_path" in flags:
        flags["adapter_name_or_path"] = adapters / flags["adapter_name_or_path"]
    run = run_strata_raw(base_flags(inputs.model("plain"), inputs.data("messages"),
                                    tmp_path / "out", **flags), world=2)
    assert run.returncode != 0
    assert message in run.text
    assert not list((tmp_path / "out").glob("adapter_*"))


# PEFT trains without what a misspelt name among right ones means.
MEANINGLESS = [
    (dict(LORA, lora_target_modules=["q_proj", "v_porj"]),
     "lora_target_modules: found \"v_porj\", which matches none of this model's modules"),
    (dict(LORA, exclude_modules=["q_porj"]), "some of down_proj, embed_tokens, gate_proj"),
    (dict(LORA, exclude_modules=[".*q_porj"]), "exclude_modules: found \".*q_porj\""),
    (dict(LORA, rank_pattern='{"k_proj": 4}'), "expected some of q_proj, v_proj; did you mean q_proj?"),
    (dict(LORA, alpha_pattern='{"layers.7.self_attn.q_proj": 4}'), "found \"layers.7.self_attn.q_proj\""),
    (dict(LORA, layers_to_transform=[0, 7]), "found 7, expected numbers of this model's layers, 0 to 1"),
    (dict(LORA, layers_to_transform=[0], layers_pattern="layrs"), "layers_pattern: found \"layrs\""),
    (dict(use_peft=True, peft_type="IA3", feedforward_modules=["down_porj"]), "did you mean down_proj?"),
    (dict(LORA, load_in_4bit=True, llm_int8_skip_modules=["lm_haed"]), "skip_modules: found \"lm_haed\""),
]


@pytest.mark.parametrize("flags,message", MEANINGLESS)
def test_a_name_that_means_nothing(inputs, flags, message):
    run = subprocess.run([PROGRAM, "plan", "--model_name_or_path", inputs.model("plain"), "--cpu",
                          *flag_words(flags)], capture_output=True, text=True, timeout=60, env=environment())
    assert run.returncode == 2 and message in run.stderr, run.stdout + run.stderr


def test_a_paged_optimizer_says_where_its_state_is(inputs, tmp_path):
    for optim, says in (("paged_adamw_8bit", True), ("adamw_8bit", False)):
        run = run_strata_raw(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / optim,
                                        max_steps=1, optim=optim, **LORA))
        assert run.returncode == 0
        assert (f"{optim}: nothing is paged, the state is sharded and stays where" in run.text) == says


def test_an_adapter_that_torch_saved(inputs, adapters, tmp_path):
    """Merged as it is, and converted into one that every command takes."""
    def strata(*words):
        done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=60,
                              env=environment())
        assert done.returncode == 0, done.stderr

    for name in ("good", "torch"):
        strata("merge-adapter", adapters / name, tmp_path / name, "--base_model", inputs.model("plain"))
    merged = [load_file(tmp_path / name / "model.safetensors") for name in ("good", "torch")]
    assert all(torch.equal(merged[0][n], t) for n, t in merged[1].items())
    strata("convert", adapters / "torch", tmp_path / "out", "--to", "safetensors")
    configs, tensors = zip(*[(json.loads((folder / "adapter_config.json").read_text()),
                              load_file(folder / "adapter_model.safetensors"))
                             for folder in (adapters / "good", tmp_path / "out")])
    assert configs[0] == configs[1]
    assert all(torch.equal(tensors[0][n], t) for n, t in tensors[1].items())


# The words that leave none of (IA)^3's targets rescaled at its input, as PEFT's [] does.
@pytest.mark.parametrize("words", [["[]"], ["none"], None])
def test_no_feedforward_modules(inputs, tmp_path, words):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", use_peft=True,
                       peft_type="IA3", max_steps=1, feedforward_modules=words)
    if words is None:  # in a file of settings
        (tmp_path / "run.yaml").write_text("feedforward_modules: []\n")
        flags["config"] = tmp_path / "run.yaml"
    run = run_strata_raw(flags)
    assert run.returncode == 0, run.text
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["feedforward_modules"] == []
    tensors = load_file(tmp_path / "out" / "adapter_model.safetensors")
    shapes = {n.split(".")[-2]: tuple(t.shape) for n, t in tensors.items()}
    assert shapes == {"k_proj": (16, 1), "v_proj": (16, 1), "down_proj": (32, 1)}


def chat(*words, stdin=""):
    return subprocess.run([PROGRAM, "chat", "--max_new_tokens", "4", *map(str, words)], input=stdin,
                          capture_output=True, text=True, timeout=60, env=environment())


@pytest.mark.parametrize("words,message", [
    (["--adapter", "a=A/good", "--adapter", "a=A/good"], "found \"a\" twice as the name"),
    (["--adapter", "off=A/good"], "found \"off\" as the name"),
    (["--adapter", "=A/good"], "--adapter: found \"=A/good\", expected NAME=FOLDER"),
    (["--adapter", "a=A/nothing"], "adapter: found nothing at A/nothing"),
    (["--adapter", "a=A/good", "--adapter", "b=A/wide"], "adapter and base config imply [2, 32]"),
    (["--adapter", "a=A/nan"], "holds NaN or infinity"),
    (["--adapter", "a=A/torch"], "strata convert A/torch OUT --to safetensors"),
    (["--load_in_4bit", "--load_in_8bit"], "--load_in_4bit: found with --load_in_8bit"),
    (["--load_in_8bit", "--bnb_4bit_quant_type", "fp4"], "found without --load_in_4bit"),
    (["--load_in_4bit", "--bnb_4bit_blocksize", "48"], "found 48, expected a power of two"),
    (["--load_in_4bit", "--llm_int8_skip_modules", "lm_haed"], "found \"lm_haed\""),
    (["--adapter", "a=A/good", "--prompt", "/adapter b"], "found no \"b\" loaded, expected one of a"),
    (["--adapter", "a=A/good", "--prompt", "/unmerge"], "unmerge: found no merged adapter in use"),
    (["--adapter", "a=B/prefix", "--prompt", "/merge"], "found rows before the prompt"),
    (["--adapter", "a=A/biased", "--prompt", "/merge"], "which has none to merge it into"),
])
def test_before_an_answer(inputs, adapters, words, message):
    words = [w.replace("A/", f"{adapters}/") for w in words]
    if "--prompt" not in words:
        words += ["--prompt", "a"]
    model = "wide" if any("B/" in w for w in words) else "plain"
    words = [w.replace("B/", f"{adapters}/") for w in words]
    run = chat("--model_name_or_path", inputs.model(model), *words)
    assert run.returncode != 0 and run.stdout == ""
    assert message.replace("A/", f"{adapters}/") in run.stderr


@pytest.fixture(scope="module")
def trained(adapters):
    """An adapter that changes answers."""
    folder = adapters / "trained"
    shutil.copytree(adapters / "good", folder)
    file = folder / "adapter_model.safetensors"
    torch.manual_seed(0)
    save_file({n: torch.randn_like(t) for n, t in load_file(file).items()}, file)
    return folder


def test_adapters_are_listed_and_switched(inputs, adapters, trained):
    """The answers of each alone, in one conversation each."""
    model = inputs.model("plain")
    alone = {"": chat("--model_name_or_path", model, "--prompt", "the cat").stdout,
             "t": chat("--model_name_or_path", model, "--adapter_name_or_path", trained, "--prompt",
                       "the cat").stdout}
    assert alone[""] != alone["t"]
    words = ["--adapter", f"g={adapters / 'good'}", "--adapter", f"t={trained}"]
    run = chat("--model_name_or_path", model, *words,
               stdin="/adapters\n/adapter t\n/adapters\nthe cat\n")
    assert run.stdout == alone["t"], run.stderr
    assert run.stderr == "* g\n  t\n  g\n* t\n"
    for line in ("/adapter off", "/adapter g"):  # "good" is not trained
        assert chat(*words, stdin=f"{line}\nthe cat\n").stdout == alone[""]
    assert chat(*words, stdin="/adapter t\n/merge\nthe cat\n").stdout == alone["t"]


def test_an_adapter_of_another_base_of_equal_shapes_gives_no_answer(inputs, tmp_path):
    """The base is known by its values, as in merging and training."""
    other = shutil.copytree(inputs.model("plain"), tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"] *= 1.5
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    done = run_strata_raw(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out",
                                     max_steps=1, **LORA, save_strategy="steps", save_steps=1))
    assert done.returncode == 0, done.text
    sharded = subprocess.run([PROGRAM, "chat", "--model_name_or_path", tmp_path / "out" / "checkpoint-1",
                              "--prompt", "the cat"], capture_output=True, text=True,
                             env=environment(), timeout=60)
    assert sharded.returncode == 2 and "found a sharded checkpoint in" in sharded.stderr
    assert "strata convert" in sharded.stderr
    for names in (["--adapter", f"a={tmp_path / 'out'}"], ["--adapter_name_or_path", tmp_path / "out"]):
        answers = [subprocess.run([PROGRAM, "chat", "--model_name_or_path", base, "--prompt", "the cat",
                                   "--max_new_tokens", "2", *names], capture_output=True, text=True,
                                  env=environment(), timeout=60)
                   for base in (inputs.model("plain"), other)]
        assert answers[0].returncode == 0, answers[0].stderr
        assert answers[1].returncode == 2 and not answers[1].stdout
        assert "found an adapter that was trained on a base with the fingerprint" in answers[1].stderr


def test_directions_that_cannot_be_searched_again_are_refused(inputs, adapters, tmp_path):
    save_adapter(adapters / "searched", inputs.model("plain"), LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights="pissa_niter_4"))
    run = chat("--model_name_or_path", inputs.model("plain"), "--adapter",
               f"a={adapters / 'searched'}", "--prompt", "the cat")
    merged = subprocess.run([PROGRAM, "merge-adapter", adapters / "searched", tmp_path / "merged"], capture_output=True,
                            text=True, env=environment(), timeout=60)
    for done in (run, merged):
        assert done.returncode == 2 and not done.stdout
        assert "found init_lora_weights pissa_niter_4, which took directions off the base" in done.stderr, done.stderr
    assert not (tmp_path / "merged").exists()


def test_merging_and_taking_out_again(inputs, adapters, trained):
    """One conversation as it is without merging; what is merged is listed, and stays merged while
    another answers."""
    words = ["--model_name_or_path", inputs.model("plain"), "--adapter", f"t={trained}",
             "--adapter", f"g={adapters / 'good'}"]
    turns = ["the cat", "sat", "on", "a mat"]
    plain = chat(*words, stdin="".join(f"{turn}\n" for turn in turns[:2])
                 + f"/adapter g\n{turns[2]}\n/adapter t\n{turns[3]}\n")
    assert plain.returncode == 0, plain.stderr
    run = chat(*words, stdin=f"{turns[0]}\n/merge\n{turns[1]}\n/adapter g\n/adapters\n{turns[2]}\n"
               f"/adapter t\n/adapters\n/unmerge\n/adapters\n{turns[3]}\n")
    assert run.returncode == 0, run.stderr
    assert run.stdout == plain.stdout
    assert run.stderr == "  t (merged)\n* g\n" "* t (merged)\n  g\n" "* t\n  g\n"
    # Merged, taken out and merged again.
    again = chat(*words, stdin="/merge\n/unmerge\n/merge\n/adapters\nthe cat\n")
    assert again.stderr == "* t (merged)\n  g\n"
    assert again.stdout == chat(*words, stdin="the cat\n").stdout
