"""Attention of new queries over a KV cache."""

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from transformer.layers.attention.kernels.reference import Scoring, masked_softmax
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

    If r rows share their keys (beams), the queries of each row are multiplied with the keys of all r rows and
    the right ones are selected: r times the products, but keys are never moved.
    """
    (b, t, h, k), (_, s, g, _) = q_bthk.shape, k_bsgk.shape
    n = h // g * t  # -1 in its place would not be known of arrays without entries
    r = 1 if mask.ancestors_mrs is None else mask.ancestors_mrs.shape[1]

    def attend(q_bhtk, k_bgsk, v_bgsk, allowed, scoring, ancestors_mrs) -> jax.Array:
        heads = ((0, 1), (0, 1))
        q_bgqk = scoring.queries(q_bhtk).reshape(b, g, n, k)

        def theirs(x_bgps: jax.Array) -> jax.Array:
            if ancestors_mrs is None:
                return x_bgps
            own_mars = ancestors_mrs[:, None] == jnp.arange(r)[:, None, None]
            own_bgps = jnp.repeat(own_mars, x_bgps.shape[2] // r, axis=2).reshape(b, 1, r * n, s)
            return jnp.where(own_bgps, x_bgps, 0.0)

        scores_bgsp = jax.lax.dot_general(
            k_bgsk, _to_all(q_bgqk, r), (((3,), (3,)), heads), preferred_element_type=jnp.float32
        )
        scores_bgsp = jax.lax.optimization_barrier(scores_bgsp)
        scores_bgqs = _from_all(theirs(scores_bgsp.swapaxes(2, 3)), r)
        scores_bhts = scoring.finish(scores_bgqs.reshape(b, h, t, s), q_bhtk)
        weights_bhts = masked_softmax(scores_bhts, allowed, scoring.sinks_h)
        weights_bgps = theirs(_to_all(weights_bhts.reshape(b, g, n, s), r)).astype(v_bgsk.dtype)
        out_bgpk = jax.lax.dot_general(
            weights_bgps, v_bgsk, (((3,), (2,)), heads), preferred_element_type=jnp.float32
        )
        out_bhtk = _from_all(out_bgpk, r).reshape(b, h, t, v_bgsk.shape[3])
        added = scoring.values(weights_bhts)
        return out_bhtk if added is None else out_bhtk + added

    def apart(*inputs) -> jax.Array:
        return set_xla_metadata(jax.jit(attend)(*inputs), inlineable="false")

    views = (x.swapaxes(1, 2) for x in (q_bthk, k_bsgk, v_bsgk))
    inputs = *views, mask.dense(t, s), scoring or Scoring(), mask.ancestors_mrs
    out_bhtk = jax.lax.platform_dependent(*inputs, cpu=apart, default=attend)
    return out_bhtk.swapaxes(1, 2).astype(q_bthk.dtype)


def _to_all(x_bgqk: jax.Array, r: int) -> jax.Array:
    """Gives each of r adjacent rows the queries of all of them: (b, g, q, ...) -> (b, g, p = r q, ...)."""
    b, g, q, k = x_bgqk.shape
    x_mgrqk = x_bgqk.reshape(b // r, r, g, q, k).swapaxes(1, 2)
    return jnp.repeat(x_mgrqk, r, axis=0).reshape(b, g, r * q, k)


def _from_all(x_bgpk: jax.Array, r: int) -> jax.Array:
    """Sums the results of each query over the r rows, in its own row: p = r q -> (b, g, q, ...)."""
    b, g, p, k = x_bgpk.shape
    x_mgrqk = jnp.sum(x_bgpk.reshape(b // r, r, g, r, p // r, k), axis=1)
    return x_mgrqk.swapaxes(1, 2).reshape(b, g, p // r, k)
