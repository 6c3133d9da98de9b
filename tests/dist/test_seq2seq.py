# Oracle: the same run on one rank, unsharded and without recomputation; for what cannot be, the
# error that names it.
#
# A step of world size w with b rows per rank holds the same w * b rows for every such pair.
import json
import shutil
import signal
import subprocess
import time

import pytest

from running import command, environment, run_strata, run_strata_raw, wait_fairly
from tiny_bart import save_bart
from tiny_t5 import GATED, save_pairs, save_t5

ROWS_PER_STEP, STEPS = 6, 6
# Dropout is on, of the model and of the adapter: a draw belongs to the row, not to the rank.
KINDS = {
    "full": ("gated", {}),
    "lora": ("gated", dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.2)),
    "tied_full": ("tied", {}),
    "decoder_lora": ("tied", dict(use_peft=True, lora_target_modules=r"decoder.*\.(q|v|wo)")),
    "nf4_dora": ("wide", dict(use_peft=True, lora_r=3, use_dora=True, load_in_4bit=True,
                              bnb_4bit_use_double_quant=True, lora_dropout=0.2)),
    # Evaluations round activations to codes, so that a last bit of a weight may move one: updates by
    # the gradient's sign are the same to the bit on every world size.
    "int8_ia3": ("gated", dict(use_peft=True, peft_type="IA3", load_in_8bit=True,
                               optim="lion_32bit", learning_rate=2e-2)),
    "nf4_vera": ("tied", dict(use_peft=True, peft_type="VERA", lora_r=6, load_in_4bit=True,
                              learning_rate=1e-1)),
    "umt5": ("umt5", {}),
    "bart": ("bart", {}),
    "bart_lora": ("bart", dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.2)),
    "mbart_lora": ("mbart", dict(use_peft=True, lora_r=3, lora_alpha=12, lora_dropout=0.2, lora_target_modules=r".*(q_proj|v_proj)")),
    "mbart": ("mbart", {}),
    "m2m_100": ("m2m_100", {}),
    "pegasus": ("pegasus", {}),
    "marian": ("marian", {}),
    "beams": ("marian", dict(generation_num_beams=3)),
    "smoothed": ("bart", dict(label_smoothing_factor=0.2)),
    "saved_head": ("tied", dict(use_peft=True, lora_modules_to_save=["lm_head"])),
}
# Sizes that no world size divides, dropout, units of every kind.
MODELS = {"gated": dict(GATED, d_model=21, d_ff=29, dropout_rate=0.2, own_head=True),
          "tied": dict(d_model=21, d_ff=29, dropout_rate=0.2),
          "wide": dict(d_model=64, d_ff=72, dropout_rate=0.2),
          "umt5": dict(family="UMT5", d_model=21, d_ff=29, dropout_rate=0.2),
          "bart": dict(d_model=21, encoder_ffn_dim=29, decoder_ffn_dim=27, dropout=0.2, attention_dropout=0.1, activation_dropout=0.1)}
MODELS |= {"mbart": dict(MODELS["bart"], family="MBart", decoder_start_token_id=2),
           # All ranks leave out the same layers.
           "m2m_100": dict(MODELS["bart"], family="M2M100", encoder_layerdrop=0.3, decoder_layerdrop=0.3),
           "pegasus": dict(MODELS["bart"], family="Pegasus"),
           "marian": dict(MODELS["bart"], family="Marian", pad_token_id=1, decoder_start_token_id=1, eos_token_id=2, forced_eos_token_id=2)}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seq2seq")
    for name, settings in MODELS.items():
        (save_bart if "encoder_ffn_dim" in settings else save_t5)(folder / name, **settings)
    # Targets of one length and no batch to fill up: the mean over batches is that over rows.
    save_pairs(folder / "data", train=36, validation=12)
    return folder


def flags(place, output, kind, world, **more):
    model, settings = KINDS[kind]
    return {"model_name_or_path": place / model, "dataset_name": place / "data",
            "output_dir": output, "max_source_length": 14, "max_target_length": 4,
            "per_device_train_batch_size": ROWS_PER_STEP // world,
            "per_device_eval_batch_size": 2, "max_steps": STEPS, "learning_rate": 5e-3,
            "logging_steps": 1, "eval_strategy": "steps", "eval_steps": STEPS,
            "save_strategy": "no", "disable_tqdm": True, "predict_with_generate": True,
            **settings, **more}


def run(place, output, kind, world, **more):
    return run_strata(flags(place, output, kind, world, **more), world, recipe="seq2seq")


