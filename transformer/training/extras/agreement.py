"""Decisions that the processes of a run take together between two steps."""

import dataclasses
import time

import jax
import numpy as np

SECONDS = 3.0
"""Time between two agreements, unless a step takes longer."""


@dataclasses.dataclass
class Agreement:
    """The largest value that any process gives, at steps that all of them know.

    Stopping and saving are collective, and none may be left waiting in them. Asking waits for the device, so
    that several processes ask one another only about every `SECONDS`, or after every step if it takes longer.
    As their clocks differ, they agree on the next step to ask at too: the first one that any of them wants,
    by its time since they last asked. The number of steps at most doubles, for few of them say little.
    """

    due: int = 0  # the step to ask at
    steps: int = 0  # from the last agreement to this step; 0 before the first one
    agreed: float = 0.0  # the time of the last agreement

    def largest(self, step: int, *values: int) -> tuple[int, ...]:
        """The largest of each value that any process gives after `step`, or zeros if they do not ask there.
        Every process calls this after every step."""
        if jax.process_count() == 1:
            return values
        if step < self.due:
            return (0,) * len(values)
        given_pk = _gathered([self._wanted(), *values])
        self.steps = int(given_pk[:, 0].min())
        self.due = step + self.steps
        return tuple(map(int, given_pk[:, 1:].max(axis=0)))

    def _wanted(self) -> int:
        """The number of steps to the next agreement that takes `SECONDS` by this process's clock."""
        before, self.agreed = self.agreed, time.monotonic()
        return max(1, min(2 * self.steps, int(self.steps * SECONDS / max(self.agreed - before, 1e-9))))


def any_of(flag: bool) -> bool:
    """Whether any process gives True; every process must call this."""
    return flag if jax.process_count() == 1 else bool(_gathered([flag]).any())


def _gathered(values: list[int]) -> np.ndarray:
    """(p, k) int32: the k values of each process."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(np.array(values, np.int32)))
