"""Trained runs, and rows of them that differ in their seed alone."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commands.sweeps.algebra import shortened

DIVERGED = "diverged"
"""In the place of a mean of runs of which one has diverged."""

TRAINED = "train/loss"
"""The metric that tells whether a run had diverged after its last evaluation, or before its first."""

SKIPPED = "train/skipped_steps"
"""Logged without `TRAINED` where all steps since the last logged one were skipped."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run's folder: the values of its config by key, the steps of the whole run, and the steps and values
    of its metrics, NaN where they were not finite."""

    path: Path
    config: dict[str, Any]
    steps: int
    measured: dict[str, tuple[Any, Any]]

    @functools.cached_property
    def series(self) -> dict[str, tuple[Any, Any]]:
        """The finite values."""
        from transformer.visualization.report import finite_series

        return finite_series(self.measured)

    @property
    def last_step(self) -> int:
        """The last step that was measured."""
        return max(int(steps[-1]) for steps, _ in self.measured.values())

    def step_of(self, metric: str) -> int:
        """The last step at which a metric was measured, 0 if it never was."""
        return int(self.measured[metric][0][-1]) if metric in self.measured else 0

    def has_diverged(self, metric: str) -> bool:
        """Whether the last value of a metric is not finite, or the training loss after it.
        At its end a run has measured all of its metrics."""
        if metric in self.measured and math.isnan(self._end(metric)):
            return True
        trained, skipped = self.step_of(TRAINED), self.step_of(SKIPPED)
        lost = skipped > trained or (TRAINED in self.measured and math.isnan(self._end(TRAINED)))
        return lost and self.last_step < self.steps and max(trained, skipped) > self.step_of(metric)

    def has(self, metric: str) -> bool:
        """Whether the value of a metric is known: it was measured, or the run has diverged."""
        return metric in self.measured or self.has_diverged(metric)

    def last(self, metric: str) -> float:
        """The last value of a metric, NaN if the run has diverged."""
        return math.nan if self.has_diverged(metric) else self._end(metric)

    def _end(self, metric: str) -> float:
        return float(self.measured[metric][1][-1])

    def best(self, metric: str, sign: int) -> float:
        """The least finite value of a metric, for sign -1 the greatest; NaN if there is none."""
        return sign * float(min(sign * self.series[metric][1])) if metric in self.series else math.nan


@dataclasses.dataclass(frozen=True)
class Row:
    """Runs that differ in their seed alone, with a value of the metric for each, NaN for one that has
    diverged; and those without a value like theirs: not measured, or at an earlier step."""

    keys: dict[str, Any]
    runs: list[Trained]
    values: list[float]
    uncounted: list[Trained] = dataclasses.field(default_factory=list, kw_only=True)

    @property
    def every(self) -> list[Trained]:
        """All runs, those with a value first."""
        return [*self.runs, *self.uncounted]

    @property
    def columns(self) -> dict[str, Any]:
        """The keys that have a column of their own in a table, and their values."""
        return self.keys

    def heading(self, metric: str) -> list[str]:
        """The headings of `cells`."""
        return [metric, "spread", "runs"]

    def cells(self) -> list[str]:
        """The headings of a table's columns after those of the keys."""
        mean, spread = ("" if math.isnan(number) else f"{number:.5g}" for number in (self.mean, self.spread))
        return [DIVERGED if self.has_diverged else mean, spread, str(len(self.values))]

    def curves(self, metric: str) -> list[tuple[Any, Any]]:
        """Steps and values of a metric, of each run that measured it."""
        return [run.series[metric] for run in self.every if metric in run.series]

    @property
    def mean(self) -> float:
        """The mean over runs; NaN without any."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """The standard deviation over runs, of n - 1 degrees of freedom; NaN for fewer than two, or if one
        has diverged."""
        many = len(self.values) > 1 and math.isfinite(self.mean)
        return statistics.stdev(self.values) if many else math.nan

    @property
    def has_diverged(self) -> bool:
        """Whether it has values, and one of them is NaN."""
        return any(map(math.isnan, self.values))

    def more(self) -> dict[str, Any]:
        """Further values for a file."""
        return {}


def row_of(
    keys: dict[str, Any], trained: Sequence[Trained], metric: str, sign: int, best: bool = False
) -> Row:
    """The row of runs that differ in their seed alone. Their values are those of the furthest step that
    one of them has measured; a run that has diverged has one, NaN, wherever it was."""
    furthest = max((run.step_of(metric) for run in trained if not run.has_diverged(metric)), default=0)
    counted = [
        run
        for run in trained
        if run.has(metric) and (run.has_diverged(metric) or run.step_of(metric) == furthest)
    ]
    values = [run.best(metric, sign) if best else run.last(metric) for run in counted]
    return Row(keys, counted, values, uncounted=[run for run in trained if run not in counted])


def rank(value: float) -> float:
    """The place of a value where less is better: NaN is behind all others."""
    return math.inf if math.isnan(value) else value


def or_null(number: float) -> float | None:
    """A number for JSON, which has none that are not finite."""
    return number if math.isfinite(number) else None


def label(row: Row) -> str:
    """The values of a row's keys in one line."""
    pairs = zip(shortened(row.keys), row.keys.values(), strict=True)
    return ", ".join(f"{name} {value}" for name, value in pairs) or row.every[0].path.name
