"""Runs whose memory others have published: what docs/guide/published_memory.md has a row for."""

GIB = 1.073741824  # GB of 10^9 bytes
NO_RECOMPUTING = ["--gradient_checkpointing", "false"]


def llama(vocabulary, hidden, inner, layers, heads, keys, **more):
    return dict(model_type="llama", torch_dtype="bfloat16", rms_norm_eps=1e-5,
                max_position_embeddings=131072, vocab_size=vocabulary, hidden_size=hidden,
                intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=keys, **more)


def t5(vocabulary, hidden, inner, layers, heads, activation="gated-gelu", tied=False):
    return dict(model_type="t5", vocab_size=vocabulary, d_model=hidden, d_kv=64, d_ff=inner,
                num_layers=layers, num_decoder_layers=layers, num_heads=heads, pad_token_id=0,
                eos_token_id=1, decoder_start_token_id=0, relative_attention_num_buckets=32,
                feed_forward_proj=activation, tie_word_embeddings=tied, torch_dtype="bfloat16")


# By their published config.json.
SHAPES = {
    "Llama-2-7B": llama(32000, 4096, 11008, 32, 32, 32),
    "Llama-2-13B": llama(32000, 5120, 13824, 40, 40, 40),
    "Llama-2-70B": llama(32000, 8192, 28672, 80, 64, 8),
    "Llama-3-70B": llama(128256, 8192, 28672, 80, 64, 8),
    "Llama-3.1-8B": llama(128256, 4096, 14336, 32, 32, 8),
    "Llama-3.1-405B": llama(128256, 16384, 53248, 126, 128, 8),
    "Llama-3.2-3B": llama(128256, 3072, 8192, 28, 24, 8, head_dim=128, tie_word_embeddings=True),
    "Yi-34B": llama(64000, 7168, 20480, 60, 56, 8),
    "Mistral-24B": llama(131072, 5120, 32768, 40, 32, 8, head_dim=128),
    "Seed-36B": dict(llama(155136, 5120, 27648, 64, 80, 8, head_dim=128), model_type="seed_oss"),
    "OLMo-3-7B": llama(100278, 4096, 11008, 32, 32, 32),
    "Apertus-8B": dict(llama(131072, 4096, 21504, 32, 32, 8), model_type="apertus"),
    "AFM-4.5B": dict(llama(128004, 2560, 18432, 36, 20, 4, head_dim=128), model_type="arcee"),
    "gpt-oss-20b": dict(llama(201088, 2880, 2880, 24, 64, 8, head_dim=64), model_type="gpt_oss", dtype="bfloat16",
                        num_local_experts=32, num_experts_per_tok=4, sliding_window=128, attention_bias=True,
                        quantization_config={"quant_method": "mxfp4"}),
    "Llama-4-Scout": dict(llama(202048, 5120, 8192, 48, 40, 8, head_dim=128), model_type="llama4_text", dtype="bfloat16",
                          intermediate_size_mlp=16384, num_local_experts=16, num_experts_per_tok=1, interleave_moe_layer_step=1,
                          attention_chunk_size=8192),
    "GLM-4.5-Air": dict(llama(151552, 4096, 10944, 46, 96, 8, head_dim=128), model_type="glm4_moe", dtype="bfloat16",
                        moe_intermediate_size=1408, n_routed_experts=128, num_experts_per_tok=8, n_shared_experts=1,
                        first_k_dense_replace=1, attention_bias=True),
    "Qwen2.5-0.5B": dict(llama(151936, 896, 4864, 24, 14, 2, tie_word_embeddings=True),
                         model_type="qwen2"),
    "T5-base": t5(32128, 768, 3072, 12, 12, "relu", tied=True),
    "T0-3B": t5(32128, 2048, 5120, 24, 32),
    "bloomz-7b1": dict(model_type="bloom", vocab_size=250880, hidden_size=4096, n_layer=30, n_head=32,
                       torch_dtype="float16"),
    "mt0-xxl": t5(250112, 4096, 10240, 24, 64),
}


def lora(rank=8, *more):
    return ["--use_peft", "--lora_r", rank, "--lora_alpha", 16, "--lora_target_modules",
            "all-linear", "--dtype", "bfloat16", *more]


