"""Gradients that each device accumulates on its own with data parallelism, added once in a step.

Left to itself, XLA adds the gradients of every microbatch over the devices.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.extend import random as generators
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

REPLICAS = ("slice", "data")
"""Mesh axes over which every parameter is whole."""


def are_replicas(mesh: Mesh | AbstractMesh) -> bool:
    """Whether there are several devices, and each has all parameters."""
    return mesh.size > 1 and math.prod(mesh.shape.get(axis, 0) for axis in REPLICAS) == mesh.size


def by_replica(accumulate: Callable[..., Any]) -> Callable[..., Any]:
    """`accumulate`, (params, rows, rng) -> (gradients, terms, carry), by each device of the current mesh for
    its own rows; then gradients and terms of all are added.

    Each device runs the program of a single one, so that no rule shards anything and kernels need no
    partitioning. The random numbers of a row are those that it has in the whole batch.
    """

    def of_one(params: Any, rows: Any, rng: jax.Array) -> Any:
        with nn.logical_axis_rules(()):
            *sums, carry = accumulate(params, rows, _of_block(rng, jax.lax.axis_index(REPLICAS)))
        return *jax.lax.psum(sums, REPLICAS), carry

    whole, by_rows = PartitionSpec(), PartitionSpec(REPLICAS)
    return jax.shard_map(
        of_one,
        in_specs=(whole, by_rows, whole),
        out_specs=(whole, whole, by_rows),
        check_vma=False,
    )


def _of_block(rng: jax.Array, block: jax.Array) -> jax.Array:
    """A key that draws what `rng` draws for the rows of all blocks, but only the part of one block."""
    if jax.random.key_impl(rng) != jax.random.key_impl(jax.random.key(0, impl="threefry2x32")):
        return jax.random.fold_in(rng, block)  # its numbers depend on the mesh
    key = jnp.append(jax.random.key_data(rng), block.astype(jnp.uint32))
    return jax.random.wrap_key_data(key, impl=OF_BLOCK)


def _fold_in(key: jax.Array, data: Any) -> jax.Array:
    return jnp.append(THREEFRY.fold_in(key[:2], data), key[2])


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    keys = THREEFRY.split(key[:2], shape)
    return jnp.concatenate([keys, jnp.broadcast_to(key[2], (*shape, 1))], axis=-1)


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    """Block `key[2]` of the rows that JAX draws by `key[:2]` for all blocks: there, each number depends on
    its position alone (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3")."""
    high, low = _positions(key[2], shape) if shape else (jnp.uint32(0), jnp.uint32(0))
    first, second = generators.threefry2x32_p.bind(key[0], key[1], high, low)
    return (first ^ second).astype(f"uint{width}")


def _positions(block: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """The positions of a block of rows among those of all blocks, as the upper and lower 32 bits."""
    row_b = block * jnp.uint32(shape[0]) + jnp.arange(shape[0], dtype=jnp.uint32)
    high_b, low_b = _product(row_b, jnp.uint32(math.prod(shape[1:])))
    high, low = (x.reshape(-1, *[1] * len(shape[1:])) for x in (high_b, low_b))
    place = sum(
        jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(math.prod(shape[axis + 1 :]))
        for axis in range(1, len(shape))
    )
    moved = jnp.broadcast_to(low + place, shape)
    return high + (moved < low), moved


def _product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The upper and lower 32 bits of a b."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    middle = a_high * b_low + (a_low * b_low >> 16)
    cross = a_low * b_high + (middle & 0xFFFF)
    return a_high * b_high + (middle >> 16) + (cross >> 16), a * b


THREEFRY = generators.threefry_prng_impl
OF_BLOCK = generators.define_prng_impl(
    key_shape=(3,),
    seed=lambda seed: jnp.append(THREEFRY.seed(seed), jnp.uint32(0)),
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="threefry2x32_of_block",
    tag="blk",
)
"""Keys with the number of a block of rows."""
