# Oracle: each wrong input ends the run within ten seconds with a message that names it, from the
# right rank, a non-zero exit code, no process left and nothing half-written.
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time

import pytest

import preloaded
import tiny_llama
from running import base_flags, command, environment, flag_words, output_files, run_strata, PROGRAM

LIMIT_S = 10


def is_in_time(seconds):
    """Where more wants to run than there are processors, a second counts as the share that may be had
    of it, as in wait_fairly()."""
    return seconds * min(1, os.cpu_count() / max(os.getloadavg()[0], 0.1)) < LIMIT_S


def processes_of(folder):
    """Pids of processes whose command line names the folder."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            words = open(f"/proc/{entry}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in words:
            found.append(int(entry))
    return found


def fail(flags, world=2, **answers):
    """Runs what must fail in time; returns its text. `answers` of the machine: preloaded.py."""
    start = time.monotonic()
    process = subprocess.run(command(flags, world), capture_output=True, text=True, timeout=60,
                             env={**environment(), **(preloaded.variables(**answers) if answers else {})})
    seconds = time.monotonic() - start
    text = process.stdout + process.stderr
    assert process.returncode not in (0, -6, -11), text
    assert is_in_time(seconds), f"{seconds} s: {text}"
    assert processes_of(flags["output_dir"]) == []
    assert "terminate called" not in text and "report this as a bug" not in text, text
    return text


def assert_nothing_written(folder):
    if folder.exists():
        left = [p for p in output_files(folder) if p not in ("metrics.jsonl",)]
        assert left == []


@pytest.fixture
def model(inputs, tmp_path):
    """A copy to damage."""
    return shutil.copytree(inputs.model("plain"), tmp_path / "model")


def flags_of(inputs, model, tmp_path, **flags):
    data = flags.pop("data", None) or inputs.data("messages")
    return base_flags(model, data, tmp_path / "out", **flags)


# --- the checkpoint -------------------------------------------------------------------------


def header_of(path):
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_with(path, header, body):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def edit(model, change):
    path = model / "model.safetensors"
    header, body = header_of(path)
    body = change(header, body) or body
    write_with(path, header, body)


NORM = "model.norm.weight"


def set_entry(**entry):
    return lambda model: edit(model, lambda header, body: header[NORM].update(entry) or None)


def shift(model, by):
    def change(header, body):
        begin, end = header[NORM]["data_offsets"]
        header[NORM]["data_offsets"] = [begin + by, end + by]
    edit(model, change)


def set_config(**settings):
    def act(model):
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, **settings}))
    return act


def rename(model, old, new):
    def change(header, body):
        header[new] = header.pop(old)
    edit(model, change)


def truncate(model, by):
    path = model / "model.safetensors"
    os.truncate(path, path.stat().st_size - by)


def drop_index_part(model):
    """Two files and an index, of which one file is then removed."""
    from safetensors.torch import load_file, save_file
    tensors = load_file(model / "model.safetensors")
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[:8],
              "model-00002-of-00002.safetensors": names[8:]}
    for file, part in halves.items():
        save_file({n: tensors[n] for n in part}, model / file, {"format": "pt"})
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {n: f for f, part in halves.items() for n in part}}))
    (model / "model-00002-of-00002.safetensors").unlink()


MODELS = {
    "weights_missing": (lambda m: (m / "model.safetensors").unlink(), r"model.*safetensors"),
    "folder_missing": (lambda m: shutil.rmtree(m), r"config\.json|model"),
    "truncated": (lambda m: truncate(m, 1000), r"model\.safetensors: .*found .*expected"),
    "truncated_header": (lambda m: os.truncate(m / "model.safetensors", 40), r"model\.safetensors"),
    "empty": (lambda m: os.truncate(m / "model.safetensors", 0), r"model\.safetensors"),
    "not_safetensors": (lambda m: (m / "model.safetensors").write_bytes(b"\x80\x02}q\x00." * 99),
                        r"model\.safetensors"),
    "offsets_outside": (lambda m: shift(m, 1 << 40), r"model\.safetensors.*" + NORM),
    "offsets_overlap": (lambda m: shift(m, -64), r"model\.safetensors"),
    "dtype_unknown": (set_entry(dtype="F31"), r"model\.safetensors.*F31"),
    "dtype_of_other_size": (set_entry(dtype="F16"), r"model\.safetensors.*" + NORM),
    "shape_of_other_size": (set_entry(shape=[33]), r"model\.safetensors.*" + NORM),
    "shape_negative": (set_entry(shape=[-32]), r"model\.safetensors.*" + NORM),
    "shape_overflows": (set_entry(shape=[1 << 62, 1 << 62]), r"model\.safetensors.*" + NORM),
    "index_part_missing": (drop_index_part, r"model-00002-of-00002\.safetensors"),
    "tensor_missing": (lambda m: rename(m, NORM, "model.other.weight"), NORM),
    "config_of_more_layers": (set_config(num_hidden_layers=3), r"model\.layers\.2\."),
    "config_of_other_width": (set_config(hidden_size=64), r"shape \[.*config\.json implies \["),
    "config_of_other_vocabulary": (set_config(vocab_size=321), r"shape \[.*config\.json implies \["),
    "config_of_unknown_family": (set_config(model_type="mamba9"), r"mamba9"),
    "config_of_wrong_type": (set_config(num_attention_heads="four"), r"num_attention_heads"),
    "config_malformed": (lambda m: (m / "config.json").write_text('{"hidden_size": 32,'),
                         r"config\.json"),
    "tokenizer_missing": (lambda m: (m / "tokenizer.json").unlink(), r"tokenizer\.json"),
    "tokenizer_malformed": (lambda m: os.truncate(m / "tokenizer.json", 500), r"tokenizer\.json"),
}


@pytest.mark.parametrize("name", MODELS)
def test_checkpoint(inputs, model, tmp_path, name):
    act, message = MODELS[name]
    act(model)
    text = fail(flags_of(inputs, model, tmp_path))
    assert re.search(message, text), text
    assert_nothing_written(tmp_path / "out")


def test_adapter_of_another_model(inputs, tmp_path):
    lora = dict(use_peft=True, lora_r=2, lora_target_modules=["q_proj"], max_steps=1)
    adapter = run_strata(base_flags(inputs.model("odd"), inputs.data("messages"),
                                    tmp_path / "adapter", **lora)).folder
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, adapter_name_or_path=adapter))
    assert re.search(r"adapter: found an adapter that was trained on a base with the fingerprint "
                     r"[0-9a-f]{16}, expected [0-9a-f]{16} as .*model-plain has", text), text
    assert_nothing_written(tmp_path / "out")


# --- the data -------------------------------------------------------------------------------

GOOD = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
DATA = {
    "malformed_line": (GOOD * 2 + '{"messages": [\n' + GOOD, r"train\.jsonl:3"),
    "not_an_object": (GOOD + "[1, 2]\n", r"train\.jsonl:2"),
    "second_object_in_line": (GOOD.strip() + GOOD, r"train\.jsonl:1"),
    "invalid_utf8": (GOOD.encode() + b'{"messages": "\xff\xfe"}\n', r"train\.jsonl:2"),
    "empty": ("", r"train.*found no rows"),
    "blank_lines_only": ("\n \n", r"train.*found no rows"),
    "no_known_column": ('{"words": "a"}\n', r"train\.jsonl.*expected"),
    "another_column_later": (GOOD + '{"text": "a"}\n', r"train\.jsonl:2"),
    "message_without_role": ('{"messages": [{"content": "a"}]}\n', r"train\.jsonl:1.*role"),
    "content_not_text": ('{"messages": [{"role": "user", "content": 3}]}\n', r"train\.jsonl:1"),
    "id_out_of_range": ('{"input_ids": [1, 2, 3]}\n{"input_ids": [1, 2, 99999]}\n',
                        r"train\.jsonl:2.*99999"),
    "id_negative": ('{"input_ids": [1, -2, 3]}\n', r"train\.jsonl:1.*-2"),
    "labels_of_other_length": ('{"input_ids": [1, 2, 3], "labels": [1, 2]}\n', r"train\.jsonl:1"),
    "nothing_to_train": ('{"input_ids": [1, 2, 3], "labels": [-100, -100, -100]}\n' * 3,
                         r"found no token to train on"),
}


def data_folder(tmp_path, content):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "train.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.parametrize("name", DATA)
def test_data(inputs, tmp_path, name):
    content, message = DATA[name]
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path,
                         data=data_folder(tmp_path, content)))
    assert re.search(message, text), text
    assert_nothing_written(tmp_path / "out")


def test_data_folder_missing(inputs, tmp_path):
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, data=tmp_path / "nowhere"))
    assert "nowhere" in text
    assert_nothing_written(tmp_path / "out")


def test_assistant_only_row_without_an_answer(inputs, tmp_path):
    row = '{"messages": [{"role": "user", "content": "a"}]}\n'
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, assistant_only_loss=True,
                         data=data_folder(tmp_path, GOOD * 3 + row)))
    assert re.search(r"train\.jsonl:4.*assistant", text), text


def test_everything_truncated_away(inputs, tmp_path):
    row = '{"prompt": "a long prompt of many words", "completion": "x"}\n'
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, max_length=4,
                         data=data_folder(tmp_path, row * 3)))
    assert "found no token to train on" in text and "max_length 4" in text


# --- settings that are wrong for this model ----------------------------------------------------

# The line of a run's file that is to blame, its key as it is found, what was found.
UNFIT = {
    "target_modules": ("use_peft: true\nlora_target_modules: q_prj", "lora_target_modules",
                       r"found no module matching \[q_prj\], expected some of .*q_proj"),
    "target_modules_by_alias": ("use_peft: true\ntarget_modules: q_prj", "target_modules",
                                r"found no module matching \[q_prj\]"),
    "layer_class": ("seed: 1\nfsdp_transformer_layer_cls_to_wrap: BertLayer",
                    "fsdp_transformer_layer_cls_to_wrap",
                    r'found "BertLayer", expected a block of this model \(LlamaDecoderLayer'),
    "schedule": ("lr_scheduler_type: cosine_with_restarts\nlr_scheduler_kwargs: {num_cyles: 2}",
                 "lr_scheduler_kwargs", r'found "num_cyles", expected one of \[num_cycles\]'),
    "rank_pattern": ('use_peft: true\nrank_pattern: {q_proj: x}', "rank_pattern",
                     r"found \"x\" for \"q_proj\", expected a whole number"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_setting_that_does_not_fit_the_model_is_named_with_its_line(inputs, tmp_path, name):
    lines, key, message = UNFIT[name]
    (tmp_path / "run.yaml").write_text(lines + "\n")
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, config=tmp_path / "run.yaml")
    text = fail(flags, world=1)
    assert re.search(rf"error: {tmp_path}/run\.yaml:2 \({key}\): {message}", text), text
    assert_nothing_written(tmp_path / "out")


# --- the output folder and the disk -----------------------------------------------------------


def test_output_folder_under_a_file(inputs, tmp_path):
    (tmp_path / "file").write_text("")
    flags = flags_of(inputs, inputs.model("plain"), tmp_path)
    text = fail({**flags, "output_dir": tmp_path / "file" / "out"})
    assert str(tmp_path / "file") in text
    assert text.count("error: ") >= 1


def test_output_folder_that_takes_no_files(inputs, tmp_path):
    """/proc/self is a folder in which nobody, not even root, can create a file."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path)
    text = fail({**flags, "output_dir": "/proc/self/task"})
    assert "/proc/self/task" in text


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder],
                             capture_output=True, text=True)
    assert mounted.returncode == 0, f"this test mounts a tmpfs, which needs root: {mounted.stderr}"
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_disk_too_small_for_the_saves(inputs, tmp_path, small_disk):
    """Ten saves of the plain model take 4.4 MB: known before the first step."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, save_strategy="steps", save_steps=1)
    text = fail({**flags, "output_dir": small_disk})
    assert re.search(r"output_dir: found .* MB free .* expected .* MB for 10 checkpoints", text), text
    assert not list(small_disk.glob("checkpoint-*"))


def fill_until_a_save_fails(process, folder):
    """Another program takes all that is left, again and again: a save that still succeeds makes room by
    removing an older one. After a failure less is left than a save takes."""
    while True:
        with pytest.raises(OSError), open(folder / "ballast", "ab", buffering=0) as ballast:
            while True:
                ballast.write(b"x" * 65536)
        text = read_until(process, r"checkpoint-\d+ (is|was not) saved")
        if "was not saved" in text:
            return text.splitlines()[-1]


def start_on(small_disk, flags):
    return subprocess.Popen(command({**flags, "output_dir": small_disk}, 2), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, env=environment())


def read_until(process, pattern):
    """What the run says up to the line that the pattern is found in."""
    text = ""
    for line in process.stdout:
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(text)


@pytest.mark.parametrize("room_again", [True, False])
def test_disk_full_at_save(inputs, tmp_path, small_disk, room_again):
    """Another program fills the disk while the run goes on: saves fail and training does not; with room
    again they succeed, and without it a request to stop ends in the error."""
    subprocess.run(["mount", "-o", "remount,size=80m", small_disk], check=True)
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, save_strategy="steps", save_steps=5,
                     save_total_limit=2, max_steps=1000000, lr_scheduler_type="constant")
    process = start_on(small_disk, flags)
    try:
        read_until(process, "checkpoint-5 is saved")
        failed = fill_until_a_save_fails(process, small_disk)
        assert re.search(r"warning: checkpoint-\d+ was not saved: .*no space left on device", failed), failed
        assert "earlier checkpoints are as they were, training goes on" in failed
        before = (small_disk / "latest").read_text().strip()
        assert (small_disk / before / "manifest.json").exists()
        if room_again:
            (small_disk / "ballast").unlink()
            read_until(process, r"checkpoint-\d+ is saved")
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode == 75) == room_again and process.returncode != 0, text
    if not room_again:
        assert re.search(r"error: .*checkpoint-\d+ was not saved: .*no space left on device", text), text
        (small_disk / "ballast").unlink()
    saved = sorted((p.name for p in small_disk.glob("checkpoint-*")), key=lambda n: int(n[11:]))
    assert not [p for p in output_files(small_disk) if "tmp" in p]
    assert (small_disk / "latest").read_text().strip() == saved[-1] and len(saved) <= 2
    assert room_again == (saved[-1] != before)
    rows = [json.loads(line)["step"] for line in (small_disk / "metrics.jsonl").open()]
    assert rows == list(range(1, len(rows) + 1)) and (not room_again or rows[-1] == int(saved[-1][11:]))
    # What was saved is whole: with room again, the run goes on from it.
    last = int(saved[-1][11:]) + 5
    resumed = run_strata({**flags, "output_dir": small_disk, "max_steps": last,
                          "resume_from_checkpoint": True}, 2)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole", "max_steps": last}, 2)
    assert resumed.history[-1] == whole.history[-1]


# Room before the first step that another program takes afterwards.
ROOM = 10**9


def test_disk_full_at_export(inputs, tmp_path, small_disk):
    (small_disk / "ballast").write_bytes(b"x" * (2 * 1024 * 1024 - 100 * 1024))
    flags = {**flags_of(inputs, inputs.model("plain"), tmp_path, max_steps=1),
             "output_dir": small_disk}
    text = fail(flags, FREE_BYTES=ROOM)
    assert re.search(r"model\.safetensors.*No space left on device", text, re.IGNORECASE), text
    assert not [p for p in output_files(small_disk) if "safetensors" in p or "tmp" in p]


def test_disk_full_at_export_behind_a_checkpoint(inputs, tmp_path, small_disk):
    """What is lost is nothing, and the message says how to go on."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    whole = run_strata({**flags, "output_dir": tmp_path / "whole"}, 2)
    saved = sum(p.stat().st_size for p in (whole.folder / "checkpoint-2").iterdir())
    result = (whole.folder / "model.safetensors").stat().st_size
    (small_disk / "ballast").write_bytes(b"x" * (2 * 1024 * 1024 - saved - result))
    flags["output_dir"] = small_disk
    text = fail(flags, FREE_BYTES=ROOM)
    assert re.search(r"model\.safetensors.*no space left on device.*; what was trained is whole in "
                     rf"{small_disk}/checkpoint-2: .*--resume_from_checkpoint true writes", text, re.IGNORECASE), text
    (small_disk / "ballast").unlink()
    run_strata({**flags, "resume_from_checkpoint": True}, 2)
    assert ((small_disk / "model.safetensors").read_bytes()
            == (whole.folder / "model.safetensors").read_bytes())


