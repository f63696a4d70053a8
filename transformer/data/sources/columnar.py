"""Files of columns: Parquet, and data sets of Hugging Face on disk.

pyarrow is slow to import, so it is imported where it is used.
"""

import bisect
import contextlib
import dataclasses
import functools
import itertools
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.data.cache.disk_cache import digest
from transformer.data.sources.options import Options
from transformer.data.sources.record_files import Block, RecordFiles
from transformer.data.sources.record_splits import keys_of
from transformer.errors import UserError, first_line
from transformer.json_text import parse_json

TEXT = ("string", "large_string", "string_view")
"""The types of columns of text."""

BLOCK = 64
"""Rows that are converted from Arrow together: one alone takes as long as ten of them."""


@dataclasses.dataclass(frozen=True)
class Columns:
    """An opened file: its schema, the number of rows of each of its groups, and (group, columns) -> rows."""

    schema: Any
    sizes: Sequence[int]
    read: Callable[[int, list[str]], Any]

    @functools.cached_property
    def classes(self) -> dict[str, list[str]]:
        """Column -> names of classes, as `datasets` writes them beside the numbers of classes."""
        written = parse_json((self.schema.metadata or {}).get(b"huggingface", b"{}"))
        features = written.get("info", {}).get("features", {})
        typed = {name: value for name, value in features.items() if isinstance(value, dict)}  # or a list
        return {name: value["names"] for name, value in typed.items() if value.get("_type") == "ClassLabel"}

    def with_nested(self, names: Iterable[str]) -> "Columns":
        """The file with the columns of these names that are within others: "translation.en" is the column
        "en" of the objects in "translation"."""
        from pyarrow import compute, field, types

        schema, within = self.schema, {}
        for name in names:
            column, *path = name.split(".")
            kind: Any = (
                schema.field(column).type if column in schema.names and name not in schema.names else None
            )
            for part in path:
                there = kind is not None and types.is_struct(kind) and kind.get_field_index(part) >= 0
                kind = kind.field(part).type if there else None
            if path and kind is not None:
                schema, within[name] = schema.append(field(name, kind)), (column, path)
        if not within:
            return self

        def read(group: int, fields: list[str]) -> Any:
            whole = [*dict.fromkeys(within[name][0] if name in within else name for name in fields)]
            rows = self.read(group, whole)
            for name in within.keys() & {*fields}:
                column, path = within[name]
                rows = rows.append_column(name, compute.struct_field(rows.column(column), path))
            return rows.select(fields)

        return Columns(schema, self.sizes, read)


