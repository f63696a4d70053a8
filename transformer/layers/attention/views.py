"""Views of queries and keys, in which a sparse pattern is a simple one.

If documents start anywhere in a row, the places of a view are known only at run time. Then a view has one row
for each row of the batch, with gaps.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Places(NamedTuple):
    """Where the r rows of a view come from.

    `queries` (r, u) are indices along the array of queries, `keys` (r, w) along that of keys; -1: none, and
    None: one row, all in place. `start` is the index of the first query of each row on the axis of its keys.
    """

    queries: np.ndarray | None
    keys: np.ndarray | None
    start: int


class Order(NamedTuple):
    """The view of each row of a batch: some or all of its tokens, in their order, at p places.

    `indices` (b, p) are those in the row, and never decrease. Where `there` (b, p) is False is a gap, and the
    index is that of a token nearby.
    """

    indices: jax.Array
    there: jax.Array


class View:
    """All queries and keys in one row, as they are."""

    def places(self, start: int, t: int, s: int) -> Places:
        """The view of t queries, whose indices on the key axis start with `start`, and s keys."""
        return Places(None, None, start)

    def orders(self, queries_bt: jax.Array, keys_bs: jax.Array) -> tuple[Order | None, Order | None]:
        """The view of queries and keys with these positions; None: all are in place."""
        return None, None


@dataclass(frozen=True)
class Aligned(View):
    """All queries and keys in one row, in which runs of `size` positions start at multiples of `size`."""

    size: int

    def orders(self, queries_bt: jax.Array, keys_bs: jax.Array) -> tuple[Order | None, Order | None]:
        """With a gap after each run that is shorter, as the last one of a document may be."""
        return _aligned(queries_bt, self.size), _aligned(keys_bs, self.size)


@dataclass(frozen=True)
class Residues(View):
    """A row for each residue of the index modulo `stride`: its tokens, in order."""

    stride: int

    def places(self, start: int, t: int, s: int) -> Places:
        """(stride, t / stride), (stride, s / stride)."""
        first, n = start // self.stride, self.stride
        return Places(_grid(first * n, start + t, n, start).T, _grid(0, s, n).T, first)


@dataclass(frozen=True)
class Runs(Aligned):
    """A row for each run of `size` tokens."""

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

    def orders(self, queries_bt: jax.Array, keys_bs: jax.Array) -> tuple[Order | None, Order | None]:
        """The last keys of every `size` of each document."""
        return None, _only(keys_bs % self.size >= self.size - self.count)


@dataclass(frozen=True)
class FirstKeys(View):
    """All queries and the first `count` keys."""

    count: int

    def places(self, start: int, t: int, s: int) -> Places:
        """In place, (1, count)."""
        return Places(None, np.arange(min(self.count, s))[None], start)

    def orders(self, queries_bt: jax.Array, keys_bs: jax.Array) -> tuple[Order | None, Order | None]:
        """The first keys of each document."""
        return None, _only(keys_bs < self.count)


@dataclass(frozen=True)
class FirstQueries(View):
    """The first `count` queries and all keys but the first `count`."""

    count: int

    def places(self, start: int, t: int, s: int) -> Places:
        """(1, count), (1, s - count)."""
        queries = np.arange(min(max(self.count - start, 0), t))[None]
        return Places(queries, np.arange(self.count, s)[None], start - self.count)

    def orders(self, queries_bt: jax.Array, keys_bs: jax.Array) -> tuple[Order | None, Order | None]:
        """The first queries of each document, and all its other keys."""
        return _only(queries_bt < self.count), _only(keys_bs >= self.count)


def _grid(begin: int, end: int, width: int, first: int = 0) -> np.ndarray:
    """The indices from `start` to `end` in rows of `width`, counted from `first` on; -1 before and after."""
    indices = np.arange(begin, begin + -(-(end - begin) // width) * width)
    return np.where(indices < end, np.maximum(indices - first, -1), -1).reshape(-1, width)


def _only(chosen_bt: jax.Array) -> Order:
    """The chosen tokens of each row, and then a gap."""
    t = chosen_bt.shape[1]
    indices_bt = first_of(jnp.cumsum(chosen_bt, axis=1), 1 + jnp.arange(t))
    return Order(jnp.minimum(indices_bt, t - 1), indices_bt < t)


def _aligned(positions_bt: jax.Array, size: int) -> Order:
    """The tokens of each row with `size` places for each run of positions, or all in place if there are so
    many short documents that this takes more than half as many places again."""
    t = positions_bt.shape[1]
    index_t, runs = jnp.arange(t), -(-3 * t // (2 * size))
    run_bt, before_bt = positions_bt // size, jnp.pad(positions_bt, ((0, 0), (1, 0)))[:, :-1]
    begins_bt = (index_t == 0) | (run_bt != before_bt // size) | (positions_bt < before_bt)
    # What is longer, padding whose positions do not count, is cut.
    length_bt = index_t - jax.lax.cummax(jnp.where(begins_bt, index_t, 0), axis=1)
    number_bt = jnp.cumsum(begins_bt | (length_bt % size == 0), axis=1) - 1
    place_p = jnp.arange(runs * size)
    first_bp = first_of(number_bt, place_p // size)
    after_bp = first_of(number_bt, place_p // size + 1)
    indices_bp, fits_b1 = first_bp + place_p % size, number_bt[:, -1:] < runs
    there_bp = jnp.where(fits_b1, indices_bp < after_bp, place_p < t)
    indices_bp = jnp.where(fits_b1, jnp.minimum(indices_bp, after_bp - 1), place_p)
    return Order(jnp.minimum(indices_bp, t - 1), there_bp)


def first_of(numbers_bt: jax.Array, wanted_p: jax.Array) -> jax.Array:
    """The first index of each row with a number of at least each wanted one (t: none), (b, p); the numbers do
    not decrease."""
    return jax.vmap(jnp.searchsorted, (0, None))(numbers_bt, wanted_p)
