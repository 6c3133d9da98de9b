# Oracle: transformers' get_length_grouped_indices with a generator of the run's seed, run as a reference.
import re

import pytest
import torch
from transformers import AutoTokenizer
from transformers.trainer_pt_utils import get_length_grouped_indices

import tiny_t5
from running import base_flags, run_strata, run_strata_raw

SEED = 42


@pytest.mark.parametrize("flag", [dict(train_sampling_strategy="group_by_length"), dict(group_by_length=True)],
                         ids=["strategy", "old-name"])
def test_rows_of_one_length_come_together(inputs, tmp_path, flag):
    def tokens(name, **more):
        run = run_strata(base_flags(inputs.model("odd"), inputs.data("messages", train=24), tmp_path / name,
                                    num_train_epochs=1, max_steps=-1, logging_steps=1, learning_rate=0.0, **more))
        total = [row["num_tokens"] for row in run.history if "loss" in row]
        return [b - a for a, b in zip([0, *total], total)]

    lengths = [int(n) for n in tokens("rows", per_device_train_batch_size=1, train_sampling_strategy="sequential")]
    assert len(lengths) == 24 and len(set(lengths)) > 5
    order = get_length_grouped_indices(lengths, 2 * 2, generator=torch.Generator().manual_seed(SEED))
    expected = [sum(lengths[row] for row in order[k:k + 4]) for k in range(0, 24, 4)]
    assert tokens("grouped", per_device_train_batch_size=2, gradient_accumulation_steps=2, seed=SEED,
                  **flag) == expected


def test_tf32_says_where_it_has_no_effect(inputs, tmp_path):
    run = run_strata(base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "out", max_steps=1,
                                tf32=True, padding_free=True))
    if "cuda" not in run.text:
        assert re.search("warning: tf32: has no effect", run.text)
    assert run_strata_raw(base_flags(inputs.model("odd"), inputs.data("messages"), tmp_path / "bad", max_steps=1,
                                     train_sampling_strategy="batch_rebalance")).returncode == 2


def test_pairs_come_by_the_length_of_their_source(tmp_path):
    """Trainer measures input_ids; the targets here are the longer, the shorter the source is."""
    model = tiny_t5.save_t5(tmp_path / "model")
    rows = [{"sentence": "no " * (1 + k * 7 % 11), "label": "yes " * (30 - 2 * (k * 7 % 11))} for k in range(20)]
    (tmp_path / "data").mkdir()
    for name in ("train", "validation"):
        tiny_t5.write_rows(tmp_path / f"data/{name}.jsonl", rows)

    def tokens(name, **more):
        run = run_strata({"model_name_or_path": model, "dataset_name": tmp_path / "data", "output_dir": tmp_path / name,
                          "num_train_epochs": 1, "logging_steps": 1, "learning_rate": 0.0, "save_strategy": "no",
                          "max_source_length": 60, "max_target_length": 90, "seed": SEED, **more}, recipe="seq2seq")
        total = [row["num_tokens"] for row in run.history if "loss" in row]
        return [b - a for a, b in zip([0, *total], total)]

    tokenizer = AutoTokenizer.from_pretrained(model)
    sources = [len(ids) for ids in tokenizer([row["sentence"] for row in rows]).input_ids]
    whole = tokens("rows", per_device_train_batch_size=1, train_sampling_strategy="sequential")
    order = get_length_grouped_indices(sources, 4, generator=torch.Generator().manual_seed(SEED))
    wrong = get_length_grouped_indices(whole, 4, generator=torch.Generator().manual_seed(SEED))
    expected, other = ([sum(whole[row] for row in rows[k:k + 4]) for k in range(0, 20, 4)] for rows in (order, wrong))
    assert expected != other
    assert tokens("grouped", per_device_train_batch_size=4, group_by_length=True) == expected
