"""T5, UMT5 and BART. Oracle: a plain loop over transformers and PEFT with torch's AdamW on the same pairs; PEFT and
transformers reading what a run leaves."""

import json
import shutil
import subprocess

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5ForConditionalGeneration

from running import PROGRAM, environment, run_strata, run_strata_raw
from tiny_bart import save_bart
from tiny_t5 import GATED, save_pairs, save_t5

STEPS, BATCH, RATE = 8, 4, 5e-3
# Far above a gradient that is the rounding of a sum, of which Adam would make a step of its own on
# every kind of processor, and far below those that decide.
EPSILON = 1e-4
LORA = dict(r=4, lora_alpha=16, lora_dropout=0.0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5")
    save_t5(folder / "plain")
    save_t5(folder / "v1_1", own_head=True, original_keys=True, **GATED)
    # No row is shorter than a quantised block.
    save_t5(folder / "wide", d_model=64, d_kv=16, num_heads=4, d_ff=128)
    save_t5(folder / "umt5", family="UMT5", own_head=True, feed_forward_proj="gated-gelu")
    save_bart(folder / "bart", forced_bos_token_id=0)
    save_pairs(folder / "data")
    return folder


def flags(place, model, output, **more):
    return {"model_name_or_path": place / model, "dataset_name": place / "data",
            "output_dir": output, "text_column": "sentence", "summary_column": "label",
            "source_prefix": "judge: ", "max_source_length": 12, "max_target_length": 4,
            "per_device_train_batch_size": BATCH, "per_device_eval_batch_size": 3,
            "max_steps": STEPS, "learning_rate": RATE, "logging_steps": 1, "weight_decay": 0.02,
            "adam_epsilon": EPSILON, "max_grad_norm": 1.0, "eval_strategy": "steps", "eval_steps": STEPS,
            "save_strategy": "no", "train_sampling_strategy": "sequential", "disable_tqdm": True,
            "predict_with_generate": True, **more}


def run(settings, world=1):
    return run_strata(settings, world, recipe="seq2seq")


def rows_of(place, split):
    return [json.loads(line) for line in (place / "data" / f"{split}.jsonl").open()]


def batch_of(tokenizer, rows):
    batch = tokenizer(["judge: " + row["sentence"] for row in rows], max_length=12, padding=True,
                      truncation=True, return_tensors="pt")
    labels = tokenizer([row["label"] for row in rows], max_length=4, padding=True,
                       truncation=True, return_tensors="pt").input_ids
    batch["labels"] = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
    return {k: batch[k] for k in ("input_ids", "attention_mask", "labels")}


def reference(place, model, tokenizer, rate=RATE):
    """Losses of the steps and the evaluation loss, as Trainer takes its mean."""
    decayed = [p for n, p in model.named_parameters() if p.requires_grad and
               not any(part in n for part in ("layer_norm", "layernorm", "bias"))]
    plain = [p for p in model.parameters() if p.requires_grad and all(p is not q for q in decayed)]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.02},
                                   {"params": plain, "weight_decay": 0.0}], lr=rate,
                                  eps=EPSILON)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / STEPS)
    model.train()  # the models have no dropout
    rows, losses = rows_of(place, "train"), []
    for step in range(STEPS):
        start = step * BATCH % len(rows)
        loss = model(**batch_of(tokenizer, rows[start:start + BATCH])).loss
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses, evaluate(place, model, tokenizer)


def evaluate(place, model, tokenizer):
    model.eval()
    rows, total = rows_of(place, "validation"), 0.0
    for i in range(0, len(rows), 3):
        part = rows[i:i + 3]
        with torch.no_grad():
            total += model(**batch_of(tokenizer, part)).loss.item() * len(part)
    return total / len(rows)


def accuracy(place, model, tokenizer):
    rows = rows_of(place, "validation")
    batch = batch_of(tokenizer, rows)
    answers = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                             max_length=4, do_sample=False, num_beams=1)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    return sum(text.strip() == row["label"] for text, row in zip(texts, rows)) / len(rows)


