"""Views of queries and keys, in which a sparse pattern is a simple one."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


class Places(NamedTuple):
    """Where the r rows of a view come from.

    `queries` (r, u) are indices along the array of queries, `keys` (r, w) along that of keys; -1: none, and
    None: one row, all in place. `start` is the index of the first query of each row on the axis of its keys.
    """

    queries: np.ndarray | None
    keys: np.ndarray | None
    start: int


class View:
    """All queries and keys in one row, as they are."""

    def places(self, start: int, t: int, s: int) -> Places:
        """The view of t queries, whose indices on the key axis begin with `start`, and s keys."""
        return Places(None, None, start)


@dataclass(frozen=True)
class Residues(View):
    """A row for each residue of the index modulo `stride`: its tokens, in order."""

    stride: int

    def places(self, start: int, t: int, s: int) -> Places:
        """(stride, t / stride), (stride, s / stride)."""
        first, n = start // self.stride, self.stride
        return Places(_grid(first * n, start + t, n, start).T, _grid(0, s, n).T, first)


@dataclass(frozen=True)
class Runs(View):
    """A row for each run of `size` tokens."""

    size: int

    def places(self, start: int, t: int, s: int) -> Places:
        """(t / size, size), (t / size, size)."""
        first = start // self.size * self.size
        keys = _grid(first, max(s, start + t), self.size)
        queries = _grid(first, start + t, self.size, start)
        return Places(queries, np.where(keys < s, keys, -1)[: len(queries)], 0)


@dataclass(frozen=True)
class Ends(View):
    """All queries; of the keys only the last `count` of every `size`."""

    size: int
    count: int

    def places(self, start: int, t: int, s: int) -> Places:
        """In place, (1, s / size count)."""
        return Places(None, _grid(0, s, self.size)[:, -self.count :].reshape(1, -1), start)


@dataclass(frozen=True)
class FirstKeys(View):
    """All queries and the first `count` keys."""

    count: int

    def places(self, start: int, t: int, s: int) -> Places:
        """In place, (1, count)."""
        return Places(None, np.arange(min(self.count, s))[None], start)


@dataclass(frozen=True)
class FirstQueries(View):
    """The first `count` queries and all keys but the first `count`."""

    count: int

    def places(self, start: int, t: int, s: int) -> Places:
        """(1, count), (1, s - count)."""
        queries = np.arange(min(max(self.count - start, 0), t))[None]
        return Places(queries, np.arange(self.count, s)[None], start - self.count)


def _grid(begin: int, end: int, width: int, first: int = 0) -> np.ndarray:
    """The indices from `begin` to `end` in rows of `width`, counted from `first` on; -1 before and after."""
    indices = np.arange(begin, begin + -(-(end - begin) // width) * width)
    return np.where(indices < end, np.maximum(indices - first, -1), -1).reshape(-1, width)
