"""Batches as a pure function of (seed, step), prefetched in background threads."""

import contextlib
import dataclasses
import functools
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np


class Rows(ABC):
    """Random access to batches of examples."""

    why = ""
    """Why bits per byte cannot be computed for the rows, or ""."""
    per_record = 1
    """The number of segments of a row that an example has."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, rows: np.ndarray) -> "HostBatch":
        """The examples with these indices, stacked; index -1 is padding, with weight 0."""

    def batch_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> "HostBatch":
        """The examples with these indices in these epochs, counted from 0."""
        return self.batch(rows)

    def documents(self, rows: np.ndarray) -> list[np.ndarray] | None:
        """For each of these rows, the numbers in the source, from 0, of the records of its segments 1, 2, ...
        or, of a row without segments, of the row. None if the rows are not of records."""
        return None

    def documents_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> list[np.ndarray] | None:
        """As `documents`, in these epochs."""
        return self.documents(rows)

    @property
    def counted(self) -> int:
        """The number of rows that are not repeated."""
        return len(self)

    @property
    def examples(self) -> int:
        """The number of examples in the rows."""
        return len(self)


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

    parts: ClassVar[Mapping[str, Any]] = types.MappingProxyType({})
    """The loaders of the sources of a mixture, by name; {}: of one source."""

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
        batch = self.rows.batch_of_epochs(rows, places // len(self.rows))
        return self.transform(batch, places) if self.transform else batch

    def documents_at(self, step: int) -> list[np.ndarray] | None:
        """The `documents` of each row of batch `step`."""
        places, rows = self._places(step)
        return self.rows.documents_of_epochs(rows, places // len(self.rows))

    def _places(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The places of the needed rows of batch `step` in the order of the run, and their indices."""
        needed = np.arange(self.batch_size) if self.needed is None else self.needed
        places = step * self.batch_size + needed
        return places, np.array([self._row(int(place)) for place in places])

    def iterate(self, start: int = 0) -> Iterator[HostBatch]:
        """`batch_at(start)`, `batch_at(start + 1)`, ..., prefetched; errors of the threads are raised
        here."""
        import grain  # not at the top: it and orbax would be a seventh of the time of `--help`

        steps = grain.MapDataset.range(start, sys.maxsize // 2 if self.repeat else max(start, len(self)))
        options = grain.ReadOptions(num_threads=self.workers, prefetch_buffer_size=self.prefetch)
        with contextlib.closing(iter(steps.map(self.batch_at).to_iter_dataset(options))) as iterator:
            yield from iterator

    def _row(self, place: int) -> int:
        epoch, index = divmod(place, len(self.rows))
        if epoch and not self.repeat:
            return -1
        if not self.shuffle:
            return index
        from grain.experimental import index_shuffle as shuffle

        return shuffle(index, max_index=len(self.rows) - 1, seed=_epoch_seed(self.seed, epoch), rounds=4)


@functools.lru_cache(16)
def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
