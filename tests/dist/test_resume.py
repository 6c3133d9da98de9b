# Oracle: the uninterrupted run, to the bit: log history and the bytes of the result.
import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest

from running import PROGRAM, base_flags, command, environment, output_files, run_strata, run_strata_raw

LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.3, learning_rate=2e-2,
            lora_target_modules=["q_proj", "o_proj", "up_proj"])
# Rows and accumulation put step 5 in the middle of an epoch, at its end or in a later one. Every
# strategy is resumed to the bit in test_any_world.py, 8-bit optimizers and quantised bases are in
# test_quantised_base.py and test_optimizer_table.py.
CASES = {
    "one_rank": (1, dict(gradient_accumulation_steps=2), 28),
    "one_rank_lora": (1, LORA, 15),
    "two_ranks": (2, dict(gradient_accumulation_steps=2), 29),
    "two_ranks_lora": (2, dict(LORA, gradient_accumulation_steps=2), 12),
    "three_ranks": (3, dict(weight_decay=0.1, lr_scheduler_type="cosine", warmup_steps=3), 40),
    "three_ranks_lora": (3, dict(LORA, gradient_accumulation_steps=2), 29),
    "pissa_dora_adafactor": (2, dict(LORA, init_lora_weights="pissa", use_dora=True, bias="all",
                                     optim="adafactor"), 20),
    "two_replicas": (2, dict(sharding_strategy="NO_SHARD", gradient_accumulation_steps=2), 29),
    "copies_kept": (2, dict(sharding_strategy="NO_SHARD", bf16=True, gradient_accumulation_steps=2,
                            eval_strategy="steps", eval_steps=4), 28),
    "sharded_copies_kept": (2, dict(zero_stage=2, bf16=True, optim="adamw_8bit"), 28),
    # The first loss scale overflows, so steps are skipped; afterwards it grows every other step.
    "fp16_scale": (2, dict(fp16=True, bf16=None, reduce_dtype="fp16", fp16_initial_scale=2**20,
                           fp16_scale_window=2, warmup_steps=2), 28),
    "balanced_experts": (3, dict(model="qwen3_moe", router_aux_loss_coef=0.3, gradient_accumulation_steps=2,
                                 logging_steps=3, eval_strategy="steps", eval_steps=4), 28),
    "fused_experts": (3, dict(model="gpt_oss", router_aux_loss_coef=0.3, optim="adafactor"), 28),
    "buffers": (3, dict(model="glm4_moe", gradient_accumulation_steps=2), 28),
    "experts_lora": (2, dict(LORA, model="mixtral", router_aux_loss_coef=0.3, lora_target_modules="all-linear",
                             lora_dropout=0.0, packing=True), 28),
    "parameters_lora": (3, dict(LORA, model="gpt_oss", lora_target_modules="all-linear", lora_dropout=0.0, router_aux_loss_coef=0.3,
                                lora_target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]), 28),
    "wide_log_window": (2, dict(logging_steps=3), 22),
    "packed_with_evaluation": (2, dict(packing=True, packing_strategy="bfd", shuffle_dataset=True,
                                       eval_strategy="steps", eval_steps=4), 33),
}


def flags_of(inputs, output, rows=28, model="odd", **flags):
    return base_flags(inputs.model(model), inputs.data("messages", train=rows), output,
                      **{"max_steps": 10, "save_strategy": "steps", "save_steps": 5, **flags})


def result_bytes(folder):
    name = "adapter_model.safetensors"
    file = folder / name if (folder / name).exists() else folder / "model.safetensors"
    return file.read_bytes()


def assert_same_result(found, expected):
    assert found.history == expected.history
    assert result_bytes(found.folder) == result_bytes(expected.folder)


def copy_with_checkpoint(source, target, step):
    """An output folder as it was when the run ended right after saving `step`."""
    target.mkdir()
    name = f"checkpoint-{step}"
    shutil.copytree(source / name, target / name)
    (target / "latest").write_text(name + "\n")
    shutil.copy(source / "metrics.jsonl", target / "metrics.jsonl")
    return target


