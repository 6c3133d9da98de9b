# Oracle: trainer_state.json of the same run, under the names that Trainer's TensorBoardCallback gives; the
# records are decoded by Google's protobuf after TensorFlow's event.proto and summary.proto.
import struct

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from running import base_flags, run_strata

DOUBLE, FLOAT, INT64, STRING, MESSAGE = 1, 2, 3, 9, 11


def event_class():
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", syntax="proto3")
    for name, fields in {
        "Value": [("tag", 1, STRING, ""), ("simple_value", 2, FLOAT, "")],
        "Summary": [("value", 1, MESSAGE, ".Value")],
        "Event": [("wall_time", 1, DOUBLE, ""), ("step", 2, INT64, ""), ("file_version", 3, STRING, ""),
                  ("summary", 5, MESSAGE, ".Summary")],
    }.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            message.field.add(name=field, number=number, type=kind, type_name=of or None,
                              label=3 if field == "value" else 1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Event"))


def events_of(path):
    data, at, event = path.read_bytes(), 0, event_class()
    while at < len(data):
        size, = struct.unpack_from("<Q", data, at)
        yield event.FromString(data[at + 12:at + 12 + size])
        at += 16 + size


def test_event_files_hold_what_was_logged(inputs, tmp_path):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=4,
                       eval_strategy="steps", eval_steps=2, report_to="tensorboard", use_peft=True, lora_r=2)
    run = run_strata(flags)
    files = list((tmp_path / "out" / "runs").glob("*/events.out.tfevents.*"))
    assert len(files) == 1
    first, *events = events_of(files[0])
    assert first.file_version == "brain.Event:2"
    found = {(event.step, value.tag): value.simple_value for event in events for value in event.summary.value}
    for row in run.state["log_history"]:
        for name, number in row.items():
            tag = f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}"
            if name not in ("step", "epoch"):
                assert found[row["step"], tag] == struct.unpack("f", struct.pack("f", number))[0], tag
    assert found[4, "train/epoch"] > 0 and found[4, "train/tokens_per_second"] > 0
    again = run_strata({**flags, "logging_dir": tmp_path / "events", "report_to": "all"})
    assert len(list((tmp_path / "events").iterdir())) == 1 and "has no effect" not in again.text
