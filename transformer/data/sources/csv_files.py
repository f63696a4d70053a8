"""Comma-separated values."""

import csv
import functools
import io
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from transformer.data.sources.line_files import BLOCK, named_columns
from transformer.data.sources.options import Options
from transformer.data.sources.record_files import Block, RecordFiles
from transformer.data.sources.record_splits import key_of, keys_of
from transformer.errors import UserError

SEPARATORS = ",\t;"
"""Separators of values: a tab where Excel or pandas are asked for it, a semicolon where numbers have the
comma."""

MAX_VALUE_CHARACTERS = 2**31 - 1
"""Characters of the longest value: the most that `csv.field_size_limit` takes on every platform."""


class CommaSeparated(RecordFiles):
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

    def _blocks(self, left_out: Counter[str]) -> Iterator[Block]:
        for file, names in enumerate(self._names):
            ends_n, line = self._line_ends(file), 0
            while line < len(ends_n):
                rows, stops = self._rows(file, line)
                stops_n = ends_n[np.array(stops) - 1]
                starts_n = np.append(self._start(file, line), stops_n)[:-1]
                rows_n3 = np.stack([np.full_like(stops_n, file), starts_n, stops_n], axis=1)
                there_n = np.array([bool(row) for row in rows])
                left_out["empty line"] += int((~there_n).sum())
                there_n[0] &= line > 0  # not the names of the columns
                rows = [*itertools.compress(rows, there_n)]
                yield rows_n3[there_n], functools.partial(self._keys_of, names, rows, rows_n3[there_n])
                line = stops[-1]

    def _keys_of(self, names: list[str], rows: list[list[str]], rows_n3: np.ndarray) -> Sequence[bytes]:
        columns = self._options.key or names
        if {*columns} <= {*names}:
            return keys_of(named_columns(rows, names, columns))
        file, start, _ = rows_n3[0].tolist()
        return [key_of(dict.fromkeys(names), columns, functools.partial(self._place, file, start))]

    def _rows(self, file: int, line: int) -> tuple[list[list[str]], Sequence[int]]:
        """The rows of a file from a line on, [] for an empty line, and the line after each."""
        ends_n, count = self._line_ends(file), len(self._names[file])
        start = self._start(file, line)
        stop = max(line + 1, int(np.searchsorted(ends_n, start + BLOCK)))
        try:
            rows = _rows_of_lines(self._decode(file, start, int(ends_n[stop - 1])), self._separators[file])
        except (csv.Error, UserError):  # of some row: read alone, the first such one is named
            rows = []
        if len(rows) == stop - line and {*map(len, rows)} <= {0, count}:
            return rows, range(line + 1, stop + 1)
        rows, stops = [], []
        for first, last, values in self._rows_one_by_one(file, line):
            if len(values) not in (0, count):
                problem = f"{len(values)} values; the first line names {count}"
                raise UserError(f"{self._files[file]}:{first}: {problem}")
            rows.append(values)
            stops.append(last)
            if last >= stop:
                break
        return rows, stops

    def _start(self, file: int, line: int) -> int:
        """The position where a line of a file, counted from 0, starts."""
        return int(self._line_ends(file)[line - 1]) if line else self._begin(file)

    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        text = io.StringIO(self._decode(file, start, end), newline="\n")
        values = next(csv.reader(text, delimiter=self._separators[file]))
        return dict(zip(self._names[file], values, strict=True))

    @functools.cached_property
    def _separators(self) -> list[str]:
        """The separator of each file: the first of `SEPARATORS` by which its first line names
        every field in use, by default a comma."""
        return [self._separator(file) if size else SEPARATORS[0] for file, size in enumerate(self._sizes)]

    def _separator(self, file: int) -> str:
        end, columns = int(self._line_ends(file)[0]), {*self._options.asked}
        line = self._decode(file, self._begin(file), end)
        marks = (mark for mark in SEPARATORS if columns <= {*next(csv.reader([line], delimiter=mark), [])})
        return next(marks, SEPARATORS[0])

    @functools.cached_property
    def _names(self) -> list[list[str]]:
        """The names of the columns of each file."""
        columns = []
        for file, path in enumerate(self._files):
            _, _, names = next(self._rows_one_by_one(file, 0), (1, 1, []))
            for name in self._options.asked:
                if names.count(name) != 1:
                    problem = f"{name!r} twice" if name in names else f"no column {name!r}"
                    raise UserError(f"{path}:1: {problem}; columns there: {', '.join(names) or 'none'}")
            columns.append(names)
        return columns

    def _rows_one_by_one(self, file: int, line: int) -> Iterator[tuple[int, int, list[str]]]:
        """The first and the last line, counted from 1, and the values of each row of a file from a line on,
        counted from 0."""
        # The limit is of the whole process, at first 131,072. It is only raised, to one number, and never set
        # back: a reader in another thread may be in the middle of a longer text.
        csv.field_size_limit(max(csv.field_size_limit(), MAX_VALUE_CHARACTERS))
        first = line + 1
        reader = csv.reader(self._text(file, line), strict=True, delimiter=self._separators[file])
        try:
            for values in reader:
                yield first, line + reader.line_num, values
                first = line + reader.line_num + 1
        except csv.Error as error:
            problem = "a quote that is never closed" if "end of data" in str(error) else str(error)
            raise UserError(
                f"{self._files[file]}:{first}: {problem}, in the record that starts here"
            ) from None

    def _text(self, file: int, line: int) -> Iterator[str]:
        """The lines of a file from one on."""
        ends_n, start = self._line_ends(file), self._start(file, line)
        for number in range(line, len(ends_n)):
            end = int(ends_n[number])
            yield self._decode(file, start, end)
            start = end


def _rows_of_lines(text: str, separator: str) -> list[list[str]]:
    """The rows of lines, fewer than lines if one of them has several; as `csv` reads them, but without quotes
    in less than half the time."""
    text = text.replace("\r\n", "\n")
    lines = text.removesuffix("\n").split("\n")
    if '"' in text or "\r" in text:
        return [*csv.reader(lines, strict=True, delimiter=separator)]
    return [line.split(separator) if line else [] for line in lines]
