# Oracle: bash runs the written script with stand-ins for sbatch, srun and scontrol on PATH; what two
# "machines" (network namespaces) of one rank train equals a run of two ranks without SLURM; sbatch's
# manual for options; srun's source (srun_job.c) for what it does with signals.
import json
import os
import re
import signal
import subprocess
import time

import pytest

from running import PROGRAM, base_flags, environment, flag_words, run_strata
from two_machines import two_machines

# One process a node, told apart by SLURM_NODEID. As the real one does, it passes USR1 and USR2 on and
# answers TERM and HUP by killing its tasks.
SRUN = """#!/bin/bash
echo "$@" > "$FAKE/srun.log"
while [[ $1 == --* ]]; do shift; done
pids=()
spaces=($FAKE_NAMESPACES)
for ((i = 0; i < SLURM_NNODES; i++)); do
  SLURM_NODEID=$i ${spaces:+ip netns exec ${spaces[i]}} "$@" &
  pids+=($!)
done
trap 'kill -USR1 "${pids[@]}"' USR1
trap 'kill -KILL "${pids[@]}"' TERM HUP
trap 'kill -USR2 "${pids[@]}"' USR2
highest=0
for pid in "${pids[@]}"; do
  wait "$pid"; code=$?
  while kill -0 "$pid" 2>/dev/null; do wait "$pid"; code=$?; done
  (( code > highest )) && highest=$code
done
exit $highest
"""
SCONTROL = """#!/bin/bash
[[ $1 == show ]] && echo "$FAKE_ADDRESS"
[[ $1 == requeue ]] && echo "$2" > "$FAKE/requeued"
exit 0
"""
SBATCH = """#!/bin/bash
cp "$1" "$FAKE/submitted"
echo "Submitted batch job $SLURM_JOB_ID"
exit "${SBATCH_CODE:-0}"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    folder = tmp_path / "fake"
    folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("sbatch", SBATCH)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return {**environment(), "PATH": f"{folder}:{os.environ['PATH']}", "FAKE": str(folder),
            "FAKE_NAMESPACES": "", "FAKE_ADDRESS": "10.77.0.1",
            "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]",
            # The meeting point's port comes from it.
            "SLURM_JOB_ID": str(100000 + os.getpid() % 9000)}


def slurm(cluster, *words):
    return subprocess.run([str(PROGRAM), "slurm", *map(str, words)], capture_output=True, text=True,
                          timeout=60, env=cluster)


def start_job(cluster, script):
    return subprocess.Popen(["bash", str(script)], env=cluster, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


def requeued(cluster):
    return os.path.exists(f"{cluster['FAKE']}/requeued")


def options(text):
    return re.findall(r"^#SBATCH --(.*)$", text, re.M)


NEEDED = ["sft", "--model_name_or_path", "M", "--dataset_name", "D"]


def test_options_come_from_flags_and_settings(cluster, tmp_path):
    result = slurm(cluster, "--job_name", "llama 70b", "--time=24:00:00", "--partition", "gpu",
                   "--constraint", "a&b", "--cpus-per-task", 96, "--mem", 0, "--exclusive",
                   "--sbatch_options=--reservation=x --licenses=y", "--stop_seconds", 600,
                   "--num_machines", 2, "--num_processes", 16, *NEEDED)
    assert result.returncode == 0, result.stderr
    assert options(result.stdout) == [
        "job-name='llama 70b'", "nodes=2", "ntasks-per-node=1", "gpus-per-node=8",
        "cpus-per-task=96", "mem=0", "time=24:00:00", "partition=gpu", "constraint='a&b'",
        "exclusive", f"chdir={tmp_path}", "output=%x-%j.out", "open-mode=append",
        "signal=B:USR1@600", "requeue", "reservation=x", "licenses=y"]
    assert subprocess.run(["bash", "-n"], input=result.stdout, text=True).returncode == 0
    # The machines' own flags are the script's, not those of the line.
    command = result.stdout[result.stdout.index("srun --"):]
    assert command.count("--num_machines") == 1 and '--machine_rank "$SLURM_NODEID"' in command


def test_sizes_come_from_an_accelerate_file_too(cluster, tmp_path):
    (tmp_path / "a.yaml").write_text("distributed_type: FSDP\nnum_machines: 4\nnum_processes: 8\n"
                                     "main_process_ip: 10.0.0.1\nmain_process_port: 5000\n")
    result = slurm(cluster, "--config_file", "a.yaml", *NEEDED)
    assert {"nodes=4", "gpus-per-node=2"} <= set(options(result.stdout))
    assert "--config_file a.yaml" in result.stdout
    # A file of one machine, as guides have it: flags win.
    result = slurm(cluster, "--nodes", 2, "--gpus_per_node", 3, "--config_file", "a.yaml", *NEEDED)
    assert {"nodes=2", "gpus-per-node=3"} <= set(options(result.stdout)), result.stderr
    assert "--num_processes 6 " in result.stdout


@pytest.mark.parametrize("words, expected", [
    (["--container_image", "/i/strata.sif", "--container_mounts", "/data"],
     'apptainer exec --pwd "$PWD" --nv --bind /data /i/strata.sif \\\n'),
    (["--container_image", "repo/strata:1", "--container_mounts", "/data:/d"],
     '--container-image=repo/strata:1 --container-mounts=/data:/d --container-workdir="$PWD" \\\n'),
])
def test_containers(cluster, words, expected):
    text = slurm(cluster, *words, "--gpus_per_node", 8, *NEEDED).stdout
    assert expected in text
    assert "\n  strata --num_machines 1" in text


def test_setup_may_read_what_is_not_set(cluster, tmp_path):
    """As env.sh of spack, module's functions and many activate scripts do."""
    script = tmp_path / "job.sh"
    script.write_text(slurm(cluster, "--setup", 'export SET_UP="yes$STRATA_IS_NOT_SET"', "--num_machines", 2, "--num_processes", 2,
                            *NEEDED).stdout)
    job = start_job(cluster, script)
    output = job.communicate(timeout=60)[0]
    assert "unbound variable" not in output and os.path.exists(f"{cluster['FAKE']}/srun.log"), output


