# Oracle: the same run on one rank, unsharded and without recomputation.
#
# A step of world size w with b rows per rank holds the same w * b rows for every such pair, so all
# rows of the table train on the same batches.
import pytest

from running import base_flags, output_files, run_strata, run_strata_raw

STEPS = 10
ROWS_PER_STEP = 6
STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"]
ALL_STRATEGIES = [*STRATEGIES, "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "ZERO1", "ZERO2"]
WORLDS = [1, 2, 3]
# Dropout is on: a draw belongs to the row, not to the rank that computes it.
LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.2, learning_rate=2e-2,
            lora_target_modules=["q_proj", "o_proj", "up_proj"])
KINDS = {
    "full": ("odd", {}),
    "lora": ("odd", LORA),
    "tied": ("tied", {}),
    "saved_modules": ("plain", dict(LORA, lora_modules_to_save=["lm_head", "norm"])),
    "tied_lora": ("tied", dict(LORA, lora_modules_to_save=["lm_head"])),
    "qlora": ("odd", dict(LORA, load_in_4bit=True, bnb_4bit_use_double_quant=True,
                          optim="paged_adamw_8bit")),
    "int8": ("odd", dict(LORA, load_in_8bit=True, lora_modules_to_save=["lm_head"],
                         optim="lion_8bit", learning_rate=2e-3)),
    # First values that start from the base, which three ranks hold in pieces and deal out.
    "dora_nf4": ("odd", dict(LORA, use_dora=True, load_in_4bit=True, bias="all")),
    "pissa": ("odd", dict(LORA, init_lora_weights="pissa", optim="adafactor", learning_rate=5e-3)),
    "loftq": ("odd", dict(LORA, init_lora_weights="loftq", loftq_iter=2, loftq_bits=8,
                          use_dora=True)),
    "olora_int8": ("odd", dict(LORA, init_lora_weights="olora", load_in_8bit=True)),
    "ia3": ("plain", dict(use_peft=True, peft_type="IA3", learning_rate=5e-2)),
}


def run(inputs, output, kind, world, strategy, checkpointing, accumulation, **flags):
    model, settings = KINDS[kind]
    return run_strata(base_flags(
        inputs.model(model), inputs.data("messages", train=36), output, **{**dict(
            max_steps=STEPS, per_device_train_batch_size=ROWS_PER_STEP // world,
            sharding_strategy=strategy, gradient_checkpointing=checkpointing,
            gradient_accumulation_steps=accumulation, weight_decay=0.01, max_grad_norm=0.7,
            warmup_steps=2, lr_scheduler_type="cosine"), **settings, **flags}), world)


@pytest.fixture(scope="module")
def unsharded(inputs, tmp_path_factory):
    """The reference history by its settings, computed once each."""
    known = {}

    def history(kind, accumulation, **flags):
        key = kind, accumulation, *flags.items()
        if key not in known:
            folder = tmp_path_factory.mktemp("unsharded")
            known[key] = run(inputs, folder, kind, 1, "NO_SHARD", False, accumulation,
                             **flags).history
        return known[key]

    return history


def compare(found, expected):
    assert len(found) == len(expected) == STEPS
    for ours, theirs in zip(found, expected):
        assert abs(ours["loss"] - theirs["loss"]) < 1e-5, (ours, theirs)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert ours["learning_rate"] == theirs["learning_rate"]
        assert ours["num_tokens"] == theirs["num_tokens"]
    assert expected[-1]["loss"] < expected[0]["loss"] - 0.05, "the reference did not learn"


# Every two settings meet; all three do for the models of test_strategy_table.py.
@pytest.mark.parametrize("kind,strategy,world", [
    (kind, strategy, WORLDS[(i + j) % 3])
    for i, kind in enumerate(["tied", "saved_modules", "tied_lora"])
    for j, strategy in enumerate(STRATEGIES)])
def test_other_models(inputs, unsharded, tmp_path, kind, strategy, world):
    found = run(inputs, tmp_path, kind, world, strategy, True, 2)
    compare(found.history, unsharded(kind, 2))


# 8 bits meet every strategy in test_adapter_table.py, paged_adamw_8bit in test_quantised_base.py.
@pytest.mark.parametrize("kind,strategy,world", [
    *(("qlora", strategy, 2 + i % 2) for i, strategy in enumerate(ALL_STRATEGIES)),
    ("int8", "FULL_SHARD", 3), ("int8", "NO_SHARD", 3), ("int8", "ZERO2", 3)])
def test_quantised_base(inputs, unsharded, tmp_path, kind, strategy, world):
    found = run(inputs, tmp_path, kind, world, strategy, True, 1)
    compare(found.history, unsharded(kind, 1))


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "ZERO2"])
@pytest.mark.parametrize("kind", ["dora_nf4", "loftq", "pissa", "olora_int8", "ia3"])
def test_other_adapters(inputs, unsharded, tmp_path, kind, strategy):
    found = run(inputs, tmp_path, kind, 3, strategy, True, 1)
    compare(found.history, unsharded(kind, 1))


