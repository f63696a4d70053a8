"""Causal attention that multiplies no block of keys which its queries may not see."""

import math

import jax
import jax.numpy as jnp

from transformer.layers.kernels.reference import drop
from transformer.layers.masks import Mask

BLOCK = 128
"""Queries in a block: fewer skip more of the future, more keep the matrix products large."""


def blockwise(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    bias: jax.Array | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
) -> jax.Array:
    """The reference's result, a block of queries at a time over the keys from its window's start to its end.

    Half of a causal matrix is never computed, and more of it with a window. The weights of a block are
    left unnormalised, e = exp(scores - max), and its output is (e V) / sum e: one division a query instead
    of one a weight. For causal masks whose queries stand at 0, 1, ... t - 1 (see `serves`).
    """
    b, t, h, k = q_bthk.shape
    g = k_bsgk.shape[2]
    # Head-major: each product then reads rows that lie side by side.
    q_bgrtk = (q_bthk / math.sqrt(k)).reshape(b, t, g, h // g, k).transpose(0, 2, 3, 1, 4)
    k_bgsk, v_bgsk = k_bsgk.transpose(0, 2, 1, 3), v_bsgk.transpose(0, 2, 1, 3)
    blocks = []
    for start in range(0, t, BLOCK):
        end = min(start + BLOCK, t)
        first = 0 if mask.window is None else max(0, start - mask.window + 1)
        scores = jnp.einsum(
            "bgrtk,bgsk->bgrts",
            q_bgrtk[:, :, :, start:end],
            k_bgsk[:, :, first:end],
            preferred_element_type=jnp.float32,
        )
        if bias is not None:
            part = jnp.broadcast_to(bias, (*bias.shape[:-2], t, t))[..., start:end, first:end]
            heads = part.shape[-3]
            scores += part.reshape(-1, *((g, h // g) if heads == h else (1, 1)), end - start, end - first)
        allowed = mask.dense_block(start, end, first, end)[:, None]
        scores = jnp.where(allowed, scores, -jnp.inf)
        top = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
        e = jnp.exp(scores - jnp.where(jnp.isfinite(top), top, 0.0))
        total = jnp.sum(e, axis=-1, keepdims=True)
        rng = None if dropout_rng is None else jax.random.fold_in(dropout_rng, start)
        weights = drop(e, dropout_rate, rng).astype(v_bsgk.dtype)
        out = jnp.einsum(
            "bgrts,bgsk->bgrtk", weights, v_bgsk[:, :, first:end], preferred_element_type=jnp.float32
        )
        blocks.append((out / jnp.where(total == 0, 1.0, total)).astype(q_bthk.dtype))
    return jnp.concatenate(blocks, axis=3).transpose(0, 3, 1, 2, 4).reshape(b, t, h, k)


def serves(q_bthk: jax.Array, k_bsgk: jax.Array, *, mask: Mask) -> str:
    """Why `blockwise` cannot serve; nothing where it can."""
    if not mask.causal:
        return "the mask is not causal"
    if mask.query_indices_bt is not None or q_bthk.shape[1] != k_bsgk.shape[1]:
        return "the queries do not stand where the keys do"
    return ""
