"""Reading a run on other devices than those that it was trained on."""

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import jax

from transformer.errors import MeshError
from transformer.training import parallel


def nearest(
    config: Any, overrides: Iterable[tuple[str, str]], error: MeshError
) -> tuple[Any, Sequence[jax.Device]]:
    """The config with the mesh that is nearest to its own on this machine, and the devices that it takes;
    says so, after why its own does not fit.

    Each axis becomes the largest divisor of its size that divides the devices that are left, so that it
    divides the same parameters, first those that divide parameters. Axes that divide a batch divide its rows
    too. `data` takes what is left; a device that would have no row of a batch is not used.

    Raises:
      MeshError: the given one, if the overrides name a mesh, or there are several processes.
    """
    if jax.process_count() > 1 or any(key.startswith("parallel.mesh") for key, _ in overrides):
        raise error
    devices, mesh = jax.devices(), config.parallel.mesh
    rows = math.gcd(config.train.batch_size, config.evaluate.batch_size) // config.parallel.microbatches
    left, sizes = len(devices), dict.fromkeys(parallel.AXES, 1)
    for axis in ("tensor", "fsdp", "expert", "context", "data"):
        size = getattr(mesh, axis)
        most = math.gcd(left, left if axis == "data" or size == -1 else size)
        sizes[axis] = math.gcd(most, rows) if axis in parallel.ROWS else most
        left, rows = left // sizes[axis], rows // sizes[axis] if axis in parallel.ROWS else rows
    used = devices[: math.prod(sizes.values())]
    print(f"warning: {error}; the run is read on {parallel.described(sizes)}", file=sys.stderr)
    mesh = dataclasses.replace(mesh, **sizes | {"slice": 0})
    return dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, mesh=mesh)), used
