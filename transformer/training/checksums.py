"""Checksums of the arrays in a checkpoint, to find out whether what is read is what was written."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

ODD = (2, 2654435761)
"""Multipliers of the positions: two sums with other weights make one of 64 bits."""


def checksums(tree: Any) -> dict[str, str]:
    """Path -> checksum of every array in a tree: 16 hexadecimal digits, the same under any sharding.

    With the bits of element i as unsigned integers u_i, the two halves are sum_i u_i (m i | 1) modulo 2^32,
    for the m in `ODD`. The weights are odd, so that any single bit changes the sums; as they differ, so do
    other places of the same values. Computed where the arrays are; with several processes a collective.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    sums = [(path, _sums(leaf)) for path, leaf in leaves]
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(both).astype(">u4").tobytes().hex()
        for path, both in jax.device_get(sums)
    }


@jax.jit
def _sums(array: jax.Array) -> jax.Array:
    width = array.dtype.itemsize
    whole = array.astype(jnp.uint8) if array.dtype == bool else array
    words = jax.lax.bitcast_convert_type(whole, jnp.dtype(f"uint{8 * min(width, 4)}")).astype(jnp.uint32)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return jnp.stack([jnp.sum(words * (place * jnp.uint32(m) | 1), dtype=jnp.uint32) for m in ODD])
