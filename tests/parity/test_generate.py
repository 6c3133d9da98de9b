"""Oracle: transformers' generate and LogitsProcessors, and PEFT's models, on random checkpoints."""

import json
import os
import pathlib
import subprocess

import pytest
import torch
from peft import get_peft_model
from transformers import (AutoModelForCausalLM, BitsAndBytesConfig, LogitsProcessorList, MinPLogitsWarper,
                          RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper,
                          TopKLogitsWarper, TopPLogitsWarper)

from llama_reference import LLAMA3, save_checkpoint
from test_lora import config_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("STRATA_BUILD", ROOT / "build" / "release"))

NEW_TOKENS = 24
PROMPTS = [[5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 90, 91], [17] * 30]
MODELS = {
    "plain": {},
    "grouped_tied": dict(num_key_value_heads=2, tie_word_embeddings=True),
    "one_kv_head_odd_dim": dict(num_key_value_heads=1, head_dim=10, attention_bias=True),
    "llama3_rope": dict(rope_parameters=LLAMA3, num_key_value_heads=2, mlp_bias=True),
    "yarn": dict(rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, attention_factor=1.3,
                                      original_max_position_embeddings=16), num_key_value_heads=2),
    "qwen2": dict(family="qwen2", num_key_value_heads=2),
    "qwen3": dict(family="qwen3", num_key_value_heads=1, head_dim=6),
    "smollm3": dict(family="smollm3", num_key_value_heads=2, num_hidden_layers=4),
    "granite": dict(family="granite", num_key_value_heads=2, embedding_multiplier=2.5, logits_scaling=3.0,
                    attention_multiplier=0.2, residual_multiplier=0.6),
    "phi3": dict(family="phi3", num_key_value_heads=2, sliding_window=12),
    "mistral_window": dict(family="mistral", num_key_value_heads=2, sliding_window=6),
    "qwen3_moe": dict(family="qwen3_moe", num_key_value_heads=1, head_dim=6, norm_topk_prob=True,
                      moe_intermediate_size=16),
    "qwen2_moe": dict(family="qwen2_moe", num_key_value_heads=2, num_hidden_layers=3, mlp_only_layers=[1],
                      moe_intermediate_size=12),
    "mixtral": dict(family="mixtral", num_key_value_heads=2, sliding_window=6),
    "glm4_moe": dict(family="glm4_moe", num_key_value_heads=2, use_qk_norm=True, n_group=3, topk_group=2,
                     moe_intermediate_size=16),
    "deepseek_v2": dict(family="deepseek_v2", q_lora_rank=None, moe_intermediate_size=16, topk_method="group_limited_greedy",
                        n_group=3, topk_group=2),
    "glm4_moe_lite": dict(family="glm4_moe_lite", v_head_dim=10, moe_intermediate_size=16),
    "deepseek_v3": dict(family="deepseek_v3", n_group=3, topk_group=2, moe_intermediate_size=16),
    "gpt_oss": dict(family="gpt_oss", num_key_value_heads=2, sliding_window=6, intermediate_size=24),
    "olmoe": dict(family="olmoe", num_key_value_heads=2, clip_qkv=0.9, intermediate_size=16),
    "minimax_m2": dict(family="minimax_m2", num_key_value_heads=2, rotary_dim=4, intermediate_size=16),
    "granitemoeshared": dict(family="granitemoeshared", num_key_value_heads=2, residual_multiplier=0.6, attention_multiplier=0.3,
                             intermediate_size=16, shared_intermediate_size=16),
    "ernie4_5_moe": dict(family="ernie4_5_moe", num_key_value_heads=2, moe_intermediate_size=16),
    "hunyuan_v1_moe": dict(family="hunyuan_v1_moe", num_key_value_heads=2, intermediate_size=16),
    "dots1": dict(family="dots1", num_key_value_heads=2, moe_intermediate_size=16, sliding_window=6, max_window_layers=1),
    "exaone_moe": dict(family="exaone_moe", num_key_value_heads=2, moe_intermediate_size=16, sliding_window=6, sliding_window_pattern=2),
    "llama4_text": dict(family="llama4_text", num_key_value_heads=2, intermediate_size=16),
    "solar_open": dict(family="solar_open", num_key_value_heads=2, moe_intermediate_size=16),
    "mellum": dict(family="mellum", num_key_value_heads=2, moe_intermediate_size=16, sliding_window=6,
                   layer_types=["sliding_attention", "full_attention"]),
    "flex_olmo": dict(family="flex_olmo", num_key_value_heads=2, intermediate_size=16),
    "afmoe": dict(family="afmoe", num_key_value_heads=2, moe_intermediate_size=16, sliding_window=6, global_attn_every_n_layers=2),
    "granite_swa": dict(family="granite_swa", num_key_value_heads=2, sliding_window=6, attention_multiplier=0.3, layer_rope_theta=[0, 500.0]),
    "granitemoe_swa": dict(family="granitemoe_swa", num_key_value_heads=2, sliding_window=6, attention_multiplier=0.3, intermediate_size=16,
                           layer_rope_theta=[0, 500.0]),
    "youtu": dict(family="youtu"),
    "gpt2": dict(family="gpt2", n_head=2),
    "gpt": dict(family="openai-gpt"),
    "bigcode": dict(family="gpt_bigcode"),
    "bigcode_multi_head": dict(family="gpt_bigcode", multi_query=False, tie_word_embeddings=False),
    "gpt_neox": dict(family="gpt_neox"),
    "gpt_neox_one_after_the_other": dict(family="gpt_neox", use_parallel_residual=False, tie_word_embeddings=True,
                                         rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=1.0)),
    "opt": dict(family="opt"),
    "xglm": dict(family="xglm"),
    "opt_350m": dict(family="opt", do_layer_norm_before=False, word_embed_proj_dim=12),
    "starcoder2": dict(family="starcoder2", num_key_value_heads=2, sliding_window=6),
    "cohere": dict(family="cohere", num_key_value_heads=2, use_qk_norm=True, logit_scale=1.5),
    "cohere2": dict(family="cohere2", num_key_value_heads=1, sliding_window=6,
                    layer_types=["sliding_attention", "full_attention"]),
    "persimmon": dict(family="persimmon"),
    "phi": dict(family="phi", qk_layernorm=True),
    "stablelm": dict(family="stablelm", num_key_value_heads=2, qk_layernorm=True),
    "olmo": dict(family="olmo", num_key_value_heads=2, clip_qkv=0.9),
    "nemotron": dict(family="nemotron", num_key_value_heads=2),
    "jais2": dict(family="jais2", num_key_value_heads=2),
    "gptj": dict(family="gptj"),
    "codegen": dict(family="codegen"),
    "gpt_neo": dict(family="gpt_neo"),
    "falcon": dict(family="falcon"),
    "falcon_40b": dict(family="falcon", new_decoder_architecture=True, num_kv_heads=2),
    "bloom": dict(family="bloom", n_head=3, hidden_size=36),
    "mpt": dict(family="mpt", n_heads=3, d_model=36, attn_config=dict(clip_qkv=0.9)),
    "gemma": dict(family="gemma", num_key_value_heads=2, head_dim=12),
    "gemma3": dict(family="gemma3_text", num_key_value_heads=2, head_dim=12, sliding_window=6,
                   layer_types=["sliding_attention", "full_attention"]),
    "gemma2": dict(family="gemma2", num_key_value_heads=2, head_dim=12, sliding_window=6, attn_logit_softcapping=1.0,
                   final_logit_softcapping=3.0),
    "gemma4": dict(family="gemma4_text", attention_k_eq_v=True, sliding_window=6),
    "gemma4_shared": dict(family="gemma4_text", num_kv_shared_layers=2, hidden_size_per_layer_input=6, sliding_window=6,
                          final_logit_softcapping=3.0),
    "gemma4_experts": dict(family="gemma4_text", enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=16),
    "qwen3_5": dict(family="qwen3_5_text"),
    "qwen3_next": dict(family="qwen3_next", num_hidden_layers=3, layer_types=["linear_attention"] * 2 + ["full_attention"],
                       moe_intermediate_size=16, shared_expert_intermediate_size=16),
    "glm": dict(family="glm", num_key_value_heads=1),
    "glm4": dict(family="glm4", num_key_value_heads=2, head_dim=12),
    "seed_oss": dict(family="seed_oss", num_key_value_heads=2),
    "internlm3": dict(family="internlm3", num_key_value_heads=2),
    "cwm": dict(family="cwm", num_key_value_heads=2, num_hidden_layers=3, sliding_window=6),
    "helium": dict(family="helium", num_key_value_heads=2),
    "hyperclovax": dict(family="hyperclovax", num_key_value_heads=2, residual_multiplier=0.6, logits_scaling=0.7),
    "minicpm3": dict(family="minicpm3"),
    "vaultgemma": dict(family="vaultgemma", num_key_value_heads=2, sliding_window=6, query_pre_attn_scalar=8),
    "nanochat": dict(family="nanochat", num_key_value_heads=2, final_logit_softcapping=3.0),
    "arcee": dict(family="arcee", num_key_value_heads=2),
    "apertus": dict(family="apertus", num_key_value_heads=2),
    "exaone4": dict(family="exaone4", num_key_value_heads=2, sliding_window=6, sliding_window_pattern=2),
    "ernie4_5": dict(family="ernie4_5", num_key_value_heads=2),
    "hunyuan": dict(family="hunyuan_v1_dense", num_key_value_heads=2, rope_parameters=dict(
        rope_type="dynamic", rope_theta=500.0, alpha=7.0, factor=1.0)),
    "ministral3": dict(family="ministral3", num_key_value_heads=2, rope_parameters=dict(
        rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=16, llama_4_scaling_beta=0.6)),
    "olmo3": dict(family="olmo3", num_key_value_heads=2, sliding_window=6,
                  layer_types=["sliding_attention", "full_attention"]),
}
ADAPTERS = {
    "none": None,
    "lora": dict(target_modules="all-linear", r=3, lora_alpha=6),
    "saved_head": dict(target_modules=["q_proj"], modules_to_save=["lm_head"], use_rslora=True),
    "dora_head": dict(target_modules=["v_proj", "lm_head"], r=3, use_dora=True),
    "dora_embedding": dict(target_modules=["embed_tokens", "o_proj"], r=3, use_dora=True),
    "pissa": dict(target_modules=["q_proj", "up_proj"], r=3, init_lora_weights="pissa"),
    "olora": dict(target_modules=["o_proj"], r=3, init_lora_weights="olora"),
    "ia3": dict(peft_type="IA3"),
    "dora_conv1d": dict(target_modules=["c_attn", "attn.c_proj"], r=3, use_dora=True),
    "vera": dict(peft_type="VERA", r=12, target_modules="all-linear"),
    "prompt": dict(peft_type="PROMPT_TUNING", num_virtual_tokens=5),
    "prefix": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=4),
    "projected_prefix": dict(peft_type="PREFIX_TUNING", num_virtual_tokens=4,
                             prefix_projection=True, encoder_hidden_size=7),
}
# The first three over every model, the others over two.
WITH_PROMPTS = ["glm", "glm4", "phi3"]
PLAIN_LAYERS = ["gpt2", "bigcode", "bigcode_multi_head", "gpt_neox", "gpt_neox_one_after_the_other", "opt", "opt_350m"]
PLAIN_LAYERS += ["phi", "gptj", "gpt_neo", "falcon", "falcon_40b", "bloom"]
WITHOUT_IA3 = ["xglm", "nanochat", "starcoder2", "cohere", "cohere2", "stablelm", "olmo", "nemotron", "jais2"]  # which has no default targets there
FUSED_WITHOUT_IA3 = ["codegen", "mpt", "gpt", "persimmon"]
WITH_EXPERTS = ["qwen3_moe", "qwen2_moe", "mixtral", "glm4_moe", "gpt_oss", "qwen3_next", "deepseek_v2"]
WITHOUT_PREFIX = ["qwen3_next", "deepseek_v2"]
LATER_MIXTURES = ["olmoe", "minimax_m2", "granitemoeshared", "ernie4_5_moe", "hunyuan_v1_moe", "dots1", "exaone_moe", "llama4_text",
                  "solar_open", "mellum", "flex_olmo", "afmoe", "granite_swa", "granitemoe_swa", "youtu"]
