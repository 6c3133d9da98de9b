"""Small random checkpoints of Llama and its relatives, and their results in transformers, for the parity tests."""

import copy
import json

import torch
from transformers import AutoModelForCausalLM, CONFIG_MAPPING
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

BASE = dict(vocab_size=97, hidden_size=32, intermediate_size=52, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=64,
            pad_token_id=None)
# GPT-2 and its relative, by the names that all families share. Dropout is for tests that train.
GPT2_BASE = dict(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                 attn_pdrop=0.0, bos_token_id=0, eos_token_id=1)
QWEN_MOE_BASE = dict(BASE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=14)
GLM_BASE = dict(BASE, head_dim=8, rms_norm_eps=1e-5)
HEADS_OF_8 = dict(BASE, head_dim=8)
# The first layer has an MLP.
GLM4_MOE_BASE = dict(BASE, head_dim=8, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=14)
# Latent attention of queries that are one product, or made of latents, too.
DEEPSEEK_BASE = dict(GLM4_MOE_BASE, first_k_dense_replace=1, kv_lora_rank=10, q_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4,
                     v_head_dim=8, n_shared_experts=1, n_group=1, topk_group=1)
del DEEPSEEK_BASE["head_dim"]
MINICPM3_BASE = dict(BASE, kv_lora_rank=10, q_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, scale_emb=2.5, dim_model_base=20)
YOUTU_BASE = dict(BASE, kv_lora_rank=10, q_lora_rank=12, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8)
# Every second layer has experts.
ERNIE_MOE_BASE = dict(BASE, moe_num_experts=5, moe_k=2, moe_intermediate_size=14, moe_layer_interval=2, moe_layer_start_index=0)
# Every second layer has experts, every third neither positions nor chunks.
LLAMA4_BASE = dict(BASE, head_dim=8, num_hidden_layers=3, intermediate_size=14, intermediate_size_mlp=52, num_local_experts=5,
                   interleave_moe_layer_step=2, no_rope_layer_interval=3, attention_chunk_size=16, floor_scale=8, attn_scale=0.4)
NEOX_BASE = dict(vocab_size=97, hidden_size=32, intermediate_size=52, num_hidden_layers=2, num_attention_heads=4,
                 max_position_embeddings=64)
# Layers with a window of 2 heads of 8 channels, global ones of 1 head of 16.
GEMMA4_BASE = dict(BASE, num_key_value_heads=2, head_dim=8, global_head_dim=16, num_global_key_value_heads=1, sliding_window=7,
                   num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=0,
                   vocab_size_per_layer_input=97)
# Linear attention of 2 heads of keys and 4 of values, then attention. What it gives for a document's first tokens is nearly zero
# where a query and a key are nearly orthogonal: a norm that adds nothing to its length shows rounding alone.
QWEN35_BASE = dict(BASE, rms_norm_eps=0.3, head_dim=8, num_key_value_heads=2, layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2,
                   linear_num_value_heads=4, linear_key_head_dim=6, linear_value_head_dim=10)
QWEN3_NEXT_BASE = dict(QWEN35_BASE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=14, shared_expert_intermediate_size=22)
# A short convolution, then attention.
LFM2_BASE = dict(BASE, num_key_value_heads=2, layer_types=["conv", "full_attention"], block_multiple_of=4)
LFM2_MOE_BASE = dict(LFM2_BASE, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=14, num_dense_layers=1)
del LFM2_MOE_BASE["block_multiple_of"]
# Mamba-2 of 4 heads in 2 groups, then attention.
GRANITE_HYBRID_BASE = dict(BASE, rms_norm_eps=1e-2, num_key_value_heads=2, layer_types=["mamba", "attention"], num_local_experts=0, shared_intermediate_size=22,
                           intermediate_size=14, mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=6, embedding_multiplier=2.5,
                           attention_multiplier=0.2, residual_multiplier=0.35, logits_scaling=1.7)
