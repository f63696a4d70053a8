"""The rows of a table against one of them: differences between runs of the same seed."""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from commands.footnotes import listed
from commands.rows import DIVERGED, Row, Trained, label, or_null, rank
from transformer.errors import UserError
from transformer.evaluation.paired import interval
from transformer.sweep import shortened

ERROR = 0.05
"""The probability that a true difference is outside of its interval."""


@dataclasses.dataclass(frozen=True)
class Change(Row):
    """A row with only those keys that differ from another row's, and its differences from that row: of pairs
    of which that row's run has not diverged, NaN where its own has."""

    differences: list[float]

    @property
    def mean_difference(self) -> float:
        """The mean difference; NaN without any, or if a run has diverged."""
        known = self.differences and not self.has_diverged
        return statistics.fmean(self.differences) if known else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the mean difference; all numbers, if that is NaN."""
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


Pair = tuple[int, float, float]
"""A seed, and the values of two runs that have it, NaN for one that has diverged."""


def changes(
    rows: Sequence[Row], others: Sequence[Trained], metric: str, sign: int
) -> tuple[list[Change], list[str]]:
    """Every other row with a pair against the one that has the runs `others`, the best difference first; and
    lines that say which runs are in no difference, and why.

    Raises:
      UserError: these are of several rows, or none has measured the metric; or no other run has a seed of
        theirs, or two of a row have the same.
    """
    paths = {run.path for run in others}
    plain = only([row for row in rows if any(run.path in paths for run in row.every)], "--against")
    if not plain.runs:
        raise UserError(f"--against: no run has measured {metric}")
    compared: list[Change] = []
    left_out: dict[str, list[str]] = {}
    for row in rows:
        if row is plain:
            continue
        keys = {key: value for key, value in row.keys.items() if value != plain.keys[key]}
        both, why = pairs(plain, row, metric, "--against", "--against")
        lost = {seed for seed, expected, value in both if math.isnan(expected) and not math.isnan(value)}
        why |= {"the --against run of the seed has diverged": [
            run.path.name for run in row.runs if run.config["seed"] in lost
        ]}  # fmt: skip
        for reason, names in why.items():
            left_out.setdefault(reason, []).extend(names)
        if both:
            found = [value - expected for seed, expected, value in both if seed not in lost]
            compared.append(Change(keys, row.runs, row.values, found, others=row.others))
    if not compared:
        seeds = ", ".join(str(run.config["seed"]) for run in plain.runs)
        raise UserError(f"--against: no other run has measured {metric} with one of its seeds, {seeds}")
    lines = [line for why, names in left_out.items() for line in listed(f"in no difference, as {why}", names)]
    return sorted(compared, key=lambda row: rank(sign * row.mean_difference)), lines


def only(rows: Sequence[Row], flag: str) -> Row:
    """The row, if it is the only one. Raises `UserError` if there are several."""
    if len(rows) > 1:
        differing = [key for key in rows[0].keys if len({repr(row.keys[key]) for row in rows}) > 1]
        named = ", ".join(shortened(differing))
        raise UserError(f"{flag}: its runs differ in {named}; expected runs that differ in their seed alone")
    return rows[0]


def pairs(a: Row, b: Row, metric: str, flag_a: str, flag_b: str) -> tuple[list[Pair], dict[str, list[str]]]:
    """The pairs of runs of one seed, and the runs of `b` that are in none, by the reason.

    Two runs of equal length are a pair if they have measured the metric last at the same step; two of other
    lengths if both are finished. One that has diverged is paired wherever it ended.

    Raises:
      UserError: two runs of a row have the same seed; the flag is that of its runs.
    """
    of_a, of_b = _by_seed(a, flag_a), _by_seed(b, flag_b)
    found: list[Pair] = []
    left_out: dict[str, list[str]] = {
        f"{flag_a} has no value for the seed": [],
        f"the {flag_a} run of the seed was measured at another step": [],
    }
    alone, elsewhere = left_out.values()
    for seed, (run, value) in of_b.items():
        if seed not in of_a:
            alone.append(run.path.name)
            continue
        other, expected = of_a[seed]
        if math.isnan(value + expected) or _as_far(run, other, metric):
            found.append((seed, expected, value))
        else:
            elsewhere.append(f"{run.path.name} at {run.step_of(metric)}, not {other.step_of(metric)}")
    return sorted(found), left_out


def _as_far(run: Trained, other: Trained, metric: str) -> bool:
    """Whether two runs have measured a metric at the same place of their training."""
    if run.steps == other.steps:
        return run.step_of(metric) == other.step_of(metric)
    return all(each.last_step >= each.steps for each in (run, other))


def _by_seed(row: Row, flag: str) -> dict[int, tuple[Trained, float]]:
    found: dict[int, tuple[Trained, float]] = {}
    for run, value in zip(row.runs, row.values, strict=True):
        if (seed := run.config["seed"]) in found:
            raise UserError(f"{flag}: two runs have seed {seed}, {run.path} is one; expected one of each")
        found[seed] = run, value
    return found


def cells(rows: Sequence[Change], metric: str) -> Iterator[list[str]]:
    """The heading and the rows as text."""
    yield ["change", metric, "difference", f"{1 - ERROR:.0%} interval", "pairs"]
    for row in rows:
        low, high = row.interval
        ends = f"{low:+.4f} to {high:+.4f}" if math.isfinite(low) else ""
        mean = DIVERGED if row.has_diverged else f"{row.mean:.4f}"
        difference = "" if math.isnan(row.mean_difference) else f"{row.mean_difference:+.4f}"
        yield [label(row), mean, difference, ends, str(len(row.differences))]
