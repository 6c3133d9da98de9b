"""Small random checkpoints of Llama and its relatives, their tokenizer and data sets, for the tests that train.

Everything is a pure function of its arguments; nothing is downloaded.
"""

import json
import random

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WORDS = ("the cat sat on a mat and went away when it rained in Zürich 12345 times naïve café "
         "isn't we'll <b>bold</b> 東京 def f(x): return x+1").split(" ")

PLAIN = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2)
# More heads of keys than ranks usually share.
MANY_HEADS = dict(PLAIN, hidden_size=48, num_attention_heads=8, num_key_value_heads=4)
TIED = dict(PLAIN, tie_word_embeddings=True)
# No row is shorter than a quantised block of 64, which the reference's CPU kernels need.
WIDE = dict(PLAIN, hidden_size=64, intermediate_size=76)
# Sizes that no world size divides, and a head that is not hidden_size / heads.
ODD = dict(hidden_size=21, intermediate_size=29, num_hidden_layers=3, num_attention_heads=3,
           num_key_value_heads=1, head_dim=6, attention_bias=True)
ODD_VOCABULARY = 331
# Shorter than the rows.
MISTRAL = dict(PLAIN, family="mistral", sliding_window=16)
QWEN2 = dict(PLAIN, family="qwen2", tie_word_embeddings=True)
QWEN3 = dict(PLAIN, family="qwen3", hidden_size=30, head_dim=10)
# The longest row turns by the long factors; head_dim 8, of which 6 channels turn.
PHI3 = dict(PLAIN, family="phi3", original_max_position_embeddings=32, rope_parameters=dict(
    rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3],
    long_factor=[1.5, 2.5, 4.0]))
SMOLLM3 = dict(PLAIN, family="smollm3", num_hidden_layers=3, no_rope_layer_interval=2)
GRANITE = dict(PLAIN, family="granite", tie_word_embeddings=True, embedding_multiplier=2.5,
               attention_multiplier=0.3, residual_multiplier=0.7, logits_scaling=1.5, attention_dropout=0.2)
GEMMA3 = dict(PLAIN, family="gemma3_text", hidden_size=36, num_key_value_heads=1, head_dim=10, sliding_window=7,
              layer_types=["sliding_attention", "full_attention"])
# Layers of two shapes of heads, global ones without a projection of values.
GEMMA4 = dict(PLAIN, family="gemma4_text", hidden_size=36, num_key_value_heads=2, head_dim=10, global_head_dim=14, num_global_key_value_heads=1,
              attention_k_eq_v=True, sliding_window=7, layer_types=["sliding_attention", "full_attention"],
              hidden_size_per_layer_input=0)
# As the small ones: vectors of each layer, and the last two layers read the keys of those before.
GEMMA4_SMALL = dict(GEMMA4, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, attention_k_eq_v=False,
                    num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=6, final_logit_softcapping=5.0)
GEMMA4_EXPERTS = dict(GEMMA4, enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=12)
GEMMA2 = dict(PLAIN, family="gemma2", hidden_size=36, num_key_value_heads=1, head_dim=10, sliding_window=7,
              attn_logit_softcapping=1.0, final_logit_softcapping=5.0, query_pre_attn_scalar=20)
