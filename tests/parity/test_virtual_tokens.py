"""Oracle: PEFT's prompt and prefix tuning: first values, outputs, gradients over padded rows."""

import copy

import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM

import tiny_llama
from llama_reference import make_documents, save_checkpoint
from probe import relative_error, run_probe
from test_lora import GEMMA2, GEMMA3, GLM, GLM4, OLMO3, PHI3, PRECISIONS, config_of

TEXT = "the cat sat on a mat"
PROMPT, PREFIX = "PROMPT_TUNING", "PREFIX_TUNING"
CASES = {
    "prompt": ({}, dict(peft_type=PROMPT, num_virtual_tokens=5)),
    "prompt_sampled": (dict(tie_word_embeddings=True),
                       dict(peft_type=PROMPT, num_virtual_tokens=3,
                            prompt_tuning_init="SAMPLE_VOCAB")),
    "prompt_of_a_short_text": ({}, dict(peft_type=PROMPT, num_virtual_tokens=40,
                                        prompt_tuning_init="TEXT", prompt_tuning_init_text=TEXT)),
    "prompt_of_a_long_text": ({}, dict(peft_type=PROMPT, num_virtual_tokens=2,
                                       prompt_tuning_init="TEXT", prompt_tuning_init_text=TEXT)),
    # The first values are tokens as the model embeds them, times its factor.
    "prompt_sampled_gemma": (dict(family="gemma", head_dim=12),
                             dict(peft_type=PROMPT, num_virtual_tokens=3,
                                  prompt_tuning_init="SAMPLE_VOCAB")),
    "prefix": ({}, dict(peft_type=PREFIX, num_virtual_tokens=4)),
    "prefix_of_shared_heads": (dict(num_key_value_heads=2, head_dim=10),
                               dict(peft_type=PREFIX, num_virtual_tokens=3)),
    "prompt_before_a_window": (dict(family="mistral", sliding_window=7),
                               dict(peft_type=PROMPT, num_virtual_tokens=5)),
    "prefix_before_a_window": (dict(family="mistral", sliding_window=7),
                               dict(peft_type=PREFIX, num_virtual_tokens=4)),
    "prompt_of_phi3": (dict(PHI3, sliding_window=9), dict(peft_type=PROMPT, num_virtual_tokens=5)),
    "prompt_of_deepseek": (dict(family="deepseek_v3", n_routed_experts=2, moe_intermediate_size=16), dict(peft_type=PROMPT, num_virtual_tokens=4)),
    "prefix_of_phi3": (PHI3, dict(peft_type=PREFIX, num_virtual_tokens=4)),
    "prefix_of_smollm3": (dict(family="smollm3", num_key_value_heads=2, no_rope_layer_interval=2),
                          dict(peft_type=PREFIX, num_virtual_tokens=4)),
    "prompt_of_granite": (dict(family="granite", embedding_multiplier=2.5, residual_multiplier=0.6),
                          dict(peft_type=PROMPT, num_virtual_tokens=5)),
    "prefix_of_gemma3": (GEMMA3, dict(peft_type=PREFIX, num_virtual_tokens=2)),
    "prefix_beyond_a_window_of_gemma3": (dict(GEMMA3, sliding_window=3), dict(peft_type=PREFIX, num_virtual_tokens=5)),
    "prompt_of_gemma3": (GEMMA3, dict(peft_type=PROMPT, num_virtual_tokens=5)),
    "prefix_of_gemma2": (GEMMA2, dict(peft_type=PREFIX, num_virtual_tokens=5)),
    "prompt_of_gemma2": (dict(GEMMA2, num_key_value_heads=2), dict(peft_type=PROMPT, num_virtual_tokens=3)),
    "prefix_of_olmo3": (OLMO3, dict(peft_type=PREFIX, num_virtual_tokens=5)),
    "prompt_of_olmo3": (OLMO3, dict(peft_type=PROMPT, num_virtual_tokens=5)),
    "prefix_of_hunyuan": (dict(family="hunyuan_v1_dense", num_key_value_heads=2), dict(peft_type=PREFIX, num_virtual_tokens=4)),
    "prompt_of_apertus": (dict(family="apertus", num_key_value_heads=2), dict(peft_type=PROMPT, num_virtual_tokens=4)),
    # Virtual tokens take the first positions: queries grow earlier.
    "prefix_of_ministral3": (dict(family="ministral3", rope_parameters=dict(
        rope_type="default", rope_theta=500.0, original_max_position_embeddings=9, llama_4_scaling_beta=0.7)),
                             dict(peft_type=PREFIX, num_virtual_tokens=4)),
    # The prefix is a part of the first chunk.
    "prefix_of_llama4": (dict(family="llama4_text", num_key_value_heads=2), dict(peft_type=PREFIX, num_virtual_tokens=4)),
    "prompt_of_llama4": (dict(family="llama4_text", num_key_value_heads=2), dict(peft_type=PROMPT, num_virtual_tokens=4)),
    "prefix_of_glm": (GLM, dict(peft_type=PREFIX, num_virtual_tokens=5)),
    "prompt_of_glm4": (GLM4, dict(peft_type=PROMPT, num_virtual_tokens=4)),
    "prefix_of_zeros": (dict(attention_bias=True),
                        dict(peft_type=PREFIX, num_virtual_tokens=2, init_weights="zero")),
}


