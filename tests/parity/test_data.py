# Oracle: the batches that TRL's SFTTrainer (transformers, accelerate) hands to the model for the same
# files, tokenizer and settings.
import json
import os
import pathlib
import random

import pytest

from data_probe import probe

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# What a row may give the template beside its messages.
EXTRAS = ("{% if tools %}{{ tools | tojson }}{% endif %}{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}"
          "{{ mood }}" + CHATML)
WORDS = (
    "the cat sat down on a mat and then went away because it was raining in Zürich 12345 times "
    "naïve café 東京 🎉👩‍🚀 def f(x): return x+1 isn't it's we'll <b>bold</b> a  b\tc"
).split(" ")
SPECIALS = ["<|begin|>", "<|im_start|>", "<|im_end|>", "<pad>", "<|start_header_id|>", "<|end_header_id|>",
            "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>"]


def sentence(rng, low=1, high=30):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def turns(rng, pairs):
    rows = [{"role": "system", "content": sentence(rng, 1, 5)}] if rng.random() < 0.3 else []
    for _ in range(pairs):
        rows += [{"role": "user", "content": sentence(rng)}, {"role": "assistant", "content": sentence(rng)}]
    return rows


# Texts whose ends, marks and blanks a preparation may take for its own.
ODD = ["", " ", "\n", "<|im_end|>", "x<|im_end|>", "<|im_end|>x", "<|im_start|>assistant\nhi", " lead", "trail ", "trail\n\n", "<pad>",
       "\u00e9\u0301 \u200d", "<|begin|>", "\x00\x1f", "the cat", "\ud7ff\ufffd", "{{ x }}", "</s>", "a" * 200, "\u2028", "\r\n", "\u00e9" * 40]


def odd_turns(rng, pairs):
    return [{**turn, "content": "".join(rng.choices(ODD, k=rng.randint(1, 3)))} for turn in turns(rng, pairs)]


def make_odd_rows(kind, count):
    rng = random.Random(kind)
    chats = [odd_turns(rng, rng.randint(1, 3)) for _ in range(count)]
    texts = [[turn["content"] for turn in chat] for chat in chats]
    return {"odd_text": [{"text": text[0]} for text in texts],
            "odd_prompt_text": [{"prompt": text[-2], "completion": text[-1]} for text in texts],
            "odd_messages": [{"messages": chat} for chat in chats],
            "odd_prompt_messages": [{"prompt": chat[:-1], "completion": chat[-1:]} for chat in chats]}[kind]


def make_rows(kind, count):
    if kind.startswith("odd_"):
        return make_odd_rows(kind, count)
    rng = random.Random(kind)
    if kind == "text":
        return [{"text": sentence(rng) + ("<|im_end|>" if i % 7 == 0 else "")} for i in range(count)]
    if kind == "prompt_text":
        return [{"prompt": sentence(rng), "completion": " " + sentence(rng)} for i in range(count)]
    if kind == "prompt_messages":
        return [{"prompt": t[:-1], "completion": t[-1:]} for t in (turns(rng, rng.randint(1, 2)) for _ in range(count))]
    if kind == "from_value":
        return [{"conversations": [{"from": m["role"], "value": m["content"]} for m in turns(rng, 1)]} for _ in range(count)]
    if kind == "user_first":
        rows = [turns(rng, rng.randint(1, 3)) for _ in range(count)]
        return [{"messages": [m for m in row if m["role"] != "system"]} for row in rows]
    if kind in ("extras", "extras_text"):
        tool = [{"type": "function", "function": {"name": "f", "description": "d \u00e9"}}]
        extras = {"documents": [{"title": "A", "text": sentence(rng)}, {"title": "B", "text": ""}], "mood": "!"}
        return [{"messages": turns(rng, 1), "tools": None if i % 3 == 0 else json.dumps(tool) if kind == "extras_text" else tool,
                 "chat_template_kwargs": extras} for i in range(count)]
    if kind == "one_turn":
        return [{"messages": [m for m in turns(rng, 1) if m["role"] != "system"]} for _ in range(count)]
    if kind in ("prompt_tools", "prompt_tools_text"):
        tool = [{"type": "function", "function": {"name": "f", "description": "d \u00e9"}}]
        return [{"prompt": t[:-1], "completion": t[-1:], "tools": None if i % 3 == 0 else json.dumps(tool) if kind.endswith("text") else tool}
                for i, t in enumerate(turns(rng, rng.randint(1, 2)) for _ in range(count))]
    if kind.startswith("tokens_"):  # and a mask of that name, of some rows all zeros
        ids = [[rng.randint(10, 90) for _ in range(rng.randint(1, 40))] for _ in range(count)]
        return [{"input_ids": x, **{name: [int(rng.random() < 0.4) * (i % 6 > 0) for _ in x] for name in kind.split("_", 1)[1].split("+")}}
                for i, x in enumerate(ids)]
    if kind == "tokens":
        ids = [[rng.randint(10, 90) for _ in range(rng.randint(1, 40))] for _ in range(count)]
        return [{"input_ids": x, "labels": [-100 if rng.random() < 0.6 else i for i in x]} for x in ids]
    return [{"messages": turns(rng, rng.randint(1, 3))} for _ in range(count)]


