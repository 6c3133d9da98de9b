# Oracle: the uninterrupted run of TRL's SFTTrainer, and of Trainer over classifiers; its own checkpoint, converted, goes on here
# with the losses that it has there, and holds its optimizer's moments by name.
import json
import pathlib
import shutil

import pytest

import classification_reference
import trl_reference
from tiny_encoder import save_encoder
from running import base_flags, run_strata, run_strata_raw, strata

LORA = dict(use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0, learning_rate=2e-2,
            lora_target_modules=["q_proj", "v_proj", "down_proj"])
CASES = {"full": dict(weight_decay=0.1), "lora": LORA, "tied": dict(model="tied", weight_decay=0.1),
         "own_head": dict(model="own-head", weight_decay=0.1),
         "prompt": dict(use_peft=True, peft_type="PROMPT_TUNING", num_virtual_tokens=3, learning_rate=5e-2),
         "prefix": dict(use_peft=True, peft_type="PREFIX_TUNING", num_virtual_tokens=2, learning_rate=5e-2,
                        gradient_checkpointing=False),
         "own_head_lora": dict(LORA, model="own-head", lora_modules_to_save=["lm_head"])}


def train_reference(flags, folder):
    """Six steps with a checkpoint after the third. Returns the log history and AdamW's moments of
    the last step by weight."""
    datasets, peft, _, transformers, trl = trl_reference.stack()
    settings = {k: v for k, v in flags.items()
                if k not in trl_reference.OWN_FLAGS | {"save_steps", "max_steps"}}
    args = trl.SFTConfig(output_dir=folder, use_cpu=True, report_to="none", disable_tqdm=True,
                         save_strategy="steps", save_steps=3, max_steps=6, **settings)
    lora = trl_reference.adapter_config(peft, flags) if "peft_type" in flags else None
    if flags.get("use_peft") and not lora:
        lora = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, lora_dropout=0.0,
                               target_modules=flags["lora_target_modules"],
                               modules_to_save=flags.get("lora_modules_to_save"))
    data = pathlib.Path(flags["dataset_name"])
    trainer = trl.SFTTrainer(
        model=str(flags["model_name_or_path"]), args=args, peft_config=lora,
        train_dataset=trl_reference.load_rows(datasets, data / "train.jsonl", folder / "cache"))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    names = {id(p): n for n, p in trainer.model.named_parameters()}
    optimizer = trainer.optimizer.optimizer
    return trainer.state.log_history, {names[id(p)]: s for p, s in optimizer.state.items()}


def model_of(inputs, name):
    if name != "own-head":
        return inputs.model(name)
    # config.json ties an output layer of which the file holds another.
    folder = inputs.folder / "trainer-own-head"
    if not folder.exists():
        shutil.copytree(inputs.model("plain"), folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | dict(tie_word_embeddings=True)))
    return folder


@pytest.fixture(scope="module")
def reference(inputs, tmp_path_factory):
    known = {}

    def run(name):
        if name not in known:
            settings = dict(CASES[name])
            flags = base_flags(model_of(inputs, settings.pop("model", "odd")), inputs.data("messages"),
                               tmp_path_factory.mktemp("ours"), max_steps=6, **settings)
            folder = tmp_path_factory.mktemp("reference")
            known[name] = flags, folder, *train_reference(flags, folder)
        return known[name]

    return run


