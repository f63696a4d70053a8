"""When to leave or to save, for reasons from outside: Ctrl-C, SIGTERM from a scheduler, the clock."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import jax
import numpy as np

AGREE_EVERY = 10


class Stopped(BaseException):
    """The first signal came where what is being done need not be finished."""


class SaveClock:
    """Says when `minutes` have passed since the last save (0: never)."""

    def __init__(self, minutes: float) -> None:
        self._seconds = 60 * minutes
        self.restart()

    def restart(self) -> None:
        """Counts from now on."""
        self._since = time.monotonic()

    def agreed(self, step: int) -> bool:
        """Whether to save after `step`, the same on all processes: several ask the first one's clock every
        `AGREE_EVERY` steps, for saving is collective; this waits for the device."""
        if not self._seconds:
            return False
        late = time.monotonic() - self._since >= self._seconds
        if jax.process_count() > 1:
            if step % AGREE_EVERY:
                return False
            from jax.experimental import multihost_utils

            late = bool(multihost_utils.broadcast_one_to_all(np.int32(late)))
        return late


class StopRequest:
    """A context in which the first SIGINT or SIGTERM is only noted. After it a SIGINT interrupts at once; a
    SIGTERM does not, for schedulers send it twice."""

    def __init__(self) -> None:
        self._received = 0
        self._raising = False
        self._before: dict[int, object] = {}

    def agreed(self, step: int) -> str | None:
        """The name of the signal by which to stop after `step`, the same on all processes.

        A single process stops at the next step. Several ask one another every `AGREE_EVERY` steps, so that
        they stop at the same step and none is left waiting in a collective; this waits for the device.
        """
        received = self._received
        if jax.process_count() > 1:
            if step % AGREE_EVERY:
                return None
            from jax.experimental import multihost_utils

            received = int(np.max(multihost_utils.process_allgather(np.int32(received))))
        return signal.Signals(received).name if received else None

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Around what may take long and need not be finished: in a single process the first signal, also one
        that came before, is raised as `Stopped`. Several finish it, so that none is left in a collective."""
        self._raising = jax.process_count() == 1
        try:
            if self._raising and self._received:
                raise Stopped
            yield
        finally:
            self._raising = False

    @property
    def received(self) -> str:
        """The name of the signal that this process got first."""
        return signal.Signals(self._received).name

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._received and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self._received:
            self._received = number
            if self._raising:
                raise Stopped
