"""Comma-separated values."""

import csv
import functools
from collections.abc import Iterator
from typing import Any

from transformer.data.sources.base import Options, belong, key_of
from transformer.data.sources.files import Files
from transformer.errors import UserError

LONGEST = 2**31 - 1
"""Characters of the longest value: the most that `csv.field_size_limit` takes on every platform."""


class CommaSeparated(Files):
    """`csv:GLOB`, whose first line names the columns; quoted values may have commas, quotes ("") and line
    breaks.

    Splits are as in `LineFiles`. The whole table is in memory.

    Raises:
      UserError: no such file, no such column, or (when read) a row with more or fewer values than columns,
        or text that is not UTF-8.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("csv", pattern, split, options)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index][1]

    def place(self, index: int) -> str:
        """The file of a record and the line at which it ends."""
        return self._rows[index][0]

    @functools.cached_property
    def _rows(self) -> list[tuple[str, dict[str, str]]]:
        rows = [row for file in range(len(self._files)) for row in self._read(file)]
        if not self._options.divide:
            return rows
        keys = (key_of(row, self._options.key or list(row), place) for place, row in rows)
        return [row for row, mine in zip(rows, belong(self._split, keys), strict=True) if mine]

    def _read(self, file: int) -> Iterator[tuple[str, dict[str, str]]]:
        size, path = self._sizes[file], self._files[file]
        text = self._decode(file, 0, size) if size else ""
        # The limit is of the whole process, at first 131,072. It is only raised, to one number, and never set
        # back: a reader in another thread may be in the middle of a longer text.
        csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
        first = 1  # the line at which the record begins
        reader = csv.reader((line + "\n" for line in text.removeprefix("\ufeff").split("\n")), strict=True)
        try:
            names = next(reader, [])
            for name in self._options.asked:
                if names.count(name) != 1:
                    problem = f"{name!r} twice" if name in names else f"no column {name!r}"
                    raise UserError(f"{path}:1: {problem}; columns there: {', '.join(names) or 'none'}")
            first = reader.line_num + 1
            for values in reader:
                if len(values) != len(names) and values:
                    where = f"{path}:{reader.line_num}"
                    raise UserError(f"{where}: {len(values)} values; the first line names {len(names)}")
                if values:
                    yield f"{path}:{reader.line_num}", dict(zip(names, values, strict=True))
                first = reader.line_num + 1
        except csv.Error as error:
            problem = "a quote that is never closed" if "end of data" in str(error) else str(error)
            raise UserError(f"{path}:{first}: {problem}, in the record that begins here") from None
