#!/usr/bin/env python3
"""The job on the reference stack: TRL's SFTTrainer, started by `accelerate launch`. Rank 0 prints one JSON object
per line: {"begin": s}, {"step": n, "time": s}, {"step": n, "loss": x}; s since the epoch."""

import argparse
import json
import os
import time

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, TrainerCallback
from trl import SFTConfig, SFTTrainer


class Clock(TrainerCallback):
    """Tells when steps begin and end, and the unrounded losses."""

    def say(self, **values):
        if int(os.environ.get("RANK", 0)) == 0:
            print("\n" + json.dumps(values), flush=True)

    def on_train_begin(self, args, state, control, **kwargs):
        self.say(begin=time.time())

    def on_step_end(self, args, state, control, **kwargs):
        self.say(step=state.global_step, time=time.time())

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            self.say(step=state.global_step, loss=logs["loss"])


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--nf4", action="store_true", help="the base in 4 bits, double quantisation")
    parser.add_argument("--unfused", action="store_true",
                        help="without bitsandbytes' own CPU product, which rounds the codes' values; see the README")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    return parser.parse_args()


def decode_before_products():
    """Every product of a 4-bit layer as the one with gradients: the decoded matrix, in its own type."""
    import bitsandbytes.autograd._functions as functions
    import bitsandbytes as bnb

    def product(a, codes, quant_state, out=None, bias=None):
        return functions.MatMul4Bit.apply(a, codes.view(-1, 1), out, bias, quant_state)

    functions.matmul_4bit = bnb.matmul_4bit = product


def main():
    options = parse_options()
    if options.unfused:
        decode_before_products()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    files = {split: f"{options.inputs}/data/{split}.jsonl" for split in ("train", "test")}
    config = SFTConfig(
        output_dir=options.output, max_steps=options.steps, per_device_train_batch_size=options.rows,
        max_length=options.length, packing=True, packing_strategy="wrapped", bf16=False, fp16=False, use_cpu=True,
        learning_rate=1e-4, lr_scheduler_type="cosine", warmup_steps=0, logging_steps=1, save_strategy="no",
        eval_strategy="no", gradient_checkpointing=options.checkpointing, report_to="none", seed=100)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    quantised = {}
    if options.nf4:
        quantised = {"device_map": "cpu", "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32)}
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(f"{options.inputs}/model", dtype=torch.float32, **quantised),
        processing_class=AutoTokenizer.from_pretrained(f"{options.inputs}/model"), args=config,
        train_dataset=load_dataset("json", data_files=files)["train"],
        peft_config=lora if options.lora else None, callbacks=[Clock()])
    trainer.train()


if __name__ == "__main__":
    main()
