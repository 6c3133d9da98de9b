# Oracle: what TRL's DPOTrainer (_prepare_dataset, DataCollatorForPreference) makes of the same rows with the same tokenizer; of
# rows that it cannot read, what it makes of the same preferences in its own layout; the text of each error.
import json
import random
import types

import pytest

from data_probe import probe
from test_data import CHATML, EXTRAS, ODD, SPECIALS, WORDS, Stack, sentence, turns

# A system turn of its own where the conversation has none, and an answer that is opened in the prompt.
SYSTEM_OF_ITS_OWN = ("{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHATML)
THINKS = CHATML.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n\\n</think>\\n' }}{% endif %}")
TEMPLATES = {"chatml": CHATML, "extras": EXTRAS, "own_system": SYSTEM_OF_ITS_OWN, "thinks": THINKS}
TOOL = [{"type": "function", "function": {"name": "f", "description": "d \u00e9"}}]


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    return Stack(tmp_path_factory.mktemp("preferences"))


def pieces_tokenizer(stack, kind):
    """Pieces of words that begin with a blank, as SentencePiece makes them."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    rng = random.Random(1)
    texts = [sentence(rng) for _ in range(300)]
    if kind == "llama":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        trainer = trainers.BpeTrainer(vocab_size=600, show_progress=False, max_token_length=16, special_tokens=[
            "<unk>", *SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256))])
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=300, unk_token="<unk>", show_progress=False, special_tokens=["<unk>", *SPECIALS])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    begin = tokenizer.token_to_id("<|begin|>")
    if kind == "llama":
        tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", begin)])
    return stack.transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin|>", eos_token="<|im_end|>",
                                                      pad_token="<pad>", unk_token="<unk>")


@pytest.fixture(scope="module")
def tokenizers(stack):
    return {"bytes": stack.tokenizer, "llama": pieces_tokenizer(stack, "llama"), "unigram": pieces_tokenizer(stack, "unigram")}


def odd(rng):
    return "".join(rng.choices(ODD, k=rng.randint(1, 3)))


def text_rows(rng, count):
    ends = ["", "<|im_end|>", " ", "\n", "s"]
    rows = [{"prompt": sentence(rng), "chosen": rng.choice(["", " "]) + sentence(rng, 1, 12) + rng.choice(ends),
             "rejected": rng.choice(["", " "]) + sentence(rng, 1, 12) + rng.choice(ends), "score": i} for i in range(count)]
    return rows + [{"prompt": odd(rng), "chosen": odd(rng), "rejected": odd(rng), "score": 0} for _ in range(count)] + [
        {"prompt": "", "chosen": "a b", "rejected": "c d", "score": 0}, {"prompt": "q", "chosen": "", "rejected": "a", "score": 0}]


def shared_text_rows(rng, count):
    rows = []
    for _ in range(count):
        prompt, first = sentence(rng), rng.choice(WORDS[:5])
        rows.append({"chosen": prompt + " " + sentence(rng), "rejected": prompt + rng.choice([" ", "  ", "\n", ""]) + sentence(rng)})
        rows.append({"chosen": prompt + " " + first, "rejected": prompt + " " + first + sentence(rng)})
    # characters that share bytes, one text that goes on, the same text, no shared beginning, one character
    for chosen, rejected in [("q \u00e9t\u00e9", "q \u00e8re"), ("q \u6771\u4eac", "q \u6771\u5317"), ("\U0001f389", "\U0001f680"),
                             ("a \u00e9", "a \u00e9\u00e9"), ("same", "same"), ("yes", "no"), ("a", "ab"), ("a b", "a  b"), (" x", " y"), ("\u00e9", "\u00e9")]:
        rows.append({"chosen": chosen, "rejected": rejected})
    return rows


def message_rows(rng, count, odd_texts=False):
    rows = []
    for i in range(count):
        chat = turns(rng, rng.randint(1, 3))
        answer = rng.choice([["assistant"], ["assistant", "user", "assistant"]])
        other = [{"role": role, "content": sentence(rng, 1, 9)} for role in answer]
        rows.append({"prompt": chat[:-1], "chosen": chat[-1:], "rejected": other, "margin": 0.5, "messages": chat})
    if odd_texts:
        for row in rows:
            for message in row["prompt"] + row["chosen"] + row["rejected"]:
                message["content"] = odd(rng)
    return rows


def shared(rows):
    return [{"chosen": row["prompt"] + row["chosen"], "rejected": row["prompt"] + row["rejected"]} for row in rows]


def make_rows(kind, count=12):
    rng = random.Random(kind)
    if kind in ("text", "shared_text"):
        return text_rows(rng, count) if kind == "text" else shared_text_rows(rng, count)
    rows = message_rows(rng, count, odd_texts="odd" in kind)
    for row in rows:
        del row["messages"]
        if "users" in kind:  # no system turn
            row["prompt"] = [message for message in row["prompt"] if message["role"] != "system"]
    if "shared" in kind:
        same = {"chosen": rows[0]["prompt"] + rows[0]["chosen"], "rejected": rows[0]["prompt"] + rows[0]["chosen"]}
        longer = {"chosen": rows[1]["prompt"] + rows[1]["chosen"],
                  "rejected": rows[1]["prompt"] + rows[1]["chosen"] + [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
        return shared(rows) + [same, longer]
    if "extras" in kind:
        extras = {"documents": [{"title": "A", "text": "x"}, {"title": "B", "text": ""}], "mood": "!"}
        return [{**row, "tools": None if i % 3 == 0 else json.dumps(TOOL) if "json" in kind else TOOL, "chat_template_kwargs": extras}
                for i, row in enumerate(rows)]
    return rows


def save_rows(folder, rows):
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


class Reference:
    """The trainer's rows and batches, without a model."""

    def __init__(self, stack, tokenizer, template, data, folder, max_length, mode):
        from trl.data_utils import _tokenize, is_conversational
        from trl.trainer.dpo_trainer import DataCollatorForPreference

        tokenizer.chat_template = template
        trainer = object.__new__(stack.trl.DPOTrainer)
        trainer._tokenizer = tokenizer
        rows = stack.datasets.load_dataset("json", data_files={"train": str(data)}, cache_dir=str(folder / "cache"))["train"]
        args = types.SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode=mode)
        whole = trainer._prepare_dataset(rows, tokenizer, args, "train")
        args.max_length = max_length or None
        self.rows = trainer._prepare_dataset(rows, tokenizer, args, "train")
        self.num_dropped = len(whole) - len(self.rows)
        longest = [max(len(row["chosen_ids"]), len(row["rejected_ids"])) + len(row["prompt_ids"]) for row in whole]
        self.num_long = sum(length > max_length for length in longest) if max_length else 0
        self.collator = DataCollatorForPreference(tokenizer.pad_token_id, max_length or None, mode)

        def prompt_of(row):
            if not is_conversational(row):
                return _tokenize(tokenizer, row["prompt"])["input_ids"]
            tools = row.get("tools")
            tools = json.loads(tools) if isinstance(tools, str) else tools
            return _tokenize(tokenizer, row["prompt"], add_generation_prompt=True, tools=tools, **row.get("chat_template_kwargs", {}))["input_ids"]

        self.num_split = sum(len(row["prompt_ids"]) < len(prompt_of(row)) for row in whole)

    def batch(self, begin, size):
        """Documents of a batch, each row's chosen before its rejected, as (ids, labels)."""
        examples = [self.rows[i] for i in range(begin, min(begin + size, len(self.rows)))]
        found = self.collator(examples)
        documents = []
        for ids, seen, mask in zip(found["input_ids"], found["attention_mask"].bool(), found["completion_mask"]):
            ids, mask = ids[seen].tolist(), mask[seen].tolist()
            documents.append((ids, [i if trained else -100 for i, trained in zip(ids, mask)]))
        half = len(examples)
        return [document for pair in zip(documents[:half], documents[half:]) for document in pair]


