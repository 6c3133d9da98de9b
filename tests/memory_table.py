"""Short runs whose planned memory stands beside what was measured: the table, how a row runs and what
it says. tests/dist/test_memory_plan.py holds the differences to a limit, bench/peer/run_memory.py makes a page."""

import dataclasses
import random
import re
import subprocess

import tiny_llama
from fp8_files import store_in_fp8
from int_files import store_in_ints
from running import BUILD, PROGRAM, base_flags, environment, run_program

# Large enough that 5 % are several megabytes, small enough for seconds.
V, H, I, L, HEADS, KEYS = 4096, 384, 1024, 4, 6, 3
MODEL = dict(vocab_size=V, hidden_size=H, intermediate_size=I, num_hidden_layers=L,
             num_attention_heads=HEADS, num_key_value_heads=KEYS)
LORA = dict(use_peft=True, lora_r=8, lora_target_modules="all-linear")
PROMPT = dict(use_peft=True, peft_type="PROMPT_TUNING")
PREFIX = dict(use_peft=True, peft_type="PREFIX_TUNING")
# Of a vocabulary that weighs more than the layers, and with a layer that takes more to be quantised than a
# short step does; their files in bf16.
WIDE = dict(vocab_size=512, hidden_size=1024, intermediate_size=8192, num_hidden_layers=1,
            num_attention_heads=8, num_key_value_heads=4)
LARGE = dict(vocab_size=50000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2)
PHI3 = dict(MODEL, family="phi3", rope_parameters=dict(
    rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.75))
GRANITE = dict(MODEL, family="granite", embedding_multiplier=2.5, attention_multiplier=0.2,
               residual_multiplier=0.35, logits_scaling=1.7)
GEMMA3 = dict(MODEL, family="gemma3_text", head_dim=64, sliding_window=32,
              layer_types=["sliding_attention", "full_attention"] * 2)
GEMMA4 = dict(MODEL, family="gemma4_text", head_dim=64, global_head_dim=128, sliding_window=32, num_kv_shared_layers=2,
              layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=64)
GEMMA4_EXPERTS = dict(MODEL, family="gemma4_text", num_hidden_layers=3, head_dim=64, global_head_dim=128, sliding_window=32,
                      layer_types=["sliding_attention"] * 2 + ["full_attention"], hidden_size_per_layer_input=0, enable_moe_block=True,
                      num_experts=16, top_k_experts=4, moe_intermediate_size=128)
QWEN35 = dict(MODEL, family="qwen3_5_text", head_dim=64, layer_types=["linear_attention", "full_attention"] * 2,
              linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=32, linear_value_head_dim=32)
LFM2_MOE = dict(MODEL, family="lfm2_moe", layer_types=["conv", "full_attention"] * 2, num_dense_layers=2, num_experts=16,
                num_experts_per_tok=4, moe_intermediate_size=128)
GRANITE_HYBRID = dict(MODEL, family="granitemoehybrid", layer_types=["mamba", "attention"] * 2, mamba_n_heads=12, mamba_n_groups=2,
                      mamba_d_state=32, mamba_chunk_size=64, num_local_experts=16, num_experts_per_tok=4, shared_intermediate_size=256)
GRANITE_HYBRID["intermediate_size"] = 128
FALCON_H1 = dict(MODEL, family="falcon_h1", head_dim=64, mamba_d_ssm=576, mamba_n_heads=9, mamba_d_state=32, mamba_rms_norm=True,
                 ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.8], ssm_out_multiplier=0.6, mlp_multipliers=[1.3, 0.7])
NEMOTRON_H = dict(MODEL, family="nemotron_h", hybrid_override_pattern="M-*EM-", head_dim=64, mamba_num_heads=12, mamba_head_dim=64, n_groups=2,
                  ssm_state_size=32, n_routed_experts=16, num_experts_per_tok=4, moe_intermediate_size=128,
                  moe_shared_expert_intermediate_size=256)
