"""Comma-separated values."""

import csv
import functools
import io
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transformer.data.sources.base import PIECE, Options, key_of
from transformer.data.sources.line_files import LineFiles
from transformer.errors import UserError

SEPARATORS = ",\t;"
"""What may separate values: a tab where Excel or pandas are asked for it, a semicolon where numbers have the
comma."""

LONGEST = 2**31 - 1
"""Characters of the longest value: the most that `csv.field_size_limit` takes on every platform."""


class CommaSeparated(LineFiles):
    """`csv:GLOB`, whose first line names the columns, separated by one of `SEPARATORS`; quoted values may
    have these, quotes ("") and line breaks.

    Raises:
      UserError: no such file, no such column, or (when read) a row with more or fewer values than columns,
        or text that is not UTF-8.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("csv", pattern, split, options)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._read(*self._found[index].tolist())

    def _find(self) -> tuple[np.ndarray, Mapping[str, int]]:
        found = [self._records(file) for file in range(len(self._files))]
        lines = sum(each.count(None) for each in found)
        records = [[file, *each] for file, ranges in enumerate(found) for each in ranges if each]
        return np.array(records, np.int64).reshape(-1, 3), {"empty line": lines}

    def _records(self, file: int) -> list[tuple[int, int] | None]:
        """The start and the end of each row of a file after the first; None for an empty line."""
        names, ends, found = self._names[file], self._line_ends(file).tolist(), []
        for first, last, values in self._all_rows(file):
            if len(values) not in (0, len(names)):
                problem = f"{len(values)} values; the first line names {len(names)}"
                raise UserError(f"{self._files[file]}:{first}: {problem}")
            found.append((ends[first - 2] if first > 1 else 0, ends[last - 1]) if values else None)
        return found[1:]

    def _keys(self, found: np.ndarray) -> Iterator[bytes]:
        for file, names in enumerate(self._names):
            for first, _, values in itertools.islice(self._all_rows(file), 1, None):
                if values:
                    record = dict(zip(names, values, strict=True))
                    place = functools.partial("{}:{}".format, self._files[file], first)
                    yield key_of(record, self._options.key or names, place)

    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        text = io.StringIO(self._decode(file, start, end), newline="\n")
        values = next(csv.reader(text, delimiter=self._separators[file]))
        return dict(zip(self._names[file], values, strict=True))

    @functools.cached_property
    def _separators(self) -> list[str]:
        """What separates the values of each file: the first of `SEPARATORS` by which its first line names
        every field in use, by default a comma."""
        return [self._separator(file) if size else SEPARATORS[0] for file, size in enumerate(self._sizes)]

    def _separator(self, file: int) -> str:
        end, asked = int(self._line_ends(file)[0]), {*self._options.asked}
        line = self._decode(file, self._begin(file), end)
        named = (mark for mark in SEPARATORS if asked <= {*next(csv.reader([line], delimiter=mark), [])})
        return next(named, SEPARATORS[0])

    @functools.cached_property
    def _names(self) -> list[list[str]]:
        """The names of the columns of each file."""
        found = []
        for file, path in enumerate(self._files):
            _, _, names = next(self._all_rows(file), (1, 1, []))
            for name in self._options.asked:
                if names.count(name) != 1:
                    problem = f"{name!r} twice" if name in names else f"no column {name!r}"
                    raise UserError(f"{path}:1: {problem}; columns there: {', '.join(names) or 'none'}")
            found.append(names)
        return found

    def _all_rows(self, file: int) -> Iterator[tuple[int, int, list[str]]]:
        """The first and the last line, and the values, of each row of a file."""
        # The limit is of the whole process, at first 131,072. It is only raised, to one number, and never set
        # back: a reader in another thread may be in the middle of a longer text.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
        first = 1  # the line at which the row begins
        reader = csv.reader(self._text(file), strict=True, delimiter=self._separators[file])
        try:
            for values in reader:
                yield first, reader.line_num, values
                first = reader.line_num + 1
        except csv.Error as error:
            problem = "a quote that is never closed" if "end of data" in str(error) else str(error)
            raise UserError(
                f"{self._files[file]}:{first}: {problem}, in the record that begins here"
            ) from None

    def _text(self, file: int) -> Iterator[str]:
        """The lines of a file, decoded some `PIECE` at a time."""
        start, end = self._begin(file), self._sizes[file]
        while start < end:
            cut = self._map(file).find(b"\n", start + PIECE, end) + 1 or end
            yield from io.StringIO(self._decode(file, start, cut), newline="\n")
            start = cut
