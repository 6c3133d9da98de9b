#!/usr/bin/env python3
"""Trains the demo's tokenizer on its own data: byte-level BPE, chatml markers. Needs the `tokenizers`
package (make test installs it: .venv-parity/bin/python examples/demo/make_tokenizer.py)."""

import json
import pathlib

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def texts():
    for path in sorted(HERE.glob("data/*/*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield "\n".join(f"{m['role']}\n{m['content']}" for m in json.loads(line)["messages"])


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1536, show_progress=False, special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts(), trainer)
    folder = HERE / "base-config"
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>", "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False, "model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print(f"{folder.name}: {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