# Two layers of linear attention and one of attention; the ranks' rows differ in length.
QWEN35 = dict(PLAIN, family="qwen3_5_text", hidden_size=36, head_dim=8, num_key_value_heads=1, num_hidden_layers=3,
              layer_types=["linear_attention", "full_attention", "linear_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
              linear_key_head_dim=10, linear_value_head_dim=12)
OLMO2 = dict(PLAIN, family="olmo2", hidden_size=36, num_attention_heads=6, num_key_value_heads=1)
OLMO3 = dict(PLAIN, family="olmo3", sliding_window=7, layer_types=["sliding_attention", "full_attention"])
# Dropout is on, as in every file of these two that says nothing of it.
GPT2 = dict(family="gpt2", n_embd=30, n_layer=2, n_head=3, n_inner=44)
GPT_BIGCODE = dict(GPT2, family="gpt_bigcode", n_embd=36)
GPT = dict(family="openai-gpt", n_embd=30, n_layer=2, n_head=3)
# Dropout is on here, too.
GPT_NEOX = dict(family="gpt_neox", hidden_size=42, intermediate_size=44, num_hidden_layers=2, num_attention_heads=3,
                rotary_pct=0.3, hidden_dropout=0.1, attention_dropout=0.1)
OPT = dict(family="opt", hidden_size=42, ffn_dim=44, num_hidden_layers=2, num_attention_heads=3)
XGLM = dict(family="xglm", d_model=42, ffn_dim=44, num_layers=2, attention_heads=3, activation_dropout=0.1)
# As OPT-350m.
OPT_350M = dict(OPT, do_layer_norm_before=False, word_embed_proj_dim=20)
# LayerNorm and rotated heads, attention and MLP one after the other or side by side; dropout is on where files have it.
STARCODER2 = dict(PLAIN, family="starcoder2", sliding_window=16, residual_dropout=0.1, attention_dropout=0.1,
                  embedding_dropout=0.1)
COHERE = dict(PLAIN, family="cohere", logit_scale=0.5, use_qk_norm=True)
COHERE2 = dict(PLAIN, family="cohere2", num_hidden_layers=3, sliding_window=7, sliding_window_pattern=2, logit_scale=0.5)
PHI = dict(PLAIN, family="phi", hidden_size=48, num_attention_heads=3, num_key_value_heads=1, resid_pdrop=0.1)
STABLELM = dict(PLAIN, family="stablelm", hidden_size=48, num_attention_heads=3, num_key_value_heads=3, qk_layernorm=True,
                use_qkv_bias=True, hidden_dropout=0.1)
PERSIMMON = dict(family="persimmon", hidden_size=48, intermediate_size=44, num_hidden_layers=2, num_attention_heads=3, hidden_dropout=0.1)
# A limit that cuts some values of q, k and v; norms without parameters, or whose weights count from 1.
OLMO = dict(PLAIN, family="olmo", clip_qkv=0.5, attention_dropout=0.1)
NEMOTRON = dict(PLAIN, family="nemotron", hidden_size=48, num_attention_heads=3, num_key_value_heads=1)
JAIS2 = dict(PLAIN, family="jais2", hidden_size=36, num_attention_heads=6, num_key_value_heads=1)
# Some channels turn, each with its neighbour; learned positions, scores that are not scaled, a window in every second layer.
GPTJ = dict(family="gptj", n_embd=42, n_layer=2, n_head=3, n_inner=44, rotary_dim=6, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)
CODEGEN = dict(family="codegen", n_embd=40, n_layer=2, n_head=4, n_inner=44, rotary_dim=6, resid_pdrop=0.1)
GPT_NEO = dict(family="gpt_neo", hidden_size=42, intermediate_size=44, num_layers=2, num_heads=3, attention_types=[[["global", "local"], 1]],
               window_size=7, resid_dropout=0.1, embed_dropout=0.1, attention_dropout=0.1)
# q, k and v are one matrix; as the 40B, and ALiBi.
FALCON = dict(family="falcon", hidden_size=42, num_hidden_layers=2, num_attention_heads=3, hidden_dropout=0.1)
FALCON_40B = dict(FALCON, hidden_size=48, num_attention_heads=6, num_kv_heads=2, new_decoder_architecture=True, bias=True)
BLOOM = dict(family="bloom", hidden_size=42, n_layer=2, n_head=3, hidden_dropout=0.1, attention_dropout=0.1)
MPT = dict(family="mpt", d_model=42, n_layers=2, n_heads=3, attn_config=dict(clip_qkv=0.5))
# Mixtures of experts; the second has layers without, and an expert of all tokens.
# transformers' grouped products need sizes of multiples of 16 bytes.
UNBALANCED = dict(PLAIN, router_aux_loss_coef=0.0)
QWEN3_MOE = dict(UNBALANCED, family="qwen3_moe", hidden_size=36, head_dim=10, num_experts=5, num_experts_per_tok=2,
                 moe_intermediate_size=20, norm_topk_prob=True)
QWEN2_MOE = dict(UNBALANCED, family="qwen2_moe", num_hidden_layers=3, mlp_only_layers=[1], num_experts=7,
                 num_experts_per_tok=3, moe_intermediate_size=12, shared_expert_intermediate_size=21)
QWEN3_NEXT = dict(QWEN35, family="qwen3_next", router_aux_loss_coef=0.0, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
                  shared_expert_intermediate_size=21, mlp_only_layers=[1])
MIXTRAL = dict(UNBALANCED, family="mixtral", num_local_experts=4, sliding_window=16)
# Experts that sigmoids and a correction choose, of two groups; the first layer has an MLP.
GLM4_MOE = dict(PLAIN, family="glm4_moe", head_dim=12, use_qk_norm=True, attention_bias=True, n_routed_experts=6,
                n_group=3, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=12, n_shared_experts=2,
                routed_scaling_factor=1.5)
# Latent attention whose values are narrower than keys, of a YaRN that scales scores, and whose queries are one product.
DEEPSEEK_V2 = dict(PLAIN, family="deepseek_v2", num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=14, qk_nope_head_dim=6,
                   qk_rope_head_dim=4, v_head_dim=9, first_k_dense_replace=1, n_routed_experts=6, num_experts_per_tok=3,
                   topk_method="group_limited_greedy", n_group=3, topk_group=2, moe_intermediate_size=12, n_shared_experts=2,
                   rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, mscale=0.7, mscale_all_dim=0.9,
                                        original_max_position_embeddings=64))
