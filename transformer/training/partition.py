"""How parameters are divided over the devices of a mesh: a table, and a check that nothing large was left."""

import math
from collections.abc import Iterator
from typing import Any

import jax
from flax import linen as nn

from transformer.errors import UserError

REPLICATED = "replicated"
"""The logical axis of parameters that are meant to be whole on every device."""

MOST = 0.02
"""The share of the bytes of parameters that may be whole on every device although others are divided."""


def check_divided(boxed: Any, shardings: Any, mesh: jax.sharding.Mesh) -> None:
    """Raises `UserError` if kernels and tables that the axes `fsdp` and `context` should divide are whole on
    every device, and are more than `MOST` of the bytes. `boxed` are the parameters with their logical
    axes."""
    if mesh.shape["fsdp"] * mesh.shape["context"] == 1:
        return
    leaves = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=_is_boxed)
    placed = jax.tree.leaves(shardings)
    sizes = [(_bytes(_value(leaf).shape, _value(leaf)), _name(path), leaf) for path, leaf in leaves]
    left = [
        (size, name, _value(leaf).shape)
        for (size, name, leaf), sharding in zip(sizes, placed, strict=True)
        if name.endswith(("kernel", "table")) and not _is_meant(leaf) and not _is_divided(sharding)
    ]
    share = sum(size for size, *_ in left) / max(1, sum(size for size, *_ in sizes))
    if share > MOST:
        _, name, shape = max(left)
        raise UserError(
            f"parallel.mesh.fsdp: {share:.1%} of the bytes of parameters are whole on every device, most of "
            f"them in {name} {shape}; expected at most {MOST:.0%}: its logical axes have no rule"
        )


def table(params: Any) -> Iterator[str]:
    """Lines of parameter, shape, the mesh axes of each dimension and bytes on each device; `params` have
    shardings."""
    leaves = [(_name(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    width = max(len(name) for name, _ in leaves)
    for name, leaf in leaves:
        here = leaf.sharding.shard_shape(leaf.shape)
        axes = ", ".join(_axes(part, leaf.sharding.mesh) or "-" for part in leaf.sharding.spec)
        yield f"{name:{width}}  {leaf.shape!s:24} {f'({axes})':28} {_bytes(here, leaf):>15,}"


def _is_divided(sharding: Any) -> bool:
    axes = {axis for part in sharding.spec for axis in ([part] if isinstance(part, str) else part or ())}
    return bool(axes & {"fsdp", "context"})


def _axes(part: Any, mesh: jax.sharding.Mesh) -> str:
    """The axes of one dimension that have several devices, "fsdp x context"."""
    axes = [part] if isinstance(part, str) else part or ()
    return " x ".join(axis for axis in axes if mesh.shape[axis] > 1)


def _bytes(shape: tuple[int, ...], leaf: Any) -> int:
    return math.prod(shape) * leaf.dtype.itemsize


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _value(leaf: Any) -> Any:
    return leaf.value if _is_boxed(leaf) else leaf


def _is_meant(leaf: Any) -> bool:
    return _is_boxed(leaf) and REPLICATED in leaf.names


def _is_boxed(leaf: Any) -> bool:
    return isinstance(leaf, nn.LogicallyPartitioned)
