"""The explicit key/value cache of incremental decoding."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class LayerCache:
    """Keys and values of one attention layer, in slots of a fixed number.

    Row `i` of the batch has `lengths[i]` filled slots; a slot's index is the token's index in its row.
    Every leaf has the batch as its first axis, so reordering beams is one `tree.map`.
    """

    key_bsgk: jax.Array
    value_bsgk: jax.Array

    @classmethod
    def empty(cls, batch: int, slots: int, num_kv_heads: int, head_dim: int, dtype) -> "LayerCache":
        """Zeros: (batch, slots, num_kv_heads, head_dim) twice."""
        zeros = jnp.zeros((batch, slots, num_kv_heads, head_dim), dtype)
        return cls(zeros, zeros)


@struct.dataclass
class Cache:
    """One `LayerCache` per layer, and how many tokens each row holds: `lengths`, (b,) int32."""

    layers: tuple[LayerCache, ...]
    lengths: jax.Array
