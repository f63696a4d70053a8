"""The runs of a study in a notebook: the table as data, and its curves."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from commands.sweeps.table_files import as_data
from commands.table import Table, tabulate
from transformer.visualization.run_curves import draw_curves
from workdir.api import Picture


def rows(
    runs: str | os.PathLike | Sequence[str | os.PathLike], metric: str = "eval/loss", **options: Any
) -> list[dict[str, Any]]:
    """The rows of --mode=table as in a .json of it: keys, mean and spread over seeds, and the value, seed and
    folder of each run; `pandas.json_normalize(rows(...))` makes a frame of them.

    `runs` are folders, also as patterns: "runs/rate/*". -METRIC is one of which more is better. `options` are
    those of `tabulate`: against="runs/rate/norm=layer,*", at=["d_model"], best=True. Prints the footnotes of
    the table: runs that were left out, have not finished or have diverged.

    Raises:
      UserError: where `launch.py` prints an error.
    """
    table = _table(runs, metric, options)
    return as_data(table.rows, table.metric)


def bands(
    runs: str | os.PathLike | Sequence[str | os.PathLike], metric: str = "eval/loss", **options: Any
) -> Picture:
    """The curve of each row of `rows`: the mean over its runs, and a band from the least to the greatest.
    Prints and raises as `rows`."""
    table = _table(runs, metric, options)
    return Picture(draw_curves, table.curves(), table.metric)


def _table(runs: Any, metric: str, options: Mapping[str, Any]) -> Table:
    patterns = [runs] if isinstance(runs, str | os.PathLike) else runs
    table = tabulate([*map(os.fspath, patterns)], metric, **options)
    print(*table.footnotes, sep="\n", end="\n" if table.footnotes else "")
    return table