# Behind norms of heads two correct results in bfloat16 lie further apart than the limit (see test_lora's IN_FLOAT32).
IN_FLOAT32 = {"prefix_of_gemma3", "prefix_beyond_a_window_of_gemma3"}


def attach(folder, settings, dtype, seed):
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    torch.manual_seed(seed)
    if settings.get("prompt_tuning_init") == "TEXT":
        settings = dict(settings, tokenizer_name_or_path=str(folder))
    return get_peft_model(base, config_of(settings))


def request_of(folder, settings):
    """The probe's settings: it gets the text's tokens."""
    if settings.get("prompt_tuning_init") != "TEXT":
        return settings
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(folder)(TEXT)["input_ids"]
    return dict(settings, prompt_text_ids=ids)


def run_reference(model, documents, in_front):
    """As llama_reference's, where `in_front` rows of the logits come before every document."""
    length = max(len(d["ids"]) for d in documents)
    ids = torch.zeros(len(documents), length, dtype=torch.long)
    labels = torch.full((len(documents), in_front + length), -100)
    mask = torch.zeros_like(ids)
    for row, document in enumerate(documents):
        n = len(document["ids"])
        ids[row, :n] = torch.tensor(document["ids"])
        labels[row, in_front:in_front + n] = torch.tensor(document["labels"])
        mask[row, :n] = 1
    logits = model(input_ids=ids, attention_mask=mask).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1))
    model.zero_grad()
    loss.backward()
    whole = torch.cat([torch.ones(len(documents), in_front), mask], 1).bool()
    return loss.detach(), logits.detach()[whole]


def parameter_of(model):
    (parameter,) = [p for p in model.parameters() if p.requires_grad]
    return parameter


@pytest.mark.parametrize("dtype,scale,limit,name", [
    (*precision, name) for precision in PRECISIONS for name in CASES
    if precision[0] == "float32" or name not in IN_FLOAT32])
def test_equals_peft(tmp_path, name, dtype, scale, limit):
    settings, tuning = CASES[name]
    size = tiny_llama.save_tokenizer(tmp_path)
    save_checkpoint(tmp_path, scale=scale, vocab_size=size, **settings)
    model = attach(tmp_path, tuning, getattr(torch, dtype), seed=42)
    first = parameter_of(model).detach().clone()
    with torch.no_grad():
        parameter_of(model).add_(torch.randn_like(first) * scale)
    model.save_pretrained(tmp_path / "adapter")
    documents = make_documents((19, 1, 7), vocab_size=size)
    in_front = tuning["num_virtual_tokens"] if tuning["peft_type"] == PROMPT else 0
    loss, logits = run_reference(model, documents, in_front)
    tensors, report = run_probe(tmp_path, documents=documents, dtype=dtype, seed=42,
                                lora=request_of(tmp_path, tuning),
                                adapter=str(tmp_path / "adapter"))
    (initial,) = [t for n, t in tensors.items() if n.startswith("init:")]
    assert torch.equal(initial, first.float())
    (gradient,) = [t for n, t in tensors.items() if n.startswith("grad:")]
    errors = {"loss": relative_error(tensors["loss"], loss),
              "logits": relative_error(tensors["logits"], logits),
              "gradient": relative_error(gradient, parameter_of(model).grad)}
    worst = max(errors, key=errors.get)
    assert errors[worst] < limit, errors
    assert report["adapter_tensors"] == ["prompt_embeddings"]


