"""transformers' Trainer over AutoModelForSequenceClassification on the same files and flags as a run of the program, with
rows as run_classification.py makes them (pairs as run_glue.py), and their metrics by scikit-learn and scipy."""

import json
import pathlib
import tempfile

import trl_reference

OWN = {"max_length", "task_name", "text_column_names", "text_pair_column_names", "text_column_delimiter", "label_column_name", "do_regression", "num_labels",
       "ignore_mismatched_sizes", "long_rows"}


def read(path):
    return [json.loads(line) for line in path.open()]


def labels_of(rows):
    """As the script sorts them, but for whole numbers, which stand by their value."""
    names = {str(name) for row in rows for name in (row["label"] if isinstance(row["label"], list) else [row["label"]])}
    return sorted(names, key=int if all(name.lstrip("-").isdigit() for name in names) else None)


def problem_of(rows, flags):
    if flags.get("task_name", "stsb") == "stsb" and flags.get("do_regression", isinstance(rows[0]["label"], float)):
        return "regression"
    return "multi_label_classification" if isinstance(rows[0]["label"], list) else "single_label_classification"


def encode(rows, tokenizer, flags, problem, names):
    columns = [flags.get("text_column_names", ["text"]), flags.get("text_pair_column_names", [])]
    if "text_column_names" not in flags and "sentence1" in rows[0]:
        columns = [["sentence1"], ["sentence2"]]
    encoded = []
    for row in rows:
        # Lists, as of a map over batches: an empty second text is one.
        texts = [[flags.get("text_column_delimiter", " ").join(row[column] for column in each)] for each in columns if each]
        one = {key: value[0] for key, value in tokenizer(*texts, truncation=True, max_length=min(flags["max_length"], tokenizer.model_max_length)).items()}
        if problem == "regression":
            one["labels"] = float(row["label"])
        elif problem == "single_label_classification":
            one["labels"] = names.index(str(row["label"]))
        else:
            one["labels"] = [float(name in map(str, row["label"])) for name in names]
        encoded.append(one)
    return encoded


def metrics_of_task(task, values, labels):
    """Those of the metric "glue", and run_glue.py's mean of them."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    if task == "stsb":
        values = values.squeeze(-1)
        result = {"pearson": pearsonr(values, labels)[0], "spearmanr": spearmanr(values, labels)[0]}
    elif task == "cola":
        result = {"matthews_correlation": matthews_corrcoef(labels, values.argmax(-1))}
    else:
        result = {"accuracy": accuracy_score(labels, values.argmax(-1))}
        if task in ("mrpc", "qqp"):
            result["f1"] = f1_score(labels, values.argmax(-1))
    return {**result, **({"combined_score": sum(result.values()) / len(result)} if len(result) > 1 else {})}


def metrics_of(problem, task=None):
    from sklearn.metrics import accuracy_score, f1_score, mean_squared_error

    def compute(prediction):
        values, labels = prediction.predictions, prediction.label_ids
        if task:
            return metrics_of_task(task, values, labels)
        if problem == "regression":
            return {"mse": mean_squared_error(labels, values.squeeze(-1))}
        if problem == "multi_label_classification":
            return {"f1": f1_score(labels, values > 0, average="micro", zero_division=0)}
        told = values.argmax(-1)
        return {"accuracy": accuracy_score(labels, told), "f1": f1_score(labels, told, average="macro", zero_division=0)}
    return compute


def model_of(flags, names, problem):
    transformers = trl_reference.stack()[3]
    transformers.set_seed(flags.get("seed", 42))
    return transformers.AutoModelForSequenceClassification.from_pretrained(
        flags["model_name_or_path"], num_labels=len(names), id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)}, problem_type=problem)


def log_history(flags):
    _, peft, torch, transformers, _ = trl_reference.stack()
    flags = {k: str(v) if isinstance(v, pathlib.Path) else v for k, v in flags.items()}
    data = pathlib.Path(flags["dataset_name"])
    rows, tested = read(data / "train.jsonl"), read(data / "test.jsonl")
    evaluates = flags.get("eval_strategy", "no") != "no"
    problem = problem_of(rows, flags)
    names = ["LABEL_0"] if problem == "regression" else labels_of(rows + (tested if evaluates else []))
    tokenizer = transformers.AutoTokenizer.from_pretrained(flags["model_name_or_path"])
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if trl_reference.QUANTIZATION & flags.keys():
        model = trl_reference.quantised_model(flags, flags["model_name_or_path"],
                                              trl_reference.adapter_config(peft, flags, "Reward"), "Reward")
        trl_reference.restore_fp32_adapters(model)
    else:
        model = model_of(flags, names, problem)
        if flags.get("use_peft"):
            transformers.set_seed(flags.get("seed", 42))
            model = peft.get_peft_model(model, trl_reference.adapter_config(peft, flags, "Reward"))
    model.config.pad_token_id = tokenizer.pad_token_id
    # Trainer takes the model's loss for one of all micro-batches, and it is each one's own: twice the loss and the gradient of
    # two. The same rows in one batch are what it means.
    steps = flags.pop("gradient_accumulation_steps", 1)
    flags["per_device_train_batch_size"] *= steps
    with tempfile.TemporaryDirectory() as folder:
        settings = {k: v for k, v in flags.items()
                    if k not in trl_reference.OWN_FLAGS | trl_reference.QUANTIZATION | OWN}
        trainer = transformers.Trainer(
            model=model, processing_class=tokenizer, compute_metrics=metrics_of(problem, flags.get("task_name")),
            args=transformers.TrainingArguments(output_dir=folder, use_cpu=True, report_to="none", save_strategy="no",
                                                disable_tqdm=True, **settings),
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
            train_dataset=encode(rows, tokenizer, flags, problem, names),
            eval_dataset=encode(tested, tokenizer, flags, problem, names) if evaluates else None)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return trainer.state.log_history
