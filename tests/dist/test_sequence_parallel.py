# Oracle: the same rows on one rank, each of them whole.
import json
import re

import pytest

from running import DEVICE_FLAGS, base_flags, flag_words, run_strata, run_strata_raw, strata

STEPS = 4
LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.2, learning_rate=2e-2,
            lora_target_modules=["q_proj", "v_proj", "o_proj", "up_proj"])
NO_CHECKPOINTING = dict(gradient_checkpointing=False)


def run(inputs, output, model, ranks, sequence=1, rows=6, data=None, **flags):
    """`rows` of a step, whatever the ranks."""
    sharing = {"sequence_parallel_size": sequence} if sequence > 1 else {}
    return run_strata(base_flags(
        inputs.model(model), data or inputs.data("messages", train=36), output, **{**dict(
            max_steps=STEPS, per_device_train_batch_size=rows * sequence // ranks, max_grad_norm=0.7,
            warmup_steps=1), **sharing, **flags}), ranks)


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """The history of one rank by its settings, computed once each."""
    known = {}

    def history(model, **flags):
        key = json.dumps([model, flags], default=str)
        if key not in known:
            known[key] = run(inputs, tmp_path_factory.mktemp("whole"), model, 1, **flags)
        return known[key]

    return history


def compare(found, expected, steps=STEPS):
    found, expected = ([row for row in run.history if "loss" in row] for run in (found, expected))
    assert len(found) == len(expected) == steps
    for ours, theirs in zip(found, expected):
        assert abs(ours["loss"] - theirs["loss"]) < 1e-5, (ours, theirs)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        for figure in ("learning_rate", "num_tokens", "epoch"):
            assert ours[figure] == theirs[figure]
        for figure in ("entropy", "mean_token_accuracy"):
            assert ours[figure] == pytest.approx(theirs[figure], rel=1e-4, abs=1e-5)


# Heads of keys and values that are shared out, that several ranks read, and that are one; windows,
# sinks, caps, positions that are added or change with the length, dropout of scores, layers without
# positions, fused projections of both kinds.
@pytest.mark.parametrize("model,ranks,sequence", [
    ("plain", 2, 2), ("plain", 4, 4), ("many_heads", 2, 2), ("many_heads", 4, 2), ("odd", 3, 3), ("mistral", 2, 2), ("qwen2", 2, 2), ("qwen3", 4, 4),
    ("granite", 2, 2), ("phi3", 2, 2), ("phi3", 4, 4), ("smollm3", 4, 2), ("gemma", 2, 2), ("gemma2", 4, 4),
    ("gemma3", 2, 2), ("olmo2", 3, 3), ("olmo3", 2, 2), ("glm", 2, 2), ("glm4", 4, 4), ("seed_oss", 2, 2), ("apertus", 3, 3),
    ("exaone4", 4, 2), ("ernie4_5", 3, 3), ("hunyuan", 2, 2), ("ministral3", 4, 2), ("cwm", 2, 2), ("helium", 3, 3), ("hyperclovax", 3, 3), ("minicpm3", 2, 2), ("gpt2", 3, 3), ("bigcode", 3, 3),
    ("gpt_neox", 3, 3), ("opt", 3, 3), ("opt_350m", 3, 3), ("xglm", 3, 3), ("nanochat", 2, 2), ("persimmon", 3, 3),
    ("starcoder2", 2, 2), ("cohere", 2, 2), ("cohere2", 4, 2), ("stablelm", 3, 3), ("olmo", 2, 2), ("nemotron", 3, 3), ("gptj", 3, 3), ("codegen", 2, 2), ("gpt_neo", 3, 3), ("falcon_40b", 2, 2), ("bloom", 3, 3), ("mpt", 3, 3),
    ("qwen3_moe", 2, 2), ("qwen2_moe", 4, 2), ("mixtral", 2, 2), ("glm4_moe", 4, 2), ("deepseek_v2", 4, 4), ("deepseek_v3", 2, 2), ("glm4_moe_lite", 4, 2), ("gpt_oss", 2, 2), ("gpt_oss", 4, 4),
    ("olmoe", 2, 2), ("ernie4_5_moe", 4, 2), ("hunyuan_v1_moe", 2, 2), ("llama4_text", 2, 2)])
