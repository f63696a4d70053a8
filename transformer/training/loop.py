"""The training loop for any experiment: evaluate, save, next batch, step; and stopping on signals."""

import contextlib
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import jax
import numpy as np

from transformer.errors import StorageError, UserError
from transformer.safe_files import replace
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.saving import Saving
from transformer.training.checkpoints.storage import is_failing, reason
from transformer.training.experiment import Batch, Batches
from transformer.training.extras.agreement import Agreement
from transformer.training.extras.divergence import Diverged
from transformer.training.hooks import Hook, is_due, numbers
from transformer.training.logging.writers import Lasting, Progress, Writer
from transformer.training.metrics import Meter, Sum
from transformer.training.run_config import TrainConfig
from transformer.training.state import State


def train(
    state: State,
    train_step: Callable[[State, Batch], tuple[State, dict[str, Sum]]],
    loader: Batches,
    config: TrainConfig,
    *,
    put: Callable[[Mapping[str, np.ndarray]], Batch],
    meter: Meter,
    hooks: Sequence[Hook] = (),
    writers: Sequence[Writer] = (),
    checkpoints: Checkpoints | None = None,
    left: Path | None = None,
) -> tuple[State, str]:
    """Trains from `state.step` to `config.steps`; returns the last state and why training ended: "finished",
    or the name of a signal.

    After a step come, in this order, the hooks that are due, a checkpoint if one is due, and the next batch.
    The metrics of a step are read after the next step has been dispatched, so that the device does not wait
    for the host, except before hooks and checkpoints. One of `SIGNALS` ends training after the current step:
    it saves a checkpoint first, then calls the hooks that are due. A signal during a hook interrupts it: the
    file `left` has the step until its hooks are done, and a resumed run calls them first. If an error occurs
    between two steps, the state is saved before the error is raised again (only with one process: several may
    not fail together). Where the disk is full, fails or is slow, training continues: see `Saving`, `Lasting`.
    `put` puts this process's rows onto the devices; `train_step` is compiled and donates
    its state.

    Raises:
      StorageError: the last step could not be saved, or the run's folder is gone.
    """
    step = int(state.step)
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        progress = Progress(step, config.steps)
        saving = Saving(checkpoints, progress.warn)
        writers = [Lasting(writer, progress.warn) for writer in writers]
        parts: list[Saving | Writer | Hook | Progress] = [saving, *writers, *hooks, progress]
        for part in parts:
            stack.callback(part.close)
        between = Between(config, meter, hooks, writers, progress, saving, left, stop)
        if between.is_left(step) and (name := between.make_up_for(step, state)):
            return state, name
        batches = loader.iterate(step)
        try:
            while step < config.steps:
                with meter.waiting():
                    batch = put(next(batches))
                with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
                    state, metrics = train_step(state, batch)
                step += 1
                if name := between.after(step, state, metrics):
                    return state, name
        except Exception as error:
            between.rescue(state, error)
            raise
        saving.finish()
    return state, "finished"


