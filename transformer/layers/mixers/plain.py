"""Self-attention without parameters."""

import jax

from transformer.layers.attention.attention import Attention
from transformer.layers.attention.cache import KVCache


class PlainAttention(Attention, kw_only=True):  # type: ignore[call-arg]
    """y_i = sum_j softmax_j(x_i . x_j / sqrt(d)) x_j: one head of width d, without projections."""

    d_model: int

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, 1, d)."""
        return self.position.rotate(x_btd[:, :, None], positions_bt)

    def keys_values(self, x_bsd: jax.Array, positions_bs: jax.Array) -> KVCache:
        """The inputs themselves."""
        key_bs1d = self.position.rotate(x_bsd[:, :, None], positions_bs)
        return KVCache(key_bs1d.swapaxes(1, 2), x_bsd[:, None])

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