# Mamba-2 of 4 heads in 2 groups, then attention, or both side by side with factors around everything.
BAMBA_BASE = dict(BASE, rms_norm_eps=1e-2, num_key_value_heads=2, attn_layer_indices=[1], mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=6)
FALCON_H1_BASE = dict(BASE, rms_norm_eps=1e-2, num_key_value_heads=2, mamba_d_ssm=48, mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=6,
                      embedding_multiplier=2.5, lm_head_multiplier=0.6, key_multiplier=0.7, attention_in_multiplier=1.3,
                      attention_out_multiplier=0.8, ssm_in_multiplier=1.4, ssm_out_multiplier=0.6,
                      ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.8], mlp_multipliers=[1.3, 0.7])
# Layers of one module each.
NEMOTRON_H_BASE = dict(BASE, layer_norm_epsilon=1e-2, num_key_value_heads=2, head_dim=8, hybrid_override_pattern="M*-", mamba_num_heads=4,
                       mamba_head_dim=12, n_groups=2, ssm_state_size=6, n_routed_experts=6, moe_intermediate_size=14,
                       moe_shared_expert_intermediate_size=22)
OPT_BASE = dict(vocab_size=97, hidden_size=32, ffn_dim=52, num_hidden_layers=2, num_attention_heads=4,
                max_position_embeddings=64, dropout=0.0, pad_token_id=1)
XGLM_BASE = dict(vocab_size=97, d_model=32, ffn_dim=52, num_layers=2, attention_heads=4, max_position_embeddings=64, dropout=0.0,
                 attention_dropout=0.0)
FALCON_BASE = dict(vocab_size=97, hidden_size=32, ffn_hidden_size=52, num_hidden_layers=2, num_attention_heads=4,
                   max_position_embeddings=64)
GPTJ_BASE = dict(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)
# A window in every second layer.
GPT_NEO_BASE = dict(vocab_size=97, hidden_size=32, intermediate_size=52, num_layers=2, num_heads=4, max_position_embeddings=64,
                    attention_types=[[["global", "local"], 1]], window_size=7)