class ColumnarFiles(RecordFiles):
    """One record per row, without rows that lack a field that is read; a number of a class is its name.

    Two groups of rows are in memory at a time, with the columns that are read.

    Raises:
      UserError: no such file, pyarrow is missing, or (when read) a file of another format, or one that lacks
        a column, or has one that is not text.
    """

    _width = 1  # the row, counted over all files

    def __init__(
        self, kind: str, pattern: str, split: str, options: Options, patterns: Sequence[str] = ()
    ) -> None:
        super().__init__(kind, pattern, split, options, patterns)
        self._columns = [*dict.fromkeys([*options.asked, *options.key])]
        self._more = [name for name in (*options.unread, *options.additional) if name not in self._columns]
        self.identity = digest(self.identity, sorted(options.asked))
        self._group = functools.lru_cache(2)(self._read)
        self._block = functools.lru_cache(2)(self._read_block)

    @abstractmethod
    def _open_columns(self, path: Path) -> Columns:
        """Opens a file."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self._record(index)
        text = self._options.as_text(record[self.field])
        self._options.check_unread(record, lambda: self.place(index))
        if not self._options.is_read(text):
            raise UserError(f"{self.place(index)}: {self.field!r} is {text!r}; expected text")
        return record | {self.field: text}

    def alternatives(self, index: int) -> list[str]:
        """The text of one record, or all of its list."""
        return self._options.alternatives(self._record(index)[self.field]) or [self.text(index)]

    def place(self, index: int) -> str:
        """The file of a record and its row there, from 1."""
        group, row = self._at(index)
        file, number = self._groups[group]
        before = self._firsts[group] - self._firsts[group - number]
        return f"{self._files[file]}: row {before + row + 1}"

    def _record(self, index: int) -> dict[str, Any]:
        group, row = self._at(index)
        number, place = divmod(row, BLOCK)
        return self._block(group, number)[place]

    def _read_block(self, group: int, number: int) -> list[dict[str, Any]]:
        rows = slice(number * BLOCK, (number + 1) * BLOCK)
        with self._reading(group):
            names = self._group(group).schema.names
        columns = [self._values(group, name, rows) for name in names]
        return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _at(self, index: int) -> tuple[int, int]:
        """The group of a record, and its row there."""
        row = int(self._found[index, 0])
        group = bisect.bisect(self._firsts, row) - 1
        return group, row - self._firsts[group]

    @functools.cached_property
    def _opened(self) -> list[Columns]:
        try:
            import pyarrow.parquet  # noqa: F401 (looked for, before a file is opened)
        except ImportError:
            raise UserError(f"{self.name}: reading it needs pyarrow: `pip install pyarrow`") from None
        opened = []
        for path in self._files:
            opened.append(file := self._open_columns(path).with_nested(self._columns))
            for name in self._columns:
                if name not in file.schema.names:
                    there = ", ".join(file.schema.names)
                    raise UserError(f"{path}: no column {name!r}; columns there: {there}")
            kind = file.schema.field(self.field).type
            if self.field not in file.classes and not _is_read(kind, self._options):
                raise UserError(f"{path}: {self.field!r} is {kind}; expected text")
        return opened

    @functools.cached_property
    def _groups(self) -> list[tuple[int, int]]:
        """The file and the number in it of each group of rows."""
        return [(i, j) for i, file in enumerate(self._opened) for j in range(len(file.sizes))]

    @functools.cached_property
    def _firsts(self) -> list[int]:
        """The first row of each group, counted over all files."""
        sizes = (self._opened[i].sizes[j] for i, j in self._groups)
        return [0, *itertools.accumulate(sizes)][:-1]

    def _blocks(self, left_out: Counter[str]) -> Iterator[Block]:
        required = [name for name in self._options.asked if name not in self._options.optional]
        for group, first in enumerate(self._firsts):
            kept_n = np.arange(self._size(group))
            for name in required:
                lacks_n = self._lacks(group, name)[kept_n]
                left_out[f"no {name!r}"] += int(lacks_n.sum())
                kept_n = kept_n[~lacks_n]
            yield first + kept_n[:, None], functools.partial(self._keys, group, kept_n)

    def _keys(self, group: int, rows_n: np.ndarray) -> Sequence[bytes]:
        """The keys of rows of a group."""
        columns = [self._values(group, name) for name in self._options.key or self._columns]
        rows = rows_n.tolist()
        return keys_of([[column[row] for row in rows] for column in columns], self._options.deciding)

    def _size(self, group: int) -> int:
        file, number = self._groups[group]
        return self._opened[file].sizes[number]

    def _lacks(self, group: int, name: str) -> np.ndarray:
        """Which rows of a group have nothing in a column; the class -1 is none."""
        with self._reading(group):
            column = self._group(group).column(name)
            lacks_n = np.asarray(column.is_null())
        if name in self._opened[self._groups[group][0]].classes:
            lacks_n = lacks_n | (np.asarray(column.fill_null(-1)) == -1)
        return lacks_n

    def _values(self, group: int, name: str, rows: slice = slice(None)) -> list[Any]:
        """A column of rows of a group, with the names of classes in the place of their numbers."""
        with self._reading(group):
            column = self._group(group).column(name)[rows]
            values = column.to_pylist() if column.type.num_fields == 0 else [*map(dense, column.to_pylist())]
        file = self._groups[group][0]
        if classes := self._opened[file].classes.get(name):
            names = {None: None, -1: None} | dict(enumerate(classes))
            if unknown := [number for number in values if number not in names]:
                expected = f"expected a number below {len(classes)}, or -1"
                raise UserError(f"{self._files[file]}: {name!r} is {unknown[0]!r}; {expected}")
            values = [names[number] for number in values]
        return values

    @contextlib.contextmanager
    def _reading(self, group: int) -> Iterator[None]:
        """Raises `UserError` if the bytes of a group are not those of rows."""
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            file, number = self._groups[group]
            why = first_line(error)
            raise UserError(f"{self._files[file]}: rows of group {number + 1} are damaged ({why})") from None

    def _read(self, group: int) -> Any:
        file, number = self._groups[group]
        opened = self._opened[file]
        there = [name for name in self._more if name in opened.schema.names]
        rows = opened.read(number, [*self._columns, *there])
        rows.validate(full=True)  # what Arrow has from a file it takes as it is, also lengths below 0
        return rows


class ParquetFiles(ColumnarFiles):
    """`parquet:GLOB`."""

    def __init__(self, pattern: str, split: str, options: Options) -> None:
        super().__init__("parquet", pattern, split, options)

    def _open_columns(self, path: Path) -> Columns:
        import pyarrow
        from pyarrow import parquet

        try:
            file = parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError):
            raise UserError(f"{path}: not a Parquet file") from None
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        return Columns(file.schema_arrow, sizes, lambda i, names: file.read_row_group(i, columns=names))


class SavedDataset(ColumnarFiles):
    """`hf:FOLDER`, one data set or split that `save_to_disk` of Hugging Face's `datasets` has written."""

    def __init__(self, argument: str, split: str, options: Options) -> None:
        folder, name = Path(argument).expanduser(), f"hf:{argument}"
        several, state = folder / "dataset_dict.json", folder / "state.json"
        splits: list[str] = []
        files: list[Path] = []
        try:
            if several.is_file():
                splits = [str(split) for split in _read_json(several)["splits"]]
            else:
                files = [folder / Path(entry["filename"]).name for entry in _read_json(state)["_data_files"]]
            (splits or files)[0]
        except FileNotFoundError:
            raise UserError(f"{name}: no folder that `save_to_disk` has written: no {state}") from None
        except IndexError:
            raise UserError(f"{name}: it is empty; expected at least one record") from None
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{name}: not readable as what `save_to_disk` writes") from None
        if splits:
            raise UserError(f"{name}: it has the splits {', '.join(splits)}; name one, {name}/{splits[0]}")
        if missing := [str(file) for file in files if not file.is_file()]:
            raise UserError(f"{name}: {missing[0]}: no such file")
        super().__init__("hf", argument, split, options, [*map(str, files)])

    def _open_columns(self, path: Path) -> Columns:
        import pyarrow

        try:
            table = pyarrow.ipc.open_stream(pyarrow.memory_map(str(path))).read_all()
        except (pyarrow.ArrowException, OSError):
            raise UserError(f"{path}: not a file of Arrow's streaming format") from None
        batches = table.to_batches()
        return Columns(table.schema, [*map(len, batches)], lambda i, names: batches[i].select(names))


def _is_read(kind: Any, options: Options) -> bool:
    """Whether a column of this type of Arrow's is text, or read as text with these options."""
    from pyarrow import types

    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_list = types.is_list(kind) or types.is_large_list(kind)
    return (
        str(kind) in TEXT
        or (options.numbers and (types.is_primitive(kind) and not types.is_temporal(kind)))
        or (options.structures and types.is_nested(kind))
        or (options.lists and is_list and str(kind.value_type) in TEXT)
    )


def _read_json(path: Path) -> Any:
    return parse_json(path.read_bytes())


def dense(value: Any) -> Any:
    """A value of a nested column without the keys of objects that hold nothing.

    All objects of a column of Arrow have all of its keys: where one row calls a tool with "city" and another
    with "days", both have both, and one of them is null.
    """
    if isinstance(value, dict):
        return {key: dense(entry) for key, entry in value.items() if entry is not None}
    return [*map(dense, value)] if isinstance(value, list) else value
