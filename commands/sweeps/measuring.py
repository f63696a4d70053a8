"""Runs of which a metric is needed: what they have measured last, and their training."""

import math
from collections.abc import Sequence
from pathlib import Path

from commands.sweeps.jobs import Job, Work
from transformer.errors import UserError

GAVE_UP = ("error: train.max_skipped:", "error: train.spike:")
"""Prefixes of the last line of a run that gave up because it had diverged."""


def last(job: Job, metric: str) -> float:
    """The last value that a run has measured of a metric, "-METRIC" too; NaN if it has diverged.

    Raises:
      UserError: it has measured none.
    """
    if job.outcome == "diverged":
        return math.nan
    metric = metric.removeprefix("-")
    if not (values := job.measured(metric)):
        raise UserError(f"--metric: {job.folder} has not measured {metric}")
    return values[-1][1]


def finite(value: float, metric: str, folder: Path) -> float:
    """The value of a run in this folder; raises `UserError` if it is not finite."""
    if math.isnan(value):
        name = metric.removeprefix("-")
        raise UserError(f"--metric: the last {name} of {folder} is not finite: there is nothing to compare")
    return value


def train(jobs: Sequence[Job], at_once: int, metric: str) -> int:
    """Trains jobs; returns their exit code.

    Raises:
      UserError: one has not measured the metric; the others are stopped.
    """
    work = Measuring(jobs, at_once)
    work.metric = metric
    for job in jobs:
        work.check(job)
    return work.run()


class Measuring(Work):
    """Jobs that end with the first that has finished without having measured `metric`. One that gives up
    since it has diverged has not failed: that is what it measured."""

    metric = ""

    def check(self, job: Job) -> None:
        """Raises `UserError` if the job has finished and not measured the metric."""
        if job.outcome == "finished":
            last(job, self.metric)

    def fail(self, job: Job, code: int) -> None:
        """Counts a job that has failed, or notes that it has diverged."""
        if (line := job.last_line()).startswith(GAVE_UP):
            job.record("diverged", code=code)
            self.end(job, f"diverged: {line.removeprefix('error: ')}")
        else:
            super().fail(job, code)

    def end(self, job: Job, how: str) -> None:
        """Says how a job has ended, and checks it."""
        super().end(job, how)
        self.check(job)
