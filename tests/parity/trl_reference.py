"""Runs TRL's SFTTrainer, DPOTrainer, ORPOTrainer, CPOTrainer, KTOTrainer or RewardTrainer on the same files and flags as a run of the program.

Reference runs are cached by their settings while the process lives: importing TRL costs more than
all of them together.
"""

import functools
import importlib
import json
import pathlib
import tempfile

# Ours only, or written otherwise by the reference.
OWN_FLAGS = {"model_name_or_path", "dataset_name", "output_dir", "adapter_name_or_path", "use_peft",
             "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters", "use_rslora",
             "use_dora", "init_lora_weights", "peft_type", "feedforward_modules", "disable_tqdm",
             "num_virtual_tokens", "prompt_tuning_init", "prompt_tuning_init_text", "d_initial",
             "projection_prng_key", "init_weights", "warmup_ratio", "save_strategy",
             "prefix_projection", "encoder_hidden_size", "lora_bias", "bias", "lora_modules_to_save",
             "rank_pattern", "alpha_pattern", "layers_to_transform", "exclude_modules",
             "trainable_token_indices"}
QUANTIZATION = {"load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant",
                "bnb_4bit_quant_storage", "bnb_4bit_compute_dtype", "llm_int8_skip_modules"}


@functools.cache
def stack():
    import datasets
    import peft
    import torch
    import transformers
    import trl

    datasets.disable_progress_bars()
    torch.set_num_threads(1)  # faster than two on models this small
    return datasets, peft, torch, transformers, trl


def load_rows(datasets, file, cache):
    return datasets.load_dataset("json", data_files={"train": str(file)}, cache_dir=cache)["train"]


def log_history(flags, trainer="SFT"):
    """log_history of TRL's trainer of that name for the flags that base_flags makes."""
    return _log_history(json.dumps({k: str(v) if isinstance(v, pathlib.Path) else v
                                    for k, v in flags.items() if k != "output_dir"}), trainer)


def trl_class(name):
    """ORPO and CPO stand in a folder of their own."""
    trl = stack()[4]
    method = name.removesuffix("Config").removesuffix("Trainer")
    if method not in ("ORPO", "CPO"):
        return getattr(trl, name)
    return getattr(importlib.import_module(f"trl.experimental.{method.lower()}"), name)


def model_class(trainer):
    """transformers' class of the models that the trainer trains."""
    transformers = stack()[3]
    return (transformers.AutoModelForSequenceClassification if trainer == "Reward"
            else transformers.AutoModelForCausalLM)


def steps_beside(found, expected):
    """Of two log histories without their summaries: (ours, theirs, the prefix of the figures, what to say of them)."""
    found, expected = ([row for row in rows if "train_runtime" not in row] for rows in (found, expected))
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for ours, theirs in zip(found, expected):
        prefix = "eval_" if "eval_loss" in theirs else ""
        yield ours, theirs, prefix, f"step {ours['step']}: {ours} but the reference has {theirs}"


