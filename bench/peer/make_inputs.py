#!/usr/bin/env python3
"""Makes the benchmark's inputs in a folder: model/ (random Llama and tokenizer), data/{train,test}.jsonl.
The text is the documentation of the installed Python, so that nothing is shipped or downloaded."""

import argparse
import importlib
import inspect
import json
import pathlib
import random
import warnings

import tokenizers
import torch
import transformers

MODULES = """argparse array ast asyncio bisect calendar cmath cmd codecs collections concurrent.futures
configparser contextlib copy csv ctypes dataclasses datetime decimal difflib dis doctest email.message enum errno
fnmatch fractions ftplib functools gettext glob gzip hashlib heapq hmac html http.client imaplib inspect io
ipaddress itertools json linecache locale logging mailbox math mmap multiprocessing numbers operator os os.path
pathlib pdb pickle platform pprint queue random re sched secrets select selectors shutil signal smtplib socket
socketserver sqlite3 ssl statistics string struct subprocess tarfile tempfile textwrap threading time timeit
traceback types typing unicodedata unittest urllib.parse urllib.request uuid warnings weakref
xml.etree.ElementTree zipfile zoneinfo""".split()
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def documented_names():
    """Yields (dotted name, object, shortest documentation worth a row)."""
    for name in MODULES:
        module = importlib.import_module(name)
        for member, value in inspect.getmembers(module):
            yield f"{name}.{member}", value, 80
            if inspect.isclass(value):
                for attribute, method in inspect.getmembers(value):
                    if not attribute.startswith("__"):
                        yield f"{name}.{member}.{attribute}", method, 120


def documents():
    found = {}
    for name, value, shortest in documented_names():
        text = inspect.getdoc(value)
        if text and len(text) > shortest:
            found.setdefault(text, name)
    rows = [(name, text) for text, name in found.items()]
    random.Random(0).shuffle(rows)
    return rows


def write_conversations(folder, rows):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "train.jsonl", "w") as train, open(folder / "test.jsonl", "w") as test:
        for i, (name, text) in enumerate(rows):
            messages = [{"role": "user", "content": f"What does {name} do?"}, {"role": "assistant", "content": text}]
            (test if i % 20 == 0 else train).write(json.dumps({"messages": messages}) + "\n")


def train_tokenizer(rows, vocabulary):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe.train_from_iterator((text for _, text in rows), trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=SPECIAL[0], eos_token=SPECIAL[2], pad_token=SPECIAL[3])
    fast.chat_template = TEMPLATE
    return fast


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--widths", default="512,1376,8,8,4",
                        help="hidden, intermediate, layers, heads, key-value heads")
    parser.add_argument("--vocabulary", type=int, default=8192)
    options = parser.parse_args()
    warnings.simplefilter("ignore", DeprecationWarning)
    rows = documents()
    write_conversations(options.folder / "data", rows)
    hidden, intermediate, layers, heads, key_value_heads = map(int, options.widths.split(","))
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=key_value_heads, vocab_size=options.vocabulary, max_position_embeddings=2048,
        bos_token_id=0, eos_token_id=2, pad_token_id=3, rms_norm_eps=1e-5))
    model.save_pretrained(options.folder / "model")
    train_tokenizer(rows, options.vocabulary).save_pretrained(options.folder / "model")
    print(f"inputs: {len(rows)} conversations, {sum(p.numel() for p in model.parameters()):,} parameters")


if __name__ == "__main__":
    main()
