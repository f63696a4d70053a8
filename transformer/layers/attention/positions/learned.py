"""Learned absolute positions, added to the embeddings."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention.positions.base import Position
from transformer.layers.embedding import TABLE_STD


class Learned(Position):
    """x + c table[pos + offset], with a learned table of `max_length` + offset rows; c = rms / 0.02, or 1 if
    rms is 0.

    Source: Gehring et al. 2017 (convolutional sequence to sequence), section 3.1; used by BERT and GPT-2. The
    offset is that of the released code of Liu et al. 2019 (RoBERTa), in which padding has the rows before.
    """

    max_length: int = 2048
    rms: float = 0.0
    offset: int = 0

    @nn.compact
    def embed(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Adds the rows of the table; positions must be below `max_length`."""
        init = nn.with_logical_partitioning(nn.initializers.normal(TABLE_STD), ("positions", "embed"))
        table = self.param("table", init, (self.max_length + self.offset, x_btd.shape[-1]), jnp.float32)
        scale = self.rms / TABLE_STD if self.rms else 1.0
        return x_btd + (table[positions_bt + self.offset] * scale).astype(x_btd.dtype)