def compare(found, losses, eval_loss, least=0.2):
    assert found.losses == pytest.approx(losses, abs=1e-4)
    assert min(losses) < losses[0] - least, "the reference did not learn"
    evaluated = [row for row in found.history if "eval_loss" in row]
    assert evaluated[-1]["eval_loss"] == pytest.approx(eval_loss, abs=1e-4)
    return evaluated[-1]


def save_two_words(place, folder):
    """The data with answers of two words."""
    (folder / "data").mkdir()
    for split in ("train", "validation"):
        rows = [dict(row, label=f"neutral {row['label']}") for row in rows_of(place, split)]
        (folder / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_answers_end_as_the_models_file_says(place, tmp_path):
    """transformers' generate() of the result, whose generation_config.json names a word as a second end; what that file asks
    for beside it is told."""
    save_two_words(place, tmp_path)
    shutil.copytree(place / "plain", tmp_path / "plain")
    tokenizer = AutoTokenizer.from_pretrained(place / "plain")
    file = tmp_path / "plain" / "generation_config.json"
    [end] = tokenizer("neutral", add_special_tokens=False).input_ids
    asked = dict(eos_token_id=[1, end], encoder_no_repeat_ngram_size=4, repetition_penalty=1.5, do_sample=True)
    file.write_text(json.dumps({**json.loads(file.read_text()), **asked}))
    found = run(flags(tmp_path, "plain", tmp_path / "out", max_steps=40, eval_steps=40, learning_rate=2e-2))
    for words in ("encoder_no_repeat_ngram_size 4 is not applied here", "repetition_penalty 1.5 is not applied here", "do_sample true is not"):
        assert found.text.count(words) == 1
    result = T5ForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    result.generation_config.update(repetition_penalty=1.0, encoder_no_repeat_ngram_size=0, do_sample=False)
    expected = accuracy(tmp_path, result, tokenizer)
    assert [row["eval_accuracy"] for row in found.history if "eval_accuracy" in row] == [pytest.approx(expected)]
    result.generation_config.eos_token_id = 1
    assert expected == 0 < accuracy(tmp_path, result, tokenizer)


def test_answers_start_as_the_models_file_says(place, tmp_path):
    """transformers' generate() of the result, whose generation_config.json names another start than config.json, that of training."""
    save_two_words(place, tmp_path)
    shutil.copytree(place / "plain", tmp_path / "plain")
    tokenizer = AutoTokenizer.from_pretrained(place / "plain")
    file = tmp_path / "plain" / "generation_config.json"
    [start] = tokenizer("negative", add_special_tokens=False).input_ids
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder_start_token_id": start}))
    found = run(flags(tmp_path, "plain", tmp_path / "out", max_steps=40, eval_steps=40, learning_rate=2e-2))
    result = T5ForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    expected = accuracy(tmp_path, result, tokenizer)
    assert [row["eval_accuracy"] for row in found.history if "eval_accuracy" in row] == [pytest.approx(expected)]
    result.generation_config.decoder_start_token_id = 0
    assert accuracy(tmp_path, result, tokenizer) != expected
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder_start_token_id": 9999}))
    refused = run_strata_raw(flags(tmp_path, "plain", tmp_path / "again"), recipe="seq2seq")
    assert "found decoder_start_token_id = 9999" in refused.text


def test_answers_start_with_the_tokenizers_bos(place, tmp_path):
    """transformers' generate() of the result from the tokenizer's bos, which Trainer writes over the file's."""
    save_two_words(place, tmp_path)
    shutil.copytree(place / "bart", tmp_path / "bart")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bart")
    [other] = tokenizer("negative", add_special_tokens=False).input_ids
    file = tmp_path / "bart" / "generation_config.json"
    said = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("decoder_start_token_id", "forced_bos_token_id")}
    file.write_text(json.dumps({**said, "bos_token_id": other}))
    found = run(flags(tmp_path, "bart", tmp_path / "out", max_steps=40, eval_steps=40, learning_rate=1e-2))
    result = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    accuracies = {}
    for start in (tokenizer.bos_token_id, other):
        result.generation_config.update(decoder_start_token_id=start, forced_bos_token_id=None)
        accuracies[start] = accuracy(tmp_path, result, tokenizer)
    assert [row["eval_accuracy"] for row in found.history if "eval_accuracy" in row] == [pytest.approx(accuracies[tokenizer.bos_token_id])]
    assert accuracies[other] != accuracies[tokenizer.bos_token_id]


