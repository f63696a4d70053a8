"""The division of parameters over the devices of a mesh: a table, and a check that nothing large is whole."""

import math
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh

from transformer.errors import UserError
from transformer.training.parallel import STATE, is_boxed, mesh_axes, path_names, unboxed

if TYPE_CHECKING:
    from transformer.training.run import Run

REPLICATED = "replicated"
"""The logical axis of parameters that are meant to be whole on every device."""

TOKEN_BYTES = 8
"""Bytes of a token in a batch on a device, at least: its id and its target."""

SMALL = 1 << 24
"""Elements of a state, or tokens of a batch, that fit into any device and need no check."""

MAX_WHOLE = 0.02
"""The share of the bytes of parameters that may be whole on every device although others are divided."""


def check_divided(boxed: Any, shardings: Any, mesh: jax.sharding.Mesh) -> None:
    """Raises `UserError` if kernels and tables that the axes `STATE` should divide are whole on every device,
    and are more than `MAX_WHOLE` of the bytes. `boxed` are the parameters with their logical axes."""
    if math.prod(mesh.shape[axis] for axis in STATE) == 1:
        return
    leaves = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=is_boxed)
    undivided, total = [(0, "", ())], 0
    for (path, box), sharding in zip(leaves, jax.tree.leaves(shardings), strict=True):
        name, leaf = _name(path), unboxed(box)
        total += _bytes(leaf.shape, leaf)
        if name.endswith(("kernel", "table")) and not (_is_meant(box) or _is_divided(sharding)):
            undivided.append((_bytes(leaf.shape, leaf), name, leaf.shape))
    share = sum(size for size, *_ in undivided) / max(1, total)
    if share > MAX_WHOLE:
        _, name, shape = max(undivided)
        raise UserError(
            f"parallel.mesh.fsdp: {share:.1%} of the bytes of parameters are whole on every device, most of "
            f"them in {name} {shape}; expected at most {MAX_WHOLE:.0%}: its logical axes have no rule"
        )


def check_memory(run: "Run") -> None:
    """Checks the sizes of a batch and of the training state: to make such a batch would take minutes and then
    fail, and allocating such a state would wait without end on some systems.

    Raises:
      UserError: a batch, by `TOKEN_BYTES` alone, or the state is larger than the memory of a device.
    """
    mesh, rows, tokens = run.mesh, run.config.train.batch_size, run.experiment.tokens_per_example
    batch_bytes = rows * tokens * TOKEN_BYTES / mesh.size
    if batch_bytes > memory_of(mesh):
        key = f"train.batch_size: {rows:,} rows of {tokens:,} tokens take"
        raise _too_large(key, batch_bytes, mesh, "fewer, or shorter rows")
    leaves = jax.tree.leaves(run.abstract)
    state_bytes = sum(_bytes(leaf.sharding.shard_shape(leaf.shape), leaf) for leaf in leaves)
    if state_bytes > memory_of(mesh):
        remedy = "a smaller model, or more devices in parallel.mesh.fsdp"
        raise _too_large("model: the training state takes", state_bytes, mesh, remedy)


def _too_large(subject: str, needed: float, mesh: Mesh, remedy: str) -> UserError:
    has = memory_of(mesh)
    return UserError(
        f"{subject} {needed / 1e9:,.1f} GB on each device, which has {has / 1e9:,.1f} GB; expected {remedy}"
    )


def memory_of(mesh: Mesh) -> float:
    """Bytes of memory of a device of the mesh, for CPUs its share of the machine; infinite if not known."""
    device, *rest = mesh.local_devices
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 + len(rest))
    return (device.memory_stats() or {}).get("bytes_limit", math.inf)


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
    return any(axis in STATE for part in sharding.spec for axis in mesh_axes(part))


def _axes(part: Any, mesh: jax.sharding.Mesh) -> str:
    """The axes of one dimension that have several devices, "fsdp x context"."""
    return " x ".join(axis for axis in mesh_axes(part) if mesh.shape[axis] > 1)


def _bytes(shape: tuple[int, ...], leaf: Any) -> int:
    return math.prod(shape) * leaf.dtype.itemsize


def _name(path: tuple) -> str:
    return "/".join(path_names(path))


def _is_meant(leaf: Any) -> bool:
    return is_boxed(leaf) and REPLICATED in leaf.names
