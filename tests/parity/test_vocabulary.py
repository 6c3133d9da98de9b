# Oracle: transformers' resize_token_embeddings after the same seed, its tokenizers, PEFT's adapter
# files and TRL's clone_chat_template; a run that went through.
import json
import shutil
import subprocess

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from running import PROGRAM, base_flags, environment, run_strata, run_strata_raw
from test_generate import run_probe

SEED = 11
TEXT = ["hello <|im_start|>user\nthe cat<|im_end|>\n", "<s><|user|>\na mat</s><pad>",
        "<|system|>x <|assistant|>"]
# What PEFT's examples/sft hand to the tokenizer.
FORMATS = {
    "chatml": dict(eos_token="<|im_end|>", roles=["<|im_start|>user", "<|im_start|>assistant",
                                                  "<|im_start|>system"]),
    "zephyr": dict(eos_token="</s>", roles=["<|user|>", "<|assistant|>", "<|system|>"]),
}


def reference(folder, name, mean_resizing=True):
    """Model and tokenizer as PEFT's examples/sft prepare them for a chat format."""
    eos, roles = FORMATS[name]["eos_token"], FORMATS[name]["roles"]
    tokenizer = AutoTokenizer.from_pretrained(
        folder, pad_token="<pad>", bos_token="<s>", eos_token=eos,
        additional_special_tokens=[*roles, eos, "<s>", "<pad>"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(SEED)
    model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=8,
                                  mean_resizing=mean_resizing)
    return model, tokenizer


def flags(model, data, output, **more):
    return base_flags(model, data, output, **{
        "chat_template_format": "chatml", "seed": SEED, "max_steps": 1, "learning_rate": 0,
        "gradient_checkpointing": False, **more})


def same_tokenizer(folder, expected):
    found = AutoTokenizer.from_pretrained(folder)
    assert found.get_added_vocab() == expected.get_added_vocab()
    for name in ("bos_token", "eos_token", "pad_token"):
        assert getattr(found, name) == getattr(expected, name)
    for text in TEXT:
        assert found(text).input_ids == expected(text).input_ids
    # What the program itself reads back.
    lines = subprocess.run([PROGRAM, "tokenize", "--model", folder, "--input", "json"],
                           input="".join(json.dumps(t) + "\n" for t in TEXT), text=True,
                           capture_output=True, env=environment(), check=True).stdout.splitlines()
    assert [json.loads(line)["ids"] for line in lines] == [expected(t).input_ids for t in TEXT]


ROWS = [("llama2", "chatml", True, 1), ("llama2-tied", "chatml", True, 2),
        ("llama2", "zephyr", False, 2), ("llama2-tied", "zephyr", False, 1),
        ("gpt2-grows", "chatml", True, 3), ("gpt2-untied-grows", "zephyr", False, 2),
        ("bigcode-grows", "zephyr", True, 1),
        ("gpt_neox-grows", "zephyr", True, 2), ("gpt_neox-tied-grows", "chatml", False, 3),
        ("cohere-grows", "chatml", True, 2), ("phi-grows", "zephyr", True, 3), ("gptj-grows", "zephyr", True, 2), ("gpt_neo-grows", "chatml", False, 3), ("mpt-grows", "chatml", True, 2), ("bloom-grows", "chatml", False, 2),
        ("opt-grows", "chatml", True, 2)]


@pytest.mark.parametrize("base,name,mean_resizing,world", ROWS)
def test_new_rows_and_files(inputs, tmp_path, base, name, mean_resizing, world):
    model, tokenizer = reference(inputs.model(base), name, mean_resizing)
    run = run_strata(flags(inputs.model(base), inputs.data("messages"), tmp_path / "out",
                           chat_template_format=name, mean_resizing=mean_resizing), world)
    num_new = 4 if name == "zephyr" else 5
    assert f"vocabulary: {num_new} new tokens" in run.text and "from 330 to 336 rows" in run.text
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for ours, theirs in ((found.get_input_embeddings(), model.get_input_embeddings()),
                         (found.get_output_embeddings(), model.get_output_embeddings())):
        assert torch.equal(ours.weight[:330], theirs.weight[:330])
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=0, atol=2e-7)
    assert found.config.tie_word_embeddings == model.config.tie_word_embeddings
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["vocab_size"] == 336
    ids = {key: config[key] for key in ("eos_token_id", "bos_token_id", "pad_token_id")}
    assert ids == {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": 1,
                   "pad_token_id": tokenizer.pad_token_id}
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert tokenizer.eos_token_id in (generation["eos_token_id"]
                                      if isinstance(generation["eos_token_id"], list)
                                      else [generation["eos_token_id"]])
    same_tokenizer(tmp_path / "out", tokenizer)
    chat = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    text = AutoTokenizer.from_pretrained(tmp_path / "out").apply_chat_template(chat, tokenize=False)
    marks = FORMATS[name]["roles"]
    assert text == (f"{marks[0]}\nthe cat{tokenizer.eos_token}\n"
                    f"{marks[1]}\nsat{tokenizer.eos_token}\n")


