"""Files of the user with one record per line: JSON lines, tab-separated columns, two aligned files."""

import functools
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.disk_cache import digest
from transformer.data.sources.base import SPLITS, Options, belong, check_text, key_of, shares
from transformer.data.sources.files import Files, matching, stripped
from transformer.data.sources.json_forms import add_nested, as_lines, is_array
from transformer.data.sources.record_files import RecordFiles
from transformer.errors import UserError
from transformer.json_text import parse_json

SIDES = ("source", "target")
"""The fields of aligned files."""


class LineFiles(RecordFiles):
    """One record per line, without empty lines, found by its file, its start and its end."""

    def place(self, index: int) -> str:
        """The file of a record and its line."""
        file, start, _ = self._found[index].tolist()
        return self._place(file, start)

    def _find(self) -> tuple[np.ndarray, Mapping[str, int]]:
        found = [np.zeros((0, 3), np.int64)]
        count = 0
        for file in range(len(self._files)):
            lines_n3 = self._lines(file)
            empty = self._empty(lines_n3)
            count += len(empty)
            found.append(np.delete(lines_n3, empty, axis=0))
        return np.concatenate(found), {"empty line": count}

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

    def _keys(self, found: np.ndarray) -> Iterable[bytes]:
        names = self._options.key
        for file, start, end in found.tolist():
            if names:
                place = functools.partial(self._place, file, start)
                yield key_of(self._read(file, start, end), names, place, self._options.deciding)
            else:
                yield self._map(file)[start:end].strip()

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
            said = getattr(error, "msg", error)
            hint = "; `jq -c . FILE` writes an object in each line" if text.strip() == "{" else ""
            raise UserError(f"{self._place(file, start)}: not JSON ({said}){hint}") from None
        if not isinstance(record, dict):
            raise UserError(f"{self._place(file, start)}: {type(record).__name__}; expected a JSON object")
        add_nested(record, self._nested)
        return record

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
        columns, names = self._columns(file, start, end), self._names[file]
        if len(columns) != len(names):
            problem = f"{len(columns)} columns; the first line has {len(names)}"
            hint = "; a tab in a text begins a column: replace it, or read a table with quotes by csv:"
            more = hint if len(columns) > len(names) else ""
            raise UserError(f"{self._place(file, start)}: {problem}{more}")
        return dict(zip(names, columns, strict=True))

    def _columns(self, file: int, start: int, end: int) -> tuple[str, ...]:
        line = self._decode(file, start, end).rstrip("\r\n")
        columns = line.split("\t")
        return tuple(map(_unquoted, columns) if '""' in line else columns)

    @functools.cached_property
    def _names(self) -> list[tuple[str, ...]]:
        """The names of the columns of each file."""
        both = zip(self._headers, self._first_lines, strict=True)
        return [header or _unnamed(len(columns)) for header, columns in both]

    @functools.cached_property
    def _first_lines(self) -> list[tuple[str, ...]]:
        """The columns of the first line of each file."""
        sizes = enumerate(self._sizes)
        return [self._columns(i, self._begin(i), self._second(i)) if size else () for i, size in sizes]

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
        names = self._first_lines[file]
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
            halves = [both for both in halves if all(map(matching, both))]
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
                f"{path} has {len(found)} lines" for path, found in zip(self._files, ends, strict=True)
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
