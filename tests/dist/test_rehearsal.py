# Oracle: the same run without a rehearsal, to the bit.
import json
import re
import resource
import shutil
import signal
import subprocess
import threading

import pytest

import memory_table
import tiny_t5
from running import BUILD, base_flags, environment, output_files, run_program, run_strata, words_of

LORA = dict(use_peft=True, lora_r=3, lora_dropout=0.3, lora_target_modules=["q_proj", "up_proj"])
BOTH = dict(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=2)


def flags_of(inputs, output, **flags):
    return base_flags(inputs.model("odd"), inputs.data("messages", train=28), output,
                      **{"max_steps": 4, **flags})


def said(run):
    return [line for line in run.text.splitlines() if "rehearsal:" in line]


@pytest.mark.parametrize("world,settings", [
    (1, dict(BOTH)),
    (1, dict(LORA, eval_strategy="steps", eval_steps=2)),
    (2, dict(BOTH, gradient_accumulation_steps=2)),
    (2, dict(BOTH, zero_stage=1, gradient_accumulation_steps=3)),
    (2, dict(BOTH, fsdp_state_dict_type="FULL_STATE_DICT", **LORA)),
    (2, dict(BOTH, fsdp_state_dict_type="FULL_STATE_DICT", async_save=False)),
    (2, dict(BOTH, zero_stage=2, **LORA)),
    (3, dict(BOTH, fp16=True, save_total_limit=1)),
    (2, dict(BOTH, offload="nvme")),
])
def test_rehearsal_is_undone(inputs, tmp_path, world, settings):
    settings = dict(settings)
    runs = []
    for rehearse in (False, True):
        flags = dict(settings)
        if flags.pop("offload", None):
            disk = BUILD / "no-settings"
            disk.mkdir(exist_ok=True)
            flags |= {f"offload_{kind}_{what}": value for kind in ("param", "optimizer")
                      for what, value in (("device", "nvme"), ("nvme_path", disk))}
        runs.append(run_strata(flags_of(inputs, tmp_path / str(rehearse), **flags,
                                        rehearse=rehearse), world))
    plain, rehearsed = runs
    assert said(plain) == []
    assert len(said(rehearsed)) == 1
    assert "longest batch of" in said(rehearsed)[0]
    assert ("evaluation batch of" in said(rehearsed)[0]) == ("eval_strategy" in settings)
    assert ("checkpoint of" in said(rehearsed)[0]) == ("save_strategy" in settings)
    assert rehearsed.history == plain.history
    names = output_files(plain.folder)
    assert output_files(rehearsed.folder) == names
    for name in (n for n in names if n.endswith(".safetensors")):
        assert (rehearsed.folder / name).read_bytes() == (plain.folder / name).read_bytes(), name


def test_resumed_run_rehearses_what_remains(inputs, tmp_path):
    plain = run_strata(flags_of(inputs, tmp_path / "a", **BOTH), 2)
    found = run_strata(flags_of(inputs, tmp_path / "b", **BOTH, rehearse=True,
                                resume_from_checkpoint=plain.folder / "checkpoint-2"), 2)
    assert len(said(found)) == 1
    assert found.history[-1] == plain.history[-1]
    assert (found.folder / "model.safetensors").read_bytes() == \
        (plain.folder / "model.safetensors").read_bytes()


def test_a_step_of_several_micro_batches_takes_no_more_than_was_rehearsed(tmp_path):
    """Whole gradients of ZeRO-1 lie beside the activations of the second micro-batch."""
    (tmp_path / "model").mkdir(), (tmp_path / "data").mkdir()
    model = memory_table.save_model(tmp_path / "model")
    data = memory_table.save_data(tmp_path / "data")
    flags = dict(memory_table.PACKED, max_steps=3, splits="train", zero_stage=1, rehearse=True,
                 gradient_accumulation_steps=2, gradient_checkpointing=False,
                 per_device_train_batch_size=8)
    run = run_program(base_flags(model, data, tmp_path / "out", **flags), 2)
    rehearsed = float(re.search(r"peak memory (\d+) MB", said(run)[0]).group(1)) * 1.048576
    measured = float(re.search(r"memory: planned \S+ MB, measured (\S+) MB", run.text).group(1))
    assert rehearsed > 0.96 * measured, run.text


