"""Signs of other processes in the environment and the devices of a process."""

import glob
import importlib.util
from collections.abc import Mapping

COUNTS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "MEGASCALE_NUM_SLICES")
"""Environment variables with a number of processes or slices: of Slurm's `srun`, Open MPI, several slices."""


def are_several(environment: Mapping[str, str]) -> bool:
    """Whether a scheduler started this process as one of several: by `COUNTS`, by several hosts in
    TPU_WORKER_HOSTNAMES, or by JAX_COORDINATOR_ADDRESS."""
    counts = [environment.get(name, "1") for name in COUNTS]
    several_hosts = "," in environment.get("TPU_WORKER_HOSTNAMES", "")
    return several_hosts or "JAX_COORDINATOR_ADDRESS" in environment or any(n != "1" for n in counts)


def has_tpu() -> bool:
    """Whether this machine has TPUs and their library. Whether it is one of several then only the metadata of
    the cloud say, which JAX asks."""
    chips = glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")
    return bool(chips) and importlib.util.find_spec("libtpu") is not None