OTHER_NAMES = WITH_PROMPTS + PLAIN_LAYERS + WITHOUT_IA3 + FUSED_WITHOUT_IA3 + WITH_EXPERTS + LATER_MIXTURES + ["deepseek_v3", "glm4_moe_lite", "minicpm3"]
ADAPTED = [(m, a) for a in list(ADAPTERS)[:3] for m in MODELS if m not in OTHER_NAMES] + [
    (m, a) for m in WITH_EXPERTS for a in ("none", "saved_head", "prefix") if not (m in WITHOUT_PREFIX and a == "prefix")] + [
    ("deepseek_v3", "none"), ("deepseek_v3", "prompt"), ("glm4_moe_lite", "none"), ("minicpm3", "none"), ("minicpm3", "lora")] + [
    (m, "none") for m in LATER_MIXTURES] + [("olmoe", "prefix"), ("granitemoeshared", "prefix"), ("afmoe", "prefix"), ("granite_swa", "prefix"), ("youtu", "prompt"), ("nanochat", "prompt"), ("nanochat", "prefix")] + [
    (m, a) for m in PLAIN_LAYERS for a in ("none", "lora", "ia3")] + [("gpt2", "vera"), ("gpt2", "dora_conv1d")] + [
    (m, a) for m in FUSED_WITHOUT_IA3 for a in ("none", "lora")] + [
    (m, a) for m in WITHOUT_IA3 for a in ("none", "lora", "saved_head")] + [
    (m, a) for m in WITH_PROMPTS for a in ("none", "lora", "prompt", "prefix")] + [
    (m, a) for a in list(ADAPTERS)[3:] if a != "dora_conv1d" for m in ("grouped_tied", "one_kv_head_odd_dim")]