DEEPSEEK_V3 = dict(DEEPSEEK_V2, family="deepseek_v3", q_lora_rank=10, v_head_dim=10, attention_bias=True, topk_method="noaux_tc",
                   routed_scaling_factor=1.5, rope_parameters=dict(rope_type="default", rope_theta=10000.0))
GLM_FLASH = dict(DEEPSEEK_V3, family="glm4_moe_lite", attention_bias=False)
for key in ("topk_method", "first_k_dense_replace"):
    del GLM_FLASH[key]
# Experts that are one parameter, attention with sinks; the limit cuts some values.
GPT_OSS = dict(UNBALANCED, family="gpt_oss", hidden_size=36, num_key_value_heads=1, head_dim=10, sliding_window=7,
               num_local_experts=5, num_experts_per_tok=2, intermediate_size=20, swiglu_limit=0.6)
# q and k have norms over all heads; limits cut some of their values, or a part of a head turns.
OLMOE = dict(UNBALANCED, family="olmoe", clip_qkv=1.2, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True)
OLMOE["intermediate_size"] = 20
MINIMAX_M2 = dict(UNBALANCED, family="minimax_m2", head_dim=10, rotary_dim=6, num_local_experts=5, num_experts_per_tok=2)
MINIMAX_M2["intermediate_size"] = 20
# Experts that are two parameters, with an MLP of all tokens and without.
GRANITE_MOE = dict(UNBALANCED, family="granitemoe", num_local_experts=5, embedding_multiplier=2.5, attention_multiplier=0.3,
                   residual_multiplier=0.7, logits_scaling=1.5, attention_dropout=0.1)
GRANITE_MOE["intermediate_size"] = 20
GRANITE_SHARED = dict(GRANITE_MOE, family="granitemoeshared", shared_intermediate_size=12, tie_word_embeddings=True)
GRANITE_MOE_SWA = dict(GRANITE_MOE, family="granitemoe_swa", num_hidden_layers=3, sliding_window=7, layer_rope_theta=[0, 500.0, 0],
                       shared_intermediate_size=12, attention_dropout=0.0)
# The second layer alone has experts.
ERNIE45_MOE = dict(UNBALANCED, family="ernie4_5_moe", num_hidden_layers=3, moe_num_experts=5, moe_k=2, moe_intermediate_size=12,
                   moe_layer_end_index=1)
DOTS1 = dict(PLAIN, family="dots1", n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=3, moe_intermediate_size=12,
             n_shared_experts=2, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5)
EXAONE_MOE = dict(PLAIN, family="exaone_moe", num_hidden_layers=3, sliding_window=7, sliding_window_pattern=2, num_experts=6,
                  num_experts_per_tok=2, moe_intermediate_size=12)
SOLAR_OPEN = dict(PLAIN, family="solar_open", head_dim=12, attention_bias=True, n_routed_experts=6, num_experts_per_tok=2,
                  moe_intermediate_size=12)
# Windows and rotations by kind of layer, an MLP in one; norms behind experts; a gate behind attention.
MELLUM = dict(UNBALANCED, family="mellum", num_hidden_layers=3, head_dim=10, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
              sliding_window=7, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
              mlp_layer_types=["sparse", "dense", "sparse"])
