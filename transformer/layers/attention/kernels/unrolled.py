"""Causal attention in an unrolled loop over blocks of queries, without the masked blocks of keys."""

import jax
import jax.numpy as jnp

from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.kernels.scores import Scoring, drop, highest, saved, sum_of, weighted_values
from transformer.layers.attention.masks import Mask

BLOCK = 128
"""Queries per block: small blocks skip more of the future, large ones have larger matrix products."""


def unrolled(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
) -> jax.Array:
    """The same as `reference`, for one block of queries after another over the keys up to its end.

    Half of a causal matrix is never computed. The weights of a block are not normalised, e = exp(scores -
    max), and its output is (e V) / sum e: one division per query instead of one per weight. The weights are
    stored for the backward pass, which is fast for rows of up to about 1000 tokens. Only for causal masks.
    """
    (t, s), scoring = (q_bthk.shape[1], k_bsgk.shape[1]), scoring or Scoring()
    # Head-major, so that each product reads contiguous rows.
    q_bhtk, k_bgsk, v_bgsk = (x.transpose(0, 2, 1, 3) for x in (q_bthk, k_bsgk, v_bsgk))
    blocks = []
    for start in range(0, max(t, 1), BLOCK):  # without queries one empty block
        end = min(start + BLOCK, t)
        past = min(mask.start + end, s)
        part = scoring.block(start, end - start, 0, past)
        scores = part.scores(q_bhtk[:, :, start:end], k_bgsk[:, :, :past])
        scores = jnp.where(mask.block(start, end - start, 0, past), scores, -jnp.inf)
        top = highest(scores, scoring.sinks_h)
        e = jnp.exp(scores - top)
        total = sum_of(e, top, scoring.sinks_h)
        rng = None if dropout_rng is None else jax.random.fold_in(dropout_rng, start)
        out = weighted_values(drop(e, dropout_rate, rng), v_bgsk[:, :, :past], part)
        blocks.append((out / jnp.where(total == 0, 1.0, total)).astype(q_bthk.dtype))
    return saved(jnp.concatenate(blocks, axis=2).transpose(0, 2, 1, 3))


def serves(q_bthk: jax.Array, k_bsgk: jax.Array, v_bsgk: jax.Array, mask: Mask, *_) -> str:
    """Why `unrolled` does not support these inputs; "" if it does."""
    return "" if mask.causal else "the mask is not causal"


UNROLLED = Kernel(unrolled, serves)