def test_a_tokenizer_that_knows_the_format_gets_nothing(inputs, tmp_path):
    run = run_strata(flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out"))
    assert "vocabulary:" not in run.text
    before = json.loads((inputs.model("plain") / "config.json").read_text())
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    assert before["vocab_size"] == after["vocab_size"]


PROMPTS = [[5, 60, 331], [1, 2, 3, 262, 334, 330, 300], [333] * 9]
LORA = dict(use_peft=True, lora_r=4, lora_alpha=8, lora_dropout=0,
            lora_target_modules="all-linear")


def continuations(model, count=12):
    found = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0,
                                max_new_tokens=count, do_sample=False, eos_token_id=None)
        found.append(output[0, len(prompt):].tolist())
    return found


@pytest.mark.parametrize("base,saved", [("llama2", None), ("llama2-tied", None),
                                        ("llama2", ["embed_tokens", "lm_head"]), ("gpt2-grows", None),
                                        ("gpt2-untied-grows", ["wte", "lm_head"]), ("bigcode-grows", None),
                                        ("gpt_neox-grows", ["embed_in", "lm_head"]), ("gpt_neox-tied-grows", None),
                                        ("opt-grows", None)])
def test_adapter_holds_the_vocabulary(inputs, tmp_path, base, saved):
    folder = inputs.model(base)
    more = {**LORA, "max_steps": 4, "learning_rate": 1e-2, "lora_modules_to_save": saved}
    one = run_strata(flags(folder, inputs.data("messages"), tmp_path / "one",
                           per_device_train_batch_size=4, **more))
    out = tmp_path / "two"
    two = run_strata(flags(folder, inputs.data("messages"), out, **more), world=2)
    assert two.losses == pytest.approx(one.losses, rel=1e-5)

    model, tokenizer = reference(folder, "chatml")
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", modules_to_save=saved,
                      task_type="CAUSAL_LM", base_model_name_or_path=str(folder))
    expected = get_peft_model_state_dict(get_peft_model(model, lora))
    # PEFT saves a module that is trained whole under its inner names too.
    expected = {name: value for name, value in expected.items()
                if "original_module" not in name and ".modules_to_save." not in name}
    found = load_file(out / "adapter_model.safetensors")
    assert found.keys() == expected.keys()
    if saved is None:
        for name in (n for n in expected if "lora_" not in n):
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=2e-7)
    same_tokenizer(out, tokenizer)

    plain, _ = reference(folder, "chatml")
    peft = PeftModel.from_pretrained(plain, out).eval()
    ids = continuations(peft)
    assert run_probe(tmp_path, model=str(out), prompts=PROMPTS, max_new_tokens=12) == ids
    chat = subprocess.run([PROGRAM, "chat", "--model_name_or_path", out, "--prompt", "the cat",
                           "--max_new_tokens", "4"], capture_output=True, text=True,
                          env=environment(), timeout=60)
    assert chat.returncode == 0, chat.stderr
    # By name over its base: with the adapter's tokenizer and template, not the base's.
    (tmp_path / "bare").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(out / name, tmp_path / "bare")
    named = [PROGRAM, "chat", "--model_name_or_path", folder, "--prompt", "the cat",
             "--max_new_tokens", "4", "--adapter", f"a={out}"]
    by_name = subprocess.run(named, capture_output=True, text=True, env=environment(), timeout=60)
    assert by_name.stdout == chat.stdout, by_name.stderr
    other = subprocess.run([*named, "--adapter", f"b={tmp_path / 'bare'}"], capture_output=True,
                           text=True, env=environment(), timeout=60)
    assert other.returncode == 2 and "found another tokenizer in" in other.stderr
    # The same, with another template where older versions of transformers keep it.
    shutil.copytree(out, tmp_path / "older")
    (tmp_path / "older" / "chat_template.jinja").unlink()
    config = tmp_path / "older" / "tokenizer_config.json"
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": template}))
    older = subprocess.run([*named, "--adapter", f"b={tmp_path / 'older'}"], capture_output=True,
                           text=True, env=environment(), timeout=60)
    assert older.returncode == 2 and "found another tokenizer in" in older.stderr
    merged = subprocess.run([PROGRAM, "merge-adapter", out, tmp_path / "merged"], text=True,
                            capture_output=True, env=environment(), timeout=60)
    assert merged.returncode == 0, merged.stderr
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    assert whole.config.vocab_size == 336
    same_tokenizer(tmp_path / "merged", tokenizer)
    # It stops where the adapter's chat format does, as a model that was trained whole.
    for file in ("config.json", "generation_config.json"):
        ids = json.loads((tmp_path / "merged" / file).read_text())
        ends = ids["eos_token_id"] if isinstance(ids["eos_token_id"], list) else [ids["eos_token_id"]]
        assert tokenizer.eos_token_id in ends and ids["bos_token_id"] == 1, file
        assert ids["pad_token_id"] == tokenizer.pad_token_id, file
    tokens = torch.tensor([PROMPTS[1]])
    torch.testing.assert_close(whole(tokens).logits, peft(tokens).logits, rtol=1e-4, atol=1e-4)


