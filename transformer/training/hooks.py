"""Hooks, the callbacks of the training loop: evaluation, samples, pictures, profiling."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import jax

from transformer.training import trace
from transformer.training.state import Params, State
from transformer.training.writers import names_of, open_events


class Hook(ABC):
    """Called by the loop every `every` steps and after the last one (0: only then).

    `hook(step, state, metrics)` sees the state after `step` and what is known of that very step so far, by
    name; it may return further values, which are logged. It must not keep arrays of `state`, whose memory
    the next step takes over. In a run of several processes every process calls every hook.
    """

    def __init__(self, every: int = 0):
        self.every = every

    def due(self, step: int, last: bool) -> bool:
        """Whether to be called after `step`; the device is waited for before any call."""
        return last or is_due(self.every, step)

    @abstractmethod
    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> Mapping[str, float] | None:
        """Looks at the state after `step`."""

    def close(self) -> None:  # noqa: B027
        """Called once when training ends, however it ends."""


class Evaluator(Protocol):
    """Measures parameters: `{"loss": 1.2, "perplexity": 3.3, ...}`, names without a prefix.

    One that has more to say (how many examples it measured, a metric's signature, an interval) has a method
    `describe() -> dict[str, str]` besides, which is read after the call: see `described`. One that knows the
    names of its results before has `names(params)`: see `measures`.
    """

    def __call__(self, params: Params) -> dict[str, float]:
        """Goes through the whole of its data."""
        ...


@dataclass
class Evaluate(Hook):
    """Measures the parameters (their moving average where there is one) with every evaluator."""

    every: int
    evaluators: Mapping[str, Evaluator]

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> dict[str, float]:
        """What `measure` finds of the state."""
        return self.measure(state.eval_params)

    def measure(self, params: Params) -> dict[str, float]:
        """The evaluators' results, by names like "eval/loss"."""
        return {
            f"{prefix}/{name}": value
            for prefix, evaluator in self.evaluators.items()
            for name, value in evaluator(params).items()
        }


def measures(evaluators: Mapping[str, Evaluator], params: Params) -> dict[str, list[str] | None]:
    """By prefix the names of what each evaluator measures, before it does; None where it cannot say. `params`
    may be abstract."""
    tell = {prefix: getattr(evaluator, "names", None) for prefix, evaluator in evaluators.items()}
    return {prefix: names(params) if names else None for prefix, names in tell.items()}


def described(evaluator: Evaluator) -> dict[str, str]:
    """What an evaluator has to say of its last call: by the name of a result what belongs to that one (a
    signature, an interval), and under "measured" how much it saw; nothing where it says nothing."""
    describe = getattr(evaluator, "describe", None)
    return describe() if describe else {}


@dataclass
class Samples(Hook):
    """Writes `sample(params)` to `directory`/<step>.txt."""

    every: int
    sample: Callable[[Params], str]
    directory: Path

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Samples on every process, and writes on the first."""
        text = self.sample(state.eval_params)
        if jax.process_index() == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / f"{step:08d}.txt").write_text(text + "\n", encoding="utf-8")


@dataclass
class Pictures(Hook):
    """Draws `directory`/<step>.png, and shows it in TensorBoard where that is written.

    `values(params)`, called on every process, gives what `draw` takes before the path of the file, or None
    where there is nothing to draw.
    """

    every: int
    directory: Path
    values: Callable[[Params], tuple | None]
    draw: Callable[..., None]
    events: Path  # the folder of TensorBoard's events
    writers: str  # the run's `train.writers`

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Computes on every process, and draws on the first."""
        found = self.values(state.eval_params)
        if found is None or jax.process_index() != 0:
            return
        path = self.directory / f"{step:08d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.draw(*found, path)
        if "tensorboard" in names_of(self.writers):
            from matplotlib.image import imread

            with open_events(self.events, filename_suffix=".pictures") as writer:
                writer.add_image(self.directory.name, imread(path)[..., :3], step, dataformats="HWC")


class Profile(Hook):
    """Records the `count` steps after step `first` with `jax.profiler`, for Perfetto or TensorBoard."""

    def __init__(self, first: int, count: int, directory: Path):
        super().__init__()
        self.first, self.after, self.directory = first, first + count, directory
        self._running = False

    def due(self, step: int, last: bool) -> bool:
        """At the two ends of the recording."""
        return jax.process_index() == 0 and (step == self.first or (self._running and step == self.after))

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Starts or ends the recording."""
        if step == self.first:
            trace.start(self.directory)
            self._running = True
        else:
            self.close()

    def close(self) -> None:
        """Ends the recording, also where the run ends before it."""
        if self._running:
            self._running = False
            trace.stop(self.directory)


def is_due(every: int, step: int) -> bool:
    """Whether `step` is one of every `every` steps; none is where that is 0."""
    return every > 0 and step % every == 0