# What changes when units are whole, how large they are, or how often gradients travel.
OPTIONS = {
    "reshard_to_part": (4, dict(fsdp_reshard_after_forward=2)),
    "hybrid_by_copies": (4, dict(sharding_strategy="HYBRID_SHARD", dp_replicate_size=2)),
    "hybrid_on_one_machine": (3, dict(sharding_strategy="HYBRID_SHARD_ZERO2")),
    "no_sync": (2, dict(sync_each_batch=False, gradient_accumulation_steps=3)),
    "no_sync_of_copies": (4, dict(sharding_strategy="HYBRID_SHARD", dp_shard_size=2,
                                  sync_each_batch=False, gradient_accumulation_steps=3)),
    "size_based_wrap": (2, dict(fsdp_auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=6000)),
    "no_wrap": (3, dict(fsdp_auto_wrap_policy="NO_WRAP")),
    "no_wrap_kept": (2, dict(fsdp_auto_wrap_policy="NO_WRAP", sharding_strategy="SHARD_GRAD_OP")),
    "class_name": (2, dict(fsdp_transformer_layer_cls_to_wrap="LlamaDecoderLayer")),
    "other_class": (2, dict(fsdp_transformer_layer_cls_to_wrap="Embedding")),
    "no_limit_of_gathers": (2, dict(limit_all_gathers=False)),
    "three_slots": (3, dict(limit_all_gathers=3)),
    "one_slot": (2, dict(limit_all_gathers=1)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_option(inputs, unsharded, tmp_path, name):
    world, flags = OPTIONS[name]
    accumulation = flags.get("gradient_accumulation_steps", 1)
    rows = dict(per_device_train_batch_size=12 // world // accumulation)
    expected = unsharded("full", 1, per_device_train_batch_size=12)
    found = run(inputs, tmp_path, "full", world, "FULL_SHARD", True, 1, **{**rows, **flags})
    compare(found.history, expected)


# Frozen weights rest in the type that is asked for, adapters train in fp32 beside them.
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_frozen_weights_in_16_bits(inputs, unsharded, tmp_path, dtype):
    expected = unsharded("lora", 1, dtype=dtype)
    for world, strategy in [(2, "FULL_SHARD"), (3, "ZERO2")]:
        found = run(inputs, tmp_path / strategy, "lora", world, strategy, True, 1, dtype=dtype)
        compare(found.history, expected)
    in_fp32 = unsharded("lora", 1)
    difference = abs(expected[0]["loss"] - in_fp32[0]["loss"])
    # A relative rounding of 2^-8 or 2^-11 of every weight shows, and no more than that.
    assert 0 < difference < in_fp32[0]["loss"] * (2**-8 if dtype == "bfloat16" else 2**-11)


REFUSED = {
    "class_name": (1, dict(fsdp_transformer_layer_cls_to_wrap="LlamaMLP"),
                   'fsdp_transformer_layer_cls_to_wrap: found "LlamaMLP", expected a block of this '
                   "model (LlamaDecoderLayer, Embedding, Linear); name one of them or leave the "
                   "setting out"),
    "shard_size": (3, dict(dp_shard_size=2),
                   "device mesh: found 3 ranks to be divided into shard groups of 2, expected a "
                   "divisor of the world size; change num_processes or the sharding strategy"),
    "copies": (4, dict(sharding_strategy="HYBRID_SHARD", dp_replicate_size=3),
               "dp_replicate_size: found 3 copies over 1 rank each for 4 ranks, expected their "
               "product to be the world size; change dp_replicate_size, dp_shard_size or "
               "num_processes"),
    "part_size": (4, dict(fsdp_reshard_after_forward=3),
                  "fsdp_reshard_after_forward: found 3 for shard groups of 4 ranks, expected a "
                  "divisor; change it or num_processes"),
    "part_size_of_deepspeed": (4, dict(deepspeed='{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}}'),
                               "(zero_optimization.zero_hpz_partition_size): found 3 for shard groups of 4 ranks, expected a "
                               "divisor; change it or num_processes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_anything_is_written(inputs, tmp_path, name):
    world, flags, message = REFUSED[name]
    found = run_strata_raw(base_flags(inputs.model("odd"), inputs.data("messages", train=36),
                                      tmp_path / "out", **flags), world)
    assert found.returncode == 2
    first = next(line for line in found.stderr.splitlines() if "error: " in line)
    assert first.endswith(message), found.text
    assert not (tmp_path / "out").exists() or output_files(tmp_path / "out") == []


def test_units_are_judged_before_the_data_are_read(inputs, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("no row\n")
    flags = base_flags(inputs.model("odd"), tmp_path / "data", tmp_path / "out")
    assert "train.jsonl" in run_strata_raw(flags, 2).stderr.splitlines()[0]
    world, more, message = REFUSED["class_name"]
    found = run_strata_raw({**flags, **more}, 2)
    assert found.returncode == 2
    assert found.stderr.splitlines()[0].endswith(message), found.text


def test_prefetch_changes_no_bit(inputs, tmp_path):
    histories = []
    for backward in ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"):
        for forward in (True, False):
            histories.append(run(
                inputs, tmp_path / f"{backward}-{forward}", "full", 2, "FULL_SHARD", True, 1,
                fsdp_backward_prefetch=backward, fsdp_forward_prefetch=forward).history)
    assert all(history == histories[0] for history in histories)


@pytest.mark.parametrize("packing", ["bfd", "wrapped"])
def test_packed_documents(inputs, tmp_path, packing):
    # Without the incomplete last round, which is filled up by other rows at another world size.
    flags = dict(packing=True, packing_strategy=packing, max_length=48, dataloader_drop_last=True)
    expected = run(inputs, tmp_path / "one", "full", 1, "NO_SHARD", False, 1, **flags)
    found = run(inputs, tmp_path / "three", "full", 3, "FULL_SHARD", True, 1, **flags)
    compare(found.history, expected.history)


def test_two_equal_runs_are_equal_to_the_bit(inputs, tmp_path):
    runs = [run(inputs, tmp_path / name, "lora", 3, "FULL_SHARD", True, 2) for name in "ab"]
    assert runs[0].history == runs[1].history
    files = [(r.folder / "adapter_model.safetensors").read_bytes() for r in runs]
    assert files[0] == files[1]
