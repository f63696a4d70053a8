"""The parts of a mask: where their queries and keys are in the sequence, and which blocks are computed."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.layers.kernels.reference import Scoring
from transformer.layers.masks import Mask
from transformer.layers.patterns import Bounds, Part

SIZES = (128, 64, 32)
"""Queries and keys per block, from the largest: small blocks skip more of a sparse mask, large ones have
larger matrix products."""

OVERHEAD = 384
"""The time of a pair of blocks besides that of its size, in pairs of a query and a key."""


class Blocks(NamedTuple):
    """Blocks of so many queries and keys, and whether a pair of blocks is not entirely masked, (n, m)."""

    sizes: tuple[int, int]
    seen: np.ndarray

    @property
    def pairs(self) -> int:
        """The number of pairs of a query and a key in them."""
        return int(self.seen.sum()) * math.prod(self.sizes)

    @property
    def cost(self) -> int:
        """The time for them, in pairs of a query and a key."""
        return int(self.seen.sum()) * (math.prod(self.sizes) + OVERHEAD)


@dataclass(frozen=True, eq=False)
class Side:
    """The queries or the keys of a view, of a sequence of `length`.

    Its arrays have a row of the view for each row of the batch, (b r, ...), in whole blocks of `size`.
    `places` (r, u) are indices in the sequence; -1: none, and None: one row, all in place.
    """

    places: np.ndarray | None
    length: int
    size: int

    def view(self, x: jax.Array, axis: int = 2) -> jax.Array:
        """The view of an array with the sequence on `axis`; 0 where there is none."""
        if self.places is None:
            return jnp.pad(x, [(0, self._added if n == axis else 0) for n in range(x.ndim)])
        places = np.pad(self.places, ((0, 0), (0, self._added)), constant_values=-1)
        picked = jnp.take(x, np.maximum(places, 0), axis)
        there = (places >= 0).reshape(*places.shape, *(1,) * (x.ndim - axis - 1))
        picked = jnp.moveaxis(jnp.where(there, picked, jnp.zeros((), x.dtype)), axis, 1)
        return picked.reshape(-1, *picked.shape[2:])

    def row(self, x_bt: jax.Array | None, b: int) -> jax.Array | None:
        """The view of an array (b or 1, t or 1) that may be missing."""
        if x_bt is None:
            return None
        rows = x_bt.shape[0] if self.places is None else b
        return self.view(jnp.broadcast_to(x_bt, (rows, self.length)), 1)

    def back(self, x_bhuk: jax.Array, empty: float = 0.0) -> jax.Array:
        """The inverse of `view`; `empty` where the view has none."""
        if self.places is None:
            return x_bhuk[:, :, : self.length]
        (r, u), size = self.places.shape, x_bhuk.shape[2]
        inverse = np.full(self.length + 1, -1)
        inverse[self.places] = np.arange(r)[:, None] * size + np.arange(u)
        inverse = inverse[:-1, None]
        x_bhrk = x_bhuk.reshape(-1, r, *x_bhuk.shape[1:]).swapaxes(1, 2)
        x_bhpk = x_bhrk.reshape(*x_bhrk.shape[:2], r * size, x_bhuk.shape[-1])
        return jnp.where(inverse >= 0, jnp.take(x_bhpk, np.maximum(inverse[:, 0], 0), 2), empty)

    @property
    def whole(self) -> int:
        """The length of a row of the view."""
        return (self.length if self.places is None else self.places.shape[1]) + self._added

    @property
    def missing(self) -> bool:
        """Whether there are places without a token."""
        return bool(self._added) or (self.places is not None and bool((self.places < 0).any()))

    @property
    def _added(self) -> int:
        return -(self.length if self.places is None else self.places.shape[1]) % self.size


class Placed(NamedTuple):
    """A part of a mask, with the places of its queries and keys in the sequence, and its blocks."""

    part: Part
    start: int
    queries: Side
    keys: Side
    blocks: Blocks

    @property
    def pairs(self) -> int:
        """The number of pairs of a query and a key that are computed for a row of the batch."""
        places = self.queries.places
        return self.blocks.pairs * (1 if places is None else len(places))

    def mask(self, mask: Mask, b: int) -> Mask:
        """The mask of the view, for b rows."""
        valid_bs = mask.key_valid_bs
        if valid_bs is None and self.keys.missing:
            valid_bs = jnp.ones((1, 1), bool)
        counted = mask if mask.counts_positions else Mask()
        return Mask(
            query_segments_bt=self.queries.row(mask.query_segments_bt, b),
            key_segments_bs=self.keys.row(mask.key_segments_bs, b),
            key_valid_bs=self.keys.row(valid_bs, b),
            query_positions_bt=self.queries.row(counted.query_positions_bt, b),
            key_positions_bs=self.keys.row(counted.key_positions_bs, b),
            start=self.start,
            causal=self.part.causal,
            pattern=self.part.pattern,
        )

    def scoring(self, scoring: Scoring, b: int) -> Scoring:
        """The scoring of the view, for b rows."""
        queries_bt = self.queries.row(scoring.query_positions_bt, b)
        keys_bs = self.keys.row(scoring.key_positions_bs, b)
        return dataclasses.replace(scoring, query_positions_bt=queries_bt, key_positions_bs=keys_bs)

    def table(self, mask: Mask, given: Mask) -> tuple[Any, Any]:
        """For each block of queries the numbers of its visible blocks of keys, first in a row of (n, m), and
        how many these are, (n,).

        Not visible are also those that the segments, invalid keys or positions of the `given` mask exclude in
        all rows of the view, whose mask is `mask`.
        """
        sizes, static = self.blocks
        width = max(1, int(static.sum(axis=1).max()))
        seen = [jnp.asarray(static)[None]]
        if given.key_valid_bs is not None:
            seen.append(_bounds(mask.key_valid_bs, sizes[1])[1][:, None])
        if mask.query_segments_bt is not None:
            i, j = _pairs(mask.query_segments_bt, mask.key_segments_bs, sizes)
            seen.append((i[0] <= j[1]) & (j[0] <= i[1]))
        if mask.pattern is not None and mask.counts_positions:
            seen.append(mask.pattern.touches(*_pairs(mask.query_positions_bt, mask.key_positions_bs, sizes)))
        if len(seen) == 1:
            return _first(np, static, width)
        return _first(jnp, functools.reduce(jnp.logical_and, seen).any(axis=0), width)


def parts_of(mask: Mask, t: int, s: int) -> list[Placed]:
    """The parts of a mask for t queries and s keys."""
    parts: tuple[Part, ...] = (Part(mask.pattern, mask.causal),)
    if mask.pattern is not None and not mask.counts_positions:
        parts = mask.pattern.parts(mask.causal)
    placed = (_placed(part, mask.start, t, s, mask.counts_positions, SIZES) for part in parts)
    return [part for part in placed if part is not None]


@functools.lru_cache(maxsize=256)
def _placed(part: Part, start: int, t: int, s: int, counted: bool, sizes: tuple[int, ...]) -> Placed | None:
    """None without queries or keys. If positions are `counted`, the blocks are those of a row that is one
    document, and which of them are masked by the pattern is not known yet."""
    queries, keys, first = part.view.places(start, t, s)
    u, w = (n if places is None else places.shape[1] for places, n in ((queries, t), (keys, s)))
    if not u or not w:
        return None
    blocks = _blocks(part, first, u, w, sizes)
    if counted:
        blocks = _seen(part._replace(pattern=None), first, u, w, max(blocks.sizes))
    sides = Side(queries, t, blocks.sizes[0]), Side(keys, s, blocks.sizes[1])
    return Placed(part, first, *sides, blocks)


def _blocks(part: Part, start: int, t: int, s: int, sizes: tuple[int, ...]) -> Blocks:
    """The blocks of one of these sizes, or of a fraction of a length, with which the part costs least."""
    grains = {max(t, s), part.pattern.grain if part.pattern else 1}
    fractions = {-(-grain // n) for grain in grains for n in range(1, 9)}
    among = {min(size, max(t, s)) for size in sizes}
    among |= {size for size in fractions if sizes[-1] <= size <= sizes[0]}
    found = [_seen(part, start, t, s, size) for size in sorted(among, reverse=True)]
    return min(found, key=lambda blocks: blocks.cost)


def _seen(part: Part, start: int, t: int, s: int, size: int) -> Blocks:
    sizes = min(size, t), min(size, s)
    i, j = (np.arange(0, n, each) for n, each in zip((t, s), sizes, strict=True))
    queries = start + i[:, None], start + np.minimum(i + sizes[0], t)[:, None] - 1
    keys = j[None], np.minimum(j + sizes[1], s)[None] - 1
    seen = np.broadcast_to(keys[0] <= queries[1] if part.causal else True, (len(i), len(j)))
    return Blocks(sizes, seen if part.pattern is None else seen & part.pattern.touches(queries, keys))


def _bounds(x_bt: Any, size: int) -> Bounds:
    blocks = x_bt.reshape(x_bt.shape[0], -1, size)
    return blocks.min(axis=2), blocks.max(axis=2)


def _pairs(queries_bt: Any, keys_bs: Any, sizes: tuple[int, int]) -> tuple[Bounds, Bounds]:
    """The bounds of the blocks of queries (b, n, 1) and of keys (b, 1, m)."""
    i, j = _bounds(queries_bt, sizes[0]), _bounds(keys_bs, sizes[1])
    return (i[0][:, :, None], i[1][:, :, None]), (j[0][:, None], j[1][:, None])


def _first(xp: Any, seen: Any, width: int) -> tuple[Any, Any]:
    """The columns where a row is True, then others, `width` in all, and how many are True."""
    return xp.argsort(~seen, axis=1, stable=True)[:, :width], seen.sum(axis=1)