@pytest.mark.parametrize("name", sorted(IN_FLOAT32))
def test_bfloat16_is_as_close_to_float32_as_peft(tmp_path, name):
    settings, tuning = CASES[name]
    scale = PRECISIONS[1][1]
    size = tiny_llama.save_tokenizer(tmp_path)
    save_checkpoint(tmp_path, scale=scale, vocab_size=size, **settings)
    rounded = attach(tmp_path, tuning, torch.bfloat16, seed=42)
    with torch.no_grad():
        parameter_of(rounded).add_(torch.randn_like(parameter_of(rounded)) * scale)
    rounded.save_pretrained(tmp_path / "adapter")
    exact = copy.deepcopy(rounded).float()
    ours, theirs = [], []
    # Several draws, as of one alone the errors depend on the processor's order of summing.
    for seed in (1, 2, 3):
        documents = make_documents((19, 1, 7), vocab_size=size, seed=seed)
        for model in (rounded, exact):
            run_reference(model, documents, in_front=0)
        tensors, _ = run_probe(tmp_path, documents=documents, dtype="bfloat16", seed=42, lora=tuning,
                               adapter=str(tmp_path / "adapter"))
        (gradient,) = [t for n, t in tensors.items() if n.startswith("grad:")]
        ours.append(relative_error(gradient, parameter_of(exact).grad))
        theirs.append(relative_error(parameter_of(rounded).grad, parameter_of(exact).grad))
    assert sum(ours) < 1.1 * sum(theirs), sum(ours) / sum(theirs)


PROJECTED = {
    "plain": ({}, dict(num_virtual_tokens=4)),
    "hidden_size": (dict(num_key_value_heads=2, head_dim=10),
                    dict(num_virtual_tokens=3, encoder_hidden_size=24)),
    "zeros": (dict(attention_bias=True), dict(num_virtual_tokens=2, init_weights="zero")),
}


@pytest.mark.parametrize("dtype,scale,limit", PRECISIONS)
@pytest.mark.parametrize("name", PROJECTED)
def test_projection_equals_peft(tmp_path, name, dtype, scale, limit):
    """The network of prefix_projection: first values, outputs and every gradient."""
    settings, tuning = PROJECTED[name]
    tuning = dict(tuning, peft_type=PREFIX, prefix_projection=True)
    size = tiny_llama.save_tokenizer(tmp_path)
    save_checkpoint(tmp_path, scale=scale, vocab_size=size, **settings)
    model = attach(tmp_path, tuning, getattr(torch, dtype), seed=42)
    documents = make_documents((19, 1, 7), vocab_size=size)
    loss, logits = run_reference(model, documents, in_front=0)
    for checkpoint in (False, True):
        found, report = run_probe(tmp_path, documents=documents, dtype=dtype, seed=42, lora=tuning,
                                  checkpoint=checkpoint)
        errors = {"loss": relative_error(found["loss"], loss),
                  "logits": relative_error(found["logits"], logits)}
        trained = {n.replace(".default.", "."): p for n, p in model.named_parameters()
                   if p.requires_grad}
        assert len(trained) == 5
        for n, parameter in trained.items():
            assert torch.equal(found["init:base_model.model." + n], parameter), n
            errors[n] = relative_error(found["grad:base_model.model." + n], parameter.grad)
        worst = max(errors, key=errors.get)
        assert errors[worst] < limit, errors
    assert report["adapter_tensors"] == []
    trainable, everything = model.get_nb_trainable_parameters()
    assert report["trainable"].startswith(f"trainable params: {trainable:,} || all params: {everything:,}")
