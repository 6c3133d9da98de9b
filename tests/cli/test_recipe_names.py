# Oracle: which of TRL's scripts and modules a built-in recipe stands for, and which train another model.
import pytest

from bare_environment import run


def test_a_script_name_means_the_recipe():
    result = run("launch", "train.py", "--max_seq_len", "16")
    assert "train.py: running the built-in recipe sft in its place\n" in result.stderr
    assert "error: model_name_or_path: found nothing" in result.stderr


@pytest.mark.parametrize("words,recipe", [
    (["launch", "-m", "trl.scripts.sft"], "sft"), (["launch", "--num_processes", "2", "--module", "trl.scripts.dpo"], "dpo"),
    (["launch", "-m", "trl.scripts.reward"], "reward"), (["launch", "-m", "trl.scripts.kto"], "kto"), (["plan", "--cpu", "-m", "my.train_dpo"], "dpo"),
    (["launch", "examples/scripts/orpo.py"], "orpo"), (["launch", "-m", "my.train_cpo"], "cpo"),
    (["slurm", "--gpus_per_node", "2", "-m", "my.train"], "sft"),
])
def test_a_module_means_the_recipe_of_its_last_word(words, recipe):
    result = run(*words)
    assert f"{words[-1]}: running the built-in recipe {recipe} in its place\n" in result.stderr
    assert "error: model_name_or_path: found nothing" in result.stderr


@pytest.mark.parametrize("name", ["run_classification.py", "examples/run_glue.py", "nlp_example.py", "train_text_classification.py",
                                  "classify.py"])
def test_a_script_that_classifies_texts_means_the_recipe(name):
    assert f"{name}: running the built-in recipe classify in its place" in run("launch", name).stderr


# What another method would train is another model.
@pytest.mark.parametrize("words,method", [
    (["launch", "examples/scripts/dpo_vlm.py"], "vlm"), (["launch", "--num_processes", "2", "run_mlm.py"], "mlm"),
    (["--num_gpus=2", "train-GRPO.py"], "grpo"), (["bco", "--beta", "0.1"], "bco"), (["launch", "kto_vlm.py"], "vlm"), (["launch", "run_orpo_vlm.py"], "vlm"), (["plan", "prm.py"], "prm"),
    (["launch", "-m", "trl.scripts.grpo"], "grpo"), (["launch", "run_token_classification.py"], "token"),
    (["launch", "run_image_classification.py"], "image"), (["launch", "run_ner.py"], "ner"),
    (["launch", "-m", "trl.scripts.distillation"], "distillation"), (["launch", "examples/scripts/gold.py"], "gold"),
    (["launch", "sdft.py"], "sdft"), (["launch", "trl/experimental/sdpo/sdpo.py"], "sdpo"), (["launch", "-m", "tpo"], "tpo"),
    (["launch", "a2po.py"], "a2po"), (["launch", "run_gmpo.py"], "gmpo"), (["launch", "iw_opd.py"], "opd"), (["launch", "nash_md.py"], "nash"),
    (["launch", "server_distillation.py"], "distillation"), (["launch", "async_grpo.py"], "grpo"), (["launch", "openreward.py"], "openreward"),
    (["launch", "examples/question-answering/run_seq2seq_qa.py"], "seq2seq_qa"), (["launch", "run_qa_no_trainer.py"], "qa"),
    (["launch", "run_swag.py"], "swag"), (["launch", "-m", "transformers.run_swag"], "swag"), (["launch", "run_fim.py"], "fim"),
])
def test_a_script_of_another_method_is_refused(words, method):
    result = run(*words)
    assert result.returncode == 2
    assert f"{words[-1] if words[0] != 'bco' else 'bco'}: found another method ({method}), expected supervised " \
           "fine-tuning (sft, seq2seq), pairs of answers, one preferred to the other (dpo, orpo, cpo, reward), " \
           "rated answers (kto), or texts with a label (classify)" in result.stderr
    assert "in its place" not in result.stderr


@pytest.mark.parametrize("name", ["train_promptsource.py", "sft_llama.py", "report.py", "podpourri.py", "sft_vs_vlm.py", "goldilocks.py", "sft_gold_answers.py", "train_qa.py", "run_qalora.py"])
def test_a_part_of_a_word_is_no_method(name):
    assert f"{name}: running the built-in recipe sft in its place" in run("launch", name).stderr


def test_nothing_is_distilled():
    result = run("sft", "--teacher_model_name_or_path", "m")
    assert result.returncode == 2
    assert "--teacher_model_name_or_path: found an unknown flag, expected a known one; remove it: nothing is distilled here" in result.stderr
