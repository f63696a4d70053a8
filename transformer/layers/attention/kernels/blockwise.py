"""Blockwise (flash) attention with memory linear in the length, in plain JAX for any platform."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from transformer.layers.attention.kernels.base import Kernel
from transformer.layers.attention.kernels.parts import Placed, parts_of
from transformer.layers.attention.kernels.scores import Scoring, drop, saved, weighted_values
from transformer.layers.attention.masks import Mask


def blockwise(
    q_bthk: jax.Array,
    k_bsgk: jax.Array,
    v_bsgk: jax.Array,
    *,
    mask: Mask,
    scoring: Scoring | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: jax.Array | None = None,
) -> jax.Array:
    """The same as `reference`, with a loop over blocks of keys for each block of queries.

    The softmax is computed online: with the maximum score m so far, the sum l of exp(score - m) and the sum o
    of exp(score - m) v, a new block changes m to m' and multiplies l and o by exp(m - m'); at the end the
    output is o / l. Only m + log l of each query is stored for the backward pass, which recomputes the
    weights of each block. Blocks that are masked entirely, by causality, the pattern, segments or invalid
    keys, are skipped in both passes. A sparse pattern is computed in parts (see `Pattern.parts`).

    Source: Milakov & Gimelshein 2018 (online softmax); Rabe & Staats 2021; Dao et al. 2022 (FlashAttention).
    """
    if 0 in (*q_bthk.shape[:2], k_bsgk.shape[1]):  # there are no blocks to loop over
        return jnp.zeros((*q_bthk.shape[:3], v_bsgk.shape[-1]), q_bthk.dtype)
    scoring = scoring or Scoring()
    if mask.seeds_d is not None and len(mask.seeds_d) > k_bsgk.shape[2]:  # heads that share keys see others
        k_bsgk, v_bsgk = (jnp.repeat(x, len(mask.seeds_d) // x.shape[2], axis=2) for x in (k_bsgk, v_bsgk))
    learned, fixed = (scoring.params, scoring.sinks_h), (mask, scoring, dropout_rng)
    q_bhtk, k_bgsk, v_bgsk = (x.swapaxes(1, 2) for x in (q_bthk, k_bsgk, v_bsgk))
    return _attend(q_bhtk, k_bgsk, v_bgsk, learned, fixed, dropout_rate).swapaxes(1, 2)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q_bhtk, k_bgsk, v_bgsk, learned, fixed, rate) -> jax.Array:
    return forward(rate, q_bhtk, k_bgsk, v_bgsk, learned, fixed)[0].astype(q_bhtk.dtype)


def _attend_forward(q_bhtk, k_bgsk, v_bgsk, learned, fixed, rate):
    out_bhtk, norm_bht1 = forward(rate, q_bhtk, k_bgsk, v_bgsk, learned, fixed)
    out_bhtk, norm_bht1 = saved(out_bhtk.astype(q_bhtk.dtype)), saved(finite(norm_bht1))
    return out_bhtk, (q_bhtk, k_bgsk, v_bgsk, learned, fixed, out_bhtk, norm_bht1)


def _attend_backward(rate, residuals, dout_bhtk):
    grads = backward(rate, residuals, dout_bhtk)
    return *jax.tree.map(lambda x, y: x.astype(y.dtype), grads, residuals[:4]), None


_attend.defvjp(_attend_forward, _attend_backward)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def forward(rate, q_bhtk, k_bgsk, v_bgsk, learned, fixed) -> tuple[jax.Array, jax.Array]:
    """Outputs (b, h, t, k) and log-sum-exps of the scores (b, h, t, 1), in float32.

    `learned` are the parameters of the position encoding and the sinks, `fixed` the mask, the rest of the
    scoring and the dropout key. A query without keys has the log-sum-exp -inf and the output 0.
    """
    return _forward_over_parts(False, rate, q_bhtk, k_bgsk, v_bgsk, learned, fixed)


@forward.defjvp
def _forward_derivatives(rate, inputs, tangents):
    # The numbers of rounds of all loops are then constants, as reverse differentiation needs.
    return jax.jvp(functools.partial(_forward_over_parts, True, rate), inputs, tangents)


def _forward_over_parts(bounded, rate, q_bhtk, k_bgsk, v_bgsk, learned, fixed) -> tuple[jax.Array, jax.Array]:
    whole: Any = None
    for n, part in enumerate(parts_of(fixed[0], q_bhtk.shape[2], k_bgsk.shape[2])):
        blocks = _Blocks(part, k_bgsk, v_bgsk, fixed, n, rate, bounded)
        learned_here = learned if n == 0 else (learned[0], None)
        out_bhtk, norm_bht1 = _forward(blocks, part.queries.view(q_bhtk), learned_here)
        more = part.queries.back(out_bhtk), part.queries.back(norm_bht1, -jnp.inf)
        whole = more if whole is None else joined(whole, more)
    return whole


def joined(first: Any, second: Any) -> tuple[jax.Array, jax.Array]:
    """The outputs and log-sum-exps over the keys of two parts."""
    top = jax.lax.stop_gradient(finite(jnp.maximum(first[1], second[1])))
    e, more_e = jnp.exp(first[1] - top), jnp.exp(second[1] - top)
    total = e + more_e
    return (e * first[0] + more_e * second[0]) / _positive(total), _norm(top, total)


def _norm(top: jax.Array, total: jax.Array) -> jax.Array:
    """log(e^top total), whose derivative is finite also where the total is 0 and this is -inf."""
    return jnp.where(total == 0, -jnp.inf, finite(top) + jnp.log(_positive(total)))


def _positive(total: jax.Array) -> jax.Array:
    return jnp.where(total == 0, 1.0, total)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def backward(rate, residuals, dout_bhtk):
    """The float32 gradients of q, k, v and `learned`. The `residuals` are the inputs of `forward`, its
    outputs and (finite) log-sum-exps. The latter two may be those of more keys; then this is the share of
    these keys."""
    return _backward_over_parts(False, rate, residuals, dout_bhtk)


@backward.defjvp
def _backward_derivatives(rate, inputs, tangents):
    return jax.jvp(functools.partial(_backward_over_parts, True, rate), inputs, tangents)


def _backward_over_parts(bounded, rate, residuals, dout_bhtk):
    q_bhtk, k_bgsk, v_bgsk, learned, fixed, out_bhtk, norm_bht1 = residuals
    dout_bhtk = dout_bhtk.astype(jnp.float32)
    # sum_s w dw of each query, which equals the product of its output and its gradient.
    mean_bht1 = jnp.sum(dout_bhtk * out_bhtk.astype(jnp.float32), axis=-1, keepdims=True)
    inputs = q_bhtk, k_bgsk, v_bgsk, learned
    grads = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), inputs)
    for n, part in enumerate(parts_of(fixed[0], q_bhtk.shape[2], k_bgsk.shape[2])):
        blocks = _Blocks(part, k_bgsk, v_bgsk, fixed, n, rate, bounded)
        queries = (part.queries.view(x) for x in (q_bhtk, dout_bhtk, mean_bht1, norm_bht1))
        dq, dk, dv, dlearned = _backward(blocks, learned, *queries)
        more = part.queries.back(dq), part.keys.back(dk), part.keys.back(dv), dlearned
        grads = jax.tree.map(jnp.add, grads, more)
    if learned[1] is not None:
        sink_bht1 = jnp.exp(learned[1][:, None, None] - norm_bht1)
        dsinks_h = -jnp.sum(sink_bht1 * mean_bht1, axis=(0, 2, 3))
        grads = *grads[:3], (grads[3][0], dsinks_h)
    return grads


class _Blocks:
    """The blocks of a part, and the computations for a block of queries and a block of keys that both passes
    share."""

    def __init__(self, part: Placed, k_bgsk, v_bgsk, fixed, number, rate, bounded) -> None:
        (mask, scoring, rng), b = fixed, k_bgsk.shape[0]
        self.keys = part.keys.view(k_bgsk), part.keys.view(v_bgsk)
        self.mask, self.scoring = part.mask(mask, b), part.scoring(scoring, b)
        self.rate, self.bounded, self.sizes = rate, bounded, part.blocks.sizes
        self.rng = None if rng is None else jax.random.fold_in(rng, number)
        # The hooks of a position encoding take the same keys for all heads.
        self.table, self.counts = part.table(self.mask, mask, by_seed=scoring.position is None)

    def over(self, row: Any, carry: Any, *queries_bhtk: jax.Array) -> tuple[Any, jax.Array]:
        """Calls `row(carry, loop, i, *block)` for each block i of the queries, and joins its outputs.

        `loop(body, carry)` calls `body(j, carry)` for each block j of keys that block i sees.
        """

        def of(x_bhtk: jax.Array) -> jax.Array:
            b, h, _, k = x_bhtk.shape
            return x_bhtk.reshape(b, h, -1, self.sizes[0], k).transpose(2, 0, 1, 3, 4)

        def joined(x_nbhqk: jax.Array) -> jax.Array:
            n, b, h, q, k = x_nbhqk.shape
            return x_nbhqk.transpose(1, 2, 0, 3, 4).reshape(b, h, n * q, k)

        def of_row(carry, inputs):
            i, js, count, *block = inputs
            return row(carry, functools.partial(self._loop, js, count), i, *block)

        of_row = jax.checkpoint(of_row, prevent_cse=False) if self.bounded else of_row
        rows = jnp.arange(len(self.counts)), self.table, self.counts, *map(of, queries_bhtk)
        carry, outputs = jax.lax.scan(of_row, carry, rows)
        return carry, jax.tree.map(joined, outputs)

    def _loop(self, js, count, body, carry):
        if not self.bounded:
            return jax.lax.fori_loop(0, count, lambda n, carry: body(js[n], carry), carry)

        def step(carry, inputs):
            n, j = inputs
            return jax.lax.cond(n < count, body, lambda j, carry: carry, j, carry), None

        return jax.lax.scan(step, carry, (jnp.arange(len(js)), js))[0]

    def at(self, j: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The keys and values of block j, or of block j[g] of each head g."""
        size = self.sizes[1]
        k_bgsk, v_bgsk = (_cut(x, j * size, size) for x in self.keys)
        return k_bgsk, v_bgsk

    def scores(self, q_bhtk, k_bgsk, learned, i, j) -> jax.Array:
        """Float32 scores, unmasked."""
        return self._scoring(learned, i, j).scores(q_bhtk, k_bgsk)

    def masked(self, scores, i, j) -> jax.Array:
        """The scores with -inf where they are masked."""
        (t, s), allowed = self.sizes, self.mask.block
        return jnp.where(allowed(i * t, t, j * s, s), scores, -jnp.inf)

    def weighted(self, e_bhts, v_bgsk, learned, i, j) -> jax.Array:
        """sum_s e v + values(e), in float32, after dropout: linear in e and in v."""
        rng, j0 = self.rng, jnp.ravel(j)[0]
        rng = None if rng is None else jax.random.fold_in(jax.random.fold_in(rng, i), j0)
        return weighted_values(drop(e_bhts, self.rate, rng), v_bgsk, self._scoring(learned, i, j))

    def _scoring(self, learned, i, j) -> Scoring:
        (t, s), (params, sinks_h) = self.sizes, learned
        scoring = dataclasses.replace(self.scoring, params=params, sinks_h=sinks_h)
        return scoring.block(i * t, t, j * s, s)


