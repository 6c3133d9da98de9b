# Oracle: the run that keeps all activations, to the bit; the limit that was given; the theory of what
# attention keeps.
import re

import pytest

import tiny_llama
from running import base_flags, run_strata, run_strata_raw, strata

LORA = dict(use_peft=True, lora_r=3, lora_dropout=0.2, lora_target_modules="all-linear")
MODES = {
    "full": dict(activation_checkpointing="full"),
    "attention": dict(activation_checkpointing="attention"),
    "full_then_attention": dict(activation_checkpointing="full", gradient_checkpointing_layers=1,
                                gradient_checkpointing_rest="attention"),
    "full_then_none": dict(activation_checkpointing="full", gradient_checkpointing_layers=2),
    "attention_then_selective": dict(activation_checkpointing="attention", recompute_num_layers=1,
                                     gradient_checkpointing_rest="selective"),
    "selective_then_none": dict(activation_checkpointing="selective", gradient_checkpointing_layers=2),
    "more_than_there_are": dict(activation_checkpointing="attention", gradient_checkpointing_layers=99),
}
FOUR_LAYERS = {"odd": dict(tiny_llama.ODD, num_hidden_layers=4),
               # With dropped probabilities, and q, k, v as one matrix.
               "granite": dict(tiny_llama.GRANITE, num_hidden_layers=4, attention_dropout=0.2),
               "phi3": dict(tiny_llama.PHI3, num_hidden_layers=4),
               "gpt2": dict(tiny_llama.GPT2, n_layer=4),  # drops everywhere, by its defaults
               "gemma3": dict(tiny_llama.GEMMA3, num_hidden_layers=4,
                             layer_types=2 * tiny_llama.GEMMA3["layer_types"]),
               "gemma4": tiny_llama.GEMMA4_SMALL,
               "gemma4_experts": dict(tiny_llama.GEMMA4_EXPERTS, num_hidden_layers=4, layer_types=["sliding_attention", "full_attention"] * 2),
               "qwen3_5": dict(tiny_llama.QWEN35, num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2),
               "qwen3_next": dict(tiny_llama.QWEN3_NEXT, num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2),
               "gemma2": dict(tiny_llama.GEMMA2, num_hidden_layers=4),
               "olmo3": dict(tiny_llama.OLMO3, num_hidden_layers=4,
                             layer_types=2 * tiny_llama.OLMO3["layer_types"]),
               # Drops what attention and MLP add, too.
               "seed_oss": dict(tiny_llama.SEED_OSS, num_hidden_layers=4),
               "apertus": dict(tiny_llama.APERTUS, num_hidden_layers=4),
               "hunyuan": dict(tiny_llama.HUNYUAN, num_hidden_layers=4),
               "ministral3": dict(tiny_llama.MINISTRAL3, num_hidden_layers=4),
               # With an expert of all tokens, and an MLP in between.
               "mixture": dict(tiny_llama.QWEN2_MOE, num_hidden_layers=4),
               "glm4_moe": dict(tiny_llama.GLM4_MOE, num_hidden_layers=4),
               "deepseek_v2": dict(tiny_llama.DEEPSEEK_V2, num_hidden_layers=4),
               "deepseek_v3": dict(tiny_llama.DEEPSEEK_V3, num_hidden_layers=4),
               "gpt_oss": dict(tiny_llama.GPT_OSS, num_hidden_layers=4, router_aux_loss_coef=0.3),
               "olmoe": dict(tiny_llama.OLMOE, num_hidden_layers=4),
               "minimax_m2": dict(tiny_llama.MINIMAX_M2, num_hidden_layers=4),
               "granitemoeshared": dict(tiny_llama.GRANITE_SHARED, num_hidden_layers=4),
               "llama4_text": dict(tiny_llama.LLAMA4, num_hidden_layers=4),
               "lfm2_moe": dict(tiny_llama.LFM2_MOE, num_hidden_layers=4, layer_types=["conv", "full_attention"] * 2),
               "granitemoehybrid": dict(tiny_llama.GRANITE_HYBRID, num_hidden_layers=4, layer_types=["mamba", "attention"] * 2),
               "falcon_h1": dict(tiny_llama.FALCON_H1, num_hidden_layers=4),
               # Without factors what joins the residual is kept twice a layer.
               "falcon_h1_plain": dict(tiny_llama.FALCON_H1, num_hidden_layers=4, attention_out_multiplier=1.0, ssm_out_multiplier=1.0),
               "nemotron_h": tiny_llama.NEMOTRON_H,
               "experts": dict(tiny_llama.QWEN3_MOE, num_hidden_layers=4, router_aux_loss_coef=0.3)}