def evaluating_trainer(folder, result, max_target_length, **more):
    """The model of `result` and a Seq2SeqTrainer that says how many of its answers are the targets of `folder`."""
    from datasets import Dataset
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(result)
    rows = rows_of(folder, "validation")

    def exact(predicted):
        texts = tokenizer.batch_decode(predicted.predictions, skip_special_tokens=True)
        return {"accuracy": sum(text.strip() == row["label"] for text, row in zip(texts, rows)) / len(rows)}

    model = AutoModelForSeq2SeqLM.from_pretrained(result)
    arguments = Seq2SeqTrainingArguments(folder / "theirs", predict_with_generate=True, per_device_eval_batch_size=3, use_cpu=True,
                                         report_to="none", disable_tqdm=True, **more)
    dataset = Dataset.from_list([{**tokenizer("judge: " + row["sentence"], max_length=12, truncation=True),
                                  "labels": tokenizer(row["label"], max_length=max_target_length, truncation=True).input_ids} for row in rows])
    return model, Seq2SeqTrainer(model, arguments, DataCollatorForSeq2Seq(tokenizer, model), eval_dataset=dataset,
                                 processing_class=tokenizer, compute_metrics=exact)


@pytest.mark.parametrize("kind,steps", [("plain", 20), ("bart", 10)])
def test_answers_are_searched_as_the_models_file_says(place, tmp_path, kind, steps):
    """Seq2SeqTrainer's evaluations of the result, by the beams of generation_config.json, and without them where the setting
    says so."""
    shutil.copytree(place / kind, tmp_path / kind)
    file = tmp_path / kind / "generation_config.json"
    asked = dict(num_beams=4, length_penalty=2.0, early_stopping=True, no_repeat_ngram_size=3, min_length=3)
    file.write_text(json.dumps({**json.loads(file.read_text()), **asked}))
    save_uneven_pairs(tmp_path / "data")
    accuracies = {}
    for beams in (None, 1):
        more = {} if beams is None else {"num_beams": beams}
        found = run(flags(tmp_path, kind, tmp_path / f"out{beams}", max_steps=steps, eval_steps=steps, max_target_length=6, **more))
        [accuracies[beams]] = [row["eval_accuracy"] for row in found.history if "eval_accuracy" in row]
        _, trainer = evaluating_trainer(tmp_path, found.folder, max_target_length=6, generation_max_length=6, generation_num_beams=beams)
        assert accuracies[beams] == pytest.approx(trainer.evaluate()["eval_accuracy"])
        assert "not applied" not in found.text
    assert accuracies[None] != accuracies[1]


def test_answers_are_as_long_as_the_models_file_says(place, tmp_path):
    """Seq2SeqTrainer's evaluation of the result: max_new_tokens of generation_config.json goes before generation_max_length,
    which would leave no answer whole."""
    shutil.copytree(place / "plain", tmp_path / "plain")
    file = tmp_path / "plain" / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "max_new_tokens": 3}))
    save_two_words(place, tmp_path)
    found = run(flags(tmp_path, "plain", tmp_path / "out", max_steps=40, eval_steps=40, learning_rate=2e-2,
                      generation_max_length=2))
    assert found.text.count("max_new_tokens 3 goes before generation_max_length, as in transformers") == 1
    model, trainer = evaluating_trainer(tmp_path, tmp_path / "out", max_target_length=4, generation_max_length=2)
    expected = trainer.evaluate()["eval_accuracy"]
    assert [row["eval_accuracy"] for row in found.history if "eval_accuracy" in row] == [pytest.approx(expected)]
    model.generation_config.max_new_tokens = None
    assert trainer.evaluate()["eval_accuracy"] == 0 < expected


