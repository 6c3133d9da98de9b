# Oracle: the peak of resident memory that the system measured for the same run, the bytes that its
# process groups counted, and the theory of each strategy's traffic.
import re
import subprocess

import pytest

import tiny_llama
from running import BUILD, PROGRAM, base_flags, environment, flag_words, run_strata

# Large enough that 5 % are several megabytes, small enough for seconds.
V, H, I, L, HEADS, KEYS = 4096, 384, 1024, 4, 6, 3
MODEL = dict(vocab_size=V, hidden_size=H, intermediate_size=I, num_hidden_layers=L,
             num_attention_heads=HEADS, num_key_value_heads=KEYS)
LORA = dict(use_peft=True, lora_r=8, lora_target_modules="all-linear")
PROMPT = dict(use_peft=True, peft_type="PROMPT_TUNING")
PREFIX = dict(use_peft=True, peft_type="PREFIX_TUNING")
PACKED = dict(packing=True, packing_strategy="wrapped", max_length=128)
PARTS = dict(fsdp_version=2, fsdp_reshard_after_forward=2)
WHOLE = dict(gradient_checkpointing=False)


def hybrid(shards, copies):
    return dict(parallelism_config_dp_shard_size=shards,
                parallelism_config_dp_replicate_size=copies)


def accumulation(steps):
    return dict(gradient_accumulation_steps=steps)


# world, strategy, then what differs.
TABLE = [
    (1, "FULL_SHARD", {}),
    (1, "FULL_SHARD", dict(per_device_train_batch_size=4)),
    (1, "FULL_SHARD", dict(LORA, dtype="bfloat16", **WHOLE)),
    (1, "NO_SHARD", dict(packing=False, max_length=200, **accumulation(2))),
    (2, "FULL_SHARD", {}),
    (2, "FULL_SHARD", WHOLE),
    (2, "FULL_SHARD", dict(bf16=True, **accumulation(3))),
    (2, "FULL_SHARD", dict(fp16=True)),
    (2, "FULL_SHARD", dict(LORA, lora_dropout=0.1)),
    (2, "FULL_SHARD", dict(LORA, dtype="bfloat16", per_device_train_batch_size=1)),
    (2, "FULL_SHARD", dict(LORA, load_in_4bit=True, bnb_4bit_use_double_quant=True)),
    (2, "FULL_SHARD", dict(LORA, load_in_8bit=True, optim="adamw_8bit")),
    (1, "NO_SHARD", dict(LORA, load_in_4bit=True)),
    (2, "FULL_SHARD", dict(LORA, load_in_4bit=True, dtype="bfloat16", optim="paged_adamw_8bit")),
    (2, "FULL_SHARD", dict(PROMPT, num_virtual_tokens=20)),
    (1, "NO_SHARD", dict(PROMPT, num_virtual_tokens=20, dtype="bfloat16")),
    (2, "FULL_SHARD", dict(PREFIX, num_virtual_tokens=20)),
    (2, "ZERO2", dict(PREFIX, num_virtual_tokens=20, prefix_projection=True)),
    (2, "FULL_SHARD", dict(fsdp_forward_prefetch=False, fsdp_backward_prefetch="NO_PREFETCH")),
    (2, "FULL_SHARD", dict(max_length=384, fsdp_backward_prefetch="BACKWARD_POST")),
    (2, "SHARD_GRAD_OP", accumulation(2)),
    (2, "SHARD_GRAD_OP", dict(LORA, fsdp_reduce_dtype="bfloat16", **WHOLE)),
    (2, "NO_SHARD", {}),
    (2, "ZERO1", accumulation(3)),
    (2, "ZERO2", dict(bf16=True, **accumulation(2))),
    (3, "FULL_SHARD", dict(packing=False, max_length=200)),
    (3, "NO_SHARD", dict(LORA, **accumulation(2))),
    (3, "ZERO1", WHOLE),
    (3, "ZERO2", LORA),
    (3, "SHARD_GRAD_OP", dict(fsdp_reduce_dtype="bfloat16")),
    (4, "FULL_SHARD", PARTS),
    (4, "HYBRID_SHARD", dict(hybrid(2, 2), **accumulation(2))),
    (4, "HYBRID_SHARD_ZERO2", dict(hybrid(2, 2), bf16=True)),
    (4, "ZERO2", dict(fp16=True, **WHOLE)),
    (2, "FULL_SHARD", dict(activation_offloading="disk", per_device_train_batch_size=4)),
    (4, "FULL_SHARD", dict(save_strategy="steps", save_steps=2)),
]