class Stack:
    """The reference stack, imported once (that takes longer than the tests)."""

    def __init__(self, folder):
        os.environ["HF_HUB_OFFLINE"] = "1"
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        import datasets
        import torch
        import transformers
        import trl
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

        self.torch, self.transformers, self.trl, self.datasets = torch, transformers, trl, datasets
        datasets.disable_progress_bars()
        self.folder = folder
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        t.decoder = decoders.ByteLevel()
        rng = random.Random(0)
        t.train_from_iterator(
            (sentence(rng) for _ in range(300)),
            trainers.BpeTrainer(vocab_size=500, show_progress=False, special_tokens=SPECIALS,
                                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        t.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=t, bos_token="<|begin|>", eos_token="<|im_end|>", pad_token="<pad>")
        self.tokenizer.chat_template = CHATML
        config = transformers.LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                          vocab_size=len(self.tokenizer))
        self.model = transformers.LlamaForCausalLM(config)

    def save_tokenizer(self, name, template):
        folder = self.folder / f"tokenizer-{name}"
        if not folder.exists():
            self.tokenizer.chat_template = template
            self.tokenizer.save_pretrained(folder)
        return folder

    def template(self, name):
        if name in ("chatml", "extras"):
            return CHATML if name == "chatml" else EXTRAS
        return (pathlib.Path(self.trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text()

    def trainer(self, data, template, batch_size, evaluate=False, streaming=False, **settings):
        self.tokenizer.chat_template = template
        args = self.trl.SFTConfig(output_dir=str(self.folder / "out"), per_device_train_batch_size=batch_size, use_cpu=True,
                                  bf16=False, report_to="none", gradient_checkpointing=False, max_steps=1, **settings)
        kind = "parquet" if data.suffix == ".parquet" else "json"
        dataset = self.datasets.load_dataset(kind, data_files={"train": str(data)}, cache_dir=str(self.folder / "cache"),
                                             streaming=streaming)
        return self.trl.SFTTrainer(model=self.model, processing_class=self.tokenizer, args=args, train_dataset=dataset["train"],
                                   eval_dataset=dataset["train"] if evaluate else None)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    return Stack(tmp_path_factory.mktemp("data_parity"))


def expected_batch(batch):
    """The reference's batch as documents side by side: ids, targets, positions, offsets."""
    ids, targets, positions, offsets = [], [], [], [0]
    if "attention_mask" in batch:
        rows = [(i[m], l[m]) for i, l, m in zip(batch["input_ids"], batch["labels"], batch["attention_mask"].bool())]
        documents = [(i.tolist(), l.tolist()) for i, l in rows]
    else:
        bounds = batch["cu_seq_lens_q"].tolist()
        documents = [(batch["input_ids"][0][a:b].tolist(), batch["labels"][0][a:b].tolist()) for a, b in zip(bounds, bounds[1:])]
    for document, labels in documents:
        ids += document
        targets += labels[1:] + [-100]
        positions += range(len(document))
        offsets.append(len(ids))
    return {"ids": ids, "targets": targets, "positions": positions, "offsets": offsets}


# name, kind of rows, how many, template, settings
CASES = [
    ("text", "text", 23, "chatml", {}),
    ("text_short", "text", 23, "chatml", {"max_length": 12}),
    ("text_shuffled", "text", 40, "chatml", {"shuffle_dataset": True, "seed": 7}),
    ("text_bfd", "text", 1100, "chatml", {"packing": True, "max_length": 64}),
    ("text_bfd_shuffled", "text", 300, "chatml", {"packing": True, "max_length": 64, "shuffle_dataset": True}),
    ("text_wrapped", "text", 1100, "chatml", {"packing": True, "packing_strategy": "wrapped", "max_length": 64}),
    ("text_wrapped_shuffled", "text", 200, "chatml",
     {"packing": True, "packing_strategy": "wrapped", "max_length": 50, "shuffle_dataset": True}),
    ("messages", "messages", 23, "chatml", {"max_length": 100}),
    ("messages_bfd", "messages", 50, "chatml", {"packing": True, "max_length": 128}),
    ("messages_wrapped", "messages", 50, "chatml", {"packing": True, "packing_strategy": "wrapped", "max_length": 128}),
    ("assistant", "messages", 40, "chatml", {"assistant_only_loss": True, "max_length": 60}),
    ("assistant_bfd", "messages", 40, "chatml", {"assistant_only_loss": True, "packing": True, "max_length": 128}),
    ("assistant_llama3", "messages", 30, "llama3", {"assistant_only_loss": True}),
    ("assistant_gemma", "user_first", 30, "gemma", {"assistant_only_loss": True}),
    ("assistant_phi3", "one_turn", 30, "phi3", {"assistant_only_loss": True}),
    ("from_value", "from_value", 20, "chatml", {}),
    ("prompt_text", "prompt_text", 40, "chatml", {"max_length": 30}),
    ("prompt_text_all", "prompt_text", 20, "chatml", {"completion_only_loss": False}),
    ("prompt_text_bfd", "prompt_text", 60, "chatml", {"packing": True, "max_length": 64}),
    ("prompt_text_wrapped", "prompt_text", 60, "chatml", {"packing": True, "packing_strategy": "wrapped", "max_length": 64}),
    ("prompt_messages", "prompt_messages", 30, "chatml", {"max_length": 60}),
    ("prompt_messages_assistant", "prompt_messages", 30, "chatml", {"assistant_only_loss": True}),
    ("tokens", "tokens", 30, "chatml", {"max_length": 20}),
    ("text_bfd_split", "text", 300, "chatml", {"packing": True, "packing_strategy": "bfd_split", "max_length": 20}),
    ("assistant_qwen3", "one_turn", 30, "qwen3", {"assistant_only_loss": True}),
    ("tools_and_documents", "extras", 20, "extras", {"assistant_only_loss": True}),
    ("tools_as_text", "extras_text", 20, "extras", {}),
    ("tokens_bfd", "tokens", 60, "chatml", {"packing": True, "max_length": 32}),
    ("prompt_messages_tools", "prompt_tools", 30, "extras", {"assistant_only_loss": True}),
    ("prompt_messages_tools_as_text", "prompt_tools_text", 30, "extras", {"max_length": 80}),
    ("tokens_completion", "tokens_completion_mask", 30, "chatml", {"completion_only_loss": True, "max_length": 20}),
    ("tokens_completion_unused", "tokens_completion_mask", 20, "chatml", {}),
    ("tokens_assistant", "tokens_assistant_masks", 30, "chatml", {"max_length": 20}),
    ("tokens_assistant_bfd", "tokens_assistant_masks", 40, "chatml", {"packing": True, "max_length": 48}),
    ("tokens_both", "tokens_completion_mask+assistant_masks", 30, "chatml", {"completion_only_loss": True}),
    ("odd_text", "odd_text", 60, "chatml", {}),
    ("odd_text_bfd_split", "odd_text", 60, "chatml", {"packing": True, "packing_strategy": "bfd_split", "max_length": 8}),
    ("odd_prompt_text", "odd_prompt_text", 60, "chatml", {"max_length": 15}),
    ("odd_prompt_text_all", "odd_prompt_text", 60, "chatml", {"completion_only_loss": False}),
    ("odd_messages", "odd_messages", 60, "chatml", {"assistant_only_loss": True, "max_length": 60}),
    ("odd_messages_wrapped", "odd_messages", 60, "chatml", {"packing": True, "packing_strategy": "wrapped", "max_length": 50}),
    ("odd_prompt_messages", "odd_prompt_messages", 60, "chatml", {"assistant_only_loss": True}),
]


@pytest.mark.parametrize("name, kind, count, template, settings", CASES, ids=[case[0] for case in CASES])
def test_batches_equal_the_trainers(stack, name, kind, count, template, settings):
    data = stack.folder / f"{kind}-{count}.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in make_rows(kind, count)))
    batch_size = 3
    source = stack.template(template)
    folder = stack.save_tokenizer(template, source)
    trainer = stack.trainer(data, source, batch_size, **settings)
    answer, = probe(stack.folder, [{"op": "prepare", "tokenizer": str(folder), "data": str(data), "batch_size": batch_size, **settings}])

    prepared = trainer.train_dataset
    assert len(answer["rows"]) == len(prepared)
    for got, want in zip(answer["rows"], prepared):
        assert got["ids"] == want["input_ids"]
        assert got["labels"] == want["labels"]
        assert got["lengths"] == want.get("seq_lengths", [len(want["input_ids"])])
    if not settings.get("packing"):
        assert answer["num_dropped"] == count - len(prepared)

    batches = list(trainer.get_train_dataloader())
    assert len(answer["batches"]) == len(batches)
    for got, batch in zip(answer["batches"], batches):
        want = expected_batch(batch)
        assert {key: got[key] for key in want} == want
        assert got["num_targets"] == trainer._get_num_items_in_batch([batch], "cpu")


def test_tools_that_parquet_holds_as_json(stack, tmp_path):
    """Columns of mixed types, which datasets writes as JSON texts: their values are trained, not those texts."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"b": {"enum": [1, "x", None]}, "a": 1.5}}}
    rows = [{**row, "tools": None if i % 3 == 0 else [tool]} for i, row in enumerate(make_rows("messages", 9))]
    features = stack.datasets.Features({"tools": stack.datasets.List(stack.datasets.Json()), "messages": stack.datasets.List(stack.datasets.Json())})
    stack.datasets.Dataset.from_list(rows, features=features).to_parquet(str(tmp_path / "a.parquet"))
    source = stack.template("extras")
    folder = stack.save_tokenizer("extras", source)
    prepared = stack.trainer(tmp_path / "a.parquet", source, 2, assistant_only_loss=True, max_length=None).train_dataset
    answer, = probe(tmp_path / "probe", [{"op": "prepare", "tokenizer": str(folder), "data": str(tmp_path / "a.parquet"), "batch_size": 2,
                                          "assistant_only_loss": True, "max_length": 0}])
    assert [(row["ids"], row["labels"]) for row in answer["rows"]] == [(row["input_ids"], row["labels"]) for row in prepared]
    assert '"enum": [1, "x", null]' in stack.tokenizer.decode(prepared[1]["input_ids"])


@pytest.mark.parametrize("kind, settings", [("odd_text", {}), ("odd_prompt_text", {}), ("odd_messages", {"assistant_only_loss": True}),
                                            ("odd_prompt_messages", {})])
def test_special_tokens_that_are_split(stack, tmp_path, kind, settings):
    """With split_special_tokens the marks of the template and the end of a text are pieces too."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in make_rows(kind, 40)))
    source, plain = CHATML, stack.tokenizer
    plain.chat_template = source
    plain.save_pretrained(tmp_path / "tokenizer")
    config = json.loads((tmp_path / "tokenizer" / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({**config, "split_special_tokens": True}))
    stack.tokenizer = stack.transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    try:
        prepared = stack.trainer(data, source, 2, max_length=None, **settings).train_dataset
    finally:
        stack.tokenizer = plain
    answer, = probe(tmp_path / "probe", [{"op": "prepare", "tokenizer": str(tmp_path / "tokenizer"), "data": str(data), "batch_size": 2,
                                          "max_length": 0, **settings}])
    assert [(row["ids"], row["labels"]) for row in answer["rows"]] == [(row["input_ids"], row["labels"]) for row in prepared]
    end = plain.eos_token_id
    assert not any(end in row["ids"] for row in answer["rows"])


# Published templates without {% generation %}, for which the reference trains all-zero masks or swaps the
# template: what must be trained, written down by hand.
SPANS = [
    ("llama3_1", ["a<|eot_id|>", "b<|eot_id|>"]),
    ("qwen3", ["a<|im_end|>\n", "<think>\n\n</think>\n\nb<|im_end|>\n"]),
    ("qwen2_5", ["a<|im_end|>\n", "b<|im_end|>\n"]),
    ("gemma", ["a<end_of_turn>\n", "b<end_of_turn>\n"]),
    ("phi3", ["a<|end|>\n", "b<|end|>\n<|im_end|>"]),
]


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("weights", [(1, 1), (0, 1), (1, 0)])
@pytest.mark.parametrize("name, expected", SPANS, ids=[name for name, _ in SPANS])
def test_assistant_spans_of_templates_without_blocks(stack, name, expected, weights, reasoning):
    if reasoning and name != "qwen3":
        expected = ["<think>\nhm\n</think>\n\n" + text for text in expected]
    elif reasoning:
        expected = [expected[0], expected[1].replace("<think>\n\n", "<think>\nhm\n")]
    think = "<think>\nhm\n</think>\n\n" if reasoning else ""
    messages = [{"role": "user", "content": "q1"}, {"role": "assistant", "content": think + "a", "weight": weights[0]},
                {"role": "user", "content": "q2 a"}, {"role": "assistant", "content": think + "b", "weight": weights[1]}]
    data = stack.folder / f"spans-{name}-{weights}-{reasoning}.jsonl"
    data.write_text(json.dumps({"messages": messages}) + "\n")
    folder = stack.save_tokenizer(name, stack.template(name))
    answer, = probe(stack.folder, [{"op": "prepare", "tokenizer": str(folder), "data": str(data), "batch_size": 1, "assistant_only_loss": True}])
    row, = answer["rows"]
    trained = stack.tokenizer.decode([label for label in row["labels"] if label != -100])
    assert trained == "".join(text for text, weight in zip(expected, weights) if weight)


def test_instruction_rows_are_questions_and_answers(stack):
    """Alpaca: the same rows as prompt and completion, which are compared with the trainer's above."""
    rows = [{"instruction": "Say it.", "input": "", "output": "it"}, {"instruction": "Sum up.", "input": "a b", "output": "ab"},
            {"instruction": "Hm?", "output": "hm"}, {"system": "Be kind.", "instruction": "q", "input": "i", "output": "o"}]
    asked = ["Say it.", "Sum up.\n\na b", "Hm?", "q\n\ni"]
    same = [{"prompt": [*([{"role": "system", "content": row["system"]}] if "system" in row else []),
                        {"role": "user", "content": question}],
             "completion": [{"role": "assistant", "content": row["output"]}]} for row, question in zip(rows, asked)]
    folder = stack.save_tokenizer("chatml", CHATML)
    found = []
    for name, content in [("alpaca", rows), ("alpaca-turns", same)]:
        data = stack.folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in content))
        answer, = probe(stack.folder, [{"op": "prepare", "tokenizer": str(folder), "data": str(data), "batch_size": 2}])
        found.append(answer["rows"])
    assert found[0] == found[1] and len(found[0]) == 4
    trained = [stack.tokenizer.decode([label for label in row["labels"] if label != -100]) for row in found[0]]
    assert all(text.startswith(row["output"]) for text, row in zip(trained, rows))


@pytest.mark.parametrize("kind, count, settings", [
    ("text", 23, {}), ("messages", 40, {"assistant_only_loss": True, "max_length": 60}),
    ("text", 1100, {"packing": True, "max_length": 64})])
def test_streams_equal_the_trainers(stack, kind, count, settings):
    """dataset_streaming: the rows of an IterableDataset in its order, and no more than max_steps uses."""
    data = stack.folder / f"{kind}-{count}.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in make_rows(kind, count)))
    folder = stack.save_tokenizer("chatml", CHATML)
    trainer = stack.trainer(data, CHATML, 3, streaming=True, **settings)
    batches = list(trainer.get_train_dataloader())
    for limit in [0, 12]:
        answer, = probe(stack.folder, [{"op": "prepare", "tokenizer": str(folder), "data": str(data), "batch_size": 3,
                                        "strategy": "sequential", "max_rows": limit, **settings}])
        wanted = batches[:4] if limit else batches
        assert len(answer["batches"]) == len(wanted) >= 4
        assert len(answer["rows"]) == (limit or len(answer["rows"]))
        for got, batch in zip(answer["batches"], wanted):
            want = expected_batch(batch)
            assert {key: got[key] for key in want} == want


def test_eval_batches_when_only_evaluation_packs(stack):
    """The reference's collator pads then, so that the documents of a packed row are one."""
    data = stack.folder / "text-23.jsonl"
    data.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in make_rows("text", 23)))
    folder = stack.save_tokenizer("chatml", CHATML)
    trainer = stack.trainer(data, CHATML, 3, evaluate=True, eval_packing=True, max_length=64, per_device_eval_batch_size=2)
    answer, = probe(stack.folder, [{"op": "prepare", "tokenizer": str(folder), "data": str(data), "batch_size": 2, "packing": True,
                                    "max_length": 64, "separate_documents": False, "strategy": "sequential"}])
    batches = list(trainer.get_eval_dataloader())
    assert len(answer["batches"]) == len(batches)
    for got, batch in zip(answer["batches"], batches):
        want = expected_batch(batch)
        assert {key: got[key] for key in want} == want


