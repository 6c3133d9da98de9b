#!/usr/bin/env python3
"""Trains encoders to tell which module a documentation string is of, on transformers' Trainer and on Strata in turn, one rank
of two threads, and prints ratios (README.md). Texts have their own lengths: the reference pads those of a step."""

import json
import statistics

from job import made_inputs, run_epoch_of_reference, run_epoch_of_strata
from measuring import commit, in_turn, machine, option_parser, parse_options, save_page, versions

ROWS, LENGTH = 16, 256
CASES = {"BERT, full": ("bert", False), "BERT, LoRA": ("bert", True), "ModernBERT, full": ("modernbert", False),
         "DeBERTa-v3, full": ("deberta-v2", False), "ALBERT, full": ("albert", False)}
# Classes of files that have all that a classifier reads but the output layer: with BERT's pooler, because over files without one PEFT
# trains a branch on it, Strata the whole.
FAMILIES = {"bert": "BertForPreTraining", "modernbert": "ModernBertForMaskedLM", "deberta-v2": "DebertaV2ForMaskedLM",
            "albert": "AlbertForPreTraining"}
HEADER = """| case | reference, rows/s | Strata, rows/s | ratio | reference, MB | Strata, MB | ratio | loss difference |
|---|---|---|---|---|---|---|---|"""


def write_rows(inputs, steps):
    """As many texts as the steps take; the module is the first word of the name that is asked for."""
    rows = [json.loads(line)["messages"] for line in (inputs / "data" / "train.jsonl").read_text().splitlines()]
    labelled = [{"text": answer["content"], "label": question["content"].split()[2].split(".")[0]} for question, answer in rows]
    path = inputs / f"labelled-{steps}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in labelled[:steps * ROWS]))
    return path


def made_model(inputs, family):
    """A random encoder of 17 to 20 million parameters with the tokenizer of the other benchmarks."""
    folder = inputs / family
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(inputs / "model")
    settings = dict(vocab_size=8192, hidden_size=384, num_hidden_layers=8, num_attention_heads=6, max_position_embeddings=512,
                    intermediate_size=768 if family == "modernbert" else 1536, pad_token_id=tokenizer.pad_token_id)
    if family == "modernbert":
        settings |= dict.fromkeys(("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id"))
    else:
        settings |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "pooler_dropout"), 0.0)
    if family == "deberta-v2":
        settings |= dict(relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
                         pos_att_type=["p2c", "c2p"], position_biased_input=False)
    torch.manual_seed(0)
    made = getattr(transformers, FAMILIES[family])
    made(transformers.AutoConfig.for_model(family, **settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run_reference(model, data, output, lora):
    rows, peak = run_epoch_of_reference("reference_classify.py", output, lora, model=model, data=data, rows=ROWS, length=LENGTH)
    return [[row["time"] for row in rows if "time" in row], peak, [row["loss"] for row in rows if "loss" in row]]


def run_strata(program, model, data, output, lora):
    flags = {"model_name_or_path": model, "dataset_name": data, "output_dir": output, "per_device_train_batch_size": ROWS,
             "max_length": LENGTH}
    rows, _, peak = run_epoch_of_strata(program, "classify", flags, lora)
    steps = [row for row in rows if "loss" in row]
    return [[row["elapsed_seconds"] for row in steps], peak, [row["loss"] for row in steps]]


def rows_per_second(ends):
    """Of all steps but the first: their texts have different lengths."""
    return (len(ends) - 1) * ROWS / (ends[-1] - ends[0])


def table_row(name, reference, strata):
    speeds = [statistics.median(rows_per_second(run[0]) for run in runs) for runs in (reference, strata)]
    peaks = [statistics.median(run[1] for run in runs) for runs in (reference, strata)]
    difference = max(abs(a - b) for a, b in zip(reference[0][2], strata[0][2], strict=True))
    return (f"| {name} | {speeds[0]:.1f} | {speeds[1]:.1f} | **{speeds[1] / speeds[0]:.2f}** | {peaks[0]:.0f} | {peaks[1]:.0f} "
            f"| **{peaks[1] / peaks[0]:.2f}** | {difference:.1e} |")


def compared(name, options, lora, model, data, run_reference, run_strata):
    """The row of a case, printed."""
    runs = in_turn(options.rounds, {
        "reference": lambda: run_reference(model, data, options.folder / "reference", lora),
        "strata": lambda: run_strata(options.strata, model, data, options.folder / "strata", lora)})
    row = table_row(name, runs["reference"], runs["strata"])
    print(row, flush=True)
    return row


def main():
    options = parse_options(option_parser(__doc__, "classify", rounds=3, steps=16))
    inputs = made_inputs(options.folder)
    data = write_rows(inputs, options.steps)
    lines = [HEADER]
    print(HEADER, flush=True)
    for name, (family, lora) in CASES.items():
        model = made_model(inputs, family)
        lines.append(compared(name, options, lora, model, data, run_reference, run_strata))
    if options.save:
        save_page("classify", "encoders on the reference stack and Strata",
                  f"Commit {commit()}. {machine()}. {versions()}. One rank of two threads; fp32, {ROWS} texts of up to {LENGTH} "
                  f"tokens a step, nothing recomputed, no dropout, an epoch of {options.steps} steps; medians of "
                  f"{options.rounds} rounds in turn.", lines)


if __name__ == "__main__":
    main()