@pytest.mark.parametrize("words, message", [
    (["--nodes", "3", "--num_machines", "2", "--num_processes", "4", *NEEDED],
     "--nodes: found 3 with num_machines 2 (slurm --num_machines), expected the same; remove "
     "one"),
    (["--nodes", "3", "--num_processes", "4", *NEEDED],
     "num_processes: found 4 (slurm --num_processes), expected a multiple of the 3 nodes"),
    (["--gpus_per_node", "2", "--cpu", *NEEDED],
     "--gpus_per_node: found 2 with use_cpu true (slurm --cpu), expected one of them; remove one, or say how many "
     "ranks with --num_processes"),
    (NEEDED, "strata slurm: found no number of ranks, expected one; add --gpus_per_node or "
             "--num_processes"),
    (["--partitoin", "gpu", *NEEDED],
     "--partitoin: found an unknown flag, expected a known one; did you mean --partition?"),
    (["--num_proceses", "4", *NEEDED],
     "--num_proceses: found an unknown flag, expected a known one; did you mean --num_processes?"),
    (["--gpus_per_node", "x", *NEEDED],
     "--gpus_per_node: found \"x\", expected an integer of at least 0"),
    (["--gpus_per_node", "8", *NEEDED, "--lerning_rate", "1"],
     "--lerning_rate: found an unknown flag, expected a known one; did you mean --learning_rate?"),
    (["--gpus_per_node", "8"], "strata slurm: found nothing to run, expected sft, seq2seq, dpo, orpo, cpo, kto, reward, classify "
                               "or a script's name after the slurm flags; see strata slurm --help"),
    (["--gpus_per_node", "8", "--partition", "p\n#SBATCH --x", *NEEDED],
     "--partition: found a line break, expected one line; remove it"),
    (["--gpus_per_node", "8", "--container_mounts", "/a", *NEEDED],
     "--container_mounts: found /a without --container_image, expected the image in which the program runs; "
     "add --container_image, or remove it"),
    (["--gpus_per_node", "8", "--container_runtime", "pyxis", *NEEDED],
     "--container_runtime: found pyxis without --container_image, expected the image in which the program runs; "
     "add --container_image, or remove it"),
    (["--gpus_per_node", "8", "--time", "00:02:00", *NEEDED],
     "--time: found 00:02:00 (120 seconds), expected more than --stop_seconds (300), the seconds before the limit "
     "at which the ranks save and stop; raise --time, or lower --stop_seconds"),
    (["--gpus_per_node", "8", "--time", "-5", *NEEDED],
     '--time: found "-5", expected MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, DAYS-HOURS, '
     "DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS; write it like 24:00:00"),
    (["--gpus_per_node", "8", "--mem", "10X", *NEEDED],
     '--mem: found "10X", expected a whole number followed by K, M, G or T (none: M), or 0 for all of a '
     "machine; write it like 200G"),
    (["--gpus_per_node", "8", "--job_name=", *NEEDED],
     "--job_name: found an empty name, expected one; give one, or leave the flag out (strata)"),
    (["--nodes", "2", "--machine_rank", "1", *NEEDED],
     "slurm --machine_rank: found 1, expected less than num_machines (1)"),
    (["--foooooooo", *NEEDED],
     "--foooooooo: found an unknown flag, expected a known one; see strata slurm --help"),
    (["--max_steps", "3", *NEEDED],
     "--max_steps: found a flag of the recipe before its name, expected it after; write strata slurm [slurm flags] "
     "sft --max_steps ..."),
])
def test_what_is_wrong_is_said_before_anything_is_written(cluster, tmp_path, words, message):
    result = slurm(cluster, "--script", "job.sbatch", *words)
    assert (result.returncode, result.stderr) == (2, f"error: {message}\n")
    assert not (tmp_path / "job.sbatch").exists()


