"""Saves checkpoints while training continues, also where the disk is full, fails or is slow."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

from transformer.errors import StorageError, UserError
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.storage import Home, reason
from transformer.training.extras.agreement import any_of
from transformer.training.state import State

RETRY_SECONDS = 60.0
"""Time from a save that failed to the next try, if no other is due before."""

SHARE, SLACK_SECONDS = 0.05, 10.0
"""Training waits for slow storage at most for this share of its time, or for this many seconds, if more."""


class Saving:
    """The saves of a run.

    A save that fails is said, what it has written is deleted, and the checkpoints before stay; it is tried
    again at the next one, or after `RETRY_SECONDS`. A save that is due while the one before is being written
    waits for it only as long as `SHARE` and `SLACK_SECONDS` allow, and comes then as soon as it may. With
    several processes a save that fails is an error: they cannot fail together.
    """

    def __init__(self, checkpoints: Checkpoints | None, warn: Callable[[str], None]) -> None:
        self._checkpoints, self._warn = checkpoints, warn
        self._home = Home(Path(checkpoints.directory).parent) if checkpoints is not None else None
        self._begun = self._tried = time.monotonic()
        self._waited = 0.0
        self._step: int | None = None  # the last save that was started, until it is known how it ended
        self._due = False  # it failed, or one was put off
        self._failed = ""  # why the last one failed

    def check(self, step: int) -> None:
        """Raises `StorageError` if the run's folder is no longer there: nothing may be written into another
        one."""
        if self._home is not None and not self._home.is_there():
            checkpoints: Checkpoints = self._checkpoints  # type: ignore[assignment]
            folder = os.path.dirname(checkpoints.directory)
            raise StorageError(f"{folder} was removed or moved while it was in training, before step {step}")

    def is_late(self) -> bool:
        """Whether a save that failed or was put off may be tried now."""
        if not self._due or self._is_writing():
            return False
        return not self._failed or time.monotonic() - self._tried >= RETRY_SECONDS

    def look(self) -> None:
        """Says it if the save that was being written has failed; does not wait."""
        if self._step is not None and jax.process_count() == 1 and not self._is_writing():
            self.wait()

    def save(
        self, step: int, state: State, metrics: Mapping[str, float] | None = None, at_once: bool = True
    ) -> None:
        """Copies the state and returns, with `at_once` False perhaps without having done so."""
        start = time.monotonic()
        if self._checkpoints is not None and (at_once or not self._must_wait()):
            self._begin(self._checkpoints, step, state, metrics)
        if not at_once:
            self._waited += time.monotonic() - start

    def _begin(
        self, checkpoints: Checkpoints, step: int, state: State, metrics: Mapping[str, float] | None
    ) -> None:
        self.wait()
        if jax.process_count() > 1 and not self._has_room(state):
            self._has_failed(step, "there is not room enough for it")
            return
        self._tried, self._due = time.monotonic(), False
        try:
            checkpoints.save(step, state, metrics)
            self._step = step
        except (UserError, MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            self._undo(step, error)

    def wait(self) -> bool:
        """Waits until the last save is written; returns whether it is."""
        if self._checkpoints is not None and self._step is not None:
            step, self._step = self._step, None
            try:
                self._checkpoints.wait()
                if self._failed:
                    self._warn(f"step {step} is saved again")
                self._failed = ""
            except Exception as error:
                self._undo(step, error)
        return not self._failed

    def finish(self) -> None:
        """Waits for the last save; raises `StorageError` if it has failed."""
        if not self.wait():
            raise StorageError(f"{self._failed}; the same command continues from there")

    def abandon(self) -> None:
        """Does not wait for the save that is being written, which other processes take part in."""
        self._step = None

    def close(self) -> None:
        """Waits for the last save, as at the end of training."""
        self.wait()
        if self._home is not None:
            self._home.close()

    def _is_writing(self) -> bool:
        return self._checkpoints is not None and self._checkpoints.is_saving()

    def _must_wait(self) -> bool:
        """Whether the save before is still being written, after it was waited for as long as may be."""
        start = time.monotonic()
        allowed = max(SLACK_SECONDS, SHARE * (start - self._begun)) - self._waited
        while self._is_writing() and time.monotonic() - start < allowed:
            time.sleep(0.01)
        if not any_of(self._is_writing()):
            return False
        if not self._due:
            self._warn(f"the checkpoint of step {self._step} is still being written: the next one is put off")
        self._due = True
        return True

    def _has_room(self, state: State) -> bool:
        """Whether the disk has room for another checkpoint, by the first process."""
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        there: Checkpoints = self._checkpoints  # type: ignore[assignment]
        return not any_of(jax.process_index() == 0 and there.room() < size)

    def _undo(self, step: int, error: Exception) -> None:
        self._has_failed(step, reason(error), error)
        if self._home is not None and self._home.is_there():
            with contextlib.suppress(Exception):
                self._checkpoints.reopen()  # type: ignore[union-attr]

    def _has_failed(self, step: int, why: str, error: Exception | None = None) -> None:
        checkpoints: Checkpoints = self._checkpoints  # type: ignore[assignment]
        kept = max(checkpoints.written(), default=None)
        last = "there is none before it" if kept is None else f"the last one is of step {kept}"
        self._failed = f"{checkpoints.directory}: step {step} could not be saved ({why}); {last}"
        self._due = True
        if error is not None and jax.process_count() > 1:
            raise StorageError(self._failed) from error
        self._warn(self._failed)
