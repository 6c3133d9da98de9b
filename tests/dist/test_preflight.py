# Oracle: what a run leaves on the disk; the operating system's answers, given other values where a
# machine with a full disk or no memory stands for itself.
import re
import shutil
import subprocess

import pytest

import preloaded
import tiny_llama
from limits import without_root_rights
from running import base_flags, environment, output_files, words_of
from test_loading import run_on_hosts

EVERY_STEP = dict(save_strategy="steps", save_steps=1)
LORA = dict(use_peft=True, lora_r=8, lora_target_modules="all-linear")
# Flags, how many checkpoints lie on the disk at once, and by how many ranks.
CASES = {
    "the_result_alone": ({}, 0, 1),
    "an_adapter_alone": (LORA, 0, 2),
    "vera_alone": (dict(use_peft=True, peft_type="VERA", lora_r=64, lora_target_modules=["q_proj"]), 0, 1),
    "every_checkpoint": (EVERY_STEP, 4, 2),
    "one_and_its_successor": (dict(EVERY_STEP, save_total_limit=1), 2, 1),
    "the_best_as_well": (dict(EVERY_STEP, save_total_limit=1, eval_strategy="steps", eval_steps=1,
                              metric_for_best_model="loss"), 3, 1),
    "whole_files": (dict(EVERY_STEP, save_total_limit=2, fsdp_state_dict_type="FULL_STATE_DICT"), 3, 2),
    "without_the_optimizer": (dict(EVERY_STEP, save_only_model=True), 4, 1),
    "checkpoints_of_an_adapter": (dict(LORA, **EVERY_STEP), 4, 1),
}

# Whether the checkpoint of a stop, which has the optimizer's state, is larger than what was asked for.
STOPS = {"the_result_alone": True, "vera_alone": False, "every_checkpoint": False,
         "one_and_its_successor": False, "whole_files": False, "without_the_optimizer": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_llama.save_model(tmp_path_factory.mktemp("model") / "model", hidden_size=128,
                                 intermediate_size=512, num_hidden_layers=2,
                                 num_attention_heads=2, num_key_value_heads=2)


def run_with(flags, world=1, **answers):
    process = subprocess.run(words_of(flags, world), capture_output=True, text=True, timeout=120,
                             env={**environment(), **preloaded.variables(**answers)})
    return process.returncode, process.stdout + process.stderr


def size_of(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


@pytest.mark.parametrize("recipe, kind", [("dpo", "preference"), ("kto", "rated")])
def test_room_for_the_result_is_looked_for_before_the_reference_is_asked(inputs, model, tmp_path, recipe, kind):
    """That pass may take hours."""
    flags = base_flags(model, inputs.data(kind), tmp_path / "out", max_steps=4, recipe=recipe)
    code, text = run_with(flags, FREE_BYTES=1000)
    assert code == 1 and re.search(r"output_dir: found 0.00 MB free in \S+, expected [\d.]+ MB for the result of [\d.]+ MB; free space", text), text
    assert not (tmp_path / "out" / "reference_log_probs.table").exists()
    code, text = run_with(flags, FREE_BYTES=10**9)
    assert code == 0 and (tmp_path / "out" / "reference_log_probs.table").exists(), text


@pytest.mark.parametrize("name", CASES)
def test_the_disk_has_room_for_every_save(inputs, model, tmp_path, name):
    more, num_at_once, world = CASES[name]
    flags = base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=4, **more)
    code, text = run_with(flags, world, FREE_BYTES=1000)
    assert code != 0
    found = re.search(r"output_dir: found 0.00 MB free in \S+, expected ([\d.]+) MB for (?:(\d+) checkpoints? "
                      r"of ([\d.]+) MB and )?the result of ([\d.]+) MB; free space", text)
    assert found, text
    needed, result = float(found[1]), float(found[4])
    assert int(found[2] or 0) == num_at_once
    assert (tmp_path / "out" / "metrics.jsonl").read_text() == ""
    # With a little less it is refused too; with as much it trains, and leaves no more than was said.
    code, text = run_with(flags, world, FREE_BYTES=int(max(needed - 0.2, needed / 2) * 1e6))
    assert code != 0 and "output_dir: found" in text
    code, text = run_with(flags, world, FREE_BYTES=int((needed + 0.1) * 1e6))
    assert code == 0, text
    if name in STOPS:
        assert ("expected" in text and "for the checkpoint of a request to stop" in text) == STOPS[name]
    checkpoints = list((tmp_path / "out").glob("checkpoint-*"))
    left = size_of(tmp_path / "out") / 1e6
    of_result = left - sum(map(size_of, checkpoints)) / 1e6
    assert of_result - 0.05 <= result <= 1.15 * of_result + 0.1
    for checkpoint in checkpoints:
        size = size_of(checkpoint) / 1e6
        assert size - 0.05 <= float(found[3]) <= 1.15 * size + 0.1
    assert needed >= left - 0.05


def test_what_lies_there_already_needs_no_room(inputs, model, tmp_path):
    """A resumed run under a limit asks for the checkpoints that it adds, not for those it removes."""
    flags = base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=4,
                       **EVERY_STEP, save_total_limit=2)
    assert run_with({**flags, "max_steps": 2, "lr_scheduler_type": "constant"})[0] == 0
    again = {**flags, "lr_scheduler_type": "constant", "resume_from_checkpoint": True}
    code, text = run_with(again, FREE_BYTES=1000)
    assert code != 0 and re.search(r"for 1 checkpoint of [\d.]+ MB and the result of", text), text
    assert run_with(again)[0] == 0


