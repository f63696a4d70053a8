"""The arrangement of several devices in a mesh."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.experimental import mesh_utils


def arranged(shape: tuple[int, ...], devices: Sequence[jax.Device], slices: int) -> np.ndarray:
    """The devices in an array of this shape, with neighbours in a slice as neighbours where that can be."""
    try:
        if slices == 1:
            return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        within, across = (1, *shape[1:]), (slices, *[1] * (len(shape) - 1))
        return mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    except (AssertionError, NotImplementedError, ValueError):  # it knows no arrangement in this topology
        in_order = sorted(devices, key=lambda device: (slice_of(device), device.id))
        return np.array(in_order, object).reshape(shape)


def slice_of(device: jax.Device) -> int:
    """The number of the slice of TPUs that a device belongs to; 0 for others."""
    return getattr(device, "slice_index", 0) if device.platform == "tpu" else 0
