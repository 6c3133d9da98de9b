# Oracle: the commands and files of public guides, word for word, with the names of model, data set
# and script pointing at tiny ones and fewer processes and steps; what must come out is a finished
# run whose result transformers or peft load.
import json
import math
import re
import subprocess

import pytest
import yaml

from running import PROGRAM, environment
from tiny_llama import make_rows, write_rows
from tiny_t5 import make_pairs, save_t5, teach
from two_machines import two_machines

TOP = {"compute_environment": "LOCAL_MACHINE", "debug": False, "distributed_type": "FSDP",
       "downcast_bf16": "no", "machine_rank": 0, "main_training_function": "main",
       "mixed_precision": "bf16", "num_machines": 1, "num_processes": 8, "rdzv_backend": "static",
       "same_network": True, "tpu_env": [], "tpu_use_cluster": False, "tpu_use_sudo": False,
       "use_cpu": False}
FSDP = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_forward_prefetch": False, "fsdp_offload_params": False,
        "fsdp_sharding_strategy": "FULL_SHARD", "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_sync_module_states": True, "fsdp_use_orig_params": False}


@pytest.fixture
def place(tmp_path, inputs, monkeypatch):
    """A folder to run in, with a data set whose text is in `content`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for split, count in (("train", 40), ("test", 8)):
        rows = make_rows("text", count, seed=split)
        write_rows(tmp_path / "data" / f"{split}.jsonl", [{"content": row["text"]} for row in rows])
    return tmp_path


def words_of(line):
    """A command as a guide prints it: continued lines, quotes."""
    return re.findall(r'--[\w-]+="[^"]*"|"[^"]*"|\S+', line.replace("\\\n", " "))


def unquoted(words):
    return [re.sub(r'^(--[\w-]+=)?"(.*)"$', r"\1\2", word) for word in words]


def start(words):
    return subprocess.Popen([str(PROGRAM), *unquoted(words)], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, env=environment())


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, out + err
    return out, err


def changed(line, **values):
    """The line with other values of some flags; every one of them must be in it."""
    words = words_of(line)
    for name, value in values.items():
        at = words.index(f"--{name}")
        words[at + 1] = str(value)
    return words


def loads_whole(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def step_count(folder):
    return json.loads((folder / "trainer_state.json").read_text())["global_step"]


TWO_MACHINES = r"""
launch --config_file configs/fsdp_config.yaml --main_process_ip $MASTER_ADDR \
  --main_process_port $MASTER_PORT --machine_rank $MACHINE_RANK \
  --num_processes 16 --num_machines 2 train.py --model_name "meta-llama/Llama-2-70b-chat-hf" \
  --dataset_name "smangrul/code-chat-assistant-v1" --max_seq_len 2048 --max_steps 500 \
  --logging_steps 25 --eval_steps 100 --save_steps 250 --bf16 True --packing True \
  --output_dir "/shared_storage/experiments/full-finetune-llama-chat-asst" \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 1 --dataset_text_field "content" \
  --use_gradient_checkpointing True --learning_rate 5e-5 --lr_scheduler_type "cosine" \
  --weight_decay 0.01 --warmup_ratio 0.03 --use_flash_attn True
"""


def slurm_variables(node):
    """Those of a launcher that srun starts once a node, as the guide's script does."""
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NTASKS": "2",
            "SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0",
            "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "node[0-1]"}


