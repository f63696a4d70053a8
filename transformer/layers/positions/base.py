"""The protocol of every position encoding: three places to speak up, each silent by default."""

import jax
from flax import linen as nn


class Position(nn.Module):
    """A position encoding: override the one hook that it needs.

    Fields: `base`, the constant of wavelengths (10000 in the original); `max_length`, the longest sequence
    for those with a table.
    """

    base: float = 10000.0
    max_length: int = 2048

    def embed(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Changes the sum of embeddings, once, before the first block."""
        return x_btd

    def rotate(self, x_bthk: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Changes queries and keys alike, in every attention layer."""
        return x_bthk

    def bias(
        self, query_positions_bt: jax.Array, key_positions_bs: jax.Array, num_heads: int
    ) -> jax.Array | None:
        """An addition to the attention scores, broadcastable to (b, h, t, s), or None."""
        return None
