# Oracle: the run that `strata launch` starts, to the bit; torchrun itself, and the variables that SLURM,
# Open MPI and MPICH document.
import os
import pathlib
import socket
import subprocess
import sys

import pytest

from running import PROGRAM, base_flags, environment, flag_words, run_strata

TORCHRUN = pathlib.Path(sys.executable).with_name("torchrun")


def flags_of(inputs, output):
    return base_flags(inputs.model("plain"), inputs.data("messages"), output, max_steps=3)


@pytest.fixture(scope="module")
def expected(inputs, tmp_path_factory):
    return weights(run_strata(flags_of(inputs, tmp_path_factory.mktemp("own")), 2).folder)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def slurm(rank, port):
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_LOCALID": rank, "SLURM_NODEID": 0,
            "SLURM_NNODES": 1, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 2,
            "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost",
            # The port follows from the job's number.
            "SLURM_JOB_ID": port - 15000}


def open_mpi(rank, port):
    return {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2,
            "OMPI_COMM_WORLD_LOCAL_RANK": rank, "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "MASTER_PORT": port}


def mpich(rank, port):
    return {"PMI_RANK": rank, "PMI_SIZE": 2, "MPI_LOCALRANKID": rank, "MPI_LOCALNRANKS": 2,
            "MASTER_PORT": port}


def free_port():
    """Of those that SLURM jobs get, for all three."""
    for port in range(15000 + os.getpid() % 9000, 25000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("found no free port")


@pytest.mark.parametrize("launcher", [slurm, open_mpi, mpich])
def test_ranks_of_another_launcher(inputs, tmp_path, expected, launcher):
    port = free_port()
    words = [str(PROGRAM), "sft", *flag_words(flags_of(inputs, tmp_path))]
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**environment(), **{k: str(v) for k, v in
                                                       launcher(rank, port).items()}})
             for rank in range(2)]
    texts = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], texts
    assert "2 ranks (shm)" in texts[0] and "2 ranks" not in texts[1]
    assert weights(tmp_path) == expected


def test_machines_of_other_sizes_with_shards_inside_each(inputs, tmp_path):
    """Their groups would have one name and other members, and wait for each other."""
    port = free_port()
    words = [str(PROGRAM), "sft", *flag_words({**flags_of(inputs, tmp_path), "cpu": True,
                                               "fsdp_sharding_strategy": "HYBRID_SHARD"})]
    ranks = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**environment(), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                                   "LOCAL_WORLD_SIZE": str(rank + 1), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
             for rank in range(2)]
    texts = [process.communicate(timeout=60)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2], texts
    assert ('settings: found "shard groups of 1 rank (of 1 rank on this machine)" on rank 0 but "shard groups of 2 ranks '
            '(of 2 ranks on this machine)" on rank 1, expected the same on all ranks') in texts[0], texts


def test_rank_0_decides_what_a_restart_goes_on_from(inputs, tmp_path, expected):
    """Ranks of other machines may see what was saved a moment later, by a file system's cache."""
    flags = {**flags_of(inputs, tmp_path), "save_strategy": "steps", "save_steps": 2}

    def run(restarts, launched):
        port = free_port()
        ranks = [subprocess.Popen([str(PROGRAM), "sft", *flag_words(flags)], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True,
                                  env={**environment(), **{k: str(v) for k, v in
                                                           mpich(rank, port).items()},
                                       "TORCHELASTIC_RESTART_COUNT": str(restarts),
                                       "STRATA_LAUNCH_TIME": launched[rank]})
                 for rank in range(2)]
        texts = [rank.communicate(timeout=60)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], texts
        return texts[0]

    assert "restart" not in run(0, ["5.0", "5.0"])
    (tmp_path / "model.safetensors").unlink()
    # For rank 1 what was saved is another launcher's.
    assert "going on from the newest checkpoint" in run(1, ["5.0", "7.0"])
    assert weights(tmp_path) == expected
    # For rank 0 it is.
    assert "nothing was saved yet, starting from the beginning" in run(1, ["7.0", "5.0"])


def test_torchrun(inputs, tmp_path, expected):
    result = subprocess.run(
        [str(TORCHRUN), "--standalone", "--nproc_per_node", "2", "--no-python", str(PROGRAM), "sft",
         *flag_words(flags_of(inputs, tmp_path))],
        capture_output=True, text=True, timeout=120, env=environment())
    assert result.returncode == 0, result.stdout + result.stderr
    assert weights(tmp_path) == expected
