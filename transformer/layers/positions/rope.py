"""Rotary positions: queries and keys turned by an angle that grows with the position."""

import jax
import jax.numpy as jnp

from transformer.errors import UserError
from transformer.layers.positions.base import Position
from transformer.layers.positions.rope_scaling import SCALINGS


class Rope(Position):
    """Turns each pair (x_i, x_{i + k/2}) of a head by the angle pos * base^(-2i / k):

    (a, b) -> (a cos - b sin, a sin + b cos), so that <q_m, k_n> depends on m - n alone.
    Source: Su et al. 2021 (RoFormer), section 3.2; pairs taken half a head apart, as practice does.

    `scaling`, a key of `SCALINGS`, slows the turning down, so that texts `scaling_factor` times as long as
    those the model was trained on show it no angles that it never saw. `original_length`, for yarn, is what
    it was trained on (0: `max_length` / `scaling_factor`).
    """

    scaling: str = "none"
    scaling_factor: float = 1.0
    original_length: int = 0

    def rotate(self, x_bthk: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """Rotates in float32; the head width must be even.

        Raises:
          UserError: an unknown scaling, or a factor below 1.
        """
        if self.scaling not in SCALINGS:
            known = ", ".join(map(repr, SCALINGS))
            raise UserError(f"scaling: {self.scaling!r}; expected one of {known}")
        if self.scaling_factor < 1:
            raise UserError(f"scaling_factor: {self.scaling_factor}; expected at least 1")
        half = x_bthk.shape[-1] // 2
        length = self.original_length or self.max_length / self.scaling_factor
        frequency, stretch = SCALINGS[self.scaling](half, self.base, self.scaling_factor, length)
        angle = positions_bt[:, :, None, None].astype(jnp.float32) * frequency
        sine, cosine = stretch * jnp.sin(angle), stretch * jnp.cos(angle)
        a, b = x_bthk[..., :half].astype(jnp.float32), x_bthk[..., half:].astype(jnp.float32)
        return jnp.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=-1).astype(x_bthk.dtype)
