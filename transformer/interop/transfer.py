"""Parameters from tensors in files, part by part onto any mesh; and tensors in files from parameters."""

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from transformer.errors import UserError
from transformer.interop.tensor_rules import Place
from transformer.interop.tensors import Output, Tensor


def load(places: Mapping[str, Place], tensors: Mapping[str, Tensor], tree: Any) -> Any:
    """The parameters of the `tree` of `jax.ShapeDtypeStruct`s, of its types and with its shardings.

    One tensor is mapped at a time, the largest first; of it each device gets its part. So there is never more
    in memory than the parameters and one tensor.

    Raises:
      UserError: a tensor has a value that is not finite.
    """
    abstract = traverse_util.flatten_dict(tree, sep="/")
    arrays: dict[str, jax.Array] = {}
    for place in sorted(places.values(), key=lambda place: -tensors[place.name].nbytes):
        for part, path in enumerate(place.paths):
            if path not in abstract:
                continue
            target = abstract[path]
            if not place.index:
                arrays[path] = _put(place, part, tensors[place.name], target.shape, target)
                continue
            if path not in arrays:
                arrays[path] = jnp.zeros(target.shape, target.dtype, device=target.sharding)
            layer = _put(place, part, tensors[place.name], target.shape[len(place.index) :], target)
            # Waits, or the layers of many tensors would be in memory until their turn comes.
            arrays[path] = jax.block_until_ready(_setter(target.sharding)(arrays[path], layer, place.index))
    return traverse_util.unflatten_dict(arrays, sep="/")


def _put(place: Place, part: int, tensor: Tensor, shape: tuple[int, ...], target: Any) -> jax.Array:
    """One layer of a parameter, one expert of it, or all of one that is not stacked, on the devices of
    `target`."""

    def piece(index: Any) -> np.ndarray:
        whole = tuple(slice(*rows.indices(size)[:2]) for rows, size in zip(index, shape, strict=True))
        x = np.array(place.ours(tensor.open(), part, whole), target.dtype)
        if not np.isfinite(x).all():
            raise UserError(f"{tensor.path}: {place.name} has values that are not finite")
        return x

    return jax.make_array_from_callback(shape, _of_layer(target.sharding, len(place.index)), piece)


def _of_layer(sharding: Any, stacked: int) -> Any:
    """The sharding of one layer of a parameter that is stacked over layers, or over layers and experts."""
    if sharding is None:
        return SingleDeviceSharding(jax.devices()[0])
    if not stacked or not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(
        sharding.mesh, PartitionSpec(*sharding.spec[stacked:]), memory_kind=sharding.memory_kind
    )


@functools.cache
def _setter(sharding: Any) -> Any:
    """Sets one layer of a stacked parameter in place."""
    return jax.jit(lambda x, layer, index: x.at[index].set(layer), donate_argnums=0, out_shardings=sharding)


def outputs(places: Mapping[str, Place], params: Any, dtype: np.dtype) -> Iterator[Output]:
    """The tensors of parameters, each computed when it is written."""
    flat = traverse_util.flatten_dict(params, sep="/")

    def read(place: Place) -> np.ndarray:
        ours = [flat[path][place.index] for path in place.paths]
        return place.theirs([np.asarray(x) for x in ours]).astype(dtype)

    for place in places.values():
        yield Output(place.name, dtype, place.shape, functools.partial(read, place))
