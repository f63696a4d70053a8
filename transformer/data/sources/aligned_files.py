"""Two files of the user with one record in each line of both."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.data.cache.disk_cache import digest
from transformer.data.sources.base import SPLITS
from transformer.data.sources.files import Files, matching, stripped
from transformer.data.sources.options import Options
from transformer.data.sources.record_splits import belong, shares
from transformer.errors import UserError

SIDES = ("source", "target")
"""The fields of aligned files."""


class Aligned(Files):
    """`aligned:SOURCE,TARGET`: two text files, where line i of one is the translation of line i of the other.

    Records are {"source": line, "target": line}, including empty lines. They are split by their fields
    `Options.key`, or by both, or with `split_by` `PLACE` by position, 90/5/5.

    Raises:
      UserError: not two files, unequal numbers of lines, or (when read) text that is not UTF-8.
    """

    def __init__(self, argument: str, split: str, options: Options) -> None:
        halves = [(argument[:i], argument[i + 1 :]) for i, letter in enumerate(argument) if letter == ","]
        if len(halves) > 1:  # commas in the names of files
            halves = [pair for pair in halves if all(map(matching, pair))]
        if len(halves) != 1:
            raise UserError(f"aligned:{argument}: expected two files, aligned:SOURCE,TARGET")
        for name in (options.field, *([] if options.by_place else options.key)):
            if name not in SIDES:
                raise UserError(f"aligned:{argument}: no field {name!r}; fields there: source, target")
        super().__init__("aligned", argument, split, options, halves[0])
        self.identity = digest(self.identity, "without byte-order marks")
        if len(self._files) != 2:
            raise UserError(f"aligned:{argument}: {len(self._files)} files; expected two")

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = int(self._numbers[index])
        lines = (self._decode(file, *self._span(file, number)) for file in (0, 1))
        return {name: line.rstrip("\r\n") for name, line in zip(SIDES, lines, strict=True)}

    def _span(self, file: int, number: int) -> tuple[int, int]:
        ends = self._ends[file]
        return int(ends[number - 1]) if number else self._begin(file), int(ends[number])

    @functools.cached_property
    def _ends(self) -> list[np.ndarray]:
        ends = [self._line_ends(file) for file in range(2)]
        if len(ends[0]) != len(ends[1]):
            counts = " and ".join(
                f"{path} has {len(lines)} lines" for path, lines in zip(self._files, ends, strict=True)
            )
            raise UserError(f"{counts}; they must have as many as each other")
        return ends

    @functools.cached_property
    def _numbers(self) -> Sequence[int]:
        """The lines of the split."""
        options, count = self._options, len(self._ends[0])
        low, high = SPLITS[self._split] if options.divide and options.by_place else (0.0, 1.0)
        every = range(int(low * count), int(high * count))
        if not options.divide or options.by_place:
            return every
        files = [SIDES.index(name) for name in options.key or SIDES] if count else []
        keys = (stripped(self._map(file), self._begin(file), self._ends[file]) for file in files)
        of_split_n = belong(self._split, shares(map(b"\0".join, zip(*keys, strict=True))))
        return np.flatnonzero(of_split_n).tolist()
