"""Training in the stages of `train.until`: the batches, the compiled step and the measures of each."""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from transformer.errors import UserError
from transformer.training.checkpoints.checkpoint import trained_steps
from transformer.training.experiment import Batch
from transformer.training.extras import measured
from transformer.training.extras.stage_config import SCHEDULED, stage_configs
from transformer.training.metrics import Meter, Sum
from transformer.training.parallel import rows_here
from transformer.training.state import State
from transformer.training.step import CompiledStep

FOREVER = 2**62
"""The end of the last stage."""


@dataclasses.dataclass(frozen=True, eq=False)
class Stage:
    """The steps from number `first` on, counted from 0, and before `end`, each of `rows` rows: those of
    `run`, a `Run` with the keys of the stage. Stages with the same keys have the same one; it is None if the
    stage is past and the devices do not divide its rows."""

    first: int
    end: int
    rows: int
    run: Any
    values: Mapping[str, int]  # by the names in `train.until`


class Stages:
    """The stages of a `Run` with `train.until`, and its batches, train step and meter."""

    def __init__(self, run: Any) -> None:
        """Raises as `check` of the steps after the latest checkpoint."""
        self._run, stages = run, [*stage_configs(run.config)]
        self.pause: Callable[[], Any] = contextlib.nullcontext
        """A context for work that is not training."""
        self.memory_gb: dict[Any, float | None] = {}
        """The memory of a step of each stage's run that has started, in GiB on each device."""
        last = {name: SCHEDULED[name].value(run.config) for name in run.config.train.until}
        runs, ends = [(stages[-1].config, run)], [*(stage.first for stage in stages[1:]), FOREVER]
        self._stages: list[Stage] = []
        self._impossible: dict[int, UserError] = {}  # by the end of the stage
        for stage, end in zip(stages, ends, strict=True):
            its_run = next((known for config, known in runs if config == stage.config), None)
            rows = stage.config.train.batch_size
            if its_run is None:
                try:
                    its_run = _stage_run(run, stage.config)
                    runs.append((stage.config, its_run))
                except UserError as error:
                    setting = f"config.train.until.batch_size: {rows} in steps {stage.first + 1} to {end}"
                    message = str(error).replace(f"train.batch_size: {rows}", setting, 1)
                    self._impossible[end] = UserError(message)
            self._stages.append(Stage(stage.first, end, rows, its_run, last | stage.values))
        self.check(trained_steps(run.folder.checkpoints))

    def check(self, done: int) -> None:
        """Raises `UserError` where devices times microbatches do not divide the batch of a step after `done`.

        They need not divide earlier ones: with small batches first, a run may continue with more devices than
        these had rows.
        """
        for end, error in self._impossible.items():
            if end > done:
                raise error

    def traced(self, done: int | None = None) -> list[Any]:
        """The train steps of the stages after `done` steps (None: after the latest checkpoint), the last one
        first; as `Run.traced`, with the steps of the stage in errors of the others."""
        done = trained_steps(self._run.folder.checkpoints) if done is None else done
        return [_traced(stage) for stage in reversed(self._stages) if stage.end > done]

    def at(self, done: int) -> Stage:
        """The stage of the step after `done` steps."""
        return next(stage for stage in self._stages if done < stage.end)

    def tokens(self, stage: Stage) -> int:
        """The number of tokens of a step: of shorter rows there are that many more."""
        return stage.rows * self._run.experiment.tokens_per_example

    def batches(self) -> "StagedBatches":
        """The training batches."""
        experiment = self._run.experiment
        return StagedBatches(experiment.train_data(), self._stages, experiment.cut)

    def step(self, done: int) -> "StagedStep":
        """The train step; `done` as for `StagedStep`."""
        return StagedStep(self, done)

    def meter(self, **options: Any) -> "StagedMeter":
        """The meter, which is told of compiling; `options` as for `Meter`."""
        meter = StagedMeter(stages=self, **options)
        self.pause = meter.pause
        return meter


def _stage_run(run: Any, config: Any) -> Any:
    """The run with the config of a stage, which has the same state."""
    experiment = type(run.experiment)(config, **run.experiment.data.kept())
    stage_run = dataclasses.replace(run, experiment=experiment, config=config)
    stage_run.abstract = run.abstract
    return stage_run


def _traced(stage: Stage) -> Any:
    try:
        return stage.run.traced()
    except UserError as error:
        if stage.end == FOREVER:
            raise
        raise UserError(f"config.train.until: in steps {stage.first + 1} to {stage.end}: {error}") from None