def qlora(rank=8, *more):
    return [*lora(rank), "--load_in_4bit", "--bnb_4bit_use_double_quant",
            "--bnb_4bit_compute_dtype", "bfloat16", *more]


def of_attention(rank, *more):
    return ["--use_peft", "--lora_target_modules", "q_proj", "v_proj", "--dtype", "bfloat16",
            "--lora_r", rank, *NO_RECOMPUTING, *more]


def translating(*more):
    return ["--bf16", "false", "--max_source_length", 128, "--max_target_length", 8,
            *NO_RECOMPUTING, *more]


OFFLOAD = ["--fsdp_offload_params", "true"]
EIGHT_BITS = ["--optim", "adamw_8bit"]
SELECTIVE = ["--gradient_checkpointing_mode", "selective"]
MOVED_INPUTS = ["--activation_offloading", "true"]
TRANSLATING_LORA = ["--use_peft", "--lora_r", 8, "--lora_alpha", 32, "--bf16", "false",
                    *NO_RECOMPUTING]
BLOOM_LORA = ["--use_peft", "--lora_r", 8, "--bf16", "false", *NO_RECOMPUTING]
NF4 = ["--load_in_4bit", "--bnb_4bit_compute_dtype", "bfloat16"]
NF4_32 = lora(32, *NF4, *EIGHT_BITS)

