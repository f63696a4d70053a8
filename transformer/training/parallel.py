"""Sharding: a named mesh of devices, and a table from logical axis names to mesh axes.

The mesh has six axes. `slice` (slices of TPUs, joined by the data-centre network) and `data` shard the batch
and replicate parameters; `fsdp` shards both (Rajbhandari et al. 2020, "ZeRO", stage 3); `expert` shards the
batch and experts (Lepikhin et al. 2021, "GShard") and replicates all other parameters; `context` shards
sequences (Liu et al. 2023, "Ring Attention") and parameters; `tensor` shards heads, hidden units and
vocabulary (Shoeybi et al. 2019, "Megatron-LM").
"""

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from transformer.config import Bound, Bounded, OneOf, Positive
from transformer.errors import MeshError, UserError
from transformer.training.topology import arranged, slice_of

Rules = Sequence[tuple[str, str | tuple[str, ...] | None]]

ROWS = ("slice", "data", "fsdp", "expert")
"""Mesh axes that shard the rows of a batch."""

STATE = ("fsdp", "context")
"""Mesh axes that shard the training state."""

DEFAULT: Rules = (
    ("batch", ROWS),
    ("group", ROWS[:-1]),  # rows, where `expert` shards experts
    ("expert", "expert"),
    ("length", "context"),
    ("token", (*ROWS, "context")),  # rows and sequences as one axis
    ("residual_length", "context"),
    ("activation_embed", None),
    ("vocab", "tensor"),
    ("mlp", "tensor"),
    ("heads", "tensor"),
    ("kv_heads", "tensor"),
    ("embed", STATE),
    ("latent", STATE),
    ("lookup", ("slice", "data", "expert")),
    ("lookup_embed", "fsdp"),
)

RULES: dict[str, Rules] = {
    "default": DEFAULT,
    "sequence": (("residual_length", ("context", "tensor")), *DEFAULT),
    "whole_kv_heads": (("kv_heads", None), *DEFAULT),
    "sequence_whole_kv_heads": (("kv_heads", None), ("residual_length", ("context", "tensor")), *DEFAULT),
}
"""Value of `parallel.rules` -> rules, logical axis -> mesh axes, in order of precedence; axes without a rule
are replicated. A mesh axis shards at most one dimension of an array: `fsdp` shards the batch of an
activation, so its width is not sharded, while `embed` of a parameter is.

With `sequence`, `tensor` also shards sequences between attention and feed-forward: less memory for
activations, for a third more bytes over the network (Korthikanti et al. 2022, section 4.2.2).

With `whole_kv_heads`, `tensor` may have more devices than there are key/value heads: it does not shard those,
nor their projections, which each device computes whole (Pope et al. 2022, section 3.3)."""


AXES = (*ROWS, "context", "tensor")
"""Mesh axes in the order of increasing communication; devices of the last one should be neighbours."""

Size = Annotated[int, Bound("1 or more devices, or -1 for what is left", -1, without=(0,))]

Slices = Annotated[int, Bound("1 or more slices, or 0 for all", 0)]


@dataclasses.dataclass(frozen=True)
class MeshConfig(Bounded):
    """Devices along each mesh axis; one may be -1, for all remaining devices."""

    data: Size = -1  # data parallelism: devices that replicate parameters; -1: all remaining
    fsdp: Size = 1  # devices that shard parameters and batch
    tensor: Size = 1  # tensor parallelism: devices that shard heads, hidden units, vocabulary
    context: Size = 1  # context parallelism: devices that shard each sequence
    expert: Size = 1  # expert parallelism: devices that shard experts and batch
    slice: Slices = 0  # data parallelism over slices of TPUs; 0: as many as there are

    def _check_unset(self) -> None:
        unset = [axis for axis in AXES if getattr(self, axis) == -1]
        if len(unset) > 1:
            raise UserError(
                f"{unset[1]}: -1, but {unset[0]} is -1 too; only one axis can take the remaining devices"
            )

    checks: ClassVar = dict.fromkeys(AXES, _check_unset)


