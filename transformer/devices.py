"""The devices that a traced program will run on, and the sharding of its arrays."""

import math
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

DESCRIBED: dict[str, float] = {}
"""The compute capability of GPUs, by kind, that are described for plans and not on this machine."""


def platform() -> str:
    """ "cpu", "tpu", "nvidia" or another name in JAX: the platform of the current mesh, whose devices may be
    of another machine, or else of the default devices."""
    device = _target()
    return "nvidia" if device.platform == "gpu" and "NVIDIA" in device.device_kind else device.platform


def compute_capability() -> float:
    """The compute capability of the NVIDIA GPUs of the current mesh, or else of the default devices; 0 if
    unknown, because there are none of their kind on this machine, nor in `DESCRIBED`."""
    target, here = _target(), jax.devices()[0]
    known = here.platform == "gpu" and here.device_kind == target.device_kind
    return float(here.compute_capability) if known else DESCRIBED.get(target.device_kind, 0.0)


def _target() -> Any:
    return jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]


def sharded_over(logical: str) -> tuple[tuple[str, ...], int]:
    """The mesh axes that shard a logical axis by the current rules, and the number of parts."""
    mesh, spec = jax.sharding.get_abstract_mesh(), nn.logical_to_mesh_axes((logical,))
    axes = spec[0] if spec else None
    axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
    sizes = {axis: mesh.shape[axis] for axis in axes if mesh.shape.get(axis, 1) > 1}
    return tuple(sizes), math.prod(sizes.values())


def is_single_cpu() -> bool:
    """Whether there is a single CPU device. Manual layouts would cause gathers on several devices."""
    return platform() == "cpu" and jax.sharding.get_abstract_mesh().size <= 1


def on_host(x: Any) -> np.ndarray:
    """A copy on the host of an array that may be sharded over devices of several processes; all of these must
    call this."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        everywhere = NamedSharding(x.sharding.mesh, PartitionSpec())  # type: ignore[attr-defined]
        x = jax.jit(lambda x: x, out_shardings=everywhere)(x)
    return np.asarray(x)
