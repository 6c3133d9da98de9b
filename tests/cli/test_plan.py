# Oracle: arithmetic on the shapes of published models, and the plan's own statements.
import hashlib
import http.server
import json
import os
import re
import subprocess
import threading

import pytest
from safetensors.torch import load_file

from running import PROGRAM, environment

LLAMA_70B = dict(model_type="llama", vocab_size=32000, hidden_size=8192, intermediate_size=28672,
                 num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
                 max_position_embeddings=4096, rms_norm_eps=1e-5, torch_dtype="float32")
PARAMETERS_70B = 68976648192


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B))
    return tmp_path


def strata(*words, code=0, env=None):
    process = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True,
                             env=env or environment(), timeout=60)
    assert process.returncode == code, process.stdout + process.stderr
    return process.stderr if code == 2 else process.stdout


def row(text, name):
    line = next(line for line in text.splitlines() if line.startswith(name))
    return [float(word) for word in re.findall(r"\d+\.\d+", line)]


def test_an_output_layer_of_the_files_own(inputs, tmp_path):
    """Oracle: the numbers of weights of transformers' models. config.json ties; the plan follows the file, where it is."""
    base = inputs.model("plain")
    config = json.loads((base / "config.json").read_text()) | dict(tie_word_embeddings=True)
    (tmp_path / "config.json").write_text(json.dumps(config))
    untied = load_file(base / "model.safetensors")
    count = sum(value.numel() for value in untied.values())
    tied = count - untied["lm_head.weight"].numel()
    assert f" {tied} parameters" in strata("plan", "--model_name_or_path", tmp_path)
    # An index of files that were not fetched says no more than config.json.
    index = dict(metadata={}, weight_map=dict.fromkeys(untied, "model-00001-of-00001.safetensors"))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert f" {tied} parameters" in strata("plan", "--model_name_or_path", tmp_path)
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    assert f" {count} parameters" in strata("plan", "--model_name_or_path", tmp_path)


def test_seventy_billion_parameters_without_weights(folder):
    # accelerate's words: the model stands alone.
    text = strata("estimate-memory", folder, "--world_size", 16, "--nodes", 2,
                  "--device", "cuda", "--per_device_train_batch_size", 1, "--max_length", 2048)
    assert str(PARAMETERS_70B) in text
    shard = 4 * PARAMETERS_70B / 16 / 1e9
    for name, factor in [("parameters", 1), ("gradients", 1), ("optimizer", 2)]:
        for value in row(text, name):
            assert value == pytest.approx(factor * shard, rel=1e-3)
    # Two gathers (forward, backward) of bf16 and one reduction of fp32, of which a rank sends
    # 15/16; the embedding, the head and the last layer, which stays, are gathered once.
    embedding, layer = 32000 * 8192, (PARAMETERS_70B - 2 * 32000 * 8192 - 8192) // 80
    gathered = 2 * (2 * PARAMETERS_70B - embedding - (embedding + 8192) - layer)
    expected = (gathered + 4 * PARAMETERS_70B) * 15 / 16 / 1e9
    assert row(text, "wire")[0] == pytest.approx(expected, rel=1e-4)


def test_a_reference_that_follows_is_the_weights_once_more(folder):
    shard = 4 * PARAMETERS_70B / 16 / 1e9
    words = ["plan", "dpo", "--model_name_or_path", folder, "--world_size", 16, "--nodes", 2, "--device", "cuda",
             "--per_device_train_batch_size", 1, "--max_length", 1024, "--gradient_checkpointing", "true"]
    for more, factor in (([], 2), (["--sync_ref_model", "true"], 3)):
        for value in row(strata(*words, *more), "optimizer"):
            assert value == pytest.approx(factor * shard, rel=1e-3)