@pytest.mark.parametrize("name", CASES)
def test_resumed_run_is_equal_to_the_bit(inputs, tmp_path, name):
    world, settings, rows = CASES[name]
    whole = run_strata(flags_of(inputs, tmp_path / "whole", rows, **settings), world)
    assert [p for p in output_files(whole.folder) if "manifest" in p] == [
        "checkpoint-10/manifest.json", "checkpoint-5/manifest.json"]
    resumed = copy_with_checkpoint(whole.folder, tmp_path / "resumed", 5)
    found = run_strata(flags_of(inputs, resumed, rows, **settings,
                                resume_from_checkpoint=resumed / "checkpoint-5"), world)
    assert_same_result(found, whole)
    steps = [row["step"] for row in found.metrics if "loss" in row]
    assert steps == sorted(set(steps)), "metrics.jsonl holds a step twice"
    ours, theirs = (f / "checkpoint-10" for f in (resumed, whole.folder))
    for file in ("rank-00000.safetensors", "progress.json"):
        assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file
    # Not its list of files: trainer_state.json holds evaluation times.
    manifests = [json.loads((f / "manifest.json").read_text()) for f in (ours, theirs)]
    assert manifests[0]["tensors"] == manifests[1]["tensors"]


def test_sums_and_times_are_those_of_all_parts(inputs, tmp_path):
    """The summary of a run that was broken off is that of one that was not, also where nothing is left to do."""
    whole = run_strata(flags_of(inputs, tmp_path / "whole"), 2)
    flags = flags_of(inputs, copy_with_checkpoint(whole.folder, tmp_path / "resumed", 5), resume_from_checkpoint=True)
    for _ in range(2):
        found = run_strata(flags, 2)
        losses = [[row["train_loss"] for row in run.metrics if "train_loss" in row] for run in (found, whole)]
        assert losses[0][-1] == losses[1][-1]
        seconds = [row["elapsed_seconds"] for row in found.metrics]
        assert seconds == sorted(seconds)


def test_true_takes_the_newest(inputs, tmp_path):
    whole = run_strata(flags_of(inputs, tmp_path / "whole", save_steps=2), 2)
    resumed = copy_with_checkpoint(whole.folder, tmp_path / "resumed", 4)
    shutil.copytree(whole.folder / "checkpoint-8", resumed / "checkpoint-8")
    # What a save that was cut short leaves is no checkpoint.
    (resumed / "checkpoint-9.tmp").mkdir()
    found = run_strata(flags_of(inputs, resumed, save_steps=2, resume_from_checkpoint=True), 2)
    assert f"resuming from {resumed / 'checkpoint-8'}: step 8 of 10\n" in found.text
    assert "other settings" not in found.text
    assert_same_result(found, whole)
    assert (found.folder / "latest").read_text().strip() == "checkpoint-10"
    assert not (resumed / "checkpoint-6").exists()
    assert not [p for p in output_files(resumed) if "tmp" in p]


def test_true_names_what_it_passes_over(inputs, saved, tmp_path):
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    shutil.copytree(saved.folder / "checkpoint-10", folder / "checkpoint-8")
    (folder / "checkpoint-8" / "manifest.json").unlink()
    (folder / "checkpoint-9").mkdir()
    (folder / "checkpoint-3").mkdir()  # older than what is taken: of no matter
    found = run_strata(flags_of(inputs, folder, resume_from_checkpoint=True), 2)
    assert f"{folder / 'checkpoint-8'} is skipped: it has no manifest.json" in found.text
    assert f"{folder / 'checkpoint-9'} is skipped: it is empty" in found.text
    assert "checkpoint-3 is" not in found.text
    assert_same_result(found, saved)
    shutil.rmtree(folder / "checkpoint-5"), shutil.rmtree(folder / "checkpoint-10")
    run = run_strata_raw(flags_of(inputs, folder, resume_from_checkpoint=True), 2)
    assert run.returncode != 0 and "checkpoint-8 cannot be resumed from: it has no" in run.text


