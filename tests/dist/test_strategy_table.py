# Oracle: the same settings on one rank, unsharded, without recomputation, the whole batch at once.
#
# Every three settings meet; STRATA_WHOLE_TABLE=1 runs every row (row_runs.py).
import shutil
import tempfile

import pytest

from row_runs import STRATEGIES, futures_of, name_of, rows_of, sharding_of, unsharded
from running import BUILD, base_flags

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
    "strategy": STRATEGIES,
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
ROWS = rows_of(AXES, strength=3)


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
    return base_flags(
        inputs.model("odd"), inputs.data("messages", train=96), output, **{
            "max_steps": STEPS, "weight_decay": 0.01, "max_grad_norm": 0.7, "warmup_steps": 2,
            "lr_scheduler_type": "cosine", "activation_checkpointing": row["checkpointing"],
            "gradient_accumulation_steps": row["accumulation"],
            "per_device_train_batch_size":
                ROWS_PER_STEP // row["world"] // row["accumulation"],
            **sharding_of(row, HYBRID_SHARD_SIZE[row["world"]]), **KINDS[row["kind"]],
            **PRECISIONS[row["precision"]], **offload_flags(row, disk)})


def bound(precision, progress):
    """How far losses may be apart when the loss of the oracle falls by `progress`.

    fp32: sums in another order are off by some 1e-7 of their size, losses of 4 to 6 by less than 1e-6
    after one step, and what five steps add up stays below ten times that.
    16-bit weights: these differences of 1e-7 carry a weight over the border between two numbers now and
    then, one of several thousand a step, and it is gathered as its other neighbour: off by 2^-7 of its
    size in bf16, 2^-10 in fp16. A loss has the mean of thousands of such weights in it; 1e-4 is
    what a dozen of the largest would do.
    Gradients in bf16 are rounded before they travel and after the sum, 2^-9 of their size each, and
    what a step gains is off by as much: 2 x 2^-9 of the progress. (Without reduce_dtype they travel
    in fp32 and the second term is slack.)
    """
    return {"fp32": 1e-5, "fp16": 1e-4}.get(precision, 1e-4 + 2 * 2**-9 * progress)


# How far norms of gradients may be apart, relative to the norm. fp32: the 1e-7 of its sums, and what
# five steps make of it. 16-bit weights: some that are gathered as their other neighbour. Gradients in
# bf16: twice 2^-9 for the two roundings, and as much for the steps that were taken with them.
NORM_BOUND = {"fp32": 1e-4, "fp16": 1e-3, "bf16": 1e-3, "bf16_reduced": 2**-7}


def oracle_of(row):
    return dict(unsharded(row), accumulation=1, checkpointing="none", offload="none")


@pytest.fixture(scope="module")
def histories(request, inputs, tmp_path_factory):
    """The log history of every wanted row and its oracle, by name, as futures."""
    folder = tmp_path_factory.mktemp("rows")
    inputs.model("odd"), inputs.data("messages", train=96)  # made before the threads ask for them

    disk = tempfile.mkdtemp(prefix="offload-", dir=BUILD)  # the tests' own may lie in memory

    def history(run_row, name, row):
        return run_row(flags_of(inputs, folder / name, disk, row), row["world"]).history

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
    of_norms = max(abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(found, expected))
    record_property("difference", worst)
    record_property("of_norms", of_norms)
    record_property("progress", progress)
    assert worst < bound(row["precision"], progress)
    assert of_norms < NORM_BOUND[row["precision"]]
    for ours, theirs in zip(found, expected):
        assert ours["learning_rate"] == theirs["learning_rate"]
        assert ours["num_tokens"] == theirs["num_tokens"]