FLEX_OLMO = dict(UNBALANCED, family="flex_olmo", num_experts=5, num_experts_per_tok=2)
FLEX_OLMO["intermediate_size"] = 20
AFMOE = dict(PLAIN, family="afmoe", num_hidden_layers=3, head_dim=10, sliding_window=7, global_attn_every_n_layers=2, num_experts=6,
             num_experts_per_tok=2, moe_intermediate_size=12, num_shared_experts=1, mup_enabled=True)
# Chunks shorter than the rows, layers without positions, experts in the place of every second MLP.
LLAMA4 = dict(PLAIN, family="llama4_text", head_dim=10, num_hidden_layers=3, intermediate_size_mlp=48, num_local_experts=5,
              num_experts_per_tok=2, interleave_moe_layer_step=2, no_rope_layer_interval=3, attention_chunk_size=16, floor_scale=8,
              attn_scale=0.4)
LLAMA4["intermediate_size"] = 20
# Half of the channels turn, each with its neighbour.
GLM = dict(PLAIN, family="glm", hidden_size=30, num_key_value_heads=1, head_dim=12)
GLM4 = dict(PLAIN, family="glm4", head_dim=8, attention_bias=False)
# Both dropouts are on, as in the published file.
SEED_OSS = dict(PLAIN, family="seed_oss", head_dim=10, attention_out_bias=True)
# An MLP without a gate; in the second its activation trains.
ARCEE = dict(PLAIN, family="arcee", mlp_bias=True)
APERTUS = dict(PLAIN, family="apertus", hidden_size=36, num_attention_heads=6, num_key_value_heads=1)
EXAONE4 = dict(PLAIN, family="exaone4", num_hidden_layers=3, sliding_window=7, sliding_window_pattern=2)
ERNIE45 = dict(PLAIN, family="ernie4_5", hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=12, use_bias=True)
# Names of other models for Llama's layers; a window in three layers of four; norms on both sides with factors around everything.
INTERNLM3 = dict(PLAIN, family="internlm3", head_dim=8, attention_bias=True, mlp_bias=True)
CWM = dict(PLAIN, family="cwm", bos_token_id=1, num_hidden_layers=3, head_dim=8, sliding_window=7)
HELIUM = dict(PLAIN, family="helium", hidden_size=30, num_attention_heads=3, num_key_value_heads=1, head_dim=10, attention_dropout=0.1)
HYPERCLOVAX = dict(PLAIN, family="hyperclovax", hidden_size=36, num_attention_heads=6, num_key_value_heads=1, tie_word_embeddings=True,
                   embedding_multiplier=2.5, attention_multiplier=0.3, residual_multiplier=0.7, logits_scaling=0.8)
VAULTGEMMA = dict(PLAIN, family="vaultgemma", hidden_size=36, num_key_value_heads=1, head_dim=10, sliding_window=7,
                  attn_logit_softcapping=1.0, final_logit_softcapping=5.0, query_pre_attn_scalar=20)
MINICPM3 = dict(PLAIN, family="minicpm3", num_key_value_heads=4, kv_lora_rank=14, q_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4,
                scale_emb=2.5, dim_model_base=20)
YOUTU = dict(PLAIN, family="youtu", num_key_value_heads=4, kv_lora_rank=14, q_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)
# Sinks, a window in two layers of three, a rotation in one of those alone.
GRANITE_SWA = dict(PLAIN, family="granite_swa", num_hidden_layers=3, sliding_window=7, layer_rope_theta=[0, 500.0, 0], embedding_multiplier=2.5,
                   attention_multiplier=0.3, residual_multiplier=0.7, logits_scaling=1.5)
NANOCHAT = dict(PLAIN, family="nanochat", head_dim=10)
HUNYUAN = dict(PLAIN, family="hunyuan_v1_dense", head_dim=10, rope_parameters=dict(
    rope_type="dynamic", rope_theta=10000.0, alpha=100.0, factor=1.0))
# Layers that mix tokens by a short convolution, or by Mamba-2 of three groups, beside attention.
LFM2 = dict(PLAIN, family="lfm2", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], block_multiple_of=7)
LFM2_MOE = dict(PLAIN, family="lfm2_moe", num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], num_dense_layers=1,
                num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12)
