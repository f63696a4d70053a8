"""The scores of attention, and the parts of its softmax that kernels share."""

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax.ad_checkpoint import checkpoint_name

from transformer.layers.attention.kernels.low_precision import low_product
from transformer.layers.attention.positions import Position

SAVED = "attention_output"
"""The name of the arrays that attention's backward pass needs, at least its output, for rematerialisation."""


def saved(x: jax.Array) -> jax.Array:
    """Marks an array with the name `SAVED`, for `remat` policies that save it."""
    return checkpoint_name(x, SAVED)


@struct.dataclass
class Scoring:
    """score(i, j) = cap(scale q_i . k_j), cap(x) = c tanh(x / c); with a sink

    w_ij = exp score(i, j) / (exp sink + sum_j exp score(i, j)),    out_i = sum_j w_ij v_j.

    - `params`, `query_positions_bt` and `key_positions_bs`: those of `PositionScoring`;
    - `soft_cap` c limits scores to (-c, c); 0: off (Gemma Team 2024, Gemma 2, section 2);
    - `sinks_h`, attention sinks: learned scores, per head, of a key with the value zero (Xiao et al. 2024,
      StreamingLLM, section 3.3); None: none;
    - `scale`; 0: 1 / sqrt(k), with k the width of a key (Vaswani et al. 2017, section 3.2.1).
    """

    query_positions_bt: jax.Array | None = None
    key_positions_bs: jax.Array | None = None
    params: Any = None
    sinks_h: jax.Array | None = None
    soft_cap: float = struct.field(pytree_node=False, default=0.0)
    scale: float = struct.field(pytree_node=False, default=0.0)

    position: ClassVar[Position | None] = None

    def has(self, hook: str) -> bool:
        """Whether the position encoding overrides a hook."""
        return self.position is not None and self.position.has(hook)

    def scores(self, q_bhtk: jax.Array, k_bgsk: jax.Array) -> jax.Array:
        """Unmasked float32 scores (b, h, t, s) of head-major queries and keys; h / g query heads share a key
        head."""
        b, h, t, k = q_bhtk.shape
        g, s = k_bgsk.shape[1:3]
        q_bgpk = self.queries(q_bhtk).reshape(b, g, (h // g) * t, k)
        products_bgps = product("bgpk,bgsk->bgps", q_bgpk, k_bgsk)
        return self.finish(products_bgps.reshape(b, h, t, s), q_bhtk)

    def queries(self, q_bhtk: jax.Array) -> jax.Array:
        """The queries for the product with the keys."""
        return q_bhtk

    def finish(self, products_bhts: jax.Array, q_bhtk: jax.Array) -> jax.Array:
        """The scores from the products of queries and keys."""
        scores_bhts = products_bhts * (self.scale or 1 / math.sqrt(q_bhtk.shape[-1]))
        scores_bhts = self.with_bias(scores_bhts, q_bhtk)
        return self.soft_cap * jnp.tanh(scores_bhts / self.soft_cap) if self.soft_cap else scores_bhts

    def with_bias(self, scores_bhts: jax.Array, q_bhtk: jax.Array) -> jax.Array:
        """The scaled scores, and what is added to them before the soft cap."""
        return scores_bhts

    def with_values(self, out_bhtk: jax.Array, weights_bhts: jax.Array) -> jax.Array:
        """The weighted sums of values, and what is added to them."""
        return out_bhtk

    def block(self, t0: jax.Array | int, t: int, s0: jax.Array | int, s: int) -> "Scoring":
        """The scoring of a block: queries t0 ... t0 + t and keys s0 ... s0 + s."""
        return self


def masked_softmax(scores: jax.Array, allowed: jax.Array, sinks_h: jax.Array | None = None) -> jax.Array:
    """exp(scores) / sum exp(scores) over the allowed keys on the last axis; zeros if none is allowed.

    With `sinks_h`, for scores (..., h, t, s), exp(sink) is added to the sum.

    The maximum is taken over allowed scores, and is 0 if there are none, so that infinities are never
    subtracted and neither values nor gradients are NaN.
    """
    scores = jnp.where(allowed, scores, -jnp.inf)
    top = highest(scores, sinks_h)
    e = jnp.exp(scores - top)
    total = sum_of(e, top, sinks_h)
    return e / jnp.where(total == 0, 1.0, total)


def highest(scores: jax.Array, sinks_h: jax.Array | None) -> jax.Array:
    """The maximum score of each query, including its sink, or 0 without allowed keys."""
    top = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf)
    top = top if sinks_h is None else jnp.maximum(top, sinks_h[:, None, None])
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))


def sum_of(e: jax.Array, top: jax.Array, sinks_h: jax.Array | None) -> jax.Array:
    """sum e + exp(sink - top), for e = exp(scores - top)."""
    total = jnp.sum(e, axis=-1, keepdims=True)
    return total if sinks_h is None else total + jnp.exp(sinks_h[:, None, None] - top)


def weighted_values(weights_bhts: jax.Array, v_bgsk: jax.Array, scoring: Scoring) -> jax.Array:
    """sum_s weight v, and what the scoring adds, in float32: linear in the weights and in v. (b, h, t, k)"""
    b, h, t, s = weights_bhts.shape
    g = v_bgsk.shape[1]
    weights_bgps = weights_bhts.reshape(b, g, (h // g) * t, s)
    out_bgpk = product("bgps,bgsk->bgpk", weights_bgps, v_bgsk)
    return scoring.with_values(out_bgpk.reshape(b, h, t, v_bgsk.shape[-1]), weights_bhts)


def product(form: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """The einsum of x and y, in float32, with operands of the type of y."""
    return jnp.einsum(form, x, y) if y.dtype == jnp.float32 else low_product(form, x, y)


def drop(weights: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    """Sets each weight to zero with probability `rate` and divides the others by 1 - rate."""
    if rate == 0.0 or rng is None:
        return weights
    return _dropped(weights, min(round(rate * 2**16), 2**16 - 1), rng)


def _dropped(weights: jax.Array, count: int, rng: jax.Array) -> jax.Array:
    """`drop` with the probability count / 2^16: each random word decides on two weights, as drawing them
    takes most of the time."""
    *before, s = weights.shape
    bits = jax.random.bits(rng, (*before, -(-s // 2)), jnp.uint32)
    halves = jax.lax.bitcast_convert_type(bits, jnp.uint16).reshape(*before, -1)[..., :s]
    return jnp.where(halves >= count, weights * (2**16 / (2**16 - count)), 0.0)
