#!/usr/bin/env python3
"""Trains T5 and BART to name what a documentation string is of, on transformers' Seq2SeqTrainer and on Strata in turn, one rank of
two threads, and prints ratios (README.md). Texts have their own lengths: the reference pads those of a step."""

import json

from job import made_inputs, run_epoch_of_reference, run_epoch_of_strata
from measuring import commit, machine, option_parser, parse_options, save_page, versions
from run_classify import HEADER, ROWS, compared

LENGTH = 256
CASES = {"T5, full": ("t5", False), "T5, LoRA": ("t5", True), "BART, full": ("bart", False), "BART, LoRA": ("bart", True)}


def write_rows(inputs, steps):
    """As many pairs as the steps take: a text and what it documents with its first words."""
    rows = [json.loads(line)["messages"] for line in (inputs / "data" / "train.jsonl").read_text().splitlines()]
    pairs = [{"source": answer["content"], "target": question["content"] + " " + answer["content"].split("\n")[0]} for question, answer in rows]
    path = inputs / f"pairs-{steps}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in pairs[:steps * ROWS]))
    return path


def made_model(inputs, family):
    """A random model of 20 to 25 million parameters with the tokenizer of the other benchmarks."""
    folder = inputs / family
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(inputs / "model")
    tokens = dict(vocab_size=8192, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
                  decoder_start_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    if family == "t5":
        config = transformers.T5Config(d_model=384, d_kv=64, num_heads=6, num_layers=6, d_ff=1024, dropout_rate=0.0,
                                       feed_forward_proj="gated-gelu", **tokens)
        model = transformers.T5ForConditionalGeneration(config)
    else:
        sides = {f"{side}_{key}": size for side in ("encoder", "decoder")
                 for key, size in (("layers", 6), ("attention_heads", 6), ("ffn_dim", 1536))}
        config = transformers.BartConfig(d_model=384, max_position_embeddings=512, dropout=0.0, bos_token_id=tokenizer.eos_token_id,
                                         forced_eos_token_id=None, **sides, **tokens)
        model = transformers.BartForConditionalGeneration(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run_reference(model, data, output, lora):
    rows, peak = run_epoch_of_reference("reference_pairs.py", output, lora, model=model, data=data, rows=ROWS, length=LENGTH)
    return [[row["time"] for row in rows if "time" in row], peak, [row["loss"] for row in rows if "loss" in row]]


def run_strata(program, model, data, output, lora):
    flags = {"model_name_or_path": model, "train_file": data, "text_column": "source", "summary_column": "target", "output_dir": output,
             "per_device_train_batch_size": ROWS, "max_source_length": LENGTH, "max_target_length": LENGTH}
    rows, _, peak = run_epoch_of_strata(program, "seq2seq", flags, lora)
    steps = [row for row in rows if "loss" in row]
    return [[row["elapsed_seconds"] for row in steps], peak, [row["loss"] for row in steps]]


def main():
    options = parse_options(option_parser(__doc__, "pairs", rounds=3, steps=16))
    inputs = made_inputs(options.folder)
    data = write_rows(inputs, options.steps)
    lines = [HEADER]
    print(HEADER, flush=True)
    for name, (family, lora) in CASES.items():
        model = made_model(inputs, family)
        lines.append(compared(name, options, lora, model, data, run_reference, run_strata))
    if options.save:
        save_page("pairs", "encoder-decoder models on the reference stack and Strata",
                  f"Commit {commit()}. {machine()}. {versions()}. One rank of two threads; fp32, {ROWS} pairs of up to {LENGTH} and {LENGTH} "
                  f"tokens a step, nothing recomputed, no dropout, an epoch of {options.steps} steps; medians of {options.rounds} rounds in "
                  "turn.", lines)


if __name__ == "__main__":
    main()
