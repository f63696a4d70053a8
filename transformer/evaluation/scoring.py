"""Log-likelihoods of given continuations, log p(continuation | text)."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding.generation import fill, pad
from transformer.devices import on_host
from transformer.errors import UserError
from transformer.training.experiment import Batch, Params
from transformer.training.losses.logits_memory import chunked
from transformer.training.losses.token_losses import token_loss

BATCH_SIZE, CHUNK = 16, 128
"""Rows per batch, and tokens of a row whose logits are in memory at once."""


class Score(NamedTuple):
    """log p(continuation | text) in nats, the number of tokens of the continuation, and whether greedy
    decoding would produce it. `unread` tokens of the text did not fit into the model's context."""

    log_likelihood: float
    tokens: int
    greedy: bool
    unread: int = 0


class Row(NamedTuple):
    """A sequence to score: the decoder's `tokens`, scored from index `start` on; the encoder's `source`
    tokens; and the number of tokens that were dropped."""

    tokens: Sequence[int]
    start: int
    source: Sequence[int] = ()
    unread: int = 0


def tokens_and_prompt_length(tokenizer: Tokenizer, text: str, continuation: str) -> tuple[list[int], int]:
    """The tokens of text + continuation, and how many of them belong to the text.

    If a token spans the boundary, white space at the end of the text is counted as part of the continuation:
    GPT-2's tokenizer, for example, joins a space to the word after it. If a token still spans the boundary,
    the text has as many tokens as it has alone, but never the last one. (lm-evaluation-harness does the same,
    but always moves white space; Gao et al. 2021.)

    Raises:
      UserError: the continuation adds no token.
    """
    whole = tokenizer.encode(text + continuation)
    for head_text in (text, text.rstrip()):
        head = tokenizer.encode(head_text)
        if whole[: len(head)] == head:
            break
    if whole in (head, []):
        raise UserError(f"the continuation {continuation!r} adds no token to the text")
    return whole, min(len(head), len(whole) - 1)


def score_pairs(experiment: Any, params: Params, pairs: Iterable[tuple[str, str]]) -> Iterator[Score]:
    """The `Score` of each (text, continuation), as in lm-evaluation-harness (Gao et al. 2021).

    `experiment.row(text, continuation)` gives the `Row` of a pair, or raises a `UserError`; `score_rows` says
    what else the experiment needs.

    Raises:
      UserError: a continuation without a token, or longer than the model's longest sequence.
    """

    def rows() -> Iterator[Row]:
        for number, (text, continuation) in enumerate(pairs, 1):
            try:
                yield experiment.row(text, continuation)
            except UserError as error:
                raise UserError(f"pair {number}: {error}") from None

    return score_rows(experiment, params, rows())


def score_rows(experiment: Any, params: Params, rows: Iterable[Row]) -> Iterator[Score]:
    """The score of each row, with the states of `experiment.hidden(params, batch)` and the model's `unembed`;
    the decoder reads at most `experiment.longest` tokens."""
    likelihood = functools.partial(_likelihood, experiment, params)
    return scores(likelihood, rows, batch_size=BATCH_SIZE, room=experiment.longest)


@functools.partial(jax.jit, static_argnums=0)
def _likelihood(experiment: Any, params: Params, batch: Batch) -> tuple[jax.Array, ...]:
    model = experiment.model

    def head(x_bmd: jax.Array, targets_bm: jax.Array) -> tuple[jax.Array, ...]:
        logits_bmv = model.apply({"params": params}, x_bmd, method="unembed")
        nll_bm, _, _ = token_loss(logits_bmv, targets_bm, model.vocab_size)
        return -nll_bm, jnp.argmax(logits_bmv, axis=-1) == targets_bm

    x_btd = experiment.hidden(params, batch)
    x_bmd = jnp.take_along_axis(x_btd, batch["places"][..., None], axis=1)
    return chunked(head, x_bmd, batch["targets"], CHUNK)


def scores(
    likelihood: Callable[[dict[str, np.ndarray]], tuple[jax.Array, ...]],
    rows: Iterable[Row],
    *,
    batch_size: int,
    room: int,
) -> Iterator[Score]:
    """The score of each row, in order.

    Rows are sorted by length within windows of 16 batches and padded to few shapes of at most `room` tokens.
    `likelihood(batch)` gives log p of the tokens `targets` at `places`, (b, m) float32, and whether each is
    the likeliest token. A batch has the arrays of training: `tokens`, `segments`, `positions` and `source`,
    `source_segments`, `source_positions`; segment 0 is padding.
    """
    remaining = iter(rows)
    while window := list(itertools.islice(remaining, 16 * batch_size)):
        order = sorted(range(len(window)), key=lambda i: (len(window[i].tokens), len(window[i].source)))
        scored: dict[int, Score] = {}
        for first in range(0, len(order), batch_size):
            numbers = order[first : first + batch_size]
            batch = [window[i] for i in numbers]
            arrays = _arrays(fill(batch, batch_size), room)
            log_p_bm, likeliest_bm = map(on_host, likelihood(arrays))
            for i, row, log_p_m, likeliest_m in zip(numbers, batch, log_p_bm, likeliest_bm, strict=False):
                n = len(row.tokens) - row.start
                total = float(log_p_m[:n].astype(np.float64).sum())
                scored[i] = Score(total, n, bool(likeliest_m[:n].all()), row.unread)
        yield from (scored[i] for i in range(len(window)))


def _arrays(rows: Sequence[Row], room: int) -> dict[str, np.ndarray]:
    arrays = _side("", "tokens", [row.tokens[:-1] for row in rows], room)
    if rows[0].source:
        arrays |= _side(
            "source_", "source", [row.source for row in rows], max(len(row.source) for row in rows)
        )
    targets_bm, counts_b = pad([row.tokens[row.start :] for row in rows], room, 0)
    starts_b = np.array([row.start - 1 for row in rows], np.int32)
    last_b = starts_b + counts_b - 1
    places_bm = np.minimum(
        starts_b[:, None] + np.arange(targets_bm.shape[1], dtype=np.int32), last_b[:, None]
    )
    return arrays | {"targets": targets_bm, "places": places_bm}


def _side(prefix: str, name: str, rows: Sequence[Sequence[int]], room: int) -> dict[str, np.ndarray]:
    tokens_bt, lengths_b = pad(rows, room, 0)
    place_bt = np.broadcast_to(np.arange(tokens_bt.shape[1], dtype=np.int32), tokens_bt.shape)
    segments_bt = (place_bt < lengths_b[:, None]).astype(np.int32)
    return {name: tokens_bt, f"{prefix}segments": segments_bt, f"{prefix}positions": place_bt}
