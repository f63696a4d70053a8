"""The loss of each document, which shows those that a model finds hard, or that do not belong."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.errors import UserError
from transformer.evaluation.batch_results import batch_results
from transformer.evaluation.terms_by_row import by_target, replicated
from transformer.training.experiment import Batch, Objective, Params, Put
from transformer.training.step import in_microbatches


@dataclasses.dataclass(frozen=True)
class DocumentLoss:
    """The mean `loss` over the `targets` (their weight) of a document by its number, from 0, and the UTF-8
    bytes of these targets, if they are counted."""

    number: int
    loss: float
    targets: float
    num_bytes: int

    @property
    def bits_per_byte(self) -> float | None:
        """The bits for each byte of the targets; None if bytes are not counted."""
        return self.loss * self.targets / self.num_bytes / math.log(2) if self.num_bytes else None


def document_losses(experiment: Objective, params: Params, put: Put, loader: Any) -> list[DocumentLoss]:
    """The loss of each document that one pass of a `DataLoader` reads, the highest first. Call it in the mesh
    of the run.

    Raises:
      UserError: its rows have no documents, or a model's memory goes from one to the next.
    """
    whole = dataclasses.replace(loader, needed=None)  # the numbers of all rows, on every process
    refused = UserError(f"--per_document: {experiment.config.experiment} has no loss of a single document")
    if experiment.initial_carry() is not None or "weights" not in next(loader.iterate(0), ()):
        raise refused
    batches = []
    for step, (total, segments, *parts_3) in enumerate(
        batch_results(_measure(experiment), params, loader, put, 0)
    ):
        if (records := whole.documents_at(step)) is None:
            raise refused
        documents = _of_targets(records, segments, parts_3[1], loader.rows.per_record)
        if documents is None:
            raise refused
        if not math.isclose(parts_3[0].sum(), total, rel_tol=1e-3, abs_tol=1e-3):
            raise refused  # the loss is not a sum over these targets
        batches.append((documents.ravel(), np.stack(parts_3).reshape(3, -1)))
    number_p = np.concatenate([numbers for numbers, _ in batches])
    part_3p = np.concatenate([parts for _, parts in batches], axis=1)[:, number_p >= 0]
    sums_3n = [np.bincount(number_p[number_p >= 0], part_p) for part_p in part_3p]
    losses = [
        DocumentLoss(number, total / targets, targets, int(num_bytes))
        for number, (total, targets, num_bytes) in enumerate(zip(*sums_3n, strict=True))
        if targets
    ]
    return sorted(losses, key=lambda document: (-document.loss, document.number))


def _of_targets(
    records: Sequence[np.ndarray], segments: np.ndarray, weights: np.ndarray, per_record: int
) -> np.ndarray | None:
    """The record of each target, in the shape of `weights`, by the records of the segments of each row: of
    its token or, for a target of `per_record` segments of a row, of these; -1 where there is none. None if
    the targets are neither."""
    if weights.shape == segments.shape:
        number_bt = segments.astype(int) - 1
        return np.stack([np.append(own, -1)[row] for own, row in zip(records, number_bt, strict=True)])
    numbers = np.full(weights.shape, -1).reshape(len(weights), -1)
    for row, own in enumerate(records):
        if len(of_row := own[::per_record]) > numbers.shape[1]:
            return None
        numbers[row, : len(of_row)] = of_row
    return numbers.reshape(weights.shape)


def _measure(experiment: Objective) -> Any:
    """(params, batch) -> the total of the loss, the segments, and total, weight and bytes of each target, on
    every process."""
    cost = by_target(experiment)

    def part(params: Params, batch: Batch) -> Any:
        weights, rng = batch["weights"], jax.random.key(0)
        rows = cost(params, batch), weights, batch.get("bytes", jnp.zeros(weights.shape))
        segments = batch.get("segments", jnp.zeros((len(weights), 0), jnp.int32))
        return {"loss": experiment.loss(params, batch, rng, False)["loss"]}, segments, *rows

    def measure(params: Params, batch: Batch) -> list[jax.Array]:
        terms, *rows = in_microbatches(part, experiment.config.parallel.microbatches)(params, batch)
        return [terms["loss"].total, *map(replicated, rows)]

    return jax.jit(measure)
