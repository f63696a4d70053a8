"""Tells tables from files with one text per line, by their names and by what is in them."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformer.data.sources.packed_files import PACKED
from transformer.errors import UserError

KINDS = {".jsonl": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet"}
"""Suffix of a file -> kind of source."""

LOOKED_AT = 1000
"""The number of lines that are inspected."""


def named_source(text: str, data: Any) -> str:
    """The source that the text names: "tsv:my.tsv", or a file with a suffix of `KINDS`; "" for another file,
    whose lines are texts.

    Raises:
      UserError: the run's data are not read from files with this suffix.
    """
    path = Path(text)
    if not path.exists():
        return text if text.partition(":")[0] in data.kinds else ""
    suffixes = [suffix for suffix in path.suffixes if suffix.lower() not in PACKED]
    if not (kind := KINDS.get(suffixes[-1] if suffixes else "")) or not path.is_file():
        return ""
    if kind not in data.kinds:
        raise _unreadable(text, data)
    return f"{kind}:{text}"


def as_source(text: str, data: Any) -> str:
    """The source that the text names, or that of the lines of a file.

    Raises:
      UserError: no such file, or the run's data are not read from lines.
    """
    if source := named_source(text, data):
        return source
    if not Path(text).is_file():
        kinds = ", ".join(data.kinds)
        raise UserError(f"--input: there is no file {text!r}; expected one, or a source: {kinds}")
    if data.lines not in data.kinds:
        raise _unreadable(text, data)
    return f"{data.lines}:{text}"


def _unreadable(text: str, data: Any) -> UserError:
    kinds = ", ".join(data.kinds)
    return UserError(f"--input: {text}: unknown format; expected KIND:{text} with a kind of {kinds}")


def look_for_columns(source: str, lines: Iterable[str], data: Any) -> None:
    """Raises if the lines look like rows of a table, whose columns would all be read as text; prints a note
    if only some do."""
    first = [line.split("\t") for _, line in zip(range(LOOKED_AT), lines, strict=False)]
    rows = [columns for columns in first if any(columns)]
    if not rows:
        return
    fields, reads = list(data.fields("test")), list(data.reads)
    table = f"--input=tsv:{source}"
    headings = [name for name in rows[0] if name.strip(' "\ufeff') in fields]
    if headings and len(rows[0]) > 1:
        header = ", ".join(rows[0])
        raise UserError(f"--input: {source}:1 is a header ({header}); {table} reads its columns by name")
    if headings:
        print(
            f"{source}:1 is {rows[0][0]!r}; if that is a header, remove it, or give {table}", file=sys.stderr
        )
    expected = len(reads) if data.labels else 1
    counts = {len(columns) for columns in rows}
    if data.labels:
        labels = set(data.labels)
        for place, end in ((-1, "last"), (0, "first")):
            if min(counts) > expected and all(columns[place].strip() in labels for columns in rows):
                raise UserError(
                    f"--input: {source}: the {end} column of every line is a label; give the texts alone, "
                    f"or a table with a header: {table}"
                )
    elif len(counts) == 1 and counts != {1}:
        raise UserError(
            f"--input: {source}: every line has {counts.pop()} columns; expected one source per line; "
            f"{table} reads a table"
        )
    if many := sum(len(columns) > expected for columns in rows):
        print(
            f"{source}: {many:,} of {_first(rows)} lines have tabs, read as part of the text", file=sys.stderr
        )


def _first(rows: Iterable[Any]) -> str:
    count = len(list(rows))
    return f"the first {count:,}" if count == LOOKED_AT else f"{count:,}"
