# Oracle: each wrong input ends the run within ten seconds with a message that names it, a non-zero exit code,
# no process left and nothing half-written.
import json
import os
import re
import resource
import shutil
import struct

import pytest
from safetensors.torch import load_file, save_file

from failing import assert_nothing_written, data_folder, fail, flags_of
from running import base_flags, run_strata, strata


@pytest.fixture
def model(inputs, tmp_path):
    """A copy to damage."""
    return shutil.copytree(inputs.model("plain"), tmp_path / "model")


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


GOOD = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
DATA = {
    "malformed_line": (GOOD * 2 + '{"messages": [\n' + GOOD, r"train\.jsonl:3"),
    "not_an_object": (GOOD + "[1, 2]\n", r"train\.jsonl:2"),
    "second_object_in_line": (GOOD.strip() + GOOD, r"train\.jsonl:1"),
    "invalid_utf8": (GOOD.encode() + b'{"messages": "\xff\xfe"}\n', r"train\.jsonl:2"),
    "empty": ("", r"train.*found no rows"),
    "blank_lines_only": ("\n \n", r"train.*found no rows"),
    "no_known_column": ('{"words": "a"}\n', r"train\.jsonl.*expected"),
    "columns_of_an_export": ('{"Question": "a", "answer": "b"}\n',
                             r"train\.jsonl:1: .*; did you mean --dataset_columns prompt=Question completion=answer\?"),
    "columns_of_dolly": ('{"instruction": "a", "context": "", "response": "b"}\n',
                         r"train\.jsonl:1: .*; did you mean --dataset_columns input=context output=response\?"),
    "messages_of_another_name": ('{"dialogue": [{"role": "user", "content": "a"}]}\n',
                                 r"train\.jsonl:1: .*; did you mean --dataset_columns messages=dialogue\?"),
    "tree_of_chatgpt": ('{"title": "a", "mapping": {"b": {"message": null}}}\n',
                        r"train\.jsonl:1: found a conversation as ChatGPT exports it"),
    "messages_as_text": ('{"messages": "a dialogue"}\n', r"train\.jsonl:1: found a string in .*; write the list itself"),
    "messages_as_python_prints_them": ('{"messages": "[{\'role\': \'user\'}]"}\n', r"train\.jsonl:1: .* > rewritten\.jsonl"),
    "lists_of_rows": ('{"train": [{"text": "a"}], "test": [{"text": "b"}]}\n',
                      r"train\.jsonl:1: found one object around lists of rows \(train, test\), expected .* > rewritten\.jsonl"),
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


def test_a_parquet_page_that_is_not_what_its_checksum_says(inputs, tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": [f"the cat sat on mat {i}" for i in range(40)]})
    file = tmp_path / "train.parquet"
    pyarrow.parquet.write_table(table, file, compression="none", use_dictionary=False, write_page_checksum=True)
    file.write_bytes(file.read_bytes().replace(b"on mat 17", b"on max 17"))
    assert pyarrow.parquet.read_table(file)["text"][17].as_py() == "the cat sat on max 17", "readable all the same"
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, data=file))
    assert re.search(r"train\.parquet: found .*CRC.*, expected a readable", text), text
    assert_nothing_written(tmp_path / "out")


@pytest.mark.parametrize("name", DATA)
def test_data(inputs, tmp_path, name):
    content, message = DATA[name]
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path,
                         data=data_folder(tmp_path, content)))
    assert re.search(message, text), text
    assert_nothing_written(tmp_path / "out")


@pytest.mark.parametrize("rows,flags", [(GOOD + "[1, 2]\n", {}), (GOOD * 3, dict(dataloader_drop_last=True))],
                         ids=["a_bad_row", "no_whole_batch"])
def test_what_all_ranks_fail_with_is_told_once(inputs, tmp_path, rows, flags):
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, data=data_folder(tmp_path, rows), **flags), world=3)
    assert [line[:15] for line in text.splitlines() if "error: " in line] == ["[rank 0] error:", "error: rank 0: "], text
    assert "memory of loading" not in text
    assert_nothing_written(tmp_path / "out")


def test_data_folder_missing(inputs, tmp_path):
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path, data=tmp_path / "nowhere"))
    assert "nowhere" in text
    assert_nothing_written(tmp_path / "out")


