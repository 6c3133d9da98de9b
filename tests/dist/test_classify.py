# Oracle: the same run on one rank, unsharded and without recomputation; the uninterrupted run; the run with everything in memory;
# for what cannot be, the error that names it.
#
# A step of world size w with b rows per rank and a micro-steps holds the same w * b * a rows for every such triple.
import os
import shutil
import tempfile

import pytest

from running import BUILD, base_flags, run_strata, run_strata_raw
from tiny_encoder import save_encoder

ROWS_PER_STEP, STEPS = 12, 6
LORA = dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.2, learning_rate=2e-2)
# Dropout is on, of the model and of the adapter: a draw belongs to the row, not to the rank. Sizes that no world size divides.
KINDS = {
    "decoder": ("odd", {}),
    "decoder_lora": ("odd", dict(LORA, lora_target_modules=["q_proj", "o_proj", "up_proj"])),
    "decoder_nf4": ("odd", dict(LORA, load_in_4bit=True, lora_target_modules="all-linear")),
    "bert": ("bert", {}),
    "bert_new_pooler": ("bert_mlm", LORA),
    "bert_nf4": ("bert_mlm", dict(LORA, load_in_4bit=True, bnb_4bit_use_double_quant=True)),
    "bert_dora": ("bert", dict(LORA, use_dora=True, lora_target_modules="all-linear")),
    "roberta": ("roberta", dict(kind="labelled_lists")),
    "roberta_lora": ("roberta", dict(LORA, kind="labelled_lists")),
    "roberta_int8": ("roberta", dict(LORA, load_in_8bit=True, optim="lion_8bit", learning_rate=2e-3)),
    "xlm_roberta": ("xlm_roberta", dict(kind="labelled_numbers", learning_rate=1e-3)),
    "roberta_ia3": ("roberta", dict(use_peft=True, peft_type="IA3", learning_rate=5e-2)),
    "distilbert": ("distilbert", {}),
    "distilbert_lora": ("distilbert", dict(LORA, lora_target_modules="all-linear")),
    "deberta": ("deberta", {}),
    "deberta_lora": ("deberta", LORA),
    "albert": ("albert", {}),
    "albert_lora": ("albert", dict(LORA, lora_target_modules="all-linear")),
    "mpnet": ("mpnet", {}),
}
ODD = dict(hidden_size=33, num_attention_heads=3, intermediate_size=47)
SIZES = {"albert": dict(ODD, num_hidden_layers=5, num_hidden_groups=2), "distilbert": dict(dim=33, n_heads=3, hidden_dim=47), "wide": dict(hidden_size=64, num_attention_heads=4, intermediate_size=72)}
FIGURES = ("eval_accuracy", "eval_f1", "eval_mse")


@pytest.fixture(scope="module")
def model(inputs):
    def folder_of(name, settings):
        if name == "odd":
            return inputs.model("wide" if "load_in_4bit" in settings else "odd")
        is_wide = settings.keys() & {"load_in_4bit", "load_in_8bit"}
        folder = inputs.folder / f"dropped-{name}{'-wide' if is_wide else ''}"
        sizes = SIZES["wide"] if is_wide else SIZES.get(name, ODD)
        return folder if folder.exists() else save_encoder(folder, name, 0.2, **sizes)
    return folder_of


