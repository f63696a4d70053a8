"""The rows of a table against one of them: differences between runs of the same seed."""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from commands.rows import DIVERGED, Row, Trained, label, or_null, rank
from transformer.errors import UserError
from transformer.evaluation.paired import interval
from transformer.sweep import shortened

ERROR = 0.05
"""The probability that a true difference is outside of its interval."""


@dataclasses.dataclass(frozen=True)
class Change(Row):
    """A row with only those keys that differ from another row's, and its differences from that row."""

    differences: list[float]

    @property
    def mean_difference(self) -> float:
        """The mean difference."""
        return sum(self.differences) / len(self.differences)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the mean difference; all numbers, if a run has diverged."""
        if math.isnan(self.mean_difference):
            return -math.inf, math.inf
        return interval(self.differences, ERROR)

    def more(self) -> dict[str, Any]:
        """Differences and interval (null: infinite, or of runs that have diverged)."""
        found = {"differences": self.differences, "interval": self.interval}
        return {name: [*map(or_null, numbers)] for name, numbers in found.items()}

    @property
    def is_shown(self) -> bool:
        """Whether zero is outside of the interval."""
        low, high = self.interval
        return low > 0 or high < 0


def changes(rows: Sequence[Row], others: Sequence[Trained], metric: str, sign: int) -> list[Change]:
    """Every other row with a pair against the one that has the runs `others`, the best difference first.

    Raises:
      UserError: these are of several rows, or none has measured the metric; or no other run has a seed of
        theirs, or two of a row have the same.
    """
    paths = {run.path for run in others}
    found = [row for row in rows if any(run.path in paths for run in row.runs)]
    if len(found) > 1:
        differing = [key for key in found[0].keys if len({repr(row.keys[key]) for row in found}) > 1]
        named = ", ".join(shortened(differing))
        raise UserError(
            f"--against: its runs differ in {named}; expected runs that differ in their seed alone"
        )
    plain, compared = found[0], []
    expected = _by_seed(plain, metric)
    if not expected:
        raise UserError(f"--against: no run has measured {metric}")
    for row in rows:
        if row is plain:
            continue
        keys = {key: value for key, value in row.keys.items() if value != plain.keys[key]}
        values = _by_seed(row, metric)
        if both := sorted(expected.keys() & values.keys()):
            differences = [values[seed] - expected[seed] for seed in both]
            compared.append(Change(keys, row.runs, row.values, differences))
    if not compared:
        seeds = ", ".join(map(str, sorted(expected)))
        raise UserError(f"--against: no other run has measured {metric} with one of its seeds, {seeds}")
    return sorted(compared, key=lambda row: rank(sign * row.mean_difference))


def _by_seed(row: Row, metric: str) -> dict[int, float]:
    measured = [run for run in row.runs if metric in run.measured]
    found: dict[int, float] = {}
    for run, value in zip(measured, row.values, strict=True):
        if (seed := run.config["seed"]) in found:
            raise UserError(f"--against: two runs have seed {seed}, {run.path} is one; expected one of each")
        found[seed] = value
    return found


def cells(rows: Sequence[Change], metric: str) -> Iterator[list[str]]:
    """The heading and the rows as text."""
    yield ["change", metric, "difference", f"{1 - ERROR:.0%} interval", "pairs"]
    for row in rows:
        low, high = row.interval
        ends = f"{low:+.4f} to {high:+.4f}" if math.isfinite(low) else ""
        numbers = [f"{row.mean:.4f}", f"{row.mean_difference:+.4f}"]
        if math.isnan(row.mean_difference):
            numbers = [DIVERGED, ""]
        yield [label(row), *numbers, ends, str(len(row.differences))]
