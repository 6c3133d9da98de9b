# Oracle: transformers' get_length_grouped_indices with a generator of the run's seed, run as a reference.
import re

import pytest
import torch
from transformers.trainer_pt_utils import get_length_grouped_indices

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
