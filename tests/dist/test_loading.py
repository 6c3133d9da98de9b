# Oracle: the run in which every rank reads its own shard, to the bit; sizes computed from shapes.
import functools
import json
import re
import shutil
import socket
import subprocess

import pytest

from running import PROGRAM, base_flags, environment, flag_words, run_strata, run_strata_raw

LORA = dict(use_peft=True, lora_r=3, lora_dropout=0.3, lora_target_modules=["q_proj", "up_proj"])
TABLE_ROW = re.compile(r"CPU rank (\d+) +(\d+) +(-?\d+) +(\d+) +(\d+)")


def flags_of(inputs, output, model="odd", **flags):
    return base_flags(inputs.model(model), inputs.data("messages", train=28), output,
                      **{"max_steps": 4, **flags})


def weights(run):
    return {name: (run.folder / name).read_bytes()
            for name in ("adapter_model.safetensors", "model.safetensors")
            if (run.folder / name).exists()}


def assert_same(found, expected):
    assert found.history == expected.history
    assert weights(found) == weights(expected) != {}


@pytest.mark.parametrize("world,model,settings", [
    (1, "odd", {}),
    (2, "odd", dict(LORA)),
    (2, "tied", dict(sharding_strategy="NO_SHARD")),
    (2, "odd", dict(zero_stage=2)),
    (3, "odd", dict(gradient_accumulation_steps=2)),
    (3, "tied", dict(LORA, lora_modules_to_save=["lm_head"], dtype="bfloat16")),
    (2, "plain", dict(LORA, load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    (4, "odd", dict(sharding_strategy="HYBRID_SHARD", dp_shard_size=2, dp_replicate_size=2)),
])
def test_sent_weights_are_those_that_ranks_read(inputs, tmp_path, world, model, settings):
    runs = [run_strata(flags_of(inputs, tmp_path / str(sends), model, **settings,
                                fsdp_cpu_ram_efficient_loading=sends), world)
            for sends in (False, True)]
    assert_same(runs[1], runs[0])


def test_continued_adapter_is_sent(inputs, tmp_path):
    first = run_strata(flags_of(inputs, tmp_path / "first", **LORA))
    runs = [run_strata(flags_of(inputs, tmp_path / str(sends), adapter_name_or_path=first.folder,
                                fsdp_cpu_ram_efficient_loading=sends), 2)
            for sends in (False, True)]
    assert_same(runs[1], runs[0])


def test_head_that_only_the_file_unties_is_sent(inputs, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(inputs.model("odd"), model)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(dict(settings, tie_word_embeddings=True)))
    flags = dict(flags_of(inputs, None), model_name_or_path=model)
    runs = [run_strata(dict(flags, output_dir=tmp_path / str(sends),
                            fsdp_cpu_ram_efficient_loading=sends), 2)
            for sends in (False, True)]
    assert_same(runs[1], runs[0])


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_on_hosts(folders, flags, before=lambda rank: None):
    """A rank in each folder, as torchrun would start them; return codes and texts. `before(rank)` is
    called in its process."""
    port = str(free_port())
    processes = [
        subprocess.Popen([str(PROGRAM), "sft", *flag_words(flags)], cwd=folder, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         preexec_fn=functools.partial(before, rank),
                         env={**environment(), "RANK": str(rank), "LOCAL_RANK": "0",
                              "WORLD_SIZE": str(len(folders)), "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": port})
        for rank, folder in enumerate(folders)]
    texts = [process.communicate(timeout=60)[0] for process in processes]
    return [process.returncode for process in processes], texts


@pytest.fixture
def hosts(inputs, tmp_path):
    """Two folders that each hold a model; the second without weights."""
    folders = [tmp_path / "host0", tmp_path / "host1"]
    for folder in folders:
        shutil.copytree(inputs.model("odd"), folder / "m")
    (folders[1] / "m" / "model.safetensors").unlink()
    return folders


def test_hosts_without_weights_get_them_from_rank_0(inputs, hosts, tmp_path):
    flags = dict(flags_of(inputs, tmp_path / "out"), model_name_or_path="m")
    expected = run_strata(flags_of(inputs, tmp_path / "shared"), 2)
    codes, texts = run_on_hosts(hosts, dict(flags, fsdp_cpu_ram_efficient_loading=True))
    assert codes == [0, 0], texts
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == \
        (expected.folder / "model.safetensors").read_bytes()
    codes, texts = run_on_hosts(hosts, dict(flags, output_dir=tmp_path / "each"))
    assert 0 not in codes
    missing = "no weights of the model (m: found neither model.safetensors nor model.safetensors.index.json)"
    assert f'found "{missing}" on rank 1 but "weights of the model with content' in texts[1]
    assert f'on rank 0 but "{missing}" on rank 1, expected the same on all ranks; start every rank' in texts[0]


def test_weights_that_rank_0_cannot_read_end_all_ranks(inputs, hosts, tmp_path):
    flags = dict(flags_of(inputs, tmp_path / "out"), model_name_or_path="m",
                 fsdp_cpu_ram_efficient_loading=True)
    weights = hosts[0] / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    codes, texts = run_on_hosts(hosts, flags)
    assert 0 not in codes
    assert "model.safetensors" in texts[0]
    assert "rank 0" in texts[1]


def test_sync_module_states_belongs_to_rank_0_loading(inputs, tmp_path):
    run = run_strata_raw(flags_of(inputs, tmp_path, fsdp_cpu_ram_efficient_loading=True,
                                  fsdp_sync_module_states=False), 2)
    assert run.returncode != 0
    assert "expected true (as accelerate does)" in run.text


@pytest.mark.parametrize("sends", [False, True])
def test_memory_of_loading_is_the_shard_and_one_unit(inputs, tmp_path, sends):
    """Frozen bf16 weights of known size: what a rank holds afterwards and at its peak (I9)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = dict(hidden_size=1024, intermediate_size=4096, num_hidden_layers=4,
                num_attention_heads=8, num_key_value_heads=8)
    shutil.copytree(inputs.model("plain"), tmp_path / "wide")
    vocabulary = json.loads((tmp_path / "wide" / "config.json").read_text())["vocab_size"]
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, eos_token_id=2, pad_token_id=0,
                                         bos_token_id=None, **wide)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "wide")
    mb = 2 * sum(p.numel() for p in model.parameters()) / 2**20
    unit_mb = 2 * sum(p.numel() for p in model.model.layers[0].parameters()) / 2**20
    world = 2
    run = run_strata(dict(flags_of(inputs, tmp_path / "out", max_steps=1, use_peft=True, lora_r=1,
                                   lora_target_modules=["q_proj"], dtype="bfloat16",
                                   fsdp_cpu_ram_efficient_loading=sends),
                          model_name_or_path=tmp_path / "wide"), world)
    rows = [tuple(map(int, row)) for row in TABLE_ROW.findall(run.text)]
    assert [row[0] for row in rows] == [0, 1], run.text
    slack = 20  # MB: what the program itself grows by, buffers between ranks included
    for rank, before, consumed, peak, total in rows:
        assert mb / world - 1 <= consumed <= mb / world + slack
        # Of what rank 0 sends it alone holds a unit whole; the others get their parts.
        beside = 2 * unit_mb if sends and rank == 0 else 0 if sends else unit_mb
        assert consumed - 1 <= peak <= mb / world + beside + slack
        assert abs(before + peak - total) <= 1
