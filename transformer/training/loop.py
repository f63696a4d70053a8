"""The training loop, for any experiment: evaluate, save, next batch, step; and what stops it."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

import jax
import numpy as np

from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import Batch, Batches
from transformer.training.hooks import Hook, is_due
from transformer.training.metrics import Sum
from transformer.training.run_config import TrainConfig
from transformer.training.state import State
from transformer.training.throughput import Meter
from transformer.training.writers import Progress, Writer

AGREE_EVERY = 10
"""Steps after which several processes ask one another whether to stop or to save."""


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
    """Trains from `state.step` to `config.steps`; the last state, and why it is the last: "finished", or
    the name of the signal that stopped it.

    After a step come, in this order, the hooks that are due, a checkpoint if one is due, and the next
    batch. The metrics of a step are read when the next one is under way, so that the device never waits for
    the host, except where a hook or a checkpoint needs the state anyway. SIGINT or SIGTERM end training
    after the current step: with a checkpoint, and only then with the hooks that are due; in the midst of a
    hook, which is then left: `left` is a file that holds the step until its hooks are done, which they are
    first of all when the run goes on. Where anything fails between two steps, the state is saved before the
    error goes on (in a run of one process: several cannot be sure to fail together). `put` brings this
    process's rows onto the devices; `train_step` is compiled, with its state donated.
    """
    step = int(state.step)
    first = step + 1
    reason = "finished"
    unread: dict[str, Sum] | None = None
    with contextlib.ExitStack() as stack:
        stop = stack.enter_context(StopRequest())
        if checkpoints is not None:
            stack.callback(checkpoints.wait)
        # Checkpoints of which a mean is to be taken are those of chosen steps alone.
        minutes = config.checkpoint_minutes
        clock = SaveClock(minutes if config.average_last == 1 else 0)
        progress = Progress(step, config.steps)
        closing: list[Writer | Hook | Progress] = [*writers, *hooks, progress]
        for part in closing:
            stack.callback(part.close)

        def read(metrics: Mapping[str, Sum], log: bool) -> dict[str, float]:
            meter.read(step, metrics)
            values = meter.window() if log else {}
            progress.update(step, meter.latest)
            return values

        def write(values: Mapping[str, float]) -> None:
            for writer in writers:
                if values:
                    writer.write(step, values)

        def call(
            due: Sequence[Hook], values: Mapping[str, float], kept: bool = False
        ) -> tuple[dict[str, float], bool]:
            """What the hooks measure, and whether all of them came to an end: a signal leaves them, unless
            all is kept already."""
            measured: dict[str, float] = {}
            try:
                with contextlib.nullcontext() if kept else stop.raising():
                    for hook in due:
                        measured |= hook(step, state, {**values, **measured}) or {}
            except Stopped:
                return {}, False
            if measured:
                progress.line(step, measured)
            if left is not None and jax.process_index() == 0:
                left.unlink(missing_ok=True)
            return measured, True

        def keep(due: Sequence[Hook], values: Mapping[str, float]) -> None:
            """All that a signal must not cost: it is there when this returns."""
            write(values)
            if left is not None and due and jax.process_index() == 0:
                left.write_text(str(step))
            if checkpoints is not None:
                checkpoints.save(step, state)
                checkpoints.wait()

        if left is not None and left.exists() and left.read_text() == str(step):
            measured, done = call([hook for hook in hooks if hook.due(step, step == config.steps)], {})
            if not done:
                progress.say(f"{stop.received}: leaving before the evaluation of step {step} is done")
                return state, stop.received
            write(measured)
        batches = loader.iterate(step)
        try:
            while step < config.steps:
                with meter.waiting():
                    batch = put(next(batches))
                with jax.profiler.StepTraceAnnotation("train", step_num=step + 1):
                    state, metrics = train_step(state, batch)
                if unread is not None:
                    write(read(unread, is_due(config.log_every, step)))
                step, unread = step + 1, metrics
                name = stop.agreed(step)
                last = step == config.steps
                ending = last or name is not None
                due = [hook for hook in hooks if hook.due(step, last)]
                save = ending or is_due(config.checkpoint_every, step) or clock.agreed(step)
                if not (due or save or step == first):
                    continue
                values = read(unread, is_due(config.log_every, step) or save)
                unread = None
                with meter.pause():
                    if name is not None:
                        keep(due, values)
                    measured, done = call(due, values, kept=name is not None)
                    if not done:
                        keep(due, values)
                        name, last = stop.received, False
                    elif save and checkpoints is not None:
                        checkpoints.save(step, state, measured)
                        clock.restart()
                if done:
                    write({**values, **measured})
                if name is not None and not last:
                    reason = name
                    progress.say(f"{name}: saved step {step} and leaving")
                    break
        except Exception:
            alone = jax.process_count() == 1
            if checkpoints is not None and alone and _is_whole(state) and int(state.step):
                checkpoints.save(int(state.step), state)
            raise
    return state, reason


def _is_whole(state: State) -> bool:
    return not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))


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
