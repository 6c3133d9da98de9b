# Oracle: transformers' CamemBERT, ELECTRA, ALBERT, MPNet, DeBERTa and DeBERTa-v2 for whole texts and PEFT over them, finite differences for dropout.
import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForSequenceClassification

from encoder_reference import compare_encoder, first_rows, make_task, make_texts, run_encoder, save_encoder
from probe import relative_error, run_probe, run_probe_raw
from test_bert import LENGTHS, SAVED, edit_config, weights_of, write
from test_lora import CONFIGS as CONFIGS_OF_PEFT
from test_lora import probe_name, randomise

FAMILIES = ["camembert", "electra", "albert", "mpnet", "deberta", "deberta-v2"]
ODD = dict(vocab_size=101, hidden_size=30, num_attention_heads=3, intermediate_size=44, num_hidden_layers=3)
DEBERTA = dict(family="deberta-v2")
CONFIGS = {
    **{family: dict(family=family) for family in FAMILIES},
    "odd_camembert": dict(family="camembert", pad_token_id=5, **ODD),
    "odd_electra": dict(family="electra", embedding_size=14, hidden_act="gelu_new", type_vocab_size=3, **ODD),
    "electra_of_one_width": dict(family="electra", embedding_size=32, num_labels=2),
    "odd_albert": dict(family="albert", embedding_size=30, **ODD),
    # Six layers, of which the first three and the last three are the same two each.
    "albert_groups": dict(family="albert", num_hidden_layers=3, num_hidden_groups=2, inner_group_num=2, hidden_act="relu"),
    "odd_mpnet": dict(family="mpnet", pad_token_id=7, layer_norm_eps=1e-5, **ODD),
    "odd_deberta": dict(DEBERTA, position_buckets=7, max_relative_positions=9, pooler_hidden_act="relu", layer_norm_eps=1e-5, **ODD),
    "odd_first_deberta": dict(family="deberta", max_relative_positions=9, pooler_hidden_act="relu", layer_norm_eps=1e-5, **ODD),
    "first_deberta_keys": dict(family="deberta", pos_att_type=["c2p"], type_vocab_size=2, num_attention_heads=1),
    "first_deberta_queries": dict(family="deberta", pos_att_type=["p2c"], position_biased_input=True),
    "first_deberta_without_vectors": dict(family="deberta", relative_attention=False, position_biased_input=True, pad_token_id=5),
    "deberta_own_layers": dict(DEBERTA, share_att_key=False, norm_rel_ebd="none", num_attention_heads=1),
    "deberta_keys": dict(DEBERTA, pos_att_type=["c2p"], type_vocab_size=2),
    "deberta_queries": dict(DEBERTA, pos_att_type=["p2c"], share_att_key=False),
    # A vector for each distance, and the farthest ones'.
    "deberta_without_buckets": dict(DEBERTA, position_buckets=-1, max_relative_positions=11, position_biased_input=True),
    "deberta_without_vectors": dict(DEBERTA, relative_attention=False, norm_rel_ebd="none", position_biased_input=True),
}
WITH_TYPES = ("electra", "albert", "deberta", "deberta-v2")


def texts_of(settings, lengths=LENGTHS, seed=1):
    return make_texts(lengths, types=settings["family"] in WITH_TYPES, seed=seed)


