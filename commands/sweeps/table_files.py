"""The forms of a table: text for a terminal, and the files of --output."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from commands.sweeps.algebra import shortened
from commands.sweeps.rows import Row, label, or_null
from transformer.safe_files import replace

FORMATS = (".csv", ".json", ".md", ".tex", ".html")
"""Suffixes of files that a table is written to."""


def cells(rows: Sequence[Row], metric: str) -> list[list[str]]:
    """The heading and the rows as text."""
    heading = [*shortened(rows[0].columns), *rows[0].heading(metric)]
    return [heading, *([*map(str, row.columns.values()), *row.cells()] for row in rows)]


def lines(table: Sequence[Sequence[str]], marked: Sequence[bool]) -> Iterator[str]:
    """The table as aligned text, with * before the rows that are marked."""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line, mark in zip(table, [False, *marked], strict=True):
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield f"{'*' if mark else ' '} {'  '.join(cells)}"


def by_seed(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A heading and, for each row, the single values in a column for each seed: "" for a seed that a row has
    not, several values of one seed with a space between them."""
    seeds = sorted({run.config["seed"] for row in rows for run in row.runs if "seed" in run.config})
    yield [f"seed {seed}" for seed in seeds]
    for row in rows:
        values = [(run.config.get("seed"), value) for run, value in zip(row.runs, row.values, strict=True)]
        yield [" ".join(f"{value:.9g}" for own, value in values if own == seed) for seed in seeds]


def as_data(rows: Sequence[Row], metric: str) -> list[dict[str, Any]]:
    """The rows as values for JSON: keys, mean, spread, and the value, seed and folder of each run; None in
    the place of a number that is not finite."""
    return [
        {
            "keys": row.keys,
            "metric": metric,
            "mean": or_null(row.mean),
            "spread": or_null(row.spread),
            "values": [*map(or_null, row.values)],
            "seeds": [run.config.get("seed") for run in row.runs],
            "runs": [str(run.path) for run in row.runs],
            "left_out": [str(run.path) for run in row.uncounted],
            **row.more(),
        }
        for row in rows
    ]


def write(path: Path, rows: Sequence[Row], metric: str) -> None:
    """Writes the table: as JSON `as_data`, as HTML with curves and samples beside each other, as CSV its
    cells and the single values, as Markdown and LaTeX its cells. A file that is there is replaced only once
    the new one is whole."""
    table = cells(rows, metric)
    if path.suffix == ".json":
        replace(path, json.dumps(as_data(rows, metric), indent=1) + "\n")
    elif path.suffix == ".csv":
        keys = [*rows[0].columns]
        whole = [[*keys, *table[0][len(keys) :]], *table[1:]]
        csv.writer(text := io.StringIO()).writerows(map(list.__add__, whole, by_seed(rows)))
        replace(path, text.getvalue())
    elif path.suffix == ".html":
        from transformer.visualization.table_page import Compared, write_page

        runs = [
            Compared(label(row) + (f", seed {seed}" if len(row.every) > 1 else ""), run.path, run.series)
            for row in rows
            for run in row.every
            for seed in [run.config.get("seed")]
        ]
        write_page(path, metric, table, [(label(row), row.curves(metric)) for row in rows], runs)
    elif path.suffix == ".tex":
        from transformer.visualization.latex import tabular

        replace(path, tabular(table))
    else:
        from transformer.visualization.label_texts import in_markdown

        heading, *body = ([in_markdown(cell) for cell in line] for line in table)
        ruler = ["---"] * len(heading)
        replace(path, "".join("| " + " | ".join(line) + " |\n" for line in [heading, ruler, *body]))
