"""Detects tables among input files that should have one text per line."""

import sys
from collections.abc import Iterable
from typing import Any

from transformer.errors import UserError

LOOKED_AT = 1000
"""The number of lines that are inspected."""


def look_for_columns(source: str, lines: Iterable[str], data: Any) -> None:
    """Raises if the lines look like rows of a table, whose columns would all be read as text; prints a note
    if only some do."""
    first = [line.split("\t") for _, line in zip(range(LOOKED_AT), lines, strict=False)]
    rows = [columns for columns in first if any(columns)]
    if not rows:
        return
    fields, reads = list(data.fields("test")), list(data.reads)
    table = f"--input=tsv:{source}"
    named = [name for name in rows[0] if name.strip(' "\ufeff') in fields]
    if named and len(rows[0]) > 1:
        header = ", ".join(rows[0])
        raise UserError(f"--input: {source}:1 is a header ({header}); {table} reads its columns by name")
    if named:
        print(
            f"{source}:1 is {rows[0][0]!r}; if that is a header, remove it, or give {table}", file=sys.stderr
        )
    expected = len(reads) if hasattr(data, "labels") else 1
    counts = {len(columns) for columns in rows}
    if hasattr(data, "labels"):
        labels = set(data.labels)
        for place, what in ((-1, "last"), (0, "first")):
            if min(counts) > expected and all(columns[place].strip() in labels for columns in rows):
                raise UserError(
                    f"--input: {source}: the {what} column of every line is a label; give the texts alone, "
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