def save_tokenizer(folder, tokenizer, template):
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def request(tokenizer, data, **settings):
    return {"op": "prepare", "tokenizer": str(tokenizer), "data": str(data), "batch_size": 3, "strategy": "sequential",
            "max_length": 0, "truncation_mode": "keep_start", **settings}


def documents_of(row):
    first, second = row["lengths"]
    assert first + second == len(row["ids"]) == len(row["labels"])
    return [(row["ids"][:first], row["labels"][:first]), (row["ids"][first:], row["labels"][first:])]


KINDS = ["text", "shared_text", "messages", "odd_messages", "shared_messages", "odd_shared_messages"]
CASES = [*[(kind, "chatml", tokenizer) for kind in KINDS for tokenizer in ("bytes", "llama", "unigram")],
         *[(kind, template, "bytes") for kind in ("messages", "shared_messages") for template in ("own_system", "thinks", "llama3", "qwen3", "qwen2_5")],
         ("users_messages", "gemma", "bytes"), ("extras_messages", "extras", "bytes"), ("extras_messages_json", "extras", "llama")]


@pytest.mark.parametrize("kind, template, name", CASES, ids=["-".join(case) for case in CASES])
def test_rows_equal_the_trainers(stack, tokenizers, tmp_path, kind, template, name):
    source = TEMPLATES.get(template) or stack.template(template)
    data = save_rows(tmp_path, make_rows(kind))
    folder = save_tokenizer(tmp_path / "tokenizer", tokenizers[name], source)
    lengths = [(0, "keep_start"), (24, "keep_start"), (24, "keep_end"), (90, "keep_start"), (90, "keep_end"), (2, "keep_end")]
    answers = probe(tmp_path / "probe", [request(folder, data, max_length=length, truncation_mode=mode, may_fail=True) for length, mode in lengths])
    for answer, (length, mode) in zip(answers, lengths):
        reference = Reference(stack, tokenizers[name], source, data, tmp_path, length, mode)
        if len(reference.rows) == 0:
            assert "found no pair to train on" in answer["error"]
            continue
        got = [document for row in answer["rows"] for document in documents_of(row)]
        want = reference.batch(0, len(reference.rows))
        assert got == want
        stats = answer["stats"]
        assert (stats["num_dropped"], stats["num_long"]) == (reference.num_dropped, reference.num_long)
        assert stats["num_split_prompts"] == reference.num_split
        assert stats["num_targets"] == sum(label != -100 for _, labels in want for label in labels[1:])
        assert stats["longest_rows"][0]["tokens"] == (length if reference.num_long else max(len(ids) for ids, _ in want))
        for i, batch in enumerate(answer["batches"]):
            expected = reference.batch(3 * i, 3)
            assert batch["ids"] == [i for ids, _ in expected for i in ids]
            assert batch["targets"] == [i for _, labels in expected for i in labels[1:] + [-100]]
            assert len(batch["offsets"]) == 1 + len(expected)


