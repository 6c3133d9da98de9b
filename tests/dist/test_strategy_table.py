# Oracle: the same settings on one rank, unsharded, without recomputation, the whole batch at once.
#
# STRATA_WHOLE_TABLE=1 runs every row instead of those in which every three settings meet. The rows
# are short programs: as many run at a time as there are processors.
import os
import shutil
import tempfile

import pytest

from covering import covering_rows, whole_table
from row_runs import futures_of, name_of
from running import BUILD, base_flags, run_strata

STEPS = 5
ROWS_PER_STEP = 48  # for 1 to 4 ranks and 1 or 4 micro-batches
LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, learning_rate=2e-2,
            lora_target_modules=["q_proj", "o_proj", "up_proj"])
KINDS = {
    "whole": {},
    # Dropout is drawn anew for every micro-batch, so it stands in test_strategies.py.
    "lora": dict(LORA, lora_dropout=0.0),
}
PRECISIONS = {
    "fp32": dict(bf16=False),
    "bf16": dict(bf16=True),
    "bf16_reduced": dict(bf16=True, reduce_dtype="bf16"),
    "fp16": dict(bf16=None, fp16=True),
}
AXES = {
    "kind": list(KINDS),
    "strategy": ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2",
                 "ZERO1", "ZERO2"],
    "precision": list(PRECISIONS),
    "world": [1, 2, 3, 4],
    "accumulation": [1, 4],
    "checkpointing": ["none", "selective", "full"],
    # Offload to host memory changes nothing on a processor: test_offload.py.
    "offload": ["none", "files"],
}
# These keep their parameters whole in memory: only the optimizer's state can rest in files.
WHOLE_PARAMETERS = {"NO_SHARD", "ZERO1", "ZERO2"}
# Ranks that share the shards where the strategy keeps copies: the whole, none or half of them.
HYBRID_SHARD_SIZE = {1: 1, 2: 1, 3: 3, 4: 2}
EVERY_ROW = bool(os.environ.get("STRATA_WHOLE_TABLE"))
ROWS = whole_table(AXES) if EVERY_ROW else covering_rows(AXES, strength=3)


def offload_flags(row, disk):
    if row["offload"] == "none":
        return {}
    flags = dict(offload_optimizer_device="nvme", offload_optimizer_nvme_path=disk,
                 sub_group_size=4096)
    if row["strategy"] not in WHOLE_PARAMETERS:
        flags |= dict(offload_param_device="nvme", offload_param_nvme_path=disk)
    if row["checkpointing"] == "full":
        flags |= dict(activation_offloading="disk", activation_offloading_path=disk)
    return flags


def flags_of(inputs, output, disk, row):
    hybrid = row["strategy"].startswith("HYBRID")
    return base_flags(
        inputs.model("odd"), inputs.data("messages", train=96), output, **{
            "max_steps": STEPS, "weight_decay": 0.01, "max_grad_norm": 0.7, "warmup_steps": 2,
            "lr_scheduler_type": "cosine", "sharding_strategy": row["strategy"],
            "activation_checkpointing": row["checkpointing"],
            "dp_shard_size": HYBRID_SHARD_SIZE[row["world"]] if hybrid else None,
            "gradient_accumulation_steps": row["accumulation"],
            "per_device_train_batch_size":
                ROWS_PER_STEP // row["world"] // row["accumulation"],
            **KINDS[row["kind"]], **PRECISIONS[row["precision"]], **offload_flags(row, disk)})


def bound(precision, progress):
    """How far losses may be apart when the loss of the oracle falls by `progress`.

    Sums in another order change weights by some 1e-8 of their size; with 16-bit weights one of them
    may then be rounded to its other neighbour. Gradients in bf16 are off by 2^-9 of their size,
    where they travel in it once more after the sum, and so may be what a step gains.
    """
    return {"fp32": 1e-5, "fp16": 1e-4}.get(precision, 1e-4 + 2 * 2**-9 * progress)


def oracle_of(row):
    return dict(row, strategy="NO_SHARD", world=1, accumulation=1, checkpointing="none",
                offload="none")


@pytest.fixture(scope="module")
def histories(request, inputs, tmp_path_factory):
    """The log history of every wanted row and its oracle, by name, as futures."""
    folder = tmp_path_factory.mktemp("rows")
    inputs.model("odd"), inputs.data("messages", train=96)  # made before the threads ask for them

    disk = tempfile.mkdtemp(prefix="offload-", dir=BUILD)  # the tests' own may lie in memory

    def history(name, row):
        return run_strata(flags_of(inputs, folder / name, disk, row), row["world"]).history

    with futures_of(request, oracle_of, history) as found:
        yield found
    shutil.rmtree(disk)


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_row(histories, record_property, row):
    found = histories[name_of(row)].result()
    expected = histories[name_of(oracle_of(row))].result()
    assert len(found) == len(expected) == STEPS
    progress = expected[0]["loss"] - expected[-1]["loss"]
    assert progress > 0.05, "the reference did not learn"
    worst = max(abs(a["loss"] - b["loss"]) for a, b in zip(found, expected))
    record_property("difference", worst)
    record_property("progress", progress)
    assert worst < bound(row["precision"], progress)
    for ours, theirs in zip(found, expected):
        assert ours["learning_rate"] == theirs["learning_rate"]
        assert ours["num_tokens"] == theirs["num_tokens"]
