"""Leaving in good order when asked to: Ctrl-C, or SIGTERM from a scheduler."""

import signal
import threading
from types import FrameType

import jax
import numpy as np

AGREE_EVERY = 10


class StopRequest:
    """A context in which the first SIGINT or SIGTERM is only noted, and a second one interrupts at once."""

    def __init__(self) -> None:
        self._received = 0
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

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._received:
            raise KeyboardInterrupt
        self._received = number