def test_the_cases_cover_what_is_rare(stack, tokenizers, tmp_path):
    """Drops, cut rows, and prompts that do not end at a token's border."""
    data = save_rows(tmp_path, make_rows("text"))
    texts = Reference(stack, tokenizers["bytes"], CHATML, data, tmp_path, 24, "keep_start")
    assert texts.num_dropped > 3 and texts.num_long > texts.num_dropped and texts.num_split >= 3
    thinks = Reference(stack, tokenizers["bytes"], THINKS, save_rows(tmp_path, make_rows("messages")), tmp_path, 0, "keep_start")
    assert thinks.num_split == len(thinks.rows)


def prepared(stack, tmp_path, rows, name="rows", tokenizer=None, **settings):
    folder = save_tokenizer(tmp_path / "tokenizer", tokenizer or stack.tokenizer, CHATML)
    (tmp_path / name).mkdir(exist_ok=True)
    answer, = probe(tmp_path / name, [request(folder, save_rows(tmp_path / name, rows), **settings)])
    return answer


SAID = {"user": "What is it?", "assistant": "It is a cat."}
ASKED, GOOD = ({"role": role, "content": text} for role, text in SAID.items())
BAD = {"role": "assistant", "content": "No \u00e9."}
SYSTEM = {"role": "system", "content": "Be kind."}
PLAIN = {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]}
WITH_SYSTEM = {**PLAIN, "prompt": [SYSTEM, ASKED]}
SHAREGPT = {"user": "human", "assistant": "gpt", "system": "system"}


def from_value(*messages):
    return [{"from": SHAREGPT[message["role"]], "value": message["content"]} for message in messages]