def test_the_cases_cover_dropped_rows(stack):
    data = stack.folder / "dropped.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in make_rows("prompt_text", 40)))
    folder = stack.save_tokenizer("chatml", CHATML)
    answer, = probe(stack.folder, [{"op": "prepare", "tokenizer": str(folder), "data": str(data), "batch_size": 1, "max_length": 30}])
    assert answer["num_dropped"] > 0


@pytest.mark.parametrize("strategy", ["random", "sequential"])
def test_order_equals_accelerates(stack, strategy):
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

    requests, wanted = [], []
    for num_rows in (1, 3, 10, 17, 24):
        for batch_size, world_size in ((1, 1), (4, 1), (2, 2), (5, 2), (1, 3), (3, 3), (4, 3)):
            for drop_last in (False, True):
                if drop_last and num_rows < batch_size * world_size:
                    continue
                seed, epochs = 40 + num_rows, 2
                requests.append({"op": "order", "num_rows": num_rows, "batch_size": batch_size, "world_size": world_size,
                                 "seed": seed, "strategy": strategy, "drop_last": drop_last, "epochs": epochs})
                loaders = []
                for rank in range(world_size):
                    rows = list(range(num_rows))
                    sampler = RandomSampler(rows) if strategy == "random" else SequentialSampler(rows)
                    loader = DataLoader(rows, batch_size=batch_size, sampler=sampler, drop_last=drop_last)
                    loaders.append(prepare_data_loader(loader, num_processes=world_size, process_index=rank, put_on_device=False,
                                                       even_batches=True, use_seedable_sampler=True, data_seed=seed,
                                                       rng_types=[]))
                wanted.append([])
                for epoch in range(epochs):
                    for loader in loaders:
                        loader.set_epoch(epoch)
                    wanted[-1].append([[batch.tolist() for batch in loader] for loader in loaders])
    for request, got, want in zip(requests, probe(stack.folder, requests), wanted):
        assert got == want, request
