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
    parser.add_argument("--published_decoding", action="store_true", help="4-bit weights as code * scale, see below")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="mixed precision; a base under adapters rests in bf16")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    return parser.parse_args()


def decode_as_published():
    """Every 4-bit matrix as code * scale. bitsandbytes 0.50 decodes those whose rows are no whole number of blocks
    with the scales of other blocks on CPUs."""
    import bitsandbytes.functional as functional

    def decode(codes, state, *_, **__):
        pairs = codes.flatten().view(torch.uint8)
        codes = torch.stack([pairs >> 4, pairs & 15], 1).flatten()[: state.shape.numel()].long()
        scales = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset if state.nested else state.absmax
        return (state.code[codes] * scales.repeat_interleave(state.blocksize)[: len(codes)]).view(state.shape)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(context, x, codes, state):
            context.codes, context.state = codes, state
            return x @ decode(codes, state).T

        @staticmethod
        def backward(context, gradient):
            return gradient @ decode(context.codes, context.state), None, None

    import bitsandbytes
    bitsandbytes.matmul_4bit = lambda x, codes, quant_state, bias=None, **_: Product.apply(x, codes.data, quant_state)


def main():
    options = parse_options()
    if options.published_decoding:
        decode_as_published()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    files = {split: f"{options.inputs}/data/{split}.jsonl" for split in ("train", "test")}
    config = SFTConfig(
        output_dir=options.output, max_steps=options.steps, per_device_train_batch_size=options.rows,
        max_length=options.length, packing=True, packing_strategy="wrapped", bf16=options.bf16, fp16=False, use_cpu=True,
        learning_rate=1e-4, lr_scheduler_type="cosine", warmup_steps=0, logging_steps=1, save_strategy="no",
        eval_strategy="no", gradient_checkpointing=options.checkpointing, report_to="none", seed=100)
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    quantised = {}
    if options.nf4:
        quantised = {"device_map": "cpu", "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32)}
    dtype = torch.bfloat16 if options.bf16 and options.lora else torch.float32
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(f"{options.inputs}/model", dtype=dtype, **quantised),
        processing_class=AutoTokenizer.from_pretrained(f"{options.inputs}/model"), args=config,
        train_dataset=load_dataset("json", data_files=files)["train"],
        peft_config=lora if options.lora else None, callbacks=[Clock()])
    trainer.train()


if __name__ == "__main__":
    main()
