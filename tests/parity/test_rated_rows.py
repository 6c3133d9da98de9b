# Oracle: what TRL's KTOTrainer (_prepare_dataset, DataCollatorForUnpairedPreference) makes of the same rows with the same
# tokenizer; of rows that it cannot read, what it makes of the same in its own layout; the text of each error.
import random
import types

import pytest

import test_preferences
from data_probe import probe
from test_data import CHATML, Stack, sentence
from test_preferences import TEMPLATES, message_rows, odd, pieces_tokenizer, save_rows, save_tokenizer, shared, text_rows

UNDESIRABLE, DESIRABLE = 1, 2


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    return Stack(tmp_path_factory.mktemp("rated"))


@pytest.fixture(scope="module")
def tokenizers(stack):
    return {"bytes": stack.tokenizer, "llama": pieces_tokenizer(stack, "llama")}


def make_rows(kind, count=14):
    rng = random.Random(kind)
    if kind == "text":
        return [{"prompt": row["prompt"], "completion": row["chosen"], "label": rng.random() < 0.5, "score": 1}
                for row in text_rows(rng, count) if row["chosen"]]
    if kind == "messages":
        return [{"prompt": row["prompt"], "completion": row["chosen"], "label": rng.random() < 0.5} for row in message_rows(rng, count)]
    if kind == "pairs":
        return [{"prompt": odd(rng), "chosen": odd(rng) + " a", "rejected": " " + sentence(rng)} for _ in range(count)]
    if kind == "many_pairs":  # more than are taken apart at once
        return [{"prompt": f"q{i}", "chosen": f" a{i}", "rejected": f" b{i}"} for i in range(1005)]
    rows = message_rows(rng, count)
    for row in rows:
        del row["messages"]
    return shared(rows)


class Reference:
    """The trainer's rows and batches, without a model."""

    def __init__(self, stack, tokenizer, template, data, folder, max_length, batch_size):
        from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference

        tokenizer.chat_template = template
        trainer = object.__new__(stack.trl.KTOTrainer)
        trainer._tokenizer = tokenizer
        trainer.calculate_KL = batch_size > 0
        trainer.desirable_weight = trainer.undesirable_weight = 1.0
        rows = stack.datasets.load_dataset("json", data_files={"train": str(data)}, cache_dir=str(folder / "cache"))["train"]
        args = types.SimpleNamespace(dataset_num_proc=None, max_length=None, per_device_train_batch_size=batch_size)
        whole = trainer._prepare_dataset(rows, tokenizer, args, "eval")
        args.max_length = max_length or None
        self.rows = trainer._prepare_dataset(rows, tokenizer, args, "train")
        self.num_dropped = len(whole) - len(self.rows)
        lengths = [len(row["prompt_ids"]) + len(row["completion_ids"]) for row in whole]
        self.num_long = sum(length > max_length for length in lengths) if max_length else 0
        self.collator = DataCollatorForUnpairedPreference(tokenizer.pad_token_id, max_length or None)

    def batch(self, begin, size):
        """(answers, answers of other rows or none, ratings) of a batch; a document is (ids, labels)."""
        found = self.collator([self.rows[i] for i in range(begin, min(begin + size, len(self.rows)))])
        parts = []
        for prefix in ("", "KL_"):
            names = [prefix + name for name in ("input_ids", "attention_mask", "completion_mask")]
            documents = []
            for ids, seen, mask in zip(*(found[name] for name in names)) if names[0] in found else ():
                ids, mask = ids[seen.bool()].tolist(), mask[seen.bool()].tolist()
                documents.append((ids, [i if trained else -100 for i, trained in zip(ids, mask)]))
            parts.append(documents)
        return *parts, [DESIRABLE if label else UNDESIRABLE for label in found["label"].tolist()]


def request(tokenizer, data, **settings):
    return {"op": "prepare", "tokenizer": str(tokenizer), "data": str(data), "batch_size": 3, "strategy": "sequential",
            "max_length": 0, **settings}


def documents_of(row):
    begin, documents = 0, []
    for length in row["lengths"]:
        documents.append((row["ids"][begin:begin + length], row["labels"][begin:begin + length]))
        begin += length
    assert begin == len(row["ids"]) == len(row["labels"])
    return documents


