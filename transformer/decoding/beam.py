"""Beam search for any model behind the `Stepper` protocol."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from transformer.config import Bound, Bounded, Nonnegative, NonnegativeFloat, Positive
from transformer.decoding.generation import fill, pad
from transformer.decoding.stepper import Stepper
from transformer.devices import on_host
from transformer.errors import UserError


@dataclass(frozen=True)
class BeamConfig(Bounded):
    """Beam search."""

    beam_size: Annotated[int, Bound("from 1 to 1,000", 1, 1000)] = 4  # hypotheses kept; 1: greedy
    # alpha: scores are log p / ((c + length) / (c + 1))^alpha; 0: none; below 0 favours shorter targets
    length_penalty: Annotated[float, Bound("-10 to 10", -10, 10)] = 0.6
    length_offset: NonnegativeFloat = 5.0  # c of the length penalty: 5 as GNMT, 0 as transformers
    max_new_tokens: Positive = 128  # longest target
    extra_tokens: Nonnegative = 0  # tokens a target may have beyond its source (Vaswani et al.: 50); 0: any
    n_best: Positive = 1  # number of best targets per source

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_best > self.beam_size:
            raise UserError(f"n_best: {self.n_best}; expected 1 to beam_size {self.beam_size}")


FIRST_ROOM = 64
"""New tokens that a cache has room for at first; when it is full, four times as many. More sizes would take
longer to compile: there is a loop for each, also for those that no text is long enough for."""


@functools.partial(jax.jit, static_argnames=("beam_size", "max_new_tokens", "n_best"))
def beam_search(
    stepper: Stepper,
    tokens_bt: jax.Array,
    lengths_b: jax.Array,
    *,
    beam_size: int,
    max_new_tokens: int,
    length_penalty: jax.Array | float,
    length_offset: jax.Array | float = 5.0,
    eos_id: jax.Array | int,
    limits_b: jax.Array | None = None,
    n_best: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Searches for the continuations y of each row x of right-padded prompts with the highest scores

        log p(y | x) / ((c + |y|) / (c + 1))^length_penalty,    c = `length_offset`, |y| with the end counted.

    Returns the best `n_best` (None: `beam_size`) of each row, best first: tokens (b, n, max_new_tokens)
    int32, filled with `eos_id` from the end on; how many come before the end, (b, n) int32; and scores
    (b, n) float32, -inf where the row has no more continuations. Row i's have at most `limits_b[i]` tokens
    (None: `max_new_tokens`; at least 1); one that reaches that limit without `eos_id` is scored as it is.

    In each step the 2 `beam_size` likeliest extensions are considered: the best `beam_size` that do not end
    stay live, and those that end are kept if they are among the first `beam_size`. A row stops when no live
    hypothesis can still exceed its worst kept one; the loop stops with the last row. With `beam_size` 1 a row
    stops at its first end, which is greedy decoding.
    Source: Wu et al. 2016 (GNMT), section 7, equation 14, with c = 5, without its coverage penalty.
    """
    batch, num_best = tokens_bt.shape[0], beam_size if n_best is None else n_best
    limit_b1 = jnp.full(batch, max_new_tokens) if limits_b is None else jnp.clip(limits_b, 1, max_new_tokens)
    limit_b1 = limit_b1[:, None]

    def normalized(scores_bk: jax.Array, length: jax.Array) -> jax.Array:
        return scores_bk / ((length_offset + length) / (length_offset + 1.0)) ** length_penalty

    def grow(index, live: Hypotheses, best: Hypotheses, logits_bkv: jax.Array):
        """Chooses the token at `index`: the live hypotheses, the best finished ones, and the parent of
        each."""
        scores_bm, parents_bm, choices_bm = _likeliest(live.scores_bk, logits_bkv, 2 * beam_size)
        tokens_bmn = _take(live.tokens_bkn, parents_bm).at[:, :, index].set(choices_bm)
        length = index + 1
        final_bm = (choices_bm == eos_id) | (length >= limit_b1)
        counts_bm = final_bm & (jnp.arange(scores_bm.shape[1]) < beam_size)
        finished = Hypotheses(jnp.where(counts_bm, normalized(scores_bm, length), -jnp.inf), tokens_bmn)
        # Earlier finished hypotheses come first, so they win ties.
        pool = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), best, finished)
        _, places_bk = jax.lax.top_k(pool.scores_bk, num_best)
        best = _take(pool, places_bk)

        going_on = Hypotheses(jnp.where(final_bm, -jnp.inf, scores_bm), tokens_bmn)
        _, places_bk = jax.lax.top_k(going_on.scores_bk, beam_size)
        live, parents_bk = _take((going_on, parents_bm), places_bk)
        # Log-probabilities only fall, so the best possible score is the present one with the most favourable
        # length: the longest or the shortest still possible, depending on the sign of the penalty.
        longest_b1 = jnp.maximum(limit_b1, length + 1)
        hope_bk = jnp.maximum(normalized(live.scores_bk, length + 1), normalized(live.scores_bk, longest_b1))
        open_b1 = jnp.any(hope_bk > best.scores_bk[:, -1:], axis=1, keepdims=True)
        if beam_size == 1:  # any live hypothesis beside a finished one is the second best
            open_b1 &= ~counts_bm[:, :1]
        return Hypotheses(jnp.where(open_b1, live.scores_bk, -jnp.inf), live.tokens_bkn), best, parents_bk

    def unfinished(room: int, state) -> jax.Array:
        return jnp.any(state[1].scores_bk > -jnp.inf) & (state[0] < room)

    def extend(state):
        index, live, best, parents_bk, cache = state
        rows_bk = jnp.arange(batch)[:, None] * beam_size + parents_bk
        cache = stepper.reorder(cache, rows_bk.reshape(-1))
        token_bk = live.tokens_bkn[:, :, index - 1]
        logits_bv, cache = stepper.step(token_bk.reshape(-1), cache)
        logits_bkv = logits_bv.reshape(batch, beam_size, -1)
        return index + 1, *grow(index, live, best, logits_bkv), cache

    rooms = _rooms(max_new_tokens)
    logits_bv, cache = stepper.prefill(tokens_bt, lengths_b, rooms[0])
    # A row starts with one hypothesis, the empty one; the others are placeholders with score -inf.
    first_k = jnp.where(jnp.arange(beam_size) == 0, 0.0, -jnp.inf)
    first_bk = jnp.broadcast_to(first_k, (batch, beam_size))
    live = Hypotheses(first_bk, jnp.full((batch, beam_size, max_new_tokens), eos_id, jnp.int32))
    best = Hypotheses(jnp.full((batch, num_best), -jnp.inf), live.tokens_bkn[:, :num_best])
    logits_bkv = jnp.broadcast_to(logits_bv[:, None], (batch, beam_size, logits_bv.shape[-1]))
    state = jnp.int32(1), *grow(0, live, best, logits_bkv), stepper.repeat(cache, beam_size)
    for before, room in itertools.pairwise([0, *rooms]):
        if before:  # every step reads the whole cache, and most texts are short
            state = *state[:-1], stepper.grow(state[-1], room - before)
        state = jax.lax.while_loop(functools.partial(unfinished, room), extend, state)
    best = state[2]
    tokens_bkn = jnp.where(best.scores_bk[..., None] > -jnp.inf, best.tokens_bkn, eos_id)
    return tokens_bkn, jnp.sum(jnp.cumprod(tokens_bkn != eos_id, axis=2), axis=2), best.scores_bk


