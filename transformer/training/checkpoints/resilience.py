"""Checkpoints that are saved while training continues, also where the disk is full, fails or is slow."""

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

from transformer.errors import StorageError, UserError
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.storage import reason
from transformer.training.extras.agreement import any_of
from transformer.training.state import State

RETRY_SECONDS = 60.0
"""Time from a save that failed to the next try, if no other is due before."""

WAITING_SHARE, WAITING_SECONDS = 0.05, 10.0
"""Training waits for slow storage at most for this share of its time, or for this many seconds, if more."""


class ResilientCheckpoints:
    """The `Checkpoints` of a run in training, with the same `save` and `wait`.

    A save that fails is reported, what it has written is deleted, and the checkpoints before stay; it is
    tried again at the next one, or after `RETRY_SECONDS`. A save that is due while the one before is being
    written waits for it only as long as `WAITING_SHARE` and `WAITING_SECONDS` allow, and comes then as soon
    as it may. With several processes a save that fails is an error: they cannot fail together.
    """

    def __init__(self, checkpoints: Checkpoints, warn: Callable[[str], None]) -> None:
        self._checkpoints, self._warn = checkpoints, warn
        self._folder = FolderIdentity(Path(checkpoints.directory).parent)
        self.started = self._tried = time.monotonic()
        self._waited = 0.0
        self._step: int | None = None  # the last save that was started, until it is known how it ended
        self._pending = False  # a save failed, or was put off
        self._failure = ""  # of the last save

    def check_folder(self, step: int) -> None:
        """Raises `StorageError` if the run's folder was removed or moved: nothing may be written into a
        different one."""
        if not self._folder.is_unchanged():
            folder = os.path.dirname(self._checkpoints.directory)
            raise StorageError(f"{folder} was removed or moved while it was in training, before step {step}")

    def is_late(self) -> bool:
        """Whether a save that failed or was put off may be tried now."""
        if not self._pending or self._checkpoints.is_saving():
            return False
        return not self._failure or time.monotonic() - self._tried >= RETRY_SECONDS

    def report_failure(self) -> None:
        """Reports whether the save that was being written has failed; does not wait."""
        if self._step is not None and jax.process_count() == 1 and not self._checkpoints.is_saving():
            self.wait()

    def save(
        self, step: int, state: State, metrics: Mapping[str, float] | None = None, at_once: bool = True
    ) -> None:
        """Copies the state and returns; with `at_once` False it may be put off."""
        start = time.monotonic()
        if at_once or not self._must_wait():
            self._start(step, state, metrics)
        if not at_once:
            self._waited += time.monotonic() - start

    def _start(self, step: int, state: State, metrics: Mapping[str, float] | None) -> None:
        self.wait()
        if jax.process_count() > 1 and not self._has_room(state):
            self._note_failure(step, "there is not room enough for it")
            return
        self._tried, self._pending = time.monotonic(), False
        try:
            self._checkpoints.save(step, state, metrics)
            self._step = step
        except (UserError, MemoryError, jax.errors.JaxRuntimeError):
            raise
        except Exception as error:
            self._undo(step, error)

    def wait(self) -> bool:
        """Waits until the last save is written; returns whether it is."""
        if self._step is not None:
            step, self._step = self._step, None
            try:
                self._checkpoints.wait()
                if self._failure:
                    self._warn(f"step {step} is saved again")
                self._failure = ""
            except Exception as error:
                self._undo(step, error)
        return not self._failure

    def finish(self) -> None:
        """Waits for the last save; raises `StorageError` if it has failed."""
        if not self.wait():
            raise StorageError(f"{self._failure}; the same command continues from there")

    def abandon(self) -> None:
        """Does not wait for the save that is being written, which other processes take part in."""
        self._step = None

    def close(self) -> None:
        """Waits for the last save, as at the end of training."""
        self.wait()
        self._folder.close()

    def _must_wait(self) -> bool:
        """Whether the save before is still being written, after the longest wait that is allowed."""
        start = time.monotonic()
        allowed = max(WAITING_SECONDS, WAITING_SHARE * (start - self.started)) - self._waited
        while self._checkpoints.is_saving() and time.monotonic() - start < allowed:
            time.sleep(0.01)
        if not any_of(self._checkpoints.is_saving()):
            return False
        if not self._pending:
            self._warn(f"the checkpoint of step {self._step} is still being written: the next one is put off")
        self._pending = True
        return True

    def _has_room(self, state: State) -> bool:
        """Whether the disk has room for a further checkpoint, by the first process."""
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        return not any_of(jax.process_index() == 0 and self._checkpoints.room() < size)

    def _undo(self, step: int, error: Exception) -> None:
        self._note_failure(step, reason(error), error)
        if self._folder.is_unchanged():
            with contextlib.suppress(Exception):
                self._checkpoints.reopen()

    def _note_failure(self, step: int, why: str, error: Exception | None = None) -> None:
        saved = max(self._checkpoints.written(), default=None)
        last = "there is none before it" if saved is None else f"the last one is of step {saved}"
        self._failure = f"{self._checkpoints.directory}: step {step} could not be saved ({why}); {last}"
        self._pending = True
        if error is not None and jax.process_count() > 1:
            raise StorageError(self._failure) from error
        self._warn(self._failure)


class FolderIdentity:
    """A folder, which may be removed or moved, and replaced by a different one of the same name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open = os.open(path, os.O_RDONLY)  # as long as it is open, no other folder gets its number

    def is_unchanged(self) -> bool:
        """Whether the path still names this folder; True too where the disk cannot say."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._open))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Closes the folder."""
        os.close(self._open)
