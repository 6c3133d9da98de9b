# Oracle: PEFT over bitsandbytes' layers of a Phi-3 on the CPU, and what transformers and PEFT refuse.
import json

import pytest

from llama_reference import make_documents, run_reference, save_checkpoint
from probe import relative_error, run_probe, run_probe_raw
from quantised_reference import BASES, ROWS_OF_A_BLOCK, attach_quantised
from test_lora import PHI3, probe_name, randomise

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("lora", [dict(target_modules="all-linear", r=4),
                                  dict(target_modules=["qkv_proj"], r=3, use_dora=True)], ids=["lora", "dora"])
@pytest.mark.parametrize("name", ["nf4_double", "int8"])
def test_gradients_over_a_quantised_base(tmp_path, name, lora):
    settings, request = BASES[name]
    save_checkpoint(tmp_path, scale=0.08, num_attention_heads=8, **{**PHI3, **ROWS_OF_A_BLOCK})
    model = attach_quantised(tmp_path, settings, **lora)
    model.train()
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((33, 1, 19))
    loss, logits = run_reference(model, documents)
    found, _ = run_probe(tmp_path, documents=documents, lora=lora, quantization=request,
                         adapter=str(tmp_path / "adapter"), training=True)
    errors = {"loss": relative_error(found["loss"], loss), "logits": relative_error(found["logits"], logits)}
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            errors[key] = relative_error(found["grad:" + probe_name(key)], parameter.grad)
    assert len(errors) > 5
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"


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