@pytest.mark.parametrize("name", ["plain", "v1_1", "umt5", "bart"])
def test_full_fine_tuning(place, tmp_path, name):
    tokenizer = AutoTokenizer.from_pretrained(place / name)
    model = AutoModelForSeq2SeqLM.from_pretrained(place / name)
    expected = reference(place, model, tokenizer)
    found = run(flags(place, name, tmp_path / "out", gradient_checkpointing=True))
    row = compare(found, *expected)
    # What the run leaves is what it evaluated.
    result = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    loaded = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert evaluate(place, result, loaded) == pytest.approx(row["eval_loss"], abs=1e-5)
    assert row["eval_accuracy"] == pytest.approx(accuracy(place, result, loaded))
    for (key, ours), theirs in zip(result.state_dict().items(), model.state_dict().values()):
        assert torch.allclose(ours, theirs, atol=2e-4), key
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] == (name != "v1_1")
    assert config["architectures"] == [type(model).__name__]


@pytest.mark.parametrize("kind,targets", [("v1_1", ["q", "v"]), ("bart", ["q_proj", "v_proj"])])
def test_adapter(place, tmp_path, kind, targets):
    from peft import LoraConfig, PeftModel, get_peft_model
    tokenizer = AutoTokenizer.from_pretrained(place / kind)
    torch.manual_seed(4)
    base = AutoModelForSeq2SeqLM.from_pretrained(place / kind)
    model = get_peft_model(base, LoraConfig(task_type="SEQ_2_SEQ_LM", **LORA))
    model.save_pretrained(tmp_path / "start")
    expected = reference(place, model, tokenizer)
    found = run(flags(place, kind, tmp_path / "out", weight_decay=0.02,
                      adapter_name_or_path=tmp_path / "start"))
    row = compare(found, *expected)
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert config["task_type"] == "SEQ_2_SEQ_LM" and sorted(config["target_modules"]) == targets
    base = AutoModelForSeq2SeqLM.from_pretrained(place / kind)
    result = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    assert evaluate(place, result, tokenizer) == pytest.approx(row["eval_loss"], abs=1e-5)
    for (key, ours), theirs in zip(result.state_dict().items(), model.state_dict().values()):
        assert torch.allclose(ours, theirs, atol=2e-4), key
    subprocess.run([PROGRAM, "merge-adapter", tmp_path / "out", tmp_path / "merged"], check=True,
                   capture_output=True, env=environment())
    merged = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "merged").eval()
    assert evaluate(place, merged, tokenizer) == pytest.approx(row["eval_loss"], abs=1e-5)


@pytest.mark.parametrize("kind", ["lora", "dora", "ia3"])
def test_adapter_of_an_own_output_layer(place, tmp_path, kind):
    """Oracle: PEFT, both ways. The file holds another output layer than the embedding."""
    from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
    tokenizer = AutoTokenizer.from_pretrained(place / "v1_1")
    targets = dict(target_modules=["q", "lm_head"])
    settings = (IA3Config(feedforward_modules=["lm_head"], **targets) if kind == "ia3" else
                LoraConfig(use_dora=kind == "dora", **targets, **LORA))
    torch.manual_seed(4)
    model = get_peft_model(T5ForConditionalGeneration.from_pretrained(place / "v1_1"), settings).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter.data, mean=parameter.data.mean(), std=0.05)
    model.save_pretrained(tmp_path / "start")
    found = run(flags(place, "v1_1", tmp_path / "same", learning_rate=1e-30, max_steps=1, eval_steps=1,
                      adapter_name_or_path=tmp_path / "start"))
    loss = evaluate(place, model, tokenizer)
    assert [row["eval_loss"] for row in found.history if "eval_loss" in row][-1] == pytest.approx(loss, abs=1e-5)
    found = run(flags(place, "v1_1", tmp_path / "out", adapter_name_or_path=tmp_path / "start", learning_rate=1e-3))
    base = T5ForConditionalGeneration.from_pretrained(place / "v1_1")
    loss = evaluate(place, PeftModel.from_pretrained(base, tmp_path / "out").eval(), tokenizer)
    assert [row["eval_loss"] for row in found.history if "eval_loss" in row][-1] == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("more,message", [
    (dict(peft_type="PREFIX_TUNING", num_virtual_tokens=3), "peft_type: found prompt or prefix tuning"),
    (dict(peft_type="PROMPT_TUNING", num_virtual_tokens=3), "peft_type: found prompt or prefix tuning"),
    (dict(trainable_token_indices="[1, 2]"), "trainable_token_indices: found with a model whose family")])