@pytest.mark.parametrize("name", CASES)
def test_goes_on_here(reference, tmp_path, name):
    flags, folder, history, _ = reference(name)
    strata("convert", folder / "checkpoint-3", tmp_path / "out", "--to", "strata")
    found = run_strata({**flags, "output_dir": tmp_path / "out", "save_strategy": "no",
                        "resume_from_checkpoint": True}, 1)
    rows = [row for row in history if "loss" in row]
    assert [row["step"] for row in found.history] == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(found.history, rows):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-5), (ours, theirs)
        assert ours["learning_rate"] == pytest.approx(theirs["learning_rate"], rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_moments_have_their_weights(reference, tmp_path, name):
    import torch

    _, folder, _, state = reference(name)
    found = json.loads(strata("inspect", folder / "checkpoint-6", "--json", "--verify"))
    assert found["format"].startswith("checkpoint of transformers' Trainer")
    assert (found["step"], found["num_updates"]) == (6, 6) and "verified" in found
    strata("convert", folder / "checkpoint-6", tmp_path / "bin", "--to", "bin")
    ours = torch.load(tmp_path / "bin" / "optimizer.bin", weights_only=True)["state"]
    assert ours.keys() == state.keys()
    for weight, kinds in state.items():
        for kind in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(ours[weight][kind], kinds[kind]), (weight, kind)


def train_classifier(flags, folder, targets):
    """Six steps of an adapter over a classifier whose head trains with it, with a checkpoint after the third."""
    _, peft, _, transformers, _ = trl_reference.stack()
    rows = classification_reference.read(flags["dataset_name"] / "train.jsonl")
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags["model_name_or_path"])
    names = classification_reference.labels_of(rows)
    model = classification_reference.model_of(flags, names, "single_label_classification")
    model.config.pad_token_id = tokenizer.pad_token_id
    transformers.set_seed(42)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=16, target_modules=targets))
    args = transformers.TrainingArguments(
        folder, use_cpu=True, report_to="none", disable_tqdm=True, save_steps=3, max_steps=6, logging_steps=1,
        per_device_train_batch_size=2, learning_rate=2e-2, weight_decay=0.1)
    trainer = transformers.Trainer(
        model=model, args=args, processing_class=tokenizer, data_collator=transformers.DataCollatorWithPadding(tokenizer),
        train_dataset=classification_reference.encode(rows, tokenizer, flags, "single_label_classification", names))
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


@pytest.mark.parametrize("name, targets", [("plain", ["q_proj", "down_proj"]), ("roberta", ["query"]), ("distilbert", ["q_lin"])])
def test_an_adapter_with_a_new_head_goes_on_here(inputs, tmp_path, name, targets):
    """The base predicts tokens; the head that the adapter's checkpoint brings is a classifier's."""
    model = inputs.model(name) if name in inputs.MODELS else save_encoder(tmp_path / "base", name)
    flags = base_flags(model, inputs.data("labelled"), tmp_path / "out", use_peft=True, lora_r=4, lora_alpha=16, lora_dropout=0.0,
                       lora_target_modules=targets, max_steps=6, learning_rate=2e-2, weight_decay=0.1, gradient_checkpointing=False)
    history = train_classifier(flags, tmp_path / "theirs", targets)
    found = json.loads(strata("inspect", tmp_path / "theirs" / "checkpoint-3", "--json", "--verify"))
    assert found["resume"] == "after strata convert --to strata"
    strata("convert", tmp_path / "theirs" / "checkpoint-3", tmp_path / "out", "--to", "strata")
    run = run_strata({**flags, "resume_from_checkpoint": True}, recipe="classify")
    assert [row["step"] for row in run.history] == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(run.history, history):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=2e-5), (ours, theirs)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4), (ours, theirs)
    assert abs(history[-1]["loss"] - history[3]["loss"]) > 0.02, "the reference did not learn"