GEMMA = dict(MODEL, family="gemma", head_dim=64)
GEMMA2 = dict(MODEL, family="gemma2", head_dim=64, sliding_window=32)
OLMO3 = dict(MODEL, family="olmo3", sliding_window=32, layer_types=["sliding_attention", "full_attention"] * 2)
SEED_OSS = dict(MODEL, family="seed_oss", head_dim=64)
MINICPM3 = dict(MODEL, family="minicpm3", num_key_value_heads=HEADS, kv_lora_rank=64, q_lora_rank=96, qk_nope_head_dim=48, qk_rope_head_dim=16)
HYPERCLOVAX = dict(MODEL, family="hyperclovax", residual_multiplier=0.35)
ARCEE = dict(MODEL, family="arcee")
APERTUS = dict(MODEL, family="apertus")
HUNYUAN = dict(MODEL, family="hunyuan_v1_dense", head_dim=64)
HUNYUAN_MOE = dict(MODEL, family="hunyuan_v1_moe", num_hidden_layers=3, head_dim=64, num_experts=16, moe_topk=4)
HUNYUAN_MOE["intermediate_size"] = 128
MINISTRAL3 = dict(MODEL, family="ministral3", head_dim=64, rope_parameters=dict(
    rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.5))
# Their positions are weights, so that there are as many as the longest rows have tokens.
GPT2 = dict(family="gpt2", vocab_size=V, n_embd=H, n_inner=I, n_layer=L, n_head=HEADS)
BIGCODE = dict(GPT2, family="gpt_bigcode")
GPT = dict(family="openai-gpt", vocab_size=V, n_embd=H, n_layer=L, n_head=HEADS)
GPT_NEOX = dict(family="gpt_neox", vocab_size=V, hidden_size=H, intermediate_size=I, num_hidden_layers=L,
                num_attention_heads=HEADS)