def quantised_model(flags, folder, lora, trainer="SFT"):
    """The model with its adapter over a base that bitsandbytes quantised; QLoRA's preparation."""
    _, peft, torch, transformers, _ = stack()
    settings = {k: v for k, v in flags.items() if k in QUANTIZATION}
    base = model_class(trainer).from_pretrained(
        folder, dtype=torch.float32, device_map="cpu",
        quantization_config=transformers.BitsAndBytesConfig(
            **{"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32, **settings}))
    base = peft.prepare_model_for_kbit_training(
        base, use_gradient_checkpointing=flags.get("gradient_checkpointing", True))
    transformers.set_seed(flags.get("seed", 42))
    model = peft.get_peft_model(base, lora)
    model.fp32_values = {n: p.detach().clone() for n, p in model.named_parameters()
                         if p.requires_grad}
    return model


# Flags and the names that PEFT has for them.
NAMES = {"lora_r": "r", "lora_target_modules": "target_modules",
         "lora_target_parameters": "target_parameters",
         "lora_modules_to_save": "modules_to_save"}
# Those that flags give as JSON.
AS_JSON = {"rank_pattern", "alpha_pattern", "trainable_token_indices"}
SHARED = ["lora_target_modules", "lora_modules_to_save"]
METHODS = {
    "LORA": ("LoraConfig", SHARED + ["lora_r", "lora_alpha", "lora_dropout", "use_rslora",
                                     "use_dora", "init_lora_weights", "lora_bias", "bias",
                                     "rank_pattern", "alpha_pattern", "layers_to_transform",
                                     "exclude_modules", "trainable_token_indices", "lora_target_parameters"]),
    "IA3": ("IA3Config", SHARED + ["feedforward_modules"]),
    "VERA": ("VeraConfig", SHARED + ["lora_r", "d_initial", "projection_prng_key"]),
    "PROMPT_TUNING": ("PromptTuningConfig", ["num_virtual_tokens", "prompt_tuning_init",
                                             "prompt_tuning_init_text"]),
    "PREFIX_TUNING": ("PrefixTuningConfig", ["num_virtual_tokens", "init_weights",
                                              "prefix_projection", "encoder_hidden_size"]),
}


def adapter_config(peft, flags, trainer="SFT"):
    """PEFT's configuration for the flags of a run."""
    kind, names = METHODS[flags.get("peft_type", "LORA")]
    settings = {NAMES.get(n, n): json.loads(flags[n]) if n in AS_JSON else flags[n]
                for n in names if n in flags}
    if settings.get("prompt_tuning_init") == "TEXT":
        settings["tokenizer_name_or_path"] = flags["model_name_or_path"]
    task = "SEQ_CLS" if trainer == "Reward" else "CAUSAL_LM"
    return getattr(peft, kind)(task_type=task, **settings)


def restore_fp32_adapters(model):
    """TRL rounds adapters over a quantised base to bf16; ours keep fp32 masters."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.data = model.fp32_values[name]


@functools.cache
def _log_history(text, trainer):
    flags = json.loads(text)
    datasets, peft, _, transformers, _ = stack()
    with tempfile.TemporaryDirectory() as folder:
        settings = {k: None if v == "none" else v for k, v in flags.items()
                    if k not in OWN_FLAGS | QUANTIZATION}
        if "warmup_ratio" in flags:
            settings["warmup_steps"] = flags["warmup_ratio"]
        args = trl_class(trainer + "Config")(
            output_dir=folder + "/out", use_cpu=True, report_to="none", save_strategy="no",
            disable_tqdm=True, **settings)
        model, lora = flags["model_name_or_path"], None
        if "adapter_name_or_path" in flags:
            base = model_class(trainer).from_pretrained(model)
            tokenizer = transformers.AutoTokenizer.from_pretrained(model)
            model = peft.PeftModel.from_pretrained(base, flags["adapter_name_or_path"],
                                                   is_trainable=True)
        else:
            # These two make none themselves.
            tokenizer = transformers.AutoTokenizer.from_pretrained(model) if trainer in ("ORPO", "CPO") else None
            if flags.get("use_peft"):
                lora = adapter_config(peft, flags, trainer)
        if QUANTIZATION & flags.keys():
            model, lora = quantised_model(flags, model, lora, trainer), None
            tokenizer = transformers.AutoTokenizer.from_pretrained(flags["model_name_or_path"])
        data = pathlib.Path(flags["dataset_name"])
        evaluates = flags.get("eval_strategy", "no") != "no"
        trainer = trl_class(trainer + "Trainer")(
            model=model, args=args, peft_config=lora, processing_class=tokenizer,
            train_dataset=load_rows(datasets, data / "train.jsonl", folder),
            eval_dataset=load_rows(datasets, data / "test.jsonl", folder) if evaluates else None)
        trainer.remove_callback(transformers.PrinterCallback)
        if QUANTIZATION & flags.keys():
            restore_fp32_adapters(model)
        trainer.train()
        return trainer.state.log_history
