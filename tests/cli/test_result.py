# Oracle: what a finished run says of its result and leaves beside it is what another command takes: settings
# that train the same again, a command that answers, front matter that a YAML reader understands.
import json
import math
import re
import shlex

import pytest
import yaml

from running import base_flags, run_program, run_strata, strata

KINDS = {
    "model": ("sft", "messages", {}),
    "adapter": ("sft", "messages", dict(use_peft=True, lora_r=2)),
    "qlora": ("sft", "messages", dict(use_peft=True, lora_r=2, load_in_4bit=True, bnb_4bit_use_double_quant=True)),
    "dpo": ("dpo", "preference_chat", dict(use_peft=True, lora_r=2)),
    "cpo": ("cpo", "preference_chat", dict(use_peft=True, lora_r=2, loss_type="alphapo", alpha=0.1)),
    "kto": ("kto", "rated_chat", dict(use_peft=True, lora_r=2)),
    "reward": ("reward", "preference_chat", {}),
    "reward_adapter": ("reward", "preference_chat", dict(use_peft=True, lora_r=2)),
    "classify": ("classify", "labelled", {}),
    "classify_adapter": ("classify", "labelled", dict(use_peft=True, lora_r=2)),
}


@pytest.fixture(scope="module")
def runs(inputs, tmp_path_factory):
    made = {}

    def run(kind):
        if kind not in made:
            recipe, rows, flags = KINDS[kind]
            folder = tmp_path_factory.mktemp(kind) / "my run"
            made[kind] = run_strata(base_flags(inputs.model("plain"), inputs.data(rows), folder, max_steps=3,
                                               eval_strategy="steps", eval_steps=3, **flags), recipe=recipe)
        return made[kind]
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_line_says_where_the_result_is(inputs, runs, kind):
    run = runs(kind)
    found = re.fullmatch(r"result: (.+) \((\w+)\); report: (.+?)(?:; try it: strata (chat .+))?",
                         run.text.splitlines()[-1])
    assert found, run.text
    is_adapter = "use_peft" in KINDS[kind][2]
    assert found[1] == str(run.folder) and found[2] == ("adapter" if is_adapter else "model")
    assert "<svg" in open(found[3]).read()
    assert "wire:" not in run.text
    if KINDS[kind][0] in ("reward", "classify"):
        assert not found[4], "no chat with a model of whole texts"
        return
    words = shlex.split(found[4])
    assert words[2] == str(inputs.model("plain") if is_adapter else run.folder)
    assert ("--load_in_4bit" in words) == (kind == "qlora")
    assert strata(*words, "--prompt", "a", "--max_new_tokens", "2")


def test_no_chat_is_offered_with_an_encoder(tmp_path):
    from tiny_t5 import save_pairs, save_t5
    save_t5(tmp_path / "model")
    save_pairs(tmp_path / "data", train=4, validation=2)
    run = run_strata(dict(model_name_or_path=tmp_path / "model", dataset_name=tmp_path / "data",
                          output_dir=tmp_path / "out", max_steps=1, save_strategy="no"), recipe="seq2seq")
    assert run.text.splitlines()[-1] == f"result: {tmp_path}/out (model); report: {tmp_path}/out/report.html"


def test_no_chat_is_offered_with_an_adapter_that_is_converted_first(inputs, tmp_path):
    """As `strata chat` refuses it."""
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=1, use_peft=True,
                                init_lora_weights="pissa_niter_4"))
    assert "ask it" not in run.text and "strata convert --to lora" in run.text
    strata("chat", "--model_name_or_path", inputs.model("plain"), "--adapter_name_or_path", run.folder, "--prompt", "a", code=2)


def test_a_loss_that_rose_is_told(inputs, runs, tmp_path):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=4,
                       logging_steps=1, learning_rate=50)
    run = run_strata(flags)
    losses = [row["loss"] for row in run.history if "loss" in row]
    assert losses[-1] > 2 * losses[0]
    assert f"warning: learning_rate: found 50, with which the loss rose from {losses[0]:.4g} to {losses[-1]:.4g}" in run.text
    assert "the loss rose" not in runs("model").text


@pytest.mark.parametrize("settings, message", [
    (dict(max_steps=1, warmup_steps=10), "found 10 for a run of 1 step, expected fewer: the learning rate reaches at most 0 of 0.005, so that nothing is learnt"),
    (dict(max_steps=3, warmup_steps=4, lr_scheduler_type="cosine"), "found 4 for a run of 3 steps, expected fewer: the learning rate reaches at most 0.0025 of 0.005; lower it"),
    (dict(max_steps=3, warmup_steps=2), None),
    (dict(max_steps=2, warmup_steps=4, lr_scheduler_type="constant"), None),
])
def test_a_warmup_that_outlasts_the_run_is_told(inputs, tmp_path, settings, message):
    """By the rates that are logged, which are the reference's."""
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", logging_steps=1, **settings))
    assert ("warmup_steps: found" in run.text) == (message is not None) and (message or "") in run.text, run.text
    rates = [row["learning_rate"] for row in run.history if "learning_rate" in row]
    assert (max(rates) < 0.005) == (message is not None)


