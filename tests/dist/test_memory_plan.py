# Oracle: the peak of resident memory that the system measured for the same run, the bytes that its
# process groups counted, and the theory of each strategy's traffic.
import re
import subprocess

import pytest

import classified_memory
import memory_table
import tiny_bart
import tiny_llama
import tiny_t5
from memory_table import H, HEADS, I, KEYS, L, LORA, PACKED, TABLE, V
from running import PROGRAM, base_flags, environment, flag_words, multiplies_bf16, run_program, run_strata


def sent_in_theory(world, strategy, flags):
    """Bytes that a rank of a full fine-tuning sends in a step: of n ranks (n - 1) / n of the whole
    for gather and scatter, twice that for all-reduce."""
    shards = flags.get("parallelism_config_dp_shard_size", 1 if strategy == "NO_SHARD" else world)
    copies = world // shards
    micro_steps = flags.get("gradient_accumulation_steps", 1)
    wire = 2 if flags.get("bf16") and multiplies_bf16() or flags.get("fp16") else 4
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
    # The embedding's gradient needs no values, and the head runs both ways at once. A ring of s slots
    # prefetches s - 1 computations ahead: the layer k places before the head, which runs forward 2 k
    # computations before it runs backward, stays when those between are no more than s - 1, which
    # is for k up to s / 2.
    prefetched = flags.get("fsdp_backward_prefetch", "BACKWARD_PRE") == "BACKWARD_PRE"
    slots = {True: 2, False: 4}[flags.get("limit_all_gathers", True)]
    again = (L - slots // 2 if prefetched else L) * layer
    if "fsdp_reshard_after_forward" in flags:
        group = flags["fsdp_reshard_after_forward"]
        again = again * (group - 1) / group / part  # over a smaller group
    return micro_steps * ((total + again) * wire * part + reduced) + between


def exchanged_in_theory(flags):
    """Bytes of activations that a rank sends in a step of packed rows in fp32, which it shares: before attention q, k and v of
    its tokens, behind it what attention gives, of n ranks (n - 1) / n of both; forward, backward, and again in all layers but
    the last, whose backward pass follows its forward pass."""
    ranks = flags.get("sequence_parallel_size", 1)
    tokens = flags.get("per_device_train_batch_size", 2) * PACKED["max_length"] / ranks
    columns = 2 * H + 2 * KEYS * H // HEADS
    return (3 * L - 1) * tokens * columns * 4 * (ranks - 1) / ranks


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return memory_table.save_model(tmp_path_factory.mktemp("memory-model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return memory_table.save_data(tmp_path_factory.mktemp("memory-data"))


def expect_planned(row, found, of_tensors=0.05):
    print(memory_table.label(row), found)
    assert found.measured == pytest.approx(found.planned, rel=0.05)
    # The part that is not the program itself.
    assert found.tensors_measured == pytest.approx(found.tensors_planned, rel=of_tensors)
    # Tensors of the engine are made once; what blocks compute is made from what the step before gave back.
    assert found.lasting == 0
    assert found.sent == found.sent_planned


@pytest.mark.parametrize("row", TABLE, ids=memory_table.label)
def test_measured_is_the_planned(model, data, tmp_path, row):
    world, strategy, flags = row
    found = memory_table.run_row(row, model, data, tmp_path)
    expect_planned(row, found)
    assert found.tensors_measured > 30
    # Every tensor is counted.
    assert set(found.temporary) <= {"activations", "logits", "runtime", "KiB"}
    assert int(found.temporary["activations"]) > 0
    if not {"use_peft", "fsdp_auto_wrap_policy", "sync_each_batch", "model"} & flags.keys():
        # Shards are padded to whole cache lines, and the norm is one number more.
        theory = sent_in_theory(world, strategy, flags) + exchanged_in_theory(flags)
        assert found.sent == pytest.approx(theory, rel=1e-3, abs=64)
    # Theory counts what must be sent; here is what the copying loops of shared memory counted. Codes
    # that other ranks quantised while loading are beside it, and of more than two ranks each reads the
    # small sums of all others. The lines have thousands of bytes, one for each of three groups.
    # What rank 0 reads for all, the others copy out of its memory.
    if not any(key.startswith(("load_in", "fsdp_cpu_ram")) for key in flags):
        assert found.copied == pytest.approx(found.in_theory, rel=1e-9 if world == 2 else 2e-3, abs=2500)
    assert (found.copied > 0) == (world > 1)

    # Nothing is taken from the system after the third step.
    assert found.grown == 0, found


@pytest.mark.parametrize("row", [(1, "FULL_SHARD", {}), (2, "FULL_SHARD", dict(bf16=True)), (1, "NO_SHARD", LORA),
                                 (1, "NO_SHARD", dict(LORA, load_in_4bit=True, gradient_checkpointing=False))],
                         ids=memory_table.label)
def test_measured_is_the_planned_of_a_reward_model(model, tmp_path, row):
    """Its head is one row, and no logits are made."""
    found = memory_table.run_row(row, model, memory_table.save_pairs(tmp_path), tmp_path / "out", recipe="reward")
    expect_planned(row, found)


@pytest.mark.parametrize("row", [(1, "NO_SHARD", LORA), (2, "FULL_SHARD", dict(per_device_train_batch_size=1))], ids=memory_table.label)
def test_measured_is_the_planned_without_a_reference(model, tmp_path, row):
    """Logits of an output layer that trains are made twice."""
    found = memory_table.run_row(row, model, memory_table.save_pairs(tmp_path), tmp_path / "out", recipe="orpo")
    expect_planned(row, found)


@pytest.mark.parametrize("recipe, row", [
    ("cpo", (2, "FULL_SHARD", dict(LORA, **memory_table.EVALUATED))),
    ("kto", (1, "NO_SHARD", dict(LORA, per_device_train_batch_size=8))),
    ("kto", (2, "FULL_SHARD", dict(LORA, **memory_table.EVALUATED))),
    ("classify", (2, "FULL_SHARD", dict(model="bert")))], ids=["evaluations", "prompts", "beside", "documents"])
def test_blocks_lie_where_the_plan_has_them(model, tmp_path, recipe, row):
    """What an evaluation makes anew lies in the way of the next one; a prompt has no logits; evaluations have a pass beside
    theirs; what a head reads of a document is one row."""
    if recipe == "classify":
        found = classified_memory.run_row(row, model, classified_memory.save_texts(tmp_path / "data"), tmp_path / "out")
    else:
        save = memory_table.save_rated if recipe == "kto" else memory_table.save_pairs
        found = memory_table.run_row(row, model, save(tmp_path), tmp_path / "out", recipe=recipe)
    expect_planned(row, found, of_tensors=0.01)


@pytest.mark.parametrize("row", [(1, "NO_SHARD", LORA), (2, "FULL_SHARD", dict(gradient_accumulation_steps=2)),
                                 (1, "NO_SHARD", dict(LORA, load_in_8bit=True)),
                                 # The means of logits are of capped ones.
                                 (1, "NO_SHARD", dict(LORA, model="gemma2", per_device_train_batch_size=16))],
                         ids=memory_table.label)
def test_measured_is_the_planned_of_rated_answers(model, tmp_path, row):
    """Each micro-batch has a forward pass beside it, whose gathers are sent as well."""
    found = memory_table.run_row(row, model, memory_table.save_rated(tmp_path), tmp_path / "out", recipe="kto")
    expect_planned(row, found)


@pytest.mark.parametrize("row", [(2, "FULL_SHARD", dict(sync_ref_model=True, ref_model_sync_steps=3)),
                                 (1, "NO_SHARD", dict(LORA, use_weighting=True, per_device_train_batch_size=4))],
                         ids=memory_table.label)
def test_measured_is_the_planned_of_pairs(model, tmp_path, row):
    """A reference that follows the model is its weights once more; it is asked in the room of the steps. Weights of pairs take a
    copy of a few logits."""
    found = memory_table.run_row(row, model, memory_table.save_pairs(tmp_path), tmp_path / "out", recipe="dpo")
    expect_planned(row, found)


@pytest.mark.parametrize("row", classified_memory.TABLE, ids=memory_table.label)
def test_measured_is_the_planned_of_whole_texts(model, tmp_path, row):
    """Of decoders and of encoders of each kind, whose layers attend both ways; no logits are made."""
    found = classified_memory.run_row(row, model, classified_memory.save_texts(tmp_path / "data"), tmp_path / "out")
    expect_planned(row, found)
    assert found.tensors_measured > 20
    assert set(found.temporary) <= {"activations", "runtime", "KiB"}
    assert found.grown == 0, found


@pytest.mark.parametrize("family, source, answer, beams", [("t5", 200, 16, 1), ("t5", 16, 100, 1), ("bart", 200, 16, 1), ("bart", 200, 40, 4)],
                         ids=["sources", "long", "bart", "beams"])
def test_measured_is_the_planned_of_answers(tmp_path, family, source, answer, beams):
    """Every layer of the decoder keeps keys and values of all sources, and of the answers and their beams to their last token."""
    if family == "t5":
        model = tiny_t5.save_t5(tmp_path / "t5", d_model=128, d_kv=32, num_heads=8, d_ff=256, num_layers=1, num_decoder_layers=6, scale=0.05)
    else:
        model = tiny_bart.save_bart(tmp_path / "bart", d_model=128, encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=256,
                                    decoder_ffn_dim=256, encoder_layers=1, decoder_layers=6, max_position_embeddings=256, scale=0.05)
    rows = [{"sentence": "rose " * 200, "label": "positive"}] * 32
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        tiny_llama.write_rows(tmp_path / f"data/{split}.jsonl", rows)
    flags = {"model_name_or_path": model, "dataset_name": tmp_path / "data", "output_dir": tmp_path / "out", "bf16": False,
             "text_column": "sentence", "summary_column": "label", "max_source_length": source, "max_target_length": 4,
             "predict_with_generate": True, "generation_max_length": answer, "generation_num_beams": beams, "per_device_train_batch_size": 1,
             "per_device_eval_batch_size": 32, "eval_strategy": "steps", "eval_steps": 2, "max_steps": 2, "save_strategy": "no",
             "disable_tqdm": True, "wall_clock_breakdown": True}
    run = run_program(flags, recipe="seq2seq")
    found = [memory_table.megabytes(size) for size in memory_table.MEMORY.search(run.text).groups()]
    print(found)
    planned, measured, tensors_planned, tensors_measured = found
    assert measured == pytest.approx(planned, rel=0.05)
    assert tensors_measured == pytest.approx(tensors_planned, rel=0.05)


@pytest.mark.parametrize("world", [1, 2])
def test_measured_is_the_planned_where_rows_repeat(model, tmp_path, world):
    """Of fewer rows than a batch several ranks fill theirs, as accelerate does; one rank has a smaller batch."""
    tiny_llama.write_rows(tmp_path / "train.jsonl", [{"text": "the cat sat on a mat and went away when it rained " * n} for n in (8, 4)])
    row = (world, "FULL_SHARD", dict(packing=False, max_length=400, per_device_train_batch_size=7))
    found = memory_table.run_row(row, model, tmp_path, tmp_path / "out")
    assert found.measured == pytest.approx(found.planned, rel=0.05)
    assert found.tensors_measured == pytest.approx(found.tensors_planned, rel=0.05)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_memory_does_not_grow_with_every_new_length(model, tmp_path, precision):
    """A library that keeps something for each shape of product would show."""
    data = memory_table.save_many_lengths(tmp_path)
    flags = dict(LORA, packing=False, max_length=400, per_device_train_batch_size=1, max_steps=40,
                 bf16=precision == "bf16")
    found = memory_table.run_row((1, "NO_SHARD", flags), model, data, tmp_path / "out")
    assert found.measured == pytest.approx(found.planned, rel=0.05)


def test_onednn_is_left_out(model, tmp_path, monkeypatch):
    """It keeps code for every shape that it ever saw: it says of each that it computes. GELU and codes of 8 bits were its."""
    monkeypatch.setenv("ONEDNN_VERBOSE", "1")
    flags = dict(LORA, model="bert", bf16=True, load_in_8bit=True, max_steps=2, **classified_memory.EVALUATED)
    base = classified_memory.base_of(flags.pop("model"), model)
    run = run_program(base_flags(base, classified_memory.save_texts(tmp_path / "data"), tmp_path / "out", **flags), recipe="classify")
    assert run.state["log_history"][-1]
    assert "onednn_verbose" not in run.text


KINDS = re.compile(r"^(?:memory plan: |peak ).*?(parameters .*)$", re.M)


def kinds_of_both(model, tmp_path, flags, recipe, **more):
    """By kinds of memory, the peak that a run says before its first step, and that of a plan without weights and rows."""
    run = run_strata(flags, 2, recipe)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_bytes((model / "config.json").read_bytes())
    words = flag_words({**flags, "model_name_or_path": bare, **more})
    plan = subprocess.run([PROGRAM, "plan", recipe, "--world_size", "2", "--device", "cpu", *words],
                          capture_output=True, text=True, env=environment(), timeout=60)
    assert plan.returncode == 0, plan.stderr
    inside, peak = (KINDS.search(text)[1].split(", ") for text in (run.text, plan.stdout))
    # Runtime is that of another process, too.
    return ([kind for kind in kinds if not kind.startswith("runtime")] for kinds in (inside, peak))


def test_plan_needs_no_weights_and_agrees_with_the_run(model, data, tmp_path):
    flags = base_flags(model, data, tmp_path / "run", **dict(PACKED, splits="train", max_steps=1))
    inside, peak = kinds_of_both(model, tmp_path, flags, "sft")
    assert peak == inside and len(peak) >= 4


@pytest.mark.parametrize("settings", [{}, dict(LORA, bf16=True)], ids=["full", "lora"])
@pytest.mark.parametrize("name", [None, "bert", "bert_mlm", "roberta", "xlm_roberta", "distilbert"])
def test_plan_of_whole_texts_agrees_with_the_run(model, tmp_path, name, settings):
    base = classified_memory.base_of(name, model)
    if settings and name == "distilbert":
        settings = dict(settings, lora_target_modules=["q_lin", "lin1"])
    flags = base_flags(base, classified_memory.save_texts(tmp_path / "data"), tmp_path / "run",
                       **{**settings, "max_length": 128, "max_steps": 1, **classified_memory.EVALUATED})
    inside, peak = kinds_of_both(base, tmp_path, flags, "classify", num_labels=3)
    assert peak == inside and len(peak) >= 4
