"""Oracle: jsonschema's validator, and what Strata itself says of the same files."""

import functools
import json
import re

import pytest
import yaml
from jsonschema import Draft7Validator

from bare_environment import ROOT, run

GOLDEN = yaml.safe_load((ROOT / "tests/unit/config/golden_cases.yaml").read_text())
# Errors that one key alone shows, by their words.
OF_ONE_KEY = r"found the unknown key|expected (one of|an integer|a number|true or false)"


@functools.cache
def schema():
    written = run("config", "schema")
    assert written.returncode == 0 and written.stderr == ""
    return json.loads(written.stdout)


def faults(text, load=yaml.safe_load):
    return [error.message for error in Draft7Validator(schema()).iter_errors(load(text))]


def own_files():
    """Of the golden cases: the case's name, the text of its file of settings, and its error."""
    for case in GOLDEN:
        flags = case.get("flags", "")
        flags = " ".join(map(str, flags)) if isinstance(flags, list) else str(flags)
        for name in re.findall(r"--config \$DIR/(\S+)", flags):
            if name in case.get("files", {}):
                yield case["name"], case["files"][name], case.get("error", "")


def test_it_is_a_schema():
    Draft7Validator.check_schema(schema())


def test_every_name_stands_in_it():
    page = (ROOT / "docs/guide/settings.md").read_text()
    known, rest = page.split("## Known, without effect")
    for cell in re.findall(r"^\| (`.*?) \|", known, re.M):
        for name in re.findall(r"`([^`]+)`", cell):
            assert name in schema()["properties"] or name == "config", name
    patterns = "".join(schema()["patternProperties"])
    for cell in re.findall(r"^\| (`.*?) \|", rest, re.M):
        assert all(name in patterns for name in re.findall(r"`([^`]+)`", cell)), cell


def test_defaults_are_those_of_the_program():
    shown = run("config", "show")
    values = yaml.safe_load(shown.stdout)
    assert len(values) > 200 and faults(shown.stdout) == []
    for name, value in values.items():
        default = schema()["properties"][name]["default"]
        assert default == value or yaml.safe_load(str(default)) == value, name  # "no" and 1e-8 as YAML 1.1 reads them


def test_what_the_program_takes_is_taken():
    accepted = [(name, text) for name, text, error in own_files() if not error]
    assert len(accepted) > 20
    for name, text in accepted:
        assert faults(text) == [], name


def test_what_one_key_shows_is_refused():
    # The keys of a mapping that is a value are the program's alone to know.
    refused = [(name, text) for name, text, error in own_files()
               if re.search(OF_ONE_KEY, error) and not re.search(r"^\w+:(\n +| \{)\w+:", text, re.M)]
    assert len(refused) > 5
    for name, text in refused:
        if text == "save_strategy: false\n":  # which a reader of YAML 1.1 takes for the same as "no"
            continue
        assert faults(text) != [], name


WRONG = ["learning_rat: 1", "learning_rate: fast", "learning_rate: [1, 2]", "max_steps: 2.5", "packing: maybe", "packing: 3",
         "optim: adamm", "lora_r: 0", "lora_r: 3x", "num_train_epochs: none at all", "sharding_strategy: FULL"]
RIGHT = ["learning_rate: 1e-4", "learning_rate: '1e-4'", "learning_rate: .5", "learning-rate: 1.0e-4", "packing: Yes", "packing: on",
         "packing: 1", "optim: ADAMW_TORCH", "max_steps: '5'", "lora_target_modules: all-linear", "lora_target_modules: [a, b]",
         "lora_target_modules: []", "eval_strategy: no", "eval_strategy: NO", "seed: null", "output_dir: 2026", "fsdp: [full_shard]",
         "fsdp: full_shard auto_wrap", "lr_scheduler_kwargs: {num_cycles: 2}", "fsdp_config: {fsdp_version: 2}"]


@pytest.mark.parametrize("text", WRONG + RIGHT)
def test_program_and_schema_agree(tmp_path, text):
    file = tmp_path / "run.yaml"
    file.write_text(text + "\n")
    judged = run("config", "show", "--config", file)
    # Rules between settings are the program's alone.
    of_one_key = judged.returncode == 2 and re.search(OF_ONE_KEY, judged.stderr)
    assert bool(faults(text)) == bool(of_one_key), (judged.stderr, faults(text))
    assert bool(faults(text)) == (text in WRONG)