def test_adapters_that_are_not_there_are_refused(place, tmp_path, more, message):
    """By name and before anything is trained."""
    found = run_strata_raw(flags(place, "plain", tmp_path / "out", use_peft=True, **more), recipe="seq2seq")
    assert found.returncode == 2 and message in found.text, found.text


# Which columns hold outliers depends on all rows of a batch, padding too, which only the reference has.
INT8 = dict(load_in_8bit=True, llm_int8_threshold=0.0)
NF4 = dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
# At RATE the wide model's runs part after a few steps over a plain base too, as Adam gives elements
# whose gradient is the rounding of a sum a whole step.
SMALL_RATE = 1e-3
# Base, settings of bitsandbytes and of PEFT, rate.
METHODS = {
    "dora": ("plain", {}, dict(LORA, use_dora=True, target_modules=["q", "wo"]), RATE),
    "ia3": ("v1_1", {}, dict(peft_type="IA3"), 5e-2),
    "vera": ("plain", {}, dict(peft_type="VERA", r=6), 1e-1),
    "nf4_lora": ("wide", NF4, dict(LORA, target_modules="all-linear"), SMALL_RATE),
    "nf4_ia3": ("wide", NF4, dict(peft_type="IA3"), 5 * SMALL_RATE),
    "nf4_vera": ("wide", NF4, dict(peft_type="VERA", r=6), 10 * SMALL_RATE),
    "int8_lora": ("wide", INT8, dict(LORA, target_modules="all-linear"), SMALL_RATE),
    "int8_ia3": ("wide", INT8, dict(peft_type="IA3"), 5 * SMALL_RATE),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_codes(place, tmp_path, name):
    """PEFT over bitsandbytes' layers, step by step."""
    from peft import PeftModel, get_peft_model
    from test_lora import config_of
    from transformers import BitsAndBytesConfig
    kind, codes, settings, rate = METHODS[name]
    tokenizer = AutoTokenizer.from_pretrained(place / kind)
    quantised = dict(quantization_config=BitsAndBytesConfig(**codes), device_map="cpu") if codes else {}
    load = lambda: T5ForConditionalGeneration.from_pretrained(place / kind, dtype=torch.float32,
                                                              **quantised)
    base = load()
    for layer in base.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False  # a kernel in bf16, of other shapes
    config = config_of(settings)
    config.task_type = "SEQ_2_SEQ_LM"
    torch.manual_seed(4)
    model = get_peft_model(base, config)
    model.save_pretrained(tmp_path / "start")
    found = run(flags(place, kind, tmp_path / "out", learning_rate=rate, bf16=False,
                      adapter_name_or_path=tmp_path / "start",
                      # 8 bits: one order of sums on all processors, so that the same bytes change (below).
                      full_determinism=codes is INT8,
                      **codes, **({"bnb_4bit_compute_dtype": "float32"} if codes is NF4 else {})))
    losses, eval_loss = reference(place, model, tokenizer, rate)
    if codes is INT8:
        # Activations are bytes there, of which one changes where factors differ by the order of a sum.
        trained = PeftModel.from_pretrained(load(), tmp_path / "out")
        found_loss = [row["eval_loss"] for row in found.history if "eval_loss" in row][-1]
        eval_loss = min(losses_within_rounding(place, trained, tokenizer), key=lambda loss: abs(loss - found_loss))
        assert found_loss == pytest.approx(eval_loss, abs=1e-5)
    compare(found, losses, eval_loss, least=0.02)


def losses_within_rounding(place, model, tokenizer, draws=24):
    """What the reference gives for its adapter, and for adapters that differ from it by at most one rounding of each
    element: where a byte lies between two values, both are its answers."""
    trained = {p: p.detach().clone() for n, p in model.named_parameters() if "lora_" in n or "ia3_" in n}
    assert trained
    losses = [evaluate(place, model, tokenizer)]
    for seed in range(draws):
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter, values in trained.items():
                parameter.copy_(values * (1 + (torch.rand(values.shape, generator=draw) - 0.5) * 2 ** -22))
        losses.append(evaluate(place, model, tokenizer))
    assert max(losses) - min(losses) < 5e-3, losses
    return losses


@pytest.mark.parametrize("module", ["lm_head", "shared"])
def test_merging_a_saved_vocabulary(place, tmp_path, module):
    """A tied output layer that trains whole beside branches, and the embedding that it was tied to."""
    from peft import PeftModel
    found = run(flags(place, "plain", tmp_path / "out", use_peft=True, **LORA, max_steps=3, eval_steps=3,
                      lora_modules_to_save=[module], learning_rate=2e-2))
    expected = [row for row in found.history if "eval_loss" in row][-1]["eval_loss"]
    tokenizer = AutoTokenizer.from_pretrained(place / "plain")
    base = T5ForConditionalGeneration.from_pretrained(place / "plain").eval()
    assert abs(evaluate(place, base, tokenizer) - expected) > 0.01
    done = subprocess.run([PROGRAM, "merge-adapter", tmp_path / "out", tmp_path / "merged"],
                          capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    merged = T5ForConditionalGeneration.from_pretrained(tmp_path / "merged").eval()
    assert evaluate(place, merged, tokenizer) == pytest.approx(expected, abs=1e-5)
    assert not torch.equal(merged.lm_head.weight, merged.shared.weight)
    if module == "shared":
        return  # PEFT replaces the module of this name alone, not those that encoder and decoder use
    loaded = PeftModel.from_pretrained(base, tmp_path / "out").eval()
    assert evaluate(place, loaded, tokenizer) == pytest.approx(expected, abs=1e-5)
    theirs = loaded.merge_and_unload().state_dict()
    for name, value in merged.state_dict().items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name,targets", [("plain", ["q", "v"]), ("bart", ["q_proj", "v_proj"])])
def test_new_adapter_has_peft_defaults(place, tmp_path, name, targets):
    """The first values come from the same generator: the first loss is that of the base."""
    found = run(flags(place, name, tmp_path / "out", use_peft=True, max_steps=1, eval_steps=1))
    config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert sorted(config["target_modules"]) == targets
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (8, 8, 0.0)
    model = AutoModelForSeq2SeqLM.from_pretrained(place / name).eval()
    tokenizer = AutoTokenizer.from_pretrained(place / name)
    loss = model(**batch_of(tokenizer, rows_of(place, "train")[:BATCH])).loss.item()
    assert found.losses[0] == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("change,words", [
    (dict(text_column="label", summary_column="sentence", max_target_length=80), "max_target_length: found a target of 52 tokens"),
    (dict(max_source_length=80), "max_source_length: found a source of 53 tokens"),
    (dict(generation_max_length=42), "generation_max_length: found answers of up to 41 tokens")])
def test_texts_beyond_the_positions_of_bart_are_named(place, tmp_path, change, words):
    """Before anything is trained."""
    data = tmp_path / "train.jsonl"
    data.write_text(json.dumps({"sentence": "rose " * 50, "label": "positive"}) + "\n")
    found = run_strata_raw({**flags(place, "bart", tmp_path / "out"), "dataset_name": data, "eval_strategy": "no", **change,
                            **(dict(eval_strategy="steps", dataset_name=place / "data") if "generation_max_length" in change else {})}, recipe="seq2seq")
    assert found.returncode == 2 and words in found.text and "expected at most 40" in found.text, found.text
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_umt5_has_no_default_targets(place, tmp_path):
    """Oracle: PEFT's table, which has none."""
    found = run_strata_raw(flags(place, "umt5", tmp_path / "out", use_peft=True), recipe="seq2seq")
    assert found.returncode == 2 and "target_modules" in found.text, found.text


@pytest.mark.parametrize("row, message", [
    ({"translation": {"en": "a", "de": "b"}}, "found a column \"translation\" with [en, de], expected the languages "
                                              "to be named; add --source_lang and --target_lang"),
    ({"id": 1, "text": "a", "label": "b"}, "found a number in \"id\", column 1 of [id, text, label], expected text; "
                                           "name the columns of source and target with --text_column"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
     "found a conversation (\"messages\"), expected columns with a source and a target text; strata sft"),
])
def test_rows_of_other_shapes_are_told_what_to_do(place, tmp_path, row, message):
    data = tmp_path / "train.jsonl"
    data.write_text((json.dumps(row) + "\n") * 3)
    found = run_strata_raw({**flags(place, "plain", tmp_path / "out"), "text_column": None, "summary_column": None,
                 "dataset_name": data, "eval_strategy": "no", "predict_with_generate": None}, recipe="seq2seq")
    assert found.returncode != 0 and message in found.text


def test_columns_keep_their_names_in_rows_of_another_order(place, tmp_path):
    """Oracle: datasets, whose rows have columns by name: those of the first row's order, others behind them."""
    from datasets import Dataset
    rows = [{"sentence": "rose", "label": "positive"}, {"label": "negative", "sentence": "fell"},
            {"id": "x", "sentence": "held", "label": "neutral"}]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = Dataset.from_list(rows).column_names[:2]
    texts = []
    for columns in ({}, {"text_column": first, "summary_column": second}):
        words = [word for name, column in columns.items() for word in (f"--{name}", column)]
        done = subprocess.run([PROGRAM, "preview", "seq2seq", "--model_name_or_path", place / "plain", "--dataset_name", data, *words],
                              capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1] and "[[negative</s>]]" in texts[0]


@pytest.mark.parametrize("name, source, target", [("samsum", "dialogue", "summary"), ("samsum/", "dialogue", "summary"), ("xsum", "id", "dialogue"),
                                                  ("rows", "id", "dialogue")])
def test_columns_of_published_sets(place, tmp_path, name, source, target):
    """Oracle: run_summarization.py's table of sets, else the first two columns; a choice among more is told."""
    rows = [{"id": "a", "dialogue": row["sentence"], "summary": row["label"]} for row in rows_of(place, "train")]
    (tmp_path / name).mkdir()
    (tmp_path / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = []
    for words in ([], ["--text_column", source, "--summary_column", target]):
        done = subprocess.run([PROGRAM, "preview", "seq2seq", "--model_name_or_path", place / "plain", "--dataset_name", f"{tmp_path}/{name}", *words],
                              capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stderr
        said.append(done)
    told = f'data: "{source}" is the source and "{target}" the target, of the columns [id, dialogue, summary]; --text_column and --summary_column name others'
    shown = [run.stdout.replace("warning: " + told, "").strip() for run in said]
    assert shown[0] == shown[1] and told in said[0].stdout + said[0].stderr and told not in said[1].stdout + said[1].stderr


def test_evaluations_take_the_training_sets_columns(place, tmp_path):
    """Oracle: the run with the columns named. The scripts of the reference take the training set's names for all splits."""
    (tmp_path / "data").mkdir()
    for split, columns in (("train", ("sentence", "label")), ("validation", ("label", "sentence"))):
        (tmp_path / "data" / f"{split}.jsonl").write_text(
            "".join(json.dumps({name: row[name] for name in columns}) + "\n" for row in rows_of(place, split)))
    common = flags(place, "plain", tmp_path / "out", max_steps=2, eval_steps=2, dataset_name=tmp_path / "data")
    expected = run(common).history
    assert run({**common, "text_column": None, "summary_column": None, "output_dir": tmp_path / "out2"}).history == expected


def test_translation_columns(place, tmp_path):
    """A column `translation`, files by flag, and the summary's columns found by their order."""
    (tmp_path / "data").mkdir()
    files = {}
    for split in ("train", "validation"):
        files[split] = tmp_path / "data" / f"{split}.json"
        files[split].write_text("".join(
            json.dumps({"translation": {"en": row["sentence"], "de": row["label"]}}) + "\n"
            for row in rows_of(place, split)))
    common = flags(place, "plain", tmp_path / "out", max_steps=3, eval_steps=3)
    expected = run(common).history
    by_order = {**common, "text_column": None, "summary_column": None}
    assert run({**by_order, "output_dir": tmp_path / "out2"}).history == expected
    found = run({**by_order, "dataset_name": None, "output_dir": tmp_path / "out3",
                 "train_file": files["train"], "validation_file": files["validation"],
                 "source_lang": "en", "target_lang": "de"})
    assert found.history == expected


def save_uneven_pairs(folder):
    """Targets of one to three words: the mean over a batch's tokens is no mean over its rows. Whole batches: Seq2SeqTrainer counts
    the last one as such."""
    from tiny_t5 import make_pairs
    folder.mkdir()
    for split, count, seed in (("train", 48, 0), ("validation", 12, 1)):
        rows = [dict(row, label=" ".join([row["label"]] * (1 + i % 3))) for i, row in enumerate(make_pairs(count, seed))]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# Model, PEFT's adapter or none, whether evaluations write answers (Seq2SeqTrainer takes the loss elsewhere then).
SMOOTHED = {"t5": ("plain", None, True), "bart_loss_alone": ("bart", None, False), "own_head_lora": ("v1_1", ["q", "v"], True)}


@pytest.mark.parametrize("name", SMOOTHED)
def test_label_smoothing(place, tmp_path, name):
    """Seq2SeqTrainer, whose smoother counts the tokens of all micro-batches of a step."""
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    kind, targets, answers = SMOOTHED[name]
    save_uneven_pairs(tmp_path / "data")
    tokenizer = AutoTokenizer.from_pretrained(place / kind)
    model = AutoModelForSeq2SeqLM.from_pretrained(place / kind)
    more = {}
    if targets:
        torch.manual_seed(4)
        model = get_peft_model(model, LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=targets, **LORA))
        model.save_pretrained(tmp_path / "start")
        more = dict(adapter_name_or_path=tmp_path / "start")
    shared = dict(max_steps=STEPS // 2, gradient_accumulation_steps=2, label_smoothing_factor=0.3)
    found = run(flags(tmp_path, kind, tmp_path / "out", model_name_or_path=place / kind, max_target_length=6, eval_steps=STEPS // 2,
                      **shared, **more, predict_with_generate=answers))
    sets = {split: Dataset.from_list([{**tokenizer("judge: " + row["sentence"], max_length=12, truncation=True),
                                       "labels": tokenizer(row["label"], max_length=6, truncation=True).input_ids}
                                      for row in rows_of(tmp_path, split)]) for split in ("train", "validation")}
    arguments = Seq2SeqTrainingArguments(
        tmp_path / "theirs", **shared, learning_rate=RATE, weight_decay=0.02, adam_epsilon=EPSILON, max_grad_norm=1.0, logging_steps=1,
        per_device_train_batch_size=BATCH, per_device_eval_batch_size=3, train_sampling_strategy="sequential", save_strategy="no",
        predict_with_generate=answers, generation_max_length=6, use_cpu=True, report_to="none", disable_tqdm=True)
    trainer = Seq2SeqTrainer(model, arguments, DataCollatorForSeq2Seq(tokenizer, model), sets["train"], sets["validation"], tokenizer)
    trainer.train()
    expected = [row for row in trainer.state.log_history if "loss" in row]
    assert found.losses == pytest.approx([row["loss"] for row in expected], abs=1e-4)
    assert [row["grad_norm"] for row in found.history if "grad_norm" in row] == pytest.approx([row["grad_norm"] for row in expected], rel=1e-3)
    [evaluated] = [row["eval_loss"] for row in found.history if "eval_loss" in row]
    assert evaluated == pytest.approx(trainer.evaluate()["eval_loss"], abs=1e-4)
    trainer.label_smoother.epsilon = 0
    assert abs(evaluated - trainer.evaluate()["eval_loss"]) > 0.01, "smoothing changed nothing"
