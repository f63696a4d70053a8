"""Batches as a pure function of (seed, step), made ahead of time in the background."""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

import grain
import grain.experimental
import numpy as np

from transformer.errors import UserError


class Rows(Protocol):
    """Examples at random access, many at once."""

    def __len__(self) -> int: ...

    def batch(self, rows: np.ndarray) -> "HostBatch":
        """The examples of the given numbers, stacked; number -1 is padding, of weight 0."""
        ...


@runtime_checkable
class EpochRows(Protocol):
    """Rows whose examples differ from epoch to epoch."""

    def batch_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> "HostBatch":
        """The examples of the given numbers as they are in these epochs, counted from 0."""
        ...


HostBatch = dict[str, np.ndarray]
Transform = Callable[[HostBatch, np.ndarray], HostBatch]
"""What is drawn anew whenever an example is: (batch, places) -> batch. `places` (b,) count the examples drawn
so far in the whole run, so that a generator seeded with (seed, place) draws the same on any host count."""


class DataLoader:
    """Batch s holds rows s b ... s b + b - 1 of the order that the seed gives.

    Whoever asks, and whenever, it is the same. With `shuffle`, epoch e is the permutation that (seed, e)
    gives; with `repeat`, epochs follow one another without end, even within a batch. Without, the last batch
    is filled up with padding, so that all have one shape and every row is served once. Process p of n gets
    the p-th of n equal parts of each batch, so that any number of processes together see the same batches.

    Raises:
      UserError: the processes cannot share a batch equally.
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
        prefetch: int = 4,
        workers: int = 1,
        transform: Transform | None = None,
    ) -> None:
        """`batch_size` counts the rows of all processes; `iterate` keeps `prefetch` batches ready, made
        by `workers` threads; 0: each is made when it is asked for. `transform` changes each batch."""
        if batch_size % process_count:
            raise UserError(f"train.batch_size: {batch_size} is no multiple of the {process_count} processes")
        self.rows, self.batch_size, self.repeat = rows, batch_size, repeat
        self._seed, self._shuffle = seed, shuffle
        self._mine = np.arange(batch_size).reshape(process_count, -1)[process_index]
        self._prefetch, self._workers, self._transform = prefetch, workers, transform

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def batch_at(self, step: int) -> HostBatch:
        """This process's rows of batch `step`.

        Raises:
          IndexError: there is no such batch, without `repeat`.
        """
        if not 0 <= step < (sys.maxsize if self.repeat else len(self)):
            raise IndexError(f"batch {step} of {len(self)}")
        places = step * self.batch_size + self._mine
        rows = np.array([self._row(int(place)) for place in places])
        if isinstance(self.rows, EpochRows):
            batch = self.rows.batch_of_epochs(rows, places // len(self.rows))
        else:
            batch = self.rows.batch(rows)
        return self._transform(batch, places) if self._transform else batch

    def iterate(self, start: int = 0) -> Iterator[HostBatch]:
        """`batch_at(start), ...`, made in the background; an error there is raised here."""
        stop = sys.maxsize // 2 if self.repeat else len(self)
        batches = grain.MapDataset.range(start, max(start, stop)).map(self.batch_at)
        options = grain.ReadOptions(num_threads=self._workers, prefetch_buffer_size=self._prefetch)
        iterator = iter(batches.to_iter_dataset(options))
        try:
            yield from iterator
        finally:
            iterator.close()

    def _row(self, place: int) -> int:
        epoch, index = divmod(place, len(self.rows))
        if epoch and not self.repeat:
            return -1
        if not self._shuffle:
            return index
        seed = _epoch_seed(self._seed, epoch)
        return grain.experimental.index_shuffle(index, max_index=len(self.rows) - 1, seed=seed, rounds=4)


@functools.lru_cache(16)
def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