@pytest.fixture(scope="module")
def flags_of(inputs, model):
    def flags(kind, output, world, **more):
        name, settings = KINDS[kind]
        settings = {**settings, **more}
        steps = settings.get("gradient_accumulation_steps", 1)
        # 11 rows of the evaluation: some batches are filled up, and count once.
        return base_flags(model(name, settings), inputs.data(settings.pop("kind", "labelled"), train=48, test=11), output,
                          **{**dict(max_steps=STEPS, eval_strategy="steps", eval_steps=3, per_device_eval_batch_size=2,
                                    per_device_train_batch_size=ROWS_PER_STEP // world // steps), **settings})
    return flags


@pytest.fixture(scope="module")
def run(flags_of):
    return lambda kind, output, world, **more: run_strata(flags_of(kind, output, world, **more), world, recipe="classify")


@pytest.fixture(scope="module")
def unsharded(run, tmp_path_factory):
    known = {}

    def history(kind, steps):
        if (kind, steps) not in known:
            known[kind, steps] = run(kind, tmp_path_factory.mktemp("unsharded"), 1, sharding_strategy="NO_SHARD",
                                     gradient_accumulation_steps=steps).history
        return known[kind, steps]
    return history


def compare(found, expected):
    assert len(found) == len(expected) == STEPS + 2
    for ours, theirs in zip(found, expected):
        assert ours.keys() == theirs.keys()
        for key in theirs.keys() & {"loss", "eval_loss"}:
            assert ours[key] == pytest.approx(theirs[key], abs=1e-5), (ours, theirs)
        for key in theirs.keys() & {"grad_norm", "eval_mse"}:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-3), (ours, theirs)
        for key in theirs.keys() & set(FIGURES[:2]):
            assert ours[key] == pytest.approx(theirs[key], abs=1e-9), (ours, theirs)
    losses = [row["loss"] for row in expected if "loss" in row]
    assert max(losses) - min(losses) > 0.02, "the reference did not learn"


@pytest.mark.parametrize("kind,world,more", [
    ("decoder", 3, dict(activation_checkpointing="full")),
    ("decoder", 2, dict(sharding_strategy="ZERO2", gradient_accumulation_steps=2)),
    ("decoder_lora", 3, dict(sharding_strategy="NO_SHARD", activation_checkpointing="selective")),
    ("decoder_lora", 4, dict(sharding_strategy="HYBRID_SHARD", dp_shard_size=2)),
    ("decoder_nf4", 3, dict(sharding_strategy="SHARD_GRAD_OP")),
    ("bert", 2, dict(activation_checkpointing="full", gradient_accumulation_steps=3)),
    ("bert", 3, dict(sharding_strategy="SHARD_GRAD_OP", activation_checkpointing="selective")),
    ("bert", 2, dict(sharding_strategy="ZERO1", activation_checkpointing="attention")),
    ("bert", 3, dict(fsdp_auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=3000)),
    ("bert", 2, dict(fsdp_auto_wrap_policy="NO_WRAP", activation_checkpointing="full")),
    ("bert", 4, dict(fsdp_reshard_after_forward=2)),
    ("bert_new_pooler", 3, dict(activation_checkpointing="full")),
    ("bert_new_pooler", 2, dict(sharding_strategy="ZERO2", fsdp_cpu_ram_efficient_loading=True)),
    ("bert_nf4", 3, dict(activation_checkpointing="selective")),
    ("bert_nf4", 2, dict(sharding_strategy="NO_SHARD", fsdp_offload_params=True)),
    ("bert_dora", 3, dict(activation_checkpointing="attention")),
    ("roberta", 3, dict(fsdp_cpu_ram_efficient_loading=True, activation_checkpointing="full")),
    ("roberta", 4, dict(sharding_strategy="HYBRID_SHARD_ZERO2", dp_shard_size=2)),
    ("roberta", 2, dict(fsdp_transformer_layer_cls_to_wrap="RobertaLayer", limit_all_gathers=False)),
    ("roberta_lora", 3, dict(sharding_strategy="ZERO1", gradient_accumulation_steps=2)),
    ("roberta_int8", 3, {}),
    ("xlm_roberta", 3, dict(sharding_strategy="NO_SHARD", gradient_accumulation_steps=2)),
    ("xlm_roberta", 2, dict(fsdp_offload_params=True, activation_checkpointing="full")),
    ("roberta_ia3", 3, dict(sharding_strategy="SHARD_GRAD_OP")),
    ("distilbert", 3, dict(activation_checkpointing="full")),
    ("distilbert", 2, dict(fsdp_transformer_layer_cls_to_wrap="TransformerBlock", fsdp_cpu_ram_efficient_loading=True)),
    ("distilbert_lora", 3, dict(sharding_strategy="ZERO2", activation_checkpointing="selective")),
    ("deberta", 2, dict(activation_checkpointing="full")),
    ("deberta_lora", 3, dict(sharding_strategy="ZERO2", activation_checkpointing="attention")),
    # Layers that are used again and again are gathered and reduced once, or again for each.
    ("albert", 2, dict(activation_checkpointing="full")),
    ("albert", 3, dict(sharding_strategy="SHARD_GRAD_OP", gradient_accumulation_steps=2)),
    ("albert", 2, dict(fsdp_offload_params=True, fsdp_auto_wrap_policy="NO_WRAP")),
    ("albert_lora", 3, dict(sharding_strategy="ZERO1", activation_checkpointing="selective")),
    ("mpnet", 2, dict(activation_checkpointing="full", fsdp_cpu_ram_efficient_loading=True)),
])
def test_every_layout_trains_alike(run, unsharded, tmp_path, kind, world, more):
    expected = unsharded(kind, more.get("gradient_accumulation_steps", 1))
    compare(run(kind, tmp_path, world, **more).history, expected)


@pytest.mark.parametrize("kind", ["decoder", "distilbert"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_fewer_rows_of_the_evaluation_than_ranks_count_once(inputs, flags_of, tmp_path, kind, rows):
    def evaluations(world):
        flags = {**flags_of(kind, tmp_path / str(world), world), "dataset_name": inputs.data("labelled", train=48, test=rows)}
        history = run_strata(flags, world, recipe="classify").history
        return [{key: row[key] for key in ("eval_loss", *FIGURES[:2])} for row in history if "eval_loss" in row]

    for ours, theirs in zip(evaluations(3), evaluations(1), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


@pytest.mark.parametrize("kind,save,load", [
    ("decoder", (3, {}), (1, dict(sharding_strategy="NO_SHARD"))),
    ("decoder_lora", (1, {}), (3, dict(sharding_strategy="SHARD_GRAD_OP"))),
    ("bert", (2, {}), (3, {})),
    ("bert", (3, {}), (3, {})),
    ("bert_new_pooler", (4, dict(sharding_strategy="HYBRID_SHARD", dp_shard_size=2)), (2, dict(zero_stage=2))),
    ("roberta", (1, {}), (4, {})),
    ("distilbert_lora", (3, dict(zero_stage=1)), (2, {})),
    ("xlm_roberta", (2, dict(sharding_strategy="NO_SHARD")), (3, dict(sharding_strategy="SHARD_GRAD_OP"))),
], ids=str)
def test_goes_on_with_another_number_of_ranks(run, tmp_path, kind, save, load):
    whole = run(kind, tmp_path / "whole", save[0], **save[1], save_strategy="steps", save_steps=2)
    cut = tmp_path / "cut"
    cut.mkdir()
    shutil.copytree(whole.folder / "checkpoint-2", cut / "checkpoint-2")
    shutil.copy(whole.folder / "metrics.jsonl", cut)
    found = run(kind, cut, load[0], **load[1], resume_from_checkpoint=True)
    if save == load:
        assert found.history == whole.history
        assert (found.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()
    compare(found.history, whole.history)


@pytest.mark.parametrize("kind,world,place", [("bert", 2, "both"), ("decoder_lora", 3, "state"), ("roberta_lora", 2, "activations"),
                                              ("bert_nf4", 2, "both"), ("distilbert", 1, "both")])
def test_results_do_not_depend_on_where_things_rest(run, tmp_path, kind, world, place):
    disk = tempfile.mkdtemp(prefix="offload-", dir=BUILD)  # the tests' own folder may lie in memory
    try:
        flags = {}
        for what in {"both": ("param", "optimizer"), "state": ("optimizer",), "activations": ()}[place]:
            flags |= {f"offload_{what}_device": "nvme", f"offload_{what}_nvme_path": disk}
        if place == "activations":
            flags = dict(activation_offloading="disk", activation_offloading_path=disk)
        recomputed = dict(activation_checkpointing="full")
        memory = run(kind, tmp_path / "memory", world, **recomputed)
        files = run(kind, tmp_path / "files", world, **recomputed, **flags)
        assert files.history == memory.history and f"in files in {disk}" in files.text
        assert os.listdir(disk) == []
    finally:
        shutil.rmtree(disk)


@pytest.mark.parametrize("kind", ["decoder", "bert", "roberta", "distilbert"])
def test_sequences_are_not_shared(flags_of, tmp_path, kind):
    found = run_strata_raw(flags_of(kind, tmp_path, 2, sequence_parallel_size=2), 2, recipe="classify")
    assert found.returncode == 2 and "sequence_parallel_size" in found.stderr and "expected" in found.stderr, found.stderr
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("kind,most", [("bert", 64), ("roberta", 64), ("distilbert", 64)])
def test_texts_beyond_the_positions_are_named_before_the_first_step(flags_of, inputs, tmp_path, kind, most):
    data = tmp_path / "data"
    shutil.copytree(inputs.data("labelled", train=48, test=11), data)
    with (data / "train.jsonl").open("a") as file:
        file.write('{"text": "' + "cat " * 100 + '", "label": "long"}\n')
    flags = {**flags_of(kind, tmp_path / "out", 2, max_steps=1), "dataset_name": data}
    run_strata({**flags, "max_length": most}, 2, recipe="classify")
    found = run_strata_raw({**flags, "max_length": most + 1}, 2, recipe="classify")
    assert found.returncode == 2
    assert f"max_length: found a row of {most + 1} tokens, expected at most {most}, for which the model has positions" in found.stderr


def test_a_class_of_another_family_wraps_nothing(flags_of, tmp_path):
    found = run_strata_raw(flags_of("xlm_roberta", tmp_path, 2, fsdp_transformer_layer_cls_to_wrap="BertLayer"), 2, recipe="classify")
    assert found.returncode == 2 and "XLMRobertaLayer" in found.stderr
