"""Hooks, the callbacks of the training loop: evaluation, checkpoints, samples, plots, profiling."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import jax

from transformer.errors import UserError, brief
from transformer.run_folder import RunFolder
from transformer.safe_files import replace
from transformer.training.logging import trace
from transformer.training.logging.events import Events
from transformer.training.logging.writers import names_of
from transformer.training.state import Params, State

if TYPE_CHECKING:
    from transformer.training.run_config import TrainConfig

LOOK_SECONDS = 5.0
"""Seconds between two looks for a request to record."""

REQUESTED_STEPS = 3
"""The steps that are recorded on request in a run without `train.profile_steps`."""


class Hook(ABC):
    """A callback, called every `every` steps and after the last one (0: only then).

    `hook(step, state, metrics)` gets the state after `step` and the metrics of that step; values that it
    returns are logged with them. It must not keep arrays of `state`: the next step donates their memory. With
    several processes every process calls every hook. A run that is resumed at a step at which it was
    interrupted calls all hooks of the step, also those that had returned.
    """

    def __init__(self, every: int = 0):
        self.every = every

    def due(self, step: int, last: bool) -> bool:
        """Whether the hook is called after `step`; the loop waits for the device before any call."""
        return last or is_due(self.every, step)

    @abstractmethod
    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> Mapping[str, float] | None:
        """Runs after `step`."""

    def close(self) -> None:  # noqa: B027
        """Called once when training ends, even by an error."""


class Evaluator(Protocol):
    """Evaluates parameters: `{"loss": 1.2, "perplexity": 3.3, ...}`, names without a prefix.

    Optional methods: `describe() -> dict[str, str]` gives details of the last call (the number of examples, a
    metric's signature, an interval; see `described`), and `names(params)` the names of the results in advance
    (see `measures`).
    """

    def __call__(self, params: Params) -> dict[str, float]:
        """Evaluates on all of its data."""
        ...


@dataclass
class Evaluate(Hook):
    """Evaluates the parameters (their moving average if the run keeps one) with every evaluator."""

    every: int
    evaluators: Mapping[str, Evaluator]
    best: str = ""  # the metric of `train.keep_best`; "": none

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> dict[str, float]:
        """The results of `measure`; raises `UserError` if `best` is none of them."""
        values = self.measure(state.eval_params)
        if self.best and (best := self.best.removeprefix("-")) not in values:
            raise _not_measured(best, values)
        return values

    def measure(self, params: Params) -> dict[str, float]:
        """The results of all evaluators, by names like "eval/loss"."""
        values: dict[str, float] = {}
        for prefix, evaluator in self.evaluators.items():
            values |= results(prefix, evaluator, params)
        return values


def results(prefix: str, evaluator: Evaluator, params: Params) -> dict[str, float]:
    """The results of one evaluator, by names with its prefix.

    Raises:
      UserError: they are not numbers by name.
    """
    return numbers(f"{prefix}: the evaluator", evaluator(params), f"{prefix}/")


def numbers(who: str, returned: object, prefix: str = "") -> dict[str, float]:
    """The results of an evaluator or a hook as floats, by names with a prefix.

    Raises:
      UserError: they are not numbers by name.
    """
    if not isinstance(returned, Mapping):
        raise UserError(f"{who} returns {brief(repr(returned), 100)}; expected numbers by name")
    return {f"{prefix}{name}": _as_number(f"{prefix}{name}", value) for name, value in returned.items()}


def _as_number(name: str, value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UserError(f"{name}: {brief(repr(value), 100)}; expected a number") from None


def measures(evaluators: Mapping[str, Evaluator], params: Params) -> dict[str, list[str] | None]:
    """Prefix -> names of the results of each evaluator before a call, None if it has no `names`. `params` may
    be abstract."""
    methods = {prefix: getattr(evaluator, "names", None) for prefix, evaluator in evaluators.items()}
    return {prefix: names(params) if names else None for prefix, names in methods.items()}


def check_measured(name: str, evaluators: Mapping[str, Evaluator], params: Params) -> None:
    """Raises `UserError` if no evaluator measures the metric `name`, that of `train.keep_best`."""
    by_prefix = measures(evaluators, params)
    known = [f"{prefix}/{metric}" for prefix, names in by_prefix.items() for metric in names or ()]
    unlisted = [f"{prefix}/" for prefix, names in by_prefix.items() if names is None]
    if name not in known and not name.startswith(tuple(unlisted)):
        raise _not_measured(name, [*known, *(f"{prefix}..." for prefix in unlisted)])


def _not_measured(name: str, known: Iterable[str]) -> UserError:
    return UserError(f"config.train.keep_best: {name!r} is not measured; there are {', '.join(known)}")


def described(evaluator: Evaluator) -> dict[str, str]:
    """Details of an evaluator's last call: a text for each result (a signature, an interval), and under
    "measured" the number of examples; empty if it has no `describe`."""
    describe = getattr(evaluator, "describe", None)
    return describe() if describe else {}


class Saver(Protocol):
    """Saves states, such as `checkpoints.resilience.ResilientCheckpoints`."""

    def save(
        self, step: int, state: State, metrics: Mapping[str, float] | None = None, at_once: bool = True
    ) -> None:
        """Copies the state and returns; with `at_once` False it may be put off."""
        ...

    def is_late(self) -> bool:
        """Whether a save that was put off should be made now."""
        ...


@dataclass
class SaveCheckpoint(Hook):
    """Saves the state every `train.checkpoint_every` steps, `train.checkpoint_minutes` after the save before,
    and after the last step."""

    config: "TrainConfig"
    saver: Saver
    saved: float  # when the last save or training started, by `time.monotonic()`

    def due(self, step: int, last: bool) -> bool:
        """Whether the state after `step` is saved whatever the time."""
        return last or is_due(self.config.checkpoint_every, step)

    def is_late(self) -> bool:
        """Whether it is time for a save between those of `due`, by this process's clock."""
        if self.config.average_last > 1:  # of checkpoints of chosen steps alone
            return False
        seconds = 60 * self.config.checkpoint_minutes
        return self.saver.is_late() or 0 < seconds <= time.monotonic() - self.saved

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Saves the state with the metrics of the step."""
        c = self.config
        at_once = step == c.steps or c.average_last > 1 or bool(c.keep_best)
        self.saver.save(step, state, metrics, at_once)
        self.saved = time.monotonic()


@dataclass
class Shown(Hook):
    """A hook every `train.sample_every` steps whose result TensorBoard shows if the run writes its events."""

    config: "TrainConfig"
    folder: RunFolder

    def due(self, step: int, last: bool) -> bool:
        """After the last step, and every `train.sample_every`."""
        return last or is_due(self.config.sample_every, step)

    def show(self, kind: str, add: Callable[[Events], None]) -> None:
        """Calls `add` with a new file of events, if the run writes them; `kind` ends the file's name."""
        if "tensorboard" in names_of(self.config.writers):
            with Events(self.folder.events, suffix=f".{kind}") as events:
                add(events)


@dataclass
class Samples(Shown):
    """Writes `sample(params)` to `samples/`<step>.txt, and to TensorBoard."""

    sample: Callable[[Params], str]

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Samples on every process, writes on the first."""
        text = self.sample(state.eval_params)
        if jax.process_index() == 0:
            self.folder.samples.mkdir(parents=True, exist_ok=True)
            replace(self.folder.samples / f"{step:08d}.txt", text + "\n")
            self.show("samples", lambda events: events.add_text("sample", text, step))


@dataclass
class Pictures(Shown):
    """Draws `directory`/<step>.png, and adds it to TensorBoard.

    `values(params)`, called on every process, returns the arguments of `draw` before the path, or None to
    draw nothing.
    """

    directory: Path
    values: Callable[[Params], tuple | None]
    draw: Callable[..., None]

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Computes on every process, draws on the first."""
        values = self.values(state.eval_params)
        if values is None or jax.process_index() != 0:
            return
        path = self.directory / f"{step:08d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.draw(*values, path)
        self.show("pictures", lambda events: events.add_picture_file(self.directory.name, path, step))


@dataclass
class Profile(Hook):
    """Records the `count` steps after step `first` with `jax.profiler`, for Perfetto or TensorBoard; and
    whenever there is a file `requested` in the folder, which is deleted, the steps that follow: `count`, or
    `REQUESTED_STEPS` if that is 0."""

    first: int
    count: int
    directory: Path
    _looked: float = field(default_factory=time.monotonic)
    _end: int = 0

    def due(self, step: int, last: bool) -> bool:
        """At the start and the end of the recording. A request is looked for every `LOOK_SECONDS`: each time
        asks the file system."""
        if jax.process_index():
            return False
        if self._end:
            return step == self._end
        if self.count and step == self.first:
            return True
        if (now := time.monotonic()) < self._looked + LOOK_SECONDS:
            return False
        self._looked = now
        return (self.directory / "requested").is_file()

    def __call__(self, step: int, state: State, metrics: Mapping[str, float]) -> None:
        """Starts or ends the recording."""
        if self._end:
            self.close()
        else:
            (self.directory / "requested").unlink(missing_ok=True)
            trace.start(self.directory)
            self._end = step + (self.count or REQUESTED_STEPS)

    def close(self) -> None:
        """Ends the recording if the run ends before it."""
        if self._end:
            self._end = 0
            trace.stop(self.directory)


def is_due(every: int, step: int) -> bool:
    """Whether `every` divides `step`; False if `every` is 0."""
    return every > 0 and step % every == 0
