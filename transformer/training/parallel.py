"""Sharding: a named mesh of devices, and a table from logical axis names to mesh axes.

The mesh has four axes. `data` shards the batch and replicates parameters; `fsdp` shards both (Rajbhandari et
al. 2020, "ZeRO", stage 3); `context` shards sequences (Liu et al. 2023, "Ring Attention"); `tensor` shards
heads, hidden units and vocabulary (Shoeybi et al. 2019, "Megatron-LM"). No other file names a mesh axis.
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.config import Bound, Bounded, OneOf, Positive
from transformer.errors import UserError

Rules = Sequence[tuple[str, str | tuple[str, ...] | None]]

RULES: dict[str, Rules] = {
    "default": (
        ("batch", ("data", "fsdp")),
        ("length", "context"),
        ("activation_embed", None),
        ("vocab", "tensor"),
        ("mlp", "tensor"),
        ("heads", "tensor"),
        ("kv_heads", "tensor"),
        ("embed", "fsdp"),
    ),
}
"""Value of `parallel.rules` -> rules, logical axis -> mesh axes, in order of precedence; axes without a rule
are replicated. A mesh axis shards at most one dimension of an array: `fsdp` shards the batch of an
activation, so its width is not sharded, while `embed` of a parameter is."""


AXES = ("data", "fsdp", "context", "tensor")
"""Mesh axes in the order of increasing communication; devices of the last one should be neighbours."""

Size = Annotated[int, Bound("1 or more devices, or -1 for what is left", -1, without=(0,))]


@dataclasses.dataclass(frozen=True)
class MeshConfig(Bounded):
    """Devices along each mesh axis; one may be -1, for all remaining devices."""

    data: Size = -1  # data parallelism: devices that replicate parameters; -1: all remaining
    fsdp: Size = 1  # devices that shard parameters and batch
    tensor: Size = 1  # tensor parallelism: devices that shard heads, hidden units, vocabulary
    context: Size = 1  # context parallelism: devices that shard each sequence

    def __post_init__(self):
        super().__post_init__()
        left = [axis for axis in AXES if getattr(self, axis) == -1]
        if len(left) > 1:
            raise UserError(
                f"{left[1]}: -1, but {left[0]} is -1 too; only one axis can take the remaining devices"
            )


@dataclasses.dataclass(frozen=True)
class ParallelConfig(Bounded):
    """Devices and microbatches of a run."""

    mesh: MeshConfig
    microbatches: Positive = 1  # gradient accumulation: number of parts of a batch
    rules: Annotated[str, OneOf(RULES)] = "default"  # table of logical axes -> mesh axes


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over `devices` (default: all devices of all processes).

    Raises:
      UserError: the product of the sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {axis: getattr(config, axis) for axis in AXES}
    given = math.prod(size for size in sizes.values() if size != -1)
    if len(devices) % given or (-1 not in sizes.values() and given != len(devices)):
        described = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
        raise UserError(f"parallel.mesh: {described} does not divide the {len(devices)} devices")
    shape = tuple(len(devices) // given if size == -1 else size for size in sizes.values())
    return jax.make_mesh(shape, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes), devices=devices)


@contextlib.contextmanager
def placed(mesh: Mesh, rules: Rules) -> Iterator[None]:
    """The context in which flax applies the logical constraints of layers: it needs both the rules and a mesh
    by `jax.set_mesh`, and silently ignores all constraints without them."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
        yield


def state_shardings(state: Any, mesh: Mesh, rules: Rules) -> Any:
    """The sharding of every array of a training state, as a tree like the unboxed state.

    `state` is abstract (from `jax.eval_shape`), and its `params` are boxed with logical axis names. Any other
    array whose path ends with a parameter's path, and which has its shape, is sharded like the parameter. So
    optimizer moments and the moving average are sharded like their parameters, also if the optimizer has only
    some of the stacked blocks. All other arrays (counts, factored moments) are replicated, except those of
    `carry`, which are boxed themselves.

    Raises:
      UserError: mesh axes do not divide a dimension.
    """
    whole = NamedSharding(mesh, PartitionSpec())
    if mesh.size == 1:
        return jax.tree.map(lambda _: whole, unboxed(state))
    return _cut(state, mesh, rules, whole)


