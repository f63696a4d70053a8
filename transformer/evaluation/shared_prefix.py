"""Log-likelihoods of continuations; what the model has read of the tokens before them is kept for all of the
same text."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.decoding.generation import bucket, fill, pad
from transformer.decoding.stepper import Extender
from transformer.devices import on_host
from transformer.evaluation.scoring import Row, Score, score_rows
from transformer.training.experiment import Params

MAX_CONTINUATIONS = 64
"""Continuations in a batch."""


def score_continuations(experiment: Any, params: Params, rows: Sequence[Row]) -> list[Score]:
    """The scores of `score_rows` of a language model. The tokens before `start` are read once for all rows in
    which they are the same, as for the choices of a question, into a cache that each continuation extends.

    Rows without company are scored by `score_rows`, and so are all where a layer caches a state, or the model
    decodes with weights or a cache in fewer bits.
    """
    stepper, scores = experiment.stepper(params), dict[int, Score]()
    of_prefix: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate(rows):
        of_prefix.setdefault(tuple(row.tokens[: row.start]), []).append(i)
    model, sampling = experiment.config.model, experiment.config.sample
    extends = hasattr(stepper, "extend") and all(kind.has_attention for kind in model.kinds.values())
    if extends and (sampling.weights, sampling.cache) == ("float32", "auto"):
        groups = [numbers for numbers in of_prefix.values() if len(numbers) > 1]
        for batch in _batches(rows, groups):
            scores |= dict(_of_batch(stepper, rows, batch, experiment.longest))
    alone = [i for i in range(len(rows)) if i not in scores]
    scores |= zip(alone, score_rows(experiment, params, [rows[i] for i in alone]), strict=True)
    return [scores[i] for i in range(len(rows))]


def _batches(rows: Sequence[Row], groups: Sequence[list[int]]) -> Iterator[list[list[int]]]:
    """Groups with like numbers of continuations of like lengths, sorted by their prefixes."""

    def shape(group: list[int]) -> tuple[int, int]:
        return bucket(len(group)), _width(rows, group)

    parts = [
        group[i : i + MAX_CONTINUATIONS] for group in groups for i in range(0, len(group), MAX_CONTINUATIONS)
    ]
    parts.sort(key=lambda part: (shape(part), rows[part[0]].start))
    for (members, _), same in itertools.groupby(parts, shape):
        while batch := list(itertools.islice(same, MAX_CONTINUATIONS // members)):
            yield batch


def _width(rows: Sequence[Row], group: Sequence[int]) -> int:
    return bucket(max(len(rows[i].tokens) - rows[i].start for i in group))


def _of_batch(
    stepper: Extender, rows: Sequence[Row], groups: list[list[int]], longest: int
) -> Iterator[tuple[int, Score]]:
    """(number, score) of the rows of groups of one shape."""
    members, filled = bucket(len(groups[0])), fill(groups, MAX_CONTINUATIONS)
    heads = [rows[group[0]].tokens[: rows[group[0]].start] for group in filled]
    numbers = [i for group in filled for i in group + group[-1:] * (members - len(group))]
    targets = [rows[i].tokens[rows[i].start :] for i in numbers]
    targets_rm = np.zeros((len(numbers), _width(rows, numbers)), np.int32)
    for target_m, target in zip(targets_rm, targets, strict=True):
        target_m[: len(target)] = target
    likelihoods = _likelihood(stepper, *pad(heads, longest, 0), targets_rm)
    for i, target, log_p_m, likeliest_m in zip(numbers, targets, *map(on_host, likelihoods), strict=True):
        n = len(target)
        total = float(log_p_m[:n].astype(np.float64).sum())
        yield i, Score(total, n, bool(likeliest_m[:n].all()), rows[i].unread)


@jax.jit
def _likelihood(
    stepper: Extender, tokens_bt: jax.Array, lengths_b: jax.Array, targets_rm: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log p of the targets (r, m), r / b of them after each prefix, and whether each is the likeliest."""
    m, copies = targets_rm.shape[1], len(targets_rm) // len(tokens_bt)
    first_bv, cache = stepper.prefill(tokens_bt, lengths_b, m, m)
    logits_rmv = jnp.repeat(first_bv, copies, axis=0)[:, None]
    if m > 1:
        more_rmv, _ = stepper.extend(targets_rm[:, :-1], stepper.repeat(cache, copies))
        logits_rmv = jnp.concatenate([logits_rmv, more_rmv], axis=1)
    log_p_rmv = jax.nn.log_softmax(logits_rmv.astype(jnp.float32))
    log_p_rm = jnp.take_along_axis(log_p_rmv, targets_rm[..., None], axis=-1)[..., 0]
    return log_p_rm, jnp.argmax(logits_rmv, axis=-1) == targets_rm
