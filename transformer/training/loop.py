"""The training loop for any experiment: batch, step, hooks."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from transformer.training.callbacks import StepCallbacks
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.resilience import ResilientCheckpoints
from transformer.training.hooks import SaveCheckpoint
from transformer.training.logging.retrying_writer import RetryingWriter
from transformer.training.logging.writers import Progress, Writer
from transformer.training.metrics import Meter, Sum
from transformer.training.signals import StopRequest
from transformer.training.state import State

if TYPE_CHECKING:
    from transformer.training.run import Run


class StepInfo(NamedTuple):
    """A training step that has been made, or is still running on the devices."""

    step: int
    """The number of steps so far."""
    state: State
    """The state after the step; the next step donates its arrays."""
    metrics: dict[str, Sum]
    """All terms of the loss, the gradient norm, and whether the update was skipped."""
    waited: float
    """The seconds that the host waited for the batch."""


def training_steps(
    run: "Run", state: State | None = None, train_step: Callable[..., Any] | None = None
) -> Iterator[StepInfo]:
    """Trains a run step by step, from `state` to `train.steps`, and yields after each step. Nothing is
    written: `train` is this loop with hooks, checkpoints and logs.

        for info in training_steps(run, run.first_state()):
            print(info.step, info.metrics["loss"].mean)

    The default `state` is that of the latest checkpoint, or the first one; the default `train_step` is
    compiled when it is first called.
    """
    state = run.latest_state() if state is None else state
    done = int(state.step)
    train_step = run.train_step(done) if train_step is None else train_step
    batches = run.loader.iterate(done)
    for step in range(done + 1, run.config.train.steps + 1):
        start = time.perf_counter()
        batch = run.put(next(batches))
        waited = time.perf_counter() - start
        with run.placed(), jax.profiler.StepTraceAnnotation("train", step_num=step):
            state, metrics = train_step(state, batch)
        yield StepInfo(step, state, metrics, waited)


def train(
    run: "Run", state: State, step: Any, meter: Meter, writers: Sequence[Writer], checkpoints: Checkpoints
) -> tuple[State, str]:
    """Trains a run from `state` to its end with `step`, its `train_step`; returns the last state and why
    training ended: "finished", or the name of a signal.

    One of `signals.SIGNALS` ends training after the current step (see `StepCallbacks`). If an error occurs
    between two steps, the state is saved before the error is raised again (only with one process: several may
    not fail together). Where the disk is full, fails or is slow, training continues: see
    `ResilientCheckpoints` and `RetryingWriter`.

    Raises:
      StorageError: the last step could not be saved, or the run's folder was removed or moved.
    """
    done, config, hooks = int(state.step), run.config.train, run.hooks
    progress = Progress(done, config.steps)
    saver = ResilientCheckpoints(checkpoints, progress.warn)
    save = SaveCheckpoint(config, saver, saver.started)
    writers = [RetryingWriter(writer, progress.warn) for writer in writers]
    with StopRequest() as stop, contextlib.ExitStack() as closing:
        for resource in (saver, *writers, *hooks, progress):
            closing.callback(resource.close)  # type: ignore[attr-defined]
        callbacks = StepCallbacks(config, meter, hooks, save, saver, writers, progress, stop)
        if done and (reason := callbacks.resume(done, state, run.folder.metrics)):
            return state, reason
        try:
            for info in training_steps(run, state, step):
                state = info.state
                if reason := callbacks.after(info):
                    return state, reason
        except Exception as error:
            callbacks.rescue(state, error)
            raise
        saver.finish()
    return state, "finished"