def test_an_earlier_runs_checkpoints_are_not_gone_on_from(inputs, saved, tmp_path):
    """A run that starts anew where another one saved: its own checkpoints count, whatever the others' steps."""
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 10)
    flags = flags_of(inputs, folder, max_steps=4, save_steps=2, seed=3)
    first = run_strata(flags, 2)
    assert f"warning: output_dir: found {folder / 'checkpoint-10'} of an earlier run" in first.text
    found = run_strata({**flags, "max_steps": 6, "resume_from_checkpoint": True}, 2)
    assert f"{folder / 'checkpoint-10'} is skipped: it was there before `latest`" in found.text
    whole = run_strata({**flags, "output_dir": tmp_path / "whole", "max_steps": 6}, 2)
    assert "of an earlier run" not in whole.text
    assert found.history[:2] == first.history[:2]
    assert [row["step"] for row in found.history if "loss" in row] == list(range(1, 7))


def test_other_rows_of_a_step_are_told(inputs, saved, tmp_path):
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    found = run_strata(flags_of(inputs, folder, resume_from_checkpoint=True, max_steps=6, data_seed=7,
                                gradient_accumulation_steps=4), 2)
    rows = re.search(r"warning: resume_from_checkpoint: found (\d+) rows per step .*, expected (\d+) as in", found.text)
    assert rows and int(rows[1]) == 4 * int(rows[2]), found.text
    assert "found 7 as data_seed, expected 42 as in the run that saved it" in found.text


def test_a_changed_data_file_is_told(inputs, saved, tmp_path):
    """As many rows with another word in one of them, and with another file name around what they were."""
    data = pathlib.Path(shutil.copytree(flags_of(inputs, tmp_path)["dataset_name"], tmp_path / "data"))
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    flags = flags_of(inputs, folder, resume_from_checkpoint=True, save_strategy="no", max_steps=6)
    same = run_strata({**flags, "dataset_name": data}, 2)
    assert "rows of training data" not in same.text, same.text
    train = data / "train.jsonl"
    text = train.read_text()
    at = text.rindex("content") + len('content": "')
    train.write_text(text[:at] + "other " + text[at:])
    found = run_strata({**flags, "dataset_name": data}, 2)
    assert "warning: resume_from_checkpoint: found as many rows of training data with other tokens" in found.text


def test_a_longer_stream_is_no_other_one(inputs, tmp_path):
    """Of a stream the rows that the steps need are read: more of them where there are more steps. Where one of both runs has seen the
    stream's end, its number of rows says whether it is the same."""
    lines = (inputs.data("messages") / "train.jsonl").read_text().splitlines(keepends=True)
    data = tmp_path / "data.jsonl"

    def run(rows, steps, **more):
        data.write_text("".join(lines[:rows]))
        flags = base_flags(inputs.model("odd"), data, tmp_path / "out", dataset_streaming=True, save_strategy="steps", save_steps=2, **more)
        return run_strata({**flags, "max_steps": steps}).text

    def continued(rows, steps):
        text = run(rows, steps, resume_from_checkpoint=True)
        assert "resuming from" in text
        return re.findall(r"found (\d+) rows of training data, expected (\d+)", text)

    run(20, 2)
    assert [continued(20, steps) for steps in (4, 8)] == [[], []]
    assert continued(20, 12) == []  # 24 rows: the end has been seen
    assert continued(20, 14) == [] and continued(18, 16) == [("18", "20")]
    assert continued(20, 18) == [("20", "18")]


