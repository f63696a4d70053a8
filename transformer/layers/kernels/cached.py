"""Attention of a few new queries over a cache."""

import math

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from transformer.layers.kernels.reference import masked_softmax
from transformer.layers.masks import Mask


def cached(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    bias: jax.Array | None = None,
) -> jax.Array:
    """The reference's result; to be fast the keys and values should be views of head-major arrays.

    XLA on CPU would fuse the write into the cache with its readers, once for each, and copy the whole cache
    for all but the last. So the reading is a function of its own, which may not be inlined. The keys come
    first in their product: second, they would be transposed at every step.
    """
    b, t, h, k = q_bthk.shape
    s, g = k_bsgk.shape[1:3]

    def attend(q_bgqk, k_bgsk, v_bgsk, allowed, bias) -> jax.Array:
        heads = ((0, 1), (0, 1))
        scores_bgsq = jax.lax.dot_general(
            k_bgsk, q_bgqk, (((3,), (3,)), heads), preferred_element_type=jnp.float32
        )
        scores_bhts = scores_bgsq.swapaxes(2, 3).reshape(b, h, t, s) / math.sqrt(k)
        if bias is not None:
            scores_bhts = scores_bhts + bias
        weights_bgqs = masked_softmax(scores_bhts, allowed).reshape(b, g, -1, s).astype(v_bgsk.dtype)
        return jax.lax.dot_general(
            weights_bgqs, v_bgsk, (((3,), (2,)), heads), preferred_element_type=jnp.float32
        )

    def apart(*inputs) -> jax.Array:
        return set_xla_metadata(jax.jit(attend)(*inputs), inlineable="false")

    q_bgqk = q_bthk.swapaxes(1, 2).reshape(b, g, -1, k)
    inputs = q_bgqk, k_bsgk.swapaxes(1, 2), v_bsgk.swapaxes(1, 2), mask.dense(t, s), bias
    out_bgqk = jax.lax.platform_dependent(*inputs, cpu=apart, default=attend)
    return out_bgqk.reshape(b, h, t, k).swapaxes(1, 2).astype(q_bthk.dtype)
