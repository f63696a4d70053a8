"""Single-head attention of recurrent decoders over the states of the source."""

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.attention.kernels.scores import masked_softmax
from transformer.layers.linear import Linear

CHUNK = 1 << 25
"""The most hidden units (b t s d) of additive scores in memory at once."""


Remembered = tuple[jax.Array, ...]
"""Arrays (b, s, d) that an alignment computes once per source for all queries."""


class DotAlignment(nn.Module):
    """context_t = sum_s softmax_s(q_t . h_s) h_s. Source: Luong et al. 2015, equation 8, "dot"."""

    width: int
    dtype: str = "float32"

    def remember(self, h_bsd: jax.Array) -> Remembered:
        """(h,): the states themselves."""
        return (h_bsd,)

    def __call__(self, q_btd: jax.Array, remembered: Remembered, allowed_bts: jax.Array) -> jax.Array:
        """Queries (b, t, d) and what `remember` gave -> contexts (b, t, d); `allowed_bts`: or (b, 1, s)."""
        (h_bsd,) = remembered
        scores_bts = jnp.einsum("btd,bsd->bts", q_btd, h_bsd, preferred_element_type=jnp.float32)
        return _look(self, scores_bts, h_bsd, allowed_bts)


class AdditiveAlignment(nn.Module):
    """context_t = sum_s softmax_s(v . tanh(W q_t + U h_s)) h_s. Source: Bahdanau et al. 2015, section 3.1."""

    width: int
    dtype: str = "float32"

    def setup(self) -> None:
        """W `query`, U `key`, v `score`."""
        linear = functools.partial(Linear, (self.width,), dtype=self.dtype)
        self.query = linear(names=("embed", "state"))
        self.key = linear(names=("embed", "state"), use_bias=False)
        init = nn.with_logical_partitioning(nn.initializers.normal(self.width**-0.5), ("state",))
        self.score: jax.Array = self.param("score", init, (self.width,), jnp.float32)

    def remember(self, h_bsd: jax.Array) -> Remembered:
        """(h, U h)."""
        return h_bsd, self.key(h_bsd)

    def __call__(self, q_btd: jax.Array, remembered: Remembered, allowed_bts: jax.Array) -> jax.Array:
        """Queries (b, t, d) and what `remember` gave -> contexts (b, t, d); `allowed_bts`: or (b, 1, s)."""
        h_bsd, keys_bsd = remembered
        return _look(self, additive(self.query(q_btd), keys_bsd, self.score), h_bsd, allowed_bts)


ALIGNMENTS: dict[str, type[DotAlignment] | type[AdditiveAlignment]] = {
    "dot": DotAlignment,
    "additive": AdditiveAlignment,
}


def additive(q_btd: jax.Array, k_bsd: jax.Array, v_d: jax.Array, chunk: int = CHUNK) -> jax.Array:
    """sum_d v_d tanh(q_td + k_sd), float32 (b, t, s).

    Queries are processed in chunks, so that at most about `chunk` hidden units are in memory at once; the
    backward pass recomputes them.
    """

    @jax.checkpoint
    def score(q_btd: jax.Array) -> jax.Array:
        hidden = jnp.tanh(q_btd[:, :, None] + k_bsd[:, None])
        return jnp.sum(hidden * v_d, axis=-1, dtype=jnp.float32)

    b, t, d = q_btd.shape
    s = k_bsd.shape[1]
    parts = min(t, math.ceil(b * t * s * d / chunk))
    if parts <= 1:
        return score(q_btd)
    size = -(-t // parts)
    padded = jnp.pad(q_btd, ((0, 0), (0, -t % size), (0, 0)))
    scores = jax.lax.map(score, padded.reshape(b, -1, size, d).swapaxes(0, 1))
    return scores.swapaxes(0, 1).reshape(b, -1, s)[:, :t]


def _look(module: nn.Module, scores_bts: jax.Array, h_bsd: jax.Array, allowed_bts: jax.Array) -> jax.Array:
    weights_bts = masked_softmax(scores_bts, allowed_bts)
    module.sow("intermediates", "weights", weights_bts[:, None])  # (b, h, t, s), as other attention
    context = jnp.einsum(
        "bts,bsd->btd", weights_bts.astype(h_bsd.dtype), h_bsd, preferred_element_type=jnp.float32
    )
    return context.astype(h_bsd.dtype)