# A row that the reference cannot read, the settings that it needs, the same row for the reference, and the columns that nothing is made of.
LAYOUTS = {
    "prompt_beside_conversations": (  # ultrafeedback_binarized
        {"prompt": SAID["user"], "prompt_id": "7", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD], "messages": [ASKED, GOOD], "score_chosen": 8.5},
        {}, PLAIN, {"messages", "prompt", "prompt_id", "score_chosen"}),
    "prompt_beside_answers": ({"prompt": SAID["user"], "chosen": [GOOD], "rejected": [BAD]}, {}, PLAIN, set()),
    "prompt_list_beside_texts": ({"prompt": [SYSTEM, ASKED], "chosen": GOOD["content"], "rejected": BAD["content"]}, {}, WITH_SYSTEM, set()),
    "orca": ({"system": SYSTEM["content"], "question": SAID["user"], "chosen": GOOD["content"], "rejected": BAD["content"]},
             {"columns": {"instruction": "question"}}, WITH_SYSTEM, set()),
    "alpaca": ({"instruction": "What is", "input": "it?", "chosen": GOOD["content"], "rejected": BAD["content"], "id": 1},
               {}, {**PLAIN, "prompt": [{"role": "user", "content": "What is\n\nit?"}]}, {"id"}),
    "history": ({"instruction": "More?", "history": [[SAID["user"], SAID["assistant"]]], "chosen": "a", "rejected": "b"}, {},
                {"prompt": [ASKED, GOOD, {"role": "user", "content": "More?"}], "chosen": [{"role": "assistant", "content": "a"}],
                 "rejected": [{"role": "assistant", "content": "b"}]}, set()),
    "sharegpt": ({"conversations": from_value(SYSTEM, ASKED), "chosen": from_value(GOOD)[0], "rejected": from_value(BAD)[0]}, {}, WITH_SYSTEM, set()),
    "sharegpt_lists": ({"prompt": from_value(SYSTEM, ASKED), "chosen": from_value(GOOD), "rejected": from_value(BAD)}, {}, WITH_SYSTEM, set()),
    "sharegpt_shared": ({"chosen": from_value(ASKED, GOOD), "rejected": from_value(ASKED, BAD), "score": 1}, {}, PLAIN, {"score"}),
    "system_column": ({"system": SYSTEM["content"], "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, {}, WITH_SYSTEM, set()),
    "renamed": ({"question": [ASKED], "good": [GOOD], "bad": [BAD]}, {"columns": {"prompt": "question", "chosen": "good", "rejected": "bad"}}, PLAIN, set()),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_the_trainer_does_not_read(stack, tmp_path, name):
    row, settings, same, unused = LAYOUTS[name]
    answer = prepared(stack, tmp_path, [row, row], **settings)
    data = save_rows(tmp_path, [same, same])
    reference = Reference(stack, stack.tokenizer, CHATML, data, tmp_path, 0, "keep_start")
    assert [document for found in answer["rows"] for document in documents_of(found)] == reference.batch(0, 2)
    assert answer["stats"]["unused_columns"] == {column: 2 for column in unused}
    roles = answer["stats"]["roles"]
    assert roles.get("assistant", 0) + roles.get("gpt", 0) >= 4


def test_a_space_at_the_end_is_no_shared_beginning(stack, tmp_path):
    """Of texts that differ at once the reference looks at the last character of the first one, and cuts it in two."""
    answer = prepared(stack, tmp_path, [{"chosen": "yes ", "rejected": "no "}])
    begin, end = stack.tokenizer.bos_token_id, stack.tokenizer.eos_token_id
    for (ids, labels), text in zip(documents_of(answer["rows"][0]), ("yes ", "no ")):
        assert ids == [begin, *stack.tokenizer(text, add_special_tokens=False)["input_ids"], end] and labels == [-100, *ids[1:]]


def test_messages_that_are_not_learnt(stack, tmp_path):
    """"weight": 0 is no part of an answer's likelihood; the reference trains it."""
    steps = [{"role": "assistant", "content": "hm", "weight": 0}, {"role": "user", "content": "go on"}, GOOD]
    answer = prepared(stack, tmp_path, [{"prompt": [{**ASKED, "weight": 1}], "chosen": steps, "rejected": [BAD]}])
    learnt = [stack.tokenizer.decode([i for i in labels if i != -100]) for _, labels in documents_of(answer["rows"][0])]
    assert "hm" not in learnt[0] and SAID["assistant"] in learnt[0] and BAD["content"] in learnt[1]


def test_dropping_long_rows_and_shuffling(stack, tmp_path):
    rows = make_rows("messages", 30)
    whole = prepared(stack, tmp_path, rows)["rows"]
    short = [row for row in whole if max(row["lengths"]) <= 90]
    assert 0 < len(short) < len(whole)
    assert prepared(stack, tmp_path, rows, max_length=90, long_rows="drop")["rows"] == short
    order, = probe(tmp_path / "order", [{"op": "shuffle", "seed": 5, "num_rows": 30}])
    assert prepared(stack, tmp_path, rows, shuffle_dataset=True, seed=5)["rows"] == [whole[i] for i in order]


EXPECTED = ('expected preferences: a better answer in "chosen" and a worse one in "rejected"; ')
NAME_THEM = "name them with --dataset_columns chosen=COLUMN rejected=COLUMN"
NO_SHARED = ('found no message with which both "chosen" and "rejected" begin, before an answer in each, expected the prompt there or in "prompt"')
BAD_ROWS = [
    ({"text": "x"}, f"found an example to imitate (columns: text), {EXPECTED}train on it with strata sft, or {NAME_THEM}"),
    ({"messages": [ASKED, GOOD]}, f"found an example to imitate (columns: messages), {EXPECTED}train on it with strata sft, or {NAME_THEM}"),
    ({"prompt": "a", "completion": "b", "label": True},
     f"found a rated answer (columns: prompt, completion, label), {EXPECTED}train on it with strata kto, or {NAME_THEM}"),
    ({"instruction": "a", "output": "b"}, f"found an example to imitate (columns: instruction, output), {EXPECTED}train on it with strata sft, or {NAME_THEM}"),
    ({"question": "a", "best": "b"}, f"found no preferences (columns: question, best), {EXPECTED}{NAME_THEM}"),
    ({"prompt": "a", "choosen": "b", "rejected": "c"},
     'found a column "rejected" without "chosen" (columns: prompt, choosen, rejected), expected both; add the other answers, or name their column '
     "with --dataset_columns chosen=COLUMN; did you mean --dataset_columns chosen=choosen?"),
    ({"prompt": "a", "chosen": "b", "rejected": None},
     'found a column "chosen" without "rejected" (columns: prompt, chosen), expected both; add the other answers, or name their column with '
     "--dataset_columns rejected=COLUMN"),
    ({**PLAIN, "chosen": 7}, 'found a number in "chosen" and a list in "rejected", expected two strings or two lists of messages'),
    ({**PLAIN, "rejected": "b"}, 'found a list in "chosen" and a string in "rejected", expected two strings or two lists of messages'),
    ({**PLAIN, "prompt": 7}, 'found a number in "prompt", expected a string or a list of messages'),
    ({**PLAIN, "prompt": ASKED}, 'found an object in "prompt", expected a string or a list of messages'),
    ({**PLAIN, "prompt": []}, 'found an empty list in "prompt", expected a list of messages with role and content'),
    ({**PLAIN, "chosen": []}, 'found an empty list in "chosen", expected a list of messages with role and content'),
    ({**PLAIN, "rejected": [{"content": "b"}]},
     'found no "role" in message 1 of "rejected", expected an object with "role" (a string) and "content" (a text, a list of parts, or what a tool returned)'),
    ({**PLAIN, "rejected": ["b"]}, 'found a string in message 1 of "rejected", expected an object with "role" (a string) and "content" (a text, a list of parts, or what a tool returned)'),
    ({**PLAIN, "chosen": {"role": "assistant", "content": 7}},
     'found a number as "content" in message 1 of "chosen", expected an object with "role" (a string) and "content" (a text, a list of parts, or what a tool returned)'),
    ({"chosen": [GOOD], "rejected": [BAD]}, NO_SHARED),
    ({"chosen": [ASKED], "rejected": [ASKED, BAD]}, NO_SHARED),
    ({"prompt": "q", "chosen": [ASKED, GOOD], "rejected": [GOOD]}, NO_SHARED),
    ({"chosen": "", "rejected": "b"}, 'found an empty text in "chosen", expected the prompt and an answer'),
    ({"question": "Who?", "chosen": "a", "rejected": "b"},
     'found a text in "question" with which "chosen" and "rejected" do not begin (columns: question, chosen, rejected), expected the prompt there or in '
     '"prompt"; name its column with --dataset_columns instruction=question (a conversation) or prompt=question (plain text)'),
    ({"instruction": 7, "chosen": "a", "rejected": "b"}, 'found a number in "instruction", expected a string'),
    ({**WITH_SYSTEM, "system": "Be rude."}, 'found a system message and another text in "system", expected one of them'),
]


@pytest.mark.parametrize("row, message", BAD_ROWS, ids=[str(i) for i in range(len(BAD_ROWS))])
def test_bad_rows(stack, tmp_path, row, message):
    """Each as the first row of its file."""
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    data = save_rows(tmp_path, [row])
    answer, = probe(tmp_path / "probe", [request(folder, data, may_fail=True)])
    assert answer == {"error": f"{data}:1: {message}"}


def test_an_answer_that_no_token_stands_before(stack, tokenizers, tmp_path):
    """No prompt, no BOS and an end token alone: the reference takes the likelihood of nothing."""
    folder = save_tokenizer(tmp_path / "tokenizer", tokenizers["unigram"], CHATML)
    data = save_rows(tmp_path, [{"prompt": "", "chosen": "a b", "rejected": ""}])
    answer, = probe(tmp_path / "probe", [request(folder, data, may_fail=True)])
    assert answer == {"error": f'{data}:1: found no token to train on in "rejected", expected an answer to a prompt'}


MIXED = [
    ({"prompt": "q", "chosen": "a", "rejected": "b"}, PLAIN, "found preferences of messages, expected preferences of text"),
    ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"chosen": "q a", "rejected": "q b"},
     "found preferences of text without a prompt of their own, expected preferences of text"),
    (PLAIN, {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
     "found preferences of messages without a prompt of their own, expected preferences of messages"),
]


@pytest.mark.parametrize("first, second, message", MIXED)
def test_rows_of_two_kinds(stack, tmp_path, first, second, message):
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    data = save_rows(tmp_path, [first, second])
    answer, = probe(tmp_path / "probe", [request(folder, data, may_fail=True)])
    assert answer == {"error": f"{data}:2: {message} as in {data}:1; give all rows of a set the same columns"}


REMOVE = "found with preferences, expected it only where examples are imitated; remove it"
BAD_SETTINGS = [
    ({"truncation_mode": "keep_middle"}, 'truncation_mode: found "keep_middle", expected keep_start or keep_end'),
    ({"max_length": 1}, "max_length: found 1, expected at least 2 for preferences (a token of an answer and one before it), or none"),
    ({"packing": True, "max_length": 64}, f"packing: {REMOVE}"),
    ({"long_rows": "split"}, f"long_rows split: {REMOVE}"),
    ({"completion_only_loss": False}, f"completion_only_loss false: {REMOVE}"),
    ({"assistant_only_loss": True}, f"assistant_only_loss: {REMOVE}"),
]


@pytest.mark.parametrize("settings, message", BAD_SETTINGS)
def test_settings_that_do_not_fit(stack, tmp_path, settings, message):
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    answer, = probe(tmp_path / "probe", [request(folder, save_rows(tmp_path, [PLAIN]), may_fail=True, **settings)])
    assert answer == {"error": message}


def test_nothing_is_left(stack, tmp_path):
    folder = save_tokenizer(tmp_path / "tokenizer", stack.tokenizer, CHATML)
    answer, = probe(tmp_path / "probe", [request(folder, save_rows(tmp_path, [PLAIN] * 3), may_fail=True, max_length=4)])
    assert answer == {"error": "probe: found no pair to train on in 3 rows (3 of them dropped because nothing is left of an answer, 3 longer than "
                               "max_length 4 (truncate), 0 bad), expected at least one; check max_length"}