def keep_as_vocab_and_merges(folder, merges):
    """Leaves vocab.json and merges.txt, with so many merges, in the place of tokenizer.json."""
    bpe = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(bpe["vocab"]))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in bpe["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs[:merges]]) + "\n")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "GPT2Tokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def test_chat_reads_an_adapters_vocabulary_of_any_kind(inputs, tmp_path):
    base = inputs.model("plain")
    for name, merges in (("a", 20), ("b", 20), ("c", 21)):
        run_strata(base_flags(base, inputs.data("messages"), tmp_path / name, max_steps=1, **LORA))
        keep_as_vocab_and_merges(tmp_path / name, merges)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tmp_path / "a").eval()

    def answer(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": "the cat sat"}],
                                            add_generation_prompt=True, return_tensors="pt",
                                            return_dict=True)
        out = model.generate(**ids, max_new_tokens=8, do_sample=False)[0]
        return tokenizer.decode(out[ids["input_ids"].shape[1]:], skip_special_tokens=True)

    def chat(*names):
        words = [w for name in names for w in ("--adapter", f"{name}={tmp_path / name}")]
        return subprocess.run([PROGRAM, "chat", "--model_name_or_path", base, "--prompt",
                               "the cat sat", "--max_new_tokens", "8", *words],
                              capture_output=True, text=True, env=environment(), timeout=60)

    assert answer(tmp_path / "a") != answer(base)
    alike = chat("a", "b")
    assert alike.stdout.rstrip("\n") == answer(tmp_path / "a").rstrip("\n"), alike.stderr
    assert "template" not in alike.stderr
    other = chat("a", "c")
    assert other.returncode == 2 and "found another tokenizer in" in other.stderr
    # One conversation has one template: who was trained with another, or with none, is told of.
    (tmp_path / "b" / "chat_template.jinja").unlink()
    one = chat("a", "b")
    assert one.stdout == alike.stdout
    assert one.stderr.count(f"b uses the chat template of {tmp_path / 'a'}: {tmp_path / 'b'} has none") == 1
    other = chat("b", "a")
    assert f"the chat template of {tmp_path / 'a'} is not used: the first adapter's tokenizer, that of {tmp_path / 'b'}, has none" in other.stderr


def test_settings_of_an_adapter_end_what_it_is_merged_into(inputs, tmp_path):
    base, out = inputs.model("plain"), tmp_path / "adapter"
    run_strata(base_flags(base, inputs.data("messages"), out, max_steps=1, **LORA))
    (out / "tokenizer.json").unlink()
    settings = json.loads((out / "tokenizer_config.json").read_text())
    (out / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<pad>"}))
    merged = subprocess.run([PROGRAM, "merge-adapter", out, tmp_path / "merged"], text=True,
                            capture_output=True, env=environment(), timeout=60)
    assert merged.returncode == 0, merged.stderr
    end = AutoTokenizer.from_pretrained(tmp_path / "merged").eos_token_id
    before = json.loads((base / "config.json").read_text())["eos_token_id"]
    assert end not in (None, before)
    for file in ("config.json", "generation_config.json"):
        ids = json.loads((tmp_path / "merged" / file).read_text())["eos_token_id"]
        assert end in (ids if isinstance(ids, list) else [ids]), file


@pytest.mark.parametrize("base,settings", [
    ("llama2", dict(target_modules=["q_proj", "v_proj"])),
    ("llama2-tied", dict(target_modules="all-linear", r=4)),
    ("llama2", dict(target_modules=["q_proj"], modules_to_save=["lm_head", "embed_tokens"])),
    ("gpt2-grows", dict(target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)),
    ("gpt2-untied-grows", dict(target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=["lm_head", "wte"])),
    ("gpt_neox-grows", dict()),
])
def test_adapter_that_peft_wrote(inputs, tmp_path, base, settings):
    folder = inputs.model(base)
    model, _ = reference(folder, "chatml")
    peft = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM",
                                            base_model_name_or_path=str(folder), **settings))
    with torch.no_grad():
        for parameter in peft.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    peft.eval().save_pretrained(tmp_path / "adapter")
    assert run_probe(tmp_path, model=str(folder), adapter=str(tmp_path / "adapter"),
                     prompts=PROMPTS, max_new_tokens=12) == continuations(peft)
    # Continued without a step that changes anything, it comes out as it went in.
    run_strata(flags(folder, inputs.data("messages"), tmp_path / "out",
                     adapter_name_or_path=tmp_path / "adapter"), world=2)
    before = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    after = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert after.keys() <= before.keys()
    assert all(torch.equal(after[name], before[name].float()) for name in after)
    embedding = {"gpt2": "wte", "gpt_neox": "embed_in"}.get(base.split("-")[0], "embed_tokens")
    assert {n.split(".")[-2] for n in after} >= {embedding, "lm_head"}


