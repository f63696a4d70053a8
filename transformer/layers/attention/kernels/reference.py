"""The reference implementation of attention, with all weights in memory."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.kernels.scores import (
    Scoring,
    drop,
    masked_softmax,
    saved,
    weighted_values,
)
from transformer.layers.attention.masks import Mask


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
    weigh: Callable[..., jax.Array] | None = None,
):
    """softmax(score(Q, K), masked to -inf) V, with the softmax in float32; the scores are Q K^T / sqrt(k)
    unless `scoring` says otherwise, and the weights a softmax unless `weigh`, a function like
    `masked_softmax`, computes others.

    Each of the g key/value heads is shared by h / g query heads. A query without allowed keys gets zeros.
    Dropout acts on the weights. Returns (b, t, h, value width) of q's type, and with `return_weights` also
    the weights (b, h, t, s) before dropout.
    Source: Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023.
    """
    t, s = q_bthk.shape[1], k_bsgk.shape[1]
    if mask.ancestors_mrs is not None:
        k_bsgk, v_bsgk = (_inherited(x, mask.ancestors_mrs) for x in (k_bsgk, v_bsgk))
    scoring = scoring or Scoring()
    scores_bhts = scoring.scores(q_bthk.swapaxes(1, 2), k_bsgk.swapaxes(1, 2))
    weights_bhts = (weigh or masked_softmax)(scores_bhts, mask.dense(t, s), scoring.sinks_h)
    dropped_bhts = drop(weights_bhts, dropout_rate, dropout_rng)
    out_bhtk = weighted_values(dropped_bhts, v_bsgk.swapaxes(1, 2), scoring)
    out_bthk = saved(out_bhtk.swapaxes(1, 2).astype(q_bthk.dtype))
    return (out_bthk, weights_bhts) if return_weights else out_bthk


def _inherited(x_bsgk: jax.Array, ancestors_mrs: jax.Array) -> jax.Array:
    x_mrsgk = x_bsgk.reshape(*ancestors_mrs.shape, *x_bsgk.shape[2:])
    return jnp.take_along_axis(x_mrsgk, ancestors_mrs[..., None, None], axis=1).reshape(x_bsgk.shape)


REFERENCE = Kernel(reference)