# PEFT adapts the product behind a state space in neither of these families.
LORA_BESIDE_STATES = dict(LORA, lora_target_modules=["in_proj", "q_proj", "o_proj", "up_proj", "down_proj"])
SHARED = dict(LORA, lora_r=1, lora_target_modules=["q_proj", "shared_expert.up_proj", "shared_expert_gate"])
EXPERTS = dict(LORA, lora_dropout=0.0)
PARAMETERS = dict(EXPERTS, lora_target_modules="q_proj",
                  lora_target_parameters=["mlp.experts.gate_up_proj", "2.mlp.experts.down_proj"])
BALANCED = dict(router_aux_loss_coef=0.5)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four-layers")
    return {name: tiny_llama.save_model(folder / name, **settings) for name, settings in FOUR_LAYERS.items()}


def numbers(run):
    return [(row["loss"], row["grad_norm"]) for row in run.history if "loss" in row]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family,settings", [("odd", {}), ("odd", LORA), ("odd", dict(LORA, use_dora=True)),
    ("odd", dict(use_peft=True, peft_type="PREFIX_TUNING", num_virtual_tokens=3)),
    ("seed_oss", {}), ("seed_oss", LORA), ("apertus", {}), ("apertus", LORA), ("hunyuan", {}), ("ministral3", LORA),
    ("granite", LORA), ("phi3", LORA), ("gpt2", {}), ("gemma3", {}), ("gemma4", {}), ("gemma4", LORA), ("gemma4_experts", {}), ("gemma4_experts", LORA), ("qwen3_5", {}), ("qwen3_5", LORA), ("qwen3_next", dict(BALANCED)), ("olmo3", {}), ("olmo3", LORA), ("gemma2", {}),
    ("gemma2", dict(use_peft=True, peft_type="PREFIX_TUNING", num_virtual_tokens=3)),
    ("mixture", {}), ("mixture", SHARED), ("mixture", dict(BALANCED, gradient_accumulation_steps=2)),
    ("mixture", dict(SHARED, **BALANCED)), ("experts", EXPERTS),
    ("glm4_moe", {}), ("glm4_moe", dict(EXPERTS, lora_target_modules="all-linear")),
    ("deepseek_v3", {}), ("deepseek_v2", dict(EXPERTS, lora_target_modules="all-linear")),
    ("gpt_oss", {}), ("gpt_oss", dict(LORA, **BALANCED)), ("gpt_oss", dict(PARAMETERS, **BALANCED)),
    ("olmoe", {}), ("minimax_m2", BALANCED), ("granitemoeshared", dict(EXPERTS, lora_target_modules="all-linear", **BALANCED)),
    ("llama4_text", {}), ("lfm2_moe", {}), ("granitemoehybrid", dict(BALANCED)), ("granitemoehybrid", dict(EXPERTS, lora_target_modules="all-linear")),
    ("falcon_h1", {}), ("falcon_h1_plain", LORA_BESIDE_STATES), ("nemotron_h", {}), ("nemotron_h", LORA_BESIDE_STATES)],
    ids=["whole", "lora", "dora", "prefix",
         "seed_oss-dropout", "seed_oss-lora", "apertus-xielu", "apertus-lora", "hunyuan-turns-first", "ministral3-lora",
         "granite-dropout", "phi3-fused", "gpt2-dropout", "gemma3-windows", "gemma4-shared-keys", "gemma4-lora", "gemma4-experts", "gemma4-experts-lora",
         "qwen3_5-linear-attention", "qwen3_5-lora", "qwen3_next-balanced",
         "olmo3-no-input-norms", "olmo3-lora", "gemma2-capped", "gemma2-prefix", "mixture",
         "mixture-lora", "balanced", "balanced-lora", "balanced-experts-lora", "sigmoids", "sigmoids-lora", "latents", "latents-lora", "sinks", "sinks-lora", "parameters-lora",
         "olmoe-limits", "minimax_m2-balanced", "granitemoeshared-lora", "llama4-chunks",
         "lfm2_moe-convolutions", "granitemoehybrid-balanced", "granitemoehybrid-lora",
         "falcon_h1-side-by-side", "falcon_h1-lora", "nemotron_h-single-modules", "nemotron_h-lora"])
def test_every_mode_computes_the_same_bits(inputs, models, tmp_path, family, settings, mode):
    def run(name, **flags):
        return run_strata(base_flags(models[family], inputs.data("messages"), tmp_path / name, max_steps=3,
                                     per_device_train_batch_size=4, full_determinism=True, **settings, **flags))

    kept = run("kept", activation_checkpointing="none")
    assert len(set(numbers(kept))) == 3
    assert numbers(run("again", **MODES[mode])) == numbers(kept)


