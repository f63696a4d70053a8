"""The decoding loop, jitted, one token per step, for any model behind the `Stepper` protocol.

Prompts of any length are padded to few shapes, so that few programs are compiled.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from transformer.decoding.sampling import draw
from transformer.decoding.stepper import Stepper

T = TypeVar("T")

Ends = jax.Array | int
"""The token that ends a row, or several (m,), of which the first fills the row after its end."""


@struct.dataclass
class DecodeState:
    """The state of a batch during decoding.

    `token_b` are the last tokens, which the model has not read yet; `done_b` says which rows have ended;
    `index` is the number of tokens drawn so far, the same for all rows, and `limits_b` the limit of each row;
    `positions_b` is the index of each row's first new token in its text, which seeds its random numbers.
    """

    token_b: jax.Array
    done_b: jax.Array
    index: jax.Array
    limits_b: jax.Array
    positions_b: jax.Array
    cache: Any

    def keys(self, rngs_b: jax.Array, offset: jax.Array | int = 0) -> jax.Array:
        """One random key per row for token `index + offset`, by the row's key and the index in its text."""
        return jax.vmap(jax.random.fold_in)(rngs_b, self.positions_b + self.index + offset)

    def drawn(self, logits_bv: jax.Array, rngs_b: jax.Array, eos_id: Ends, **options: Any) -> "DecodeState":
        """The state with one more token of each row, drawn from these logits; `options` are those of
        `draw`."""
        token_b = draw(logits_bv, self.keys(rngs_b), **options)
        token_b, index = jnp.where(self.done_b, filler(eos_id), token_b), self.index + 1
        done_b = self.done_b | is_end(token_b, eos_id) | (index >= self.limits_b)
        return dataclasses.replace(self, token_b=token_b, done_b=done_b, index=index)


@functools.partial(jax.jit, static_argnames="room")
def begin(
    stepper: Stepper,
    tokens_bt: jax.Array,
    lengths_b: jax.Array,
    rngs_b: jax.Array,
    *,
    room: int,
    limits_b: jax.Array,
    positions_b: jax.Array,
    eos_id: Ends,
    **options: Any,
) -> DecodeState:
    """Reads right-padded prompts and draws the first new token of each.

    Row i gets at most `limits_b[i]` new tokens, 1 to `room`. Its first token is drawn with
    `fold_in(rngs_b[i], positions_b[i])`, the next one with `positions_b[i] + 1`, and so on. `options` are
    those of `draw`.
    """
    logits_bv, cache = stepper.prefill(tokens_bt, lengths_b, room)
    empty = DecodeState(
        lengths_b, jnp.zeros(len(lengths_b), bool), jnp.int32(0), limits_b, positions_b, cache
    )
    return empty.drawn(logits_bv, rngs_b, eos_id, **options)


@functools.partial(jax.jit, static_argnames="n", donate_argnames="state")
def advance(
    stepper: Stepper,
    state: DecodeState,
    rngs_b: jax.Array,
    *,
    n: int,
    eos_id: Ends,
    **options: Any,
) -> tuple[jax.Array, DecodeState]:
    """The next n tokens of each row, (b, n) int32, `eos_id` after its end, and the state after them.

    The loop stops when every row has ended.
    """
    first = state.index
    new_bn = jnp.full((state.token_b.shape[0], n), filler(eos_id), jnp.int32)
    if not n:
        return new_bn, state

    def unfinished(carry: tuple[jax.Array, DecodeState]) -> jax.Array:
        _, state = carry
        return (state.index < first + n) & ~jnp.all(state.done_b)

    def step(carry: tuple[jax.Array, DecodeState]) -> tuple[jax.Array, DecodeState]:
        new_bn, state = carry
        logits_bv, cache = stepper.step(state.token_b, state.cache)
        index, state = state.index, dataclasses.replace(state, cache=cache)
        state = state.drawn(logits_bv, rngs_b, eos_id, **options)
        return jax.lax.dynamic_update_slice_in_dim(new_bn, state.token_b[:, None], index - first, 1), state

    return jax.lax.while_loop(unfinished, step, (new_bn, state))