@struct.dataclass
class Hypotheses:
    """k continuations of each row; a score of -inf marks an empty slot."""

    scores_bk: jax.Array
    tokens_bkn: jax.Array


def _rooms(most: int) -> list[int]:
    """The numbers of new tokens, up to `most`, that a cache has room for in turn."""
    rooms = [FIRST_ROOM]
    while rooms[-1] < most:
        rooms.append(4 * rooms[-1])
    return [*rooms[:-1], most]


def _take(tree: Any, places_bk: jax.Array) -> Any:
    return jax.tree.map(
        lambda leaf: jax.vmap(lambda leaf_k, places_k: leaf_k[places_k])(leaf, places_bk), tree
    )


def _likeliest(scores_bk: jax.Array, logits_bkv: jax.Array, m: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The (at most) m likeliest extensions of all hypotheses by one token: scores (b, m), best first, parents
    and tokens."""
    batch, _, vocabulary = logits_bkv.shape
    values_bkc, choices_bkc = _largest(logits_bkv, min(m, vocabulary))
    # -inf - -inf would be NaN.
    total_bk1 = jax.nn.logsumexp(logits_bkv, axis=-1, keepdims=True)
    values_bkc = jnp.where(values_bkc > -jnp.inf, values_bkc - total_bk1, -jnp.inf)
    scores_bf = (scores_bk[..., None] + values_bkc).reshape(batch, -1)
    scores_bm, places_bm = jax.lax.top_k(scores_bf, min(m, scores_bf.shape[1]))
    choices_bm = jnp.take_along_axis(choices_bkc.reshape(batch, -1), places_bm, axis=1)
    return scores_bm, places_bm // choices_bkc.shape[-1], choices_bm


def _largest(x_bkv: jax.Array, n: int, width: int = 64) -> tuple[jax.Array, jax.Array]:
    """`jax.lax.top_k`, three times as fast on a CPU for a large vocabulary: the n largest values are in the n
    blocks with the largest maxima, and only these are searched."""
    blocks = -(-x_bkv.shape[-1] // width)
    if blocks <= n:
        return jax.lax.top_k(x_bkv, n)
    padding = ((0, 0), (0, 0), (0, blocks * width - x_bkv.shape[-1]))
    x_bkow = jnp.pad(x_bkv, padding, constant_values=-jnp.inf).reshape(*x_bkv.shape[:2], blocks, width)
    _, blocks_bkn = jax.lax.top_k(jnp.max(x_bkow, axis=-1), n)
    blocks_bkn = jnp.sort(blocks_bkn, axis=-1)  # so that the first of equal values wins, as in `top_k`
    near_bkf = jnp.take_along_axis(x_bkow, blocks_bkn[..., None], axis=2).reshape(*x_bkv.shape[:2], -1)
    values_bkn, places_bkn = jax.lax.top_k(near_bkf, n)
    return values_bkn, jnp.take_along_axis(
        blocks_bkn, places_bkn // width, axis=2
    ) * width + places_bkn % width


def translate(
    stepper: Stepper,
    sources: Iterable[Sequence[int]],
    config: BeamConfig,
    *,
    eos_id: int,
    max_source_length: int,
    batch_size: int = 16,
) -> Iterator[list[tuple[list[int], float]]]:
    """For each source, in order, its `config.n_best` best translations without the end token, and their
    scores.

    A source ends with `eos_id`; longer ones are shortened to `max_source_length` tokens including the end.
    Sources are sorted by length within windows of 16 batches, so that the `batch_size` rows of a batch,
    padded to few shapes, have similar lengths.
    """
    remaining = iter(sources)
    while window := list(itertools.islice(remaining, 16 * batch_size)):
        rows = [shorten(source, max_source_length) for source in window]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        by_row: dict[int, list[tuple[list[int], float]]] = {}
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            padded = [rows[i] for i in fill(batch, batch_size)]
            tokens_bt, lengths_b = pad(padded, max_source_length, eos_id)
            limits_b, longest = None, config.max_new_tokens
            if config.extra_tokens:  # every step reads the whole cache, so it has no more room than that
                limits_b = lengths_b + config.extra_tokens
                longest = min(longest, tokens_bt.shape[1] + config.extra_tokens)
            results = beam_search(
                stepper,
                tokens_bt,
                lengths_b,
                limits_b=limits_b,
                beam_size=config.beam_size,
                max_new_tokens=longest,
                length_penalty=config.length_penalty,
                length_offset=config.length_offset,
                eos_id=eos_id,
                n_best=config.n_best,
            )
            for i, *best in zip(batch, *map(on_host, results), strict=False):
                by_row[i] = [
                    (tokens[:length].tolist(), float(score))
                    for tokens, length, score in zip(*best, strict=True)
                    if score > -np.inf
                ]
        yield from (by_row[i] for i in range(len(rows)))


def shorten(source: Sequence[int], longest: int) -> list[int]:
    """The source, or if it is longer than `longest` its first tokens and its last, the end token."""
    return [*source] if len(source) <= longest else [*source[: longest - 1], source[-1]]