SEQUENTIAL_NEOX = dict(GPT_NEOX, use_parallel_residual=False, hidden_dropout=0.1, attention_dropout=0.1)
OPT = dict(family="opt", vocab_size=V, hidden_size=H, ffn_dim=I, num_hidden_layers=L, num_attention_heads=HEADS)
XGLM = dict(family="xglm", vocab_size=V, d_model=H, ffn_dim=I, num_layers=L, attention_heads=HEADS, activation_dropout=0.1)
NANOCHAT = dict(MODEL, family="nanochat")
OPT_350M = dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=192)
STARCODER2 = dict(MODEL, family="starcoder2", sliding_window=32)
COHERE = dict(MODEL, family="cohere", use_qk_norm=True)
PHI = dict(MODEL, family="phi")
PERSIMMON = dict(GPT_NEOX, family="persimmon")
OLMO = dict(MODEL, family="olmo", clip_qkv=4.0)
NEMOTRON = dict(MODEL, family="nemotron")
GPTJ = dict(family="gptj", vocab_size=V, n_embd=H, n_inner=I, n_layer=L, n_head=HEADS, rotary_dim=8)
CODEGEN = dict(GPTJ, family="codegen", n_head=4)
GPT_NEO = dict(family="gpt_neo", vocab_size=V, hidden_size=H, intermediate_size=I, num_layers=L, num_heads=HEADS, window_size=32,
               attention_types=[[["global", "local"], L // 2]])
FALCON_40B = dict(GPT_NEOX, family="falcon", num_kv_heads=KEYS, new_decoder_architecture=True)
del FALCON_40B["intermediate_size"]
MPT = dict(family="mpt", vocab_size=V, d_model=H, n_layers=L, n_heads=HEADS, attn_config=dict(clip_qkv=4.0))
BLOOM = dict(family="bloom", vocab_size=V, hidden_size=H, n_layer=L, n_head=HEADS)
GLM4 = dict(MODEL, family="glm4", head_dim=64)
MIXTURE = dict(MODEL, family="qwen3_moe", num_hidden_layers=3, head_dim=64, num_experts=16, num_experts_per_tok=4,
               moe_intermediate_size=128, norm_topk_prob=True)
GPT_OSS = dict(MODEL, family="gpt_oss", num_hidden_layers=3, head_dim=64, num_local_experts=16, num_experts_per_tok=4,
               intermediate_size=128, sliding_window=32)
GLM4_MOE = dict(MODEL, family="glm4_moe", num_hidden_layers=3, head_dim=64, use_qk_norm=True, n_routed_experts=16,
                n_group=4, topk_group=2, num_experts_per_tok=4, moe_intermediate_size=128)
DEEPSEEK = dict(MODEL, family="deepseek_v3", num_key_value_heads=HEADS, num_hidden_layers=3, first_k_dense_replace=1, q_lora_rank=96,
                kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=48, n_routed_experts=16, n_group=4,
                topk_group=2, num_experts_per_tok=4, moe_intermediate_size=128)
MIXTRAL = dict(MODEL, family="mixtral", num_local_experts=3)
AFMOE = dict(MODEL, family="afmoe", num_hidden_layers=3, head_dim=64, sliding_window=32, global_attn_every_n_layers=2, num_experts=16,
             num_experts_per_tok=4, moe_intermediate_size=128, num_shared_experts=1)
OLMOE = dict(MODEL, family="olmoe", num_hidden_layers=3, clip_qkv=0.5, num_experts=16, num_experts_per_tok=4)
OLMOE["intermediate_size"] = 128
GRANITE_SHARED = dict(MODEL, family="granitemoeshared", num_hidden_layers=3, residual_multiplier=0.7, num_local_experts=16,
                      num_experts_per_tok=4, shared_intermediate_size=256)
GRANITE_SHARED["intermediate_size"] = 128
LLAMA4 = dict(MODEL, family="llama4_text", num_hidden_layers=3, head_dim=64, interleave_moe_layer_step=2, no_rope_layer_interval=3,
              attention_chunk_size=32, floor_scale=16, intermediate_size_mlp=I)
LLAMA4["intermediate_size"] = 128
PARAMETERS = dict(lora_dropout=0, lora_target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
EXPERTS = dict(lora_dropout=0, lora_target_parameters=["experts.gate_up_proj", "experts.down_proj"])
PACKED = dict(packing=True, packing_strategy="wrapped", max_length=128)
PARTS = dict(fsdp_version=2, fsdp_reshard_after_forward=2)
WHOLE = dict(gradient_checkpointing=False)
EVALUATED = dict(eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8, splits="train,train[:16]")
STATE_IN_FILES = dict(offload_optimizer_device="nvme")
PARAMETERS_IN_FILES = dict(offload_param_device="nvme", sub_group_size=100_000)
FILES = dict(STATE_IN_FILES, offload_param_device="nvme")


def hybrid(shards, copies):
    return dict(parallelism_config_dp_shard_size=shards,
                parallelism_config_dp_replicate_size=copies)


def accumulation(steps):
    return dict(gradient_accumulation_steps=steps)


# world, strategy, then what differs.
TABLE = [
    (1, "FULL_SHARD", {}),
    (1, "FULL_SHARD", dict(per_device_train_batch_size=4)),
    (1, "FULL_SHARD", dict(LORA, dtype="bfloat16", **WHOLE)),
    (1, "NO_SHARD", dict(packing=False, max_length=200, **accumulation(2))),
    (2, "FULL_SHARD", {}),
    (2, "FULL_SHARD", WHOLE),
    (2, "FULL_SHARD", dict(bf16=True, **accumulation(3))),
    (2, "FULL_SHARD", dict(fp16=True)),
    (2, "FULL_SHARD", dict(LORA, lora_dropout=0.1)),
    (2, "FULL_SHARD", dict(LORA, dtype="bfloat16", per_device_train_batch_size=1)),
    (2, "FULL_SHARD", dict(LORA, load_in_4bit=True, bnb_4bit_use_double_quant=True)),
    (2, "FULL_SHARD", dict(LORA, load_in_8bit=True, optim="adamw_8bit")),
    (1, "NO_SHARD", dict(LORA, load_in_4bit=True)),
    (2, "FULL_SHARD", dict(LORA, load_in_4bit=True, dtype="bfloat16", optim="paged_adamw_8bit")),
    # Evaluations round activations to codes.
    (2, "FULL_SHARD", dict(LORA, load_in_8bit=True, **EVALUATED)),
    (1, "NO_SHARD", dict(LORA, load_in_8bit=True, bf16=True, **EVALUATED)),
    (2, "FULL_SHARD", dict(PROMPT, num_virtual_tokens=20)),
    (1, "NO_SHARD", dict(PROMPT, num_virtual_tokens=20, dtype="bfloat16")),
    (2, "FULL_SHARD", dict(PREFIX, num_virtual_tokens=20)),
    (2, "ZERO2", dict(PREFIX, num_virtual_tokens=20, prefix_projection=True)),
    (2, "FULL_SHARD", dict(fsdp_forward_prefetch=False, fsdp_backward_prefetch="NO_PREFETCH")),
    (2, "FULL_SHARD", dict(max_length=384, fsdp_backward_prefetch="BACKWARD_POST")),
    (2, "SHARD_GRAD_OP", accumulation(2)),
    (2, "SHARD_GRAD_OP", dict(LORA, fsdp_reduce_dtype="bfloat16", **WHOLE)),
    (2, "NO_SHARD", {}),
    (2, "NO_SHARD", dict(bf16=True)),  # what was converted stays
    (2, "ZERO1", accumulation(3)),
    (2, "ZERO2", dict(bf16=True, **accumulation(2))),
    (3, "FULL_SHARD", dict(packing=False, max_length=200)),
    (3, "NO_SHARD", dict(LORA, **accumulation(2))),
    (3, "ZERO1", WHOLE),
    (3, "ZERO2", LORA),
    (3, "SHARD_GRAD_OP", dict(fsdp_reduce_dtype="bfloat16")),
    (4, "FULL_SHARD", PARTS),
    (4, "HYBRID_SHARD", dict(hybrid(2, 2), **accumulation(2))),
    (4, "HYBRID_SHARD_ZERO2", dict(hybrid(2, 2), bf16=True)),
    (4, "ZERO2", dict(fp16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(activation_offloading="disk", per_device_train_batch_size=4)),
    (4, "FULL_SHARD", dict(save_strategy="steps", save_steps=2)),
    (2, "FULL_SHARD", dict(gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(gradient_checkpointing_mode="attention")),
    (1, "NO_SHARD", dict(LORA, gradient_checkpointing_mode="attention", gradient_checkpointing_layers=2,
                         gradient_checkpointing_rest="selective")),
    (2, "FULL_SHARD", dict(FILES, save_strategy="steps", save_steps=2)),
    (2, "FULL_SHARD", dict(STATE_IN_FILES, bf16=True)),
    (2, "FULL_SHARD", dict(PARAMETERS_IN_FILES, optim="lion_32bit")),
    (2, "FULL_SHARD", dict(fsdp_auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=4_000_000)),
    (2, "SHARD_GRAD_OP", dict(fsdp_auto_wrap_policy="NO_WRAP")),
    (2, "FULL_SHARD", dict(sync_each_batch=False, **accumulation(2))),
    (2, "FULL_SHARD", dict(limit_all_gathers=False)),
    (1, "NO_SHARD", dict(LORA, load_in_4bit=True, model="large")),
    (1, "NO_SHARD", dict(LORA, load_in_4bit=True, dtype="float32", model="large")),
    (2, "FULL_SHARD", dict(LORA, load_in_4bit=True, bf16=True, model="large")),
    (1, "NO_SHARD", dict(LORA, model="large")),
    # Nothing is larger while it trains than what the result's embedding takes when it is read back.
    (1, "NO_SHARD", dict(model="large", per_device_train_batch_size=1, max_length=32)),
    (1, "NO_SHARD", dict(LORA, load_in_4bit=True, max_length=64, per_device_train_batch_size=1, model="wide")),
    (1, "NO_SHARD", dict(LORA, load_in_8bit=True, per_device_train_batch_size=1, model="wide")),
    (1, "NO_SHARD", dict(LORA, max_length=64, per_device_train_batch_size=1, model="wide codes")),
    (2, "FULL_SHARD", dict(LORA, max_length=64, per_device_train_batch_size=1, model="wide codes",
                           fsdp_cpu_ram_efficient_loading=True)),
    (2, "FULL_SHARD", dict(model="phi3")),
    (2, "FULL_SHARD", dict(model="granite")),
    (1, "NO_SHARD", dict(LORA, model="granite", **WHOLE)),
    (1, "NO_SHARD", dict(LORA, model="phi3", **WHOLE)),
    (2, "FULL_SHARD", dict(LORA, model="phi3", load_in_4bit=True, gradient_checkpointing_mode="selective")),
    (1, "NO_SHARD", dict(model="gemma")),
    (2, "FULL_SHARD", dict(model="gemma3")),
    (2, "FULL_SHARD", dict(LORA, model="gemma", bf16=True)),
    (2, "FULL_SHARD", dict(model="gemma4")),
    (2, "FULL_SHARD", dict(model="gemma4 experts", gradient_checkpointing_mode="selective")),
    (1, "NO_SHARD", dict(LORA, model="gemma4 experts", bf16=True, dtype="bfloat16", **WHOLE)),
    (2, "FULL_SHARD", dict(LORA, model="gemma4 experts", load_in_4bit=True, bnb_4bit_use_double_quant=True)),
    (1, "NO_SHARD", dict(LORA, model="gemma4 experts", load_in_8bit=True)),
    (1, "NO_SHARD", dict(LORA, model="gemma4", bf16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="qwen3_5")),
    (1, "NO_SHARD", dict(LORA, model="qwen3_5", bf16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="lfm2 experts")),
    (1, "NO_SHARD", dict(LORA, model="lfm2 experts", bf16=True, **WHOLE)),
    (1, "NO_SHARD", dict(LORA, model="lfm2 experts", load_in_4bit=True, **WHOLE)),
    (1, "NO_SHARD", dict(LORA, model="lfm2 experts", **EXPERTS)),
    (2, "FULL_SHARD", dict(LORA, model="lfm2 experts", bf16=True, **EXPERTS, **WHOLE)),
    (2, "FULL_SHARD", dict(model="granite hybrid", gradient_checkpointing_mode="selective")),
    (1, "NO_SHARD", dict(LORA, lora_dropout=0.0, model="granite hybrid", bf16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="falcon h1")),
    (1, "NO_SHARD", dict(LORA, lora_target_modules=["in_proj", "q_proj", "down_proj"], model="falcon h1", bf16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="nemotron h", gradient_checkpointing_mode="selective")),
    (1, "NO_SHARD", dict(LORA, lora_target_modules=["in_proj", "q_proj", "down_proj"], model="nemotron h", bf16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="gemma2")),
    (1, "NO_SHARD", dict(LORA, model="gemma2", bf16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="olmo3")),
    (1, "NO_SHARD", dict(LORA, model="olmo3", **WHOLE)),
    (2, "FULL_SHARD", dict(model="apertus")),
    (1, "NO_SHARD", dict(LORA, model="apertus", **WHOLE)),
    (2, "FULL_SHARD", dict(model="apertus", bf16=True, gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="seed_oss")),
    (1, "NO_SHARD", dict(model="hunyuan", bf16=True, **WHOLE)),
    (1, "NO_SHARD", dict(model="hunyuan moe", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, lora_dropout=0.0, model="hunyuan moe", dtype="bfloat16", bf16=True, **WHOLE)),
    (1, "NO_SHARD", dict(LORA, model="ministral3", **WHOLE)),
    (2, "FULL_SHARD", dict(model="minicpm3", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="hyperclovax", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, model="arcee", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="gpt2")),
    (1, "NO_SHARD", dict(LORA, model="gpt2", **WHOLE)),
    (2, "FULL_SHARD", dict(model="bigcode", gradient_checkpointing_mode="selective")),
    (1, "NO_SHARD", dict(LORA, model="bigcode", load_in_4bit=True, per_device_train_batch_size=8)),
    (2, "FULL_SHARD", dict(model="gpt_neox")),
    (1, "NO_SHARD", dict(LORA, model="gpt_neox", load_in_4bit=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="sequential neox", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="opt", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="opt 350m")),
    (2, "FULL_SHARD", dict(model="gpt", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="xglm", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, model="xglm")),
    (2, "FULL_SHARD", dict(model="nanochat", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, model="nanochat")),
    (2, "FULL_SHARD", dict(LORA, model="opt 350m", per_device_train_batch_size=4)),
    (2, "FULL_SHARD", dict(model="starcoder2", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="cohere")),
    (1, "NO_SHARD", dict(LORA, model="cohere", **WHOLE)),
    (2, "FULL_SHARD", dict(model="persimmon", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="phi", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="olmo", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="nemotron")),
    (2, "FULL_SHARD", dict(model="gptj")),
    (2, "FULL_SHARD", dict(model="codegen", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="gpt_neo", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="falcon 40b")),
    (2, "FULL_SHARD", dict(model="bloom")),
    (1, "NO_SHARD", dict(LORA, model="bloom", **WHOLE)),
    (2, "FULL_SHARD", dict(model="mpt")),
    (2, "FULL_SHARD", dict(model="glm4")),
    (1, "NO_SHARD", dict(LORA, model="glm4", **WHOLE)),
    (1, "NO_SHARD", dict(model="mixture")),
    (2, "FULL_SHARD", dict(model="mixture", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, lora_dropout=0.0, model="mixture", **WHOLE)),
    (1, "NO_SHARD", dict(LORA, lora_dropout=0.0, model="mixtral", load_in_4bit=True)),
    (2, "FULL_SHARD", dict(model="mixtral", bf16=True, **WHOLE)),
    (1, "NO_SHARD", dict(model="glm4_moe", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(model="glm4_moe", bf16=True)),
    (2, "FULL_SHARD", dict(LORA, lora_dropout=0.0, model="glm4_moe", dtype="bfloat16", bf16=True, **WHOLE)),
    (1, "NO_SHARD", dict(LORA, lora_dropout=0.0, model="glm4_moe", load_in_4bit=True)),
    (1, "NO_SHARD", dict(model="deepseek", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, lora_dropout=0.0, model="deepseek", dtype="bfloat16", bf16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(model="afmoe", gradient_checkpointing_mode="selective")),
    (1, "NO_SHARD", dict(model="olmoe", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, lora_dropout=0.0, model="granite shared", dtype="bfloat16", bf16=True, **WHOLE)),
    (1, "NO_SHARD", dict(model="llama4", **WHOLE)),
    (2, "FULL_SHARD", dict(model="llama4", bf16=True)),
    (1, "NO_SHARD", dict(model="gpt_oss")),
    (2, "FULL_SHARD", dict(model="gpt_oss", gradient_checkpointing_mode="selective")),
    (2, "FULL_SHARD", dict(LORA, model="gpt_oss", dtype="bfloat16", bf16=True, **WHOLE)),
    (1, "NO_SHARD", dict(LORA, model="gpt_oss", **PARAMETERS, **WHOLE)),
    (2, "FULL_SHARD", dict(LORA, model="gpt_oss", dtype="bfloat16", bf16=True, **PARAMETERS)),
    (1, "NO_SHARD", dict(LORA, model="gpt_oss packed", dtype="float32")),
    (2, "FULL_SHARD", dict(LORA, model="gpt_oss packed", dtype="bfloat16", bf16=True, per_device_train_batch_size=4, **WHOLE)),
    (1, "NO_SHARD", dict(LORA, model="gpt_oss packed", dtype="float32", mxfp4_dequantize=True)),
    (2, "FULL_SHARD", dict(model="gpt_oss packed", bf16=True)),
    (1, "NO_SHARD", dict(LORA, model="fp8", dtype="bfloat16", bf16=True, max_length=64, per_device_train_batch_size=1)),
    (2, "FULL_SHARD", dict(LORA, model="fp8", load_in_4bit=True, max_length=64, per_device_train_batch_size=1)),
    (2, "FULL_SHARD", dict(model="fp8", dtype="bfloat16", max_length=64, per_device_train_batch_size=1)),
    (1, "NO_SHARD", dict(LORA, model="gptq", load_in_4bit=True, max_length=64, per_device_train_batch_size=1)),
    (1, "NO_SHARD", dict(LORA, model="gptq", dtype="bfloat16", bf16=True, max_length=64, per_device_train_batch_size=1)),
    (2, "FULL_SHARD", dict(LORA, model="gptq", dtype="bfloat16", bf16=True, max_length=64, per_device_train_batch_size=1)),
    (2, "FULL_SHARD", dict(LORA, model="gptq", dtype="bfloat16", int_dequantize=True, max_length=64, per_device_train_batch_size=1)),
    (2, "FULL_SHARD", dict(model="gptq", max_length=64, per_device_train_batch_size=1)),
    (3, "FULL_SHARD", dict(sequence_parallel_size=3, per_device_train_batch_size=6)),
    (3, "ZERO2", dict(LORA, sequence_parallel_size=3, dtype="bfloat16", bf16=True, per_device_train_batch_size=6, **WHOLE)),
    (2, "FULL_SHARD", dict(model="gpt2", sequence_parallel_size=2, gradient_checkpointing_mode="attention",
                           per_device_train_batch_size=4)),
    (3, "FULL_SHARD", dict(LORA, model="gpt_oss", sequence_parallel_size=3, per_device_train_batch_size=6)),
    # Products in bf16 where the processor has them.
    (1, "NO_SHARD", dict(LORA, bf16=True, per_device_train_batch_size=8)),
    (1, "FULL_SHARD", dict(LORA, bf16=True, dtype="bfloat16")),
    (2, "FULL_SHARD", dict(LORA, bf16=True, dtype="bfloat16", per_device_train_batch_size=8)),
    (2, "FULL_SHARD", dict(LORA, bf16=True, load_in_4bit=True, packing=False, max_length=200)),
    (2, "FULL_SHARD", dict(bf16=True, per_device_train_batch_size=8, **WHOLE)),
    (2, "FULL_SHARD", dict(LORA, bf16=True, gradient_checkpointing_mode="selective")),
    (2, "SHARD_GRAD_OP", dict(bf16=True, packing=False, max_length=200)),
    (3, "ZERO1", dict(LORA, bf16=True, lora_dropout=0.1, **accumulation(2))),
]

# Steps of a run. What is new after the third is counted.
STEPS = 5


def label(row):
    """"2 FULL_SHARD LoRA, bf16=True": what differs from the first row."""
    world, strategy, flags = row
    flags = dict(flags)
    words = []
    if all(flags.get(key) == value for key, value in LORA.items()):
        words.append("LoRA")
        flags = {key: value for key, value in flags.items() if key not in LORA}
    if flags.pop("gradient_checkpointing", True) is False:
        words.append("no checkpointing")
    words += [f"{key.removeprefix('parallelism_config_dp_')}={value}"
              for key, value in flags.items() if key != "use_peft"]
    return f"{world} {strategy} {', '.join(words)}".strip()


def save_model(folder, model=MODEL, dtype=None):
    tiny_llama.save_model(folder, dtype=dtype, **model)
    if model.get("family") in ("opt", "gpt_neo"):  # whose positions are weights under this name
        return folder
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 128',
                                                 '"max_position_embeddings": 512'))
    return folder


def other_model(name, beside):
    folder = beside.with_name(f"{beside.name}-{name}")
    if folder.exists():
        return folder
    if name == "wide codes":
        subprocess.run([PROGRAM, "convert", other_model("wide", beside), folder, "--to", "bnb-4bit"], check=True,
                       env=environment())
        return folder
    folder.mkdir()
    if name == "fp8":
        return store_in_fp8(save_model(folder, dict(WIDE, num_hidden_layers=2), "bfloat16"), (128, 128))
    if name == "gptq":
        return store_in_ints(save_model(folder, dict(WIDE, num_hidden_layers=2), "bfloat16"), "gptq", group=64)
    if name == "gpt_oss packed":
        return tiny_llama.pack_experts(save_model(folder, GPT_OSS, "bfloat16"))
    models = {"large": LARGE, "wide": WIDE, "phi3": PHI3, "granite": GRANITE, "gemma": GEMMA, "gemma3": GEMMA3, "gemma4": GEMMA4,
              "gemma4 experts": GEMMA4_EXPERTS, "qwen3_5": QWEN35, "lfm2 experts": LFM2_MOE, "granite hybrid": GRANITE_HYBRID,
              "falcon h1": FALCON_H1, "nemotron h": NEMOTRON_H,
              "seed_oss": SEED_OSS, "arcee": ARCEE, "hyperclovax": HYPERCLOVAX, "minicpm3": MINICPM3, "apertus": APERTUS, "hunyuan": HUNYUAN, "hunyuan moe": HUNYUAN_MOE, "ministral3": MINISTRAL3,
              "gemma2": GEMMA2, "olmo3": OLMO3, "gpt2": GPT2, "gpt": GPT, "bigcode": BIGCODE, "gpt_neox": GPT_NEOX, "sequential neox": SEQUENTIAL_NEOX,
              "opt": OPT, "xglm": XGLM, "nanochat": NANOCHAT, "opt 350m": OPT_350M, "glm4": GLM4, "starcoder2": STARCODER2, "cohere": COHERE, "phi": PHI, "persimmon": PERSIMMON, "olmo": OLMO, "nemotron": NEMOTRON, "gptj": GPTJ, "codegen": CODEGEN, "gpt_neo": GPT_NEO,
              "falcon 40b": FALCON_40B, "bloom": BLOOM, "mpt": MPT,
              "mixture": MIXTURE, "mixtral": MIXTRAL, "glm4_moe": GLM4_MOE, "deepseek": DEEPSEEK,
              "afmoe": AFMOE, "olmoe": OLMOE, "granite shared": GRANITE_SHARED, "llama4": LLAMA4,
              "gpt_oss": GPT_OSS}
    return save_model(folder, models[name], None if name in ("phi3", "granite") else "bfloat16")


def save_data(folder):
    """Rows longer than any micro-batch takes of them: every batch is full."""
    rng = random.Random(0)
    rows = [{"text": " ".join(rng.choice(tiny_llama.WORDS) for _ in range(200))}
            for _ in range(100)]
    tiny_llama.write_rows(folder / "train.jsonl", rows)
    return folder


def save_pairs(folder):
    """Pairs of texts of the same words, so that all have as many tokens; they fit into 128."""
    rng = random.Random(2)
    words = [rng.choice(tiny_llama.WORDS) for _ in range(35)]
    rows = [{"chosen": " ".join(rng.sample(words, len(words))), "rejected": " ".join(rng.sample(words, len(words)))}
            for _ in range(40)]
    tiny_llama.write_rows(folder / "train.jsonl", rows)
    return folder


def save_rated(folder):
    """The same of single answers, so that those behind other prompts have as many tokens, too."""
    rng = random.Random(3)
    words = [rng.choice(tiny_llama.WORDS) for _ in range(30)]
    rows = [{"prompt": " ".join(rng.sample(words[:10], 10)), "completion": " " + " ".join(rng.sample(words[10:], 20)),
             "label": i % 3 == 0} for i in range(40)]
    tiny_llama.write_rows(folder / "train.jsonl", rows)
    return folder


def save_many_lengths(folder):
    """Rows of some two hundred lengths."""
    rng = random.Random(1)
    rows = [{"text": " ".join(rng.choice(tiny_llama.WORDS) for _ in range(rng.randint(10, 200)))}
            for _ in range(200)]
    tiny_llama.write_rows(folder / "train.jsonl", rows)
    return folder


@dataclasses.dataclass
class Measured:
    """MB of 10^6 bytes of rank 0, bytes of its transfers in a step, what was new after step 3, and the bytes
    of the whole run: by theory, and copied out of other ranks' memory, each copy counted where it is made."""

    planned: float
    measured: float
    tensors_planned: float
    tensors_measured: float
    sent_planned: int
    sent: int
    grown: int  # bytes that tensors took from the system
    lasting: int  # new blocks of parameters, gradients, optimizer, slots and transport
    temporary: dict  # blocks of the last step by kind, and "KiB": smaller ones
    in_theory: float
    copied: float


def megabytes(text):
    number, unit = text.split()
    return float(number) * {"MB": 1, "GB": 1000}[unit]


MEMORY = re.compile(r"memory: planned (\S+ \S+), measured (\S+ \S+) \(process \S+ \S+ before the "
                    r"model; tensors planned (\S+ \S+), measured (\S+ [MG]B)")
WIRE = re.compile(r"wire: planned (\d+) bytes sent in a step, counted (\d+); tensors took (\d+) bytes "
                  r"more after step 3, and (\d+) blocks for parameters, gradients, optimizer, slots "
                  r"and transport; temporary ones of the last step: (.+)")


def traffic_of(text):
    """By theory and in fact; nothing where a rank is alone."""
    theory = re.search(r"sent by rank 0: (.+)", text)
    copied = re.search(r"moved by rank 0: ([\d.]+) MB out of other ranks' memory", text)
    if not theory:
        return 0.0, 0.0
    return 1e6 * sum(map(float, re.findall(r"([\d.]+) MB \(shm\)", theory[1]))), 1e6 * float(copied[1])


def run_row(row, model, data, output, recipe="sft"):
    world, strategy, flags = row
    flags = dict(flags)
    if "model" in flags:
        model = other_model(flags.pop("model"), model)
    disk = BUILD / "no-settings"  # the tests' own folder may lie in memory
    disk.mkdir(exist_ok=True)
    for kind in ("param", "optimizer"):
        if f"offload_{kind}_device" in flags:
            flags = {**flags, f"offload_{kind}_nvme_path": disk}
    if "activation_offloading" in flags:
        flags = dict(flags, activation_offloading_path=disk)
    rows = PACKED if recipe == "sft" else dict(max_length=128)
    settings = dict(rows, per_device_train_batch_size=2, max_steps=STEPS, splits="train", sharding_strategy=strategy,
                    wall_clock_breakdown=True)
    run = run_program(base_flags(model, data, output, **{**settings, **flags}), world, recipe=recipe)
    memory, wire = MEMORY.search(run.text), WIRE.search(run.text)
    assert memory and wire, run.text
    return Measured(*map(megabytes, memory.groups()), *map(int, wire.groups()[:4]),
                    dict(re.findall(r"([a-z]+|KiB) (\d+)(?:,|$)", wire.group(5))),
                    *traffic_of(run.text))