@dataclasses.dataclass(frozen=True)
class ParallelConfig(Bounded):
    """Devices and microbatches of a run."""

    mesh: MeshConfig
    microbatches: Positive = 1  # gradient accumulation: number of parts of a batch
    rules: Annotated[str, OneOf(RULES)] = "default"  # table of logical axes -> mesh axes
    # options of the compiler for the train step by name: compiler_options.xla_OPTION=true
    compiler_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over `devices` (default: all devices of all processes), with neighbours in a slice as
    neighbours in the mesh where its shape allows that.

    Raises:
      MeshError: the product of the sizes is not the number of devices, or `slice` not the number of slices.
    """
    devices = jax.devices() if devices is None else devices
    slices = len({slice_of(device) for device in devices}) if devices[0].platform == "tpu" else 1
    sizes = {axis: getattr(config, axis) for axis in AXES} | {"slice": config.slice or slices}
    if sizes["slice"] != slices and slices > 1:
        raise MeshError(f"parallel.mesh.slice: {config.slice}; devices are in {slices} slices, expected 0")
    product = math.prod(size for size in sizes.values() if size != -1)
    if len(devices) % product or (-1 not in sizes.values() and product != len(devices)):
        why = f"does not divide the {len(devices)} devices; data -1 with all others 1 fits any number"
        raise MeshError(f"parallel.mesh: {described(sizes)} {why}")
    shape = tuple(len(devices) // product if size == -1 else size for size in sizes.values())
    several = len(devices) > 1
    array = arranged(shape, devices, slices) if several else np.array(devices, object).reshape(shape)
    return Mesh(array, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def described(sizes: Mapping[str, int]) -> str:
    """The sizes of a mesh in one line, without a single slice."""
    return " x ".join(f"{axis} {n}" for axis, n in sizes.items() if axis != "slice" or n > 1)


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
    return _divide(state, mesh, rules, whole)


def param_shardings(params: Any, mesh: Mesh, rules: Rules) -> Any:
    """The sharding of every parameter, as a tree; `params` are abstract, and boxed with their logical axes.
    Raises as `state_shardings`."""
    whole = NamedSharding(mesh, PartitionSpec())
    if mesh.size == 1:
        return jax.tree.map(lambda _: whole, unboxed(params))

    def sharding(path: tuple, leaf: Any) -> NamedSharding:
        return _sharding(leaf, path_names(path), mesh, rules) if is_boxed(leaf) else whole

    return jax.tree_util.tree_map_with_path(sharding, params, is_leaf=is_boxed)


def _divide(state: Any, mesh: Mesh, rules: Rules, whole: NamedSharding) -> Any:
    """`state_shardings` over several devices."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.params, is_leaf=is_boxed)
    parameters = {
        path_names(path): (leaf.value.shape, _sharding(leaf, path_names(path), mesh, rules))
        for path, leaf in leaves
        if is_boxed(leaf)
    }

    def sharding(path: tuple, leaf: Any) -> NamedSharding:
        names = path_names(path)
        for start in range(len(names)):
            shape, owner = parameters.get(names[start:], ((), whole))
            if shape == leaf.shape or _has_rows_of(leaf.shape, shape, owner):
                return owner
        return whole

    shardings = jax.tree_util.tree_map_with_path(sharding, unboxed(state))
    carry = jax.tree.map(lambda leaf: _sharding(leaf, ("carry",), mesh, rules), state.carry, is_leaf=is_boxed)
    return shardings.replace(carry=carry)


def unboxed(tree: Any) -> Any:
    """The tree without boxes, also for abstract arrays (on which `nn.unbox` fails inside a mesh)."""
    return jax.tree.map(lambda leaf: leaf.value if is_boxed(leaf) else leaf, tree, is_leaf=is_boxed)


def by_rows(array: jax.Array) -> nn.LogicallyPartitioned:
    """An array with a leading batch axis, boxed to be sharded like a batch."""
    return nn.LogicallyPartitioned(array, ("batch", *[None] * (array.ndim - 1)))


def mesh_axes(part: Any) -> tuple[str, ...]:
    """The mesh axes of one dimension of a `PartitionSpec`."""
    return (part,) if isinstance(part, str) else tuple(part or ())


