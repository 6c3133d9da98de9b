"""Oracle: what run_translation.py makes of the same rows and settings: transformers' tokenizers of mBART, mBART-50 and NLLB with the
languages set, its collator, a plain loop with torch's AdamW, generate(); transformers reading what a run leaves."""

import json

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

from running import run_strata, run_strata_raw
from tiny_translation import LANGUAGES, save_translations, save_translator

STEPS, BATCH, RATE = 8, 4, 5e-3
EPSILON = 1e-4


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("translation")
    for kind in LANGUAGES:
        save_translator(kind, folder / kind)
        save_translations(folder / kind / "data", kind)
    return folder


def flags(place, kind, output, **more):
    source, target = LANGUAGES[kind]
    return {"model_name_or_path": place / kind, "dataset_name": place / kind / "data", "output_dir": output, "source_lang": source,
            "target_lang": target, "max_source_length": 12, "max_target_length": 14, "per_device_train_batch_size": BATCH,
            "per_device_eval_batch_size": 3, "max_steps": STEPS, "learning_rate": RATE, "logging_steps": 1, "weight_decay": 0.0,
            "adam_epsilon": EPSILON, "max_grad_norm": 1.0, "eval_strategy": "steps", "eval_steps": STEPS, "save_strategy": "no",
            "train_sampling_strategy": "sequential", "disable_tqdm": True, **more}


class Reference:
    def __init__(self, place, kind, model=None):
        self.folder, self.kind = place / kind, kind
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder)
        self.tokenizer.src_lang, self.tokenizer.tgt_lang = LANGUAGES[kind]
        self.model = AutoModelForSeq2SeqLM.from_pretrained(model or self.folder)
        self.collate = DataCollatorForSeq2Seq(self.tokenizer, model=self.model)

    def rows(self, split):
        source, target = (code.split("_")[0] for code in LANGUAGES[self.kind])
        texts = [json.loads(line)["translation"] for line in (self.folder / "data" / f"{split}.jsonl").open()]
        rows = []
        for text in texts:
            row = dict(self.tokenizer(text[source], max_length=12, truncation=True))
            row["labels"] = self.tokenizer(text_target=text[target], max_length=14, truncation=True)["input_ids"]
            rows.append(row)
        return rows

    def train(self):
        self.model.train()  # it has no dropout
        rows, losses = self.rows("train"), []
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATE, eps=EPSILON, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 - i / STEPS)
        for step in range(STEPS):
            start = step * BATCH % len(rows)
            loss = self.model(**self.collate(rows[start:start + BATCH])).loss
            losses.append(loss.item())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        return losses

    def answers(self, **settings):
        self.model.eval()
        batch = self.collate(self.rows("validation"))
        return self.tokenizer.batch_decode(self.model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_length=14, do_sample=False, num_beams=1, **settings),
            skip_special_tokens=True)

    def accuracy(self, **settings):
        targets = self.tokenizer.batch_decode([row["labels"] for row in self.rows("validation")], skip_special_tokens=True)
        found = self.answers(**settings)
        return sum(a.strip() == b.strip() for a, b in zip(found, targets)) / len(targets)


@pytest.mark.parametrize("kind", LANGUAGES)
def test_a_run_is_the_reference_loop(place, tmp_path, kind):
    found = run_strata(flags(place, kind, tmp_path / "out"), 1, recipe="seq2seq")
    losses = Reference(place, kind).train()
    assert found.losses == pytest.approx(losses, abs=1e-4)
    assert min(losses) < losses[0] - 0.2
    Reference(place, kind, model=tmp_path / "out").answers(decoder_start_token_id=2)


def save_one_word(folder, kind):
    """Every target is the same word, which a model soon says."""
    save_translations(folder, kind)
    for split in ("train", "validation"):
        rows = [json.loads(line) for line in (folder / f"{split}.jsonl").open()]
        for row in rows:
            row["translation"][LANGUAGES[kind][1].split("_")[0]] = "return"
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("kind,forced", [("mbart", None), ("mbart50", "target"), ("nllb", "target"), ("nllb", "other")])
def test_answers_begin_with_the_language(place, tmp_path, kind, forced):
    """mBART's, whose files name no start, with the target's; the others as --forced_bos_token says."""
    source, target = LANGUAGES[kind]
    code = {"target": target, "other": source}.get(forced)
    data = save_one_word(tmp_path / "data", kind)
    more = {} if code is None else {"forced_bos_token": code}
    found = run_strata(flags(place, kind, tmp_path / "out", dataset_name=data, predict_with_generate=True, max_steps=24, eval_steps=24,
                             learning_rate=2e-2, **more), 1, recipe="seq2seq")
    [evaluated] = [row for row in found.history if "eval_accuracy" in row]
    reference = Reference(place, kind, model=tmp_path / "out")
    reference.folder = tmp_path
    settings = {"decoder_start_token_id": reference.tokenizer.convert_tokens_to_ids(target) if kind == "mbart" else 2}
    if code is not None:
        settings["forced_bos_token_id"] = reference.tokenizer.convert_tokens_to_ids(code)
    assert evaluated["eval_accuracy"] == pytest.approx(reference.accuracy(**settings))
    assert forced == "other" or evaluated["eval_accuracy"] == 1


def test_columns_of_one_language(place, tmp_path):
    """--lang of run_summarization.py: the tokenizer's for sources and targets."""
    rows = [json.loads(line)["translation"] for line in (place / "mbart" / "data" / "train.jsonl").open()]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps({"text": row["en"], "summary": row["ro"]}) + "\n" for row in rows))
    settings = flags(place, "mbart", tmp_path / "out", dataset_name=tmp_path / "data", lang="ro_RO", eval_strategy="no")
    del settings["source_lang"], settings["target_lang"]
    found = run_strata(settings, 1, recipe="seq2seq")
    reference = Reference(place, "mbart")
    reference.tokenizer.src_lang = reference.tokenizer.tgt_lang = "ro_RO"
    assert found.losses == pytest.approx(reference.train(), abs=1e-4)


@pytest.mark.parametrize("change,message", [
    (dict(source_lang=None, target_lang=None), "source_lang: found none for MBartTokenizer, which marks the language of each text"),
    (dict(target_lang="ro"), 'source_lang and target_lang: found "ro", expected a language of'),
    (dict(forced_bos_token="ro"), 'forced_bos_token: found "ro", expected a language of MBartTokenizer such as ro_RO'),
    (dict(lang="ro_RO"), "--lang: found with --source_lang, expected one or the other"),
])
def test_wrong_languages_are_named(place, tmp_path, change, message):
    settings = {key: value for key, value in flags(place, "mbart", tmp_path / "out", **change).items() if value is not None}
    if "source_lang" not in settings:
        settings.update(text_column="a", summary_column="b")
    found = run_strata_raw(settings, recipe="seq2seq")
    assert found.returncode == 2
    assert message in found.stderr