def run_probe(folder, **request):
    file = pathlib.Path(folder) / "request.json"
    file.write_text(json.dumps(request))
    process = subprocess.run([BUILD / "generate_probe", file], capture_output=True, text=True,
                             timeout=120)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def reference_ids(model, prompt, **options):
    """The new ids of transformers' generate; nothing is taken from generation_config.json."""
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, **options}
    ids = torch.tensor([prompt])
    output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pad_token_id=0,
                            **options)
    return output[0, len(prompt):].tolist()


def make_model(folder, model_settings, adapter_settings):
    """(reference model, adapter folder or None)."""
    save_checkpoint(folder, scale=0.3, **model_settings)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter_settings is None:
        return model.eval(), None
    model = add_adapter(model, adapter_settings, folder / "adapter")
    return model.eval(), str(folder / "adapter")


def add_adapter(model, settings, folder):
    torch.manual_seed(3)
    model = get_peft_model(model, config_of(settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model.eval()


LONGROPE = dict(rope_type="longrope", rope_theta=500.0, short_factor=[1.0, 1.1, 1.3, 1.7],
                long_factor=[1.5, 2.5, 4.0, 9.0], original_max_position_embeddings=20)


@pytest.mark.parametrize("adapter", ["none", "prompt", "prefix"])
def test_longrope_beyond_the_original_length(tmp_path, adapter):
    """transformers without a cache: with one, its Llama keeps keys that turned by the short factors."""
    model, adapter_folder = make_model(tmp_path, dict(rope_parameters=LONGROPE), ADAPTERS[adapter])
    # A prefix is a cache; a longer text with its own is the text without one.
    options = {} if adapter == "prefix" else {"use_cache": False}
    prompts = [p for p in PROMPTS + [[7] * 12, [7] * 13] if adapter != "prefix" or len(p) > 20]
    new = 8 if adapter == "prefix" else NEW_TOKENS
    expected = [reference_ids(model, p, max_new_tokens=new, **options) for p in prompts]
    request = dict(model=str(tmp_path), prompts=prompts, max_new_tokens=new)
    if adapter_folder:
        request["adapter"] = adapter_folder
    assert run_probe(tmp_path, use_cache=False, **request) == expected
    assert run_probe(tmp_path, **request) == expected


def test_phi3_beyond_the_original_length(tmp_path):
    """generate() with its cache, which its Phi-3 computes again."""
    rope = dict(LONGROPE, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 2.5, 4.0])
    model, _ = make_model(tmp_path, dict(family="phi3", rope_parameters=rope,
                                         original_max_position_embeddings=20), None)
    prompts = PROMPTS + [[7] * 19, [7] * 20, [7] * 21, [5, 6]]
    expected = [reference_ids(model, p) for p in prompts]
    assert run_probe(tmp_path, model=str(tmp_path), prompts=prompts, max_new_tokens=NEW_TOKENS) == expected


def test_dynamic_positions_beyond_the_length(tmp_path):
    """generate() of a model that has answered nothing yet (it remembers the longest text): an answer keeps the keys of its
    prompt, the next turn of a conversation has its own."""
    save_checkpoint(tmp_path, scale=0.3, max_position_embeddings=16, num_key_value_heads=2,
                    rope_parameters=dict(rope_type="dynamic", rope_theta=500.0, factor=4.0))

    def expected(prompt, **options):
        fresh = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
        return reference_ids(fresh, prompt, **options)
    request = dict(model=str(tmp_path), max_new_tokens=NEW_TOKENS)
    prompts = [list(range(9)), list(range(16))]
    for prompt in prompts:  # each with nothing before it
        assert run_probe(tmp_path, prompts=[prompt], **request) == [expected(prompt)]
    assert run_probe(tmp_path, prompts=prompts, use_cache=False, **request) == [expected(prompt, use_cache=False) for prompt in prompts]
    turns = [list(range(10))]
    for turn in range(3):
        turns.append(turns[-1] + expected(turns[-1], max_new_tokens=6) + [3 + turn, 50])
    turns.append(turns[0])
    assert run_probe(tmp_path, model=str(tmp_path), prompts=turns, max_new_tokens=6) == [
        expected(turn, max_new_tokens=6) for turn in turns]


@pytest.mark.parametrize("length", [511, 512, 513, 700])
def test_prompts_in_parts_turn_by_their_whole_length(tmp_path, length):
    """A prompt goes through the layers in parts of 512 tokens."""
    rope = dict(LONGROPE, original_max_position_embeddings=514)
    model, _ = make_model(tmp_path, dict(rope_parameters=rope, max_position_embeddings=2048), None)
    prompts = [[(7 * i) % 97 for i in range(length)], [5, 6], [(7 * i) % 97 for i in range(length + 3)]]
    expected = [reference_ids(model, p, max_new_tokens=4, use_cache=False) for p in prompts]
    assert run_probe(tmp_path, model=str(tmp_path), prompts=prompts, max_new_tokens=4) == expected


@pytest.mark.parametrize("name,adapter", ADAPTED)
def test_greedy_ids_equal_transformers(tmp_path, name, adapter):
    model, adapter_folder = make_model(tmp_path, MODELS[name], ADAPTERS[adapter])
    expected = [reference_ids(model, prompt) for prompt in PROMPTS]
    request = dict(model=str(tmp_path), prompts=PROMPTS, max_new_tokens=NEW_TOKENS)
    if adapter_folder:
        request["adapter"] = adapter_folder
    assert run_probe(tmp_path, **request) == expected
    assert run_probe(tmp_path, use_cache=False, **request) == expected
    if adapter_folder:
        # The adapter's folder alone names its base.
        alone = dict(request, model=adapter_folder)
        del alone["adapter"]
        assert run_probe(tmp_path, **alone) == expected


def test_several_adapters_with_a_switch(tmp_path):
    """Each answers as PEFT's model of it alone; merged and unmerged it answers the same."""
    save_checkpoint(tmp_path, scale=0.3, **MODELS["grouped_tied"])
    load = lambda: AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    names = ["lora", "saved_head", "dora_head", "pissa", "ia3", "vera", "prompt", "prefix"]
    prompt = PROMPTS[1]
    expected = {"": reference_ids(load().eval(), prompt)}
    for name in names:
        model = add_adapter(load(), ADAPTERS[name], tmp_path / name)
        expected[name] = reference_ids(model, prompt)
    assert len({tuple(ids) for ids in expected.values()}) == len(expected)
    # The first one given is in use at first.
    commands, answers = [""], [expected[names[0]]]
    for name in names + [""] + names[::-1]:
        commands.append("use " + name)
        answers.append(expected[name])
        if name and name not in ("prompt", "prefix"):
            commands += ["merge", "unmerge"]
            answers += [expected[name]] * 2
    found = run_probe(tmp_path, model=str(tmp_path), prompts=[prompt] * len(commands),
                      adapters={name: str(tmp_path / name) for name in names}, commands=commands,
                      max_new_tokens=NEW_TOKENS)
    assert found == answers


CODES = {
    "nf4_double": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "int8": dict(load_in_8bit=True),
}


@pytest.mark.parametrize("codes", CODES)
def test_adapters_over_codes(tmp_path, codes):
    """PEFT's models over bitsandbytes' layers, each loaded alone; here all over one base."""
    save_checkpoint(tmp_path, scale=0.3, hidden_size=64, intermediate_size=128)

    def quantised():
        base = AutoModelForCausalLM.from_pretrained(
            tmp_path, dtype=torch.float32, device_map="cpu",
            quantization_config=BitsAndBytesConfig(**CODES[codes]))
        for layer in base.modules():
            if hasattr(layer, "support_avx512bf16_for_cpu"):
                layer.support_avx512bf16_for_cpu = False  # a kernel in bf16, of other shapes
        return base

    quantised().save_pretrained(tmp_path / "codes")
    names = ["lora", "dora_head", "ia3", "vera", "prompt", "prefix"]
    if codes == "int8":
        names.remove("dora_head")  # which fails in bitsandbytes' layer outside training
    expected = {"": reference_ids(quantised().eval(), PROMPTS[1])}
    for name in names:
        expected[name] = reference_ids(add_adapter(quantised(), ADAPTERS[name], tmp_path / name),
                                       PROMPTS[1])
    order = names + [""] + names[::-1]
    found = run_probe(tmp_path, model=str(tmp_path / "codes"), prompts=[PROMPTS[1]] * len(order),
                      adapters={name: str(tmp_path / name) for name in names},
                      commands=["use " + name for name in order], max_new_tokens=NEW_TOKENS)
    assert found == [expected[name] for name in order]
    assert len({tuple(ids) for ids in expected.values()}) == len(expected)


def test_stops_at_the_first_of_several_end_ids(tmp_path):
    model, _ = make_model(tmp_path, {}, None)
    free = reference_ids(model, PROMPTS[1])
    ends = [free[9], free[4]]
    expected = reference_ids(model, PROMPTS[1], eos_token_id=ends)
    found = run_probe(tmp_path, model=str(tmp_path), prompts=[PROMPTS[1]], eos_ids=ends,
                      max_new_tokens=NEW_TOKENS)
    assert found == [expected]
    assert len(expected) < NEW_TOKENS and expected[-1] in ends


def test_ends_at_the_context_limit(tmp_path):
    model, _ = make_model(tmp_path, {}, None)  # 64 positions
    prompt = list(range(60))
    found = run_probe(tmp_path, model=str(tmp_path), prompts=[prompt], max_new_tokens=50)
    assert found == [reference_ids(model, prompt, max_new_tokens=4)]


SAMPLING = [
    dict(temperature=0.7, top_k=20, top_p=0.9),
    dict(temperature=1.3, top_k=0, min_p=0.05),
    dict(top_k=5, repetition_penalty=1.4),
    dict(),
]


@pytest.mark.parametrize("options", SAMPLING)
@pytest.mark.parametrize("seed", [0, 1234])
def test_sampled_ids_equal_transformers_for_the_same_seed(tmp_path, options, seed):
    model, _ = make_model(tmp_path, MODELS["grouped_tied"], None)
    expected = []
    for prompt in PROMPTS:
        torch.manual_seed(seed)
        expected.append(reference_ids(model, prompt, **{"do_sample": True, "top_k": 50, **options}))
    found = run_probe(tmp_path, model=str(tmp_path), prompts=PROMPTS, seed=seed, do_sample=True,
                      max_new_tokens=NEW_TOKENS, **options)
    assert found == expected


def test_repetition_penalty_applies_to_greedy_answers(tmp_path):
    model, _ = make_model(tmp_path, {}, None)
    expected = [reference_ids(model, p, repetition_penalty=1.7) for p in PROMPTS]
    found = run_probe(tmp_path, model=str(tmp_path), prompts=PROMPTS, repetition_penalty=1.7,
                      max_new_tokens=NEW_TOKENS)
    assert found == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_are_rounded_to_the_type_of_the_checkpoint(tmp_path, dtype):
    save_checkpoint(tmp_path, scale=0.3)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=getattr(torch, dtype)).float().eval()
    expected = [reference_ids(model, prompt, max_new_tokens=6) for prompt in PROMPTS]
    file = tmp_path / "rounded"
    model.to(getattr(torch, dtype)).save_pretrained(file)
    as_saved = run_probe(tmp_path, model=str(file), dtype="auto", prompts=PROMPTS,
                         max_new_tokens=6)
    as_asked = run_probe(tmp_path, model=str(tmp_path), dtype=dtype, prompts=PROMPTS,
                         max_new_tokens=6)
    assert as_saved == as_asked
    # Products in fp32 of weights that were rounded: exactly the model above.
    assert run_probe(tmp_path, model=str(file), dtype="float32", prompts=PROMPTS,
                     max_new_tokens=6) == expected