def test_families(inputs, whole, tmp_path, model, ranks, sequence):
    # Small steps where weights that were rounded otherwise choose other experts a few steps later.
    flags = {"learning_rate": 1e-3} if model == "gpt_oss" else {}
    compare(run(inputs, tmp_path, model, ranks, sequence, **flags), whole(model, **flags))


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD",
                                      "HYBRID_SHARD_ZERO2", "ZERO1", "ZERO2"])
def test_strategies(inputs, whole, tmp_path, strategy):
    sizes = {"dp_shard_size": 1} if strategy.startswith("HYBRID") else {}
    found = run(inputs, tmp_path, "plain", 4, 2, fsdp_sharding_strategy=strategy,
                gradient_accumulation_steps=2, rows=4, **sizes)
    compare(found, whole("plain", gradient_accumulation_steps=2, rows=4))


KINDS = {
    "lora": LORA,
    "qlora": dict(LORA, load_in_4bit=True, bnb_4bit_use_double_quant=True),
    "dora": dict(LORA, use_dora=True),
    "ends": dict(LORA, use_dora=True, lora_dropout=0, lora_target_modules=["v_proj", "lm_head", "embed_tokens"]),
    "whole_ends": dict(LORA, lora_modules_to_save=["embed_tokens", "lm_head"]),
    "tokens": dict(LORA, trainable_token_indices="[3, 5, 7]"),
    "vera": dict(use_peft=True, peft_type="VERA", lora_r=8, learning_rate=1e-1, lora_target_modules=["q_proj", "up_proj"]),
    "ia3": dict(use_peft=True, peft_type="IA3", learning_rate=5e-2),
    "attention": dict(gradient_checkpointing_mode="attention"),
    "selective": dict(gradient_checkpointing_mode="selective"),
    "kept": NO_CHECKPOINTING,
    "packed": dict(packing=True, max_length=48),
    "assistant": dict(assistant_only_loss=True),
    "smoothing": dict(label_smoothing_factor=0.1),
    "grouped": dict(group_by_length=True),
    "offload": dict(activation_offloading="disk", activation_offloading_path="{disk}"),
    "files": dict(offload_param_device="nvme", offload_param_nvme_path="{disk}",
                  offload_optimizer_device="nvme", offload_optimizer_nvme_path="{disk}"),
}


@pytest.mark.parametrize("kind,sequence", [
    *((kind, sequence) for kind in KINDS for sequence in (2, 4)), ("noise", 4)])
def test_kinds(inputs, whole, tmp_path, kind, sequence):
    # As strong as the longest row beside a row says: all rows are in one micro-batch.
    kinds = {**KINDS, "noise": dict(neftune_noise_alpha=5)}
    (tmp_path / "disk").mkdir()
    flags = {name: tmp_path / "disk" if value == "{disk}" else value for name, value in kinds[kind].items()}
    found = run(inputs, tmp_path / "out", "wide", 4, sequence, rows=4, **flags)
    in_memory = {} if kind in ("offload", "files") else flags
    compare(found, whole("wide", rows=4, **in_memory))


# Found by the plan, which knows that rows are shared.
def test_batch_size_that_is_found(inputs, whole, tmp_path):
    found = run(inputs, tmp_path, "wide", 4, 2, rows=4, auto_find_batch_size=True, gradient_checkpointing_mode="auto")
    assert "batch size: 2 of 2 rows" in found.text and "activation checkpointing: none in all" in found.text
    compare(found, whole("wide", rows=4))


