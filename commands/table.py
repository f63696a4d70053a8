"""Compares runs: one row for each set of keys that differ, with the mean and spread over seeds.

python launch.py --mode=table --runs 'runs/lm-sweep/*' --metric=eval/loss --pictures=runs/lm-sweep
python launch.py --mode=table --runs 'runs/lm-sweep/*' --against 'runs/lm-sweep/norm=layer,*'

With --against each row is a change of those runs: the mean difference of runs of the same seed, with an
interval for as many pairs as were planned beforehand; * marks differences whose interval is without zero.
"""

import argparse
import csv
import dataclasses
import glob
import io
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import place
from commands.footnotes import diverged, listed, skipping, uncounted, unfinished
from commands.outputs import check_file, check_folder
from commands.rows import DIVERGED, Row, Trained, label, or_null, rank, row_of
from transformer.config import flatten
from transformer.errors import UserError, suggest
from transformer.json_text import parse_json
from transformer.sweep import shortened

if TYPE_CHECKING:
    from commands.opening import Overrides

BESIDE = (
    "seed",
    "data.cache_dir",
    "data.workers",
    "parallel.",
    "train.checkpoint_every",
    "train.checkpoint_minutes",
    "train.evaluate_every",
    "train.keep_best",
    "train.keep_last",
    "train.log_",
    "train.profile_",
    "train.sample_every",
    "train.writers",
)
"""Prefixes of keys in which the runs of a row may differ: they change neither the parameters that are trained
nor what is measured of them at the end."""

FORMATS = (".csv", ".json", ".md", ".html")


