# Oracle: the same loop in PyTorch over transformers, rows padded, on one process.
import json
import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from running import BUILD, PROGRAM, ROOT, environment

STEPS, ROWS_PER_RANK = 5, 4


def reference_losses(model_folder, texts, world):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    decayed = [p for n, p in model.named_parameters() if "norm" not in n and "bias" not in n]
    others = [p for n, p in model.named_parameters() if "norm" in n or "bias" in n]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01},
                                   {"params": others, "weight_decay": 0.0}], lr=5e-3)
    rows = [tokenizer(text)["input_ids"] for text in texts]
    losses = []
    for step in range(STEPS):
        count = world * ROWS_PER_RANK
        batch = [rows[i % len(rows)] for i in range(step * count, (step + 1) * count)]
        length = max(map(len, batch))
        ids = torch.tensor([row + [0] * (length - len(row)) for row in batch])
        mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in batch])
        loss = model(input_ids=ids, attention_mask=mask,
                     labels=ids.masked_fill(mask == 0, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize("world", [1, 2])
def test_losses_and_result(inputs, tmp_path, world):
    model = inputs.model("odd")
    data = inputs.data("text", train=13) / "train.jsonl"
    command = [PROGRAM, "launch", "--num_processes", world, "--cpu", "--no_python",
               BUILD / "hand_written", model, data, tmp_path / "out"]
    run = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                         timeout=120, env=environment())
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.split() for line in run.stdout.splitlines() if line.startswith("step ")]
    losses = [float(words[3]) for words in lines]
    texts = [json.loads(line)["text"] for line in data.open()]
    expected, trained = reference_losses(model, texts, world)
    assert losses == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < expected[0] - 0.05, "the reference did not learn"
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for (name, found), wanted in zip(ours.named_parameters(), trained.parameters()):
        assert torch.allclose(found, wanted, atol=1e-4), name


def test_errors_end_it(inputs, tmp_path):
    run = subprocess.run([str(BUILD / "hand_written"), str(inputs.model("odd")),
                          str(tmp_path / "none.jsonl"), str(tmp_path / "out")],
                         capture_output=True, text=True, env=environment())
    assert run.returncode == 1
    assert run.stderr.startswith("error: ") and "none.jsonl" in run.stderr
    assert not (tmp_path / "out").exists()


def test_it_is_short():
    lines = (ROOT / "examples/hand_written/train.cpp").read_text().splitlines()
    assert len(lines) < 100