CASES = [("text", "chatml", "bytes"), ("text", "chatml", "llama"), ("messages", "chatml", "bytes"), ("messages", "own_system", "bytes"),
         ("messages", "thinks", "llama"), ("pairs", "chatml", "llama"), ("many_pairs", "chatml", "bytes"),
         ("shared_messages", "thinks", "bytes")]


@pytest.mark.parametrize("kind, template, name", CASES, ids=["-".join(case) for case in CASES])
def test_rows_equal_the_trainers(stack, tokenizers, tmp_path, kind, template, name):
    data = save_rows(tmp_path, make_rows(kind))
    folder = save_tokenizer(tmp_path / "tokenizer", tokenizers[name], TEMPLATES[template])
    wanted = [(0, 3), (24, 3), (40, 4), (24, 0), (2, 2)] if kind != "many_pairs" else [(0, 3)]
    answers = probe(tmp_path / "probe", [request(folder, data, max_length=length, mismatched_rows=batch, batch_size=batch or 3,
                                                 may_fail=True) for length, batch in wanted])
    for answer, (length, size) in zip(answers, wanted):
        reference = Reference(stack, tokenizers[name], TEMPLATES[template], data, tmp_path, length, size)
        if len(reference.rows) == 0:
            assert "found no answer to train on" in answer["error"]
            continue
        own, others, ratings = [], [], []
        for begin in range(0, len(reference.rows), size or 3):
            of_batch = reference.batch(begin, size or 3)
            for all_of_kind, part in zip((own, others, ratings), of_batch):
                all_of_kind += part
        got = [documents_of(row) for row in answer["rows"]]
        assert [documents[0] for documents in got] == own
        assert [documents[1] for documents in got if len(documents) > 1] == others
        assert [row["rating"] for row in answer["rows"]] == ratings
        stats = answer["stats"]
        assert (stats["num_dropped"], stats["num_long"]) == (reference.num_dropped, reference.num_long)
        assert stats["num_targets"] == sum(label != -100 for _, labels in own for label in labels[1:])
        assert (stats["num_desirable"], stats["num_undesirable"]) == (ratings.count(DESIRABLE), ratings.count(UNDESIRABLE))
        for i, batch in enumerate(answer["batches"]):
            for side, documents in ((batch, own), (batch["mismatched"], others)):
                expected = documents[i * (size or 3):(i + 1) * (size or 3)]
                if side is None:
                    assert not expected
                    continue
                assert side["ids"] == [token for ids, _ in expected for token in ids]
                assert side["targets"] == [label for _, labels in expected for label in labels[1:] + [-100]]
                assert side["row_tokens"] == [len(ids) for ids, _ in expected]


def test_the_cases_cover_what_is_rare(stack, tokenizers, tmp_path):
    """Drops, cut rows, blocks that are not full, and answers that reach further behind another prompt."""
    data = save_rows(tmp_path, make_rows("text"))
    whole, cut = (Reference(stack, tokenizers["bytes"], CHATML, data, tmp_path, length, size) for length, size in ((0, 3), (24, 3)))
    assert cut.num_dropped > 2 and cut.num_long > cut.num_dropped and len(whole.rows) % 3
    # An answer that is cut behind its own prompt and whole, or less cut, behind another's.
    lengths = [len(row["prompt_ids"]) for row in cut.rows]
    answers = [len(row["completion_ids"]) for row in cut.rows]
    assert any(lengths[i] + answers[i] > 24 and lengths[i] > lengths[i + 1] for i in range(len(lengths) - 1) if i % 3 < 2)


def prepared(stack, tmp_path, rows, name="rows", **settings):
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    (tmp_path / name).mkdir(exist_ok=True)
    answer, = probe(tmp_path / name, [request(folder, save_rows(tmp_path / name, rows), **{"mismatched_rows": 2, **settings})])
    return answer