def with_shardings(abstract: Any, shardings: Any) -> Any:
    """`jax.ShapeDtypeStruct`s with shardings, for restoring checkpoints."""
    return jax.tree.map(lambda leaf, sharding: leaf.update(sharding=sharding), unboxed(abstract), shardings)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over `ROWS`, tokens over `context`."""
    return NamedSharding(mesh, PartitionSpec(ROWS, "context"))


def rows_here(batch_size: int) -> np.ndarray:
    """The rows of a batch that the devices of this process hold in the current mesh (of `placed`), in order;
    several processes may hold the same. Without a mesh, all rows."""
    mesh: Any = jax.sharding.get_mesh()
    several = jax.process_count() > 1 and not mesh.empty
    return _rows_of_process(mesh, batch_size) if several else np.arange(batch_size)


def _rows_of_process(mesh: Any, rows: int) -> np.ndarray:
    indices = NamedSharding(mesh, PartitionSpec(ROWS)).addressable_devices_indices_map((rows,))
    return np.unique(np.concatenate([np.arange(rows)[i] for i in indices.values() if i is not None]))


def shard_of_rows(sharding: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """The sharding of an array of a batch: one without a divisible sequence axis is sharded by rows only."""
    axes = 2 if len(shape) > 1 and shape[1] % sharding.mesh.shape["context"] == 0 else 1
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:axes]))


def put_batch(batch: Mapping[str, np.ndarray], sharding: NamedSharding) -> dict[str, jax.Array]:
    """The global batch on the devices, from its rows that this process holds (`rows_here`)."""
    put = _put_rows_of_process if jax.process_count() > 1 else _put_rows
    arrays = {name: np.asarray(rows) for name, rows in batch.items()}
    return {name: put(rows, shard_of_rows(sharding, rows.shape)) for name, rows in arrays.items()}


def _put_rows(rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
    # `jax.device_put` takes three times as long.
    return jax.make_array_from_callback(rows.shape, sharding, rows.__getitem__)


def _put_rows_of_process(rows: np.ndarray, sharding: NamedSharding) -> jax.Array:
    parts = math.prod(sharding.mesh.shape[axis] for axis in ROWS)
    parts_here = _rows_of_process(sharding.mesh, parts)
    size = len(rows) // len(parts_here)

    def shard(index: Any) -> np.ndarray:
        first = int(np.searchsorted(parts_here, (index[0].start or 0) // size)) * size
        return rows[first : first + size][:, *index[1:]]

    return jax.make_array_from_callback((parts * size, *rows.shape[1:]), sharding, shard)


def check_batch_sizes(config: Any, mesh: Mesh) -> None:
    """`check_batch_size` of training and evaluation for a `RunConfig`."""
    for key, size in (("train", config.train.batch_size), ("evaluate", config.evaluate.batch_size)):
        check_batch_size(f"{key}.batch_size", size, mesh, config.parallel.microbatches)


def check_batch_size(key: str, batch_size: int, mesh: Mesh, microbatches: int) -> None:
    """Raises `MeshError` if devices times microbatches do not divide the batch size."""
    sizes = {axis: mesh.shape[axis] for axis in ROWS}
    parts = math.prod(sizes.values()) * microbatches
    if batch_size % parts:
        raise MeshError(
            f"{key}: {batch_size} is not a multiple of {parts} = "
            f"{described(sizes)} devices x {microbatches} microbatches"
        )


def _sharding(boxed: Any, names: tuple[str, ...], mesh: Mesh, rules: Rules) -> NamedSharding:
    axes = tuple(boxed.get_partition_spec())
    spec = nn.logical_to_mesh_axes(axes, rules) or PartitionSpec()
    for dimension, (size, logical, part) in enumerate(zip(boxed.value.shape, axes, spec, strict=True)):
        several = [axis for axis in mesh_axes(part) if mesh.shape[axis] > 1]
        ways = math.prod(mesh.shape[axis] for axis in several)
        if size % ways:
            remedy = "; parallel.rules=whole_kv_heads keeps it whole" * (logical == "kv_heads")
            raise UserError(
                f"parallel.mesh.{' x '.join(several)}: {ways} devices do not divide dimension {dimension} "
                f"({logical!r}, {size} wide) of parameter {'/'.join(names)}{remedy}"
            )
    return NamedSharding(mesh, spec)


def _has_rows_of(shape: tuple[int, ...], whole: tuple[int, ...], sharding: NamedSharding) -> bool:
    """Whether an array has some of the rows of another whose rows are not sharded."""
    spec = (*sharding.spec, None)
    return len(whole) > 1 and shape[1:] == whole[1:] and len(shape) > 1 and spec[0] is None


def is_boxed(leaf: Any) -> bool:
    """Whether an array has its logical axes around it."""
    return isinstance(leaf, nn.meta.AxisMetadata)


def path_names(path: tuple) -> tuple[str, ...]:
    """The keys of a path in a tree."""
    return tuple(jax.tree_util.keystr((entry,), simple=True) for entry in path)
