"""Blockwise (flash) attention with memory linear in the length, in plain JAX for any platform."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.layers.kernels.base import Kernel
from transformer.layers.kernels.reference import Scoring, drop, saved, weighted_values
from transformer.layers.masks import Mask
from transformer.layers.patterns import Pattern

BLOCK = 128
"""Queries and keys per block: small blocks skip more of a sparse mask, large ones have larger matrix
products."""


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
    weights of each block. Blocks that causality or the pattern mask entirely are skipped in both passes.

    Source: Milakov & Gimelshein 2018 (online softmax); Rabe & Staats 2021; Dao et al. 2022 (FlashAttention).
    """
    t, s = q_bthk.shape[1], k_bsgk.shape[1]
    scoring = scoring or Scoring()
    sizes, whole = zip(cut(t), cut(s), strict=True)
    learned = scoring.params, scoring.sinks_h
    given = mask.pad(t, s, *whole), scoring.pad(*whole), dropout_rng
    q_bhtk = _lengthen(q_bthk.swapaxes(1, 2), whole[0])
    k_bgsk, v_bgsk = (_lengthen(x.swapaxes(1, 2), whole[1]) for x in (k_bsgk, v_bsgk))
    return _attend(q_bhtk, k_bgsk, v_bgsk, learned, given, sizes, dropout_rate)[:, :, :t].swapaxes(1, 2)


def serves(q_bthk: jax.Array, k_bsgk: jax.Array, v_bsgk: jax.Array, mask: Mask, *_) -> str:
    """Why `blockwise` does not support these inputs; "" if it does."""
    if mask.query_positions_bt is not None and mask.pattern is not None and not mask.pattern.relative:
        return "which blocks its pattern sees is not known before the rows are"
    return ""


