"""Compares runs: one row for each set of keys that differ, with the mean and spread over seeds.

python launch.py --mode=table --runs 'runs/lm-sweep/*' --metric=eval/loss --pictures=runs/lm-sweep
python launch.py --mode=table --runs 'runs/lm-sweep/*' --against 'runs/lm-sweep/norm=layer,*'

With --against each row is a change of those runs: the mean difference of runs of the same seed, with an
interval for as many pairs as were planned beforehand; * marks differences whose interval is without zero.
--at=d_model compares at each value of a key: --against has runs at each of them.
"""

import argparse
import dataclasses
import glob
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands import place
from commands.sweeps import paired
from commands.sweeps.footnotes import diverged, listed, skipping, uncounted, unfinished
from commands.sweeps.rows import Row, Trained, label, rank, row_of
from transformer.config import flatten
from transformer.errors import UserError, suggest
from transformer.json_text import parse_json
from workdir.outputs import check_file, check_folder

if TYPE_CHECKING:
    from workdir.opening import Overrides

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
    add(
        "--at",
        nargs="+",
        default=[],
        metavar="KEY",
        help="compare with the runs of --against that have the same value of these keys",
    )
    add("--best", action="store_true", help="the best value of each run instead of its last")
    add("--output", type=place, help="a file for the table, .csv, .json, .md, .tex or .html")
    add(
        "--pictures",
        type=place,
        metavar="DIR",
        help="a folder for pictures: curves, and the metric over each number",
    )


def run(flags: argparse.Namespace, overrides: "Overrides") -> int:
    """Prints the table, best first."""
    from commands.sweeps.table_files import FORMATS, cells, lines, write

    if keys := [key for key, _ in overrides]:
        raise UserError(f"--config.{keys[0]}: --mode=table changes no keys")
    if flags.output and Path(flags.output).suffix not in FORMATS:
        raise UserError(f"--output: {flags.output}; expected a name that ends in {', '.join(FORMATS)}")
    check_file("--output", flags.output)
    check_folder("--pictures", flags.pictures)
    table = tabulate(flags.runs, flags.metric, flags.against, flags.at, flags.best)
    metric, rows = table.metric, table.rows
    for line in [*lines(cells(rows, metric), table.marked), *table.footnotes]:
        print(line)
    if flags.output:
        write(Path(flags.output), rows, metric)
    if flags.pictures:
        from transformer.visualization.run_curves import draw_curves, draw_differences, draw_over_key

        folder = Path(flags.pictures)
        folder.mkdir(parents=True, exist_ok=True)
        draw_curves(table.curves(), metric, folder / "curves.png")
        if changes := [row for row in rows if isinstance(row, paired.Change)]:
            differences = [(label(row), row.mean_difference, row.interval) for row in changes]
            draw_differences(differences, metric, folder / "differences.png")
        else:
            for key, points in over_keys(rows):
                name = re.sub(r"[^\w.]+", "-", key)
                draw_over_key(points, key, metric, folder / f"{name}.png")
    return 0


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of runs by a metric, and footnotes: the runs that they leave out, and those to read with care."""

    metric: str
    rows: Sequence[Row]
    footnotes: list[str]

    @property
    def marked(self) -> list[bool]:
        """The changes that are shown; of plain rows the best, if there are others and it has not diverged."""
        if isinstance(self.rows[0], paired.Change):
            return [isinstance(row, paired.Change) and row.is_shown for row in self.rows]
        best = len(self.rows) > 1 and not self.rows[0].has_diverged
        return [best and row is self.rows[0] for row in self.rows]

    def curves(self) -> list[tuple[str, list[tuple[Any, Any]]]]:
        """(label, the steps and values of the metric of each run) of each row."""
        return [(label(row), row.curves(self.metric)) for row in self.rows]


def tabulate(
    patterns: Sequence[str], metric: str, against: str = "", at: Sequence[str] = (), best: bool = False
) -> Table:
    """The table of the runs whose folders match, the best row first; -METRIC is one of which more is better.
    With `against`, a pattern, each row is a change of those runs, with keys `at` of those that have the same
    values of them. With `best` the best value of each run counts, in place of its last.

    Raises:
      UserError: there are no runs, none has measured the metric, or none can be compared.
    """
    if at and not against:
        raise UserError("--at: --against is missing, the runs that the others are compared with")
    name, sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
    baseline = [against] if against else []
    runs, footnotes = read_runs([*patterns, *baseline])
    check_metric(name, runs)
    rows: Sequence[Row] = rows_of(runs, name, sign, best)
    footnotes += uncounted(rows, name)
    if against:
        rows, unpaired = paired.changes(rows, read_runs(baseline, "--against")[0], name, sign, at)
        footnotes += unpaired
    return Table(name, rows, [*footnotes, *unfinished(runs), *skipping(runs), *diverged(runs, name)])


def read_runs(patterns: Sequence[str], flag: str = "--runs") -> tuple[list[Trained], list[str]]:
    """The runs with metrics in the folders that match, in the order of their names, and lines that say which
    folders were left out, if any. Errors are about `flag`.

    Raises:
      UserError: there is none.
    """
    from transformer.run_folder import RunFolder
    from transformer.visualization.report import all_values

    if not patterns:
        raise UserError("--runs is required, such as 'runs/lm-sweep/*' (--mode=table)")
    runs = []
    damaged: list[str] = []
    without: list[str] = []
    for path in sorted({Path(folder) for pattern in patterns for folder in _matching(pattern)}):
        if not (path / "config.json").is_file():
            continue
        try:
            folder = RunFolder(path, is_written=False)
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
            runs.append(Trained(path, flatten(config), steps, measured))
        else:
            without.append(path.name)
    left_out = [*listed("with a damaged config.json", damaged), *listed("without metrics", without)]
    if not runs:
        why = "; ".join([f"{' '.join(patterns)} has no folder of a run with metrics", *left_out])
        raise UserError(f"{flag}: {why}")
    return runs, left_out


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


def over_keys(rows: Sequence[Row]) -> Iterator[tuple[str, list[tuple[str, list[float], list[list[float]]]]]]:
    """(key, curves) for each key whose values are numbers: a curve for each set of the other keys, with the
    values of the key and those of the metric for each of them."""
    for key in rows[0].keys:
        numbers = [row.keys[key] for row in rows]
        if any(isinstance(values, bool) or not isinstance(values, (int, float)) for values in numbers):
            continue
        curves: dict[str, dict[float, list[float]]] = {}
        for row in rows:
            rest = {name: value for name, value in row.keys.items() if name != key}
            name = label(dataclasses.replace(row, keys=rest)) if rest else ""
            curves.setdefault(name, {})[row.keys[key]] = row.values
        yield (
            key,
            [(name, sorted(values), [values[x] for x in sorted(values)]) for name, values in curves.items()],
        )
