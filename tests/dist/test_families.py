# Oracle: the run on one rank, unsharded, without recomputation.
import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from running import base_flags, run_strata, run_strata_raw

LORA = dict(use_peft=True, lora_r=3, lora_dropout=0.0, lora_target_modules="all-linear")


# What is kept or computed again depends on the family's layers, not on what trains.
@pytest.mark.parametrize("mode,settings", [("selective", {}), ("full", LORA)], ids=["whole", "lora"])
@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "phi3", "smollm3", "granite", "gemma",
                                    "gemma2", "gemma3", "gemma4", "gemma4_small", "gemma4_experts", "qwen3_5", "qwen3_next", "olmo2", "olmo3", "glm", "glm4",
                                    "seed_oss", "arcee", "apertus", "exaone4", "ernie4_5", "hunyuan", "ministral3", "internlm3", "cwm",
                                    "helium", "hyperclovax", "vaultgemma", "minicpm3", "gpt2", "bigcode",
                                    "gpt_neox", "opt", "opt_350m", "starcoder2", "cohere", "cohere2", "phi", "stablelm", "olmo", "nemotron", "jais2", "gptj", "codegen", "gpt_neo", "falcon", "falcon_40b",
                                    "bloom", "mpt", "qwen3_moe", "qwen2_moe", "mixtral", "glm4_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "gpt_oss",
                                    "olmoe", "minimax_m2", "granitemoeshared", "ernie4_5_moe", "hunyuan_v1_moe", "exaone_moe", "llama4_text",
                                    "youtu", "granite_swa", "solar_open", "mellum", "flex_olmo", "afmoe", "granitemoe_swa", "nanochat", "xglm", "persimmon", "gpt",
                                    "lfm2", "lfm2_moe", "granitemoehybrid", "bamba", "falcon_h1", "nemotron_h"])
def test_ranks_compute_what_one_computes(inputs, tmp_path, family, mode, settings):
    if family in ("qwen2_moe", "qwen3_next") and settings:  # whose experts PEFT cannot adapt
        settings = dict(settings, lora_r=1, lora_target_modules=["q_proj", "shared_expert.up_proj", "shared_expert_gate"])
    if family in ("falcon_h1", "nemotron_h") and settings:  # where PEFT adapts no product behind a state space
        settings = dict(settings, lora_target_modules=["in_proj", "q_proj", "o_proj", "up_proj", "down_proj"])
    if family in ("hunyuan_v1_moe", "gemma4_small"):  # whose larger steps make 1e-5 of another order of summing
        settings = dict(settings, learning_rate=1e-3)

    def losses(name, world, rows, **flags):
        return run_strata(base_flags(inputs.model(family), inputs.data("messages", train=96),
                                     tmp_path / name, **{**settings, **flags, "max_steps": 5,
                                     "per_device_train_batch_size": rows}), world).losses

    expected = losses("one", 1, 6, sharding_strategy="NO_SHARD", activation_checkpointing="none")
    assert expected[0] - expected[-1] > 0.01
    found = losses(mode, 3, 2, activation_checkpointing=mode)
    assert max(abs(a - b) for a, b in zip(found, expected)) < 1e-5


@pytest.mark.parametrize("flags", [dict(load_in_4bit=True), dict(load_in_8bit=True, fsdp_cpu_ram_efficient_loading=True),
                                   dict(load_in_4bit=True, bnb_4bit_use_double_quant=True, fsdp_offload_params=True)],
                         ids=["nf4", "int8_sent", "double_offloaded"])