EVALUATIONS = {
    "another_split": ("validation.jsonl", {}, "--dataset_test_split validation"),
    "of_several": ("extra.jsonl dev.jsonl", {}, "--dataset_test_split dev"),
    "none": ("", {}, '--splits "train[:90%],train[90%:]"'),
    "part_of_rows": ("validation.jsonl", dict(splits="train[:50%],other"), '--splits "train[:50%],validation"'),
    "only_what_is_trained_on": ("", dict(splits="train[:50%],other"), '--splits "train[:90%],train[90%:]"'),
}


# What the message says to do works.
@pytest.mark.parametrize("name", EVALUATIONS)
def test_a_missing_evaluation_split(inputs, tmp_path, name):
    files, settings, advice = EVALUATIONS[name]
    data = data_folder(tmp_path, GOOD * 20)
    for file in files.split():
        (data / file).write_text(GOOD * 3)
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, data=data, eval_strategy="epoch", max_steps=2,
                     **settings)
    text = fail(flags)
    assert re.search(r"error: --eval_strategy: found no evaluation split among .*expected one to evaluate on; ",
                     text), text
    assert f": {advice}, or set eval_strategy no\n" in text, text
    assert_nothing_written(tmp_path / "out")
    (setting, value), = re.findall(r'--(\w+) "?([^" ]+)"?', advice)
    found = run_strata({**flags, "splits": None, setting: value})
    assert any("eval_loss" in row for row in found.metrics)


def test_an_evaluation_without_a_batch_is_found_before_the_first_step(inputs, tmp_path):
    data = data_folder(tmp_path, GOOD * 20)
    (data / "test.jsonl").write_text(GOOD * 3)
    flags = flags_of(inputs, inputs.model("plain"), tmp_path, data=data, eval_strategy="epoch", max_steps=2,
                     dataloader_drop_last=True, per_device_eval_batch_size=4)
    assert ("--dataloader_drop_last: found 3 rows to evaluate on, expected at least 8 (2 ranks x "
            "per_device_eval_batch_size 4)") in fail(flags)
    assert_nothing_written(tmp_path / "out")
    found = run_strata({**flags, "per_device_eval_batch_size": 1})
    assert any("eval_loss" in row for row in found.metrics)


def test_a_model_is_no_checkpoint(inputs, tmp_path):
    model = inputs.model("plain")
    flags = flags_of(inputs, model, tmp_path, resume_from_checkpoint=model)
    assert (f"{model}: found a model without the state of a run, expected a checkpoint-N folder; to train on from its "
            "weights name it in model_name_or_path") in fail(flags)


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


HIDDEN_SIZE = 'found hidden_size = "x", expected an integer'
BROKEN_FILES = {  # by who reads them
    "config.json": (["sft", "plan", "chat"], lambda old: json.dumps({**json.loads(old), "hidden_size": "x"}),
                    "error: MODEL/config.json: " + HIDDEN_SIZE),
    "chat_template.jinja": (["sft", "chat", "preview"], lambda old: "{{ messages }",
                            "error: chat template of MODEL: line 1: unexpected '}'"),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_file_of_the_model_is_named_with_its_folder(inputs, model, tmp_path, name):
    commands, broken, message = BROKEN_FILES[name]
    (model / name).write_text(broken((model / name).read_text()))
    data = ["--dataset_name", inputs.data("messages")]
    words = {"sft": [*data, "--output_dir", tmp_path / "out"], "preview": data}
    for command in commands:
        said = strata(command, "--model_name_or_path", model, *words.get(command, []), code=1, input="")
        assert message.replace("MODEL", str(model)) in said, said


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


def test_a_system_that_starts_no_thread_is_told(inputs, tmp_path):
    """A limit of processes (ulimit -u, pids of a container) counts threads, too."""
    text = fail(flags_of(inputs, inputs.model("plain"), tmp_path), world=1, NO_THREADS=1)
    assert re.search(r"error: this process: found that the system starts no more threads, .*ulimit -u", text), text


def test_an_address_space_that_is_too_small_is_told(tmp_path):
    """ulimit -v, as batch systems set it; the advice was to copy the file to another disk."""
    file = tmp_path / "model.safetensors"
    with file.open("wb") as sparse:
        sparse.truncate(8 << 30)
    said = strata("inspect", file, code=1, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)))
    assert f"{file}: found no room for {8 << 30} bytes in the address space, expected it to be mapped; raise" in said
