"""Where a program that is being traced is going to run, and how its arrays are cut there."""

import math

import jax
from flax import linen as nn


def platform() -> str:
    """cpu, tpu, nvidia, or what else JAX calls it: of the mesh that is set, whose devices may be of another
    machine, or else of the devices there are."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    device = jax.devices()[0] if device is None else device
    return "nvidia" if device.platform == "gpu" and "NVIDIA" in device.device_kind else device.platform


def sharded_over(logical: str) -> tuple[tuple[str, ...], int]:
    """The axes of the mesh that the rules cut a logical axis over, and into how many parts."""
    mesh, spec = jax.sharding.get_abstract_mesh(), nn.logical_to_mesh_axes((logical,))
    axes = spec[0] if spec else None
    axes = (axes,) if isinstance(axes, str) else tuple(axes or ())
    sizes = {axis: mesh.shape[axis] for axis in axes if mesh.shape.get(axis, 1) > 1}
    return tuple(sizes), math.prod(sizes.values())


def is_single_cpu() -> bool:
    """Whether it is one CPU device: for what is laid out by hand, which would be gathered from several."""
    return platform() == "cpu" and jax.sharding.get_abstract_mesh().size <= 1
