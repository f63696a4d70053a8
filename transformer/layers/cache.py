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

    @property
    def positions_bs(self) -> jax.Array:
        """The positions that the slots stand for: 0, 1, ... in each row."""
        batch, slots = self.key_bsgk.shape[:2]
        return jnp.broadcast_to(jnp.arange(slots), (batch, slots))

    def write(self, key_btgk: jax.Array, value_btgk: jax.Array, start_b: jax.Array) -> "LayerCache":
        """The cache with t new keys and values of each row in its slots from `start_b` on."""
        put = jax.vmap(lambda old, new, start: jax.lax.dynamic_update_slice(old, new, (start, 0, 0)))
        return LayerCache(
            put(self.key_bsgk, key_btgk.astype(self.key_bsgk.dtype), start_b),
            put(self.value_bsgk, value_btgk.astype(self.value_bsgk.dtype), start_b),
        )


@struct.dataclass
class Cache:
    """One `LayerCache` per layer, and how many tokens each row holds: `lengths`, (b,) int32."""

    layers: tuple[LayerCache, ...]
    lengths: jax.Array
