#!/usr/bin/env python3
"""The job of run_peer.py over models of other families, of some 30 million weights: the reference stack and Strata in turn."""

import pathlib
import shutil

import torch
import transformers

from job import LENGTH, ROWS, Case, made_inputs, run_reference, run_strata, types_of
from measuring import commit, in_turn, machine, option_parser, parse_options, save_page, versions
from run_peer import HEADER, raw_lines, table_row

SIZES = dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4, vocab_size=8192,
             max_position_embeddings=2048, bos_token_id=0, eos_token_id=2, pad_token_id=3)
LINEAR = dict(head_dim=64, linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64, linear_value_head_dim=64)
EXPERTS = dict(num_hidden_layers=4, moe_intermediate_size=256)
FAMILIES = {
    "llama": SIZES,
    "qwen3_5_text": dict(SIZES, **LINEAR),
    "gemma4_text": dict(SIZES, head_dim=64, global_head_dim=128, num_global_key_value_heads=2, sliding_window=256, num_kv_shared_layers=2,
                        hidden_size_per_layer_input=64, vocab_size_per_layer_input=8192),
    "qwen3_moe": dict(SIZES, **EXPERTS, head_dim=64, num_experts=16, num_experts_per_tok=4, output_router_logits=True),
    "deepseek_v2": dict(SIZES, **EXPERTS, num_key_value_heads=8, q_lora_rank=None, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32,
                        v_head_dim=64, first_k_dense_replace=1, n_routed_experts=16, num_experts_per_tok=4, n_shared_experts=1),
}
PLAIN = dict(hidden_size=512, num_hidden_layers=8, num_attention_heads=8, vocab_size=8192, bos_token_id=0, eos_token_id=2, pad_token_id=3)
OF_GPT2 = dict(n_embd=512, n_layer=8, n_head=8, n_positions=2048, vocab_size=8192, bos_token_id=0, eos_token_id=2, pad_token_id=3,
               resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
MAMBA = dict(mamba_n_heads=16, mamba_d_head=64, mamba_d_state=64, mamba_n_groups=1)
FAMILIES |= {
    "gpt2": OF_GPT2,
    "gptj": dict(OF_GPT2, rotary_dim=32),
    "gpt_neox": dict(PLAIN, intermediate_size=2048, max_position_embeddings=2048, hidden_dropout=0.0, attention_dropout=0.0),
    "opt": dict(PLAIN, ffn_dim=2048, max_position_embeddings=2048, word_embed_proj_dim=512, dropout=0.0),
    "bloom": dict(PLAIN, n_layer=8, n_head=8),
    "falcon": dict(PLAIN, multi_query=True, parallel_attn=True, new_decoder_architecture=False),
    "phi": dict(SIZES, num_key_value_heads=8),
    "cohere2": dict(SIZES, sliding_window=256),
    "gemma2": dict(SIZES, head_dim=64, query_pre_attn_scalar=64, sliding_window=256),
    "minicpm3": dict(SIZES, num_key_value_heads=8, kv_lora_rank=128, q_lora_rank=192, qk_nope_head_dim=48, qk_rope_head_dim=16, v_head_dim=64),
    "bamba": dict(SIZES, **MAMBA, attn_layer_indices=[3, 7]),
    "falcon_h1": dict(SIZES, **MAMBA, mamba_d_ssm=1024),
    "lfm2": dict(SIZES, layer_types=(["conv"] * 2 + ["full_attention"] * 2) * 2),
    "gpt_oss": dict(SIZES, num_hidden_layers=4, intermediate_size=256, head_dim=64, num_local_experts=16, num_experts_per_tok=4,
                    sliding_window=256),
}
CASES = {
    "full": Case("full", False, 2),
    "LoRA, checkpointing": Case("lora", True, 2),
}


def inputs_of(inputs, family):
    """The data and the tokenizer of the benchmark beside a random model of the family."""
    folder = inputs.parent / f"inputs-{family}"
    if not (folder / "model" / "tokenizer.json").exists():
        torch.manual_seed(0)
        config = transformers.CONFIG_MAPPING[family](**FAMILIES[family])
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
        for file in (inputs / "model").glob("*token*"):
            shutil.copy(file, folder / "model")
        for file in (inputs / "model").glob("*.jinja"):
            shutil.copy(file, folder / "model")
        (folder / "data").symlink_to(pathlib.Path("..") / inputs.name / "data")
    return folder


def main():
    parser = option_parser(__doc__, "families", rounds=2, steps=4)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = parse_options(parser)
    inputs = made_inputs(options.folder)
    lines, raw = [HEADER], []
    print(HEADER, flush=True)
    for family in options.families:
        own = inputs_of(inputs, family)
        for name in options.cases:
            case = CASES[name]
            runs = in_turn(options.rounds, {
                "reference": lambda: run_reference(own, options.folder / "reference", case, options.steps),
                "strata": lambda: run_strata(options.strata, own, options.folder / "strata", case.mode, case.checkpointing,
                                             options.steps, case.ranks, **types_of(case))})
            raw += raw_lines(f"{family}, {name}", runs)
            lines.append(table_row(f"{family}, {name}", runs["reference"], runs["strata"]))
            print(lines[-1], flush=True)
    if options.save:
        save_page("families", "the reference stack and Strata over other families", f"Commit {commit()}. {machine()}. {versions()}. "
                  f"Two ranks of one thread, fp32, {ROWS} x {LENGTH} tokens per rank.",
                  [*lines, "", "Every run, in the order in which they ran:", "```", *raw, "```"])


if __name__ == "__main__":
    main()
