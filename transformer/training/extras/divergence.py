"""When training goes wrong: too many skipped steps in a row, or a loss that leaps up."""

import dataclasses
import json
import statistics
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from transformer.errors import Recoverable, UserError
from transformer.training.logging.writers import whole_lines

if TYPE_CHECKING:
    from transformer.training.run_config import TrainConfig

REMEDY = "a lower optimizer.learning_rate or a longer warm-up may keep it so"

RECENT = 10
"""Logged losses that the next one is compared with."""


class Diverged(Recoverable):
    """Training has gone wrong in the steps `since` ... `step`; `values` are what would have been logged."""

    def __init__(self, why: str, since: int, step: int, values: Mapping[str, float] = {}) -> None:
        super().__init__(why)
        self.since, self.step, self.values = since, step, dict(values)


@dataclasses.dataclass
class Watch:
    """Raises where training goes wrong: `train.max_skipped` steps in a row, or all of a shorter run, had a
    gradient that is not finite; or a logged loss is not finite, or exceeds the median of the `RECENT` before
    by more than `train.spike`.

    The losses that a resumed run had logged before are read from `metrics` when they are first needed.
    """

    config: "TrainConfig"
    metrics: Path | None = None
    in_a_row: int = 0  # steps that were skipped, up to the last one
    _losses: deque[float] | None = None

    @property
    def doubtful(self) -> bool:
        """Whether the last step was skipped, so that its state is none to go back to."""
        return bool(self.in_a_row and self.config.rollbacks)

    def step(self, step: int, skipped: bool) -> None:
        """Looks at a step.

        Raises:
          Diverged: as above, or with `train.rollbacks` 0 another `UserError`.
        """
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        if self.in_a_row == min(self.config.max_skipped, self.config.steps) and skipped:
            why = (
                f"train.max_skipped: the gradient was not finite in {self.in_a_row} steps in a row, "
                f"up to step {step}"
            )
            since = step - self.in_a_row + 1
            if not self.config.rollbacks:
                where = f"--mode=replay --step={since} names the module where it begins"
                raise UserError(f"{why}; {REMEDY}; {where}")
            raise Diverged(why, since, step)

    def window(self, step: int, values: Mapping[str, float]) -> None:
        """Looks at the values of steps up to `step`, before they are logged; raises as above."""
        if not self.config.spike or "train/loss" not in values:
            return
        if self._losses is None:
            self._losses = deque(_logged(self.metrics, step), RECENT)
        loss = values["train/loss"]
        if len(self._losses) == RECENT:
            usual = statistics.median(self._losses)
            if not loss - usual <= self.config.spike:
                since = max(1, step - self.config.log_every + 1)
                why = (
                    f"train.spike: the loss of step {step}, {loss:.4g}, exceeds {usual:.4g}, "
                    f"the median of the {RECENT} logged before, by more than {self.config.spike:g}"
                )
                raise Diverged(why, since, step, values)
        self._losses.append(loss)


def _logged(metrics: Path | None, step: int) -> list[float]:
    """The finite training losses that were logged before `step`."""
    if metrics is None or not metrics.exists():
        return []
    losses = [json.loads(line).get("train/loss") for line in whole_lines(metrics, step - 1)]
    return [loss for loss in losses if loss is not None]