MPT_BASE = dict(vocab_size=97, d_model=32, n_layers=2, n_heads=4, max_seq_len=64)
BLOOM_BASE = dict(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
BASES = {"bamba": BAMBA_BASE, "falcon_h1": FALCON_H1_BASE, "nemotron_h": NEMOTRON_H_BASE, "lfm2": LFM2_BASE, "lfm2_moe": LFM2_MOE_BASE, "granitemoehybrid": GRANITE_HYBRID_BASE, "gemma4_text": GEMMA4_BASE, "qwen3_5_text": QWEN35_BASE, "qwen3_next": QWEN3_NEXT_BASE,
         "qwen3_5_moe_text": QWEN3_NEXT_BASE, "falcon": FALCON_BASE, "bloom": BLOOM_BASE, "mpt": MPT_BASE, "gptj": GPTJ_BASE, "codegen": GPTJ_BASE, "gpt_neo": GPT_NEO_BASE, "glm": GLM_BASE, "glm4": GLM_BASE, "gpt_neox": NEOX_BASE, "opt": OPT_BASE, "xglm": XGLM_BASE, "persimmon": NEOX_BASE, "gpt2": GPT2_BASE, "openai-gpt": GPT2_BASE, "gpt_bigcode": GPT2_BASE,
         "qwen3_moe": QWEN_MOE_BASE,
         "seed_oss": HEADS_OF_8, "internlm3": HEADS_OF_8, "cwm": HEADS_OF_8, "helium": HEADS_OF_8, "vaultgemma": HEADS_OF_8, "ernie4_5": HEADS_OF_8, "hunyuan_v1_dense": HEADS_OF_8, "ministral3": HEADS_OF_8,
         "qwen2_moe": dict(QWEN_MOE_BASE, shared_expert_intermediate_size=22),
         "mixtral": dict(BASE, num_local_experts=5),
         "glm4_moe": GLM4_MOE_BASE, "dots1": dict(GLM4_MOE_BASE, first_k_dense_replace=1, n_shared_experts=1),
         "olmoe": dict(BASE, num_experts=5, num_experts_per_tok=2, intermediate_size=14),
         "minimax_m2": dict(BASE, head_dim=8, num_local_experts=5, num_experts_per_tok=2, intermediate_size=14),
         "granitemoe": dict(BASE, num_local_experts=5, intermediate_size=14),
         "granitemoeshared": dict(BASE, num_local_experts=5, intermediate_size=14, shared_intermediate_size=22),
         "granitemoe_swa": dict(BASE, num_local_experts=5, intermediate_size=14),
         "ernie4_5_moe": ERNIE_MOE_BASE, "llama4_text": LLAMA4_BASE,
         "hunyuan_v1_moe": dict(BASE, head_dim=8, num_experts=5, moe_topk=2, intermediate_size=14),
         "exaone_moe": dict(BASE, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=14),
         "solar_open": GLM4_MOE_BASE, "mellum": dict(QWEN_MOE_BASE, head_dim=8),
         "flex_olmo": dict(BASE, num_experts=5, num_experts_per_tok=2, intermediate_size=14),
         "afmoe": dict(BASE, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=14, num_shared_experts=1),
         "youtu": YOUTU_BASE,
         "deepseek_v2": DEEPSEEK_BASE, "minicpm3": MINICPM3_BASE, "deepseek_v3": DEEPSEEK_BASE, "glm4_moe_lite": dict(DEEPSEEK_BASE, rms_norm_eps=1e-5),
         "cohere": dict(BASE, pad_token_id=0), "cohere2": dict(BASE, pad_token_id=0),
         "gpt_oss": dict(BASE, num_local_experts=5, num_experts_per_tok=2, head_dim=8, intermediate_size=22)}
# A mixture's module, gate, up and down of an expert as files name them. transformers fuses them when it loads.
EXPERT_NAMES = {"qwen3_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
                "qwen2_moe": ("mlp", "gate_proj", "up_proj", "down_proj"),
                "qwen3_next": ("mlp", "gate_proj", "up_proj", "down_proj"),
                "qwen3_5_moe_text": ("mlp", "gate_proj", "up_proj", "down_proj"),
                **{family: ("mlp", "gate_proj", "up_proj", "down_proj")
                   for family in ("glm4_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "olmoe", "ernie4_5_moe", "dots1",
                                  "hunyuan_v1_moe", "exaone_moe", "solar_open", "mellum", "flex_olmo", "afmoe")},
                **{family: ("block_sparse_moe", "w1", "w3", "w2") for family in ("mixtral", "minimax_m2")},
                "lfm2_moe": ("feed_forward", "w1", "w3", "w2"),
                "nemotron_h": ("mixer", None, "up_proj", "down_proj")}
# Of these files hold fused parameters, too.
FAMILIES_WITH_EXPERTS = {*EXPERT_NAMES, "gpt_oss", "granitemoe", "granitemoeshared", "granitemoe_swa", "granitemoehybrid", "llama4_text"}
LLAMA3 = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=16)
# Type, size of the random weights, largest relative error. Both programs round in bfloat16, each
# in its own order: with large weights two correct results are further apart than the limit.
PRECISIONS = [("float32", 0.15, 1e-5), ("bfloat16", 0.04, 2e-2)]


