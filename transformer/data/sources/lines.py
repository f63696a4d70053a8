"""The user's own records, one a line: JSON, columns, and two files side by side."""

import functools
import json
import re
from array import array
from typing import Any

import numpy as np

from transformer.data.sources.base import SPLITS, Options, falls_in
from transformer.data.sources.files import MANY, Files
from transformer.errors import UserError


class LineFiles(Files):
    """One record a line; empty lines are none.

    With `MANY` lines or more, a hash of each line says in which split it is, so that repeated lines stay
    together; fewer are divided by position, 90/5/5.
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
        low, high = SPLITS[self._split]
        ranges = np.array(found, np.int64).reshape(-1, 3)
        if self._options.divide and len(ranges) >= MANY:
            lines = (self._map(file)[start:end].strip() for file, start, end in ranges)
            ranges = ranges[[falls_in(self._split, line) for line in lines]]
        elif self._options.divide:
            ranges = ranges[int(low * len(ranges)) : int(high * len(ranges))]
        return ranges

    def _first(self, file: int) -> int:
        """Where the first record of a file begins."""
        return 0

    def _field(self, record: dict[str, Any], file: int, start: int) -> str:
        text = record.get(self.field)
        if not isinstance(text, str):
            found = ", ".join(record) or "none"
            problem = "no field" if text is None else f"{type(text).__name__}, not text, in"
            raise UserError(f"{self._place(file, start)}: {problem} {self.field!r}; fields there: {found}")
        return text


class JsonLines(LineFiles):
    """One JSON object a line, `jsonl:GLOB`, with the text under a field.

    Raises:
      UserError: no such file, nothing in it, or (when read) a line that is not a JSON object with text there.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("jsonl", pattern, split, options)

    def __getitem__(self, index: int) -> dict[str, Any]:
        file, start, end = self._ranges[index].tolist()
        try:
            record = json.loads(self._decode(file, start, end))
        except json.JSONDecodeError as error:
            raise UserError(f"{self._place(file, start)}: not JSON ({error.msg})") from None
        if not isinstance(record, dict):
            raise UserError(f"{self._place(file, start)}: {type(record).__name__}; expected a JSON object")
        value = record.get(self.field)
        if self._options.numbers and isinstance(value, int | float):
            record[self.field] = json.dumps(value)
        try:
            self._field(record, file, start).encode()
        except UnicodeEncodeError:
            problem = f"half of a surrogate pair in {self.field!r}"
            raise UserError(f"{self._place(file, start)}: {problem}") from None
        return record


class Columns(LineFiles):
    """One record a line, `tsv:GLOB`, its columns separated by tabs and unquoted.

    A first line in which the field is a column's name is a header. Without one the columns are called source,
    target, and from there on 3, 4 ...

    Raises:
      UserError: no such file, nothing in it, or (when read) a line without that column.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("tsv", pattern, split, options)
        self._names = functools.lru_cache(64)(self._header)

    def __getitem__(self, index: int) -> dict[str, Any]:
        file, start, end = self._ranges[index].tolist()
        columns = self._decode(file, start, end).rstrip("\r\n").split("\t")
        names = self._names(file) or ("source", "target", *map(str, range(3, len(columns) + 1)))
        if len(columns) < len(names) and self.field in names[len(columns) :]:
            wanted = names.index(self.field) + 1
            raise UserError(
                f"{self._place(file, start)}: {len(columns)} columns; {self.field!r} is column {wanted}"
            )
        record = dict(zip(names, columns, strict=False))
        self._field(record, file, start)
        return record

    def _header(self, file: int) -> tuple[str, ...]:
        end = self._map(file).find(b"\n") + 1 or self._sizes[file]
        names = tuple(self._decode(file, 0, end).rstrip("\r\n").split("\t"))
        return names if self.field in names else ()

    def _first(self, file: int) -> int:
        return self._map(file).find(b"\n") + 1 or self._sizes[file] if self._names(file) else 0


class Aligned(Files):
    """Two text files, `aligned:SOURCE,TARGET`, line i of one belonging to line i of the other.

    Records are {"source": line, "target": line}, empty lines among them, and divided by position, 90/5/5.

    Raises:
      UserError: not two files, unequal numbers of lines, or (when read) text that is not UTF-8.
    """

    def __init__(self, argument: str, split: str, options: Options) -> None:
        parts = argument.split(",")
        if len(parts) != 2:
            raise UserError(f"aligned:{argument}: expected two files, aligned:SOURCE,TARGET")
        if options.field not in ("source", "target"):
            raise UserError(f"aligned:{argument}: no field {options.field!r}; fields there: source, target")
        super().__init__("aligned", argument, split, options, parts)
        if len(self._files) != 2:
            raise UserError(f"aligned:{argument}: {len(self._files)} files; expected two")

    def __len__(self) -> int:
        first, last = self._bounds
        return last - first

    def __getitem__(self, index: int) -> dict[str, Any]:
        first, last = self._bounds
        number = range(first, last)[index]
        lines = (
            self._decode(file, int(self._ends[file][number - 1]) if number else 0, int(ends[number]))
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