def sent_in_theory(world, strategy, flags):
    """Bytes that a rank of a full fine-tuning sends in a step: of n ranks (n - 1) / n of the whole
    for gather and scatter, twice that for all-reduce."""
    shards = flags.get("parallelism_config_dp_shard_size", 1 if strategy == "NO_SHARD" else world)
    copies = world // shards
    micro_steps = flags.get("gradient_accumulation_steps", 1)
    wire = 2 if flags.get("bf16") or flags.get("fp16") else 4
    gradient = 2 if flags.get("fsdp_reduce_dtype") else 4
    head_size = H // HEADS
    layer = 2 * H * H + 2 * H * KEYS * head_size + 3 * H * I + 2 * H
    embedding, head = V * H, V * H + H
    total = embedding + L * layer + head
    part = (shards - 1) / shards
    reduced = total * gradient * part
    between = 2 * (copies - 1) / copies * (total / shards) * gradient
    if strategy in ("ZERO1", "ZERO2"):
        return total * wire * part + (1 if strategy == "ZERO1" else micro_steps) * reduced
    if strategy in ("SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"):
        return micro_steps * (total * wire * part + reduced) + between
    # The embedding's gradient needs no values, the head runs both ways at once, and the last layer
    # stays when its backward pass is prefetched.
    prefetched = flags.get("fsdp_backward_prefetch", "BACKWARD_PRE") == "BACKWARD_PRE"
    again = (L - 1 if prefetched else L) * layer
    if "fsdp_reshard_after_forward" in flags:
        group = flags["fsdp_reshard_after_forward"]
        again = again * (group - 1) / group / part  # over a smaller group
    return micro_steps * ((total + again) * wire * part + reduced) + between


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory-model")
    tiny_llama.save_model(folder, **MODEL)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 128',
                                                 '"max_position_embeddings": 512'))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    import random
    rng = random.Random(0)
    rows = [{"text": " ".join(rng.choice(tiny_llama.WORDS) for _ in range(200))}
            for _ in range(100)]
    folder = tmp_path_factory.mktemp("memory-data")
    tiny_llama.write_rows(folder / "train.jsonl", rows)
    return folder


def megabytes(text):
    number, unit = text.split()
    return float(number) * {"MB": 1, "GB": 1000}[unit]


def name(row):
    return f"{row[0]}-{row[1]}-" + ",".join(f"{k}={v}" for k, v in row[2].items())


@pytest.mark.parametrize("row", TABLE, ids=name)
def test_measured_is_the_planned(model, data, tmp_path, row, record_property):
    world, strategy, flags = row
    if "activation_offloading" in flags:
        disk = BUILD / "no-settings"  # the tests' own folder may lie in memory
        disk.mkdir(exist_ok=True)
        flags = dict(flags, activation_offloading_path=disk)
    settings = dict(PACKED, per_device_train_batch_size=2, max_steps=3, splits="train",
                    sharding_strategy=strategy)
    run = run_strata(base_flags(model, data, tmp_path, **{**settings, **flags}), world)
    found = re.search(r"memory: planned (\S+ \S+), measured (\S+ \S+) \(process (\S+ \S+) before "
                      r"the model; tensors planned (\S+ \S+), measured (\S+ [MG]B)", run.text)
    assert found, run.text
    planned, measured, process, tensors, tensors_measured = map(megabytes, found.groups())
    print(f"row | {name(row)} | {planned} | {measured} | {tensors} | {tensors_measured} |")
    assert measured == pytest.approx(planned, rel=0.05)
    # The part that is not the program itself.
    assert tensors_measured == pytest.approx(tensors, rel=0.05)
    assert tensors_measured > 30

    wire = re.search(r"wire: planned (\d+) bytes sent in a step, counted (\d+); tensors took (\d+) "
                     r"bytes more after step 2, and (\d+) blocks for parameters, gradients, "
                     r"optimizer, slots and transport; temporary ones of the last step: (.+)",
                     run.text)
    assert wire, run.text
    planned, counted, grown, lasting = map(int, wire.groups()[:4])
    temporary = dict(re.findall(r"([a-z]+|KiB) (\d+)(?:,|$)", wire.group(5)))
    print(f"tensors | {name(row)} | {lasting} | {temporary}")
    # Every tensor is counted. Those of the engine are made once; what blocks compute is made from
    # what the step before gave back.
    assert lasting == 0
    assert set(temporary) <= {"activations", "logits", "runtime", "KiB"}
    assert int(temporary["activations"]) > 0
    print(f"wire | {name(row)} | {planned} | {counted} | grown {grown}")
    assert counted == planned
    if "use_peft" not in flags:
        # Shards are padded to whole cache lines, and the norm is one number more.
        assert counted == pytest.approx(sent_in_theory(world, strategy, flags), rel=1e-3, abs=64)
    # Every micro-batch is full. One with a token that does not train copies its hidden states, which
    # an earlier one may not have done; nothing else is new after the second step. Rows before
    # documents are as many as the batch has documents.
    tokens = 128 * flags.get("per_device_train_batch_size", 2)
    has_rows = "num_virtual_tokens" in flags
    if flags.get("packing", True) and "max_length" not in flags and not has_rows:
        assert grown <= tokens * H * 4


def test_plan_needs_no_weights_and_agrees_with_the_run(model, data, tmp_path):
    flags = base_flags(model, data, tmp_path / "run", **dict(PACKED, splits="train", max_steps=1))
    run = run_strata(flags, world=2)
    inside = re.search(r"memory plan: .*parameters (\S+ MB), gradients (\S+ MB), optimizer "
                       r"(\S+ MB), slots (\S+ MB)", run.text).groups()
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((model / "config.json").read_bytes())
    words = flag_words({**flags, "model_name_or_path": bare})
    plan = subprocess.run([PROGRAM, "plan", "--world_size", "2", "--device", "cpu", *words],
                          capture_output=True, text=True, env=environment(), timeout=60)
    assert plan.returncode == 0, plan.stderr
    peak = re.search(r"^peak .*parameters (\S+ MB), gradients (\S+ MB), optimizer (\S+ MB), "
                     r"slots (\S+ MB)", plan.stdout, re.M).groups()
    assert peak == inside