def test_other_settings_are_told(inputs, saved, tmp_path):
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    flags = flags_of(inputs, folder, resume_from_checkpoint=True, save_strategy="no")
    found = run_strata({**flags, "max_steps": 5, "learning_rate": 1e-4, "max_length": 32})
    assert f"{folder / 'checkpoint-5'}: step 5 of 5; nothing is left to train" in found.text
    assert ("found other settings than in the run that saved it: max_length 32 (was 64), "
            "learning_rate 0.0001 (was 0.005); set them back" in found.text)
    # The same data, named from here and by a link to them.
    (tmp_path / "link").symlink_to(flags["dataset_name"])
    again = run_strata({**flags, "max_steps": 5, "learning_rate": 0.005, "dataset_name": tmp_path / "link"})
    assert "found other settings" not in again.text, again.text
    # Lion's mean has the name of AdamW's.
    other = run_strata_raw({**flags, "optim": "lion_32bit"})
    assert other.returncode == 2 and "found lion_32bit, expected adamw_torch_fused as in" in other.text
    gone = run_strata_raw({**flags, "resume_from_checkpoint": folder / "checkpoint-6"})
    assert gone.returncode == 2 and f"found no folder {folder}/checkpoint-6, expected one of checkpoint-5 in {folder}; name it" in gone.text
    whole = run_strata_raw({**flags, "resume_from_checkpoint": folder})
    assert whole.returncode == 2 and f"the folder of a run, expected one checkpoint; name {folder / 'checkpoint-5'}" in whole.text


def test_another_tokenizer_is_told(inputs, saved, tmp_path):
    """The base of a model that trains whole is not read any more, but its tokenizer is."""
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    model = shutil.copytree(inputs.model("odd"), tmp_path / "model")
    flags = flags_of(inputs, folder, resume_from_checkpoint=True, save_strategy="no", max_steps=5,
                     model_name_or_path=model)
    assert "found another" not in run_strata(flags).text
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = run_strata(flags).text
    assert f"found another tokenizer.json than the one in {folder / 'checkpoint-5'}, expected" in text, text


def test_a_result_that_was_cut_short_is_finished(inputs, saved, tmp_path):
    """As a crash leaves it between the moment when the new files count and the last rename."""
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    ready = folder / ".update.ready"
    ready.mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copy(saved.folder / name, ready)
    (ready / "update.json").write_text('{"entry": "config.json", "removed": ["stale.bin"]}')
    (folder / "stale.bin").write_text("")
    (folder / ".update.tmp-1").mkdir()
    run_strata_raw(flags_of(inputs, folder, resume_from_checkpoint=folder / "none"), 2)
    assert result_bytes(folder) == result_bytes(saved.folder)
    assert (folder / "config.json").exists() and not (folder / "stale.bin").exists()
    assert not list(folder.glob(".update*"))


def inspect(*words):
    process = subprocess.run([str(PROGRAM), "inspect", *map(str, words)], capture_output=True, text=True,
                             env=environment(), timeout=60)
    return process.returncode, process.stdout + process.stderr


def test_a_checkpoint_whose_replacement_was_cut_short_is_there_again(inputs, saved, tmp_path):
    """As a crash leaves it between two renames, where a file system cannot exchange two names."""
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    shutil.copytree(folder / "checkpoint-5", folder / "checkpoint-5.tmp-77")
    (folder / "checkpoint-5").rename(folder / ".checkpoint-5.replaced-77")
    code, text = inspect(folder / "checkpoint-5")
    assert code == 1 and "found it as .checkpoint-5.replaced-77, where a crash left it" in text
    assert "--repair gives it back, and so does the next run in that folder" in text
    shutil.copytree(folder, tmp_path / "other")
    # The next run in the folder, on its own ...
    found = run_strata(flags_of(inputs, folder, resume_from_checkpoint=True), 2)
    assert f"{folder / 'checkpoint-5'}: it was being replaced when the run crashed" in found.text
    assert_same_result(found, saved)
    assert not [p for p in folder.iterdir() if ".replaced" in p.name or ".tmp" in p.name]
    # ... a run that goes on from there in another folder ...
    shutil.copytree(tmp_path / "other", tmp_path / "third")
    found = run_strata(flags_of(inputs, tmp_path / "elsewhere",
                                resume_from_checkpoint=tmp_path / "third" / "checkpoint-5"), 2)
    assert result_bytes(found.folder) == result_bytes(saved.folder)
    # ... or its user.
    code, text = inspect(tmp_path / "other" / "checkpoint-5", "--repair", "--verify")
    assert code == 0 and "its name and its previous content are restored" in text
    assert "step 5" in text and "verified: " in text
    assert not list((tmp_path / "other").glob(".lock*"))