def test_memory_for_copies_and_for_the_result(inputs, model, tmp_path):
    meminfo = tmp_path / "meminfo"
    flags = base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=2, **EVERY_STEP)
    # The largest unit takes about a megabyte on each rank; two ranks' copies of the state, 7.
    for available, is_refused, says_so in ((1_000, True, True), (4_000, False, True),
                                           (100_000, False, False)):
        meminfo.write_text(f"MemTotal: 900000 kB\nMemAvailable: {available} kB\n")
        code, text = run_with(flags, 2, MEMINFO=meminfo)
        assert (code != 0) == is_refused, text
        refusal = re.search(r"memory: found 1.02 MB free in the machine of rank 0, expected [\d.]+ MB for "
                            r"the gathered parts of the result of its 2 ranks", text)
        assert bool(refusal) == is_refused, text
        if not is_refused:
            assert ("saving while training waits" in text) == says_so, text
        else:
            assert (tmp_path / "out" / "metrics.jsonl").read_text() == ""
        shutil.rmtree(tmp_path / "out")


def test_memory_for_the_run_itself(inputs, model, tmp_path):
    """Too little for what the plan says is told before the weights are loaded, where the system might end the run."""
    meminfo = tmp_path / "meminfo"
    flags = base_flags(model, inputs.data("messages"), tmp_path / "out", max_steps=1)
    found = []
    for available in (4_000, 1_000_000):
        meminfo.write_text(f"MemTotal: 9000000 kB\nMemAvailable: {available} kB\n")
        code, text = run_with(flags, 2, MEMINFO=meminfo)
        assert code == 0, text
        found.append(re.findall(r"^warning: memory: found ([\d.]+) MB free for each of 2 ranks, expected the ([\d.]+) MB "
                                r"that a rank will take according to the plan", text, re.M))
        plan = re.search(r"^memory plan: ([\d.]+) MB .* runtime ([\d.]+) MB", text, re.M)
        assert text.find("warning: memory") < text.index("trainable params")
    (free, needed), = found[0]
    assert float(free) == pytest.approx(2000 * 1024 / 1e6, abs=0.01)
    # All but what the process has already.
    assert float(plan[1]) - float(plan[2]) <= float(needed) <= float(plan[1]) - float(plan[2]) + 12
    assert not found[1]


@pytest.fixture
def hosts(tmp_path):
    """Working folders of two machines, with an output folder each."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        (folder / "out").mkdir(parents=True)
    yield folders
    (folders[1] / "out").chmod(0o755)


def test_a_rank_that_alone_cannot_write_is_named(inputs, hosts):
    """Two machines share a folder, which one of them has mounted read-only."""
    (hosts[1] / "out" / ".lock").symlink_to(hosts[0] / "out" / ".lock")
    (hosts[1] / "out").chmod(0o555)
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), "out", max_steps=1)
    codes, texts = run_on_hosts(hosts, flags, lambda rank: rank == 1 and without_root_rights())
    assert 0 not in codes, texts
    assert "out: found permission denied when creating a file in it, expected a writable" in texts[1]
    assert "looking at the output folder: found rank 1 failed" in texts[0]
    assert output_files(hosts[0] / "out") == []


def test_a_folder_that_is_not_shared_is_named(inputs, hosts):
    """Each machine has a folder of that name, and in one of them a run was killed once."""
    (hosts[1] / "out" / ".lock").write_text("process 12 on b since 2026-01-31 10:00:00 UTC")
    flags = base_flags(inputs.model("plain"), inputs.data("messages"), "out", max_steps=1)
    codes, texts = run_on_hosts(hosts, flags)
    assert 0 not in codes, texts
    assert "rank 1 found nothing of what rank 0 wrote to out" in texts[1]
    assert output_files(hosts[0] / "out") == []
