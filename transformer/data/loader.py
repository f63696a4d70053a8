"""Batches as a pure function of (seed, step), prefetched in background threads."""

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import grain
import grain.experimental
import numpy as np


class Rows(Protocol):
    """Random access to batches of examples."""

    def __len__(self) -> int: ...

    def batch(self, rows: np.ndarray) -> "HostBatch":
        """The examples with these indices, stacked; index -1 is padding, with weight 0."""
        ...


@runtime_checkable
class EpochRows(Protocol):
    """Rows whose examples depend on the epoch."""

    def batch_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> "HostBatch":
        """The examples with these indices in these epochs, counted from 0."""
        ...


HostBatch = dict[str, np.ndarray]
Transform = Callable[[HostBatch, np.ndarray], HostBatch]
"""A random transformation of a batch, (batch, places) -> batch. `places` (b,) are the indices of the examples
in the data order of the run, so that a generator seeded with (seed, place) draws the same for any number of
hosts."""


@dataclasses.dataclass(frozen=True, eq=False)
class DataLoader:
    """Batch s has rows s b ... s b + b - 1 of an order that depends only on the seed.

    With `shuffle`, epoch e is a permutation by (seed, e); with `repeat`, epochs follow one another without
    end, also within a batch. Without `repeat` the last batch is padded, so that all batches have the same
    shape and every row occurs once. A process that needs only some of the rows of each batch names them.
    """

    rows: Rows
    batch_size: int
    _: dataclasses.KW_ONLY
    seed: int = 0
    shuffle: bool = False
    repeat: bool = False
    needed: np.ndarray | None = None  # rows of each batch, counted from 0; None: all
    prefetch: int = 4  # batches that `iterate` keeps ready
    workers: int = 1  # threads that make them; 0: each is made when it is asked for
    transform: Transform | None = None  # changes each batch

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def batch_at(self, step: int) -> HostBatch:
        """The needed rows of batch `step`.

        Raises:
          IndexError: there is no such batch, without `repeat`.
        """
        if not 0 <= step < (sys.maxsize if self.repeat else len(self)):
            raise IndexError(f"batch {step} of {len(self)}")
        places, rows = self._places(step)
        if isinstance(self.rows, EpochRows):
            batch = self.rows.batch_of_epochs(rows, places // len(self.rows))
        else:
            batch = self.rows.batch(rows)
        return self.transform(batch, places) if self.transform else batch

    def documents_at(self, step: int) -> list[np.ndarray] | None:
        """For each row of batch `step`, the numbers in the source, from 0, of the records of its segments
        1, 2, ... or, of a row without segments, of the row. None if the rows are not of records."""
        places, rows = self._places(step)
        found: Any = self.rows
        if hasattr(found, "documents_of_epochs"):
            return found.documents_of_epochs(rows, places // len(self.rows))
        return found.documents(rows) if hasattr(found, "documents") else None

    def _places(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The places of the needed rows of batch `step` in the order of the run, and their indices."""
        needed = np.arange(self.batch_size) if self.needed is None else self.needed
        places = step * self.batch_size + needed
        return places, np.array([self._row(int(place)) for place in places])

    def iterate(self, start: int = 0) -> Iterator[HostBatch]:
        """`batch_at(start)`, `batch_at(start + 1)`, ..., prefetched; errors of the threads are raised
        here."""
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
