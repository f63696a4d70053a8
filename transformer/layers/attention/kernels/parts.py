"""The parts of a mask: where their queries and keys are in the sequence, and which blocks are computed."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.layers.attention.kernels.scores import Scoring
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import Bounds, Part
from transformer.layers.attention.views import Order, first_of

SIZES = (128, 64, 32)
"""Queries and keys per block, from the largest: small blocks skip more of a sparse mask, large ones have
larger matrix products."""

DOCUMENTS = 8
"""If documents start anywhere in a row, the sizes of blocks are for documents of this fraction of the row."""

OVERHEAD = 384
"""The time of a pair of blocks besides that of its size, in pairs of a query and a key."""


class Blocks(NamedTuple):
    """Blocks of that many queries and keys, and whether a pair of blocks is not entirely masked, (n, m)."""

    sizes: tuple[int, int]
    seen: np.ndarray

    @property
    def cost(self) -> int:
        """The time for them, in pairs of a query and a key."""
        return int(self.seen.sum()) * (math.prod(self.sizes) + OVERHEAD)


@dataclass(frozen=True, eq=False)
class Side:
    """The queries or the keys of a view, of a sequence of `length`.

    Its arrays have a row of the view for each row of the batch, (b r, ...), in whole blocks of `size`.
    `places` (r, u) are indices in the sequence; -1: none, and None: one row, all in place or in an `order`.
    """

    places: np.ndarray | None
    length: int
    size: int
    order: Order | None = None

    def view(self, x: jax.Array, axis: int = 2) -> jax.Array:
        """The view of an array with the sequence on `axis`; 0 where there is none."""
        if self.order is not None:
            x = _taken(x, self.order.indices, axis, self.order.there)
        if self.places is None:
            return jnp.pad(x, [(0, self._added if n == axis else 0) for n in range(x.ndim)])
        places = np.pad(self.places, ((0, 0), (0, self._added)), constant_values=-1)
        picked = jnp.take(x, np.maximum(places, 0), axis)
        there = (places >= 0).reshape(*places.shape, *(1,) * (x.ndim - axis - 1))
        picked = jnp.moveaxis(jnp.where(there, picked, jnp.zeros((), x.dtype)), axis, 1)
        return picked.reshape(-1, *picked.shape[2:])

    def row(self, x_bt: Any, b: int) -> Any:
        """The view of an array (b or 1, t or 1) that may be missing; in a gap that of a token nearby, so that
        the bounds of blocks are narrow."""
        if x_bt is None:
            return None
        if self.order is not None:
            x_bt = _taken(jnp.broadcast_to(x_bt, (b, self.length)), self.order.indices, 1)
            return jnp.pad(x_bt, ((0, 0), (0, self._added)), mode="edge")
        rows = x_bt.shape[0] if self.places is None else b
        return self.view(jnp.broadcast_to(x_bt, (rows, self.length)), 1)

    def back(self, x_bhuk: jax.Array, empty: float = 0.0) -> jax.Array:
        """The inverse of `view`; `empty` where the view has none."""
        if self.order is not None:
            indices_bp, there_bp = self.order
            place_bt = first_of(indices_bp, jnp.arange(self.length))
            same_bt = _taken(indices_bp, place_bt, 1) == jnp.arange(self.length)
            return _taken(x_bhuk, place_bt, 2, same_bt & _taken(there_bp, place_bt, 1), empty)
        if self.places is None:
            return x_bhuk[:, :, : self.length]
        (r, u), size = self.places.shape, x_bhuk.shape[2]
        inverse = np.full(self.length + 1, -1)
        inverse[self.places] = np.arange(r)[:, None] * size + np.arange(u)
        inverse = inverse[:-1, None]
        x_bhrk = x_bhuk.reshape(-1, r, *x_bhuk.shape[1:]).swapaxes(1, 2)
        x_bhpk = x_bhrk.reshape(*x_bhrk.shape[:2], r * size, x_bhuk.shape[-1])
        return jnp.where(inverse >= 0, jnp.take(x_bhpk, np.maximum(inverse[:, 0], 0), 2), empty)

    def valid(self, valid_bt: Any, b: int) -> Any:
        """Which places have a token, of those that are valid; None: all."""
        if self.order is not None:
            there_bt = jnp.pad(self.order.there, ((0, 0), (0, self._added)))
            return there_bt if valid_bt is None else there_bt & self.row(valid_bt, b)
        missing = self._added or (self.places is not None and (self.places < 0).any())
        return self.row(jnp.ones((1, 1), bool) if valid_bt is None and missing else valid_bt, b)

    @property
    def whole(self) -> int:
        """The length of a row of the view."""
        return self._width + self._added

    @property
    def _added(self) -> int:
        return -self._width % self.size

    @property
    def _width(self) -> int:
        if self.order is not None:
            return self.order.indices.shape[1]
        return self.length if self.places is None else self.places.shape[1]


class Placed(NamedTuple):
    """A part of a mask, with the places of its queries and keys in the sequence, and its blocks."""

    part: Part
    start: int
    queries: Side
    keys: Side
    blocks: Blocks

    def mask(self, mask: Mask, b: int) -> Mask:
        """The mask of the view, for b rows."""
        counted = mask if mask.counts_positions else Mask()
        i_1t, j_1s = None, None
        if self.queries.order is not None or self.keys.order is not None or mask.seeds_d is not None:
            i_1t, j_1s = (
                mask.start + jnp.arange(self.queries.length)[None],
                jnp.arange(self.keys.length)[None],
            )
        return Mask(
            query_segments_bt=self.queries.row(mask.query_segments_bt, b),
            key_segments_bs=self.keys.row(mask.key_segments_bs, b),
            key_valid_bs=self.keys.valid(mask.key_valid_bs, b),
            query_indices_bt=self.queries.row(i_1t, b),
            key_indices_bs=self.keys.row(j_1s, b),
            query_positions_bt=self.queries.row(counted.query_positions_bt, b),
            key_positions_bs=self.keys.row(counted.key_positions_bs, b),
            seeds_d=mask.seeds_d,
            heads_per_seed=mask.heads_per_seed,
            start=self.start,
            causal=self.part.causal,
            pattern=self.part.pattern,
        )

    def scoring(self, scoring: Scoring, b: int) -> Scoring:
        """The scoring of the view, for b rows."""
        queries_bt = self.queries.row(scoring.query_positions_bt, b)
        keys_bs = self.keys.row(scoring.key_positions_bs, b)
        return dataclasses.replace(scoring, query_positions_bt=queries_bt, key_positions_bs=keys_bs)

    def table(self, mask: Mask, whole: Mask, by_seed: bool = True) -> tuple[Any, Any]:
        """For each block of queries the numbers of its visible blocks of keys, first in a row of (n, m), and
        how many these are, (n,).

        Not visible are also those that the segments, invalid keys or positions of the `whole` mask exclude in
        all rows of the view, whose mask is `mask`. With several seeds, and if they are told apart `by_seed`,
        each has its own blocks: (n, m, d), and (n,) for the one with the most.
        """
        sizes, static = self.blocks
        width = max(1, int(static.sum(axis=1).max()))
        seen = [jnp.asarray(static)[None]]
        if self.queries.order is not None:
            seen.append(_bounds(self.queries.valid(None, 1), sizes[0])[1][:, :, None])
        if self.keys.order is not None or whole.key_valid_bs is not None:
            seen.append(_bounds(mask.key_valid_bs, sizes[1])[1][:, None])
        if mask.query_indices_bt is not None:
            i, j = _pairs(mask.query_indices_bt, mask.key_indices_bs, sizes)
            seen += [j[0] <= i[1]] if whole.causal else []
            if mask.pattern is not None and not mask.counts_positions:
                seen.append(_touching(mask, i, j))
        if mask.query_segments_bt is not None:
            i, j = _pairs(mask.query_segments_bt, mask.key_segments_bs, sizes)
            seen.append((i[0] <= j[1]) & (j[0] <= i[1]))
        if mask.pattern is not None and mask.counts_positions:
            i, j = _pairs(mask.query_positions_bt, mask.key_positions_bs, sizes)
            seen.append(_touching(mask, i, j))
        if len(seen) == 1:
            return _first(np, static, width)
        by_head = [x if x.ndim == 4 else x[:, None] for x in seen]
        seen_dnm = functools.reduce(jnp.logical_and, by_head).any(axis=0)
        if len(seen_dnm) == 1 or not by_seed:
            return _first(jnp, seen_dnm.any(axis=0), width)
        table_dnm, counts_dn = jax.vmap(lambda seen_nm: _first(jnp, seen_nm, width))(seen_dnm)
        return table_dnm.transpose(1, 2, 0), counts_dn.max(axis=0)


def parts_of(mask: Mask, t: int, s: int) -> list[Placed]:
    """The parts of a mask for t queries and s keys."""
    parts = (Part(None, mask.causal),) if mask.pattern is None else mask.pattern.parts(mask.causal)
    if mask.counts_positions:
        return [_counted(part, mask, t, s) for part in parts]
    placed = (_placed(part, mask.start, t, s, SIZES) for part in parts)
    return [part for part in placed if part is not None]


def _counted(part: Part, mask: Mask, t: int, s: int) -> Placed:
    """The part for positions that are known only at run time, and with them which blocks are masked."""
    assert mask.query_positions_bt is not None and mask.key_positions_bs is not None
    orders = part.view.orders(mask.query_positions_bt, mask.key_positions_bs)
    sizes = _counted_sizes(part, t, s, SIZES)
    queries, keys = (Side(None, *side) for side in zip((t, s), sizes, orders, strict=True))
    known = Part(None, False)
    if orders == (None, None):
        known = Part(part.pattern if part.pattern and part.pattern.relative else None, part.causal)
    blocks = _seen(known, mask.start, queries.whole, keys.whole, sizes)
    return Placed(Part(part.of_positions or part.pattern, part.causal), mask.start, queries, keys, blocks)


@functools.lru_cache(maxsize=256)
def _counted_sizes(part: Part, t: int, s: int, sizes: tuple[int, ...]) -> tuple[int, int]:
    """The sizes of blocks for documents of equal length, but none so small that rounds of the loop cost more
    than what they compute."""
    t, s = -(-t // DOCUMENTS), -(-s // DOCUMENTS)
    queries, keys, _ = part.view.places(0, t, s)
    u, w = (n if places is None else places.size for places, n in ((queries, t), (keys, s)))
    u, w = _blocks(part, 0, max(1, u), max(1, w), sizes).sizes
    return max(u, sizes[-1]), max(w, sizes[-1] // 2)


@functools.lru_cache(maxsize=256)
def _placed(part: Part, start: int, t: int, s: int, sizes: tuple[int, ...]) -> Placed | None:
    """None without queries or keys."""
    queries, keys, first = part.view.places(start, t, s)
    u, w = (n if places is None else places.shape[1] for places, n in ((queries, t), (keys, s)))
    if not u or not w:
        return None
    blocks = _blocks(part, first, u, w, sizes)
    if part.pattern is not None and part.pattern.draws:  # by seeds that are known only at run time
        blocks = _seen(Part(None, part.causal), first, u, w, blocks.sizes)
    sides = Side(queries, t, blocks.sizes[0]), Side(keys, s, blocks.sizes[1])
    return Placed(part, first, *sides, blocks)


def computed_pairs(mask: Mask, b: int, t: int, s: int) -> Any:
    """The number of pairs of a query and a key that are computed for each head, of b rows."""
    pairs: Any = 0
    for part in parts_of(mask, t, s):
        _, counts = part.table(part.mask(mask, b), mask)
        rows = 1 if part.queries.places is None else len(part.queries.places)
        pairs += b * rows * counts.sum() * math.prod(part.blocks.sizes)
    return pairs


def _blocks(part: Part, start: int, t: int, s: int, sizes: tuple[int, ...]) -> Blocks:
    """The blocks of one of these sizes, or of a fraction of a length, with which the part costs least."""
    grains = {max(t, s), part.pattern.grain if part.pattern else 1}
    fractions = {-(-grain // n) for grain in grains for n in range(1, 9)}
    among = {min(size, max(t, s)) for size in sizes}
    among |= {size for size in fractions if sizes[-1] <= size <= sizes[0]}
    pairs = [(min(size, t), min(size, s)) for size in sorted(among, reverse=True)]
    options = [_seen(part, start, t, s, sizes) for sizes in pairs]
    return min(options, key=lambda blocks: blocks.cost)


def _seen(part: Part, start: int, t: int, s: int, sizes: tuple[int, int]) -> Blocks:
    i, j = (np.arange(0, n, step) for n, step in zip((t, s), sizes, strict=True))
    queries = start + i[:, None], start + np.minimum(i + sizes[0], t)[:, None] - 1
    keys = j[None], np.minimum(j + sizes[1], s)[None] - 1
    seen = np.broadcast_to(keys[0] <= queries[1] if part.causal else True, (len(i), len(j)))
    return Blocks(sizes, seen if part.pattern is None else seen & part.pattern.touches(queries, keys))


def _taken(
    x: jax.Array, indices_bp: jax.Array, axis: int, there_bp: jax.Array | None = None, empty: float = 0
) -> jax.Array:
    """The tokens of each row at these indices, on `axis`; `empty` where there is none."""
    b, p = x.shape[0], indices_bp.shape[1]
    take = jax.vmap(lambda x, indices_p: jnp.take(x, indices_p, axis - 1, mode="clip"))
    picked = take(x, jnp.broadcast_to(indices_bp, (b, p)))
    if there_bp is None:
        return picked
    shape = -1, *(1,) * (axis - 1), p, *(1,) * (x.ndim - axis - 1)
    return jnp.where(there_bp.reshape(shape), picked, jnp.asarray(empty, x.dtype))


def _bounds(x_bt: Any, size: int) -> Bounds:
    blocks = x_bt.reshape(x_bt.shape[0], -1, size)
    return blocks.min(axis=2), blocks.max(axis=2)


def _pairs(queries_bt: Any, keys_bs: Any, sizes: tuple[int, int]) -> tuple[Bounds, Bounds]:
    """The bounds of the blocks of queries (b, n, 1) and of keys (b, 1, m)."""
    i, j = _bounds(queries_bt, sizes[0]), _bounds(keys_bs, sizes[1])
    return (i[0][:, :, None], i[1][:, :, None]), (j[0][:, None], j[1][:, None])


def _touching(mask: Mask, i: Bounds, j: Bounds) -> Any:
    """Where the pattern touches, (b, n, m); with seeds (b, d, n, m)."""
    pattern: Any = mask.pattern
    if mask.seeds_d is None:
        return pattern.touches(i, j)
    return jax.vmap(lambda seed: pattern.seeded(seed).touches(i, j), out_axes=1)(mask.seeds_d)


def _first(xp: Any, seen: Any, width: int) -> tuple[Any, Any]:
    """The columns where a row is True, then others, `width` in all, and how many are True."""
    return xp.argsort(~seen, axis=1, stable=True)[:, :width], seen.sum(axis=1)
