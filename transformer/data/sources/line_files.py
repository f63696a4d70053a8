"""Files of the user with one record per line: JSON lines, tab-separated columns, two aligned files."""

import functools
import re
from abc import abstractmethod
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.data.disk_cache import digest
from transformer.data.sources.base import SPLITS, Options, belong, check_text, key_of
from transformer.data.sources.files import Files, matching
from transformer.errors import UserError
from transformer.json_text import parse_json


class LineFiles(Files):
    """One record per line, without empty lines.

    Records are split by their fields `Options.key`, or by the whole line (see `belong`).
    """

    def __len__(self) -> int:
        return len(self._ranges)

    def place(self, index: int) -> str:
        """The file of a record and its line."""
        file, start, _ = self._ranges[index].tolist()
        return self._place(file, start)

    @functools.cached_property
    def _ranges(self) -> np.ndarray:
        found = array("q")
        for file, size in enumerate(self._sizes):
            data, start = self._map(file) if size else b"", self._first(file)
            while start < size:
                end = data.find(b"\n", start) + 1 or size
                if data[start:end].strip():
                    found.extend((file, start, end))
                start = end
        ranges = np.array(found, np.int64).reshape(-1, 3)
        return (
            ranges[belong(self._split, map(self._key, ranges.tolist()))] if self._options.divide else ranges
        )

    def _key(self, at: Sequence[int]) -> bytes:
        """The key by which a line is assigned to a split."""
        file, start, end = at
        if not self._options.key:
            return self._map(file)[start:end].strip()
        return key_of(self._read(file, start, end), self._options.key, self._place(file, start))

    @abstractmethod
    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        """The record of a line."""

    def _first(self, file: int) -> int:
        """The position of the first record of a file."""
        return self._begin(file)

    def _field(self, record: dict[str, Any], file: int, start: int) -> Any:
        text = record.get(self.field)
        if not self._options.is_read(text):
            found = ", ".join(record) or "none"
            kind = "null" if text is None else type(text).__name__
            problem = f"{kind}, not text, in" if self.field in record else "no field"
            raise UserError(f"{self._place(file, start)}: {problem} {self.field!r}; fields there: {found}")
        return text


class JsonLines(LineFiles):
    """`jsonl:GLOB`: one JSON object per line.

    Raises:
      UserError: no such file, nothing in it, or (when read) a line that is not a JSON object with text there.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("jsonl", pattern, split, options)

    def __getitem__(self, index: int) -> dict[str, Any]:
        file, start, end = self._ranges[index].tolist()
        record = self._read(file, start, end)
        if self.field in record:
            record[self.field] = self._options.as_text(record[self.field])
        if isinstance(value := self._field(record, file, start), str):
            check_text(value, self._place(file, start), self.field)
        self._options.check_unread(record, self._place(file, start))
        return record

    def alternatives(self, index: int) -> list[str]:
        """The text of one record, or all of its list."""
        value = self._read(*self._ranges[index].tolist()).get(self.field)
        return self._options.alternatives(value) or [self.text(index)]

    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        try:
            record = parse_json(self._decode(file, start, end))
        except UserError:  # not UTF-8
            raise
        except ValueError as error:
            said = getattr(error, "msg", error)
            raise UserError(f"{self._place(file, start)}: not JSON ({said})") from None
        if not isinstance(record, dict):
            raise UserError(f"{self._place(file, start)}: {type(record).__name__}; expected a JSON object")
        return record


class Columns(LineFiles):
    """`tsv:GLOB`: one record per line, with tab-separated, unquoted columns.

    A first line that names every field in use is a header. Without a header the columns are named source,
    target, 3, 4 ... Of several files some may lack a header if that does not change the column of a field.

    Raises:
      UserError: no such file, an empty file, or (when read) a first line that names only some of the fields,
        or a line without the column.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("tsv", pattern, split, options)
        self.identity = digest(self.identity, options.asked)

    def __getitem__(self, index: int) -> dict[str, Any]:
        file, start, end = self._ranges[index].tolist()
        record = self._read(file, start, end)
        self._field(record, file, start)
        return record

    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        columns = self._decode(file, start, end).rstrip("\r\n").split("\t")
        names = self._headers[file] or _unnamed(len(columns))
        missing = [name for name in (self.field, *self._options.key) if name in names[len(columns) :]]
        if missing:
            wanted = names.index(missing[0]) + 1
            raise UserError(
                f"{self._place(file, start)}: {len(columns)} columns; {missing[0]!r} is column {wanted}"
            )
        return dict(zip(names, columns, strict=False))

    @functools.cached_property
    def _headers(self) -> list[tuple[str, ...]]:
        """The column names of each file, () without a header."""
        headers = [self._header(file) if size else () for file, size in enumerate(self._sizes)]
        first = next((file for file, names in enumerate(headers) if names), None)
        if first is not None:
            unnamed = _unnamed(len(headers[first]))
            moved = [name for name in self._options.asked if headers[first].index(name) != _at(name, unnamed)]
            for file, names in enumerate(headers):
                if not names and self._sizes[file] and moved:
                    raise UserError(
                        f"{self._files[file]}:1 is no header, but {self._files[first]} has one, with "
                        f"{moved[0]!r} in column {headers[first].index(moved[0]) + 1}: give each file its own"
                    )
        return headers

    def _header(self, file: int) -> tuple[str, ...]:
        names = tuple(self._decode(file, self._begin(file), self._second(file)).rstrip("\r\n").split("\t"))
        asked, there = self._options.asked, ", ".join(names)
        if missing := [name for name in asked if name not in names]:
            alike = {_bare(name) for name in names}
            if any(_bare(name) in alike for name in asked):
                raise UserError(
                    f"{self._files[file]}:1 looks like a header, but has no column {missing[0]!r}; columns "
                    f"there: {there}"
                )
            return ()
        if twice := [name for name in asked if names.count(name) > 1]:
            raise UserError(f"{self._files[file]}:1 names {twice[0]!r} twice; columns there: {there}")
        return names

    def _second(self, file: int) -> int:
        """The position of the second line of a file."""
        return self._map(file).find(b"\n") + 1 or self._sizes[file]

    def _first(self, file: int) -> int:
        return self._second(file) if self._headers[file] else self._begin(file)