def equals_transformers(folder, settings, lengths=LENGTHS, limit=1e-5):
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    texts = texts_of(settings, lengths)
    task = make_task("classes", len(texts), model.num_labels)
    loss, logits = run_encoder(model, texts, task)
    tensors, report = run_probe(folder, documents=texts, task=task)
    compare_encoder(tensors, model, texts, loss, logits, limit)
    assert report["parameters"] == [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers(tmp_path, name):
    save_encoder(tmp_path, **CONFIGS[name])
    equals_transformers(tmp_path, CONFIGS[name])


@pytest.mark.parametrize("lengths", [(1,), (64, 2), (1, 1, 2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_shortest_and_the_longest_texts(tmp_path, family, lengths):
    save_encoder(tmp_path, family=family)
    equals_transformers(tmp_path, dict(family=family), lengths)


@pytest.mark.parametrize("settings", [dict(DEBERTA, position_buckets=32, max_position_embeddings=512),
                                      dict(DEBERTA, position_buckets=16, max_relative_positions=100),
                                      dict(family="deberta", max_relative_positions=100),
                                      dict(family="mpnet", max_position_embeddings=514)], ids=str)
def test_distances_beyond_the_last_bucket(tmp_path, settings):
    """Of DeBERTa also of texts that are longer than any that the file speaks of."""
    save_encoder(tmp_path, **settings)
    equals_transformers(tmp_path, settings, (7, 512, 130) if settings["family"] == "mpnet" else (3, 600, 511))


@pytest.mark.parametrize("name", [*FAMILIES, "deberta_own_layers", "albert_groups"])
def test_checkpointing_is_bit_equal(tmp_path, name):
    save_encoder(tmp_path, **CONFIGS[name])
    request = dict(documents=texts_of(CONFIGS[name]), task=make_task("classes", len(LENGTHS), 3))
    plain, _ = run_probe(tmp_path, checkpoint=False, **request)
    plain = {name: tensor.clone() for name, tensor in plain.items()}
    again, _ = run_probe(tmp_path, checkpoint=True, **request)
    assert all(torch.equal(plain[name], again[name]) for name in plain)


# In 16 bits the first DeBERTa of transformers adds biases of 32, and fails.
@pytest.mark.parametrize("family", ["mpnet", "deberta-v2"])
def test_bfloat16_is_as_close_to_float32_as_transformers(tmp_path, family):
    save_encoder(tmp_path, scale=0.04, family=family)
    rounded = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    exact = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16).float()
    texts = texts_of(dict(family=family))
    task = make_task("classes", len(texts), 3)
    run_encoder(rounded, texts, task)
    run_encoder(exact, texts, task)
    tensors, _ = run_probe(tmp_path, documents=texts, task=task, dtype="bfloat16")
    ours, theirs = 0.0, 0.0
    for (name, a), (_, b) in zip(rounded.named_parameters(), exact.named_parameters()):
        if name.endswith((".k.bias", "key_proj.bias")):
            continue
        ours += relative_error(tensors["grad:" + name], b.grad)
        theirs += relative_error(a.grad, b.grad)
    assert ours < 1.1 * theirs


# What files hold beside the model of whole texts.
OTHERS = {"camembert": ["lm_head.bias", "roberta.pooler.dense.weight"], "mpnet": ["lm_head.bias", "mpnet.pooler.dense.weight"],
          "electra": ["discriminator_predictions.dense.weight", "generator_lm_head.weight"],
          "albert": ["predictions.dense.weight", "sop_classifier.classifier.weight"],
          "deberta": ["lm_predictions.lm_head.bias", "cls.predictions.bias", "deberta.embeddings.position_embeddings.weight"],
          "deberta-v2": ["lm_predictions.lm_head.bias", "mask_predictions.dense.weight", "cls.predictions.bias",
                         "deberta.embeddings.position_embeddings.weight", "deberta.embeddings.position_embeddings._weight",
                         "deberta.embeddings.word_embeddings._weight"]}


@pytest.mark.parametrize("family", FAMILIES)
def test_names_that_files_have(tmp_path, family):
    save_encoder(tmp_path, family=family)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    weights, body = weights_of(tmp_path), model.base_model_prefix
    others = {name: torch.ones(97, 32) for name in [*OTHERS[family], f"{body}.embeddings.position_ids"]}
    write(tmp_path, weights | others)
    equals_transformers(tmp_path, dict(family=family))
    write(tmp_path, {name.removeprefix(body + "."): value for name, value in (weights | others).items()})
    equals_transformers(tmp_path, dict(family=family))


def test_a_projection_that_nobody_needs(tmp_path):
    """As the files of electra-base and -large have one, whose tables are as wide as the model."""
    settings = dict(family="electra", embedding_size=32)
    save_encoder(tmp_path, **settings)
    ones = {"electra.embeddings_project.weight": torch.ones(32, 32), "electra.embeddings_project.bias": torch.ones(32)}
    weights = weights_of(tmp_path)
    assert not weights.keys() & ones.keys()
    write(tmp_path, weights | ones)
    equals_transformers(tmp_path, settings)


def loss_of(folder, family, checkpoint=False):
    texts = make_texts((23, 9), types=family in WITH_TYPES)
    tensors, _ = run_probe(folder, documents=texts, task=make_task("classes", 2, 3), training=True, checkpoint=checkpoint)
    return tensors["loss"].double().item(), {name: value.clone() for name, value in tensors.items()}


OF_BERT = ["hidden_dropout_prob", "attention_probs_dropout_prob"]
RATES = {"electra": [*OF_BERT, "classifier_dropout"], "mpnet": OF_BERT,
         "albert": [*OF_BERT, "classifier_dropout_prob"], "deberta-v2": [*OF_BERT, "cls_dropout", "pooler_dropout"],
         "deberta": OF_BERT}


@pytest.mark.parametrize("family,rate", [(family, rate) for family, rates in RATES.items() for rate in rates])
def test_each_dropout_is_a_mask_that_backward_repeats(tmp_path, family, rate):
    """With masks that depend on the tokens alone the loss along the gradients has their slope."""
    save_encoder(tmp_path, family=family, **{rate: 0.25})
    weights = weights_of(tmp_path)
    dropped, found = loss_of(tmp_path, family)
    again = loss_of(tmp_path, family, checkpoint=True)[1]
    assert found.keys() == again.keys() and all(torch.equal(found[key], again[key]) for key in found)
    lengths = {key: found["grad:" + key].double().norm().item() for key in weights}
    lengths = {key: length for key, length in lengths.items() if length > 1e-6}
    slope, step = sum(lengths.values()), 1e-3
    sides = []
    for sign in (1, -1):
        write(tmp_path, {key: value + (sign * step * found["grad:" + key] / lengths[key] if key in lengths else 0)
                         for key, value in weights.items()})
        sides.append(loss_of(tmp_path, family)[0])
    assert slope == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=5e-3)
    write(tmp_path, weights)
    edit_config(tmp_path, **{rate: 0.0})
    assert abs(loss_of(tmp_path, family)[0] - dropped) > 1e-3


PEFT = {
    "lora_electra": ("electra", {}),
    "all_linear_electra": ("electra", dict(target_modules="all-linear", r=3, lora_alpha=5)),
    "lora_camembert": ("camembert", dict(target_modules=["query", "output.dense"])),
    "lora_albert": ("albert", dict(target_modules=["query", "ffn"])),
    "all_linear_albert": ("albert", dict(target_modules="all-linear", r=3)),
    "lora_mpnet": ("mpnet", dict(target_modules=["q", "v"])),
    "lora_first_deberta": ("deberta", {}),
    "all_linear_first_deberta": ("deberta", dict(target_modules="all-linear", r=3, lora_alpha=5)),
    "dora_first_deberta": ("deberta", dict(target_modules=["in_proj", "pos_q_proj"], r=4, use_dora=True)),
    "biases_of_first_deberta": ("deberta", dict(target_modules=["in_proj"], r=2, bias="all")),
    "ia3_first_deberta": ("deberta", dict(peft_type="IA3")),
    "lora_deberta": ("deberta-v2", {}),
    "all_linear_deberta": ("deberta-v2", dict(target_modules="all-linear", r=3, lora_alpha=5)),
    "dora_deberta": ("deberta-v2", dict(target_modules=["query_proj", "key_proj"], r=4, use_dora=True)),
    "ia3_deberta": ("deberta-v2", dict(peft_type="IA3")),
    "vera_deberta": ("deberta-v2", dict(peft_type="VERA", r=5)),
    "tables_of_deberta": ("deberta-v2", dict(modules_to_save=[*SAVED, "pooler", "rel_embeddings", "deberta.encoder.LayerNorm"])),
    "tables_of_mpnet": ("mpnet", dict(target_modules=["o"], modules_to_save=[*SAVED, "relative_attention_bias"])),
}


@pytest.mark.parametrize("name", PEFT)
def test_equals_peft(tmp_path, name, capsys):
    """Default targets are PEFT's."""
    family, lora = PEFT[name]
    lora = {"modules_to_save": SAVED, **lora}
    save_encoder(tmp_path, family=family, scale=0.08)
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    settings = dict(lora, task_type="SEQ_CLS")
    torch.manual_seed(42)
    model = get_peft_model(base, CONFIGS_OF_PEFT[settings.pop("peft_type", "LORA")](**settings))
    randomise(model, 0.08)
    model.save_pretrained(tmp_path / "adapter")
    texts, task = texts_of(dict(family=family)), make_task("classes", len(LENGTHS), 3)
    loss, logits = run_encoder(model, texts, task)
    tensors, report = run_probe(tmp_path, documents=texts, task=task, lora=lora, adapter=str(tmp_path / "adapter"), seed=42)
    errors = {"loss": relative_error(tensors["loss"], loss),
              "logits": relative_error(tensors["logits"][first_rows(texts)], logits)}
    trained = {probe_name(n): p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert {k for k in tensors if k.startswith("grad:")} == {"grad:" + n for n in trained}
    errors |= {n: relative_error(tensors["grad:" + n], gradient) for n, gradient in trained.items()}
    worst = max(errors, key=errors.get)
    assert errors[worst] < 1e-5, f"{worst}: {errors[worst]}"
    capsys.readouterr()
    model.print_trainable_parameters()
    assert report["trainable"] == capsys.readouterr().out.strip()
    assert set(report["target_modules"]) == set(model.peft_config["default"].target_modules)


@pytest.mark.parametrize("family,change,message", [
    ("mpnet", dict(relative_attention_num_buckets=16), "found relative_attention_num_buckets = 16, expected 32"),
    ("electra", dict(position_embedding_type="relative_key"), 'found position_embedding_type "relative_key", expected absolute'),
    ("albert", dict(num_hidden_groups=3), "found num_hidden_groups = 3, expected at most num_hidden_layers = 2"),
    ("electra", dict(embedding_size=0), "found embedding_size = 0, expected an integer of at least 1"),
    ("deberta", dict(talking_head=True), "found talking_head true, products of heads among their scores"),
    ("deberta", dict(embedding_size=16), "found embedding_size = 16, expected 32"),
    ("deberta", dict(pos_att_type=None), "found relative_attention without pos_att_type"),
    ("deberta-v2", dict(conv_kernel_size=3), "found conv_kernel_size = 3, a convolution parallel to the first layer"),
    ("deberta-v2", dict(embedding_size=16), "found embedding_size = 16, expected 32"),
    ("deberta-v2", dict(attention_head_size=16), "found attention_head_size = 16, expected 8"),
    ("deberta-v2", dict(pooler_hidden_size=16), "found pooler_hidden_size = 16, expected 32"),
    ("deberta-v2", dict(pos_att_type="c2p|p2p"), 'found "p2p" in pos_att_type, expected c2p and p2c'),
    ("deberta-v2", dict(pos_att_type=None), "found relative_attention without pos_att_type"),
    ("deberta-v2", dict(relative_attention=False), "found norm_rel_ebd layer_norm without relative_attention"),
    ("deberta-v2", dict(norm_rel_ebd="batch_norm"), 'found norm_rel_ebd "batch_norm", expected layer_norm or none'),
    ("deberta-v2", dict(position_buckets=1), "found position_buckets = 1, expected at least 2"),
    ("deberta-v2", dict(position_buckets=200), "less than twice max_relative_positions - 1 = 63"),
    ("deberta-v2", dict(hidden_act="tanh"), 'found hidden_act "tanh", expected gelu_new'),
])
def test_what_is_refused(tmp_path, family, change, message):
    save_encoder(tmp_path, family=family)
    edit_config(tmp_path, **change)
    process, _ = run_probe_raw(tmp_path, documents=make_texts((4,), types=False), task=make_task("classes", 1, 3))
    assert process.returncode in (1, 2)
    assert message in process.stderr