@pytest.mark.parametrize("place", ["disk", "false"])
def test_ranks_that_keep_attention_compute_what_one_computes(inputs, models, tmp_path, place):
    def run(name, world, rows, **flags):
        return run_strata(base_flags(models["odd"], inputs.data("messages"), tmp_path / name, max_steps=4,
                                     per_device_train_batch_size=rows, **flags), world).losses

    expected = run("one", 1, 6, activation_checkpointing="none")
    folder = dict(activation_offloading_path=tmp_path) if place == "disk" else {}
    found = run("three", 3, 2, activation_offloading=place, **folder, **MODES["full_then_attention"])
    assert found == pytest.approx(expected, abs=1e-5)
    assert run("attention", 3, 2, activation_offloading=place, **folder, **MODES["attention"]) == found


# Two plans apart lie what attention computed and the residual behind it, for every recomputed layer but the last,
# which keeps all.
def test_attention_keeps_its_output_its_sums_and_the_residual(models):
    def activations(mode):
        said = strata("plan", "sft", "--model_name_or_path", models["odd"], "--cpu", "--max_length", 100,
                      "--packing", "--per_device_train_batch_size", 300, "--bf16", "false",
                      "--activation_checkpointing", mode)
        return float(re.search(r"activations ([\d.]+) MB", said).group(1)) * 1e6

    heads, channels, hidden = (tiny_llama.ODD[key] for key in ("num_attention_heads", "head_dim", "hidden_size"))
    assert activations("attention") - activations("full") == pytest.approx(
        3 * 4 * 30000 * (heads * (channels + 1) + hidden), rel=0.003)


def chosen(text):
    found = re.search(r"activation checkpointing: (.*) \(([\d.]+) (MB|GB) planned of", text)
    return found.group(1), float(found.group(2)) * {"MB": 1, "GB": 1000}[found.group(3)]


LARGE = dict(tiny_llama.PLAIN, hidden_size=128, intermediate_size=512, num_hidden_layers=6)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    return tiny_llama.save_model(tmp_path_factory.mktemp("large") / "model", **LARGE)


def test_auto_recomputes_as_little_as_fits(inputs, large, tmp_path):
    flags = dict(max_steps=3, per_device_train_batch_size=24, max_length=120, packing=True, logging_steps=1)

    def run(name, **more):
        return run_strata(base_flags(large, inputs.data("messages", train=400), tmp_path / name,
                                     **flags, **more), 2)

    def planned(run):
        return float(re.search(r"memory plan: ([\d.]+) MB", run.text).group(1))

    everything, least = run("none", activation_checkpointing="none"), run("full", activation_checkpointing="full")
    assert planned(everything) > planned(least) + 20
    free = run("free", activation_checkpointing="auto")
    assert chosen(free.text)[0] == "none in all 6 layers"
    seen = set()
    for part in (0.15, 0.5, 0.85):
        limit = planned(least) + part * (planned(everything) - planned(least))
        found = run(f"auto{part}", activation_checkpointing="auto",
                    memory_budget=f"{limit:.1f}MB")
        assert numbers(found) == numbers(everything)
        text, bytes_planned = chosen(found.text)
        measured = float(re.search(r"measured ([\d.]+) MB \(process", found.text).group(1))
        assert limit - 20 < bytes_planned <= limit and measured < limit * 1.03, (text, limit, measured)
        seen.add(text)
    assert len(seen) == 3
    tight = run("tight", activation_checkpointing="auto", memory_budget="1MB")
    assert planned(tight) == pytest.approx(planned(least), abs=3)
    assert re.search("warning: gradient_checkpointing_mode auto: found .* expected at most 1.00 MB", tight.text)


@pytest.mark.parametrize("flags,message", [
    (dict(activation_checkpointing="auto", gradient_checkpointing_layers=3),
     "found 3 with gradient_checkpointing_mode auto"),
    (dict(activation_checkpointing="selective", gradient_checkpointing_layers=3,
          gradient_checkpointing_rest="attention"), "expected one that keeps more"),
    (dict(activation_checkpointing="auto", memory_budget="much"),
     'found "much", expected a size like 40GB or 36GiB'),
    (dict(activation_checkpointing="auto", activation_offloading="disk", activation_offloading_path="/tmp"),
     "found disk with gradient_checkpointing_mode auto"),
    (dict(gradient_checkpointing_layers=-1), "gradient_checkpointing_layers"),
])
def test_what_cannot_be_is_refused(inputs, models, tmp_path, flags, message):
    run = run_strata_raw(base_flags(models["odd"], inputs.data("messages"), tmp_path / "out", **flags))
    assert run.returncode == 2 and message in run.text, run.text


def test_a_plan_of_auto_needs_to_know_the_memory(models):
    words = ["--model_name_or_path", models["odd"], "--activation_checkpointing", "auto"]
    assert "add --device_memory 80GB" in strata("plan", "sft", *words, "--device", "cuda", code=2)
    assert "activations are kept" in strata("plan", "sft", *words, "--device_memory", "2GB")
    assert "activations are kept" in strata("plan", "sft", *words, "--cpu")
    assert "activations are kept" in strata("sft", *words, "--cpu", "--dry_run", "--dataset_name", "none")