# The loss that balances experts is of whole rows. Of the shorter rows some ranks have nothing but what fills parts up.
@pytest.mark.parametrize("model,ranks,sequence,flags", [
    ("qwen3_moe", 2, 2, {}), ("mixtral", 4, 4, dict(gradient_accumulation_steps=2)), ("gpt_oss", 2, 2, dict(max_length=5, rows=1)),
    ("qwen2_moe", 4, 4, dict(max_length=9, rows=1)),
    ("mixtral", 2, 2, dict(LORA, lora_dropout=0, lora_target_modules="all-linear"))])
def test_balanced_experts(inputs, whole, tmp_path, model, ranks, sequence, flags):
    flags = dict(flags, router_aux_loss_coef=0.5)
    found, expected = run(inputs, tmp_path, model, ranks, sequence, **flags), whole(model, **flags)
    compare(found, expected)
    ours, theirs = ([row["aux_loss"] for row in run.history if "aux_loss" in row] for run in (found, expected))
    assert ours == pytest.approx(theirs, abs=1e-5) and len(ours) == STEPS


# Fewer tokens than ranks, and rows that end within a rank's part.
@pytest.mark.parametrize("rows,length", [(1, 2), (1, 3), (2, 5)])
def test_short_rows(inputs, whole, tmp_path, rows, length):
    flags = dict(rows=rows, max_length=length)
    compare(run(inputs, tmp_path, "plain", 4, 4, **flags), whole("plain", **flags))