def _cut(state: Any, mesh: Mesh, rules: Rules, whole: NamedSharding) -> Any:
    """`state_shardings` over several devices."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.params, is_leaf=_is_boxed)
    parameters = {
        _names(path): (leaf.value.shape, _sharding(leaf, _names(path), mesh, rules))
        for path, leaf in leaves
        if _is_boxed(leaf)
    }

    def sharding(path: tuple, leaf: Any) -> NamedSharding:
        names = _names(path)
        for start in range(len(names)):
            shape, owner = parameters.get(names[start:], ((), whole))
            if shape == leaf.shape or _is_part(leaf.shape, shape, owner):
                return owner
        return whole

    shardings = jax.tree_util.tree_map_with_path(sharding, unboxed(state))
    carry = jax.tree.map(
        lambda leaf: _sharding(leaf, ("carry",), mesh, rules), state.carry, is_leaf=_is_boxed
    )
    return shardings.replace(carry=carry)


def unboxed(tree: Any) -> Any:
    """The tree without boxes, also for abstract arrays (on which `nn.unbox` fails inside a mesh)."""
    return jax.tree.map(lambda leaf: leaf.value if _is_boxed(leaf) else leaf, tree, is_leaf=_is_boxed)


def by_rows(array: jax.Array) -> nn.LogicallyPartitioned:
    """An array with a leading batch axis, boxed to be sharded like a batch."""
    return nn.LogicallyPartitioned(array, ("batch", *[None] * (array.ndim - 1)))


def with_shardings(abstract: Any, shardings: Any) -> Any:
    """`jax.ShapeDtypeStruct`s with shardings, for restoring checkpoints."""
    return jax.tree.map(lambda leaf, each: leaf.update(sharding=each), unboxed(abstract), shardings)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over `data` and `fsdp`, tokens over `context`."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "context"))


def put_batch(batch: Mapping[str, np.ndarray], sharding: NamedSharding) -> dict[str, jax.Array]:
    """The global batch on the devices, from the rows of this process; arrays without a divisible sequence
    axis are sharded by rows only."""
    context = sharding.mesh.shape["context"]

    def put(rows: np.ndarray) -> jax.Array:
        axes = 2 if rows.ndim > 1 and rows.shape[1] % context == 0 else 1
        by_axes = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:axes]))
        return jax.make_array_from_process_local_data(by_axes, rows)

    return {name: put(np.asarray(rows)) for name, rows in batch.items()}


def check_batch_size(key: str, batch_size: int, mesh: Mesh, microbatches: int) -> None:
    """Raises `UserError` if devices times microbatches do not divide the batch size."""
    devices = mesh.shape["data"] * mesh.shape["fsdp"]
    if batch_size % (devices * microbatches):
        raise UserError(
            f"{key}: {batch_size} is not a multiple of {devices * microbatches} = "
            f"data {mesh.shape['data']} x fsdp {mesh.shape['fsdp']} devices x {microbatches} microbatches"
        )


def check_processes(devices: np.ndarray) -> None:
    """Raises `UserError` if devices (data, fsdp, context, tensor) of several processes would need the same
    rows of a batch: each process reads its own rows."""
    context, tensor = devices.shape[2:]
    for row, holders in enumerate(devices.reshape(-1, context * tensor)):
        processes = {device.process_index for device in holders}
        if len(processes) > 1:
            keys = "parallel.mesh.tensor" if context == 1 else "parallel.mesh.context x tensor"
            raise UserError(
                f"{keys}: {len(holders)} devices, of {len(processes)} processes for part {row} "
                "of the batch; it must divide the number of devices that one process has"
            )


def _sharding(boxed: Any, names: tuple[str, ...], mesh: Mesh, rules: Rules) -> NamedSharding:
    axes = tuple(boxed.get_partition_spec())
    spec = nn.logical_to_mesh_axes(axes, rules) or PartitionSpec()
    for dimension, (size, logical, part) in enumerate(zip(boxed.value.shape, axes, spec, strict=True)):
        mesh_axes = (part,) if isinstance(part, str) else tuple(part or ())
        ways = math.prod(mesh.shape[axis] for axis in mesh_axes)
        if size % ways:
            raise UserError(
                f"parallel.mesh.{mesh_axes[-1]}: {ways} devices do not divide dimension {dimension} "
                f"({logical!r}, {size} wide) of parameter {'/'.join(names)}"
            )
    return NamedSharding(mesh, spec)


def _is_part(shape: tuple[int, ...], whole: tuple[int, ...], sharding: NamedSharding) -> bool:
    """Whether an array has some of the rows of another one whose rows are not sharded."""
    spec = (*sharding.spec, None)
    return len(whole) > 1 and shape[1:] == whole[1:] and len(shape) > 1 and spec[0] is None


def _is_boxed(leaf: Any) -> bool:
    return isinstance(leaf, nn.meta.AxisMetadata)


def _names(path: tuple) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)