def _forward(blocks: _Blocks, q_bhtk, learned) -> Any:
    sinks_h, width = learned[1], blocks.keys[1].shape[-1]

    def row(_, loop, i, q_bhqk):
        def block(j, carry):
            top, total, out = carry
            k_bgsk, v_bgsk = blocks.at(j)
            scores = blocks.masked(blocks.scores(q_bhqk, k_bgsk, learned, i, j), i, j)
            new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
            e = jnp.exp(scores - finite(new_top))
            decay = jnp.exp(top - finite(new_top))
            out = decay * out + blocks.weighted(e, v_bgsk, learned, i, j)
            return new_top, decay * total + jnp.sum(e, axis=-1, keepdims=True), out

        top = jnp.full((*q_bhqk.shape[:3], 1), -jnp.inf, jnp.float32)
        start = top, jnp.zeros_like(top)
        if sinks_h is not None:
            start = top.at[:].set(sinks_h[:, None, None].astype(jnp.float32)), jnp.ones_like(top)
        out = jnp.zeros((*q_bhqk.shape[:3], width), jnp.float32)
        top, total, out = loop(block, (*start, out))
        return None, (out / _positive(total), _norm(top, total))

    return blocks.over(row, None, q_bhtk)[1]


def _backward(blocks: _Blocks, learned, q_bhtk, dout_bhtk, mean_bht1, norm_bht1):
    def row(carry, loop, i, q_bhqk, dout_bhqk, mean, norm):
        def block(j, carry):
            dq, dk_bgsk, dv_bgsk, dlearned = carry
            k, v = blocks.at(j)
            scores, pull_scores = jax.vjp(functools.partial(blocks.scores, i=i, j=j), q_bhqk, k, learned)
            weights = jnp.exp(blocks.masked(scores, i, j) - norm)
            _, pull_out = jax.vjp(functools.partial(blocks.weighted, i=i, j=j), weights, v, learned)
            dweights, dv, dlearned_out = pull_out(dout_bhqk)
            dq_part, dk, dlearned_scores = pull_scores(weights * (dweights - mean))
            add = functools.partial(_add_at, at=j * blocks.sizes[1])
            dlearned = jax.tree.map(lambda *x: sum(x), dlearned, dlearned_out, dlearned_scores)
            return dq + dq_part.astype(jnp.float32), add(dk_bgsk, dk), add(dv_bgsk, dv), dlearned

        dq, *carry = loop(block, (jnp.zeros(q_bhqk.shape, jnp.float32), *carry))
        return tuple(carry), dq

    like = *blocks.keys, learned
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
    grads, dq_bhtk = blocks.over(row, zeros, q_bhtk, dout_bhtk, mean_bht1, norm_bht1)
    return dq_bhtk, *grads


def _cut(x_bgsk: jax.Array, at: jax.Array, size: int) -> jax.Array:
    """The keys from `at` on, or of each head g from at[g] on."""
    if at.ndim:
        cut = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=size, axis=1)
        return jax.vmap(cut, (1, 0), 1)(x_bgsk, at)
    return jax.lax.dynamic_slice_in_dim(x_bgsk, at, size, 2)


def _add_at(total_bgsk: jax.Array, part_bgsk: jax.Array, at: jax.Array) -> jax.Array:
    new_bgsk = _cut(total_bgsk, at, part_bgsk.shape[2]) + part_bgsk.astype(total_bgsk.dtype)
    if at.ndim:
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=1)
        return jax.vmap(put, (1, 1, 0), 1)(total_bgsk, new_bgsk, at)
    return jax.lax.dynamic_update_slice_in_dim(total_bgsk, new_bgsk, at, 2)


def finite(x: jax.Array) -> jax.Array:
    """x with infinities replaced by 0, so that it can be subtracted from -inf."""
    return jnp.where(jnp.isfinite(x), x, 0.0)


BLOCKWISE = Kernel(blockwise)
