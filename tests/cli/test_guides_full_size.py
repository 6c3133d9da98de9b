# Oracle: the same commands as in test_guides.py at their full size: the numbers of ranks, layers and
# parameters that the guides name, with nothing but a config.json of the model.
import json
import subprocess

import pytest
import yaml

from running import PROGRAM, environment
from test_guides import DS_CONFIG, FSDP, LORA, TOP, TWO_MACHINES, changed, unquoted, words_of

LLAMA_70B = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
             "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
             "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096,
             "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "float16"}
LAYER = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(LLAMA_70B))
    (tmp_path / "configs").mkdir()
    return tmp_path


def dry_run(words, file=None):
    if file:
        with open("configs/fsdp_config.yaml", "w") as target:
            yaml.safe_dump(file, target)
    assert words[0] == "launch"
    result = subprocess.run([str(PROGRAM), "launch", "--dry_run", *unquoted(words[1:])], text=True,
                            capture_output=True, env=environment(), timeout=120)
    assert result.returncode == 0, result.stderr
    assert "dry run: nothing was loaded or trained" in result.stdout
    assert "model.layers.0 .. model.layers.79" in result.stdout
    return result.stdout


def test_two_machines_of_eight(place):
    file = {**TOP, "fsdp_config": {**FSDP,
                                   "fsdp_transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}}
    text = dry_run(changed(TWO_MACHINES, main_process_ip="10.77.0.1", main_process_port=29777,
                           machine_rank=0, model_name="llama"), file)
    assert "16 shards" in text and f"{LAYER}" in text
    assert "max_length: 2048" in text and "max_steps: 500" in text


def test_lora_on_eight(place):
    text = dry_run(changed(LORA, model_name_or_path="llama"),
                   {**TOP, "fsdp_config": FSDP})
    assert "8 shards" in text and "lora_r: 8" in text


def test_qlora_on_two(place):
    line = LORA
    for old, new in [("--use_4bit_quantization False",
                      "--use_4bit_quantization True --use_nested_quant True --bnb_4bit_compute_dtype bfloat16 "
                      "--bnb_4bit_quant_storage_dtype bfloat16"),
                     ("--use_reentrant False", "--use_reentrant True"),
                     ("--per_device_train_batch_size 8", "--per_device_train_batch_size 2"),
                     ("--per_device_eval_batch_size 8", "--per_device_eval_batch_size 2"),
                     ("--gradient_accumulation_steps 4", "--gradient_accumulation_steps 2")]:
        assert old in line
        line = line.replace(old, new)
    text = dry_run(changed(line, model_name_or_path="llama"),
                   {**TOP, "mixed_precision": "no", "num_processes": 2,
                    "fsdp_config": {**FSDP, "fsdp_offload_params": True}})
    assert "2 shards" in text and "load_in_4bit: true" in text


def test_deepspeed_on_eight(place):
    (place / "ds_config.json").write_text(json.dumps(DS_CONFIG))
    text = dry_run("launch --num_gpus 8 your_program.py --model_name_or_path llama --dataset_name d "
                   "--deepspeed ds_config.json".split())
    assert "8 shards" in text and "fsdp_sharding_strategy: ZERO2" in text


TRAINER = ('launch --fsdp="full shard" --fsdp_config="path/to/fsdp_config/" my-trainer-script.py '
           "--model_name_or_path llama --dataset_name d")


def write_trainer_file(place, layer):
    """As the guide prints it, but for the layer's class."""
    folder = place / "path" / "to" / "fsdp_config"
    folder.mkdir(parents=True)
    section = {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
               "fsdp_backward_prefetch_policy": "BACKWARD_PRE",
               "fsdp_cpu_ram_efficient_loading": True, "fsdp_forward_prefetch": False,
               "fsdp_offload_params": False, "fsdp_sharding_strategy": 1,
               "fsdp_state_dict_type": "SHARDED_STATE_DICT", "fsdp_sync_module_states": True,
               "fsdp_transformer_layer_cls_to_wrap": layer, "fsdp_use_orig_params": True}
    (folder / "fsdp_config.yaml").write_text(
        yaml.safe_dump({**TOP, "num_processes": 2, "fsdp_config": section}))
    return "path/to/fsdp_config/fsdp_config.yaml"


def test_trainer_on_two(place):
    write_trainer_file(place, "LlamaDecoderLayer")
    text = dry_run(words_of(TRAINER))
    assert "2 shards" in text and "fsdp_forward_prefetch: false" in text


def test_trainer_with_the_layer_of_another_model(place):
    """The guide's own file names BERT's."""
    file = write_trainer_file(place, "BertLayer")
    line = unquoted(words_of(TRAINER))
    result = subprocess.run([str(PROGRAM), "launch", "--dry_run", *line[1:]], text=True,
                            capture_output=True, env=environment(), timeout=120)
    assert result.returncode == 2 and result.stdout == ""
    at = (place / file).read_text().splitlines().index(
        "  fsdp_transformer_layer_cls_to_wrap: BertLayer") + 1
    assert result.stderr.splitlines()[-1] == (
        f'error: {file}:{at} (fsdp_transformer_layer_cls_to_wrap): found "BertLayer", expected a '
        "block of this model (LlamaDecoderLayer, Embedding, Linear); name one of them or leave the "
        "setting out")


def test_a_script_alone_is_told_what_it_needs(place):
    result = subprocess.run([str(PROGRAM), "launch", "my-trainer-script.py"], text=True,
                            capture_output=True, env=environment(), timeout=60)
    assert result.returncode == 2
    assert result.stderr == (
        "my-trainer-script.py: running the built-in recipe sft in its place\n"
        "error: model_name_or_path: found nothing, expected a folder with a checkpoint; add "
        "--model_name_or_path DIR (or --config_name to train from scratch)\n")


def test_t5_base_on_two(place):
    (place / "t5-base").mkdir()
    (place / "t5-base" / "config.json").write_text(json.dumps({
        "model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12,
        "num_heads": 12, "vocab_size": 32128, "decoder_start_token_id": 0}))
    (place / "fsdp_config.yaml").write_text(yaml.safe_dump(
        {**TOP, "mixed_precision": "no", "num_processes": 2,
         "fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
                         "fsdp_offload_params": True, "fsdp_sharding_strategy": 1,
                         "fsdp_transformer_layer_cls_to_wrap": "T5Block"}}))
    text = subprocess.run(
        [str(PROGRAM), "launch", "--dry_run", "--config_file", "fsdp_config.yaml",
         "examples/peft_lora_seq2seq_accelerate_fsdp.py"], text=True, capture_output=True,
        env=environment(), timeout=120, check=True).stdout
    # print_trainable_parameters() of the script: 884,736 || 223,788,288.
    assert "223788288 parameters, 884736 trained" in text
    assert "encoder.block" in text and "decoder.block" in text and "2 shards" in text
    assert "max_source_length: 64" in text and "lora_alpha: 32" in text
