"""Batches as a pure function of (seed, step), made ahead of time in the background."""

import collections
import itertools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import grain
import numpy as np

from transformer.errors import UserError

AHEAD = 4
"""Batches that `iterate` keeps ready for each worker."""


class Rows(Protocol):
    """Examples at random access, several at once."""

    def __len__(self) -> int: ...

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The examples of the given numbers, stacked on a leading axis."""
        ...


class Loader:
    """Batch s is rows s b ... s b + b - 1 of the order that the seed gives, whoever asks and whenever.

    With `shuffle` every epoch is a permutation of its own; with `repeat` there is no end, and epochs follow
    one another within a batch. Without `repeat` the last batch is filled up with zeros, whose weights are
    zero too, so that all batches have one shape. Process p of P gets its P-th part of each batch, in order:
    the parts of any number of processes together are the same global batch.
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = False,
        repeat: bool = False,
        process_index: int = 0,
        process_count: int = 1,
        workers: int = 1,
    ) -> None:
        """`batch_size` is the global one; `workers` threads serve `iterate`."""
        if batch_size % process_count:
            raise UserError(
                f"train.batch_size: {batch_size} is not a multiple of the {process_count} processes"
            )
        self.rows, self.batch_size, self.repeat, self.workers = rows, batch_size, repeat, workers
        order = grain.MapDataset.range(len(rows)).seed(seed)
        order = order.shuffle() if shuffle else order
        self._order = order.repeat() if repeat else order
        self._share = batch_size // process_count
        self._first = process_index * self._share

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def batch_at(self, step: int) -> dict[str, np.ndarray]:
        """This process's part of batch `step`: arrays (b / processes, ...)."""
        start = step * self.batch_size + self._first
        places = np.arange(start, start + self._share)
        real = places < (np.inf if self.repeat else len(self.rows))
        chosen = np.array(
            [self._order[int(place)] if there else 0 for place, there in zip(places, real, strict=True)]
        )
        batch = self.rows.batch(chosen)
        if not real.all():
            for values in batch.values():
                values[~real] = 0
        return batch

    def iterate(self, start: int = 0) -> Iterator[dict[str, np.ndarray]]:
        """Batches from `start` on, in order; an error in the background is raised here."""
        steps = itertools.count(start) if self.repeat else iter(range(start, len(self)))
        pending: collections.deque[Future] = collections.deque()
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="loader")
        try:
            for step in itertools.islice(steps, AHEAD * self.workers):
                pending.append(pool.submit(self.batch_at, step))
            while pending:
                batch = pending.popleft().result()
                for step in itertools.islice(steps, 1):
                    pending.append(pool.submit(self.batch_at, step))
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)
