"""Attention of new queries over a KV cache."""

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from transformer.layers.attention.kernels.scores import Scoring, masked_softmax
from transformer.layers.attention.kernels.shared_keys import SharedKeys
from transformer.layers.attention.masks import Mask


def cached(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
) -> jax.Array:
    """The same as `reference`; for speed the keys and values should be views of head-major arrays.

    XLA on CPU would fuse the write into the cache with each of its reads, and copy the whole cache for all
    but the last. So attention is a separate function that must not be inlined. The keys are the first operand
    of their product, also after XLA's optimisations: as the second operand they would be transposed.
    """
    (b, t, h, k), (_, s, g, _) = q_bthk.shape, k_bsgk.shape
    n = h // g * t  # -1 in its place would not be known of arrays without entries

    def attend(q_bhtk, k_bgsk, v_bgsk, allowed, scoring, ancestors_mrs) -> jax.Array:
        beams = None if ancestors_mrs is None else SharedKeys(ancestors_mrs)
        heads = (0, 1), (0, 1)
        q_bgqk = scoring.queries(q_bhtk).reshape(b, g, n, k)
        q_bgqk = beams.to_all(q_bgqk) if beams else q_bgqk
        scores_bgsq = jax.lax.dot_general(
            k_bgsk, q_bgqk, (((3,), (3,)), heads), preferred_element_type=jnp.float32
        )
        scores_bgqs = jax.lax.optimization_barrier(scores_bgsq).swapaxes(2, 3)
        scores_bgqs = beams.from_all(beams.own(scores_bgqs)) if beams else scores_bgqs
        scores_bhts = scoring.finish(scores_bgqs.reshape(b, h, t, s), q_bhtk)
        weights_bhts = masked_softmax(scores_bhts, allowed, scoring.sinks_h)
        weights_bgqs = weights_bhts.reshape(b, g, n, s)
        weights_bgqs = beams.own(beams.to_all(weights_bgqs)) if beams else weights_bgqs
        out_bgqk = jax.lax.dot_general(
            weights_bgqs.astype(v_bgsk.dtype),
            v_bgsk,
            (((3,), (2,)), heads),
            preferred_element_type=jnp.float32,
        )
        out_bgqk = beams.from_all(out_bgqk) if beams else out_bgqk
        return scoring.with_values(out_bgqk.reshape(b, h, t, v_bgsk.shape[3]), weights_bhts)

    def apart(*inputs) -> jax.Array:
        return set_xla_metadata(jax.jit(attend)(*inputs), inlineable="false")

    views = (x.swapaxes(1, 2) for x in (q_bthk, k_bsgk, v_bsgk))
    inputs = *views, mask.dense(t, s), scoring or Scoring(), mask.ancestors_mrs
    out_bhtk = jax.lax.platform_dependent(*inputs, cpu=apart, default=attend)
    return out_bhtk.swapaxes(1, 2).astype(q_bthk.dtype)