GRANITE_HYBRID = dict(UNBALANCED, family="granitemoehybrid", num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"],
                      mamba_n_heads=6, mamba_d_head=12, mamba_expand=2, hidden_size=36, num_attention_heads=3, num_key_value_heads=1,
                      mamba_n_groups=3, mamba_d_state=5, mamba_chunk_size=8, num_local_experts=5, num_experts_per_tok=2,
                      shared_intermediate_size=21, embedding_multiplier=2.5, attention_multiplier=0.3, residual_multiplier=0.7,
                      logits_scaling=1.5)
GRANITE_HYBRID["intermediate_size"] = 20
BAMBA = dict(PLAIN, family="bamba", num_hidden_layers=3, attn_layer_indices=[1], hidden_size=36, num_attention_heads=3, num_key_value_heads=1,
             mamba_n_heads=6, mamba_n_groups=3, mamba_d_state=5, mamba_chunk_size=8, mlp_bias=True, mamba_proj_bias=True)
# Attention beside Mamba-2 in every layer, with factors around everything.
FALCON_H1 = dict(PLAIN, family="falcon_h1", hidden_size=36, num_attention_heads=3, num_key_value_heads=1, mamba_d_ssm=42, mamba_n_heads=6,
                 mamba_n_groups=3, mamba_d_state=5, mamba_chunk_size=8, mamba_rms_norm=True, attention_dropout=0.1, embedding_multiplier=2.5,
                 lm_head_multiplier=0.6, key_multiplier=0.7, attention_in_multiplier=1.3, attention_out_multiplier=0.8,
                 ssm_in_multiplier=1.4, ssm_out_multiplier=0.6, ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.8], mlp_multipliers=[1.3, 0.7])
# Layers of one module each, experts without gates that read a part of the channels.
NEMOTRON_H = dict(PLAIN, family="nemotron_h", hybrid_override_pattern="M-E*", hidden_size=36, num_attention_heads=3, num_key_value_heads=1,
                  head_dim=10, mamba_num_heads=6, mamba_head_dim=7, n_groups=3, ssm_state_size=5, chunk_size=8, n_routed_experts=5,
                  num_experts_per_tok=2, moe_intermediate_size=12, moe_shared_expert_intermediate_size=21, moe_latent_size=20)
HUNYUAN_MOE = dict(HUNYUAN, family="hunyuan_v1_moe", num_experts=5, moe_topk=[2, 3], intermediate_size=20)
# Longer rows have queries that grow.
MINISTRAL3 = dict(PLAIN, family="ministral3", head_dim=10, rope_parameters=dict(
    rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.5))
GEMMA = dict(PLAIN, family="gemma", hidden_size=30, num_key_value_heads=1, head_dim=10)


def sentence(rng, low=1, high=14):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(low, high)))


def save_tokenizer(folder):
    """A byte-level BPE tokenizer of about 320 tokens with a chatml template; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rng = random.Random(0)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        (sentence(rng) for _ in range(200)),
        trainers.BpeTrainer(vocab_size=320, show_progress=False,
                            special_tokens=["<pad>", "<|im_start|>", "<|im_end|>"],
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>",
                                        pad_token="<pad>")
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def save_llama2_tokenizer(folder, size=330):
    """A tokenizer with the shape of Llama 2's: <unk>, <s>, </s>, bytes, pieces with word marks."""
    from transformers import LlamaTokenizer

    names = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["\u2581"]
    letters = sorted(set("".join(WORDS)) | set("abcdefghijklmnopqrstuvwxyz"))
    merges = [("\u2581", letter) for letter in "tcsamwrid"]
    names += letters + [left + right for left, right in merges]
    vocabulary = {name: i for i, name in enumerate(names)}
    assert len(vocabulary) <= size
    for i in range(len(vocabulary), size):
        vocabulary[f"\u2581filler{i}"] = i
    LlamaTokenizer(vocab=vocabulary, merges=merges).save_pretrained(folder)
    return size


