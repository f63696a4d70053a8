"""A recurrence whose state is a matrix, with decay and removal, computed in chunks of tokens."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

CHUNK = 64
"""Tokens between two states that are computed; within a chunk all tokens are computed at once."""

BLOCK = 16
"""Tokens of a chunk whose decays by channel are computed for each pair."""


class Tokens(NamedTuple):
    """Inputs of the recurrence: arrays (b, t, h, k) or (b, t, h, v) of any type.

    `log_decay` is at most 0, and has one channel (b, t, h, 1) or k. Without `erase` nothing is removed;
    without `remove` it is removed at the keys.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    log_decay: jax.Array
    erase: jax.Array | None = None
    remove: jax.Array | None = None


def advance(state_bhkv: jax.Array, tokens: Tokens, positions_bt: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The state after t more tokens, and their outputs o (b, t, h, v), both in float32:

    D_t = Diag(exp(log_decay_t)) S_(t-1), u_t = D_t^T erase_t,
    S_t = D_t + key_t value_t^T - remove_t u_t^T, o_t = S_t^T query_t.

    With remove = key the last two terms of S_t are key_t (value_t - u_t)^T, the delta rule. A position of 0
    sets S_(t-1) to 0. Time and memory are linear in t. Decays are sums of logarithms of at most 0, so that no
    product of them is divided by another.
    Source: the WY form of products of I - b k k^T in chunks of Yang et al. 2024 ("Parallelizing linear
    Transformers with the delta rule over sequence length"), section 3.2; with decays Yang et al. 2025 ("Gated
    Delta Networks"), section 3.3; by channel in two levels, Yang et al. 2024 ("Gated linear attention
    Transformers with hardware-efficient training"), section 4.3.
    """
    t, chunk = positions_bt.shape[1], min(CHUNK, positions_bt.shape[1])
    count = -(-t // chunk)

    def chunks(x: jax.Array) -> jax.Array:
        # Padding with zeros decays, adds and removes nothing.
        x = jnp.pad(x, ((0, 0), (0, count * chunk - t)) + ((0, 0),) * (x.ndim - 2))
        return x.reshape(x.shape[0], count, chunk, *x.shape[2:])

    tokens = jax.tree.map(lambda x: chunks(x.astype(jnp.float32)), tokens)
    document_bnt = jnp.cumsum(chunks(positions_bt == 0), axis=2)  # 0: that of the state
    of_heads = jax.vmap(_chunk, (1, None))
    # The backward pass stores what chunks read, and not the pairs of their tokens.
    chunks_bnh = jax.checkpoint(jax.vmap(jax.vmap(of_heads)))(tokens, document_bnt)
    state_bhkv, out_nbhtv = jax.lax.scan(
        _pass_chunk, state_bhkv, jax.tree.map(lambda x: x.swapaxes(0, 1), chunks_bnh)
    )
    out_bnthv = out_nbhtv.transpose(1, 0, 3, 2, 4)
    return state_bhkv, out_bnthv.reshape(len(positions_bt), -1, *out_bnthv.shape[3:])[:, :t]


class _Chunk(NamedTuple):
    """A chunk of t tokens of a head as linear functions of the state S before it: with new = value - weight S

    the outputs are query S + pairs new, and the state behind it is decay S + key^T new."""

    query: jax.Array  # (t, k)
    pairs: jax.Array  # (t, s)
    key: jax.Array  # (s, k)
    value: jax.Array  # (s, v)
    weight: jax.Array | None  # (s, k)
    decay: jax.Array  # (k, 1) or (1, 1)


def _pass_chunk(state_bhkv: jax.Array, chunk: _Chunk) -> tuple[jax.Array, jax.Array]:
    new_bhsv = chunk.value if chunk.weight is None else chunk.value - chunk.weight @ state_bhkv
    out_bhtv = chunk.query @ state_bhkv + chunk.pairs @ new_bhsv
    return chunk.decay * state_bhkv + chunk.key.swapaxes(-1, -2) @ new_bhsv, out_bhtv


def _chunk(tokens: Tokens, document_t: jax.Array) -> _Chunk:
    """A chunk of one head, from tokens (t, k); `document_t` is 0 for those of the state's document."""
    q_tk, k_tk, value_sv, log_decay_tk, erase_tk, remove_tk = tokens
    same_ts = document_t[:, None] == document_t
    since_tk = _since(log_decay_tk) * (document_t == 0)[:, None]
    until_tk = _until(log_decay_tk) * (document_t == document_t[-1])[:, None]
    products = _decayed_products(log_decay_tk)

    def pairs(x_tk: jax.Array, y_sk: jax.Array) -> jax.Array:
        return jnp.where(same_ts, products(x_tk, y_sk), 0.0)

    keys, weight_sk = [k_tk], None
    if erase_tk is not None:
        triangle_ts = pairs(erase_tk, k_tk if remove_tk is None else remove_tk)
        old_tv = value_sv if remove_tk is None else jnp.tril(pairs(erase_tk, k_tk), -1) @ value_sv
        solved = _solve(triangle_ts, jnp.concatenate([old_tv, erase_tk * since_tk], axis=1))
        u_tv, weight_sk = jnp.split(solved, [old_tv.shape[1]], axis=1)
        if remove_tk is None:
            value_sv = u_tv
        else:  # two keys for each token: one adds its value, and one takes away what is erased
            keys, value_sv = [k_tk, remove_tk], jnp.concatenate([value_sv, -u_tv])
            weight_sk = jnp.concatenate([jnp.zeros_like(weight_sk), weight_sk])
    pairs_ts = jnp.concatenate([pairs(q_tk, key_sk) for key_sk in keys], axis=1)
    key_sk = jnp.concatenate([key_sk * until_tk for key_sk in keys])
    return _Chunk(q_tk * since_tk, pairs_ts, key_sk, value_sv, weight_sk, since_tk[-1][:, None])


def _solve(triangle_ts: jax.Array, right_tk: jax.Array) -> jax.Array:
    """X with (I + the part of the matrix below its diagonal) X = the right side, by matrix products alone.

    The inverses of the diagonal blocks are put together to those of blocks twice as large:
    [[A, 0], [C, D]]^-1 = [[A^-1, 0], [-D^-1 C A^-1, D^-1]]. As stable as forward substitution by blocks
    (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 14.2), which XLA leaves to LAPACK on
    CPUs: in a loop over several of them, that waits forever.
    """
    t = len(triangle_ts)
    size, half = 1 << (t - 1).bit_length(), 1
    whole_ts = jnp.pad(triangle_ts, (0, size - t))
    product = functools.partial(jnp.matmul, precision="highest")
    inverse_nhh = jnp.ones((size, 1, 1), right_tk.dtype)
    while half < size:
        n = size // (2 * half)
        blocks = jnp.diagonal(whole_ts.reshape(n, 2 * half, n, 2 * half), axis1=0, axis2=2)
        below_nhh = jnp.moveaxis(blocks, -1, 0)[:, half:, :half]
        first, second = inverse_nhh[::2], inverse_nhh[1::2]
        below_nhh = -product(product(second, below_nhh), first)
        rows = (jnp.concatenate([first, jnp.zeros_like(first)], -1), jnp.concatenate([below_nhh, second], -1))
        inverse_nhh, half = jnp.concatenate(rows, axis=1), 2 * half
    return product(inverse_nhh[0, :t, :t], right_tk)


def _decayed_products(log_decay_tk: jax.Array) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """A function of x (t, k) and y (s, k) that returns (t, s): the sum over k of x_tk y_sk exp(the sum of
    log_decay_uk over s < u <= t) where s <= t; elsewhere 0."""
    t, channels = log_decay_tk.shape
    if channels == 1:
        decay_ts = jnp.exp(_between(log_decay_tk))[..., 0]
        return lambda x_tk, y_sk: (x_tk @ y_sk.T) * decay_ts
    # A loop: the gradient of one product for all blocks crashes XLA for CPUs (jaxlib 0.10.2).
    blocks = [slice(first, min(first + BLOCK, t)) for first in range(0, t, BLOCK)]
    decays = [
        # Within a block; from its beginning to t; and from s, in an earlier block, to its beginning.
        (jnp.exp(_between(log_decay_tk[at])), _since(log_decay_tk[at]), _until(log_decay_tk[: at.start]))
        for at in blocks
    ]

    def products(x_tk: jax.Array, y_sk: jax.Array) -> jax.Array:
        rows = []
        for at, (own_mmk, since_mk, until_sk) in zip(blocks, decays, strict=True):
            earlier_ms = (x_tk[at] * since_mk) @ (y_sk[: at.start] * until_sk).T
            own_mm = jnp.sum(x_tk[at][:, None] * y_sk[at] * own_mmk, axis=-1)
            later_ms = jnp.zeros((len(own_mm), t - at.stop))
            rows.append(jnp.concatenate([earlier_ms, own_mm, later_ms], axis=1))
        return jnp.concatenate(rows)

    return products


def _between(log_decay_tk: jax.Array) -> jax.Array:
    """(t, s, k): the sum of log_decay_uk over s < u <= t; -inf where s > t."""
    below_ts = jnp.tri(len(log_decay_tk), k=-1, dtype=bool)[..., None]
    sums_tsk = _running(jnp.where(below_ts, log_decay_tk[:, None], 0.0))
    return jnp.where(below_ts.swapaxes(0, 1), -jnp.inf, sums_tsk)


def _since(log_decay_tk: jax.Array) -> jax.Array:
    """exp of the sum of log_decay_uk over u <= t."""
    return jnp.exp(_running(log_decay_tk))


def _until(log_decay_tk: jax.Array) -> jax.Array:
    """exp of the sum of log_decay_uk over u > t."""
    after_tu = 1 - jnp.tri(len(log_decay_tk))
    return jnp.exp(jnp.matmul(after_tu, log_decay_tk, precision="highest"))


def _running(x_tk: jax.Array) -> jax.Array:
    """The sum over u <= t; as a product, which compiles and runs faster than `jnp.cumsum`."""
    sums = jnp.matmul(jnp.tri(len(x_tk)), x_tk.reshape(len(x_tk), -1), precision="highest")
    return sums.reshape(x_tk.shape)