@functools.partial(jax.jit, static_argnames="more")
def grow(stepper: Stepper, state: DecodeState, *, more: int) -> DecodeState:
    """The state with room for `more` further tokens of each row."""
    return dataclasses.replace(state, cache=stepper.grow(state.cache, more))


@functools.partial(jax.jit, static_argnames="max_new_tokens")
def generate(
    stepper: Stepper,
    tokens_bt: jax.Array,
    lengths_b: jax.Array,
    rngs_b: jax.Array,
    *,
    max_new_tokens: int,
    eos_id: Ends = -1,
    **options: Any,
) -> tuple[jax.Array, jax.Array]:
    """Continues each row of right-padded prompts until `eos_id` or for `max_new_tokens`.

    Returns the new tokens, (b, max_new_tokens) int32, filled with `eos_id` from the end of a row on, and the
    number of tokens before that end, (b,) int32. The loop stops when every row has ended.

    `rngs_b` has one key per row. The token at index i of a row is drawn with `fold_in(key, i)`, independent
    of the batch and of padding. `options` are those of `draw`; other values of them do not recompile.
    """
    options |= {"eos_id": eos_id}
    limits_b = jnp.full(tokens_bt.shape[0], max_new_tokens)
    arguments = {"room": max_new_tokens, "limits_b": limits_b, "positions_b": lengths_b} | options
    state = begin(stepper, tokens_bt, lengths_b, rngs_b, **arguments)
    first_b = state.token_b
    rest_bn, _ = advance(stepper, state, rngs_b, n=max_new_tokens - 1, **options)
    return until_end(jnp.concatenate([first_b[:, None], rest_bn], axis=1), eos_id)


def until_end(new_bn: jax.Array, eos_id: Ends) -> tuple[jax.Array, jax.Array]:
    """The tokens, with `eos_id` from the first one of each row on, and the number before it (b,)."""
    before_end_bn = jnp.cumprod(~is_end(new_bn, eos_id), axis=1)
    return jnp.where(before_end_bn, new_bn, filler(eos_id)), jnp.sum(before_end_bn, axis=1)


def is_end(tokens: jax.Array, eos_id: Ends) -> jax.Array:
    """Which tokens end a row."""
    return jnp.isin(tokens, jnp.asarray(eos_id))


def filler(eos_id: Ends) -> jax.Array:
    """The token that stands after the end of a row."""
    return jnp.ravel(jnp.asarray(eos_id))[0]


def bucket(n: int, least: int = 1) -> int:
    """The next power of two, so that few sizes are compiled."""
    return max(least, 1 << (int(n) - 1).bit_length())


def fill(batch: list[T], batch_size: int) -> list[T]:
    """The batch with its last row repeated up to the next power of two, or `batch_size` if that is less."""
    return batch + batch[-1:] * (min(bucket(len(batch)), batch_size) - len(batch))


def pad(rows: Sequence[Sequence[int]], room: int, fill_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded (b, t) int32, t a power of two or `room` if that is less, and the lengths (b,) int32."""
    lengths_b = np.array([len(row) for row in rows], np.int32)
    tokens_bt = np.full((len(rows), min(bucket(lengths_b.max(), least=16), room)), fill_id, np.int32)
    for padded_t, row in zip(tokens_bt, rows, strict=True):
        padded_t[: len(row)] = row
    return tokens_bt, lengths_b


def pad_encoder_inputs(
    inputs: Sequence[tuple[Sequence[int], Sequence[int]]], batch_size: int, room: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Encoder inputs, (tokens, types) each, padded to few shapes: tokens, types and segments (1 for text, 0
    for padding), all (b, t) int32, with the number of rows of `fill`."""
    filled = fill(list(inputs), batch_size)
    tokens_bt, lengths_b = pad([tokens for tokens, _ in filled], room, 0)
    types_bt, _ = pad([types for _, types in filled], room, 0)
    return tokens_bt, types_bt, (np.arange(tokens_bt.shape[1]) < lengths_b[:, None]).astype(np.int32)