def save_model(folder, seed=0, vocab_size=None, family="llama", llama2=None, dtype=None, **settings):
    """Checkpoint folder with tokenizer; weights large enough that losses move within few steps.

    `llama2`: the size of a vocabulary like Llama 2's, which knows no chat format. `dtype`: of the file.
    """
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    size = save_llama2_tokenizer(folder, llama2) if llama2 else save_tokenizer(folder)
    ids = ({"bos_token_id": 1, "eos_token_id": 2} if llama2 else
           {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0})
    torch.manual_seed(seed)
    if settings.get("hidden_size_per_layer_input"):
        settings["vocab_size_per_layer_input"] = vocab_size or size
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](
        vocab_size=vocab_size or size, max_position_embeddings=128, **{**ids, **settings}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name and name.endswith("weight") or name.endswith("scale"):
                parameter.uniform_(0.7, 1.3)
            else:
                parameter.normal_(0, 0.08)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.uniform_(-0.05, 0.05)
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.7, 1.3)
    if dtype:
        model.to(getattr(torch, dtype))
    model.save_pretrained(folder)
    return folder


def labelled_row(kind, text):
    """A text with what can be told of it: how many words it has, or letters."""
    words = text.split(" ")
    length = ("short", "middle", "long")[min(len(words) // 5, 2)]
    label = {"labelled": length, "labelled_numbers": len(words) / 7, "labelled_ids": min(len(words) - 1, 11),
             "labelled_lists": [length] + [letter for letter in "ae" if letter in text]}[kind]
    return {"text": text, "label": label}


def pair_row(kind, rng, number):
    """Two texts, as in GLUE's sets: whether the first is longer, or how many words they share."""
    texts = [sentence(rng), sentence(rng)]
    if number % 5 == 3:
        texts[1] = ""
    if number % 5 == 4:
        texts[number % 2] = " ".join([texts[0]] * 4)
    words = [set(text.split(" ")) for text in texts]
    label = {"pairs": int(len(texts[0]) > len(texts[1])), "pairs_of_numbers": len(words[0] & words[1]) / 4}[kind]
    return {"idx": number, "sentence1": texts[0], "sentence2": texts[1], "label": label}


def make_rows(kind, count, seed=0):
    rng = random.Random(f"{kind}{seed}")
    if kind == "text":
        return [{"text": sentence(rng)} for _ in range(count)]
    if kind == "prompt":
        return [{"prompt": sentence(rng), "completion": " " + sentence(rng)} for _ in range(count)]
    if kind == "preference":
        return [{"prompt": sentence(rng), "chosen": " " + sentence(rng), "rejected": " " + sentence(rng)}
                for _ in range(count)]
    if kind == "preference_chat":
        return [{"prompt": [{"role": "user", "content": sentence(rng, 1, 6)}],
                 "chosen": [{"role": "assistant", "content": sentence(rng, 1, 6)}],
                 "rejected": [{"role": "assistant", "content": sentence(rng, 1, 6)}]}
                for _ in range(count)]
    if kind == "rated":
        return [{"prompt": sentence(rng), "completion": " " + sentence(rng), "label": rng.random() < 0.5}
                for _ in range(count)]
    if kind == "rated_chat":
        return [{"prompt": [{"role": "user", "content": sentence(rng, 1, 6)}],
                 "completion": [{"role": "assistant", "content": sentence(rng, 1, 6)}], "label": rng.random() < 0.5}
                for _ in range(count)]
    if kind.startswith("pairs"):
        return [pair_row(kind, rng, i) for i in range(count)]
    if kind.startswith("labelled"):
        return [labelled_row(kind, sentence(rng)) for _ in range(count)]
    rows = []
    for _ in range(count):
        messages = []
        for _ in range(rng.randint(1, 2)):
            messages += [{"role": "user", "content": sentence(rng, 1, 6)},
                         {"role": "assistant", "content": sentence(rng, 1, 6)}]
        rows.append({"messages": messages})
    return rows


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def save_data(folder, kind, train=40, test=9):
    """A data set folder with both splits."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "train.jsonl", make_rows(kind, train))
    write_rows(folder / "test.jsonl", make_rows(kind, test, seed=1))
    return folder


def pack_experts(folder, scales=(118, 123)):
    """A gpt-oss as published ones are: experts in MXFP4, the rest in bfloat16."""
    import torch
    from safetensors.torch import load_file, save_file

    generator = torch.Generator().manual_seed(3)
    weights = load_file(folder / "model.safetensors")
    for name in [n for n in weights if n.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = weights.pop(name).shape
        blocks = (experts, rows, columns // 32)
        weights[name + "_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8, generator=generator)
        weights[name + "_scales"] = torch.randint(*scales, blocks, dtype=torch.uint8, generator=generator)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    file.write_text(json.dumps(config))
    return folder