def test_disk_full_while_logging(inputs, tmp_path, small_disk):
    """Rows wait for room, and no step does: none is lost, and none is there in part."""
    (small_disk / "ballast").write_bytes(b"x" * (2 * 1024 * 1024 - 16 * 1024))
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, max_steps=1000000)
    process = subprocess.Popen(command({**flags, "output_dir": small_disk}, 3), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True,
                               env={**environment(), **preloaded.variables(FREE_BYTES=ROOM)})
    try:
        read_until(process, r"metrics\.jsonl.*no space left on device.*rows are kept until there is room")
        lines = (small_disk / "metrics.jsonl").read_text().splitlines(keepends=True)
        assert lines and all(json.loads(line) and line.endswith("\n") for line in lines)
        time.sleep(0.3)
        (small_disk / "ballast").unlink()
        process.send_signal(signal.SIGTERM)
        text, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 75 and "missing" not in text, text
    last = int(re.search(r"stopped on request after step (\d+)", text)[1])
    rows = [json.loads(line)["step"] for line in (small_disk / "metrics.jsonl").open()]
    assert rows == list(range(1, last + 1)) and last > len(lines)


# --- a rank that dies ---------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_killed_rank(inputs, tmp_path, rank):
    output = tmp_path / "out"
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, save_strategy="steps", save_steps=5,
                     save_total_limit=3, max_steps=1000000)
    process = subprocess.Popen(command(flags, 3), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env=environment())
    try:
        deadline = time.monotonic() + 60
        while not (output / "latest").exists() and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        victims = [pid for pid in processes_of(output) if pid != process.pid
                   and f"\0RANK={rank}\0" in open(f"/proc/{pid}/environ").read()]
        assert len(victims) == 1
        start = time.monotonic()
        os.kill(victims[0], signal.SIGKILL)
        text, _ = process.communicate(timeout=60)
        seconds = time.monotonic() - start
    finally:
        process.kill()
        process.communicate()
    assert is_in_time(seconds)
    assert process.returncode == 128 + signal.SIGKILL
    errors = [line for line in text.splitlines() if "error: " in line]
    assert f"rank {rank}: killed by signal 9" in errors[0], text
    assert processes_of(output) == []
    checkpoints = [p.name for p in output.glob("checkpoint-*") if ".tmp" not in p.name]
    latest = output / "latest"  # written after the folder's rename: a kill may come between
    assert not latest.exists() or latest.read_text().strip() in checkpoints
    step = max(int(name.split("-")[1]) for name in checkpoints)
    resumed = run_strata({**flags, "max_steps": step + 5, "resume_from_checkpoint": True}, 3)
    assert resumed.state["global_step"] == step + 5
    assert not [p for p in output_files(output) if "tmp" in p]


def test_failing_rank_is_named(inputs, tmp_path):
    """Rank 1 alone finds its data missing: it names the file, rank 0 names rank 1."""
    flags = flags_of(inputs, inputs.model("plain"), tmp_path)
    link = tmp_path / "data-of-rank"
    wrapper = tmp_path / "rank.sh"
    wrapper.write_text(
        "#!/bin/sh\n"
        f"[ $RANK = 0 ] && data={flags['dataset_name']} || data={tmp_path}/gone\n"
        f"mkdir -p {link}-$RANK; ln -sfn $data {link}-$RANK/data; cd {link}-$RANK\n"
        f"exec {PROGRAM} sft {' '.join(flag_words({**flags, 'dataset_name': 'data'}))}\n")
    wrapper.chmod(0o755)
    start = time.monotonic()
    process = subprocess.run(
        [PROGRAM, "launch", "--num_processes", "2", "--cpu", "--no_python", wrapper],
        capture_output=True, text=True, timeout=60, env=environment())
    assert process.returncode != 0 and is_in_time(time.monotonic() - start)
    assert re.search(r"\[rank 1\] .*data", process.stderr), process.stderr
    assert_nothing_written(tmp_path / "out")
