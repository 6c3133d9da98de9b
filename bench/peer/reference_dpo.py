#!/usr/bin/env python3
"""The job of run_dpo.py on the reference stack: TRL's DPOTrainer. Prints as reference_sft.py does."""

import os

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from job import reference_options
from reference_sft import Clock


def main():
    options = reference_options(__doc__, "pairs")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    config = DPOConfig(
        output_dir=options.output, num_train_epochs=1, per_device_train_batch_size=options.rows,
        max_length=options.length, bf16=False, use_cpu=True, learning_rate=1e-4, logging_steps=1, save_strategy="no",
        report_to="none", seed=100)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32), args=config,
        processing_class=AutoTokenizer.from_pretrained(options.model),
        train_dataset=load_dataset("json", data_files=options.pairs)["train"],
        peft_config=lora if options.lora else None, callbacks=[Clock()]).train()


if __name__ == "__main__":
    main()