def first_words(flags, patterns):
    """Starts the run, kills it at the first line that matches a pattern and returns the line."""
    process = subprocess.Popen(words_of(flags), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env=environment(), start_new_session=True)
    alarm = threading.Timer(60, process.kill)
    alarm.start()
    try:
        return next((line for line in process.stdout if re.search(patterns, line)), None)
    finally:
        alarm.cancel()
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("more,rehearses", [
    (dict(max_steps=200_000_000), True),
    (dict(max_steps=200_000_000, bf16=True), True),
    (dict(max_steps=200_000_000, rehearse=False), False),
    (dict(max_steps=4), False),
])
def test_only_long_work_rehearses_unasked(inputs, tmp_path, more, rehearses):
    line = first_words(flags_of(inputs, tmp_path, **more), r"rehearsal:|'loss'|\"loss\"")
    assert line is not None
    assert ("rehearsal:" in line) == rehearses


def limited(flags, kind, limit):
    process = subprocess.run(
        words_of(flags), capture_output=True, text=True, timeout=60, env=environment(),
        restore_signals=False, preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)))
    return process.returncode, process.stdout + process.stderr


# An adapter's whole file holds the output layer that it adapts, a file of ranges only what trains.
@pytest.mark.parametrize("settings", [
    {},
    dict(use_peft=True, lora_r=1, lora_target_modules=["q_proj", "lm_head"],
         fsdp_state_dict_type="FULL_STATE_DICT"),
])
def test_save_that_does_not_fit_is_found_before_the_first_step(inputs, tmp_path, settings):
    for rehearse in (True, False):
        flags = flags_of(inputs, tmp_path / str(rehearse), save_strategy="steps", save_steps=3,
                         rehearse=rehearse, **settings)
        code, text = limited(flags, resource.RLIMIT_FSIZE, 16384)
        assert code != 0
        steps = (tmp_path / str(rehearse) / "metrics.jsonl").read_text().count('"loss"')
        assert steps == (0 if rehearse else 4), text
        assert not [name for name in output_files(tmp_path / str(rehearse)) if ".tmp" in name]


@pytest.mark.parametrize("which,advice", [
    ("train", "lower per_device_train_batch_size"),
    ("eval", "lower per_device_eval_batch_size"),
])
def test_batch_that_does_not_fit_is_named_with_its_setting(inputs, tmp_path, which, advice):
    # So wide that 36 rows ask for several times what the process may have, and one row does not.
    shutil.copytree(inputs.model("plain"), tmp_path / "wide",
                    ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((tmp_path / "wide" / "config.json").read_text())
    settings |= dict(intermediate_size=300_000, num_hidden_layers=1)
    (tmp_path / "wide" / "config.json").write_text(json.dumps(settings))
    flags = base_flags(None, inputs.data("messages", train=36, test=36), tmp_path / "out",
                       config_name=tmp_path / "wide", max_steps=2, eval_strategy="steps",
                       rehearse=True, **{"per_device_train_batch_size": 1,
                                         "per_device_eval_batch_size": 1,
                                         f"per_device_{which}_batch_size": 36})
    code, text = limited(flags, resource.RLIMIT_AS, 3 << 30)
    assert code != 0
    assert "rehearsal: found too little memory for the longest" in text, text
    assert "in 36 rows" in text and advice in text
    assert '"loss"' not in (tmp_path / "out" / "metrics.jsonl").read_text()


def test_rehearsal_writes_the_longest_answers(tmp_path):
    """Whatever the model would end them with; its own evaluations stay as they are."""
    model = tiny_t5.save_t5(tmp_path / "t5", **tiny_t5.GATED)
    data = tiny_t5.save_pairs(tmp_path / "data")
    flags = {"model_name_or_path": model, "dataset_name": data, "bf16": False, "max_source_length": 14, "max_target_length": 4,
             "per_device_train_batch_size": 2, "per_device_eval_batch_size": 4, "max_steps": 2, "logging_steps": 1,
             "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no", "disable_tqdm": True, "predict_with_generate": True,
             "generation_max_length": 9, "generation_num_beams": 3}
    plain, rehearsed = (run_strata(dict(flags, output_dir=tmp_path / str(rehearse), rehearse=rehearse), 2, recipe="seq2seq")
                        for rehearse in (False, True))
    assert re.search(r"evaluation batch of \d+ tokens with answers of 8 by 3 beams ", said(rehearsed)[0]), rehearsed.text
    assert rehearsed.history == plain.history
    assert any("eval_accuracy" in entry for entry in rehearsed.history)
