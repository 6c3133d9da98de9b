# Oracle: the uninterrupted run, to the bit, and the losses of one rank, unsharded, the whole batch
# at once. AdamW stands in test_resume.py, in 8 bits and paged in test_quantised_base.py.
# STRATA_WHOLE_TABLE=1 (row_runs.py) adds those that share their rule with one of these.
import pytest

from row_runs import EVERY_ROW, STRATEGIES, futures_of, name_of, rows_of, sharding_of, unsharded
from running import base_flags

STEPS = 4
ROWS_PER_STEP = 6  # for 1 to 3 ranks
OPTIMIZERS = {"sgd": 0.3, "adafactor": 3e-3, "lion_32bit": 5e-4, "paged_lion_8bit": 5e-4}
if EVERY_ROW:
    OPTIMIZERS |= {"adamw_torch": 3e-3, "adamw_8bit": 1e-3, "lion_8bit": 5e-4,
                   "paged_adamw_32bit": 3e-3}
# Tensors of 4096 elements or more, which have a state of 8 bits.
KINDS = {
    "whole": {},
    "qlora": dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0, load_in_4bit=True,
                  lora_target_modules=["q_proj", "up_proj"], lora_modules_to_save=["lm_head"]),
}
ROWS = rows_of({"optim": list(OPTIMIZERS), "strategy": STRATEGIES, "kind": list(KINDS),
                "world": [2, 3]}, strength=2)


def flags_of(inputs, output, row, **more):
    return base_flags(
        inputs.model("wide"), inputs.data("messages", train=36), output, **{
            "optim": row["optim"], "max_steps": STEPS,
            "learning_rate": OPTIMIZERS[row["optim"]] * (4 if row["kind"] == "qlora" else 1),
            "weight_decay": 0.1, "per_device_train_batch_size": ROWS_PER_STEP // row["world"],
            **sharding_of(row), **KINDS[row["kind"]], **more})


def result_of(run):
    (file,) = [*run.folder.glob("adapter_model.safetensors"),
               *run.folder.glob("model.safetensors")]
    return file.read_bytes()


@pytest.fixture(scope="module")
def runs(request, inputs, tmp_path_factory):
    """Losses and result of the run, and of one that goes on from its middle."""
    folder = tmp_path_factory.mktemp("rows")
    inputs.model("wide"), inputs.data("messages", train=36)  # made before the threads ask for them

    def run(run_row, name, row):
        if row == unsharded(row):
            return run_row(flags_of(inputs, folder / name, row)).losses
        whole = run_row(flags_of(inputs, folder / name, row, save_strategy="steps",
                                 save_steps=STEPS // 2), row["world"])
        resumed = run_row(flags_of(
            inputs, folder / f"{name}-resumed", row,
            resume_from_checkpoint=whole.folder / f"checkpoint-{STEPS // 2}"), row["world"])
        return (whole.losses, resumed.losses, result_of(whole), result_of(resumed))

    with futures_of(request, unsharded, run) as found:
        yield found


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_row(runs, row):
    losses, resumed_losses, result, resumed_result = runs[name_of(row)].result()
    expected = runs[name_of(unsharded(row))].result()
    assert expected[0] - expected[-1] > 0.01, "the reference did not learn"
    # The first step knows no state; codes of 8 bits may round to their neighbour where gradients
    # differ by the order of a sum.
    assert losses[:2] == pytest.approx(expected[:2], abs=1e-5)
    assert losses == pytest.approx(expected, abs=2e-3 if "8bit" in row["optim"] else 1e-5)
    assert resumed_losses[-(STEPS // 2):] == losses[-(STEPS // 2):]
    assert resumed_result == result
