# Oracle: what transformers and PEFT refuse of a Phi-3.
import json

import pytest

from llama_reference import make_documents, save_checkpoint
from probe import run_probe_raw
from test_lora import PHI3

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("change,message", [
    (dict(resid_pdrop=0.1), "found resid_pdrop = 0.1, expected 0"),
    (dict(attention_dropout=0.1), "found attention_dropout = 0.1, expected 0"),
    (dict(rope_parameters=dict(rope_type="linear", factor=2.0)),
     "found rope_type \"linear\", expected default or longrope in a Phi-3 model"),
    (dict(partial_rotary_factor=0.65, rope_parameters=None),
     "found partial_rotary_factor = 0.65 of head_dim = 8, expected"),
    (dict(partial_rotary_factor=1.5, rope_parameters=None), "found partial_rotary_factor = 1.5"),
    (dict(rope_parameters=dict(PHI3["rope_parameters"], long_factor=[1.0] * 4)),
     "found long_factor with 4 numbers, expected 3"),
    (dict(pad_token_id=97), "found pad_token_id = 97, expected a token of the vocabulary of 97"),
])
def test_what_is_refused(tmp_path, change, message):
    save_checkpoint(tmp_path, **PHI3)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)))
    assert process.returncode in (1, 2)
    assert message in process.stderr


def test_targets_must_be_said(tmp_path):
    """PEFT knows none for this family: "Please specify `target_modules`"."""
    save_checkpoint(tmp_path, **PHI3)
    process, _ = run_probe_raw(tmp_path, documents=make_documents((4,)), lora=dict(r=2))
    assert process.returncode in (1, 2)
    assert "the model's family has no default" in process.stderr
