"""What the training loop measures: means over a window of steps, throughput, waiting, skipped steps."""

import contextlib
import time
from collections.abc import Iterator, Mapping

import jax

from transformer.errors import UserError
from transformer.training.metrics import Sum, merge
from transformer.training.schedules import Schedule


class Meter:
    """Turns the metrics of steps into the values of a window, `{"train/loss": ...}`.

    Time counts from the end of one step to the end of another, without what `pause` encloses (evaluation,
    saving) and without the first step, which is compiled: its own time, from `started`
    (`time.perf_counter()`), is `train/seconds_to_first_step`. `train/input_wait` is the share of the time
    in which the host waited for a batch. Skipped steps are counted, and left out of every mean.

    Args:
      tokens_per_step: tokens of the global batch.
      learning_rate: the schedule, rate by the count of updates made.
      max_skipped: how many steps in a row may be skipped (0: any number).
      skipped: steps skipped before, as the restored state says.
      flops_per_token, peak_flops: of the model, and of all devices together; without either there is no
        `train/mfu` = tokens/s x FLOPs per token / peak FLOP/s.
    """

    def __init__(
        self,
        *,
        tokens_per_step: int,
        learning_rate: Schedule,
        max_skipped: int,
        skipped: int = 0,
        started: float | None = None,
        flops_per_token: float | None = None,
        peak_flops: float | None = None,
    ):
        self.latest: dict[str, float] = {}
        self._tokens_per_step = tokens_per_step
        self._learning_rate = learning_rate
        self._max_skipped = max_skipped
        self._skipped = skipped
        self._in_a_row = 0
        self._started = time.perf_counter() if started is None else started
        self._utilisation = flops_per_token / peak_flops if flops_per_token and peak_flops else None
        self._once: dict[str, float] = {}
        self._first = True
        self._step = 0
        self._sums: dict[str, Sum] = {}
        self._steps = 0
        self._reset(self._started)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what waits for the next batch."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Around what is not training."""
        start = time.perf_counter()
        yield
        self._paused += time.perf_counter() - start

    def read(self, step: int, metrics: Mapping[str, Sum]) -> None:
        """Waits for the end of `step` and takes its metrics.

        Raises:
          UserError: too many steps in a row had a gradient that is not finite.
        """
        host = jax.tree.map(float, jax.device_get(dict(metrics)))
        now = time.perf_counter()
        self._step = step
        if self._first:
            self._first = False
            self._once["train/seconds_to_first_step"] = now - self._started
            self._reset(now)
        else:
            self._steps += 1
        self._end = now
        if host.pop("skipped_steps", Sum(0.0, 1.0)).total:
            self._skipped += 1
            self._in_a_row += 1
            if self._in_a_row == self._max_skipped:
                raise UserError(
                    f"train.max_skipped: the gradient was not finite in {self._in_a_row} steps in a row, "
                    f"up to step {step}; a lower optimizer.learning_rate or a longer warm-up may keep it so"
                )
            return
        self._in_a_row = 0
        self._sums = merge([self._sums, host])
        self.latest |= {f"train/{name}": float(value.mean) for name, value in host.items()}

    def window(self) -> dict[str, float]:
        """The values since the last call, up to the last step read."""
        values = {f"train/{name}": float(value.mean) for name, value in self._sums.items()}
        updates = max(0, self._step - 1 - self._skipped)
        values["train/learning_rate"] = float(self._learning_rate(updates))
        values["train/skipped_steps"] = self._skipped
        elapsed = self._end - self._start - self._paused
        if self._steps and elapsed > 0:
            rate = self._steps * self._tokens_per_step / elapsed
            values["train/tokens_per_second"] = rate
            values["train/seconds_per_step"] = elapsed / self._steps
            values["train/input_wait"] = min(1.0, self._waited / elapsed)
            if self._utilisation:
                values["train/mfu"] = rate * self._utilisation
        values |= self._once
        self.latest |= values
        self._once, self._sums = {}, {}
        self._reset(self._end)
        return values

    def _reset(self, now: float) -> None:
        self._start = self._end = now
        self._paused = self._waited = 0.0
        self._steps = 0