def test_full_fine_tuning_on_two_machines(place, inputs):
    # The file says one machine of eight processes; the flags win.
    (place / "configs").mkdir()
    section = {**FSDP, "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}
    (place / "configs" / "fsdp_config.yaml").write_text(
        yaml.safe_dump({**TOP, "fsdp_config": section}))
    with two_machines() as (first, second, _):
        runs = [machine.start(
            [PROGRAM, *unquoted(changed(
                TWO_MACHINES, main_process_ip=first.address, main_process_port=29777,
                machine_rank=rank, num_processes=2, model_name=inputs.model("plain"),
                dataset_name="data", max_seq_len=64, max_steps=4, logging_steps=1, save_steps=2,
                output_dir="out"))], **environment(), **slurm_variables(rank))
            for rank, machine in enumerate((first, second))]
        outputs = [run.communicate(timeout=120)[0] for run in runs]
        assert [run.returncode for run in runs] == [0, 0], outputs
    assert step_count(place / "out") == 4
    assert {"checkpoint-2", "checkpoint-4"} <= {p.name for p in (place / "out").iterdir()}
    loads_whole(place / "out")


LORA = r"""
launch --config_file "configs/fsdp_config.yaml" train.py --seed 100 \
  --model_name_or_path "meta-llama/Llama-2-70b-hf" --dataset_name "smangrul/ultrachat-10k-chatml" \
  --chat_template_format "chatml" --add_special_tokens False --append_concat_token False \
  --splits "train,test" --max_seq_len 2048 --num_train_epochs 1 --logging_steps 5 \
  --log_level "info" --logging_strategy "steps" --eval_strategy "epoch" --save_strategy "epoch" \
  --push_to_hub --hub_private_repo True --hub_strategy "every_save" --bf16 True --packing True \
  --learning_rate 1e-4 --lr_scheduler_type "cosine" --weight_decay 1e-4 --warmup_ratio 0.0 \
  --max_grad_norm 1.0 --output_dir "llama-sft-lora-fsdp" --per_device_train_batch_size 8 \
  --per_device_eval_batch_size 8 --gradient_accumulation_steps 4 --gradient_checkpointing True \
  --use_reentrant False --dataset_text_field "content" --use_flash_attn True \
  --use_peft_lora True --lora_r 8 --lora_alpha 16 --lora_dropout 0.1 \
  --lora_target_modules "all-linear" --use_4bit_quantization False
"""


# A tokenizer that knows the chat format, and one like Llama 2's, whose 32000 tokens become 32008
# rows as the guide's script makes them.
BASES = {"plain": None, "llama2-wide": 32008}


def load_guide_adapter(base, folder, rows):
    """The adapter on its base, as whoever follows the guide loads it."""
    from peft import PeftModel
    from safetensors.torch import load_file

    model = loads_whole(base)
    tensors = load_file(folder / "adapter_model.safetensors")
    stored = {name: value for name, value in tensors.items() if "lora_" not in name}
    if rows:
        assert {tuple(value.shape) for value in stored.values()} == {(rows, 64)}
        assert len(stored) == 2
        model.resize_token_embeddings(rows)
    else:
        assert not stored
    return PeftModel.from_pretrained(model, folder)


@pytest.mark.parametrize("base", BASES)
def test_lora_on_eight_devices(place, inputs, base):
    (place / "configs").mkdir()
    (place / "configs" / "fsdp_config.yaml").write_text(
        yaml.safe_dump({**TOP, "num_processes": 2, "fsdp_config": FSDP}))
    words = changed(LORA, model_name_or_path=inputs.model(base),
                    dataset_name=inputs.data("messages"), max_seq_len=32,
                    gradient_accumulation_steps=1)
    out, err = finish(start(words))
    # What the guide asks for and nobody does here is said.
    assert "launch" not in err and "push_to_hub: has no effect here" in err
    assert (place / "llama-sft-lora-fsdp" / "adapter_model.safetensors").exists()
    model = load_guide_adapter(inputs.model(base), place / "llama-sft-lora-fsdp", BASES[base])
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (8, 16, 0.1)
    names = {name.split(".")[-1] for name, module in model.named_modules()
             if hasattr(module, "lora_A")}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize("base", BASES)
def test_qlora_on_two_devices(place, inputs, base):
    (place / "configs").mkdir()
    (place / "configs" / "fsdp_config.yaml").write_text(yaml.safe_dump(
        {**TOP, "mixed_precision": "no", "num_processes": 2,
         "fsdp_config": {**FSDP, "fsdp_offload_params": True}}))
    line = LORA.replace("--use_4bit_quantization False", """
        --use_4bit_quantization True --use_nested_quant True --bnb_4bit_compute_dtype "bfloat16"
        --bnb_4bit_quant_storage_dtype "bfloat16" """).replace("\n        ", " ")
    words = changed(line.replace("--use_reentrant False", "--use_reentrant True").strip(),
                    model_name_or_path=inputs.model(base),
                    dataset_name=inputs.data("messages"), max_seq_len=32,
                    per_device_train_batch_size=2, per_device_eval_batch_size=2,
                    gradient_accumulation_steps=2, output_dir="llama-sft-qlora-fsdp")
    finish(start(words))
    folder = place / "llama-sft-qlora-fsdp"
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["r"] == 8 and settings["target_modules"]
    model = load_guide_adapter(inputs.model(base), folder, BASES[base])
    assert any(value.abs().max() > 0 for name, value in model.named_parameters()
               if "lora_B" in name)


DS_CONFIG = {
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                                 "warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 2,
                          "offload_optimizer": {"device": "cpu", "pin_memory": True},
                          "allgather_partitions": True, "allgather_bucket_size": 1e8,
                          "overlap_comm": True, "reduce_scatter": True, "reduce_bucket_size": 1e8,
                          "contiguous_gradients": True},
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto"}

# `deepspeed` with its name replaced, and the launcher's own word.
@pytest.mark.parametrize("line", [
    "--num_gpus=2 your_program.py {flags} --deepspeed ds_config.json",
    "launch --num_gpus 2 sft {flags} --deepspeed ds_config.json",
])
def test_deepspeed_config(place, inputs, line):
    (place / "ds_config.json").write_text(json.dumps(DS_CONFIG))
    flags = (f"--model_name_or_path {inputs.model('plain')} --dataset_name data --output_dir out "
             "--dataset_text_field content --max_length 32 --max_steps 3 --logging_steps 1 "
             "--per_device_train_batch_size 2 --learning_rate 1e-3 --warmup_steps 2 --bf16 False")
    out, err = finish(start(line.format(flags=flags).split()))
    assert "reduce_bucket_size 100000000" in err and "1.8 GB" in err
    rows = json.loads((place / "out" / "trainer_state.json").read_text())["log_history"]
    # DeepSpeed's warm-up leaves the first two updates without effect.
    rates = [row["learning_rate"] for row in rows if "loss" in row]
    assert rates == pytest.approx([0, 0, 1e-3])
    loads_whole(place / "out")


@pytest.mark.parametrize("name", ["fsdp_config", "fsdp_config/"])
def test_trainer_with_fsdp_words_and_a_folder(place, inputs, name):
    folder = place / "path" / "to" / "fsdp_config"
    folder.mkdir(parents=True)
    section = {**FSDP, "fsdp_backward_prefetch_policy": "BACKWARD_PRE", "fsdp_sharding_strategy": 1,
               "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer",
               "fsdp_use_orig_params": True}
    del section["fsdp_backward_prefetch"]
    (folder / "fsdp_config.yaml").write_text(yaml.safe_dump(
        {**TOP, "num_processes": 2, "fsdp_config": section}))
    line = (f'launch --fsdp="full shard" --fsdp_config="path/to/{name}" my-trainer-script.py '
            f"--model_name_or_path {inputs.model('plain')} --dataset_name data --output_dir out "
            "--dataset_text_field content --max_length 32 --max_steps 2 --logging_steps 1")
    out, err = finish(start(words_of(line)))
    assert "understood as fsdp_sharding_strategy FULL_SHARD" in err
    assert step_count(place / "out") == 2
    loads_whole(place / "out")


def test_t5_guide(place):
    # The guide's file word for word and its script without any argument.
    section = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
               "fsdp_backward_prefetch_policy": "BACKWARD_PRE", "fsdp_offload_params": True,
               "fsdp_sharding_strategy": 1, "fsdp_state_dict_type": "FULL_STATE_DICT",
               "fsdp_transformer_layer_cls_to_wrap": "T5Block"}
    file = {"compute_environment": "LOCAL_MACHINE", "deepspeed_config": {}, "command_file": None,
            "commands": None, "distributed_type": "FSDP", "downcast_bf16": "no",
            "dynamo_backend": "NO", "fsdp_config": section, "gpu_ids": None, "machine_rank": 0,
            "main_process_ip": None, "main_process_port": None, "main_training_function": "main",
            "megatron_lm_config": {}, "mixed_precision": "no", "num_machines": 1,
            "num_processes": 2, "rdzv_backend": "static", "same_network": True, "tpu_name": None,
            "tpu_zone": None, "use_cpu": False}
    (place / "fsdp_config.yaml").write_text(yaml.safe_dump(file))
    shown = subprocess.run([str(PROGRAM), "config", "show", "--config_file", "fsdp_config.yaml"],
                           text=True, capture_output=True, env=environment())
    assert shown.returncode == 0, shown.stderr
    for line in ("fsdp_sharding_strategy: FULL_SHARD", "num_processes: 2", "bf16: false",
                 "fsdp_offload_params: true",
                 "fsdp_transformer_layer_cls_to_wrap: [T5Block]",
                 "fsdp_backward_prefetch: BACKWARD_PRE"):
        assert f"\n{line}  # fsdp_config.yaml:" in shown.stdout, line
    # The script's own names, in the folder that it is started in.
    teach(save_t5(place / "t5-base", dropout_rate=0.1), make_pairs(480))
    data = place / "temp" / "data" / "FinancialPhraseBank-v1.0"
    data.mkdir(parents=True)
    write_rows(data / "financial_phrase_bank_train.jsonl", make_pairs(480))
    write_rows(data / "financial_phrase_bank_val.jsonl", make_pairs(21, seed=1))
    out, err = finish(start(words_of(
        "launch --config_file fsdp_config.yaml examples/peft_lora_seq2seq_accelerate_fsdp.py")))
    assert "running the built-in recipe seq2seq in its place" in err
    assert "2 ranks" in out and "FULL_SHARD" in out
    summary = re.search(r"^epoch=0: train_ppl=(\S+) train_epoch_loss=(\S+) eval_ppl=(\S+) "
                        r"eval_epoch_loss=(\S+)$", out, re.MULTILINE)
    train_ppl, train_loss, eval_ppl, eval_loss = (float(text) for text in summary.groups())
    assert train_ppl == pytest.approx(math.exp(train_loss))
    assert eval_ppl == pytest.approx(math.exp(eval_loss)) and eval_loss < train_loss
    accuracy = float(re.search(r"^accuracy=(\S+)$", out, re.MULTILINE).group(1))
    check_t5_result(place, accuracy)