def test_a_result_that_was_cut_short_is_named_to_readers(inputs, saved, tmp_path):
    folder = tmp_path / "out"
    (folder / ".update.ready").mkdir(parents=True)
    shutil.copy(saved.folder / "config.json", folder / ".update.ready")
    for path in saved.folder.iterdir():
        if path.is_file() and path.name != "config.json":
            shutil.copy(path, folder)
    (folder / ".update.ready" / "update.json").write_text('{"entry": "config.json", "removed": []}')
    expected = f"{folder}: found a result that was being put into place when the run crashed"
    code, text = inspect(folder)
    assert code == 1 and expected in text and f"strata inspect {folder} --repair puts" in text
    for words in (["convert", folder, tmp_path / "no", "--to", "bin"], ["chat", "--model_name_or_path", folder]):
        run = subprocess.run([str(PROGRAM), *map(str, words)], capture_output=True, text=True, input="",
                             env=environment(), timeout=60)
        assert run.returncode != 0 and expected in run.stdout + run.stderr, words
    run = run_strata_raw(flags_of(inputs, tmp_path / "new", model_name_or_path=folder), 2)
    assert run.returncode != 0 and expected in run.text
    # Nobody mends what a run is writing to.
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 12 on somewhere")
        lock.flush()
        code, text = inspect(folder, "--repair")
        assert code != 0 and "found that process 12 on somewhere writes to" in text
        assert (folder / ".update.ready").exists()
    code, text = inspect(folder, "--repair")
    assert code == 0 and "now they are" in text and "Hugging Face model" in text
    assert (folder / "config.json").exists() and not list(folder.glob(".*"))


def test_true_without_a_checkpoint(inputs, tmp_path):
    run = run_strata_raw(flags_of(inputs, tmp_path / "out", resume_from_checkpoint=True), 2)
    assert run.returncode != 0
    assert "no valid checkpoint found in output directory" in run.text


@pytest.mark.parametrize("source, message", [
    ("true", "no valid checkpoint found in output directory"),
    ("SAVED/checkpoint-6", "expected one of checkpoint-5 in"),
    ("nowhere/checkpoint-6", "found no such folder, expected a checkpoint"),
    ("SAVED/checkpoint-5", "found lion_32bit, expected adamw_torch_fused as in the run that saved"),
])
def test_a_wrong_checkpoint_is_told_before_the_data_are_read(inputs, saved, tmp_path, source, message):
    """Preparing them, and a reference of preferences, may take hours: the row that is wrong is not reached."""
    folder = copy_with_checkpoint(saved.folder, tmp_path / "saved", 5)
    (tmp_path / "rows.jsonl").write_text('{"messages": 5}\n')
    flags = flags_of(inputs, tmp_path / "out", resume_from_checkpoint=source.replace("SAVED", str(folder)), optim="lion_32bit",
                     dataset_name=tmp_path / "rows.jsonl")
    run = run_strata_raw(flags, 2)
    assert run.returncode != 0 and message in run.text and "rows.jsonl:1" not in run.text, run.text


def test_save_total_limit_and_epoch_strategy(inputs, tmp_path):
    run = run_strata(flags_of(inputs, tmp_path / "a", save_steps=2, save_total_limit=2))
    assert sorted(p.name for p in run.folder.glob("checkpoint-*")) == [
        "checkpoint-10", "checkpoint-8"]
    # 28 rows, 2 ranks, 2 rows each: an epoch is 7 updates.
    run = run_strata(flags_of(inputs, tmp_path / "b", save_strategy="epoch"), 2)
    assert sorted(p.name for p in run.folder.glob("checkpoint-*")) == [
        "checkpoint-10", "checkpoint-7"]


