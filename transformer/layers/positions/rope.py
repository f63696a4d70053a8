"""Rotary positions: queries and keys turned by an angle that grows with the position."""

import jax
import jax.numpy as jnp

from transformer.layers.positions.base import Position


class Rope(Position):
    """Turns each pair (x_i, x_{i + k/2}) of a head by the angle pos * base^(-2i / k):

    (a, b) -> (a cos - b sin, a sin + b cos), so that <q_m, k_n> depends on m - n alone.
    Source: Su et al. 2021 (RoFormer), section 3.2; pairs taken half a head apart, as practice does.
    """

    def rotate(self, x_bthk: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Rotates in float32; the head width must be even."""
        half = x_bthk.shape[-1] // 2
        frequency = self.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        angle = positions_bt[:, :, None, None].astype(jnp.float32) * frequency
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        a, b = x_bthk[..., :half].astype(jnp.float32), x_bthk[..., half:].astype(jnp.float32)
        return jnp.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=-1).astype(x_bthk.dtype)
