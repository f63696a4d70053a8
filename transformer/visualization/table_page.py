"""A table of runs as one self-contained HTML file, with their curves and last samples side by side."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from transformer.run_folder import RunFolder
from transformer.safe_files import replace
from transformer.visualization.html import Markup, grid, page, section, table, tag
from transformer.visualization.report import Series
from transformer.visualization.run_curves import Curve as Points
from transformer.visualization.run_page import CHARACTERS, TILES, value_of
from transformer.visualization.svg import COLOURS, Curve, plot

MAX_DRAWN_ROWS = len(COLOURS)
"""The most rows whose curves are drawn, and runs whose samples are shown; those on top of the table."""


@dataclass(frozen=True)
class Compared:
    """A run of the table: what tells it from the others, its folder and its metrics."""

    name: str
    path: Path
    series: Series


def write_page(
    path: Path,
    metric: str,
    cells: Sequence[Sequence[str]],
    rows: Sequence[tuple[str, Sequence[Points]]],
    runs: Sequence[Compared],
) -> None:
    """Writes the table (`cells`, the first line its heading), the curves of a metric of each row, (label, a
    curve of each run), and the values and last samples of the runs, each with a link to its own report."""
    heading, *lines = cells
    title = f"{len(runs)} runs by {metric}"
    drawn = [curve for number, row in enumerate(rows[:MAX_DRAWN_ROWS]) for curve in _curves(number, *row)]
    names = list(dict.fromkeys(name for run in runs for name in TILES if TILES[name][0] in run.series))
    values = [[_link(run, path.parent), *(value_of(run.series, name) for name in names)] for run in runs]
    content = [
        tag("h1", title),
        section("Table", table(heading, lines, numbers=range(len(heading)))),
        section("Curves", plot(metric, drawn)) if drawn else None,
        section("Each run", table(["run", *names], values, numbers=range(1, len(names) + 1))),
        section("Last samples", grid(_samples(runs))),
    ]
    replace(path, page(title, content))


def _curves(number: int, label: str, curves: Sequence[Points]) -> Iterator[Curve]:
    for steps, values in curves:
        yield Curve(label, COLOURS[number], steps, values, marked=len(values) < 40)


def _samples(runs: Sequence[Compared]) -> Iterator[Markup]:
    for run in runs[:MAX_DRAWN_ROWS]:
        files = sorted(
            file
            for file in RunFolder(run.path, is_written=False).samples.glob("*.txt")
            if file.stem.isdecimal()
        )
        if files:
            text = files[-1].read_text(encoding="utf-8", errors="replace")[:CHARACTERS]
            step = tag("p", f"step {int(files[-1].stem):,}", class_="muted")
            yield tag("div", tag("h3", run.name), step, tag("pre", text), class_="card")


def _link(run: Compared, start: Path) -> Markup:
    """The name of a run, with a link to its report if it has one."""
    report = RunFolder(run.path, is_written=False).page
    name = run.path.name if run.name == run.path.name else f"{run.path.name}: {run.name}"
    if not report.is_file():
        return tag("span", name)
    return tag("a", name, href=quote(os.path.relpath(report, start)))
