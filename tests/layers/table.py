"""A position encoding for tests, with a free parameter for every pair of positions."""

import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention.positions import Position


class Table(Position):
    """A learned bias for every pair of positions, and learned values for every key position."""

    heads: int = 1
    width: int = 8

    @nn.compact
    def bias(self, q_bthk, query_positions_bt, key_positions_bs):
        table = self.param("bias", nn.initializers.normal(1), (self.heads, 32, 32))
        return table[:, query_positions_bt[:, :, None], key_positions_bs[:, None]].swapaxes(0, 1)

    @nn.compact
    def values(self, weights_bhts, query_positions_bt, key_positions_bs):
        table = self.param("values", nn.initializers.normal(1), (32, self.width))
        return jnp.einsum("bhts,bsk->bthk", weights_bhts, table[key_positions_bs])
