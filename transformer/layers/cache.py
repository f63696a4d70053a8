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

    def write(self, new: "LayerCache", start: jax.Array | int) -> "LayerCache":
        """The cache with the new keys and values in its slots from `start` on."""

        def put(old_bgsk: jax.Array, new_bgsk: jax.Array) -> jax.Array:
            return jax.lax.dynamic_update_slice_in_dim(
                old_bgsk, new_bgsk.astype(old_bgsk.dtype), start, axis=2
            )

        return jax.tree.map(put, self, new)


@struct.dataclass
class Cache:
    """What a batch of rows has read so far: one `LayerCache` per layer, and which slots are whose.

    Row i's token j lies in slot `offsets_b[i] + j`. Rows of different lengths start at different slots and
    end at the same one, so that a new token of every row is one write in place, in slot `filled_b[i]`,
    which is equal for all i. Every leaf has the batch as its first axis.
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

    def rewind(self, n: jax.Array | int) -> "Cache":
        """The same without each row's last n tokens, whose slots the next ones overwrite."""
        return Cache(self.layers, self.offsets_b, self.filled_b - n)

    def take(self, rows_b: jax.Array) -> "Cache":
        """The cache of other rows: beams change places."""
        return jax.tree.map(lambda leaf: leaf[rows_b], self)

    def repeat(self, n: int) -> "Cache":
        """n copies of each row, side by side."""
        return jax.tree.map(lambda leaf: jnp.repeat(leaf, n, axis=0), self)