@pytest.mark.parametrize("kind", ["model", "adapter", "dpo", "cpo", "kto"])
def test_its_settings_train_the_same_again(runs, tmp_path, kind):
    run, recipe = runs(kind), KINDS[kind][0]
    flags = dict(config=run.folder / "settings.json", output_dir=tmp_path / "again")
    again = run_strata(flags, recipe=recipe)
    assert again.history == run.history
    other = json.loads((again.folder / "settings.json").read_text())
    assert other.pop("output_dir") == str(again.folder)
    assert other.items() <= json.loads((run.folder / "settings.json").read_text()).items()


def test_settings_are_those_of_a_checkpoint(inputs, tmp_path):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=2,
                       save_strategy="steps", save_steps=1)
    run = run_strata(flags)
    settings = (run.folder / "settings.json").read_bytes()
    assert settings == (run.folder / "checkpoint-2/settings.json").read_bytes()
    run_strata({**flags, "resume_from_checkpoint": run.folder / "checkpoint-1"})
    assert (run.folder / "settings.json").read_bytes() == settings, "those of a run from its start"


@pytest.mark.parametrize("kind", ["model", "adapter", "dpo", "cpo", "kto", "reward", "classify"])
def test_the_page_has_a_chart_of_each_figure(runs, kind):
    run = runs(kind)
    titles = re.findall("<h2>(.+?)</h2>", (run.folder / "report.html").read_text())
    figures = {name.removeprefix("eval_") for row in run.history for name in row} - {
        "step", "epoch", "loss", "grad_norm", "learning_rate", "num_tokens"}
    assert figures and figures <= set(titles), titles
    if kind == "dpo":
        assert {"rewards/accuracies", "rewards/margins"} <= figures


# However short an evaluation was.
@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_finite(runs, kind):
    run = runs(kind)
    evaluations = [row for row in run.metrics if "eval_loss" in row]
    assert evaluations and all("eval_samples_per_second" in row for row in evaluations)
    for row in run.metrics + run.state["log_history"]:
        assert all(math.isfinite(value) for value in row.values()), row


def front_matter(folder):
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


@pytest.mark.parametrize("kind,card", [
    ("model", {"library_name": "transformers", "tags": ["sft", "strata"]}),
    ("qlora", {"library_name": "peft", "tags": ["lora", "sft", "strata"]}),
    ("dpo", {"library_name": "peft", "tags": ["lora", "dpo", "strata"]}),
])
def test_the_model_card(inputs, runs, kind, card):
    run = runs(kind)
    assert front_matter(run.folder) == card, "folders are no names of the Hub"
    text = (run.folder / "README.md").read_text()
    assert str(inputs.model("plain")) in text and run.folder.name in text
    loss, evaluation = run.losses[-1], run.history[-1]["eval_loss"]
    assert f"| loss | {loss:.4g} | {evaluation:.4g} |\n" in text


@pytest.mark.parametrize("kept", ["# Mine\n", None])
def test_a_readme_of_another_stays(inputs, tmp_path, kept):
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=1)
    run = run_strata(flags)
    card = run.folder / "README.md"
    written = card.read_text()
    # A card without the line that calls it ours is somebody's own.
    own = kept or "".join(line for line in written.splitlines(True) if "<!--" not in line)
    assert own != written
    card.write_text(own)
    run_strata(flags)
    assert card.read_text() == own
    card.unlink()
    run_strata(flags)
    assert "<!--" in card.read_text()


def test_the_card_of_the_best_model_has_its_figures(inputs, tmp_path):
    # The rate is so high that the first evaluation is the best one.
    run = run_strata(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=6,
                                learning_rate=1.0, eval_strategy="steps", eval_steps=2, save_strategy="steps",
                                save_steps=2, load_best_model_at_end=True))
    best = run.state["best_global_step"]
    assert best < 6
    loss = next(row["eval_loss"] for row in run.history if row["step"] == best and "eval_loss" in row)
    text = (run.folder / "README.md").read_text()
    assert f"up to step {best}." in text and f" | {loss:.4g} |\n" in text


def test_what_was_sent_is_told_where_the_time_is(inputs, tmp_path):
    run = run_program(base_flags(inputs.model("plain"), inputs.data("messages"), tmp_path / "out", max_steps=4,
                                 wall_clock_breakdown=True))
    assert re.search(r"wire: planned 0 bytes sent in a step, counted 0; tensors took", run.text)