def check_t5_result(place, accuracy):
    """PEFT loads the adapter, and the script's own count over it gives the printed accuracy."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = place / "t5-base_LORA_SEQ_2_SEQ_LM"
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["task_type"] == "SEQ_2_SEQ_LM"
    assert (settings["r"], settings["lora_alpha"], settings["lora_dropout"]) == (8, 32, 0.1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    base = AutoModelForSeq2SeqLM.from_pretrained(place / "t5-base")
    model = PeftModel.from_pretrained(base, folder).eval()
    rows = make_pairs(21, seed=1)
    batch = tokenizer([row["sentence"] for row in rows], max_length=64, padding="max_length",
                      truncation=True, return_tensors="pt")
    labels = tokenizer([row["label"] for row in rows], max_length=2, padding="max_length",
                       truncation=True, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(**{k: batch[k] for k in ("input_ids", "attention_mask")},
                       labels=labels).logits
    texts = tokenizer.batch_decode(logits.argmax(-1), skip_special_tokens=True)
    correct = sum(text.strip() == row["label"] for text, row in zip(texts, rows))
    assert 0 < correct < len(rows), "all answers alike would prove nothing"
    assert accuracy == pytest.approx(100 * correct / len(rows))


GLUE = r"""
launch run_glue.py \
  --model_name_or_path google-bert/bert-base-cased \
  --task_name $TASK_NAME \
  --do_train \
  --do_eval \
  --max_seq_length 128 \
  --per_device_train_batch_size 32 \
  --learning_rate 2e-5 \
  --num_train_epochs 3 \
  --output_dir /tmp/$TASK_NAME/
