"""The training loop, for any experiment: evaluate, save, next batch, step."""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from transformer.errors import UserError
from transformer.training.checkpoint import Checkpoints
from transformer.training.experiment import Batch, Loader
from transformer.training.hooks import Hook, is_due
from transformer.training.meter import Meter
from transformer.training.metrics import Sum
from transformer.training.signals import SaveClock, Stopped, StopRequest
from transformer.training.state import State
from transformer.training.writers import Progress, Writer, names_of

AT_LEAST_ONE = ("steps", "batch_size", "keep_last", "average_last", "log_every", "profile_from")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """How long to train, and what to do on the way; `configs/base/` says what each key means."""

    steps: int = 1000
    batch_size: int = 16
    evaluate_every: int = 0
    evaluate_batches: int = 0
    checkpoint_every: int = 0
    checkpoint_minutes: float = 10.0
    keep_last: int = 1
    average_last: int = 1
    keep_best: str = ""
    log_every: int = 10
    sample_every: int = 0
    max_skipped: int = 20
    profile_from: int = 10
    profile_steps: int = 0
    writers: str = "jsonl,tensorboard"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            least = 1 if field.name in AT_LEAST_ONE else 0
            value = getattr(self, field.name)
            if field.type is int and value < least:
                raise UserError(f"{field.name}: {value}; expected {least} or more")
        if not 0 <= self.checkpoint_minutes < float("inf"):
            raise UserError(
                f"checkpoint_minutes: {self.checkpoint_minutes}; expected minutes, or 0 for never"
            )
        names_of(self.writers)
        if self.average_last > self.keep_last:
            raise UserError(
                f"average_last: {self.average_last}; only keep_last {self.keep_last} checkpoints are there"
            )
        if self.average_last > 1 and self.keep_best:
            raise UserError(f"average_last: {self.average_last} together with keep_best; choose one of them")
        if self.keep_best and self.checkpoint_every % (self.evaluate_every or self.steps):
            raise UserError(
                f"keep_best: a checkpoint needs an evaluation at its step: checkpoint_every "
                f"{self.checkpoint_every} is not a multiple of evaluate_every {self.evaluate_every}"
            )

    def idle(self) -> dict[str, str]:
        """See `transformer.freeze.refuse_idle`."""
        return {} if self.profile_steps else {"profile_from": "with profile_steps 0"}


def train(
    state: State,
    train_step: Callable[[State, Batch], tuple[State, dict[str, Sum]]],
    loader: Loader,
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
                signal = stop.agreed(step)
                last = step == config.steps
                ending = last or signal is not None
                due = [hook for hook in hooks if hook.due(step, last)]
                save = ending or is_due(config.checkpoint_every, step) or clock.agreed(step)
                if not (due or save or step == first):
                    continue
                values = read(unread, is_due(config.log_every, step) or save)
                unread = None
                with meter.pause():
                    if signal is not None:
                        keep(due, values)
                    measured, done = call(due, values, kept=signal is not None)
                    if not done:
                        keep(due, values)
                        signal, last = stop.received, False
                    elif save and checkpoints is not None:
                        checkpoints.save(step, state, measured)
                        clock.restart()
                if done:
                    write({**values, **measured})
                if signal is not None and not last:
                    reason = signal
                    progress.say(f"{signal}: saved step {step} and leaving")
                    break
        except Exception:
            alone = jax.process_count() == 1
            if checkpoints is not None and alone and _is_whole(state) and int(state.step):
                checkpoints.save(int(state.step), state)
            raise
    return state, reason


def _is_whole(state: State) -> bool:
    return not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