def test_resumed_run_ends_alike(inputs, tmp_path):
    more = {**LORA, "max_steps": 4, "learning_rate": 1e-2, "lr_scheduler_type": "constant"}
    base = inputs.model("llama2"), inputs.data("messages")
    whole = run_strata(flags(*base, tmp_path / "whole", **more), world=2)
    more.update(save_strategy="steps", save_steps=2)
    run_strata(flags(*base, tmp_path / "cut", **{**more, "max_steps": 2}), world=2)
    cut = run_strata(flags(*base, tmp_path / "cut", per_device_train_batch_size=4,
                           resume_from_checkpoint=True, **more), world=1)
    assert "vocabulary: 5 new tokens" in cut.text
    assert cut.losses == pytest.approx(whole.losses, rel=1e-5)
    a, b = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "cut"))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0, atol=1e-6 if "lora_" in name else 0)


@pytest.mark.parametrize("kind,base", [("FULL_STATE_DICT", "llama2-tied"),
                                       ("SHARDED_STATE_DICT", "llama2")])
def test_a_checkpoint_holds_the_vocabulary(inputs, tmp_path, kind, base):
    """As PEFT saves it: the rows of new tokens, which do not train, are in every checkpoint."""
    folder = inputs.model(base)
    run = run_strata(flags(folder, inputs.data("messages"), tmp_path / "out", **{
        **LORA, "max_steps": 2, "learning_rate": 1e-2, "save_strategy": "steps", "save_steps": 2,
        "fsdp_state_dict_type": kind}), world=2)
    checkpoint = adapter = run.folder / "checkpoint-2"
    if kind != "FULL_STATE_DICT":
        adapter = tmp_path / "adapter"
        subprocess.run([PROGRAM, "convert", checkpoint, adapter, "--to", "safetensors",
                        "--weights_only"], check=True, env=environment())
    expected, found = (load_file(f / "adapter_model.safetensors") for f in (run.folder, adapter))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert not json.loads((adapter / "adapter_config.json").read_text())["modules_to_save"]
    logits = []
    for saved in (run.folder, adapter):
        plain, _ = reference(folder, "chatml")
        with torch.no_grad():
            plain.get_input_embeddings().weight[330:] = 0  # what is in the file decides
        logits.append(PeftModel.from_pretrained(plain, saved).eval()(torch.tensor([PROMPTS[1]])).logits)
    assert torch.equal(*logits)
    # Merging needs no file but the base's.
    for name, saved in (("result", run.folder), ("checkpoint", checkpoint)):
        subprocess.run([PROGRAM, "merge-adapter", saved, tmp_path / name, "--base_model", folder],
                       check=True, env=environment())
    merged = [load_file(tmp_path / name / "model.safetensors") for name in ("result", "checkpoint")]
    assert merged[0].keys() == merged[1].keys()
    assert all(torch.equal(merged[0][name], merged[1][name]) for name in merged[0])


def test_tokens_of_another_tokenizer(inputs, tmp_path):
    from trl import clone_chat_template

    source = str(inputs.model("plain"))
    model = AutoModelForCausalLM.from_pretrained(inputs.model("llama2"), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(inputs.model("llama2"))
    torch.manual_seed(SEED)
    model, tokenizer, _ = clone_chat_template(model, tokenizer, source)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token  # as SFTTrainer
    run_strata(flags(inputs.model("llama2"), inputs.data("messages"), tmp_path / "out",
                     chat_template_format=None, chat_template_path=source), world=2)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert found.config.vocab_size == model.config.vocab_size == 384
    torch.testing.assert_close(found.get_input_embeddings().weight,
                               model.get_input_embeddings().weight, rtol=0, atol=2e-7)
    torch.testing.assert_close(found.lm_head.weight, model.lm_head.weight, rtol=0, atol=2e-7)
    same_tokenizer(tmp_path / "out", tokenizer)


def test_an_output_layer_in_codes_is_refused(inputs, tmp_path):
    run = run_strata_raw(flags(inputs.model("llama2"), inputs.data("messages"), tmp_path / "out",
                               **LORA, load_in_4bit=True, llm_int8_skip_modules=["q_proj"]))
    assert run.returncode == 2
    assert 'found new tokens and "lm_head.weight" quantised' in run.stderr