@pytest.fixture(scope="module")
def unsharded(place, tmp_path_factory):
    known = {}

    def history(kind):
        if kind not in known:
            known[kind] = run(place, tmp_path_factory.mktemp("unsharded"), kind, 1,
                              sharding_strategy="NO_SHARD").history
        return known[kind]

    return history


@pytest.mark.parametrize("kind,world,more", [
    ("full", 1, dict(gradient_checkpointing=True)),
    ("full", 2, dict(gradient_checkpointing=True)),
    ("full", 3, dict(gradient_accumulation_steps=1)),
    ("full", 2, dict(sharding_strategy="ZERO1")),
    ("full", 2, dict(activation_checkpointing="attention", gradient_checkpointing_layers=3)),
    ("full", 3, dict(sharding_strategy="SHARD_GRAD_OP", activation_checkpointing="selective")),
    ("lora", 2, dict(gradient_checkpointing=True, fsdp_offload_params=True,
                     fsdp_transformer_layer_cls_to_wrap="T5Block")),
    ("lora", 3, dict(fsdp_cpu_ram_efficient_loading=True)),
    ("lora", 2, dict(sharding_strategy="ZERO2")),
    ("tied_full", 2, dict(gradient_checkpointing=True, fsdp_auto_wrap_policy="NO_WRAP")),
    ("tied_full", 3, dict(fsdp_auto_wrap_policy="SIZE_BASED_WRAP", fsdp_min_num_params=4000)),
    ("decoder_lora", 2, dict(gradient_checkpointing=True)),
    ("saved_head", 2, dict(gradient_checkpointing=True)),
    ("umt5", 2, dict(gradient_checkpointing=True)),
    ("bart", 2, dict(gradient_checkpointing=True)),
    ("bart", 3, dict(sharding_strategy="SHARD_GRAD_OP", activation_checkpointing="selective")),
    ("bart_lora", 2, dict(activation_checkpointing="attention", fsdp_transformer_layer_cls_to_wrap="BartEncoderLayer,BartDecoderLayer")),
    ("beams", 2, dict(gradient_checkpointing=True)),
    ("smoothed", 2, dict(gradient_accumulation_steps=1)),
    ("mbart_lora", 2, dict(activation_checkpointing="attention")),
    ("m2m_100", 2, dict(gradient_checkpointing=True)),
    ("pegasus", 2, {}),
    ("marian", 2, dict(sharding_strategy="SHARD_GRAD_OP", activation_checkpointing="selective")),
    ("nf4_dora", 2, dict(gradient_checkpointing=True)),
    ("int8_ia3", 3, dict(sharding_strategy="SHARD_GRAD_OP")),
    ("nf4_vera", 2, dict(fsdp_offload_params=True)),
])
def test_every_layout_trains_alike(place, unsharded, tmp_path, kind, world, more):
    found, expected = run(place, tmp_path / "out", kind, world, **more).history, unsharded(kind)
    assert len(found) == len(expected) == STEPS + 1
    for ours, theirs in zip(found, expected):
        for key in ("loss", "eval_loss"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], abs=2e-5), (ours, theirs)
        if "grad_norm" in theirs:
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
        if "eval_accuracy" in theirs:
            assert ours["eval_accuracy"] == theirs["eval_accuracy"]


