"""Runs of a sweep that are stopped early, since others are better."""

import dataclasses
import math
from collections.abc import Sequence

from commands.sweeps.jobs import Job
from transformer.errors import UserError


@dataclasses.dataclass
class Halving:
    """Stops runs whose metric is not among the best 1 / `factor` of all that reached the same step: after
    `start` steps, `factor` times as many, and so on. Each run is compared when it gets there, with those that
    did before, so that none waits for others (Li et al. 2020, "A system for massively parallel hyperparameter
    tuning", ASHA; here in the form that stops runs instead of pausing them).
    """

    metric: str
    sign: int
    start: int
    factor: int
    reached: dict[int, dict[str, float]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, metric: str, start: int, factor: int, jobs: Sequence[Job]) -> "Halving":
        """From flags: "-METRIC" if more of it is better.

        Raises:
          UserError: no evaluation at the first comparison, runs that are measured at different steps, or
            numbers out of bounds.
        """
        steps = max(job.steps for job in jobs)
        start = start or max(1, steps // 8)
        if factor < 2:
            raise UserError(f"--halving_factor: {factor}; expected 2 or more")
        if not 1 <= start < steps:
            raise UserError(f"--halving_start: {start}; expected 1 to {steps - 1}, within a run")
        of_training = metric.removeprefix("-").startswith("train/")
        key = "log_every" if of_training else "evaluate_every"
        intervals = sorted({job.values["train"][key] for job in jobs})
        if len(intervals) > 1:
            raise UserError(
                f"--halving: runs are compared at the same steps, but train.{key} differs, "
                f"{', '.join(map(str, intervals))}; expected the same in each"
            )
        if metric.removeprefix("-").startswith("eval/") and not 0 < intervals[0] < steps:
            raise UserError(
                f"--halving: {metric} is measured every train.evaluate_every={intervals[0]} of {steps} steps"
            )
        return cls(metric.removeprefix("-"), -1 if metric.startswith("-") else 1, start, factor)

    def check(self, job: Job) -> None:
        """Raises `UserError` if a job has finished without having measured the metric."""
        if job.outcome == "finished" and not job.measured(self.metric):
            raise UserError(f"--halving: {job.folder} has not measured {self.metric}: no run can be compared")

    def is_hopeless(self, job: Job) -> bool:
        """Compares a run at each step of comparison that it has reached since the last call. A run that
        has done all its steps is never hopeless: it is writing its results."""
        hopeless, step, last = False, self.start, job.step
        while step < job.steps and step <= last:
            table = self.reached.setdefault(step, {})
            if job.name not in table:
                value = next((value for at, value in job.measured(self.metric) if at >= step), None)
                if value is not None:
                    table[job.name] = math.inf if math.isnan(value) else self.sign * value
                    best = sorted(table.values())[: max(1, len(table) // self.factor)]
                    hopeless |= len(table) >= self.factor and not table[job.name] <= best[-1]
            step *= self.factor
        return hopeless and last < job.steps
