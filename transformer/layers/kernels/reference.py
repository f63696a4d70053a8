"""Attention as it is written, every weight held in memory: what the other kernels are checked against."""

import math

import jax
import jax.numpy as jnp

from transformer.layers.masks import Mask


def reference(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    bias: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
    return_weights: bool = False,
):
    """softmax(Q K^T / sqrt(k) + bias, masked to -inf) V, the softmax in float32.

    Each of the g key/value heads serves h / g query heads. `bias` broadcasts to (b, h, t, s). A query that
    may see no key at all gets zeros. Dropout acts on the weights. Returns (b, t, h, k), of q's type, and
    with `return_weights` also the weights (b, h, t, s) before dropout.
    Source: Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023.
    """
    b, t, h, k = q_bthk.shape
    s, g = k_bsgk.shape[1:3]
    k_bsgk, v_bsgk = _inherited(k_bsgk, mask.ancestors_mrs), _inherited(v_bsgk, mask.ancestors_mrs)
    q_btgrk = q_bthk.reshape(b, t, g, h // g, k)
    scores = jnp.einsum("btgrk,bsgk->bgrts", q_btgrk, k_bsgk, preferred_element_type=jnp.float32)
    scores_bhts = scores.reshape(b, h, t, s) / math.sqrt(k)
    if bias is not None:
        scores_bhts = scores_bhts + bias
    weights_bhts = masked_softmax(scores_bhts, mask.dense(t, s))
    dropped = drop(weights_bhts, dropout_rate, dropout_rng).astype(v_bsgk.dtype)
    out = jnp.einsum(
        "bgrts,bsgk->btgrk", dropped.reshape(b, g, h // g, t, s), v_bsgk, preferred_element_type=jnp.float32
    )
    out_bthk = out.reshape(b, t, h, k).astype(q_bthk.dtype)
    return (out_bthk, weights_bhts) if return_weights else out_bthk


def masked_softmax(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    """exp(scores) / sum exp(scores) over the allowed of the last axis; zeros where none is allowed.

    The maximum is taken over allowed scores and replaced by 0 where there is none, so that no infinity is
    ever subtracted from another: neither values nor gradients turn to NaN.
    """
    scores = jnp.where(allowed, scores, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    e = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
    total = jnp.sum(e, axis=-1, keepdims=True)
    return e / jnp.where(total == 0, 1.0, total)


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