def test_threads_are_those_of_a_rank_that_is_launched(folder):
    """Oracle: the plan of a program that has a rank's threads. What MKL packs depends on them."""
    cores = len(os.sched_getaffinity(0))
    words = ["plan", "--model_name_or_path", folder, "--bf16", "false", "--device", "cpu", "--max_length", 2048]

    def runtime(*more, **variables):
        bare = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
        return float(re.search(r"runtime ([\d.]+) MB", strata(*words, *more, env={**bare, **variables}))[1])

    of_one = runtime("--num_processes", cores, OMP_NUM_THREADS="1")
    assert runtime("--num_processes", cores) == pytest.approx(of_one, abs=4)
    of_one = runtime("--num_processes", 1, OMP_NUM_THREADS="1")
    assert runtime("--num_processes", 1, "--num_cpu_threads_per_process", 1) == pytest.approx(of_one, abs=4)
    two = runtime("--num_processes", 2 * cores, OMP_NUM_THREADS="2")
    assert runtime("--num_processes", 2 * cores, "--num_cpu_threads_per_process", 2, OMP_NUM_THREADS="1") == pytest.approx(two, abs=4)


def test_estimate_memory_is_the_same_command(folder):
    words = ["--model_name_or_path", folder, "--world_size", 8, "--device", "cuda"]
    assert strata("estimate-memory", *words) == strata("plan", *words)


def test_offload_to_the_host_of_a_cpu_changes_nothing(folder):
    words = ["plan", "--model_name_or_path", folder, "--world_size", 16, "--device", "cpu"]
    plain = strata(*words)
    for flag in ("--fsdp_offload_params", "--activation_offloading"):
        text = strata(*words, flag, "true")
        said = [line for line in text.splitlines() if line.startswith("offload")]
        assert said == ["offload      to host memory changes nothing here: the CPU computes in it"]
        # The program's own pages, which are in it, differ by some megabytes from run to run.
        assert row(text, "all in use") == pytest.approx(row(plain, "all in use"), abs=0.011)


def test_inputs_of_layers_leave_the_device(folder):
    words = ["plan", "--model_name_or_path", folder, "--world_size", 16, "--device", "cuda",
             "--per_device_train_batch_size", 1, "--max_length", 4096]
    plain, text = strata(*words), strata(*words, "--activation_offloading")
    # Of 80 layers the first reads what the embedding keeps, the last is not recomputed; bf16.
    inputs = 78 * 4096 * 8192 * 2 / 1e9
    assert row(text, "offloaded") == pytest.approx([inputs * 1000] * 2, rel=1e-3)  # MB
    assert "layer inputs" in text and "in host memory" in text
    # In the backward pass; what the running layer reads and the input before it are there.
    saved = row(plain, "activations")[1] - row(text, "activations")[1]
    assert 0.9 * inputs < saved <= inputs
    assert re.findall(r"  (fetch 2|offload 2)$", strata(*words, "--activation_offloading",
                                                        "--schedule"), re.M) == \
        ["offload 2", "fetch 2"]
    disk = ["--activation_offloading", "disk", "--activation_offloading_path", folder]
    assert "found disk in a run on a GPU" in strata(*words, *disk, code=2)
    on_cpu = [word if word != "cuda" else "cpu" for word in words]
    assert "layer inputs" in strata(*on_cpu, *disk) and "in files" in strata(*on_cpu, *disk)
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_the_copy_of_a_save_is_in_the_plan(folder):
    words = ["plan", "--model_name_or_path", folder, "--world_size", 16]
    # Weights and two moments of fp32.
    copy = 3 * 4 * PARAMETERS_70B / 16 / 1e9
    assert row(strata(*words, "--device", "cuda"), "saving")[0] == pytest.approx(copy, rel=1e-3)
    on_cpu = strata(*words, "--device", "cpu")
    assert row(on_cpu, "snapshot") == pytest.approx([copy] * 4, rel=1e-3)
    for flags in (["--save_strategy", "no"], ["--async_save", "false"]):
        assert "snapshot" not in strata(*words, "--device", "cpu", *flags)
        assert "saving" not in strata(*words, "--device", "cuda", *flags)
    only = strata(*words, "--device", "cpu", "--save_only_model")
    assert row(only, "snapshot")[0] == pytest.approx(copy / 3, rel=1e-3)


