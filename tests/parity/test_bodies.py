"""Oracle: transformers, which reads the files of a body alone (saved from *Model) with the whole model's prefix before its names."""

import pytest
import safetensors.torch
from transformers import AutoModel, AutoModelForCausalLM

from llama_reference import gradients_of, make_documents, run_reference, save_checkpoint
from probe import run_probe, run_probe_raw
from running import base_flags, run_strata
from test_gpt2 import edit_config
from test_llama import compare

LENGTHS = (23, 1, 9, 40)
# Of each other names of modules beside the layers, or other ones in files than in the class.
TIED = {"llama": {}, "qwen3": {}, "phi3": {}, "gemma2": {}, "falcon": {}, "bamba": {}, "lfm2_moe": {}, "mixtral": {}, "granitemoe": {}, "starcoder2": {}, "gpt_neo": {}, "mpt": {},
        "gemma4_text": dict(hidden_size_per_layer_input=6, vocab_size_per_layer_input=103)}


def save_body(whole, folder, **how):
    AutoModelForCausalLM.from_pretrained(whole).base_model.save_pretrained(folder, **how)


@pytest.mark.parametrize("family", TIED)
def test_a_body_alone(tmp_path, family):
    save_checkpoint(tmp_path / "whole", family=family, tie_word_embeddings=True, **TIED[family])
    save_body(tmp_path / "whole", tmp_path / "body")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "body")
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    tensors, report = run_probe(tmp_path / "body", documents=documents)
    compare(tensors, model, loss, logits, 1e-5)
    assert report["parameters"] == [name for name, _ in gradients_of(model)]


def test_a_body_in_parts_and_layers_that_nothing_reads(tmp_path):
    """The same of names in an index; transformers leaves out what predicts further tokens (model.layers.2 of two)."""
    save_checkpoint(tmp_path / "whole", family="glm4_moe", tie_word_embeddings=True)
    edit_config(tmp_path / "whole", num_nextn_predict_layers=1)
    save_body(tmp_path / "whole", tmp_path / "body")
    file = tmp_path / "body" / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    first = {name: value for name, value in weights.items() if name.startswith("layers.0.")}
    further = {name.replace("layers.0.", "layers.2."): value.clone() for name, value in first.items()}
    safetensors.torch.save_file({**weights, **further}, file, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "body")
    documents = make_documents(LENGTHS)
    loss, logits = run_reference(model, documents)
    compare(run_probe(tmp_path / "body", documents=documents)[0], model, loss, logits, 1e-5)
    save_body(tmp_path / "whole", tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    compare(run_probe(tmp_path / "parts", documents=documents)[0], model, loss, logits, 1e-5)


def test_an_untied_body_lacks_its_output_layer(tmp_path):
    save_checkpoint(tmp_path / "whole", family="qwen3", tie_word_embeddings=False)
    save_body(tmp_path / "whole", tmp_path / "body")
    run, _ = run_probe_raw(tmp_path / "body", documents=make_documents((4,)))
    assert run.returncode != 0 and 'found no tensor "lm_head.weight"' in run.stderr, run.stderr


@pytest.mark.parametrize("recipe,data", [("classify", "labelled"), ("reward", "preference")])
def test_a_head_begins_on_a_body(inputs, tmp_path, recipe, data):
    """Oracle: the run from the same model with its output layer, untied as the body of an embedding model may be."""
    plain = inputs.model("plain")
    AutoModel.from_pretrained(plain).save_pretrained(tmp_path / "body")
    names = safetensors.torch.load_file(tmp_path / "body" / "model.safetensors").keys()
    assert "layers.0.mlp.down_proj.weight" in names and not any(name.startswith(("model.", "lm_head.")) for name in names)
    for file in plain.glob("*token*"):
        (tmp_path / "body" / file.name).write_bytes(file.read_bytes())
    flags = dict(max_steps=2, learning_rate=5e-3)
    expected = run_strata(base_flags(plain, inputs.data(data), tmp_path / "expected", **flags), recipe=recipe)
    run = run_strata(base_flags(tmp_path / "body", inputs.data(data), tmp_path / "out", **flags), recipe=recipe)
    assert run.losses == expected.losses and len(run.losses) == 2