@pytest.mark.parametrize("kind", ["lora", "marian"])
def test_resumed_run_is_the_uninterrupted_one(place, tmp_path, kind):
    whole = run(place, tmp_path / "whole", kind, 2, save_strategy="steps", save_steps=3)
    first = flags(place, tmp_path / "cut", kind, 2, save_strategy="steps", save_steps=3)
    run_strata(first, 2, recipe="seq2seq")
    last = tmp_path / "cut" / f"checkpoint-{STEPS}"
    for file in sorted(last.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    last.rmdir()
    again = run_strata({**first, "resume_from_checkpoint": tmp_path / "cut" / "checkpoint-3"}, 2,
                       recipe="seq2seq")
    assert again.losses == whole.losses


def test_a_request_to_stop_is_heard_while_answers_are_generated(place, tmp_path):
    more = dict(eval_steps=3, generation_max_length=200)
    whole = run(place, tmp_path / "whole", "full", 2, **more)
    cut = flags(place, tmp_path / "cut", "full", 2, **more)
    process = subprocess.Popen(command(cut, 2, "seq2seq"), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env=environment())
    rows = tmp_path / "cut" / "metrics.jsonl"
    while process.poll() is None and (not rows.exists() or len(rows.read_text().splitlines()) < 3):
        time.sleep(0.01)
    time.sleep(0.1)  # past the losses, into the answers
    process.send_signal(signal.SIGTERM)
    text = wait_fairly(process, 60)[0]
    assert process.returncode == 75 and "begins with the evaluation that was broken off" in text, text
    again = run_strata({**cut, "resume_from_checkpoint": True}, 2, recipe="seq2seq")
    assert again.history == whole.history
    assert ((again.folder / "model.safetensors").read_bytes()
            == (whole.folder / "model.safetensors").read_bytes())


def test_what_ends_an_answer_is_read_once(place, tmp_path):
    """A model's folder that changes beside the run changes nothing: an evaluation is that of the undisturbed run."""
    shutil.copytree(place / "gated", tmp_path / "gated")
    more = dict(max_steps=30, eval_steps=1)
    whole = run(place, tmp_path / "whole", "full", 1, **more)
    process = subprocess.Popen(
        command(flags(place, tmp_path / "out", "full", 1, model_name_or_path=tmp_path / "gated", **more), 1, "seq2seq"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    rows = tmp_path / "out" / "metrics.jsonl"
    while process.poll() is None and not rows.exists():
        time.sleep(0.01)
    (tmp_path / "gated" / "generation_config.json").write_text("{")
    text = wait_fairly(process, 60)[0]
    assert process.returncode == 0, text
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    accuracies = [[row["eval_accuracy"] for row in history if "eval_accuracy" in row]
                  for history in (state["log_history"], whole.history)]
    assert accuracies[0] == accuracies[1] and len(accuracies[0]) == 30


@pytest.mark.parametrize("change,message", [
    (dict(packing=True), "--packing: found with the recipe seq2seq, expected a setting of it"),
    (dict(max_length=64), "--max_length: found with the recipe seq2seq"),
    (dict(num_beams=0), "--num_beams: found \"0\", expected"),
    (dict(ignore_pad_token_for_loss=False), "--ignore_pad_token_for_loss: found \"false\""),
    (dict(source_lang="en"), "--source_lang: found without target_lang"),
    (dict(train_file="x.json"), "--train_file: found with --dataset_name"),
    (dict(lora_task_type="CAUSAL_LM"), "--lora_task_type: found causal_lm with the recipe seq2seq"),
    (dict(text_column="sentense"), "found columns [sentence, label], expected one with the name"),
    (dict(max_target_length=1), "max_target_length: found 1, expected more than the 1 token that"),
])
def test_wrong_settings_are_named(place, tmp_path, change, message):
    found = run_strata_raw(flags(place, tmp_path / "out", "full", 1, **change), recipe="seq2seq")
    assert found.returncode in (1, 2)
    assert message in found.stderr


def test_models_and_recipes_that_do_not_fit(place, inputs, tmp_path):
    wrong = flags(place, tmp_path / "out", "full", 1, model_name_or_path=inputs.model("plain"))
    found = run_strata_raw(wrong, recipe="seq2seq")
    assert found.returncode == 2 and "run strata sft instead" in found.stderr
    sft = {k: wrong[k] for k in ("dataset_name", "output_dir", "max_steps")}
    found = run_strata_raw({**sft, "model_name_or_path": place / "tied"})
    assert found.returncode == 2 and "run strata seq2seq instead" in found.stderr
    found = run_strata_raw({**sft, "model_name_or_path": place / "tied", "source_prefix": "x"})
    assert "--source_prefix: found with the recipe sft" in found.stderr


@pytest.mark.parametrize("kind", ["full", "mbart", "pegasus"])
def test_planned_memory_is_the_measured(place, tmp_path, kind):
    found = run(place, tmp_path / "out", kind, 2, gradient_checkpointing=True)
    line = next(line for line in found.text.splitlines() if line.startswith("memory: planned"))
    planned, measured = line.split("tensors planned ")[1].rstrip(")").split(", measured ")
    assert planned == measured, line
    assert "memory plan: none" not in found.text


def test_rows_that_cannot_be_used(place, tmp_path):
    rows = [json.loads(line) for line in (place / "data" / "train.jsonl").open()]
    rows[3]["label"] = 7
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "validation"):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = flags(place, tmp_path / "out", "lora", 1, dataset_name=data)
    found = run_strata_raw(settings, recipe="seq2seq")
    assert found.returncode == 1 and "train.jsonl:4: found" in found.stderr
    found = run_strata_raw({**settings, "on_bad_row": "skip"}, recipe="seq2seq")
    assert found.returncode == 0 and "left out 1 bad row" in found.text