@pytest.mark.parametrize("family", ["gemma4_experts", "granitemoehybrid", "llama4_text", "gpt_oss", "lfm2_moe", "nemotron_h"])
def test_ranks_quantise_experts_as_one_does(inputs, tmp_path, family, flags):
    """Each matrix of a parameter of all experts by itself; parts of them lie on both sides of a border between ranks."""
    def run(name, world, rows, **more):
        return run_strata(base_flags(inputs.model(family), inputs.data("messages", train=96), tmp_path / name,
                                     **{**LORA, "lora_target_modules": ["q_proj", "v_proj"], "learning_rate": 1e-2, "max_steps": 3,
                                     "per_device_train_batch_size": rows, **flags, **more}), world)

    one = run("one", 1, 6, sharding_strategy="NO_SHARD")
    without = run("without", 1, 6, sharding_strategy="NO_SHARD", max_steps=1, llm_int8_skip_modules=["lm_head", "experts"])
    matrices = [int(re.search(r"quantised base: (\d+) matrices", r.text)[1]) for r in (one, without)]
    assert matrices[0] > matrices[1]
    assert run("several", 3, 2).losses == pytest.approx(one.losses, abs=1e-5)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_adapt_experts_as_one_does(inputs, tmp_path, world, strategy):
    """Branches of parameters that all experts share: of odd sizes, over ranks and micro-batches."""
    def run(name, world, rows, **flags):
        return run_strata(base_flags(inputs.model("gpt_oss"), inputs.data("messages", train=96), tmp_path / name,
                                     **{**LORA, "lora_target_modules": "q_proj"}, max_steps=5, learning_rate=0.02,
                                     lora_target_parameters=["0.mlp.experts.down_proj", "experts.gate_up_proj"],
                                     per_device_train_batch_size=rows, **flags), world)

    one = run("one", 1, 6, sharding_strategy="NO_SHARD", activation_checkpointing="none")
    several = run("several", world, 1, sharding_strategy=strategy, activation_checkpointing="selective",
                  gradient_accumulation_steps=6 // world)
    assert one.losses[0] - one.losses[-1] > 0.05
    assert max(abs(a - b) for a, b in zip(several.losses, one.losses)) < 1e-5
    found, expected = [load_file(r.folder / "adapter_model.safetensors") for r in (several, one)]
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.allclose(found[name], value, atol=1e-4), name


@pytest.mark.parametrize("settings", [{}, dict(LORA, packing=True)], ids=["whole", "lora"])
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss", "minimax_m2"])
def test_ranks_balance_experts_as_one_does_that_accumulates(inputs, tmp_path, family, settings):
    """The loss that balances experts is the mean of those of the micro-batches, whose rows are the same."""
    def run(name, world, **flags):
        history = run_strata(base_flags(inputs.model(family), inputs.data("messages", train=96), tmp_path / name,
                                        max_steps=4, per_device_train_batch_size=2, router_aux_loss_coef=0.5,
                                        **settings, **flags), world).history
        return [{key: row[key] for key in ("loss", "grad_norm", "aux_loss")} for row in history]

    one = run("one", 1, gradient_accumulation_steps=3, activation_checkpointing="none")
    three = run("three", 3, activation_checkpointing="full")
    zero = run("zero", 3, sharding_strategy="NO_SHARD", activation_checkpointing="selective")
    for found, expected in [*zip(three, one), *zip(zero, one)]:
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert one[0]["aux_loss"] > 1


@pytest.mark.parametrize("family,name", [("qwen3", "Qwen3DecoderLayer"), ("gpt2", "GPT2Block"),
                                         ("apertus", "ApertusDecoderLayer"), ("hunyuan", "HunYuanDenseV1DecoderLayer"),
                                         ("mixtral", "MixtralDecoderLayer"), ("qwen3_moe", "Qwen3MoeDecoderLayer"),
                                         ("bigcode", "GPTBigCodeBlock"), ("gpt_neox", "GPTNeoXLayer"), ("opt", "OPTDecoderLayer"),
                                         ("cohere2", "Cohere2DecoderLayer"), ("phi", "PhiDecoderLayer"), ("bloom", "BloomBlock"), ("gpt_neo", "GPTNeoBlock"),
                                         ("glm4", "Glm4DecoderLayer"), ("glm4_moe", "Glm4MoeDecoderLayer"), ("deepseek_v2", "DeepseekV2DecoderLayer"), ("gpt_oss", "GptOssDecoderLayer")])
def test_layers_are_wrapped_by_the_name_of_their_class(inputs, tmp_path, family, name):
    flags = base_flags(inputs.model(family), inputs.data("messages"), tmp_path / "out", max_steps=1)
    run_strata({**flags, "fsdp_transformer_layer_cls_to_wrap": name}, 2)
    run = run_strata_raw({**flags, "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}, 2)
    assert run.returncode == 2
    assert name in run.text


@pytest.mark.parametrize("key", ["n_positions", "max_position_embeddings"])  # transformers reads both
def test_rows_beyond_learned_positions_are_named_before_the_first_step(inputs, tmp_path, key):
    folder = shutil.copytree(inputs.model("gpt2"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config[key] = config.pop("n_positions")
    (folder / "config.json").write_text(json.dumps(config))
    flags = base_flags(folder, inputs.data("text"), tmp_path / "out", max_steps=1, packing=True,
                       packing_strategy="wrapped")
    run_strata({**flags, "max_length": 128}, 2)
    run = run_strata_raw({**flags, "max_length": 129}, 2)
    assert run.returncode == 2
    assert "max_length: found a row of 129 tokens, expected at most 128" in run.text


def test_norms_of_gpt2_are_not_decayed(inputs, tmp_path):
    """With weights that have no gradient nothing but decay moves: Trainer leaves nn.LayerNorm and biases out."""
    folder = inputs.model("gpt2")
    run = run_strata(base_flags(folder, inputs.data("messages"), tmp_path / "out", max_steps=1, learning_rate=0.5,
                                weight_decay=0.2, optim="sgd", max_grad_norm=1e-12), 1)
    before, after = load_file(folder / "model.safetensors"), load_file(run.folder / "model.safetensors")
    for name, value in before.items():
        kept = ".ln_" in name or name.endswith(".bias")
        assert torch.allclose(after[name], value if kept else value * 0.9, atol=1e-6), name
