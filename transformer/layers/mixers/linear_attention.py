"""Linear attention: without a softmax, a sum over keys is a state of fixed size."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions import POSITIONS, Position
from transformer.layers.linear import Linear
from transformer.layers.mixers.base import Mixer

CHUNK = 64
"""Tokens that the causal sequence form reads at once, between updates of the state."""


class LinearAttention(Mixer, kw_only=True):  # type: ignore[call-arg]
    """y_t = sum_h W_h^O (1 / n_t) sum_s (q_ht . k_hs) v_hs / sqrt(k), over the n_t tokens s that t may see.

    Queries, keys and values are as in multi-head attention. A causal sum is q_t S_t with the state S_t =
    S_(t-1) + k_t v_t^T, (k, k) for each head: time is linear in the length, and decoding needs no KV cache.
    Rotary positions rotate queries and keys.
    Source: Katharopoulos et al. 2020, section 3.2, with the identity as feature map and a mean in place of
    the sum of weights; as in von Oswald et al. 2023, "Transformers learn in-context by gradient descent".

    Raises:
      UserError: positions that add to the scores of a softmax.
    """

    num_heads: int
    head_dim: int
    position: Position
    use_bias: bool = True
    output_scale: float = 1.0
    score_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _serves(type(self.position)):
            names = {kind: name for name, kind in POSITIONS.items()}
            serving = ", ".join(repr(name) for name, kind in POSITIONS.items() if _serves(kind))
            position = names.get(type(self.position), type(self.position).__name__)
            raise UserError(f"position: {position!r} with mixer 'linear', which has {serving}")

    @nn.compact
    def __call__(
        self, x_btd: jax.Array, *, mask: Mask, positions_bt: jax.Array, cache: Any = None, **_: Any
    ) -> tuple[jax.Array, Any]:
        """(b, t, d) -> (b, t, d); with a cache also the state (b, h, k, k) after the last token."""
        linear = functools.partial(Linear, use_bias=self.use_bias, dtype=self.dtype)
        names, features = ("embed", "heads", "head_dim"), (self.num_heads, self.head_dim)
        q_bthk, k_bshk, v_bshk = (
            linear(features, names, name=name)(x_btd) for name in ("query", "key", "value")
        )
        q_bthk, k_bshk = (self.position.rotate(x, positions_bt) for x in (q_bthk, k_bshk))
        q_bthk = q_bthk * (self.position.score_factor * self.head_dim**-0.5 * self.score_scale)
        q_bthk, k_bshk, v_bshk = (x.astype(jnp.float32) for x in (q_bthk, k_bshk, v_bshk))
        inputs = q_bthk, k_bshk, v_bshk, positions_bt
        if cache is not None:
            cache, out_bthk = extend(cache, inputs)
        elif mask.causal:
            out_bthk = _in_chunks(inputs)
        else:
            allowed_b1ts = mask.dense(x_btd.shape[1], x_btd.shape[1])
            out_bthk = _weighted(q_bthk, k_bshk, v_bshk, allowed_b1ts)
        names = ("heads", "head_dim", "embed")
        output = linear(x_btd.shape[-1:], names, axis=2, init_scale=self.output_scale, name="output")
        return output(out_bthk.astype(self.dtype)), cache

    def empty_cache(self, rows: int, slots: int) -> jax.Array:
        """S = 0; its size does not depend on `slots`."""
        return jnp.zeros((rows, self.num_heads, self.head_dim, self.head_dim), jnp.float32)

    @property
    def rotary_width(self) -> int:
        """The width of a head."""
        return self.head_dim


Inputs = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Scaled queries, keys and values (b, t, h, k), and positions (b, t)."""


def extend(state_bhkj: jax.Array, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """The state after t more tokens, and their outputs (b, t, h, k); a position of 0 resets it."""
    q_bthk, k_bshk, v_bshj, positions_bt = inputs
    document_bt = jnp.cumsum(positions_bt == 0, axis=1)  # 0: that of the state
    same_bts = document_bt[:, :, None] == document_bt[:, None]
    scores_bhts = jnp.einsum("bthk,bshk->bhts", q_bthk, k_bshk) * jnp.tril(same_bts)[:, None]
    old_bt11, last_bs11 = ((document_bt == of)[..., None, None] for of in (0, document_bt[:, -1:]))
    sum_bthj = jnp.einsum("bhts,bshj->bthj", scores_bhts, v_bshj)
    sum_bthj += jnp.einsum("bthk,bhkj->bthj", q_bthk * old_bt11, state_bhkj)
    added_bhkj = jnp.einsum("bshk,bshj->bhkj", k_bshk * last_bs11, v_bshj)
    state_bhkj = state_bhkj * old_bt11[:, -1:] + added_bhkj
    return state_bhkj, sum_bthj / (positions_bt + 1)[..., None, None]


def _in_chunks(inputs: Inputs) -> jax.Array:
    """The outputs (b, t, h, k) of a sequence from its beginning on."""
    b, t, h, k = inputs[0].shape
    state_bhkk, count = jnp.zeros((b, h, k, k)), -(-t // CHUNK)

    def chunks(x: jax.Array) -> jax.Array:
        # Padding has position 0.
        x = jnp.pad(x, ((0, 0), (0, count * CHUNK - t)) + ((0, 0),) * (x.ndim - 2))
        return x.reshape(b, count, CHUNK, *x.shape[2:]).swapaxes(0, 1)

    if count == 1:
        return extend(state_bhkk, inputs)[1]
    _, out = jax.lax.scan(extend, state_bhkk, jax.tree.map(chunks, inputs))
    return out.swapaxes(0, 1).reshape(b, -1, h, k)[:, :t]


def _weighted(q_bthk: jax.Array, k_bshk: jax.Array, v_bshk: jax.Array, allowed_b1ts: jax.Array) -> jax.Array:
    """The outputs (b, t, h, k) for a materialised mask; 0 for a query that may attend to nothing."""
    scores_bhts = jnp.einsum("bthk,bshk->bhts", q_bthk, k_bshk) * allowed_b1ts
    scores_bhts /= jnp.maximum(jnp.sum(allowed_b1ts, axis=-1, keepdims=True), 1)
    return jnp.einsum("bhts,bshk->bthk", scores_bhts, v_bshk)


def _serves(kind: type[Position]) -> bool:
    return not any(kind.has(hook) for hook in ("query_bias", "bias", "values"))