"""


def test_the_command_of_glue(place, inputs):
    """Of transformers' examples, with a folder of one's own in the place of the Hub's. Oracle of the accuracy at the end:
    transformers' model of the result."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    write_rows(place / "data" / "train.jsonl", make_rows("pairs", 20))
    held_out = make_rows("pairs", 31)[20:]
    write_rows(place / "data" / "validation.jsonl", held_out)
    words = changed(GLUE, model_name_or_path=inputs.model("plain"), task_name="MRPC", per_device_train_batch_size=8, num_train_epochs=1,
                    output_dir="out")
    finish(start([*words, "--dataset_name", "data"]))
    assert step_count(place / "out") == 3
    model = AutoModelForSequenceClassification.from_pretrained(place / "out").eval()
    assert model.num_labels == 2
    rows = [json.loads(line) for line in (place / "out" / "metrics.jsonl").open()]
    evaluations = [row for row in rows if "eval_accuracy" in row]
    assert [row["step"] for row in evaluations] == [3]
    tokenizer = AutoTokenizer.from_pretrained(place / "out")
    batch = tokenizer([row["sentence1"] for row in held_out], [row["sentence2"] for row in held_out], padding=True,
                      return_tensors="pt")
    with torch.no_grad():
        answers = model(**batch).logits.argmax(-1).tolist()
    right = sum(answer == row["label"] for answer, row in zip(answers, held_out))
    assert evaluations[0]["eval_accuracy"] == pytest.approx(right / len(held_out))