ASKED, GOOD, SYSTEM = test_preferences.ASKED, test_preferences.GOOD, test_preferences.SYSTEM
PLAIN = {"prompt": [ASKED], "completion": [GOOD], "label": True}
# A row that the reference cannot read, and the same row for it.
LAYOUTS = {
    "prompt_of_text": (dict(PLAIN, prompt=ASKED["content"]), PLAIN),
    "answer_of_text": (dict(PLAIN, completion=GOOD["content"]), PLAIN),
    "number": (dict(PLAIN, label=1), PLAIN),
    "text": (dict(PLAIN, label="True"), PLAIN),  # as pandas writes it into a table
    "capitals": (dict(PLAIN, label="FALSE"), dict(PLAIN, label=False)),  # as Excel does
    "float": (dict(PLAIN, label=0.0), dict(PLAIN, label=False)),  # pandas, where another row is empty
    "float_text": (dict(PLAIN, label="1.0"), PLAIN),
    "system": (dict(PLAIN, system=SYSTEM["content"]), dict(PLAIN, prompt=[SYSTEM, ASKED])),
    "sharegpt": (dict(PLAIN, completion=[{"from": "gpt", "value": GOOD["content"]}]), PLAIN),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts(stack, tmp_path, layout):
    row, same = LAYOUTS[layout]
    found, expected = (prepared(stack, tmp_path, [one] * 3, name)["rows"] for name, one in (("other", row), ("same", same)))
    assert found == expected


def test_long_answers_are_left_out_where_that_is_wanted(stack, tmp_path):
    rows = [{"prompt": "a b", "completion": " c" * count, "label": True} for count in (1, 60, 2)]
    found = prepared(stack, tmp_path, rows, max_length=16, long_rows="drop")
    assert len(found["rows"]) == 2 and found["stats"]["num_long"] == 1 and found["stats"]["num_dropped"] == 0
    assert found["stats"]["longest_rows"][0]["tokens"] <= 16


def test_answers_of_pairs_are_counted_where_nothing_is_left(stack, tmp_path):
    """Oracle: two answers a pair, each dropped by itself."""
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    pair = {"prompt": "a b c d", "chosen": " e", "rejected": " f"}
    answer, = probe(tmp_path / "probe", [request(folder, save_rows(tmp_path, [pair] * 3), may_fail=True, max_length=4, mismatched_rows=3)])
    assert answer == {"error": "probe: found no answer to train on in 3 rows (6 answers dropped because nothing is left of them, 6 longer than "
                               "max_length 4 (truncate), 0 bad), expected at least one; check max_length"}


TEXT = {"prompt": "a", "completion": " b", "label": True}
ERRORS = {
    "a_label_of_text": (dict(TEXT, label="yes"), ':1: found "yes" in "label", expected true or false (or 1 or 0); write true where the answer is desirable'),
    "a_label_between": (dict(TEXT, label=0.7), ':1: found 0.7 in "label", expected true or false'),
    "a_label_beyond": (dict(TEXT, label=2), ':1: found 2 in "label", expected true or false'),
    "no_label": ({"prompt": "a", "completion": "b"}, ':1: found a row without "label" (columns: prompt, completion), expected rated answers'),
    "null_label": (dict(TEXT, label=None), 'found a row without "label"'),
    "another_name": ({"prompt": "a", "completion": "b", "lable": True}, "did you mean --dataset_columns label=lable?"),
    "a_rated_pair": ({"prompt": "a", "chosen": "b", "rejected": "c", "label": True}, ':1: found "label" with "chosen" and "rejected", which already say'),
    "common_names": ({"question": "a", "response": "b", "thumbs_up": True},
                     "did you mean --dataset_columns prompt=question completion=response label=thumbs_up?"),
    "an_example": ({"text": "a"}, "train on it with strata sft, or name them with --dataset_columns prompt=COLUMN completion=COLUMN label=COLUMN"),
    "rated_messages": ({"messages": [ASKED, GOOD], "label": True}, 'write the last answer of "messages" as "completion" and what is before it as "prompt"'),
    "a_number": (dict(TEXT, completion=3), ':1: found a number in "completion", expected a string or a list of messages'),
    "no_message": ({"prompt": [ASKED], "completion": [], "label": True}, ':1: found an empty list in "completion", expected a list of messages'),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_row(stack, tmp_path, name):
    row, message = ERRORS[name]
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    answer, = probe(tmp_path / "probe", [request(folder, save_rows(tmp_path, [row]), mismatched_rows=2, may_fail=True)])
    assert message in answer["error"], answer


def test_rows_of_two_kinds(stack, tmp_path):
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    rows = [TEXT, {"prompt": "a", "chosen": "b", "rejected": "c"}]
    answer, = probe(tmp_path / "probe", [request(folder, save_rows(tmp_path, rows), mismatched_rows=2, may_fail=True)])
    assert "data.jsonl:2: found preferences of text, expected a rated answer of text as in" in answer["error"]