def cut(length: int) -> tuple[int, int]:
    """The block size, and the length padded to whole blocks."""
    size = min(BLOCK, length)
    return size, -(-length // size) * size


def _lengthen(x_bhtk: jax.Array, length: int) -> jax.Array:
    return jnp.pad(x_bhtk, ((0, 0), (0, 0), (0, length - x_bhtk.shape[2]), (0, 0)))


@functools.lru_cache(maxsize=64)
def _visible(
    causal: bool, pattern: Pattern | None, start: int, t: int, s: int, sizes: tuple[int, int]
) -> Any:
    """For each block of queries, the indices of the blocks of keys that are not entirely masked, and their
    number."""
    rows = []
    for t0 in range(0, t, sizes[0]):
        i, j = np.arange(start + t0, start + t0 + sizes[0])[:, None], np.arange(s)[None]
        seen = j <= i if causal else np.ones((sizes[0], s), bool)
        seen = seen if pattern is None else seen & pattern(i, j)
        rows.append(np.flatnonzero(seen.reshape(sizes[0], -1, sizes[1]).any(axis=(0, 2))))
    counts = np.asarray([len(row) for row in rows], np.int32)
    table = np.zeros((len(rows), max(1, counts.max())), np.int32)
    for row, blocks in zip(table, rows, strict=True):
        row[: len(blocks)] = blocks
    return table, counts


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(q_bhtk, k_bgsk, v_bgsk, learned, given, sizes, rate) -> jax.Array:
    return forward(q_bhtk, k_bgsk, v_bgsk, learned, given, sizes, rate)[0].astype(q_bhtk.dtype)


class _Blocks:
    """The computations for a block of queries and a block of keys that both passes share."""

    def __init__(self, k_bgsk, v_bgsk, given, sizes, rate, t) -> None:
        self.k_bgsk, self.v_bgsk, self.sizes, self.rate = k_bgsk, v_bgsk, sizes, rate
        self.mask, self.scoring, self.rng = given
        static = self.mask.causal, self.mask.pattern, self.mask.start
        self.table, self.counts = _visible(*static, t, k_bgsk.shape[2], sizes)
        self.numbers = np.arange(len(self.counts))

    def of(self, x_bhtk: jax.Array) -> jax.Array:
        """Splits arrays of queries into blocks: (b, h, t, k) -> (blocks, b, h, t / blocks, k)."""
        b, h, _, k = x_bhtk.shape
        return x_bhtk.reshape(b, h, -1, self.sizes[0], k).transpose(2, 0, 1, 3, 4)

    def joined(self, x_nbhqk: jax.Array) -> jax.Array:
        """The inverse of `of`."""
        n, b, h, q, k = x_nbhqk.shape
        return x_nbhqk.transpose(1, 2, 0, 3, 4).reshape(b, h, n * q, k)

    def keys(self, j: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The keys and values of block j."""
        size = self.sizes[1]
        k_bgsk, v_bgsk = (
            jax.lax.dynamic_slice_in_dim(x, j * size, size, 2) for x in (self.k_bgsk, self.v_bgsk)
        )
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
        rng = None if self.rng is None else jax.random.fold_in(jax.random.fold_in(self.rng, i), j)
        return weighted_values(drop(e_bhts, self.rate, rng), v_bgsk, self._scoring(learned, i, j))

    def _scoring(self, learned, i, j) -> Scoring:
        (t, s), (params, sinks_h) = self.sizes, learned
        return self.scoring.replace(params=params, sinks_h=sinks_h).block(i * t, t, j * s, s)


def forward(q_bhtk, k_bgsk, v_bgsk, learned, given, sizes, rate) -> tuple[jax.Array, jax.Array]:
    """Outputs (b, h, t, k) and log-sum-exps of the scores (b, h, t, 1), for whole blocks, in float32.

    `learned` are the parameters of the position encoding and the sinks, `given` the mask, the rest of the
    scoring and the dropout key. A query without keys has the log-sum-exp -inf and the output 0.
    """
    blocks = _Blocks(k_bgsk, v_bgsk, given, sizes, rate, q_bhtk.shape[2])
    sinks_h = learned[1]

    def row(_, inputs):
        i, q_bhqk, js, count = inputs

        def block(n, carry):
            top, total, out = carry
            k_bgsk, v_bgsk = blocks.keys(js[n])
            scores = blocks.masked(blocks.scores(q_bhqk, k_bgsk, learned, i, js[n]), i, js[n])
            new_top = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
            e = jnp.exp(scores - finite(new_top))
            decay = jnp.exp(top - finite(new_top))
            out = decay * out + blocks.weighted(e, v_bgsk, learned, i, js[n])
            return new_top, decay * total + jnp.sum(e, axis=-1, keepdims=True), out

        top = jnp.full((*q_bhqk.shape[:3], 1), -jnp.inf)
        start = top, jnp.zeros_like(top)
        if sinks_h is not None:
            start = top.at[:].set(sinks_h[:, None, None].astype(jnp.float32)), jnp.ones_like(top)
        out = jnp.zeros((*q_bhqk.shape[:3], v_bgsk.shape[-1]))
        top, total, out = jax.lax.fori_loop(0, count, block, (*start, out))
        return None, (out / jnp.where(total == 0, 1.0, total), finite(top) + jnp.log(total))

    rows = blocks.numbers, blocks.of(q_bhtk), blocks.table, blocks.counts
    _, (out_nbhqk, norm_nbhq1) = jax.lax.scan(row, None, rows)
    return blocks.joined(out_nbhqk), blocks.joined(norm_nbhq1)


def backward(sizes, rate, residuals, dout_bhtk):
    """The float32 gradients of q, k, v and `learned`. The `residuals` are the inputs of `forward`, its
    outputs and (finite) log-sum-exps. The latter two may be those of more keys; then this is the share of
    these keys."""
    q_bhtk, k_bgsk, v_bgsk, learned, given, out_bhtk, norm_bht1 = residuals
    blocks = _Blocks(k_bgsk, v_bgsk, given, sizes, rate, q_bhtk.shape[2])
    dout_bhtk = dout_bhtk.astype(jnp.float32)
    # sum_s w dw of each query, which equals the product of its output and its gradient.
    mean_bht1 = jnp.sum(dout_bhtk * out_bhtk.astype(jnp.float32), axis=-1, keepdims=True)

    def row(carry, inputs):
        i, q_bhqk, dout_bhqk, mean, norm, js, count = inputs

        def block(n, carry):
            dq, dk_bgsk, dv_bgsk, dlearned = carry
            j = js[n]
            k, v = blocks.keys(j)
            scores, pull_scores = jax.vjp(functools.partial(blocks.scores, i=i, j=j), q_bhqk, k, learned)
            weights = jnp.exp(blocks.masked(scores, i, j) - norm)
            _, pull_out = jax.vjp(functools.partial(blocks.weighted, i=i, j=j), weights, v, learned)
            dweights, dv, dlearned_out = pull_out(dout_bhqk)
            dq_part, dk, dlearned_scores = pull_scores(weights * (dweights - mean))
            add = functools.partial(_add_at, at=j * sizes[1])
            dlearned = jax.tree.map(lambda *x: sum(x), dlearned, dlearned_out, dlearned_scores)
            return dq + dq_part, add(dk_bgsk, dk), add(dv_bgsk, dv), dlearned

        dq = jnp.zeros(q_bhqk.shape)
        dq, *carry = jax.lax.fori_loop(0, count, block, (dq, *carry))
        return tuple(carry), dq

    like = (k_bgsk, v_bgsk, learned)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), like)
    rows = (blocks.numbers, *(blocks.of(x) for x in (q_bhtk, dout_bhtk, mean_bht1, norm_bht1)))
    grads, dq_nbhqk = jax.lax.scan(row, zeros, (*rows, blocks.table, blocks.counts))
    dk_bgsk, dv_bgsk, (dparams, dsinks_h) = grads
    if learned[1] is not None:
        sink_bht1 = jnp.exp(learned[1][:, None, None] - norm_bht1)
        dsinks_h = -jnp.sum(sink_bht1 * mean_bht1, axis=(0, 2, 3))
    return blocks.joined(dq_nbhqk), dk_bgsk, dv_bgsk, (dparams, dsinks_h)


def _attend_forward(q_bhtk, k_bgsk, v_bgsk, learned, given, sizes, rate):
    out_bhtk, norm_bht1 = forward(q_bhtk, k_bgsk, v_bgsk, learned, given, sizes, rate)
    out_bhtk, norm_bht1 = saved(out_bhtk.astype(q_bhtk.dtype)), saved(finite(norm_bht1))
    return out_bhtk, (q_bhtk, k_bgsk, v_bgsk, learned, given, out_bhtk, norm_bht1)


def _attend_backward(sizes, rate, residuals, dout_bhtk):
    grads = backward(sizes, rate, residuals, dout_bhtk)
    return *jax.tree.map(lambda x, y: x.astype(y.dtype), grads, residuals[:4]), None


def _add_at(total_bgsk: jax.Array, part_bgsk: jax.Array, at: jax.Array) -> jax.Array:
    there = jax.lax.dynamic_slice_in_dim(total_bgsk, at, part_bgsk.shape[2], 2)
    return jax.lax.dynamic_update_slice_in_dim(total_bgsk, there + part_bgsk, at, 2)


def finite(x: jax.Array) -> jax.Array:
    """x with infinities replaced by 0, so that it can be subtracted from -inf."""
    return jnp.where(jnp.isfinite(x), x, 0.0)


_attend.defvjp(_attend_forward, _attend_backward)

BLOCKWISE = Kernel(blockwise, serves)