@pytest.fixture(scope="module")
def saved(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return run_strata(flags_of(inputs, folder), 2)


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def swap(a, b):
    data = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(data)


def relist(checkpoint, name):
    """Makes the manifest agree with a changed file, as a program that wrote it so would have."""
    import xxhash

    data = (checkpoint / name).read_bytes()
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["checksum"]
    manifest["files"][name] = {"bytes": len(data), "xxh3": xxhash.xxh3_64_hexdigest(data)}
    text = json.dumps(manifest, indent=1)[:-2] + ",\n "
    text += f'"checksum": "{xxhash.xxh3_64_hexdigest(text.encode())}"\n}}\n'
    (checkpoint / "manifest.json").write_text(text)


DAMAGES = {
    "weights": (lambda c: flip(c / "rank-00001.safetensors", -100),
                "rank-00001.safetensors: found checksum"),
    "header": (lambda c: flip(c / "rank-00000.safetensors", 0), "rank-00000.safetensors"),
    "short": (lambda c: os.truncate(c / "rank-00001.safetensors", 900), "rank-00001.safetensors"),
    "missing": (lambda c: (c / "rank-00001.safetensors").unlink(), "rank-00001.safetensors"),
    "swapped": (lambda c: swap(c / "rank-00000.safetensors", c / "rank-00001.safetensors"),
                "rank-0000"),
    "foreign": (lambda c: shutil.copy(c.parent / "other" / "rank-00001.safetensors", c),
                "rank-00001.safetensors: found checksum"),
    "foreign_manifest": (lambda c: shutil.copy(c.parent / "other" / "manifest.json", c),
                         "another checksum than manifest.json lists"),
    "manifest": (lambda c: os.truncate(c / "manifest.json", 300), "manifest.json"),
    "no_manifest": (lambda c: (c / "manifest.json").unlink(), "manifest.json"),
    "state": (lambda c: (c / "trainer_state.json").unlink(), "trainer_state.json"),
    "progress": (lambda c: (c / "progress.json").write_text("{"), "progress.json: found"),
    "settings": (lambda c: flip(c / "settings.json", 40), "settings.json: found"),
    "no_settings": (lambda c: (c / "settings.json").unlink(), "settings.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_named(inputs, saved, tmp_path, damage):
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    if damage.startswith("foreign"):  # of the same shapes
        shutil.copytree(saved.folder / "checkpoint-10", folder / "other")
    before = output_files(folder)
    act, message = DAMAGES[damage]
    act(folder / "checkpoint-5")
    # Whatever the number of ranks, each looks at all files.
    run = run_strata_raw(flags_of(inputs, folder, resume_from_checkpoint=folder / "checkpoint-5"),
                         world=2 if damage == "weights" else 1)
    assert run.returncode != 0
    assert message in run.text
    assert "checkpoint-10" not in run.text
    assert set(output_files(folder)) <= set(before)


@pytest.mark.parametrize("damage", ["weights", "missing", "manifest", "progress", "state",
                                    "settings", "no_settings"])
def test_falls_back_to_the_checkpoint_before(inputs, saved, tmp_path, damage):
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    shutil.copytree(saved.folder / "checkpoint-10", folder / "checkpoint-8")
    act, message = DAMAGES[damage]
    act(folder / "checkpoint-8")
    found = run_strata(flags_of(inputs, folder, resume_from_checkpoint=True), 2)
    assert message in found.text and "cannot resume from" in found.text
    assert "checkpoint-5 instead" in found.text
    assert_same_result(found, saved)


def test_progress_without_a_field_is_named(inputs, saved, tmp_path):
    folder = copy_with_checkpoint(saved.folder, tmp_path / "out", 5)
    checkpoint = folder / "checkpoint-5"
    (checkpoint / "progress.json").write_text("{}")
    relist(checkpoint, "progress.json")
    run = run_strata_raw(flags_of(inputs, folder, resume_from_checkpoint=checkpoint))
    assert run.returncode == 1
    assert "progress.json: found a field that is missing" in run.text and "num_tokens" in run.text


@pytest.mark.parametrize("change,message", [
    (dict(model="plain"), r"found model_name_or_path \S+ \(was \S+\), expected the settings of the run that saved \S+checkpoint-5"),
    (dict(LORA), r"found use_peft true \(was false\), .*lora_r 3 \(was 16\), .*, expected the settings of .*checkpoint-5; set them back"),
    (dict(optim="adafactor"), r"found adafactor, expected adamw_torch_fused as in the run that saved"),
])
def test_checkpoint_of_another_run_is_refused(inputs, saved, tmp_path, change, message):
    run = run_strata_raw(flags_of(inputs, tmp_path / "out", **change,
                                  resume_from_checkpoint=saved.folder / "checkpoint-5"), 2)
    assert run.returncode != 0
    assert re.search(message, run.text), run.text


@pytest.mark.parametrize("change,message", [
    (dict(lora_r=4), "found lora_r 4 (was 3), expected the settings"),
    (dict(lora_target_modules=["q_proj", "v_proj"]), "found lora_target_modules q_proj,v_proj (was q_proj,o_proj,up_proj)"),
])
def test_other_adapter_settings_are_named(inputs, tmp_path, change, message):
    """Of both forms of a checkpoint's settings.json: older ones hold every value as a text."""
    run = run_strata(flags_of(inputs, tmp_path / "first", max_steps=1, save_steps=1, **LORA))
    checkpoint = run.folder / "checkpoint-1"
    settings = json.loads((checkpoint / "settings.json").read_text())
    assert settings["lora_r"] == 3 and settings["learning_rate"] == 0.02 and settings["use_peft"] is True

    def text_of(name, value):
        if name in ("llm_int8_skip_modules", "feedforward_modules") and value is None:
            return ""  # a list that nobody gave
        return value if isinstance(value, str) else ",".join(value) if isinstance(value, list) else (
            "none" if value is None else json.dumps(value))

    for form in (settings, {name: text_of(name, value) for name, value in settings.items()}):
        (checkpoint / "settings.json").write_text(json.dumps(form))
        relist(checkpoint, "settings.json")
        flags = flags_of(inputs, tmp_path / "out", **LORA, max_steps=2, resume_from_checkpoint=checkpoint)
        run = run_strata_raw({**flags, **change})
        assert run.returncode == 1 and message in run.text, run.text
        assert "set them back, or start again in another output_dir (" in run.text
        good = run_strata_raw(flags)
        assert good.returncode == 0 and "other settings" not in good.text, good.text


def kill_during_save(flags, world, after):
    """Starts a run and kills all its processes while a save after step `after` is under way."""
    process = subprocess.Popen(command(flags, world), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=environment())
    output = flags["output_dir"]
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            names = os.listdir(output) if output.exists() else []
            if f"checkpoint-{after}" in names and any(".tmp" in n for n in names):
                children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)],
                                          capture_output=True, text=True).stdout.split()
                for pid in [str(process.pid), *children]:
                    try:
                        os.kill(int(pid), signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                return
        raise AssertionError(f"found no save to interrupt: {process.communicate()[0]}")
    finally:
        process.kill()
        process.communicate()


def test_killed_while_saving(inputs, tmp_path):
    settings = dict(save_steps=1, max_steps=12)
    whole = run_strata(flags_of(inputs, tmp_path / "whole", **settings), 2)
    for attempt, after in enumerate((2, 5)):
        folder = tmp_path / f"killed-{attempt}"
        flags = flags_of(inputs, folder, **settings)
        kill_during_save(flags, 2, after)
        for checkpoint in folder.glob("checkpoint-*"):
            if ".tmp" not in checkpoint.name:
                json.loads((checkpoint / "manifest.json").read_text())
        found = run_strata({**flags, "resume_from_checkpoint": True}, 2)
        assert_same_result(found, whole)
        assert not [p for p in output_files(folder) if ".tmp" in p]