def test_a_script_of_another_content_is_not_replaced_unasked(cluster, tmp_path):
    script = tmp_path / "job.sbatch"
    words = ["--script", script, "--gpus_per_node", 8, *NEEDED]
    assert slurm(cluster, *words).returncode == 0
    written = script.read_text()
    assert slurm(cluster, *words).returncode == 0 and script.read_text() == written
    script.write_text("mine\n")
    result = slurm(cluster, *words)
    assert (result.returncode, result.stderr) == (
        2, f"error: {script}: found a file with other content, expected none; pass --overwrite or another --script\n")
    assert script.read_text() == "mine\n"
    assert slurm(cluster, "--overwrite", "false", *words).returncode == 2
    assert slurm(cluster, "--overwrite", *words).returncode == 0 and script.read_text() == written


def test_submit_hands_the_script_to_sbatch(cluster, tmp_path):
    result = slurm(cluster, "--job_name", "j", "--submit", "--gpus_per_node", 8, *NEEDED)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"j.sbatch: written\nSubmitted batch job {cluster['SLURM_JOB_ID']}\n"
    assert (tmp_path / "fake" / "submitted").read_text() == (tmp_path / "j.sbatch").read_text()
    cluster["SBATCH_CODE"] = "7"
    assert slurm(cluster, "--submit", "--gpus_per_node", 8, *NEEDED).returncode == 7


def test_submit_without_slurm(cluster, tmp_path):
    (tmp_path / "fake" / "sbatch").unlink()
    result = slurm(cluster, "--submit", "--gpus_per_node", 8, *NEEDED)
    assert result.returncode == 2
    assert result.stderr == ("error: sbatch: found no such file or directory, expected SLURM's "
                             "program on PATH; submit strata.sbatch on a machine of the cluster\n")


