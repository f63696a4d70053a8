"""Self-attention without parameters."""

import jax
from flax import linen as nn

from transformer.layers.attention.attention import Attention


class PlainAttention(Attention, kw_only=True):  # type: ignore[call-arg]
    """y_i = sum_j softmax_j(x_i . x_j / sqrt(d)) x_j: one head of width d, without projections."""

    d_model: int

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, 1, d)."""
        q_bt1d = self.position.rotate(x_btd[:, :, None], positions_bt)
        return nn.with_logical_constraint(q_bt1d, ("batch", "length", "heads", "head_dim"))

    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The inputs themselves."""
        x_bs1d = x_bsd[:, :, None]
        return self.position.rotate(x_bs1d, positions_bs), x_bs1d

    def join(self, out_bthk: jax.Array, width: int) -> jax.Array:
        """(b, t, 1, d) -> (b, t, d)."""
        return out_bthk[:, :, 0]

    @property
    def cache_widths(self) -> tuple[int, int, int]:
        """One head of width d_model."""
        return 1, self.d_model, self.d_model

    @property
    def products_per_pair(self) -> int:
        """2 d."""
        return 2 * self.d_model

    @property
    def rotary_width(self) -> int:
        """All of d_model."""
        return self.d_model

    @property
    def scale(self) -> float:
        """1 / sqrt(d)."""
        return self.d_model**-0.5
