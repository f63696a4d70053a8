"""Attention as it is written, every weight held in memory: what the other kernels are checked against."""

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from transformer.layers.kernels.base import Kernel
from transformer.layers.masks import Mask
from transformer.layers.scores import Scoring

SAVED = "attention_output"
"""The name of what gradients through attention begin with: what it gave back, at the least."""


def saved(x: jax.Array) -> jax.Array:
    """The same by that name, for rematerialisation to keep."""
    return checkpoint_name(x, SAVED)


def reference(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    return_weights: bool = False,
):
    """softmax(score(Q, K), masked to -inf) V, the softmax in float32; Q K^T / sqrt(k) are the scores unless
    `scoring` says otherwise.

    Each of the g key/value heads serves h / g query heads. A query that may see no key at all gets zeros.
    Dropout acts on the weights. Returns (b, t, h, width of a value), of q's type, and with `return_weights`
    also the weights (b, h, t, s) before dropout.
    Source: Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023.
    """
    t, s = q_bthk.shape[1], k_bsgk.shape[1]
    k_bsgk, v_bsgk = _inherited(k_bsgk, mask.ancestors_mrs), _inherited(v_bsgk, mask.ancestors_mrs)
    scoring = scoring or Scoring()
    scores_bhts = scoring.scores(q_bthk.swapaxes(1, 2), k_bsgk.swapaxes(1, 2))
    weights_bhts = masked_softmax(scores_bhts, mask.dense(t, s), scoring.sinks_h)
    dropped_bhts = drop(weights_bhts, dropout_rate, dropout_rng)
    out_bhtk = weighted_values(dropped_bhts, v_bsgk.swapaxes(1, 2), scoring)
    out_bthk = saved(out_bhtk.swapaxes(1, 2).astype(q_bthk.dtype))
    return (out_bthk, weights_bhts) if return_weights else out_bthk


def masked_softmax(scores: jax.Array, allowed: jax.Array, sinks_h: jax.Array | None = None) -> jax.Array:
    """exp(scores) / sum exp(scores) over the allowed of the last axis; zeros where none is allowed.

    With `sinks_h`, for scores (..., h, t, s), exp(sink) is added to the sum.

    The maximum is taken over allowed scores and replaced by 0 where there is none, so that no infinity is
    ever subtracted from another: neither values nor gradients turn to NaN.
    """
    scores = jnp.where(allowed, scores, -jnp.inf)
    top = highest(scores, sinks_h)
    e = jnp.exp(scores - top)
    total = sum_of(e, top, sinks_h)
    return e / jnp.where(total == 0, 1.0, total)


def highest(scores: jax.Array, sinks_h: jax.Array | None) -> jax.Array:
    """The greatest score of each query, its sink's among them, or 0 where it may see nothing."""
    top = jnp.max(scores, axis=-1, keepdims=True)
    top = top if sinks_h is None else jnp.maximum(top, sinks_h[:, None, None])
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))


def sum_of(e: jax.Array, top: jax.Array, sinks_h: jax.Array | None) -> jax.Array:
    """sum e, and the sink's share of it, for e = exp(scores - top)."""
    total = jnp.sum(e, axis=-1, keepdims=True)
    return total if sinks_h is None else total + jnp.exp(sinks_h[:, None, None] - top)


def weighted_values(weights_bhts: jax.Array, v_bgsk: jax.Array, scoring: Scoring) -> jax.Array:
    """sum_s weight v + values(weights), in float32: linear in the weights and in v. (b, h, t, k)"""
    b, h, t, s = weights_bhts.shape
    g = v_bgsk.shape[1]
    weights_bgps = weights_bhts.reshape(b, g, (h // g) * t, s).astype(v_bgsk.dtype)
    out_bgpk = jnp.einsum("bgps,bgsk->bgpk", weights_bgps, v_bgsk, preferred_element_type=jnp.float32)
    out_bhtk, added = out_bgpk.reshape(b, h, t, v_bgsk.shape[-1]), scoring.values(weights_bhts)
    return out_bhtk if added is None else out_bhtk + added


def _inherited(x_bsgk: jax.Array, ancestors_mrs: jax.Array | None) -> jax.Array:
    if ancestors_mrs is None:
        return x_bsgk
    x_mrsgk = x_bsgk.reshape(*ancestors_mrs.shape, *x_bsgk.shape[2:])
    return jnp.take_along_axis(x_mrsgk, ancestors_mrs[..., None, None], axis=1).reshape(x_bsgk.shape)


def drop(weights: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    """Sets each weight to zero with probability `rate` and divides the others by 1 - rate."""
    if rate == 0.0 or rng is None:
        return weights
    return jnp.where(jax.random.bernoulli(rng, 1 - rate, weights.shape), weights / (1 - rate), 0.0)


REFERENCE = Kernel(reference)
