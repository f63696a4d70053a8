"""Arrays in 8 bits: values, and a scale that groups of them share."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from transformer.devices import is_single_cpu
from transformer.layers.low_contract import low_contract

KINDS: dict[str, tuple[Any, float]] = {"int8": (jnp.int8, 127.0), "float8": (jnp.float8_e4m3fn, 448.0)}
"""The type of the values, and the largest one, that of the largest entry of a group."""

TILE = 600_000
"""Entries of a matrix in 8 bits that a CPU multiplies at once: in float32 they stay in its cache."""

SMALL = 1 << 16
"""Entries of a matrix below which it is one tile."""


@struct.dataclass
class Quantized:
    """x ~ values * scale, with `values` of a type of `KINDS`, and a float32 `scale` of size 1 along the axes
    whose entries share it.

    `values` come first: where flax compares the shape of a parameter with that of its initialiser, it reads
    the first array of a tree.
    """

    values: jax.Array
    scale: jax.Array

    @classmethod
    def of(cls, x: jax.Array, kind: str, axes: int | tuple[int, ...]) -> "Quantized":
        """The nearest values with scale = max |x| / largest value, over `axes`; 0 stays 0.

        In "int8" an entry errs by at most scale / 2, in "float8" by at most 1/16 of itself, or scale / 1024.
        Source: Jacob et al. 2018, section 2.1, with a zero point of 0; Micikevicius et al. 2022 for float8.
        """
        dtype, largest = KINDS[kind]
        scale = jnp.max(jnp.abs(x), axis=axes, keepdims=True).astype(jnp.float32) / largest
        values = x / jnp.where(scale > 0, scale, 1.0)
        return cls((jnp.round(values) if kind == "int8" else values).astype(dtype), scale)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return self.values.shape

    def astype(self, dtype: jax.typing.DTypeLike) -> jax.Array:
        """`values * scale`, as an array of type `dtype`."""
        return (self.values.astype(jnp.float32) * self.scale).astype(dtype)


def is_quantized(x: Any) -> bool:
    """Whether x is a `Quantized`, for `is_leaf` of `jax.tree`."""
    return isinstance(x, Quantized)


def contract_quantized(
    x: jax.Array, kernel: Quantized, dtype: Any, out_dtype: Any, axis: int, transposed: bool
) -> jax.Array:
    """`contract` of a kernel with one scale over the contracted axes: (x . values) scale; the values of int8
    and float8 are exact in bfloat16."""
    features = kernel.shape[:-axis] if transposed else kernel.shape[axis:]
    if is_single_cpu():
        rows = x.astype(dtype).reshape(-1, math.prod(x.shape[x.ndim - axis :]))
        matrix = kernel.values.reshape(*((-1, rows.shape[1]) if transposed else (rows.shape[1], -1)))
        y = product_by_tiles(rows, matrix, transposed).reshape(*x.shape[: x.ndim - axis], *features)
    else:
        y = low_contract(x, kernel.values, jnp.dtype(dtype), jnp.dtype("float32"), axis, transposed)
    return (y * kernel.scale.reshape(features)).astype(out_dtype)


def product_by_tiles(x_mi: jax.Array, values: jax.Array, transposed: bool) -> jax.Array:
    """x . values in float32, (m, i) . (i, o), or (o, i) if `transposed` -> (m, o), one tile of rows of the
    values after another.

    For XLA on CPU: in a loop over tokens it would convert whole matrices before the loop, and so hold all of
    them in float32; or read and write them in float32 for every token.
    """
    x_mi = x_mi.astype(jnp.float32)
    # Two at least: what is done once in a loop over tokens is done before it.
    count = max(2, -(-values.size // TILE)) if values.size >= SMALL else 0
    size = len(values) // max(count, 1)

    def product(start: jax.Array | int, size: int) -> jax.Array:
        """With the rows of the values from `start` on."""
        tile = jax.lax.dynamic_slice_in_dim(values, start, size).astype(jnp.float32)
        x = x_mi if transposed else jax.lax.dynamic_slice_in_dim(x_mi, start, size, axis=1)
        return jax.lax.dot_general(x, tile, (((1,), (int(transposed),)), ((), ())))

    starts, rest_mo = size * jnp.arange(count), product(count * size, len(values) - count * size)
    if not count:
        return rest_mo
    if transposed:
        y_nmo = jax.lax.map(lambda start: product(start, size), starts)
        return jnp.concatenate([jnp.moveaxis(y_nmo, 0, 1).reshape(len(x_mi), -1), rest_mo], axis=1)
    return jax.lax.scan(lambda y_mo, start: (y_mo + product(start, size), None), rest_mo, starts)[0]
