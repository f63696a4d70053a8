"""The reference implementation of attention, with all weights in memory."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.ad_checkpoint import checkpoint_name

from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions import Position
from transformer.layers.linear import by_rows

SAVED = "attention_output"
"""The name of the arrays that attention's backward pass needs, at least its output, for rematerialisation."""


def saved(x: jax.Array) -> jax.Array:
    """Marks an array with the name `SAVED`, for `remat` policies that save it."""
    return checkpoint_name(x, SAVED)


@struct.dataclass
class Scoring:
    """score(i, j) = cap(scale query_bias(q_i) . k_j + bias(q_i, i, j)), cap(x) = c tanh(x / c); with a sink

    w_ij = exp score(i, j) / (exp sink + sum_j exp score(i, j)),    out_i = sum_j w_ij v_j + values(w_i).

    - `position`, an unbound module with `params`: its hooks get `query_positions_bt` and `key_positions_bs`;
      None: no bias;
    - `soft_cap` c limits scores to (-c, c); 0: off (Gemma Team 2024, Gemma 2, section 2);
    - `sinks_h`, attention sinks: learned scores, per head, of a key with the value zero (Xiao et al. 2024,
      StreamingLLM, section 3.3); None: none;
    - `scale`; 0: 1 / sqrt(k), with k the width of a key (Vaswani et al. 2017, section 3.2.1).
    """

    query_positions_bt: jax.Array | None = None
    key_positions_bs: jax.Array | None = None
    params: Any = None
    sinks_h: jax.Array | None = None
    position: Position | None = struct.field(pytree_node=False, default=None)
    soft_cap: float = struct.field(pytree_node=False, default=0.0)
    scale: float = struct.field(pytree_node=False, default=0.0)

    def has(self, hook: str) -> bool:
        """Whether the position encoding overrides a hook."""
        return self.position is not None and self.position.has(hook)

    def scores(self, q_bhtk: jax.Array, k_bgsk: jax.Array) -> jax.Array:
        """Unmasked float32 scores (b, h, t, s) of head-major queries and keys; h / g query heads share a key
        head."""
        b, h, t, k = q_bhtk.shape
        g, s = k_bgsk.shape[1:3]
        q_bgpk = self.queries(q_bhtk).reshape(b, g, (h // g) * t, k)
        products = product("bgpk,bgsk->bgps", q_bgpk, k_bgsk)
        return self.finish(products.reshape(b, h, t, s), q_bhtk)

    def queries(self, q_bhtk: jax.Array) -> jax.Array:
        """The queries for the product with the keys."""
        if self.position is None:
            return q_bhtk
        q_bthk = q_bhtk.swapaxes(1, 2)
        return self.position.apply({"params": self.params}, q_bthk, method="query_bias").swapaxes(1, 2)

    def finish(self, products_bhts: jax.Array, q_bhtk: jax.Array) -> jax.Array:
        """The scores from the products of queries and keys."""
        scores = products_bhts * (self.scale or 1 / math.sqrt(q_bhtk.shape[-1]))
        bias = self._ask("bias", q_bhtk.swapaxes(1, 2))
        scores = scores if bias is None else scores + bias
        return self.soft_cap * jnp.tanh(scores / self.soft_cap) if self.soft_cap else scores

    def values(self, weights_bhts: jax.Array) -> jax.Array | None:
        """The position encoding's addition to the weighted sums of values, (b, h, t, k), or None."""
        added_bthk = self._ask("values", weights_bhts)
        return None if added_bthk is None else added_bthk.swapaxes(1, 2)

    def block(self, t0: jax.Array | int, t: int, s0: jax.Array | int, s: int) -> "Scoring":
        """The scoring of a block: queries t0 ... t0 + t and keys s0 ... s0 + s."""
        return self._at(
            lambda x_bt, axis: jax.lax.dynamic_slice_in_dim(x_bt, (t0, s0)[axis], (t, s)[axis], 1)
        )

    def pad(self, t: int, s: int) -> "Scoring":
        """The scoring of queries and keys padded to t and s; the positions of padding are arbitrary."""
        return self._at(lambda x_bt, axis: jnp.pad(x_bt, ((0, 0), (0, (t, s)[axis] - x_bt.shape[1]))))

    def _at(self, change: Callable[[jax.Array, int], jax.Array]) -> "Scoring":
        if self.query_positions_bt is None or self.key_positions_bs is None:
            return self
        queries, keys = change(self.query_positions_bt, 0), change(self.key_positions_bs, 1)
        return dataclasses.replace(self, query_positions_bt=queries, key_positions_bs=keys)

    def _ask(self, hook: str, x: jax.Array) -> jax.Array | None:
        if self.position is None:
            return None
        places = self.query_positions_bt, self.key_positions_bs
        return self.position.apply({"params": self.params}, x, *places, method=hook)


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
    """sum_s weight v + values(weights), in float32: linear in the weights and in v. (b, h, t, k)"""
    b, h, t, s = weights_bhts.shape
    g = v_bgsk.shape[1]
    weights_bgps = weights_bhts.reshape(b, g, (h // g) * t, s)
    out_bgpk = product("bgps,bgsk->bgpk", weights_bgps, v_bgsk)
    out_bhtk, added = out_bgpk.reshape(b, h, t, v_bgsk.shape[-1]), scoring.values(weights_bhts)
    return out_bhtk if added is None else out_bhtk + added


def product(form: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """The einsum of x and y, in float32, with operands of the type of y.

    So are those of both products of the backward pass: autodiff would multiply the float32 gradient.
    """
    if y.dtype == jnp.float32:  # whose products autodiff may differentiate any number of times, in any mode
        return jnp.einsum(form, x, y)
    return _low_product(form, x, y)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _low_product(form, x, y):
    return _low_product_forward(form, x, y)[0]


def _low_product_forward(form, x, y):
    low_x = x.astype(y.dtype)
    return _multiply(form, low_x, y), (low_x, y, jnp.zeros(0, x.dtype))


def _low_product_backward(form, residuals, dz):
    x, y, like_x = residuals
    (of_x, of_y), of_z = form.split("->")[0].split(","), form.split("->")[1]
    dz = dz.astype(y.dtype)
    dx = _multiply(f"{of_z},{of_y}->{of_x}", dz, y)
    if of_z.endswith("s"):
        dy = _multiply(f"bgsp,{of_x}->{of_y}", dz.swapaxes(2, 3), x)
    else:
        dy = _multiply(f"bgsp,{of_z}->{of_y}", x.swapaxes(2, 3), dz)
    return dx.astype(like_x.dtype), dy.astype(y.dtype)


def _multiply(form, x, y):
    return jnp.einsum(form, by_rows(x), by_rows(y), preferred_element_type=jnp.float32)


_low_product.defvjp(_low_product_forward, _low_product_backward)


def _inherited(x_bsgk: jax.Array, ancestors_mrs: jax.Array) -> jax.Array:
    x_mrsgk = x_bsgk.reshape(*ancestors_mrs.shape, *x_bsgk.shape[2:])
    return jnp.take_along_axis(x_mrsgk, ancestors_mrs[..., None, None], axis=1).reshape(x_bsgk.shape)


def drop(weights: jax.Array, rate: float, rng: jax.Array | None) -> jax.Array:
    """Sets each weight to zero with probability `rate` and divides the others by 1 - rate."""
    if rate == 0.0 or rng is None:
        return weights
    return jnp.where(jax.random.bernoulli(rng, 1 - rate, weights.shape), weights / (1 - rate), 0.0)


REFERENCE = Kernel(reference)
