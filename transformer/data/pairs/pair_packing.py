"""Packing of pairs: several sources in one row, and their targets in another."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transformer.data.cache.token_cache import TokenCache
from transformer.data.loader import Rows
from transformer.data.sources.base import tallied
from transformer.errors import UserError

OPEN = 64
"""The number of open rows in first-fit packing: more rows mean less padding and slower packing."""

TRIES = 8
"""The orders in which the pairs of an epoch are packed until they fit into the rows that it has."""


class PackedPairs(Rows):
    """Packed rows of pairs, by first fit of source and target.

    Pair k of a row (k = 1, 2, ...) has segment k on both sides; 0 is padding. A row is a dictionary of
    arrays, (s,) for the source and (t,) for the target:

    - `source`, `source_segments`, `source_positions`: int32, the source tokens and `[eos]`;
    - `tokens`: int32, the decoder input: `[bos]` and the target tokens;
    - `targets`: int32, the decoder output: the target tokens and `[eos]`;
    - `weights`: float32, 1 where there is a target; `segments`, `positions`: int32;
    - `bytes`: int32, the number of UTF-8 bytes of each target token.

    The order of pairs depends on the seed. Pairs with an empty side are left out. Pairs longer than a row are
    truncated, left out or an error, by `too_long`. `tally` counts them. A truncated source keeps its `[eos]`;
    a truncated target has none, so that the model does not learn to stop there.

    Raises:
      UserError: a pair that is too long, with `too_long` "refuse"; no pair is left.
    """

    def __init__(
        self,
        sources: TokenCache,
        targets: TokenCache,
        source_length: int,
        target_length: int,
        too_long: str = "cut",
        *,
        seed: int = 0,
    ) -> None:
        """The two caches have the sides of the same pairs in the same order; `seed` is that of the order in
        which they are packed."""
        self.sources, self.targets = sources, targets
        self.source_length, self.target_length = source_length, target_length
        most = np.array([source_length, target_length])
        # A side is `[bos] + tokens + [eos]` without the first or without the last token.
        lengths_n2 = np.stack([np.diff(sources.offsets), np.diff(targets.offsets)], axis=1) - 1
        empty_n = (lengths_n2 < 2).any(axis=1)
        long_n = (lengths_n2 > most).any(axis=1) & ~empty_n
        if too_long == "refuse" and long_n.any():
            first = int(np.flatnonzero(long_n)[0])
            s, t = lengths_n2[first]
            raise UserError(
                f"pair {first + 1} has {s} source and {t} target tokens; data.source_length is "
                f"{source_length} and data.target_length {target_length}"
            )
        left_out_n = empty_n | long_n if too_long == "skip" else empty_n
        self._kept, self._seed = np.flatnonzero(~left_out_n), seed
        self.pairs = len(self._kept)
        if not self.pairs:
            raise UserError(f"no pair is left of {len(lengths_n2)}: each is empty or too long")
        long = "too long" if too_long == "skip" else "truncated"
        self.tally = tallied(self.pairs, {"one side is empty": empty_n.sum(), long: long_n.sum()}, "packed")
        self._lengths_n2 = np.minimum(lengths_n2, most)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def padding(self) -> float:
        """The share of padding among all tokens."""
        pairs = np.concatenate(self._rows)
        return 1 - self._lengths_n2[pairs].sum() / (len(self) * (self.source_length + self.target_length))

    @functools.cached_property
    def _rows(self) -> list[np.ndarray]:
        """The pairs of each row."""
        return pack(self._lengths_n2, self._kept, [self.source_length, self.target_length], self._seed)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        pair_n, row_n, segment_n, start_n2 = self._chosen(rows, self._lengths_n2)
        source_n, target_n = self._lengths_n2[pair_n].T
        first_m = np.repeat(self.sources.offsets[pair_n] + 1, source_n) + ranges(source_n)
        first_m[np.cumsum(source_n) - 1] = self.sources.offsets[pair_n + 1] - 1  # `[eos]`, also of a part
        second_m = np.repeat(self.targets.offsets[pair_n], target_n) + ranges(target_n)
        sources = {
            "source": self.sources.tokens[first_m],
            "source_segments": np.repeat(segment_n, source_n),
            "source_positions": ranges(source_n),
        }
        targets = {
            "tokens": self.targets.tokens[second_m],
            "targets": self.targets.tokens[second_m + 1],
            "segments": np.repeat(segment_n, target_n),
            "positions": ranges(target_n),
            "bytes": self.targets.num_bytes[second_m + 1],
        }
        batch = laid_out(sources, row_n, start_n2[:, 0], source_n, (len(rows), self.source_length))
        batch |= laid_out(targets, row_n, start_n2[:, 1], target_n, (len(rows), self.target_length))
        return batch | {"weights": (batch["segments"] > 0).astype(np.float32)}

    def _chosen(
        self, rows: np.ndarray, lengths_pc: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of all pairs in these rows: their numbers (n,), the places of their rows in `rows`, their numbers
        in the rows, counted from 1, and where they start there (n, c), by the lengths of all pairs (p, c)."""
        chosen = [self._rows[row] if row >= 0 else np.zeros(0, int) for row in rows]
        count_r, pair_n = np.array([len(pairs) for pairs in chosen]), np.concatenate(chosen)
        before_nc = np.cumsum(lengths_pc[pair_n], axis=0) - lengths_pc[pair_n]
        first_n = np.repeat(np.cumsum(count_r) - count_r, count_r)
        row_n, segment_n = np.repeat(np.arange(len(rows)), count_r), ranges(count_r) + 1
        return pair_n, row_n, segment_n, before_nc - before_nc[first_n]

    def documents(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each of these rows the numbers, from 0, of the pairs of its segments."""
        return [self._rows[row] if row >= 0 else np.zeros(0, int) for row in rows]


class JoinedPairs(PackedPairs):
    """Packed rows of pairs for a decoder: `[bos] + source + [eos] + target + [eos]` is one sequence.

    Rows are as in `PackedRows`, of `source_length + target_length` tokens, with one segment per pair. Only
    the targets and their `[eos]` have weight 1; with `loss_on` "all" all tokens have but the `[eos]` of a
    truncated source.
    """

    def __init__(self, *arguments, loss_on: str = "target", **options) -> None:
        """Arguments and `options` as for `PackedPairs`."""
        super().__init__(*arguments, **options)
        self.loss_on = loss_on

    @functools.cached_property
    def _rows(self) -> list[np.ndarray]:
        both_n1 = self._lengths_n2.sum(axis=1, keepdims=True)
        return pack(both_n1, self._kept, [self.source_length + self.target_length], self._seed)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        both_p1 = self._lengths_n2.sum(axis=1, keepdims=True)
        pair_n, row_n, segment_n, start_n1 = self._chosen(rows, both_p1)
        length_n = both_p1[pair_n, 0]
        step_m = ranges(length_n)
        pair_m, source_m = (np.repeat(each_n, length_n) for each_n in (pair_n, self._lengths_n2[pair_n, 0]))
        begin_m, end_m = self.sources.offsets[pair_m], self.sources.offsets[pair_m + 1]

        def read(name: str, later: int) -> np.ndarray:
            """The values of the caches at each place, or at the one after it."""
            here_m = step_m + later
            first_m = np.where(here_m < source_m, begin_m + here_m, end_m - 1)
            second_m = self.targets.offsets[pair_m] + np.maximum(here_m - source_m, 0)
            first, second = getattr(self.sources, name), getattr(self.targets, name)
            return np.where(here_m <= source_m, first[first_m], second[second_m])

        whole_m = end_m - begin_m == source_m + 1
        counts_m = ((step_m >= source_m) | (self.loss_on == "all")) & (whole_m | (step_m != source_m - 1))
        values = {"tokens": read("tokens", 0), "targets": read("tokens", 1), "positions": step_m}
        values |= {"segments": np.repeat(segment_n, length_n), "bytes": read("num_bytes", 1) * counts_m}
        shape = len(rows), self.source_length + self.target_length
        batch = laid_out(values | {"weights": counts_m}, row_n, start_n1[:, 0], length_n, shape)
        return batch | {"weights": batch["weights"].astype(np.float32)}


class RepackedPairs:
    """The rows of pairs for training: in each epoch they are packed in another order, and with BPE dropout of
    other segmentations. What is not about an epoch is that of the `first` rows."""

    def __init__(self, first: Any, pack_epoch: Callable[[int, int], Any], *, most: int | None = None) -> None:
        """`pack_epoch(epoch, seed)` packs the rows of an epoch in an order by the seed. All epochs have
        `most` rows (None: as many as the first), filled up with rows of padding."""
        self._first, self._pack_epoch, self._most = first, pack_epoch, most or len(first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._first, name)

    def __len__(self) -> int:
        return self._most

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices in epoch 0."""
        return self.batch_of_epochs(rows, np.zeros_like(rows))

    def batch_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices in these epochs, stacked; index -1 is a row of padding."""
        parts, back = self._by_epoch(rows, epochs)
        batches = [packed.batch(own) for packed, own in parts]
        return {name: np.concatenate([part[name] for part in batches])[back] for name in batches[0]}

    def documents_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> list[np.ndarray]:
        """As `PackedPairs.documents`, in these epochs."""
        parts, back = self._by_epoch(rows, epochs)
        documents = [pairs for packed, own in parts for pairs in packed.documents(own)]
        return [documents[place] for place in back]

    def _by_epoch(
        self, rows: np.ndarray, epochs: np.ndarray
    ) -> tuple[list[tuple[Any, np.ndarray]], np.ndarray]:
        """The packed rows of each epoch with the indices that are read of them, and the places of `rows` in
        the rows of all of them."""
        parts, order = [], []
        for epoch in np.unique(epochs).tolist():
            packed, own = self.epoch(epoch), np.flatnonzero(epochs == epoch)
            parts.append((packed, np.where(rows[own] < len(packed), rows[own], -1)))
            order.append(own)
        return parts, np.argsort(np.concatenate(order))

    @functools.lru_cache(2)  # noqa: B019 (a batch may have rows of two epochs)
    def epoch(self, epoch: int) -> Any:
        """The rows of an epoch: the first of `TRIES` orders that needs no more rows than there are, or the
        rows that need no dropout, in the first order."""
        for seed in range(TRIES * epoch, TRIES * (epoch + 1)):
            packed = self._pack_epoch(epoch, seed)
            if len(packed) <= len(self):
                return packed
        return self._first


def pack(lengths_n2: np.ndarray, pairs: np.ndarray, most: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    """Packs pairs into rows of at most `most` tokens on each side: first fit among `OPEN` open rows, in a
    random order by the seed."""
    order = np.random.default_rng(seed).permutation(pairs)
    room_o2 = np.zeros((OPEN, len(most)), np.int64)
    open_rows: list[list[int]] = [[] for _ in range(OPEN)]
    rows = []
    for pair, length in zip(order.tolist(), lengths_n2[order], strict=True):
        fits = (room_o2 >= length).all(axis=1)
        place = int(fits.argmax())
        if not fits[place]:
            place = int(room_o2.sum(axis=1).argmin())  # close the fullest row
            rows.append(open_rows[place])
            room_o2[place], open_rows[place] = most, []
        room_o2[place] -= length
        open_rows[place].append(pair)
    return [np.array(row) for row in rows + open_rows if row]


def ranges(length_n: np.ndarray) -> np.ndarray:
    """0, 1, ... below each of these lengths, one after another."""
    end_n = np.cumsum(length_n, dtype=np.int64)
    return np.arange(int(length_n.sum())) - np.repeat(end_n - length_n, length_n)


def laid_out(
    values: Mapping[str, np.ndarray],
    row_n: np.ndarray,
    start_n: np.ndarray,
    length_n: np.ndarray,
    shape: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Rows of this shape, int32, with the values of n texts, which follow one another, where each text starts
    in its row, and 0 elsewhere."""
    place_m = np.repeat(row_n * shape[1] + start_n, length_n) + ranges(length_n)
    batch = {name: np.zeros(shape, np.int32) for name in values}
    for name, values_m in values.items():
        batch[name].reshape(-1)[place_m] = values_m
    return batch