def test_a_launch_line_works_with_plan_in_its_place(folder):
    text = strata("plan", "--num_processes", 16, "--num_machines", 2, "train.py", "--model_name",
                  folder, "--max_seq_len", 2048, "--per_device_train_batch_size", 1,
                  "--device", "cuda")
    assert "16 on 2 nodes" in text


def test_the_recipe_is_no_flag_s_value(folder):
    """A name of a recipe may be that of a data set, too."""
    words = ["--model_name_or_path", folder, "--world_size", 2, "--device", "cuda"]
    plain = strata("plan", *words)
    assert strata("plan", *words, "--recipe", "sft") == plain
    assert strata("plan", *words, "--dataset_name", "sft", "--output_dir", "train.py") == plain
    assert strata("plan", *words, "dpo") == strata("plan", *words, "--recipe", "dpo") != plain


def test_what_does_not_fit_is_told_with_what_would(folder):
    words = ["plan", "--model_name_or_path", folder, "--world_size", 8, "--device", "cuda",
             "--per_device_train_batch_size", 1, "--device_memory"]
    text = strata(*words, "80GB", code=1)
    assert "does not fit" in text
    offered = re.findall(r"^ +(\S+) GB  with (.+)$", text, re.M)
    assert offered and all(float(size) <= 80 for size, _ in offered)
    assert any("twice the ranks" in change or "use_peft" in change for _, change in offered)
    # Not even CUDA's runtime fits: no change of settings is offered, nor more ranks.
    text = strata(*words, "10MB", code=1)
    assert "nothing: CUDA's runtime takes" in text and "more ranks" not in text
    assert re.search(r"^fits .* of 999.00 GB", strata(*words, "999GB"), re.M)


def test_what_auto_would_spare_is_hinted_at(folder):
    """Oracle: the plan with what the hint names, of which auto takes nine tenths."""
    words = ["plan", "--model_name_or_path", folder, "--world_size", 64, "--device", "cuda", "--per_device_train_batch_size", 1,
             "--max_length", 2048, "--device_memory"]
    hint = re.search(r"^hint: --gradient_checkpointing_mode auto would recompute nothing here \((\S+) GB planned of 899.10 GB\)$",
                     strata(*words, "999GB"), re.M)
    assert hint
    kept = strata(*words, "999GB", "--gradient_checkpointing", "false")
    assert re.search(r"^fits +(\S+) GB", kept, re.M)[1] == hint[1] and "hint" not in kept
    assert "hint" not in strata(*words, "999GB", "--gradient_checkpointing_mode", "auto")
    # Room for the run as it is, and for nothing more.
    full = float(re.search(r"^fits +(\S+) GB", strata(*words, "999GB"), re.M)[1])
    assert "hint" not in strata(*words, f"{full + 0.01:.2f}GB")


def test_a_change_that_the_model_cannot_take_is_not_offered(tmp_path):
    """Codes over GPT-2's matrices are refused: the plan says the rest."""
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="gpt2", n_embd=768, n_head=12, n_layer=12)))
    text = strata("plan", "--model_name_or_path", tmp_path, "--device_memory", "2GB", code=1)
    offered = re.findall(r"^ +(\S+) MB  with (.+)$", text, re.M)
    assert offered and not any("load_in_4bit" in change for _, change in offered)


def test_full_training_that_fits_with_two_changes_is_not_passed_over(folder):
    """Where a single change would train something else. Oracle: the plan with what was offered."""
    words = ["plan", "--model_name_or_path", folder, "--world_size", 8, "--device", "cuda",
             "--device_memory", "24GB", "--per_device_train_batch_size", 4, "--max_length", 2048]
    offered = re.findall(r"^ +(\S+) GB  with (.+)$", strata(*words, code=1), re.M)
    assert "--use_peft and --load_in_4bit (QLoRA)" in [change for _, change in offered]
    pairs = [(size, change) for size, change in offered if "--use_peft" not in change]
    assert pairs
    for size, change in pairs:
        fits = strata(*words, *change.replace(" and ", " ").split())
        assert re.search(r"^fits +(\S+) GB", fits, re.M)[1] == size