def _unnamed(count: int) -> tuple[str, ...]:
    """The names of columns without a header."""
    return ("source", "target", *map(str, range(3, count + 1)))


def _at(name: str, names: Sequence[str]) -> int | None:
    return names.index(name) if name in names else None


def _bare(name: str) -> str:
    """The name of a column without quotes, spaces and byte-order mark."""
    return name.strip(' "\ufeff').casefold()


class Aligned(Files):
    """`aligned:SOURCE,TARGET`: two text files, where line i of one is the translation of line i of the other.

    Records are {"source": line, "target": line}, including empty lines, split by position, 90/5/5.

    Raises:
      UserError: not two files, unequal numbers of lines, or (when read) text that is not UTF-8.
    """

    def __init__(self, argument: str, split: str, options: Options) -> None:
        halves = [(argument[:i], argument[i + 1 :]) for i, letter in enumerate(argument) if letter == ","]
        if len(halves) > 1:  # commas in the names of files
            halves = [both for both in halves if all(map(matching, both))]
        if len(halves) != 1:
            raise UserError(f"aligned:{argument}: expected two files, aligned:SOURCE,TARGET")
        if options.field not in ("source", "target"):
            raise UserError(f"aligned:{argument}: no field {options.field!r}; fields there: source, target")
        super().__init__("aligned", argument, split, options, halves[0])
        self.identity = digest(self.identity, "without byte-order marks")
        if len(self._files) != 2:
            raise UserError(f"aligned:{argument}: {len(self._files)} files; expected two")

    def __len__(self) -> int:
        first, last = self._bounds
        return last - first

    def __getitem__(self, index: int) -> dict[str, Any]:
        first, last = self._bounds
        number = range(first, last)[index]
        lines = (
            self._decode(file, int(ends[number - 1]) if number else self._begin(file), int(ends[number]))
            for file, ends in enumerate(self._ends)
        )
        return {name: line.rstrip("\r\n") for name, line in zip(("source", "target"), lines, strict=True)}

    @functools.cached_property
    def _ends(self) -> list[np.ndarray]:
        ends = []
        for file, size in enumerate(self._sizes):
            found = array(
                "q", (match.end() for match in re.finditer(rb"\n", self._map(file) if size else b""))
            )
            if size and (not found or found[-1] < size):
                found.append(size)
            ends.append(np.frombuffer(found, np.int64) if found else np.empty(0, np.int64))
        if len(ends[0]) != len(ends[1]):
            counts = " and ".join(
                f"{path} has {len(found)} lines" for path, found in zip(self._files, ends, strict=True)
            )
            raise UserError(f"{counts}; they must have as many as each other")
        return ends

    @functools.cached_property
    def _bounds(self) -> tuple[int, int]:
        low, high = SPLITS[self._split] if self._options.divide else (0.0, 1.0)
        count = len(self._ends[0])
        return int(low * count), int(high * count)