class StagedBatches:
    """The batches of a run in stages, from the rows of `loader`, the `DataLoader` of its config.

    Step s of a stage that starts after s_i steps, with batches of b_i rows, reads the places P_i + (s - s_i)
    b_i + (0 ... b_i - 1) of the order of the data. P_i is the number of rows that the stages before have
    read, so an epoch has every row once. With a `sequence_length` of t these rows of T tokens are cut into
    T / t times as many.
    """

    def __init__(self, loader: Any, stages: Sequence[Stage], cut: Callable[..., Any], place: int = 0) -> None:
        """`place` is that of the first row; `cut` is that of `Experiment`."""
        self._loader, self._stages, self._cut, self._loaders = loader, stages, cut, []
        for stage in stages:
            here = np.arange(stage.rows) if stage.run is None else rows_here(stage.rows)
            rows = loader.rows if stage.run is None else stage.run.experiment.staged(loader.rows)
            # Batch s of a loader has the rows s b + these.
            needed = here + place - stage.first * stage.rows
            self._loaders.append(dataclasses.replace(loader, rows=rows, batch_size=stage.rows, needed=needed))
            place += (stage.end - stage.first) * stage.rows

    def __len__(self) -> int:
        return len(self._loader)

    def beginning(self, step: int, row: int) -> "StagedBatches":
        """Batches of the same stages of which number `step` starts at the place `row`."""
        before = sum((min(step, s.end) - min(step, s.first)) * s.rows for s in self._stages)
        return StagedBatches(self._loader, self._stages, self._cut, row - before)

    def iterate(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches from step `start` on."""
        for stage, loader in zip(self._stages, self._loaders, strict=True):
            if (first := max(start, stage.first)) < stage.end:
                if stage.run is None:
                    raise UserError(f"step {first + 1}: devices do not divide its batch of {stage.rows} rows")
                with contextlib.closing(loader.iterate(first)) as batches:
                    for batch in itertools.islice(batches, stage.end - first):
                        length = stage.values.get("sequence_length")
                        yield self._cut(batch, length) if length else batch

    def documents_at(self, step: int) -> list[np.ndarray] | None:
        """The documents of the batch of a step, if they are known (see `DataLoader`)."""
        pairs = zip(self._stages, self._loaders, strict=True)
        stage, loader = next((stage, loader) for stage, loader in pairs if step < stage.end)
        documents, length = loader.documents_at(step), stage.values.get("sequence_length")
        if not length or documents is None:
            return documents
        # In each of the shorter rows the first segment is number 1.
        first_rc = loader.batch_at(step)["segments"].reshape(len(documents), -1, length)[..., 0]
        return [
            numbers[max(first - 1, 0) :]
            for numbers, firsts in zip(documents, first_rc, strict=True)
            for first in firsts
        ]


class StagedStep:
    """The train step of each step's stage, compiled for its first one."""

    def __init__(self, stages: Stages, done: int) -> None:
        """`done` is the number of steps that have been made."""
        self._stages, self._done = stages, done
        self._steps: dict[Any, Any] = {}
        self._now: Any = None

    def __call__(self, state: State, batch: Batch) -> tuple[State, dict[str, Sum]]:
        """The next step."""
        run = self._stages.at(self._done).run
        if run not in self._steps:
            jax.block_until_ready(state)  # what is computed meanwhile is not compiling
            with self._stages.pause():
                self._steps[run] = self._make(run)
                self._steps[run].compile(state, batch)
                self._stages.memory_gb[run] = self._steps[run].memory_gb
        self._now = self._steps[run]
        self._now.done = self._done
        self._done += 1
        return self._now(state, batch)

    def _make(self, run: Any) -> Any:
        plain, c = CompiledStep(run.jitted(), run.compiler_options), run.config.train
        measures = c.log_norms or c.log_attention
        return measured.make(run, plain, self._done) if measures else plain

    @property
    def memory_gb(self) -> float | None:
        """The memory of the last step, in GiB on each device."""
        return self._now.memory_gb


@dataclasses.dataclass(kw_only=True)
class StagedMeter(Meter):
    """A meter that logs the values of the stage too, and `train/step_gb` where one starts.

    The steps of a window may be of several stages, whose tokens and FLOPs are added.
    """

    stages: Stages

    def __post_init__(self) -> None:
        self._stage: Any = None  # that of the last step that was read
        self._counted: list[Stage] = []  # those of the window's steps
        self._rate_of = functools.cache(lambda run: run.peak_rate())
        self.peak_rate = self._peak_rate

    def read(self, step: int, metrics: Mapping[str, Sum]) -> None:
        """Waits for the end of `step` and reads its metrics; raises as that of `Meter`."""
        first, before, self._stage = self._first, self._stage, self.stages.at(step - 1)
        super().read(step, metrics)
        if not first:
            self._counted.append(self._stage)
        if not first and self._stage is not before and (size := self.stages.memory_gb[self._stage.run]):
            self._once["train/step_gb"] = size

    def window(self) -> dict[str, float]:
        """The values of the steps since the last call."""
        if self._counted:
            self.tokens_per_step = sum(map(self.stages.tokens, self._counted)) / len(self._counted)
        values = super().window()
        self._counted = []
        return values | {f"train/{name}": float(value) for name, value in self._stage.values.items()}

    def _peak_rate(self) -> float | None:
        """The tokens/s of the window's steps at the peak FLOP/s."""
        rates = [self._rate_of(stage.run) for stage in self._counted]
        if not all(rates):
            return None
        tokens = [*map(self.stages.tokens, self._counted)]
        return sum(tokens) / sum(count / rate for count, rate in zip(tokens, rates, strict=True))
