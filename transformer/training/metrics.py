"""Metrics, `Sum`s by name (see `transformer/sums.py`), and a meter that turns them into logged values."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import jax

from transformer.sums import Sum
from transformer.training.optim.schedules import Schedule

if TYPE_CHECKING:
    from transformer.training.extras.divergence import Watch

__all__ = ["Meter", "Sum", "merge"]


def merge(parts: Iterable[Mapping[str, Sum]]) -> dict[str, Sum]:
    """Adds dictionaries of `Sum`s by name; names may be missing in some of them."""
    merged: dict[str, Sum] = {}
    for part in parts:
        for name, value in part.items():
            merged[name] = merged[name] + value if name in merged else value
    return merged


@dataclasses.dataclass(kw_only=True)
class Meter:
    """Turns the metrics of steps into logged values of a window of steps, `{"train/loss": ...}`.

    Time is measured from the end of one step to the end of another, without `pause` contexts (evaluation,
    saving) and without the first step, which compiles: `train/seconds_to_first_step` is its time from
    `started` (by `time.perf_counter()`), and `train/step_gb` the memory of a step. `train/input_wait` is the
    share of time in which the host waited for a batch. Skipped steps are counted, and left out of all means.

    `train/mfu` = tokens/s / `peak_rate()`, the tokens/s at the devices' peak FLOP/s; omitted if that is None.
    """

    tokens_per_step: float  # of the global batch
    learning_rate: Schedule
    watch: "Watch"  # for what goes wrong
    skipped: int = 0  # steps skipped so far, by the restored state
    started: float = dataclasses.field(default_factory=time.perf_counter)
    peak_rate: Callable[[], float | None]  # peak FLOP/s of all devices / the model's FLOPs per token
    step_gb: Callable[[], float | None] = lambda: None  # memory of the compiled step on a device, in GiB
    latest: dict[str, float] = dataclasses.field(default_factory=dict, init=False)
    """The last value of each name."""
    _step: int = dataclasses.field(default=0, init=False)  # the last step that was read
    _steps: int = dataclasses.field(default=0, init=False)  # of the window
    _once: dict[str, float] = dataclasses.field(default_factory=dict, init=False)
    _first: bool = dataclasses.field(default=True, init=False)
    _sums: dict[str, Sum] = dataclasses.field(default_factory=dict, init=False)
    _paused: float = dataclasses.field(default=0.0, init=False)  # seconds
    _waited: float = dataclasses.field(default=0.0, init=False)

    def add_wait(self, seconds: float) -> None:
        """Counts time in which the host waited for a batch."""
        self._waited += seconds

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """A context for work that is not training."""
        start = time.perf_counter()
        yield
        self._paused += time.perf_counter() - start

    def read(self, step: int, metrics: Mapping[str, Sum]) -> None:
        """Waits for the end of `step` and reads its metrics.

        Raises:
          UserError: too many consecutive steps had a non-finite gradient (see `Watch`).
        """
        host = jax.tree.map(float, jax.device_get(dict(metrics)))
        now = time.perf_counter()
        self._step = step
        if self._first:
            self._first = False
            self._once["train/seconds_to_first_step"] = now - self.started
            if (size := self.step_gb()) is not None:
                self._once["train/step_gb"] = size
            self._reset(now)
        else:
            self._steps += 1
        self._end = now
        skipped = bool(host.pop("skipped_steps", Sum(0.0, 1.0)).total)
        self.watch.step(step, skipped)
        if skipped:
            self.skipped += 1
            return
        self._sums = merge([self._sums, host])
        self.latest |= {f"train/{name}": float(value.mean) for name, value in host.items()}

    def window(self) -> dict[str, float]:
        """The values of the steps since the last call; raises `Diverged` if they show that training has gone
        wrong."""
        values = {f"train/{name}": float(value.mean) for name, value in self._sums.items()}
        values["train/learning_rate"] = float(self.learning_rate(self._step - 1))
        values["train/skipped_steps"] = self.skipped
        elapsed = self._end - self._start - self._paused
        if self._steps and elapsed > 0:
            rate = self._steps * self.tokens_per_step / elapsed
            values["train/tokens_per_second"] = rate
            values["train/seconds_per_step"] = elapsed / self._steps
            values["train/input_wait"] = min(1.0, self._waited / elapsed)
            if peak_rate := self.peak_rate():
                values["train/mfu"] = rate / peak_rate
        values |= self._once
        self.watch.window(self._step, values)
        self.latest |= values
        self._once, self._sums = {}, {}
        self._reset(self._end)
        return values

    def _reset(self, now: float) -> None:
        self._start = self._end = now
        self._paused = self._waited = 0.0
        self._steps = 0
