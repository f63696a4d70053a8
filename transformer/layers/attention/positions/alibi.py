"""Attention with linear biases (ALiBi): scores fall with the distance, with another slope in each head."""

import jax
import jax.numpy as jnp

from transformer.layers.attention.positions.base import Position


def slopes(num_heads: int) -> list[float]:
    """2^(-8 i / h) for i = 1 ... h, if h is a power of two.

    Otherwise the slopes of the next lower power of two n, then every other slope of 2 n.
    Source: Press et al. 2022 (ALiBi), section 3, and for other h the authors' code.
    """
    lower = 1 << (num_heads.bit_length() - 1)
    among_twice = [2.0 ** (-4 * i / lower) for i in range(1, 2 * lower + 1)]
    return (among_twice[1::2] + among_twice[0::2])[:num_heads]


class Alibi(Position):
    """score_ts - slope_h |t - s|, symmetric around the query; no parameters.

    Source: Press et al. 2022, "Train short, test long", section 3; there keys only precede the query.
    """

    def bias(
        self, q_bthk: jax.Array, query_positions_bt: jax.Array, key_positions_bs: jax.Array
    ) -> jax.Array:
        """(b, h, t, s) float32, at most 0."""
        slope_h = jnp.array(slopes(q_bthk.shape[2]), jnp.float32)
        distance_bts = jnp.abs(query_positions_bt[:, :, None] - key_positions_bs[:, None, :])
        return -slope_h[:, None, None] * distance_bts[:, None].astype(jnp.float32)
