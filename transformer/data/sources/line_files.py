"""Files of the user with one record per line: JSON lines, tab-separated columns."""

import functools
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.cache.disk_cache import digest
from transformer.data.sources.base import check_text
from transformer.data.sources.json_forms import add_nested, as_lines, is_array
from transformer.data.sources.options import Options
from transformer.data.sources.record_files import Block, RecordFiles
from transformer.data.sources.record_splits import key_of, keys_of
from transformer.errors import UserError
from transformer.json_text import parse_json, read_json_lines

BLOCK = 1 << 16
"""Bytes of a file whose records are read together: as much as is parsed within the processor's cache."""

BLANK = " \t\n\r\v\f"
"""White space as of `bytes.strip`."""


def named_columns(
    rows: Sequence[Sequence[str]], names: Sequence[str], fields: Iterable[str]
) -> list[tuple[str, ...]]:
    """The columns that are asked for of rows that have these columns.

    Raises:
      ValueError: a row has more or fewer columns.
      KeyError: there is no such column.
    """
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    return [columns[name] for name in fields]


class LineFiles(RecordFiles):
    """One record per line, without empty lines, found by its file, its start and its end."""

    def _blocks(self, left_out: Counter[str]) -> Iterator[Block]:
        for file in range(len(self._files)):
            lines_n3 = self._lines(file)
            empty = self._empty(lines_n3)
            left_out["empty line"] += len(empty)
            lines_n3 = np.delete(lines_n3, empty, axis=0)
            cuts = 1 + np.flatnonzero(np.diff(lines_n3[:, 1] // BLOCK))
            for block_n3 in np.split(lines_n3, cuts):
                yield block_n3, functools.partial(self._keys, block_n3)

    def _lines(self, file: int) -> np.ndarray:
        """The file, the start and the end (n, 3) of each line of a file that may be a record."""
        if not self._sizes[file]:
            return np.zeros((0, 3), np.int64)
        first, ends_n = self._first(file), self._line_ends(file)
        ends_n = ends_n[ends_n > first]
        return np.stack([np.full_like(ends_n, file), np.append(first, ends_n)[:-1], ends_n], axis=1)

    def _empty(self, lines_n3: np.ndarray) -> list[int]:
        """Which of the lines of a file are only white space."""
        if not len(lines_n3):
            return []
        data = self._map(int(lines_n3[0, 0]))
        begins_n = np.frombuffer(data, np.uint8)[lines_n3[:, 1]]
        possible = np.flatnonzero(np.isin(begins_n, np.frombuffer(b" \t\n\r\v\f", np.uint8)))
        return [i for i in possible.tolist() if not data[slice(*lines_n3[i, 1:].tolist())].strip()]

    def _keys(self, lines_n3: np.ndarray) -> Sequence[bytes]:
        """The keys of records of one file, whose lines follow each other but for empty ones."""
        names, deciding = self._options.key, self._options.deciding
        file, start, end = int(lines_n3[0, 0]), int(lines_n3[0, 1]), int(lines_n3[-1, 2])
        if not names:
            return [line for line in map(bytes.strip, self._map(file)[start:end].split(b"\n")) if line]
        try:
            return keys_of(self._values(file, self._decode(file, start, end), names), deciding)
        except (ValueError, LookupError, TypeError):  # of some line: read alone, the first such one is named
            return [
                key_of(self._read(*line), names, functools.partial(self._place, *line[:2]), deciding)
                for line in lines_n3.tolist()
            ]

    @abstractmethod
    def _values(self, file: int, text: str, names: Sequence[str]) -> Sequence[Sequence[Any]]:
        """The values of each of these fields in lines of a file. Any error if a line is not as it must be."""

    @abstractmethod
    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        """The record of a line."""

    def _first(self, file: int) -> int:
        """The position of the first record of a file."""
        return self._begin(file)

    def _field(self, record: dict[str, Any], file: int, start: int) -> Any:
        text = record.get(self.field)
        if not self._options.is_read(text):
            fields = ", ".join(record) or "none"
            kind = "null" if text is None else type(text).__name__
            problem = f"{kind}, not text, in" if self.field in record else "no field"
            raise UserError(f"{self._place(file, start)}: {problem} {self.field!r}; fields there: {fields}")
        return text


class JsonLines(LineFiles):
    """`jsonl:GLOB`: one JSON object per line, or a JSON array of objects. "a.b" is the field b of the object
    in the field a.

    Raises:
      UserError: no such file, nothing in it, or (when read) a line that is not a JSON object with text there.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("jsonl", pattern, split, options)
        self._nested = [name for name in {*options.asked, *options.key} if "." in name]

    def __getitem__(self, index: int) -> dict[str, Any]:
        file, start, end = self._found[index].tolist()
        record = self._read(file, start, end)
        if self.field in record:
            record[self.field] = self._options.as_text(record[self.field])
        place = functools.partial(self._place, file, start)
        if isinstance(value := self._field(record, file, start), str):
            check_text(value, place, self.field)
        self._options.check_unread(record, place)
        return record

    def alternatives(self, index: int) -> list[str]:
        """The text of one record, or all of its list."""
        value = self._read(*self._found[index].tolist()).get(self.field)
        return self._options.alternatives(value) or [self.text(index)]

    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        try:
            record = parse_json(text := self._decode(file, start, end))
        except UserError:  # not UTF-8
            raise
        except ValueError as error:
            reason = getattr(error, "msg", error)
            hint = "; `jq -c . FILE` writes an object in each line" if text.strip() == "{" else ""
            raise UserError(f"{self._place(file, start)}: not JSON ({reason}){hint}") from None
        if not isinstance(record, dict):
            raise UserError(f"{self._place(file, start)}: {type(record).__name__}; expected a JSON object")
        add_nested(record, self._nested)
        return record

    def _values(self, file: int, text: str, names: Sequence[str]) -> Sequence[Sequence[Any]]:
        records = parse_json(text, read_json_lines)
        for record in records if self._nested else ():
            add_nested(record, self._nested)
        return [[record[name] for record in records] for name in names]

    def _plain(self, file: int) -> Path:
        plain = super()._plain(file)
        return as_lines(plain, self._files[file], self._options.folder) if is_array(plain) else plain

    def _place(self, file: int, position: int) -> str:
        place = super()._place(file, position)
        return ": record ".join(place.rsplit(":", 1)) if is_array(super()._plain(file)) else place


class Columns(LineFiles):
    """`tsv:GLOB`: one record per line, with tab-separated columns. Quotes are text; only a column that is in
    quotes and has doubled quotes, as writers of tables write it, is read without them.

    A first line that names every field in use is a header. Without a header the columns are named source,
    target, 3, 4 ... Of several files some may lack a header if that does not change the column of a field.

    Raises:
      UserError: no such file, an empty file, or (when read) a first line that names only some of the fields,
        or a line with more or fewer columns than the first.
    """

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("tsv", pattern, split, options)
        self.identity = digest(self.identity, options.asked, "doubled quotes are read")

    def __getitem__(self, index: int) -> dict[str, Any]:
        file, start, end = self._found[index].tolist()
        record = self._read(file, start, end)
        self._field(record, file, start)
        return record

    def _read(self, file: int, start: int, end: int) -> dict[str, Any]:
        columns, names = _columns(self._decode(file, start, end)), self._names[file]
        if len(columns) != len(names):
            problem = f"{len(columns)} columns; the first line has {len(names)}"
            hint = "; a tab in a text starts a column: replace it, or read a table with quotes by csv:"
            more = hint if len(columns) > len(names) else ""
            raise UserError(f"{self._place(file, start)}: {problem}{more}")
        return dict(zip(names, columns, strict=True))

    def _values(self, file: int, text: str, names: Sequence[str]) -> Sequence[Sequence[Any]]:
        rows = [_columns(line) for line in text.split("\n") if line.strip(BLANK)]
        return named_columns(rows, self._names[file], names)

    @functools.cached_property
    def _names(self) -> list[tuple[str, ...]]:
        """The names of the columns of each file."""
        pairs = zip(self._headers, self._first_lines, strict=True)
        return [header or _unnamed(len(columns)) for header, columns in pairs]

    @functools.cached_property
    def _first_lines(self) -> list[Sequence[str]]:
        """The columns of the first line of each file."""
        sizes = enumerate(self._sizes)
        return [
            _columns(self._decode(i, self._begin(i), self._second(i))) if size else () for i, size in sizes
        ]

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
                        f"{self._files[file]}:1 is not a header, but {self._files[first]} has one, with "
                        f"{moved[0]!r} in column {headers[first].index(moved[0]) + 1}: give each file its own"
                    )
        return headers

    def _header(self, file: int) -> tuple[str, ...]:
        names = tuple(self._first_lines[file])
        fields, there = self._options.asked, ", ".join(names)
        if missing := [name for name in fields if name not in names]:
            alike = {_bare(name) for name in names}
            if any(_bare(name) in alike for name in fields):
                raise UserError(
                    f"{self._files[file]}:1 looks like a header, but has no column {missing[0]!r}; columns "
                    f"there: {there}"
                )
            return ()
        if twice := [name for name in fields if names.count(name) > 1]:
            raise UserError(f"{self._files[file]}:1 names {twice[0]!r} twice; columns there: {there}")
        return names

    def _second(self, file: int) -> int:
        """The position of the second line of a file."""
        return self._map(file).find(b"\n") + 1 or self._sizes[file]

    def _first(self, file: int) -> int:
        return self._second(file) if self._headers[file] else self._begin(file)


def _columns(line: str) -> Sequence[str]:
    line = line.rstrip("\r\n")
    columns = line.split("\t")
    return [*map(_unquoted, columns)] if '""' in line else columns


def _unquoted(column: str) -> str:
    """The text of a column that is in quotes and has quotes, all doubled; any other column as it is."""
    inner = column[1:-1]
    doubled = '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if doubled and column[0] == column[-1] == '"' else column


def _unnamed(count: int) -> tuple[str, ...]:
    """The names of columns without a header."""
    return ("source", "target", *map(str, range(3, count + 1)))[:count]


def _at(name: str, names: Sequence[str]) -> int | None:
    return names.index(name) if name in names else None


def _bare(name: str) -> str:
    """The name of a column without quotes, spaces and byte-order mark."""
    return name.strip(' "\ufeff').casefold()
