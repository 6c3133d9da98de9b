# Oracle: the same run on one rank, unsharded and without recomputation.
#
# A step of world size w with b rows per rank holds the same w * b rows for every such pair, so all
# rows of the table train on the same batches.
import pytest

from running import base_flags, run_strata

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
}


def run(inputs, output, kind, world, strategy, checkpointing, accumulation, **flags):
    model, settings = KINDS[kind]
    return run_strata(base_flags(
        inputs.model(model), inputs.data("messages", train=36), output, max_steps=STEPS,
        per_device_train_batch_size=ROWS_PER_STEP // world, sharding_strategy=strategy,
        gradient_checkpointing=checkpointing, gradient_accumulation_steps=accumulation,
        weight_decay=0.01, max_grad_norm=0.7, warmup_steps=2, lr_scheduler_type="cosine",
        **{**settings, **flags}), world)


@pytest.fixture(scope="module")
def unsharded(inputs, tmp_path_factory):
    """The reference history by kind and accumulation, computed once each."""
    known = {}

    def history(kind, accumulation):
        if (kind, accumulation) not in known:
            folder = tmp_path_factory.mktemp("unsharded")
            known[kind, accumulation] = run(inputs, folder, kind, 1, "NO_SHARD", False,
                                            accumulation).history
        return known[kind, accumulation]

    return history


def compare(found, expected):
    assert len(found) == len(expected) == STEPS
    for ours, theirs in zip(found, expected):
        assert abs(ours["loss"] - theirs["loss"]) < 1e-5, (ours, theirs)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        assert ours["learning_rate"] == theirs["learning_rate"]
        assert ours["num_tokens"] == theirs["num_tokens"]
    assert expected[-1]["loss"] < expected[0]["loss"] - 0.05, "the reference did not learn"


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_table(inputs, unsharded, tmp_path, kind, strategy, world, checkpointing, accumulation):
    found = run(inputs, tmp_path, kind, world, strategy, checkpointing, accumulation)
    compare(found.history, unsharded(kind, accumulation))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", ["tied", "saved_modules", "tied_lora"])
def test_other_models(inputs, unsharded, tmp_path, kind, strategy, world):
    found = run(inputs, tmp_path, kind, world, strategy, True, 2)
    compare(found.history, unsharded(kind, 2))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("strategy", ALL_STRATEGIES)
@pytest.mark.parametrize("kind", ["qlora", "int8"])
def test_quantised_base(inputs, unsharded, tmp_path, kind, strategy, world):
    found = run(inputs, tmp_path, kind, world, strategy, True, 1)
    compare(found.history, unsharded(kind, 1))


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
