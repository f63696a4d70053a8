"""The explicit key/value cache of incremental decoding."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class LayerCache:
    """Keys and values of one attention layer, in slots that the whole batch fills together.

    Head-major, so that a step's two products read each head's slots side by side.
    """

    key_bgsk: jax.Array
    value_bgsk: jax.Array

    def write(self, key_bsgk: jax.Array, value_bsgk: jax.Array, start: jax.Array | int) -> "LayerCache":
        """The cache with the new keys and values in its slots from `start` on."""

        def put(old_bgsk: jax.Array, new_bsgk: jax.Array) -> jax.Array:
            new_bgsk = new_bsgk.swapaxes(1, 2).astype(old_bgsk.dtype)
            return jax.lax.dynamic_update_slice_in_dim(old_bgsk, new_bgsk, start, axis=2)

        return LayerCache(put(self.key_bgsk, key_bsgk), put(self.value_bgsk, value_bsgk))


@struct.dataclass
class Cache:
    """What a batch of rows has read so far: one `LayerCache` per layer, and which slots are whose.

    Row i's token j lies in slot `offsets_b[i] + j`. Rows of different lengths start at different slots and
    end at the same one, so that a new token of every row is one write in place, in slot `filled_b[i]`,
    which is equal for all i. Every leaf has the batch as its first axis: reordering beams is one `tree.map`.
    """

    layers: tuple[LayerCache, ...]
    offsets_b: jax.Array
    filled_b: jax.Array

    @classmethod
    def empty(
        cls, num_layers: int, offsets_b: jax.Array, slots: int, num_kv_heads: int, head_dim: int, dtype
    ) -> "Cache":
        """Nothing written yet; row i will begin at slot `offsets_b[i]`."""
        zeros = jnp.zeros((offsets_b.shape[0], num_kv_heads, slots, head_dim), dtype)
        return cls((LayerCache(zeros, zeros),) * num_layers, offsets_b, jnp.zeros_like(offsets_b))

    @property
    def lengths_b(self) -> jax.Array:
        """How many tokens each row holds."""
        return self.filled_b - self.offsets_b

    @property
    def positions_bs(self) -> jax.Array:
        """The position in its row that each slot stands for, below 0 before the row's first."""
        return jnp.arange(self.layers[0].key_bgsk.shape[2]) - self.offsets_b[:, None]

    def grow(self, slots: int) -> "Cache":
        """The same with empty slots added, up to `slots`."""

        def pad(x_bgsk: jax.Array) -> jax.Array:
            return jnp.pad(x_bgsk, ((0, 0), (0, 0), (0, slots - x_bgsk.shape[2]), (0, 0)))

        return Cache(jax.tree.map(pad, self.layers), self.offsets_b, self.filled_b)
