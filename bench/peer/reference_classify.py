#!/usr/bin/env python3
"""The job of run_classify.py on the reference stack: transformers' Trainer. Prints as reference_sft.py does."""

import json
import os

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments,
                          set_seed)

from job import reference_options
from reference_sft import Clock


def main():
    options = reference_options(__doc__, "data")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rows = [json.loads(line) for line in open(options.data)]
    names = sorted({row["label"] for row in rows})
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    encoded = [dict(tokenizer(row["text"], truncation=True, max_length=options.length), labels=names.index(row["label"]))
               for row in rows]
    set_seed(100)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=len(names), dtype=torch.float32)
    if options.lora:
        set_seed(100)  # Strata draws a new head and the branches from the seed each
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear",
                                                 task_type="SEQ_CLS"))
    arguments = TrainingArguments(
        output_dir=options.output, num_train_epochs=1, per_device_train_batch_size=options.rows, bf16=False, use_cpu=True,
        learning_rate=1e-4, logging_steps=1, save_strategy="no", report_to="none", seed=100)
    Trainer(model=model, args=arguments, train_dataset=Dataset.from_list(encoded), data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[Clock()]).train()


if __name__ == "__main__":
    main()
