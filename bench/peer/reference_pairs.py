#!/usr/bin/env python3
"""The job of run_pairs.py on the reference stack: transformers' Seq2SeqTrainer. Prints as reference_sft.py does."""

import json
import os

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments,
                          set_seed)

from job import reference_options
from reference_sft import Clock


def main():
    options = reference_options(__doc__, "data")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    cut = dict(truncation=True, max_length=options.length)
    rows = [json.loads(line) for line in open(options.data)]
    encoded = [dict(tokenizer(row["source"], **cut), labels=tokenizer(row["target"], **cut).input_ids) for row in rows]
    model = AutoModelForSeq2SeqLM.from_pretrained(options.model, dtype=torch.float32)
    if options.lora:
        set_seed(100)
        model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear",
                                                 task_type="SEQ_2_SEQ_LM"))
    arguments = Seq2SeqTrainingArguments(
        output_dir=options.output, num_train_epochs=1, per_device_train_batch_size=options.rows, bf16=False, use_cpu=True,
        learning_rate=1e-4, logging_steps=1, save_strategy="no", report_to="none", seed=100)
    Seq2SeqTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(encoded),
                   data_collator=DataCollatorForSeq2Seq(tokenizer, model=model), callbacks=[Clock()]).train()


if __name__ == "__main__":
    main()
