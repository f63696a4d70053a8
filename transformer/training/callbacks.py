"""The work of the training loop between two steps: metrics, hooks, checkpoints, signals."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import jax

from transformer.errors import StorageError, UserError
from transformer.training.checkpoints.resilience import ResilientCheckpoints
from transformer.training.checkpoints.storage import is_failing, reason
from transformer.training.extras.agreement import Agreement
from transformer.training.extras.divergence import Diverged
from transformer.training.hooks import Hook, SaveCheckpoint, is_due, numbers
from transformer.training.logging.writers import Progress, Writer, logged
from transformer.training.metrics import Meter
from transformer.training.run_config import TrainConfig
from transformer.training.signals import Stopped, StopRequest, signal_name
from transformer.training.state import State

if TYPE_CHECKING:
    from transformer.training.loop import StepInfo


@dataclasses.dataclass
class StepCallbacks:
    """Reads and logs metrics, calls hooks and saves checkpoints after each step of `train`.

    After a step come, in this order, the hooks that are due and a checkpoint if one is due. The metrics of a
    step are read after the next step has been dispatched, so that the device does not wait for the host,
    except before hooks and checkpoints. A signal saves a checkpoint first, and then calls the hooks that are
    due. A signal during a hook interrupts it; the values of the step are logged without those of its hooks,
    and a resumed run calls these first.
    """

    config: TrainConfig
    meter: Meter
    hooks: Sequence[Hook]
    save: SaveCheckpoint
    saver: ResilientCheckpoints
    writers: Sequence[Writer]
    progress: Progress
    stop: StopRequest
    agreement: Agreement = dataclasses.field(default_factory=Agreement)
    unread: "StepInfo | None" = None  # the last step, until its metrics are read
    unlogged: dict[str, float] | None = None  # values of a step, while its hooks are called
    compiled: bool = False  # True after the first step, which is waited for

    def after(self, info: "StepInfo") -> str:
        """Does what is due after a step, which may still be running; returns the name of the signal that ends
        training here, or ""."""
        step, state = info.step, info.state
        self.meter.add_wait(info.waited)
        self.log(step - 1, self.read())
        self.unread = info
        number, late = self.agreement.largest(step, self.stop.number, self.save.is_late())
        name, last = signal_name(number), step == self.config.steps
        due = [hook for hook in self.hooks if hook.due(step, last)]
        save = bool(name or late) or self.save.due(step, last)
        self.saver.report_failure()
        if self.compiled and not (due or save):
            return ""
        self.compiled = True
        self.unlogged = values = self.read(log=save)
        with self.meter.pause():
            self.saver.check_folder(step)
            if name:
                self.save_and_log(step, state, values)
            measured = self.call(due, step, state, values, interruptible=not name)
            if measured is None:
                self.save_and_log(step, state, values)
                return self.leave(step, self.stop.received)
            if save and (name or last or not self.meter.watch.doubtful):
                self.save(step, state, measured)
        self.log(step, {**values, **measured})
        self.unlogged = None
        return self.leave(step, name) if name and not last else ""

    def read(self, log: bool = False) -> dict[str, float]:
        """Waits for the last step unless it has been read; returns its values if they are to be logged."""
        if self.unread is None:
            return {}
        info, self.unread = self.unread, None
        self.meter.read(info.step, info.metrics)
        values = self.meter.window() if is_due(self.config.log_every, info.step) or log else {}
        self.progress.update(info.step, self.meter.latest)
        return values

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Passes the values to every writer."""
        for writer in self.writers if values else ():
            writer.write(step, values)

    def call(
        self,
        due: Sequence[Hook],
        step: int,
        state: State,
        values: Mapping[str, float],
        interruptible: bool = True,
    ) -> dict[str, float] | None:
        """The values of the hooks; None if a signal interrupted them."""
        measured: dict[str, float] = {}
        try:
            with self.stop.raising() if interruptible else contextlib.nullcontext():
                for hook in due:
                    name = type(hook).__name__
                    with self.tolerate_full_disk(f"{name} of step {step}"):
                        result = hook(step, state, {**values, **measured})
                        measured |= numbers(f"the hook {name}", result or {})
        except Stopped:
            return None
        if measured:
            self.progress.line(step, measured)
        return measured

    def save_and_log(self, step: int, state: State, values: Mapping[str, float]) -> None:
        """Saves everything that a signal must not lose, and waits until it is written."""
        self.log(step, values)
        self.unlogged = {}
        self.saver.save(step, state)
        self.saver.wait()

    @contextlib.contextmanager
    def tolerate_full_disk(self, name: str) -> Iterator[None]:
        """A context in which a full or failing disk is only reported."""
        try:
            yield
        except OSError as error:
            if not is_failing(error):
                raise
            self.progress.warn(f"{error.filename or name} could not be written ({reason(error)})")

    def leave(self, step: int, name: str) -> str:
        """Prints that a signal ends training."""
        if self.saver.wait():
            self.progress.say(f"{name}: saved step {step} and leaving")
        else:
            self.progress.say(f"{name}: leaving without having saved step {step}")
        return name

    def resume(self, step: int, state: State, metrics: Path) -> str:
        """Calls the hooks of the step that a run is resumed at, if they were interrupted: `metrics.jsonl` has
        values of the step, and none of hooks. Returns the name of the signal that interrupted them again, or
        ""."""
        values = logged(metrics, step)
        if not values or any(not name.startswith("train/") for name in values):
            return ""
        due = [hook for hook in self.hooks if hook.due(step, step == self.config.steps)]
        measured = self.call(due, step, state, {})
        if measured is None:
            self.progress.say(f"{self.stop.received}: leaving before the evaluation of step {step} is done")
            return self.stop.received
        if measured:
            self.saver.save(step, state, measured)
            self.log(step, measured)
        return ""

    def rescue(self, state: State, error: Exception) -> None:
        """Saves the state before an error ends training, unless it has diverged or its arrays were donated.
        If the error was one of hooks, a resumed run calls them first."""
        if jax.process_count() > 1 and not isinstance(error, UserError):
            self.saver.abandon()  # one of the processes may be dead
        if isinstance(error, Diverged | StorageError) or jax.process_count() > 1:
            return
        complete = not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
        if complete and int(state.step):
            self.saver.save(int(state.step), state)
            self.log(int(state.step), self.unlogged or {})
