"""Batches as a pure function of (seed, step), made ahead of time in the background."""

import contextlib
import dataclasses
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


@dataclasses.dataclass(frozen=True, eq=False)
class DataLoader:
    """Batch s holds rows s b ... s b + b - 1 of the order that the seed gives.

    Whoever asks, and whenever, it is the same. With `shuffle`, epoch e is the permutation that (seed, e)
    gives; with `repeat`, epochs follow one another without end, even within a batch. Without, the last batch
    is filled up with padding, so that all have one shape and every row is served once. Process p of n gets
    the p-th of n equal parts of each batch, so that any number of processes together see the same batches.

    Raises:
      UserError: the processes cannot share a batch equally.
    """

    rows: Rows
    batch_size: int  # rows of all processes
    _: dataclasses.KW_ONLY
    seed: int = 0
    shuffle: bool = False
    repeat: bool = False
    process_index: int = 0
    process_count: int = 1
    prefetch: int = 4  # batches that `iterate` keeps ready
    workers: int = 1  # threads that make them; 0: each is made when it is asked for
    transform: Transform | None = None  # changes each batch

    def __post_init__(self) -> None:
        size, count = self.batch_size, self.process_count
        if size % count:
            raise UserError(f"train.batch_size: {size} is no multiple of the {count} processes")

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def batch_at(self, step: int) -> HostBatch:
        """This process's rows of batch `step`.

        Raises:
          IndexError: there is no such batch, without `repeat`.
        """
        if not 0 <= step < (sys.maxsize if self.repeat else len(self)):
            raise IndexError(f"batch {step} of {len(self)}")
        own = self.batch_size // self.process_count
        places = step * self.batch_size + self.process_index * own + np.arange(own)
        rows = np.array([self._row(int(place)) for place in places])
        if isinstance(self.rows, EpochRows):
            batch = self.rows.batch_of_epochs(rows, places // len(self.rows))
        else:
            batch = self.rows.batch(rows)
        return self.transform(batch, places) if self.transform else batch

    def iterate(self, start: int = 0) -> Iterator[HostBatch]:
        """`batch_at(start), ...`, made in the background; an error there is raised here."""
        stop = sys.maxsize // 2 if self.repeat else len(self)
        batches = grain.MapDataset.range(start, max(start, stop)).map(self.batch_at)
        options = grain.ReadOptions(num_threads=self.workers, prefetch_buffer_size=self.prefetch)
        with contextlib.closing(iter(batches.to_iter_dataset(options))) as iterator:
            yield from iterator

    def _row(self, place: int) -> int:
        epoch, index = divmod(place, len(self.rows))
        if epoch and not self.repeat:
            return -1
        if not self.shuffle:
            return index
        seed = _epoch_seed(self.seed, epoch)
        return grain.experimental.index_shuffle(index, max_index=len(self.rows) - 1, seed=seed, rounds=4)


@functools.lru_cache(16)
def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