@dataclasses.dataclass
class Between:
    """The work of `train` between two steps: reading and writing metrics, calling hooks, saving states."""

    config: TrainConfig
    meter: Meter
    hooks: Sequence[Hook]
    writers: Sequence[Writer]
    progress: Progress
    saving: Saving
    left: Path | None
    stop: "StopRequest"
    agreement: Agreement = dataclasses.field(default_factory=Agreement)
    unread: tuple[int, dict[str, Sum]] | None = None  # the last step with its metrics, until they are read
    unwritten: dict[str, float] | None = None  # values of a step, while its hooks are called
    compiled: bool = False  # True after the first step, which is waited for

    def __post_init__(self) -> None:
        self.saved = time.monotonic()

    def after(self, step: int, state: State, metrics: dict[str, Sum]) -> str:
        """Does what is due after `step`, which may still be running; returns the name of the signal that ends
        training here, or ""."""
        self.write(step - 1, self.read())
        self.unread = step, metrics
        number, late = self.agreement.largest(step, self.stop.number, self.is_late())
        name, last = signal_name(number), step == self.config.steps
        due = [hook for hook in self.hooks if hook.due(step, last)]
        self.saving.look()
        save = bool(name) or last or is_due(self.config.checkpoint_every, step) or bool(late)
        if self.compiled and not (due or save):
            return ""
        self.compiled = True
        self.unwritten = values = self.read(log=save)
        with self.meter.pause():
            self.saving.check(step)
            if name:
                self.keep(step, state, due, values)
            measured = self.call(step, state, due, values, kept=bool(name))
            if measured is None:
                self.keep(step, state, due, values)
                return self.leave(step, self.stop.received)
            if save and (name or last or not self.meter.watch.doubtful):
                c = self.config
                self.saving.save(step, state, measured, last or c.average_last > 1 or bool(c.keep_best))
                self.saved = time.monotonic()
        self.write(step, {**values, **measured})
        self.unwritten = None
        return self.leave(step, name) if name and not last else ""

    def is_late(self) -> bool:
        """Whether that many minutes have passed since the last save that it is time for one."""
        c = self.config
        late = c.checkpoint_minutes > 0 and time.monotonic() - self.saved >= 60 * c.checkpoint_minutes
        # Checkpoints to average are saved by steps alone.
        return c.average_last <= 1 and (self.saving.is_late() or late)

    def read(self, log: bool = False) -> dict[str, float]:
        """Waits for the last step unless it has been read; returns its values if they are to be logged."""
        if self.unread is None:
            return {}
        (step, metrics), self.unread = self.unread, None
        self.meter.read(step, metrics)
        values = self.meter.window() if is_due(self.config.log_every, step) or log else {}
        self.progress.update(step, self.meter.latest)
        return values

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Passes the values to every writer."""
        for writer in self.writers if values else ():
            writer.write(step, values)

    def call(
        self, step: int, state: State, due: Sequence[Hook], values: Mapping[str, float], kept: bool = False
    ) -> dict[str, float] | None:
        """The values of the hooks; None if a signal interrupted them (not if the state is already saved)."""
        measured: dict[str, float] = {}
        try:
            with contextlib.nullcontext() if kept else self.stop.raising():
                for hook in due:
                    with self.going_on(f"{type(hook).__name__} of step {step}"):
                        found = hook(step, state, {**values, **measured})
                        measured |= numbers(f"the hook {type(hook).__name__}", found or {})
        except Stopped:
            return None
        if measured:
            self.progress.line(step, measured)
        if self.left is not None and jax.process_index() == 0:
            self.left.unlink(missing_ok=True)
        return measured

    def keep(self, step: int, state: State, due: Sequence[Hook], values: Mapping[str, float]) -> None:
        """Saves everything that a signal must not lose, and waits until it is written."""
        self.write(step, values)
        self.unwritten = {}
        if due:
            self.note(step)
        self.saving.save(step, state)
        self.saving.wait()

    def note(self, step: int) -> None:
        """Notes in the file `left` that the hooks of `step` are not done."""
        if self.left is not None and jax.process_index() == 0:
            with self.going_on("what is not yet measured"):
                replace(self.left, str(step))

    @contextlib.contextmanager
    def going_on(self, what: str) -> Iterator[None]:
        """A context in which it is said, and no more, that a disk is full or fails."""
        try:
            yield
        except OSError as error:
            if not is_failing(error):
                raise
            self.progress.warn(f"{error.filename or what} could not be written ({reason(error)})")

    def leave(self, step: int, name: str) -> str:
        """Prints that a signal ends training."""
        if self.saving.wait():
            self.progress.say(f"{name}: saved step {step} and leaving")
        else:
            self.progress.say(f"{name}: leaving without having saved step {step}")
        return name

    def is_left(self, step: int) -> bool:
        """Whether a signal interrupted the hooks of `step`."""
        return self.left is not None and self.left.exists() and self.left.read_bytes() == str(step).encode()

    def make_up_for(self, step: int, state: State) -> str:
        """Calls the hooks of `step`; returns the name of the signal that interrupted them again, or ""."""
        due = [hook for hook in self.hooks if hook.due(step, step == self.config.steps)]
        measured = self.call(step, state, due, {})
        if measured is None:
            self.progress.say(f"{self.stop.received}: leaving before the evaluation of step {step} is done")
            return self.stop.received
        self.saving.save(step, state, measured)
        self.write(step, measured)
        return ""

    def rescue(self, state: State, error: Exception) -> None:
        """Saves the state before an error ends training, unless it has diverged or its arrays were donated.
        If the error was one of hooks, a resumed run calls them first."""
        if jax.process_count() > 1 and not isinstance(error, UserError):
            self.saving.abandon()  # one of them may be dead
        if isinstance(error, Diverged | StorageError) or jax.process_count() > 1:
            return
        whole = not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
        if whole and int(state.step):
            self.saving.save(int(state.step), state)
            if self.unwritten is not None and self.left is not None:
                self.note(int(state.step))
                self.write(int(state.step), self.unwritten)


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
        self._before = {number: signal.signal(number, self._note) for number in (SIGNALS if main else ())}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.number:
            self.number = number
            if self._raising:
                raise Stopped