def save_checkpoint(folder, old_rope_keys=False, scale=0.15, family="llama", **settings):
    """Writes config.json and weights; all weights random, also norms and biases."""
    torch.manual_seed(0)
    base = BASES.get(family, BASE)
    # A config writes into the dictionaries that it is given, which rows of a table share.
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**copy.deepcopy({**base, **settings})))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or ".ln_" in name and name.endswith("weight") or name.endswith("scale"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(0, scale)
            if name.endswith("A_log"):
                parameter.uniform_(-3, -1)  # a state that lasts: of one that is forgotten at once the gradients cancel out
            # Scores are taken as they are, what is added has a norm: large weights show rounding alone.
            if family == "gemma4_text" and any(part in name for part in ("q_norm", "k_norm", ".post_")):
                parameter.mul_(0.4)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.uniform_(-0.3, 0.3)
            if name.endswith("act_fn.beta"):
                buffer.uniform_(0.3, 0.7)
            if name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    if old_rope_keys:
        file = folder / "config.json"
        config = json.loads(file.read_text())
        rope = config.pop("rope_parameters")
        rope = rope.get("full_attention", rope)  # of other layers there was no key
        config["rope_theta"] = rope.pop("rope_theta")
        rope["type"] = rope.pop("rope_type")
        config["rope_scaling"] = None if rope == {"type": "default"} else rope
        file.write_text(json.dumps(config))


def as_in_files(model, tensors):
    """The tensors of named parameters, or their gradients, under the names and in the parts of files."""
    names = EXPERT_NAMES.get(model.config.model_type)
    for name, tensor in tensors:
        if names is None:
            yield name, tensor
            continue
        module, gate, up, down = names
        name = name.replace(".mlp.", f".{module}.")
        path, _, last = name.rpartition(".experts.")
        if last == "gate_up_proj":
            for e, both in enumerate(tensor):
                yield f"{path}.experts.{e}.{gate}.weight", both.chunk(2)[0]
                yield f"{path}.experts.{e}.{up}.weight", both.chunk(2)[1]
        elif last == "up_proj":
            for e, one in enumerate(tensor):
                yield f"{path}.experts.{e}.{up}.weight", one
        elif last == "down_proj":
            for e, one in enumerate(tensor):
                yield f"{path}.experts.{e}.{down}.weight", one
        else:
            yield name, tensor


def gradients_of(model):
    """Of all parameters but what corrects a router, which is one that never trains in ERNIE and Trinity."""
    return list(as_in_files(model, ((name, parameter.grad) for name, parameter in model.named_parameters()
                                    if not name.endswith(("e_score_correction_bias", "mlp.expert_bias")))))


def make_documents(lengths, vocab_size=97, seed=1, masked=0.2):
    """Random documents; some labels are masked, as with completion-only training."""
    generator = torch.Generator().manual_seed(seed)
    documents = []
    for length in lengths:
        ids = torch.randint(0, vocab_size, (length,), generator=generator)
        labels = ids.clone()
        labels[torch.rand(length, generator=generator) < masked] = -100
        documents.append({"ids": ids.tolist(), "labels": labels.tolist()})
    return documents


def padded(documents):
    """Ids, labels and mask of the documents as the rows of one batch, padded at the right."""
    length = max(len(d["ids"]) for d in documents)
    ids = torch.zeros(len(documents), length, dtype=torch.long)
    labels = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for row, document in enumerate(documents):
        n = len(document["ids"])
        ids[row, :n] = torch.tensor(document["ids"])
        labels[row, :n] = torch.tensor(document["labels"])
        mask[row, :n] = 1
    return ids, labels, mask


def run_reference(model, documents, balance=0):
    """Loss per trained token, logits of all tokens in order, and gradients (left in the model), also of `balance`
    times the loss that balances a mixture's experts."""
    ids, labels, mask = padded(documents)
    if model.config.model_type in FAMILIES_WITH_EXPERTS or getattr(model.config, "enable_moe_block", False):
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        base.set_experts_implementation("eager")  # the grouped products need sizes of multiples of 16 bytes
    outputs = model(input_ids=ids, attention_mask=mask, **({"output_router_logits": True} if balance else {}))
    logits = outputs.logits
    targets = labels[:, 1:].reshape(-1)
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].float().reshape(-1, logits.shape[-1]), targets,
                                             reduction="sum") / targets.ne(-100).sum().clamp(min=1)
    model.zero_grad()
    if balance:  # as under autocast, in fp32
        config = model.config
        num_experts = getattr(config, "num_experts", None) or config.num_local_experts
        loss_of_experts = load_balancing_loss_func(tuple(layer.float() for layer in outputs.router_logits),
                                                   num_experts, config.num_experts_per_tok, mask)
        (loss + balance * loss_of_experts).backward()
    else:
        loss.backward()
    return loss.detach(), logits.detach()[mask.bool()]