def add_flags(parser: Any) -> None:
    """The flags of this command."""
    parser.set_defaults(missing="", alone=True)
    add = parser.add_argument
    add(
        "--runs",
        type=place,
        nargs="+",
        default=[],
        help="folders of runs, also as patterns: 'runs/lm-sweep/*'",
    )
    add("--metric", default="eval/loss", help="the metric; -METRIC if more of it is better (eval/loss)")
    add(
        "--against",
        type=place,
        default="",
        help="folders of a row's runs, with which the others are compared by seed",
    )
    add("--best", action="store_true", help="the best value of each run instead of its last")
    add("--output", type=place, help="a file for the table, .csv, .json, .md or .html")
    add(
        "--pictures",
        type=place,
        metavar="DIR",
        help="a folder for pictures: curves, and the metric over each number",
    )


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the table, best first."""
    if given := [key for key, _ in overrides]:
        raise UserError(f"--config.{given[0]}: --mode=table changes no keys")
    if flags.output and Path(flags.output).suffix not in FORMATS:
        raise UserError(f"--output: {flags.output}; expected a name that ends in {', '.join(FORMATS)}")
    check_file("--output", flags.output)
    check_folder("--pictures", flags.pictures)
    metric, sign = flags.metric.removeprefix("-"), -1 if flags.metric.startswith("-") else 1
    patterns = [flags.against] if flags.against else []
    runs, left_out = read_runs([*flags.runs, *patterns])
    check_metric(metric, runs)
    rows: Sequence[Row] = rows_of(runs, metric, sign, flags.best)
    left_out += uncounted(rows, metric)
    table, marked = [*cells(rows, metric)], [True] * (len(rows) > 1)
    if flags.against:
        from commands import paired

        rows, unpaired = paired.changes(rows, read_runs(patterns, "--against")[0], metric, sign)
        compared, left_out = rows, [*left_out, *unpaired]
        table, marked = [*paired.cells(compared, metric)], [row.is_shown for row in compared]
    for line in lines(table, marked):
        print(line)
    for line in [*left_out, *unfinished(runs), *skipping(runs), *diverged(runs, metric)]:
        print(line)
    if flags.output:
        write(Path(flags.output), rows, metric, table)
    if flags.pictures:
        from transformer.visualization.comparison import draw_curves, draw_differences, draw_over_key

        folder = Path(flags.pictures)
        folder.mkdir(parents=True, exist_ok=True)
        draw_curves([(label(row), row.curves(metric)) for row in rows], metric, folder / "curves.png")
        if flags.against:
            named = [(label(row), row.mean_difference, row.interval) for row in compared]
            draw_differences(named, metric, folder / "differences.png")
        else:
            for key, points in over_keys(rows):
                name = re.sub(r"[^\w.]+", "-", key)
                draw_over_key(points, key, metric, folder / f"{name}.png")
    return 0


def read_runs(patterns: Sequence[str], flag: str = "--runs") -> tuple[list[Trained], list[str]]:
    """The runs with metrics in the folders that match, in the order of their names, and lines that say which
    folders were left out, if any. Errors are about `flag`.

    Raises:
      UserError: there is none.
    """
    from transformer.run_folder import RunFolder
    from transformer.visualization.report import all_values

    if not patterns:
        raise UserError("--runs: which ones? 'runs/lm-sweep/*', say (--mode=table)")
    found = []
    damaged: list[str] = []
    without: list[str] = []
    for path in sorted({Path(each) for pattern in patterns for each in _matching(pattern)}):
        folder = RunFolder(path)
        if not folder.config.is_file():
            continue
        try:
            folder.vet()
            config = parse_json(folder.config.read_bytes())
            steps = int(config["train"]["steps"])
        except (ValueError, KeyError, TypeError):  # a `UserError` too
            damaged.append(path.name)
            continue
        try:
            measured = all_values(folder.metrics)
        except UserError:
            measured = {}
        if measured:
            found.append(Trained(path, flatten(config), steps, measured))
        else:
            without.append(path.name)
    left_out = [*listed("with a damaged config.json", damaged), *listed("without metrics", without)]
    if not found:
        why = "; ".join([f"{' '.join(patterns)} has no folder of a run with metrics", *left_out])
        raise UserError(f"{flag}: {why}")
    return found, left_out


def _matching(pattern: str) -> list[str]:
    """The paths that match, or the one that has this very name."""
    return [pattern] if os.path.lexists(pattern) else glob.glob(pattern)


def check_metric(metric: str, runs: Sequence[Trained]) -> None:
    """Raises `UserError` if no run has measured the metric."""
    known = sorted({name for run in runs for name in run.measured})
    if metric not in known:
        raise UserError(f"--metric: no run has measured {metric!r}; {suggest(metric, known)}")


def rows_of(runs: Sequence[Trained], metric: str, sign: int, best: bool) -> list[Row]:
    """One row for each set of values of the keys that differ, the best mean first. The best of more
    evaluations is better by chance, and a logged training loss is a mean since the one before: there their
    intervals are keys that differ."""
    counted = ["train.evaluate_every"] * best + ["train.log_every"] * metric.startswith("train/")
    differing = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.config)
        if not (key.startswith(BESIDE) and key not in counted)
        and len({json.dumps(run.config.get(key)) for run in runs}) > 1
    ]
    groups: dict[str, list[Trained]] = {}
    for run in runs:
        groups.setdefault(json.dumps([run.config.get(key) for key in differing]), []).append(run)
    rows = [
        row_of({key: together[0].config.get(key) for key in differing}, together, metric, sign, best)
        for together in groups.values()
    ]
    return sorted(rows, key=lambda row: rank(sign * row.mean))


def lines(table: Sequence[Sequence[str]], marked: Sequence[bool]) -> Iterator[str]:
    """The table as aligned text, with * before the rows that are marked."""
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for number, line in enumerate(table):
        mark = 0 < number <= len(marked) and marked[number - 1]
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield f"{'*' if mark else ' '} {'  '.join(cells)}"


def cells(rows: Sequence[Row], metric: str) -> Iterator[list[str]]:
    """The heading and the rows as text."""
    short = shortened(rows[0].keys)
    yield [*short, metric, "spread", "runs"]
    for row in rows:
        mean, spread = ("" if math.isnan(each) else f"{each:.5g}" for each in (row.mean, row.spread))
        numbers = [DIVERGED if row.has_diverged else mean, spread, str(len(row.values))]
        yield [*(str(value) for value in row.keys.values()), *numbers]


def over_keys(rows: Sequence[Row]) -> Iterator[tuple[str, list[tuple[str, list[float], list[list[float]]]]]]:
    """(key, curves) for each key whose values are numbers: a curve for each set of the other keys, with the
    values of the key and those of the metric for each of them."""
    for key in rows[0].keys:
        numbers = [row.keys[key] for row in rows]
        if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in numbers):
            continue
        curves: dict[str, dict[float, list[float]]] = {}
        for row in rows:
            others = {name: value for name, value in row.keys.items() if name != key}
            name = label(dataclasses.replace(row, keys=others)) if others else ""
            curves.setdefault(name, {})[row.keys[key]] = row.values
        yield key, [(name, sorted(each), [each[x] for x in sorted(each)]) for name, each in curves.items()]


def by_seed(rows: Sequence[Row]) -> Iterator[list[str]]:
    """A heading and, for each row, the single values in a column for each seed: "" for a seed that a row has
    not, several values of one seed with a space between them."""
    seeds = sorted({run.config["seed"] for row in rows for run in row.runs if "seed" in run.config})
    yield [f"seed {seed}" for seed in seeds]
    for row in rows:
        values = [(run.config.get("seed"), value) for run, value in zip(row.runs, row.values, strict=True)]
        yield [" ".join(f"{value:.9g}" for own, value in values if own == seed) for seed in seeds]


def write(path: Path, rows: Sequence[Row], metric: str, table: Sequence[Sequence[str]]) -> None:
    """Writes the table: as JSON with the value and folder of each run, as HTML with curves and samples beside
    each other, as CSV its cells and the single values, as Markdown its cells. What was there before stays
    until the new one is whole."""
    from transformer.run_folder import replace

    if path.suffix == ".json":
        values = [
            {
                "keys": row.keys,
                "metric": metric,
                "mean": or_null(row.mean),
                "spread": or_null(row.spread),
                "values": [*map(or_null, row.values)],
                "runs": [str(run.path) for run in row.runs],
                "left_out": [str(run.path) for run in row.others],
                **row.more(),
            }
            for row in rows
        ]
        replace(path, json.dumps(values, indent=1) + "\n")
    elif path.suffix == ".csv":
        keys = [] if "change" in table[0] else [*rows[0].keys]
        lines = zip([[*keys, *table[0][len(keys) :]], *table[1:]], by_seed(rows), strict=True)
        csv.writer(text := io.StringIO()).writerows([*cells, *values] for cells, values in lines)
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
    else:
        from transformer.visualization.labels import in_markdown

        heading, *others = ([in_markdown(cell) for cell in line] for line in table)
        ruler = ["---"] * len(heading)
        replace(path, "".join("| " + " | ".join(line) + " |\n" for line in [heading, ruler, *others]))