# Beside as many ranks as there are groups, for the mean is one of batches; two do not divide nine rows.
@pytest.mark.parametrize("sequence", [2, 4])
def test_evaluation(inputs, tmp_path, sequence):
    flags = dict(eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4)
    found = run(inputs, tmp_path / "found", "plain", 4, sequence, **flags)
    expected = run(inputs, tmp_path / "whole", "plain", 4 // sequence, **flags)
    compare(found, expected)
    ours, theirs = ([row for row in run.history if "eval_loss" in row] for run in (found, expected))
    assert len(ours) == len(theirs) == 2
    for a, b in zip(ours, theirs):
        assert a.keys() == b.keys()
        for figure in a:
            assert a[figure] == pytest.approx(b[figure], rel=1e-4, abs=1e-5), figure


# A checkpoint is of the rows, not of those who shared them.
@pytest.mark.parametrize("before,after", [((4, 2), (2, 1)), ((2, 1), (4, 2)), ((2, 2), (3, 3))])
def test_resume(inputs, whole, tmp_path, before, after):
    model = "olmo2"  # 6 heads
    flags = dict(LORA, max_steps=6, lr_scheduler_type="constant")
    run(inputs, tmp_path, model, *before, save_strategy="steps", save_steps=3, **{**flags, "max_steps": 3})
    found = run(inputs, tmp_path, model, *after, resume_from_checkpoint=True, **flags)
    compare(found, whole(model, **flags), steps=6)


# What is planned for the wire is what was sent, and tensors take what the plan says; all rows are
# cut to one length.
@pytest.mark.parametrize("ranks,sequence,model,flags", [
    (2, 2, "wide", {}), (4, 2, "wide", {}), (4, 2, "qwen3_moe", dict(router_aux_loss_coef=0.5))])
def test_plan(inputs, tmp_path, ranks, sequence, model, flags):
    # Own products: MKL's of few columns are made transposed first, which models this small notice.
    found = run(inputs, tmp_path, model, ranks, sequence, rows=4, gradient_accumulation_steps=2,
                max_length=8, wall_clock_breakdown=True, full_determinism=True, **flags)
    planned, counted = map(int, re.search(r"wire: planned (\d+) bytes sent in a step, counted (\d+)",
                                          found.text).groups())
    assert planned == counted > 0
    megabytes = re.search(r"tensors planned ([\d.]+) MB, measured ([\d.]+) MB", found.text).groups()
    planned, measured = map(float, megabytes)
    assert planned == pytest.approx(measured, rel=0.05), found.text


# The same settings under the names that people have them by.
def test_names(inputs, whole, tmp_path):
    accelerate = tmp_path / "accelerate.yaml"
    accelerate.write_text("distributed_type: FSDP\nuse_cpu: true\nnum_processes: 4\n"
                          "fsdp_config:\n  fsdp_version: 2\nparallelism_config:\n"
                          "  parallelism_config_dp_shard_size: 2\n  parallelism_config_cp_size: 2\n"
                          "  parallelism_config_cp_comm_strategy: alltoall\n")
    deepspeed = tmp_path / "ds.json"
    deepspeed.write_text(json.dumps({"train_batch_size": 6, "gradient_accumulation_steps": 1,
                                     "zero_optimization": {"stage": 3}, "sequence_parallel_size": 2,
                                     "data_parallel_size": 2}))
    launches = {"accelerate": (["--config_file", accelerate], dict(per_device_train_batch_size=3)),
                "deepspeed": (["--num_processes", 4, *DEVICE_FLAGS],
                              dict(deepspeed=deepspeed, per_device_train_batch_size=None))}
    for name, (words, flags) in launches.items():
        output = tmp_path / name
        settings = base_flags(inputs.model("plain"), inputs.data("messages", train=36), output, max_steps=STEPS,
                              max_grad_norm=0.7, warmup_steps=1, **{"per_device_train_batch_size": None, **flags})
        text = strata("launch", *words, "sft", *flag_words(settings))
        assert "6 rows" in text and "2 ranks each" in text, text
        history = json.loads((output / "trainer_state.json").read_text())["log_history"]
        losses = [row["loss"] for row in history if "loss" in row]
        assert losses == pytest.approx(whole("plain").losses, abs=1e-5)


@pytest.mark.parametrize("ranks,flags,message", [
    (3, dict(sequence_parallel_size=3),
     "--sequence_parallel_size: found 3 ranks to share 4 heads of queries and 2 of keys and values, expected one of "
     "1, 2, 4; change it"),
    (3, dict(sequence_parallel_size=2),
     "--sequence_parallel_size: found 2 for 3 ranks, expected a divisor of the world size; change it or num_processes"),
    (2, dict(sequence_parallel_size=2, use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=4),
     "--sequence_parallel_size: found 2 with virtual tokens, expected 1: documents would begin with them on every "
     "rank; remove it, or train another kind of adapter"),
    (2, dict(sequence_parallel_size=2, parallelism_config_cp_size=2),
     "--parallelism_config_cp_size: found 2 with --sequence_parallel_size 2, expected one of them; remove one"),
    (2, dict(sequence_parallel_size=0), "--sequence_parallel_size: found"),
    (4, dict(sequence_parallel_size=2, dp_shard_size=4),
     "--dp_shard_size: found 4 with sequence_parallel_size 2 for 4 ranks, expected that their product divides the "
     "ranks; change one of them"),
    (2, dict(sequence_parallel_size=65536, dp_shard_size=65536),
     "--dp_shard_size: found 65536 with sequence_parallel_size 65536 for 2 ranks, expected that their product divides "
     "the ranks; change one of them"),
    (4, dict(sequence_parallel_size=2, dp_replicate_size=4, fsdp_sharding_strategy="NO_SHARD"),
     "--dp_replicate_size: found 4 copies over 1 rank each with sequence_parallel_size 2 for 4 ranks, expected their "
     "product to be the world size"),
])
def test_bad_settings(inputs, tmp_path, ranks, flags, message):
    found = run_strata_raw(base_flags(inputs.model("plain"), inputs.data("messages", train=36), tmp_path / "out",
                                      **flags), ranks)
    assert found.returncode != 0 and message in found.text, found.text


@pytest.mark.parametrize("recipe,model", [("dpo", "plain"), ("orpo", "plain"), ("kto", "plain"), ("reward", "plain"), ("classify", "plain")])
def test_other_recipes(inputs, tmp_path, recipe, model):
    found = run_strata_raw(base_flags(inputs.model(model), inputs.data("preference"), tmp_path / "out",
                                      sequence_parallel_size=2), 2, recipe=recipe)
    assert found.returncode != 0
    assert (f"--sequence_parallel_size: found 2 with the recipe {recipe}, expected 1: only sft divides rows; "
            "remove it") in found.text, found.text
