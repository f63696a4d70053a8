"""The arrays in a checkpoint by their paths, and their checksums."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MULTIPLIERS = (2, 2654435761)
"""Multipliers of the positions: two sums with other weights make one of 64 bits."""


def checksums(tree: Any) -> dict[str, str]:
    """Path -> checksum of every array in a tree: 16 hexadecimal digits, the same under any sharding.

    With the bits of element i as unsigned integers u_i, the two halves are sum_i u_i (m i | 1) modulo 2^32,
    for the m in `MULTIPLIERS`. The weights are odd, so that any single bit changes the sums; as they differ,
    so do other places of the same values. Computed where the arrays are; with several processes a collective.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    # Read one by one: on CPU devices several collectives at once can wait for one another's threads for ever.
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(_sums(leaf), ">u4").tobytes().hex()
        for path, leaf in leaves
    }


@jax.jit
def _sums(array: jax.Array) -> jax.Array:
    width = array.dtype.itemsize
    numbers = array.astype(jnp.uint8) if array.dtype == bool else array
    words = jax.lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{8 * min(width, 4)}")).astype(jnp.uint32)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return jnp.stack([jnp.sum(words * (place * jnp.uint32(m) | 1), dtype=jnp.uint32) for m in MULTIPLIERS])


def compare(stored: Mapping[str, tuple], expected: Mapping[str, tuple]) -> str:
    """The differences between the arrays `stored` and `expected`, path -> (shape, dtype), in one line; "" if
    there are none."""
    missing = [path for path in expected if path not in stored]
    extra = [path for path in stored if path not in expected]
    differing = [
        f"{path} is {_describe(stored[path])}, here {_describe(expected[path])}"
        for path in expected
        if path in stored and stored[path] != expected[path]
    ]
    groups = {"missing: ": missing, "unexpected: ": extra, "": differing}
    return "; ".join(f"{title}{some(paths)}" for title, paths in groups.items() if paths)


def arrays(tree: Any) -> dict[str, tuple]:
    """Path -> (shape, type) of every array in a tree."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))[0]
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): (tuple(leaf.shape), str(leaf.dtype))
        for path, leaf in leaves
    }


def _describe(array: tuple) -> str:
    shape, dtype = array
    return f"{dtype}[{', '.join(map(str, shape))}]"


def some(items: list, limit: int = 6) -> str:
    """The first items of a list, and the number of the others."""
    shown = ", ".join(map(str, items[:limit]))
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"
