# Oracle: the uninterrupted run on the world size and strategy that wrote the checkpoint; losses of
# the resumed run agree to the bit on the same ones and within 1e-5 on others.
#
# A step of world size w with b rows per rank and a micro-steps holds the same w * b * a rows for
# every such triple, so all runs train on the same batches.
#
# Seven strategies on one to four ranks are 24 layouts (the hybrid ones need an even number), 576
# pairs of a writer and a reader. Here 31 of them run: every layout writes once and reads once, all
# 16 pairs of world sizes meet, every strategy meets itself on the same ranks. That any mesh reads
# what any other wrote is proved for all of them in tests/unit/checkpoint (Sharded.EveryMesh...). As a
# program the whole product runs from end to end:
#   python tests/dist/test_any_world.py PAIRS [PART/PARTS]
# PAIRS: "same" for the 88 pairs of world sizes with one strategy on both sides, "all" for all 576.
import pathlib
import random
import shutil
import sys
import tempfile

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from running import base_flags, run_strata

ROWS_PER_STEP = 12
STRATEGIES = {
    "full": dict(sharding_strategy="FULL_SHARD"),
    "grad_op": dict(sharding_strategy="SHARD_GRAD_OP"),
    "none": dict(sharding_strategy="NO_SHARD"),
    "zero1": dict(zero_stage=1),
    "zero2": dict(zero_stage=2),
    "hybrid": dict(sharding_strategy="HYBRID_SHARD", dp_shard_size=2),
    "hybrid2": dict(sharding_strategy="HYBRID_SHARD_ZERO2", dp_shard_size=2),
}
LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0, learning_rate=2e-2,
            lora_target_modules=["q_proj", "o_proj", "up_proj"])


def flags_of(inputs, output, world, strategy, accumulation=1, **flags):
    return base_flags(
        inputs.model("odd"), inputs.data("messages", train=48), output, max_steps=4, save_steps=2,
        per_device_train_batch_size=ROWS_PER_STEP // world // accumulation,
        gradient_accumulation_steps=accumulation, weight_decay=0.1,
        **{"save_strategy": "steps", **STRATEGIES[strategy], **flags})


def saving(inputs, new_folder):
    """Runs that saved after steps 2 and 4, by strategy, world size and kind; computed once each."""
    known = {}

    def run(strategy, world, **flags):
        key = (strategy, world, *map(str, flags.items()))
        if key not in known:
            known[key] = run_strata(flags_of(inputs, new_folder(), world, strategy, **flags), world)
        return known[key]

    return run


@pytest.fixture(scope="module")
def saved(inputs, tmp_path_factory):
    return saving(inputs, lambda: tmp_path_factory.mktemp("saved"))


def resume(inputs, whole, output, world, strategy, **flags):
    output.mkdir()
    shutil.copytree(whole.folder / "checkpoint-2", output / "checkpoint-2")
    shutil.copy(whole.folder / "metrics.jsonl", output)
    return run_strata(flags_of(inputs, output, world, strategy, resume_from_checkpoint=True,
                               save_strategy="no", **flags), world)


def compare(found, expected, is_same):
    assert [row["step"] for row in found.history] == [row["step"] for row in expected.history]
    for ours, theirs in zip(found.history, expected.history):
        assert abs(ours["loss"] - theirs["loss"]) < 1e-5, (ours, theirs)
        assert ours["learning_rate"] == theirs["learning_rate"]
        assert ours["num_tokens"] == theirs["num_tokens"]
    if is_same:
        assert found.history == expected.history
        assert ((found.folder / "model.safetensors").read_bytes()
                == (expected.folder / "model.safetensors").read_bytes())


# Every world size with every strategy is a writer once and a reader once, so that all pairs of world
# sizes meet; then each strategy with itself on the same ranks, where the continued run is the same.
LAYOUTS = [(world, strategy) for strategy in STRATEGIES for world in (1, 2, 3, 4)
           if world % 2 == 0 or not strategy.startswith("hybrid")]