def test_the_schedule_on_demand(folder):
    words = ["plan", "--model_name_or_path", folder, "--world_size", 8, "--device", "cuda"]
    assert "recompute" not in strata(*words)
    text = strata(*words, "--schedule")
    assert len(re.findall(r"backward \d+ \(recompute\)", text)) == 79
    assert len(re.findall(r"  reduce \d+$", text, re.M)) == 82


def test_what_is_offloaded_is_told_apart(folder):
    words = ["plan", "--model_name_or_path", folder, "--world_size", 8, "--device", "cuda"]
    shard = 4 * PARAMETERS_70B / 8 / 1e9
    # Not the peak: what the allocator keeps in pieces beside it differs between the two.
    whole = max(row(strata(*words), "all in use"))
    text = strata(*words, "--fsdp_offload_params", "true")
    assert row(text, "offloaded")[0] == pytest.approx(4 * shard, rel=1e-3)
    # A device for one of them takes all three to where the update is computed, as in the run.
    for kind in ("optimizer", "param"):
        same = strata(*words, f"--offload_{kind}_device", "cpu")
        assert row(same, "offloaded") == row(text, "offloaded")
    assert "in host memory" in text and "in files" not in text
    # The rest, and shards of a layer on their way: one to be cast, gradients that leave.
    on_the_way = 3 * 4 * (PARAMETERS_70B - 2 * 32000 * 8192) / 80 / 8 / 1e9
    assert whole - 4 * shard < max(row(text, "all in use")) < whole - 4 * shard + on_the_way
    # Nothing is made where files would rest.
    flags = ["--offload_optimizer_device", "nvme", "--offload_optimizer_nvme_path", folder]
    text = strata(*words[:-2], "--device", "cpu", *flags)
    assert "optimizer" in text and "in files" in text
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_deepspeeds_numbers_beside_ours(folder):
    text = strata("plan", "--model_name_or_path", folder, "--world_size", 8, "--device", "cuda",
                  "--deepspeed_estimate")
    # 2P + 18P/N and 4L + 18P/N.
    assert f"{(2 + 18 / 8) * PARAMETERS_70B / 2**30:.2f}" in text
    assert "zero_init=1" in text


@pytest.mark.parametrize("launcher", [True, False])
def test_dry_run_of_sixteen_ranks(folder, launcher):
    flags = ["--model_name_or_path", folder, "--dataset_name", "none-needed", "--dry_run"]
    words = ["launch", "--num_processes", 16, "--cpu", "sft"] if launcher else ["sft"]
    text = strata(*words, *flags)
    for part in ["max_length: 1024", "model.layers.0 .. model.layers.79", "forward 0",
                 "dry run: nothing was loaded or trained"]:
        assert part in text, part
    assert ("16 shards" in text) == launcher
    assert not (folder / "trainer_output").exists()


@pytest.mark.parametrize("flags, message", [
    (["--world_size", "3", "--nodes", "2"], "expected a multiple of the nodes"),
    (["--device_memory", "much"], "device_memory: found"),
    (["--device_memory", "80"], 'device_memory: found "80", expected a size like 80GB'),
    (["--lr_scheduler_type", "cosine_with_min_lr"], 'lr_scheduler_kwargs: found "min_lr" missing'),
    (["--lr_scheduler_kwargs", '{"num_cycles": 2}'], 'found "num_cycles", expected none for'),
    (["--device", "tpu"], "--device: found"),
    (["--world_sise", "3"], "--world_sise: found an unknown flag"),
    (["--sharding_strategy", "WRONG"], "--sharding_strategy: found"),
])
def test_bad_input(folder, flags, message):
    text = strata("plan", "--model_name_or_path", folder, *flags, code=2)
    assert message in text and text.count("\n") == 1


SMALL = dict(LLAMA_70B, vocab_size=640, hidden_size=128, intermediate_size=320, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=2)


