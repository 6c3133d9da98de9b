# Oracle: the exit code and the table that the self test promises; runs that cannot agree must fail.
import os
import re
import subprocess

import pytest

from running import PROGRAM, base_flags, environment, flag_words

ROW = re.compile(r"^  (\w[\w ]+?) {2,}(\d+) +(\d+) +(\d+) +(on|off) +([\d.]+|nan) *(.*)$", re.M)


def selftest(flags, world, temporary, recipe="sft"):
    process = subprocess.run(
        [str(PROGRAM), "selftest", "--num_processes", str(world), "--cpu", recipe,
         *flag_words(flags)], capture_output=True, text=True, timeout=100,
        env={**environment(), "TMPDIR": str(temporary)})
    return process.returncode, process.stdout + process.stderr


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("odd"), inputs.data("messages", train=40), output,
                      **{"learning_rate": 1e-3, **flags})


@pytest.mark.parametrize("world,settings,layouts", [
    (2, dict(gradient_accumulation_steps=2),
     [(2, 2, 2, "on"), (1, 4, 2, "on"), (2, 4, 1, "on"), (2, 2, 2, "off")]),
    (1, dict(use_peft=True, lora_dropout=0.3, lora_target_modules=["q_proj"],
             per_device_train_batch_size=3, gradient_checkpointing=False),
     [(1, 6, 1, "off"), (2, 3, 1, "off"), (1, 3, 2, "off"), (1, 6, 1, "on")]),
    (2, dict(bf16=True, zero_stage=2, lr_scheduler_type="cosine", save_strategy="epoch"),
     [(2, 2, 1, "on"), (1, 4, 1, "on"), (2, 1, 2, "on"), (2, 2, 1, "off")]),
])
def test_settings_that_are_fine_pass(inputs, tmp_path, world, settings, layouts):
    output, temporary = tmp_path / "out", tmp_path / "tmp"
    temporary.mkdir()
    code, text = selftest(flags_of(inputs, output, **settings), world, temporary)
    assert code == 0, text
    rows = ROW.findall(text)
    other = "one rank" if world > 1 else "two ranks"
    assert [row[0] for row in rows] == ["as set", other, "accumulation", "checkpointing"], text
    assert [(int(r[1]), int(r[2]), int(r[3]), r[4]) for r in rows] == layouts
    assert all(row[6].endswith("same") for row in rows[1:]), text
    assert float(rows[0][5]) > 1
    assert text.rstrip().endswith("self test: passed")
    assert not output.exists() and os.listdir(temporary) == []


@pytest.mark.parametrize("world", [1, 2])
def test_rated_answers_are_tried_without_their_divergence(inputs, tmp_path, world):
    """It is of the answers that share a batch, which are others in each layout; batches of one have none."""
    flags = {**flags_of(inputs, tmp_path / "out", learning_rate=2e-2), "dataset_name": inputs.data("rated", train=40)}
    code, text = selftest(flags, world, tmp_path, recipe="kto")
    assert code == 0 and "with the loss apo_zero_unpaired, because the one that is set compares answers" in text, text
    assert len(ROW.findall(text)) == 4 and "DIFFERENT" not in text


def test_pairs_without_a_reference_are_tried(inputs, tmp_path):
    """The likelihood beside the odds is a mean over the tokens of a step."""
    flags = {**flags_of(inputs, tmp_path / "out", learning_rate=2e-2), "dataset_name": inputs.data("preference", train=40)}
    code, text = selftest(flags, 2, tmp_path, recipe="orpo")
    assert code == 0 and len(ROW.findall(text)) == 4 and "DIFFERENT" not in text, text


def test_runs_that_do_not_agree_fail(inputs, tmp_path):
    # Steps so large that rounding alone decides where they lead.
    code, text = selftest(flags_of(inputs, tmp_path / "out", learning_rate=3, adam_beta1=0,
                                    adam_epsilon=1e-30, max_grad_norm=0),
                          2, tmp_path)
    assert code == 1, text
    assert "DIFFERENT" in text
    assert text.rstrip().endswith("self test: failed")


@pytest.mark.parametrize("settings,message", [
    (dict(per_device_train_batch_size=50), "fewer rows than one step"),
    (dict(model_name_or_path="/no/model"), "/no/model"),
    (dict(no_such_flag=3), "no_such_flag"),
])
def test_what_cannot_run_is_an_error(inputs, tmp_path, settings, message):
    code, text = selftest(flags_of(inputs, tmp_path / "out", **settings), 2, tmp_path)
    assert code in (1, 2)
    assert message in text
    assert "passed" not in text
