"""Learned absolute positions, added to the embeddings."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.positions.base import Position


class Learned(Position):
    """x + table[pos], one trained row for each of `max_length` positions.

    Source: Gehring et al. 2017 (convolutional sequence to sequence), section 3.1; used by BERT and GPT-2.
    """

    @nn.compact
    def embed(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Adds the table's rows; positions must be below `max_length`."""
        init = nn.with_logical_partitioning(nn.initializers.normal(0.02), ("positions", "embed"))
        table = self.param("table", init, (self.max_length, x_btd.shape[-1]), jnp.float32)
        return x_btd + table[positions_bt].astype(x_btd.dtype)