@pytest.mark.parametrize("flags", [
    "--optim adafactor", "--optim lion_8bit", "--optim sgd", "--use_peft --use_dora",
    "--use_peft --init_lora_weights pissa", "--use_peft --peft_type IA3",
    "--use_peft --load_in_4bit", "--use_peft --load_in_8bit --eval_strategy steps", "--fp16 --bf16 false",
    "--gradient_checkpointing_mode selective", "--zero_stage 1",
    "--fsdp_sharding_strategy HYBRID_SHARD --nodes 2"])
def test_every_way_of_training_is_planned(tmp_path, flags):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    text = strata("plan", "--model_name_or_path", tmp_path, "--world_size", 4, "--device", "cpu",
                  *flags.split())
    assert row(text, "peak")[0] > 0 and row(text, "activations")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class HubWithOneModel(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.paths.append(self.path)
        headers, body, status = [], b"", 404
        if self.path == "/api/models/org/large/revision/main":
            names = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.json"]
            siblings = [{"rfilename": name} for name in names]
            body, status = json.dumps(dict(id="org/large", sha=COMMIT, siblings=siblings)).encode(), 200
        elif self.path == f"/org/large/resolve/{COMMIT}/config.json":
            body, status = json.dumps(LLAMA_70B).encode(), 200
            git = hashlib.sha1(f"blob {len(body)}\0".encode() + body).hexdigest()
            headers = [("X-Repo-Commit", COMMIT), ("ETag", f'"{git}"')]
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def test_of_a_model_of_the_hub_config_json_alone_is_downloaded(tmp_path):
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), HubWithOneModel)
    hub.paths = []
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    own = {k: v for k, v in environment().items() if not k.endswith("_OFFLINE")}
    own.update(HF_HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{hub.server_address[1]}")
    words = [PROGRAM, "plan", "--model_name_or_path", "org/large", "--world_size", "8",
             "--device", "cuda"]
    try:
        for _ in range(2):
            process = subprocess.run(words, capture_output=True, text=True, env=own, timeout=60)
            assert process.returncode == 0, process.stderr
            assert str(PARAMETERS_70B) in process.stdout
        missing = subprocess.run([*words[:2], "org/none", "--device", "cuda"], capture_output=True, text=True,
                                 env=own, timeout=60)
        assert missing.returncode == 1, missing.stderr
        assert "error: org/none: found no such folder, and got no model of that name from the Hub (" in missing.stderr
    finally:
        hub.shutdown()
        hub.server_close()
    assert not any("safetensors" in path or "tokenizer" in path for path in hub.paths)
    assert sum("resolve" in path for path in hub.paths) <= 2  # a look and a download, once
    # What is there does not pass for the model.
    assert not list(tmp_path.glob("hub/models--org--large"))


@pytest.mark.parametrize("name,family", [
    ("m", dict(vocab_size=4096, hidden_size=256, intermediate_size=512)),
    ("a-folder-with-a-rather-long-name", dict(vocab_size=64, hidden_size=512, intermediate_size=1408)),
])
def test_the_table_of_accelerate(tmp_path, monkeypatch, name, family):
    """Oracle: accelerate's own functions over the module of transformers, without its buffers."""
    import torch
    from accelerate.commands.estimate import create_ascii_table, estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes, convert_bytes
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA_70B | family | dict(
        num_hidden_layers=2, num_attention_heads=8, max_position_embeddings=128)))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    for module in model.modules():
        module._buffers.clear()
    total, (largest, _) = calculate_maximum_sizes(model)
    divisors = dict(float32=1, float16=2, int8=4, int4=8)
    rows = []
    for dtype, divisor in divisors.items():
        training = max(estimate_training_usage(total, dtype).values())
        rows.append([dtype, convert_bytes(largest / divisor), convert_bytes(total / divisor),
                     convert_bytes(float(training)) if training >= 0 else "N/A"])
    monkeypatch.chdir(tmp_path)
    expected = create_ascii_table(["dtype", "Largest Layer", "Total Size", "Training using Adam"], rows,
                                  f"Memory Usage for loading `{name}`")
    text = strata("estimate-memory", name, "--dtypes", *divisors)
    assert text.endswith(expected + "\n")
    assert "dtypes: found \"int3\"" in strata("estimate-memory", name, "--dtypes", "int3", code=2)