def test_a_schedule_that_asks_evaluations_begins_anew(reference, tmp_path):
    """Where no checkpoint of a run with it is gone on from: Trainer's, or one of another schedule. Oracle: its
    definition, the learning rate as given until evaluations have not been better for `patience`."""
    flags, folder, *_ = reference("full")
    strata("convert", folder / "checkpoint-3", tmp_path / "theirs", "--to", "strata")
    run_strata({**flags, "output_dir": tmp_path / "ours", "max_steps": 3, "save_strategy": "steps", "save_steps": 3})
    for name in ("theirs", "ours"):
        found = run_strata({**flags, "output_dir": tmp_path / name, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps",
                            "eval_steps": 1, "resume_from_checkpoint": True, "lr_scheduler_type": "reduce_lr_on_plateau",
                            "lr_scheduler_kwargs": '{"patience": 0, "threshold": 0.9}'})
        assert "found no state of lr_scheduler_type reduce_lr_on_plateau, expected that of a run that had it; the schedule starts again" in found.text
        rates = [row["learning_rate"] for row in found.history if "loss" in row and row["step"] > 3]
        assert rates == pytest.approx([5e-3, 5e-3, 5e-4], rel=1e-12)
    # Its own checkpoint says how far it was.
    again = run_strata({**flags, "output_dir": tmp_path / "ours", "eval_strategy": "steps", "eval_steps": 1, "max_steps": 7,
                        "resume_from_checkpoint": True, "lr_scheduler_type": "reduce_lr_on_plateau",
                        "lr_scheduler_kwargs": '{"patience": 0, "threshold": 0.9}'})
    assert "starts again" not in again.text
    assert again.history[-2]["learning_rate"] == pytest.approx(5e-5, rel=1e-12)
    # The other of the two is another schedule.
    other = run_strata({**flags, "output_dir": tmp_path / "ours", "eval_strategy": "steps", "eval_steps": 1, "max_steps": 9,
                        "resume_from_checkpoint": True, "lr_scheduler_type": "greedy",
                        "lr_scheduler_kwargs": '{"patience": 5, "min_lr": 1e-4}'})
    assert "found no state of lr_scheduler_type greedy, expected that of a run that had it; the schedule starts again" in other.text
    assert [row["learning_rate"] for row in other.history if "loss" in row and row["step"] > 6][0] == pytest.approx(5e-3, rel=1e-12)


def test_files_of_torch_beside_numbered_states(reference, tmp_path):
    """Oracle: the same checkpoint with its safetensors; what is advised leads there."""
    import torch
    from safetensors.torch import load_file

    flags, folder, *_ = reference("full")
    old = shutil.copytree(folder / "checkpoint-3", tmp_path / "old")
    torch.save(load_file(old / "model.safetensors"), old / "pytorch_model.bin")
    (old / "model.safetensors").unlink()
    said = strata("convert", old, tmp_path / "no", "--to", "strata", code=2)
    assert "found optimizer.pt, whose states are numbered, with weights of torch.save" in said and "optimizer.bin" not in said
    assert "the states of optimizer.pt are numbered" in json.loads(strata("inspect", old, "--json"))["resume"]
    assert not (tmp_path / "no").exists()
    strata("convert", old, tmp_path / "new", "--to", "safetensors")
    for name in ("optimizer.pt", "trainer_state.json"):
        shutil.copy(old / name, tmp_path / "new" / name)
    assert json.loads(strata("inspect", tmp_path / "new", "--json"))["resume"] == "after strata convert --to strata"
    for source in (folder / "checkpoint-3", tmp_path / "new"):
        strata("convert", source, tmp_path / "states" / source.name, "--to", "strata")
    one, other = (load_file(tmp_path / "states" / name / "checkpoint-3" / "rank-00000.safetensors") for name in ("checkpoint-3", "new"))
    assert one.keys() == other.keys() and all(torch.equal(one[n], t) for n, t in other.items())


def test_what_cannot_be_read_is_said(inputs, reference, tmp_path):
    import torch

    flags, folder, *_ = reference("full")
    # Without converting it the way to go on is named.
    shutil.copytree(folder / "checkpoint-3", tmp_path / "out" / "checkpoint-3")
    for where in (True, tmp_path / "out" / "checkpoint-3"):
        run = run_strata_raw({**flags, "output_dir": tmp_path / "out",
                              "resume_from_checkpoint": where})
        assert run.returncode != 0 and "strata convert" in run.text and "--to strata" in run.text
    # Another optimizer, and a state that is not of this model.
    other = tmp_path / "other"
    shutil.copytree(folder / "checkpoint-3", other)
    model = torch.nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    for optimizer, message in ((torch.optim.SGD(model.parameters(), 0.1, momentum=0.9),
                                "momentum_buffer"),
                               (torch.optim.AdamW(model.parameters()), "of shape [2, 3]")):
        optimizer.step()
        torch.save(optimizer.state_dict(), other / "optimizer.pt")
        text = strata("convert", other, tmp_path / "no", "--to", "strata", code=1)
        assert message in text and "optimizer.pt" in text and not (tmp_path / "no").exists()
    (other / "optimizer.pt").unlink()
    strata("convert", other, tmp_path / "weights", "--to", "safetensors")
