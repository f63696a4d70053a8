"""Arrays of devices on the host."""

from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec


def on_host(x: Any) -> np.ndarray:
    """A copy on the host of an array that may be sharded over devices of several processes; all of these must
    call this."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        everywhere = NamedSharding(x.sharding.mesh, PartitionSpec())  # type: ignore[attr-defined]
        x = jax.jit(lambda x: x, out_shardings=everywhere)(x)
    return np.asarray(x)
