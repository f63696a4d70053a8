"""Signals that end training after the current step."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax


def signal_name(number: int) -> str:
    """The name of a signal, or "" for 0."""
    return signal.Signals(number).name if number else ""


SIGNALS = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP")
    if hasattr(signal, name) and (name, signal.getsignal(getattr(signal, name))) != ("SIGHUP", signal.SIG_IGN)
]
"""Signals that end training: of a terminal, of schedulers and clouds, those that Slurm's `--signal` is often
told to send before a job's time ends, and of a terminal that is closed, unless nohup has it ignored."""


class Stopped(BaseException):
    """Raised by the first signal during work that need not be finished."""


class StopRequest:
    """A context in which the first of `SIGNALS` is only recorded. A second SIGINT interrupts at once; another
    second one does not, because schedulers send them twice."""

    number = 0
    """The first signal that this process received; 0: none."""

    _raising = False

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """A context for long work that need not be finished: in a single process the first signal, also an
        earlier one, raises `Stopped`. Several processes finish the work, so that none waits in a
        collective."""
        self._raising = jax.process_count() == 1
        try:
            if self._raising and self.number:
                raise Stopped
            yield
        finally:
            self._raising = False

    @property
    def received(self) -> str:
        """The name of the first signal that this process received."""
        return signal_name(self.number)

    def __enter__(self) -> "StopRequest":
        main = threading.current_thread() is threading.main_thread()
        self._before = {number: signal.signal(number, self._record) for number in (SIGNALS if main else ())}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.number:
            self.number = number
            if self._raising:
                raise Stopped
