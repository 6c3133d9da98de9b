"""Short runs of the recipe classify whose planned memory stands beside what was measured: the table, its encoders and texts.
How a row runs and what it says: memory_table.py."""

import random

import memory_table
import tiny_encoder
import tiny_llama
from memory_table import H, HEADS, I, L, LORA, V, accumulation

BERT = dict(hidden_size=H, intermediate_size=I, num_hidden_layers=L, num_attention_heads=HEADS, max_position_embeddings=512)
ENCODERS = {**dict.fromkeys(("bert", "bert_mlm", "roberta", "xlm_roberta"), BERT),
            "eurobert": BERT, "deberta": dict(BERT, position_buckets=64), "albert": dict(BERT, embedding_size=128),
            "distilbert": dict(dim=H, hidden_dim=I, n_layers=L, n_heads=HEADS, max_position_embeddings=512)}
EVALUATED = dict(eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8, splits="train,test")

# world, strategy, then what differs; nothing is recomputed unless a row says so.
TABLE = [
    (1, "FULL_SHARD", {}),
    (2, "FULL_SHARD", dict(bf16=True, **EVALUATED)),
    (1, "NO_SHARD", dict(LORA, activation_checkpointing="full", **EVALUATED)),
    (2, "FULL_SHARD", dict(LORA, load_in_4bit=True, activation_checkpointing="selective")),
    (3, "SHARD_GRAD_OP", dict(model="gpt2", **accumulation(2))),
    (1, "NO_SHARD", dict(model="bert", **EVALUATED)),
    (1, "NO_SHARD", dict(model="bert", bf16=True, per_device_train_batch_size=8)),
    (2, "FULL_SHARD", dict(model="bert", activation_checkpointing="full")),
    (2, "FULL_SHARD", dict(LORA, model="bert", bf16=True, dtype="bfloat16", **EVALUATED)),
    (1, "NO_SHARD", dict(LORA, model="bert", load_in_4bit=True, activation_checkpointing="attention")),
    (2, "FULL_SHARD", dict(model="eurobert", bf16=True, activation_checkpointing="selective")),
    (1, "NO_SHARD", dict(model="bert undropped", per_device_train_batch_size=8)),
    (2, "FULL_SHARD", dict(model="bert undropped", activation_checkpointing="attention", **EVALUATED)),
    (2, "FULL_SHARD", dict(model="roberta", **EVALUATED)),
    (1, "NO_SHARD", dict(LORA, model="roberta", activation_checkpointing="full", per_device_train_batch_size=8)),
    (3, "ZERO2", dict(model="roberta", bf16=True, activation_checkpointing="selective", **accumulation(2))),
    (1, "NO_SHARD", dict(model="xlm_roberta", activation_checkpointing="selective", per_device_train_batch_size=8)),
    (2, "FULL_SHARD", dict(LORA, model="xlm_roberta", load_in_8bit=True, **EVALUATED)),
    (2, "NO_SHARD", dict(model="xlm_roberta", bf16=True, **EVALUATED)),
    (2, "FULL_SHARD", dict(model="distilbert", **EVALUATED)),
    (1, "NO_SHARD", dict(LORA, model="distilbert", bf16=True, lora_target_modules=["q_lin", "lin1"], per_device_train_batch_size=8)),
    (2, "SHARD_GRAD_OP", dict(model="distilbert", activation_checkpointing="full", **accumulation(2))),
    (1, "NO_SHARD", dict(model="deberta", per_device_train_batch_size=8)),
    (2, "FULL_SHARD", dict(LORA, model="deberta", bf16=True, activation_checkpointing="full", **EVALUATED)),
    (2, "FULL_SHARD", dict(model="albert", **EVALUATED)),
]


def base_of(name, llama):
    """The folder of a row's model, made on first use beside that of the plain one; all dropouts of encoders are on."""
    if name is None:
        return llama
    kind, _, undropped = name.partition(" ")
    if kind not in ENCODERS:
        return memory_table.other_model(name, llama)
    folder = llama.with_name(f"{llama.name}-{name}")
    return folder if folder.exists() else tiny_encoder.save_encoder(folder, kind, 0.0 if undropped else 0.1, V, **ENCODERS[kind])


def save_texts(folder):
    """Texts of three classes, of more tokens than any micro-batch takes of them."""
    folder.mkdir(exist_ok=True)
    rng = random.Random(4)
    for split, count in (("train", 60), ("test", 20)):
        rows = [{"text": " ".join(rng.choice(tiny_llama.WORDS) for _ in range(130)), "label": i % 3} for i in range(count)]
        tiny_llama.write_rows(folder / f"{split}.jsonl", rows)
    return folder


def run_row(row, llama, data, output):
    world, strategy, flags = row
    flags = dict(flags)
    return memory_table.run_row((world, strategy, flags), base_of(flags.pop("model", None), llama), data, output, recipe="classify")
