"""Rollouts: answers that the current parameters draw, with the log-probability of each token, as rows."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from transformer.data.chat.chat import padding_rows
from transformer.data.loader import DataLoader, HostBatch, Rows
from transformer.decoding.generation import DecodeState, Ends, advance, begin
from transformer.decoding.stepper import Stepper


class Drawn(NamedTuple):
    """Tokens (b, n) of answers, their log-probabilities when they were drawn, and the number of tokens of
    each answer (b,), with its end token if it has one."""

    tokens_bn: jax.Array
    log_p_bn: jax.Array
    counts_b: jax.Array


@struct.dataclass
class Remembering:
    """A stepper whose cache also has the last logits, (cache, logits_bv)."""

    stepper: Stepper

    def prefill(self, tokens_bt: jax.Array, lengths_b: jax.Array, room: int) -> tuple[jax.Array, Any]:
        """See `Stepper`."""
        logits_bv, cache = self.stepper.prefill(tokens_bt, lengths_b, room)
        return logits_bv, (cache, logits_bv)

    def step(self, tokens_b: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        """See `Stepper`."""
        logits_bv, cache = self.stepper.step(tokens_b, cache[0])
        return logits_bv, (cache, logits_bv)


@functools.partial(jax.jit, static_argnames="room")
def draw_answers(
    stepper: Stepper,
    tokens_bt: jax.Array,
    lengths_b: jax.Array,
    rngs_b: jax.Array,
    *,
    room: int,
    ends: Ends,
    temperature: float,
) -> Drawn:
    """Continues each right-padded prompt until one of `ends`, or for `room` tokens, by softmax(logits /
    temperature); the token at index i of a row is drawn with `fold_in(rngs_b[row], i)`."""
    remembering: Any = Remembering(stepper)
    rows, options = len(lengths_b), {"eos_id": ends, "temperature": temperature}
    limits: Any = {"room": room, "limits_b": jnp.full(rows, room), "positions_b": lengths_b}

    def put(drawn: Drawn, state: DecodeState, place: jax.Array | int, live_b: jax.Array) -> Drawn:
        log_p_bv = jax.nn.log_softmax(state.cache[1].astype(jnp.float32) / temperature)
        log_p_b = jnp.take_along_axis(log_p_bv, state.token_b[:, None], axis=1)[:, 0]
        return Drawn(
            drawn.tokens_bn.at[:, place].set(jnp.where(live_b, state.token_b, 0)),
            drawn.log_p_bn.at[:, place].set(jnp.where(live_b, log_p_b, 0.0)),
            drawn.counts_b + live_b,
        )

    def step(carry: tuple[Drawn, DecodeState]) -> tuple[Drawn, DecodeState]:
        drawn, before = carry
        _, state = advance(remembering, before, rngs_b, n=1, **options)
        return put(drawn, state, before.index, ~before.done_b), state

    nothing = Drawn(jnp.zeros((rows, room), jnp.int32), jnp.zeros((rows, room)), jnp.zeros(rows, jnp.int32))
    state = begin(remembering, tokens_bt, lengths_b, rngs_b, **limits, **options)
    first = put(nothing, state, 0, jnp.ones(rows, bool))
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[1].done_b), step, (first, state))[0]


class PromptRows(Rows):
    """Rows of the arrays of a rollout, of which only the prompts are filled in.

    `tokens`, `segments`, `positions`, `targets` (b, t) as for conversations; `lengths` (b,) of the prompts
    and `records` (b,), their numbers in the source. Of answers: `weights` (b, t), the weight of each target,
    0 for those of prompts; `sampled` and `reference` (b, t), log-probabilities as drawn and by the reference;
    `advantages` and `normalizers` (b,)."""

    def __init__(
        self, prompts: Mapping[int, Sequence[int]], sequence_length: int, tally: Mapping[str, int]
    ) -> None:
        """`prompts` maps the numbers of records to their tokens; `tally` counts those left out
        (`tallied`)."""
        self._prompts, self._sequence_length, self.tally = prompts, sequence_length, tally
        self._records = np.array([*prompts], np.int32)

    def __len__(self) -> int:
        return len(self._records)

    def batch(self, rows: np.ndarray) -> HostBatch:
        """The rows of the prompts with these indices, stacked; index -1 is a row of padding."""
        batch = blank_rows(len(rows), self._sequence_length)
        for i, row in enumerate(rows):
            if row >= 0:
                batch["records"][i] = record = int(self._records[row])
                batch["lengths"][i] = len(self._prompts[record])
                fill(batch, i, self._prompts[record])
        return batch

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """The record of each row."""
        return [self._records[[row]] if row >= 0 else np.zeros(0, int) for row in rows]


def blank_rows(b: int, t: int) -> HostBatch:
    """b rows of padding."""
    rows = padding_rows(b, t) | {name: np.zeros((b, t), np.float32) for name in ("sampled", "reference")}
    rows |= {name: np.zeros(b, np.float32) for name in ("advantages", "normalizers")}
    return rows | {name: np.zeros(b, np.int32) for name in ("lengths", "records")}


def fill(batch: HostBatch, row: int, tokens: Sequence[int]) -> None:
    """Writes tokens into a row, and as far as they are there their targets."""
    n = min(len(tokens), batch["tokens"].shape[1])
    batch["tokens"][row, :n], batch["targets"][row, : len(tokens) - 1] = tokens[:n], tokens[1:]
    batch["segments"][row, :n], batch["positions"][row, :n] = 1, np.arange(n)


@dataclasses.dataclass(frozen=True, eq=False)
class Grouped(DataLoader):
    """Batches in which each prompt has `samples` adjacent rows, and of which each comes `updates` times."""

    samples: int = 1
    updates: int = 1

    def __len__(self) -> int:
        return -(-len(self.rows) * self.samples // self.batch_size) * self.updates

    def _places(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        needed = np.arange(self.batch_size) if self.needed is None else self.needed
        places = step // self.updates * (self.batch_size // self.samples) + needed // self.samples
        return places, np.array([self._row(int(place)) for place in places])