def reference_scores(logits, ids, options):
    processors = LogitsProcessorList()
    if options.get("repetition_penalty", 1.0) != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    if options.get("temperature", 1.0) != 1.0:
        processors.append(TemperatureLogitsWarper(options["temperature"]))
    if options["top_k"]:
        processors.append(TopKLogitsWarper(options["top_k"]))
    if options.get("top_p", 1.0) < 1.0:
        processors.append(TopPLogitsWarper(options["top_p"]))
    if options.get("min_p", 0.0) > 0.0:
        processors.append(MinPLogitsWarper(options["min_p"]))
    return processors(torch.tensor([ids]), logits.clone()[None])[0]


@pytest.mark.parametrize("options", [
    dict(top_k=0),
    dict(top_k=7),
    dict(top_k=500),
    dict(top_k=0, top_p=0.8),
    dict(top_k=0, top_p=0.0),
    dict(top_k=0, min_p=0.3),
    dict(top_k=0, min_p=1.0),
    dict(top_k=0, repetition_penalty=1.5),
    dict(top_k=0, repetition_penalty=0.6),
    dict(top_k=30, top_p=0.9, min_p=0.1, temperature=0.6, repetition_penalty=1.2),
])
def test_filters_equal_logits_processors(tmp_path, options):
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(97, generator=generator) * 3
    logits[[3, 40, 41]] = logits.max()  # equals at the top
    ids = [3, 9, 9, 50, 96]
    expected = reference_scores(logits, ids, options)
    found = run_probe(tmp_path, logits=logits.tolist(), ids=ids, do_sample=True, **options)
    assert torch.equal(torch.tensor(found), expected)