def test_job_trains_on_two_machines_and_comes_again_from_its_checkpoint(cluster, inputs, tmp_path):
    flags = base_flags(inputs.model("plain"), inputs.data("text"), tmp_path / "whole",
                       max_steps=6, save_strategy="steps", save_steps=2,
                       lr_scheduler_type="constant")
    whole = run_strata(flags, world=2)

    def job(steps):
        words = flag_words({**flags, "output_dir": "out it's", "max_steps": steps})
        result = slurm(cluster, "--script", "job.sbatch", "--overwrite", "--cpu", "--num_processes", 2, "--nodes",
                       2, "train.py", *words)
        assert result.returncode == 0, result.stderr
        with two_machines() as (first, second, _):
            cluster["FAKE_NAMESPACES"] = f"{first.namespace} {second.namespace}"
            cluster["FAKE_ADDRESS"] = first.address
            process = start_job(cluster, "job.sbatch")
            output = process.communicate(timeout=120)[0]
        assert process.returncode == 0, output
        state = json.loads((tmp_path / "out it's" / "trainer_state.json").read_text())
        return state

    assert job(4)["global_step"] == 4
    early = (tmp_path / "out it's" / "checkpoint-2").stat()
    second = job(6)
    assert second["global_step"] == 6
    # It did not begin again: step 2 was not saved another time.
    again = (tmp_path / "out it's" / "checkpoint-2").stat()
    assert (early.st_ino, early.st_mtime_ns) == (again.st_ino, again.st_mtime_ns)
    losses = [row["loss"] for row in second["log_history"] if "loss" in row]
    assert losses[4:] == pytest.approx(whole.losses[4:], abs=1e-4)
    assert not requeued(cluster)


# A program that ends with `code` at once, or waits for a signal and then ends with it.
STAND_IN = """#!/bin/bash
trap 'echo got USR1; exit {code}' USR1
trap 'echo got TERM; exit {code}' TERM
{wait}
exit {code}
"""


def wait_for_srun(folder):
    deadline = time.monotonic() + 20
    while not (folder / "fake" / "srun.log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)


@pytest.mark.parametrize("sent, code, words, comes_again", [
    (signal.SIGUSR1, 75, [], True),
    (signal.SIGTERM, 75, [], True),
    (signal.SIGUSR1, 138, [], True),
    (signal.SIGUSR1, 0, [], False),
    (signal.SIGUSR1, 75, ["--no_requeue"], False),
    (None, 75, [], True),
    (None, 1, [], False),
    (None, 0, [], False),
])
def test_a_job_that_was_stopped_comes_again(cluster, tmp_path, sent, code, words, comes_again):
    program = tmp_path / "program"
    program.write_text(STAND_IN.format(
        code=code, wait="for i in {1..200}; do sleep 0.05; done" if sent else ""))
    program.chmod(0o755)
    result = slurm(cluster, *words, "--script", "job.sbatch", "--program", program,
                   "--gpus_per_node", 8, *NEEDED)
    assert result.returncode == 0, result.stderr
    process = start_job(cluster, "job.sbatch")
    if sent:
        wait_for_srun(tmp_path)
        process.send_signal(sent)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == code, output
    assert output.count("got USR1") == 2 if sent else "got" not in output
    assert requeued(cluster) == comes_again


def test_a_request_to_save_is_passed_on_and_the_job_goes_on(cluster, tmp_path):
    """Sent to the script itself, too (scancel --batch); it is no reason to come again."""
    program = tmp_path / "program"
    program.write_text("#!/bin/bash\ntrap 'echo got USR2' USR2\n"
                       "for i in {1..40}; do sleep 0.05; done\nexit 3\n")
    program.chmod(0o755)
    result = slurm(cluster, "--script", "job.sbatch", "--program", program, "--gpus_per_node", 8, *NEEDED)
    assert result.returncode == 0, result.stderr
    process = start_job(cluster, "job.sbatch")
    wait_for_srun(tmp_path)
    process.send_signal(signal.SIGUSR2)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 3 and output.count("got USR2") == 2, output
    assert not requeued(cluster)