# The run's name in the page: model, ranks, rows of a micro-batch, tokens of a row, flags, published
# GB.
RUNS = {
    # FSDP, DeepSpeed, PEFT's guides. An A100 of 80 GB has 85.9e9 bytes.
    "70B, all weights, 16 ranks": ("Llama-2-70B", 16, 1, 2048, [], 80 * GIB),
    "70B, LoRA, 8 ranks": ("Llama-2-70B", 8, 8, 2048, lora(), 76),
    "70B, QLoRA, 2 ranks": ("Llama-2-70B", 2, 2, 2048, qlora(), 35.6),
    "70B, QLoRA, 2 ranks, offload": ("Llama-2-70B", 2, 2, 2048, qlora(8, *OFFLOAD), 19.6),
    "Llama-3-70B, QLoRA, 4 ranks, offload": ("Llama-3-70B", 4, 1, 3072, qlora(8, *OFFLOAD), 22),
    "Llama-3-70B, QLoRA, 2 ranks, offload": ("Llama-3-70B", 2, 1, 512, qlora(8, *OFFLOAD),
                                             21 * GIB),
    "T5-base, LoRA, 2 ranks": ("T5-base", 2, 8, 0, TRANSLATING_LORA, None),
    "T5-base, LoRA, 2 ranks, offload": ("T5-base", 2, 8, 0, [*TRANSLATING_LORA, *OFFLOAD], None),
    "T0-3B, all weights": ("T0-3B", 1, 8, 0, translating(), 47.14),
    "T0-3B, LoRA": ("T0-3B", 1, 8, 0, translating("--use_peft", "--lora_r", 8), 14.4),
    "T0-3B, LoRA, offload": ("T0-3B", 1, 8, 0,
                             translating("--use_peft", "--lora_r", 8, *OFFLOAD), 9.8),
    "mt0-xxl, LoRA": ("mt0-xxl", 1, 8, 0, translating("--use_peft", "--lora_r", 8), 56),
    "mt0-xxl, LoRA, offload": ("mt0-xxl", 1, 8, 0,
                               translating("--use_peft", "--lora_r", 8, *OFFLOAD), 22),
    "bloomz-7b1, LoRA": ("bloomz-7b1", 1, 8, 64, BLOOM_LORA, 32),
    "bloomz-7b1, LoRA, offload": ("bloomz-7b1", 1, 8, 64, [*BLOOM_LORA, *OFFLOAD], 18.1),
    "3B, LoRA of q and v, 4 x 768": ("Llama-3.2-3B", 1, 4, 768, of_attention(32), 13.41 * GIB),
    "3B, DoRA of q and v, 4 x 768": ("Llama-3.2-3B", 1, 4, 768, of_attention(32, "--use_dora"),
                                     14.36 * GIB),
    "3B, all weights, 4 x 768": ("Llama-3.2-3B", 1, 4, 768,
                                 ["--dtype", "bfloat16", *NO_RECOMPUTING], 31.98 * GIB),
    # fsdp_qlora.
    "7B, QLoRA, 2 ranks, 1 x 512": ("Llama-2-7B", 2, 1, 512, qlora(), 4.98 * GIB),
    "7B, QLoRA, 2 ranks, 1 x 2048": ("Llama-2-7B", 2, 1, 2048, qlora(), 5.21 * GIB),
    "7B, QLoRA, 2 ranks, 4 x 2048": ("Llama-2-7B", 2, 4, 2048, qlora(), 11.22 * GIB),
    "7B, QLoRA, 2 ranks, 10 x 2048": ("Llama-2-7B", 2, 10, 2048, qlora(), 20.97 * GIB),
    "7B, LoRA, 2 ranks, 1 x 512": ("Llama-2-7B", 2, 1, 512, lora(), 10.24 * GIB),
    "7B, LoRA, 2 ranks, 1 x 2048": ("Llama-2-7B", 2, 1, 2048, lora(), 10.22 * GIB),
    "7B, LoRA, 2 ranks, 4 x 2048": ("Llama-2-7B", 2, 4, 2048, lora(), 16.14 * GIB),
    "7B, LoRA, 2 ranks, 6 x 2048": ("Llama-2-7B", 2, 6, 2048, lora(), 21.35 * GIB),
    "34B, QLoRA, 2 ranks, 2 x 2048": ("Yi-34B", 2, 2, 2048, qlora(), 23.05 * GIB),
    "34B, QLoRA, 2 ranks, 4 x 2048, offload": ("Yi-34B", 2, 4, 2048, qlora(8, *OFFLOAD),
                                               22.98 * GIB),
    # torchtune's tutorials and README.
    "7B, LoRA, 2 x 512": ("Llama-2-7B", 1, 2, 512, lora(), 15.57 * GIB),
    "7B, QLoRA, 2 x 512": ("Llama-2-7B", 1, 2, 512, qlora(), 9.29 * GIB),
    "8B, LoRA, 2 x 2048": ("Llama-3.1-8B", 1, 2, 2048, lora(), 16.2 * GIB),
    "8B, QLoRA, 2 x 2048": ("Llama-3.1-8B", 1, 2, 2048, qlora(), 7.4 * GIB),
    "70B, LoRA, 8 ranks, 1 x 2048": ("Llama-3-70B", 8, 1, 2048, lora(), 27.6 * GIB),
    "405B, QLoRA, 8 ranks, 1 x 2048": ("Llama-3.1-405B", 8, 1, 2048, lora(8, *NF4), 44.8 * GIB),
    "3B, all weights, 2 x 4096": ("Llama-3.2-3B", 1, 2, 4096, [], 24.9 * GIB),
    "3B, LoRA, 2 x 4096, inputs moved": ("Llama-3.2-3B", 1, 2, 4096, lora(8, *MOVED_INPUTS),
                                         8.5 * GIB),
    # torchtitan.
    "8B, 8 ranks, 2 x 8192, selective": ("Llama-3.1-8B", 8, 2, 8192, SELECTIVE, 82.4 * GIB),
    "8B, 128 ranks, 2 x 8192, selective": ("Llama-3.1-8B", 128, 2, 8192, SELECTIVE, 67.0 * GIB),
    "8B, 8 ranks, 1 x 8192, selective": ("Llama-3.1-8B", 8, 1, 8192, SELECTIVE, 33.71),
    "8B, 8 ranks, 1 x 8192": ("Llama-3.1-8B", 8, 1, 8192, [], 33.71),
    "8B, 8 ranks, 1 x 32768": ("Llama-3.1-8B", 8, 1, 32768, [], 83.9 * GIB),
    # LLaMA-Factory's wiki.
    "7B, QLoRA, 1 x 1k": ("Llama-2-7B", 1, 1, 1024, qlora(), 6),
    "7B, QLoRA, 1 x 2k": ("Llama-2-7B", 1, 1, 2048, qlora(), 7),
    "7B, QLoRA, 1 x 4k": ("Llama-2-7B", 1, 1, 4096, qlora(), 9),
    "7B, QLoRA, 1 x 8k": ("Llama-2-7B", 1, 1, 8192, qlora(), 12),
    "7B, QLoRA, 1 x 16k": ("Llama-2-7B", 1, 1, 16384, qlora(), 19),
    "7B, QLoRA, 1 x 32k": ("Llama-2-7B", 1, 1, 32768, qlora(), 32),
    "7B, QLoRA, 1 x 65k, inputs moved": ("Llama-2-7B", 1, 1, 65536, qlora(8, *MOVED_INPUTS), 25),
    "7B, QLoRA, 1 x 100k, inputs moved": ("Llama-2-7B", 1, 1, 100000, qlora(8, *MOVED_INPUTS), 37),
    "7B, LoRA, 4 x 1024": ("Llama-2-7B", 1, 4, 1024, lora(), 17),
    "7B, QLoRA, 4 x 1024": ("Llama-2-7B", 1, 4, 1024, qlora(), 9),
    # axolotl and Unsloth: ranks of 32, 8-bit AdamW.
    "24B, QLoRA, 2 x 2048": ("Mistral-24B", 1, 2, 2048, NF4_32, 24 * GIB),
    "36B, QLoRA, 2 x 2048": ("Seed-36B", 1, 2, 2048, NF4_32, 27.7 * GIB),
    "OLMo-3-7B, QLoRA, 2 x 2048": ("OLMo-3-7B", 1, 2, 2048, NF4_32, 11.3 * GIB),
    "Apertus-8B, QLoRA, 2 x 2048": ("Apertus-8B", 1, 2, 2048, NF4_32, 8.7 * GIB),
    "AFM-4.5B, QLoRA, 2 x 2048": ("AFM-4.5B", 1, 2, 2048, NF4_32, 7.8 * GIB),
    "gpt-oss-20b, LoRA, 1 x 4096": ("gpt-oss-20b", 1, 1, 4096, lora(8, "--optim", "adamw_8bit"), 44 * GIB),
    "gpt-oss-20b, LoRA, 1 x 4096, decoded": ("gpt-oss-20b", 1, 1, 4096, lora(8, "--optim", "adamw_8bit", "--mxfp4_dequantize"), 44 * GIB),
    "Llama-4-Scout, QLoRA, 1 x 4096": ("Llama-4-Scout", 1, 1, 4096, NF4_32, 64.5 * GIB),
    "GLM-4.5-Air, QLoRA of attention, 1 x 2048": ("GLM-4.5-Air", 1, 1, 2048,
                                                  [*NF4_32, "--lora_target_modules", "q_proj", "k_proj", "v_proj", "o_proj"],
                                                  63.4 * GIB),
    "8B, QLoRA, 1 x 932": ("Llama-3.1-8B", 1, 1, 932, NF4_32, 12),
    "8B, QLoRA, 1 x 2551": ("Llama-3.1-8B", 1, 1, 2551, NF4_32, 16),
    "8B, QLoRA, 1 x 5789": ("Llama-3.1-8B", 1, 1, 5789, NF4_32, 24),
    "8B, QLoRA, 1 x 15502": ("Llama-3.1-8B", 1, 1, 15502, NF4_32, 48),
    "8B, QLoRA, 1 x 28454": ("Llama-3.1-8B", 1, 1, 28454, NF4_32, 80),
    "Llama-3-70B, QLoRA, 1 x 6916": ("Llama-3-70B", 1, 1, 6916, NF4_32, 80),
    # litgpt.
    "7B, LoRA of q and v, 1 x 512": ("Llama-2-7B", 1, 1, 512, of_attention(8), 21.30),
    "7B, LoRA of q and v, 2 x 512": ("Llama-2-7B", 1, 2, 512, of_attention(8), 29.07),
    "7B, LoRA of q and v, nf4": ("Llama-2-7B", 1, 1, 512, of_attention(8, "--load_in_4bit"), 14.14),
    "7B, LoRA of q and v, 2 ranks": ("Llama-2-7B", 2, 1, 512, of_attention(8), 22.18),
    "13B, LoRA of q and v": ("Llama-2-13B", 1, 1, 512, of_attention(8), 38.12),
    "13B, LoRA of q and v, nf4": ("Llama-2-13B", 1, 1, 512, of_attention(8, "--load_in_4bit"),
                                  23.14),
}
