"""The program as a shell starts it that no launcher, scheduler or person has set anything in."""

import os
import pathlib
import subprocess

from running import BUILD

ROOT = pathlib.Path(__file__).resolve().parents[2]
STRATA = str(BUILD / "strata")

ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("ACCELERATE_", "FSDP_", "SLURM_", "OMPI_", "PMI_", "STRATA_"))
    and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                     "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
}
# Where there is no default file.
ENVIRONMENT["HF_HOME"] = str(BUILD / "no-settings")


def run(*arguments, **environment):
    return subprocess.run([STRATA, *map(str, arguments)], capture_output=True, text=True, timeout=60,
                          env={**ENVIRONMENT, **environment})
