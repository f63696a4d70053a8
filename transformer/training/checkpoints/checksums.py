"""The arrays in a checkpoint by their paths, their checksums, and checks of a checkpoint that may be from
anywhere before it is read.

TensorStore itself checks that no name leads out of the folder, and that no chunk unpacks into more than its
size. It follows links, waits for pipes, and trusts the size of chunks that a checkpoint gives.
"""

import math
from collections.abc import Mapping
from pathlib import Path
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
        jax.tree_util.keystr(path, simple=True, separator="/"): _digits(jax.device_get(_sums(leaf)))
        for path, leaf in leaves
    }


def _digits(halves: np.ndarray) -> str:
    return halves.astype(">u4").tobytes().hex()


@jax.jit
def _sums(array: jax.Array) -> jax.Array:
    width = array.dtype.itemsize
    numbers = array.astype(jnp.uint8) if array.dtype == bool else array
    words = jax.lax.bitcast_convert_type(numbers, jnp.dtype(f"uint{8 * min(width, 4)}")).astype(jnp.uint32)
    place = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return jnp.stack([jnp.sum(words * (place * jnp.uint32(m) | 1), dtype=jnp.uint32) for m in MULTIPLIERS])


def compare(stored: Mapping[str, tuple], wanted: Mapping[str, tuple]) -> str:
    """The differences between the arrays `stored` and `wanted`, path -> (shape, dtype), in one line; "" if
    there are none."""
    missing = [path for path in wanted if path not in stored]
    extra = [path for path in stored if path not in wanted]
    differing = [
        f"{path} is {_describe(stored[path])}, here {_describe(wanted[path])}"
        for path in wanted
        if path in stored and stored[path] != wanted[path]
    ]
    named = {"missing: ": missing, "unexpected: ": extra, "": differing}
    return "; ".join(f"{title}{some(paths)}" for title, paths in named.items() if paths)


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


def check_files(step: Path) -> None:
    """Checks the files of a checkpoint, which may be from elsewhere.

    Raises:
      ValueError: there are links, which may lead anywhere, or pipes.
    """
    for path in step.rglob("*"):  # which follows no links
        if path.is_symlink():
            raise ValueError(f"{path.relative_to(step)} is a link; copy what it names")
        if path.exists() and not (path.is_file() or path.is_dir()):  # a run may delete it meanwhile
            raise ValueError(f"{path.relative_to(step)} is not a file")


def check_chunks(tree: Any) -> None:
    """Raises `ValueError` if an array in orbax's description of a checkpoint has larger chunks than itself:
    each chunk is unpacked whole, whatever is taken of it."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda leaf: hasattr(leaf, "storage")
    ):
        chunks = getattr(getattr(leaf, "storage", None), "chunk_shape", None) or ()
        if math.prod(chunks) > (most := math.prod(max(1, size) for size in leaf.shape)):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise ValueError(f"{name} has chunks of {math.prod(chunks):,} elements, and {most:,} itself")
