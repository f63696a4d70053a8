"""Self-attention in its simplest form, without any parameters."""

import jax

from transformer.layers.attention.multi_head import Attention
from transformer.layers.cache import LayerCache


class PlainAttention(Attention):
    """y_i = sum_j softmax_j(x_i . x_j / sqrt(d)) x_j: each token a mean of those it resembles.

    One head as wide as x; what is learned is learned around it. Of `Attention`'s fields it has no use for
    those of heads, projections and their initialisation.
    """

    def setup(self) -> None:
        """Nothing is learned."""

    def queries(self, x_btd: jax.Array, positions_bt: jax.Array) -> jax.Array:
        """(b, t, d) -> (b, t, 1, d)."""
        return self.position.rotate(x_btd[:, :, None], positions_bt)

    def remember(self, x_bsd: jax.Array, positions_bs: jax.Array) -> LayerCache:
        """The tokens themselves."""
        key_bs1d = self.position.rotate(x_bsd[:, :, None], positions_bs)
        return LayerCache(key_bs1d.swapaxes(1, 2), x_bsd[:, None])

    def join(self, out_bthk: jax.Array, width: int) -> jax.Array:
        """(b, t, 1, d) -> (b, t, d)."""
        return out_bthk[:, :, 0]

    @property
    def remembered(self) -> tuple[int, int, int]:
        """One head of d_model."""
        return 1, self.head_dim, self.head_dim