# An order in which most pairs of strategies meet.
READERS = random.Random(17301).sample(LAYOUTS, len(LAYOUTS))
TABLE = [(*saves, *loads) for saves, loads in zip(LAYOUTS, READERS)]
TABLE += [row for row in ((1, "none") * 2, (2, "zero1") * 2, (3, "full") * 2, (4, "hybrid") * 2,
                          (2, "zero2") * 2, (4, "hybrid2") * 2, (3, "grad_op") * 2)
          if row not in TABLE]


def test_the_table_is_complete():
    assert len(set(READERS)) == len(LAYOUTS) == 24
    assert {(row[0], row[2]) for row in TABLE} == {(a, b) for a in range(1, 5) for b in range(1, 5)}


@pytest.mark.parametrize("save,save_strategy,load,load_strategy", TABLE)
def test_world_sizes_and_strategies(inputs, saved, tmp_path, save, load, save_strategy,
                                    load_strategy):
    whole = saved(save_strategy, save)
    compare(resume(inputs, whole, tmp_path / "out", load, load_strategy), whole,
            (save, save_strategy) == (load, load_strategy))


@pytest.mark.parametrize("save,load", [(1, 3), (4, 2)])
def test_adapters(inputs, saved, tmp_path, save, load):
    whole = saved("full", save, **LORA)
    compare(resume(inputs, whole, tmp_path / "out", load, "grad_op", **LORA), whole, False)


# Pages of 8-bit state over a base of codes, whose blocks lie across the borders of shards.
QLORA = dict(LORA, load_in_4bit=True, bnb_4bit_use_double_quant=True, learning_rate=5e-3,
             lora_modules_to_save=["lm_head"], optim="paged_adamw_8bit")


@pytest.mark.parametrize("save,load,strategy", [(3, 2, "zero2"), (1, 3, "full"), (4, 2, "hybrid"),
                                                (2, 1, "none")])
def test_codes_and_8bit_state(inputs, saved, tmp_path, save, load, strategy):
    whole = saved("full", save, **QLORA)
    state = [path for path in (whole.folder / "checkpoint-2").glob("rank-*.safetensors")
             if b"state1/" in path.read_bytes()[:20000]]
    assert state, "nothing rests in 8 bits"
    compare(resume(inputs, whole, tmp_path / "out", load, strategy, **QLORA), whole, False)


@pytest.mark.parametrize("world,accumulation", [(1, 4), (2, 3), (3, 2)])
def test_another_split_of_the_same_batch(inputs, saved, tmp_path, world, accumulation):
    whole = saved("zero1", 2)
    compare(resume(inputs, whole, tmp_path / "out", world, "full", accumulation=accumulation),
            whole, False)


def main():
    from conftest import Inputs

    which = sys.argv[1]
    part, parts = map(int, sys.argv[2].split("/")) if len(sys.argv) > 2 else (1, 1)
    pairs = [(*a, *b) for a in LAYOUTS for b in LAYOUTS if which == "all" or a[1] == b[1]]
    assert len(pairs) == {"all": 576, "same": 88}[which]
    mine = pairs[(part - 1) * len(pairs) // parts:part * len(pairs) // parts]
    num_same = 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        inputs = Inputs(folder)
        saved = saving(inputs, lambda: pathlib.Path(tempfile.mkdtemp(dir=folder)))
        for save, save_strategy, load, load_strategy in mine:
            whole = saved(save_strategy, save)
            is_same = (save, save_strategy) == (load, load_strategy)
            out = folder / "out"
            compare(resume(inputs, whole, out, load, load_strategy), whole, is_same)
            shutil.rmtree(out)
            num_same += is_same
            print(f"{save_strategy} on {save} -> {load_strategy} on {load}: the same run", flush=True)
    print(f"{len(mine)} of {len(pairs)} pairs agree within 1e-5, {num_same} of them to the bit")


if __name__ == "__main__":
    main()
