"""Forks: what of a run's checkpoint continues in a run with another config, and what starts again."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.checksums import arrays, compare
from transformer.training.experiment import Batches
from transformer.training.optim.optimizer import OptimizerConfig
from transformer.training.optim.schedules import Schedule
from transformer.training.run import Run
from transformer.training.state import State

ALWAYS = ("step", "params", "skipped")
"""The fields of a state that always continue."""


@dataclasses.dataclass(frozen=True)
class Fork:
    """The fields of the state at `step` of the run in `source` that continue, and `reset`: field -> why it
    starts again."""

    source: Path
    step: int
    continues: tuple[str, ...]
    reset: dict[str, str]

    @classmethod
    def plan(cls, run: Run, source: Path, step: int, *, optimizer: str = "", carry: str = "") -> "Fork":
        """Compares a checkpoint of the run in `source` with the state of `run`, without reading arrays.

        `optimizer` and `carry` say why these must start again; "": they continue if their arrays are equal.

        Raises:
          UserError: other parameters; or an optimizer with other arrays, which does not start again.
        """
        stored = Checkpoints(RunFolder(source).checkpoints, write=False).stored(step)

        def differs(name: str) -> str:
            return compare(arrays(stored.get(name)), arrays(getattr(run.abstract, name)))

        if difference := differs("params"):
            raise UserError(
                f"--workdir: {source}, step {step}, has parameters of another model: {difference}; a new run "
                f"takes those that fit with --config.initialize_from={source}@{step}"
            )
        if not optimizer and (difference := differs("opt_state")):
            raise UserError(
                f"--workdir: {source}, step {step}, has the state of another optimizer: {difference}; "
                "--fresh_optimizer resets it"
            )
        reset = {"opt_state": optimizer, "carry": carry or (differs("carry") and "its shape is another")}
        if stored.get("ema") is None:
            reset["ema"] = "it starts with the parameters"
        fields = [name for name in ("opt_state", "ema", "carry") if getattr(run.abstract, name) is not None]
        continues = *ALWAYS, *(name for name in fields if not reset.get(name))
        return cls(source, step, continues, {name: reset[name] for name in fields if reset.get(name)})

    def state(self, run: Run) -> State:
        """The first state of `run`, which it could read from a checkpoint.

        Raises:
          UserError: `run` cannot train with it.
        """
        begin = {"opt_state": _optimizer_state, "ema": _average, "carry": _carry}
        read = {name: getattr(run.abstract, name) for name in self.continues}
        checkpoints = Checkpoints(RunFolder(self.source).checkpoints, write=False)
        with run.placed():
            parts = checkpoints.restore_parts(read, self.step)
            fresh = {name: begin[name](run, parts) for name in self.reset}
        state = State(**{"ema": None, "carry": None} | parts | fresh)
        if differs := compare(arrays(state), arrays(run.abstract)):
            raise UserError(f"--mode=fork: the first state does not fit the run: {differs}")
        _ = run.stages.traced(self.step) if run.config.train.until else run.traced()
        return state


def _optimizer_state(run: Run, parts: dict[str, Any]) -> Any:
    return jax.jit(run.optimizer.init, out_shardings=run.shardings.opt_state)(parts["params"])


def _average(run: Run, parts: dict[str, Any]) -> Any:
    return jax.tree.map(jax.numpy.copy, parts["params"])


def _carry(run: Run, parts: dict[str, Any]) -> Any:
    return jax.jit(run.experiment.initial_carry, out_shardings=run.shardings.carry)()


@dataclasses.dataclass(frozen=True)
class Shifted:
    """The batches of `batches`, of which step s reads number s + `shift`."""

    batches: Batches
    shift: int

    def __len__(self) -> int:
        return len(self.batches)

    def iterate(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """The batches from step `start` on."""
        return self.batches.iterate(start + self.shift)

    def documents_at(self, step: int) -> list[np.ndarray] | None:
        """The documents of the batch of a step, if they are known (see `DataLoader`)."""
        return self.batches.documents_at(step + self.shift)


def earlier_rate(record: Mapping[str, Any], config: OptimizerConfig) -> list[tuple[int, Schedule]]:
    """The learning rate before a fork with another schedule, as the first of the `lengths` of `Run`: a
    constant, as a fraction of the config's."""
    if not record.get("rate"):
        return []
    at, rate = record["rate"]
    return [(at, lambda count: rate / config.learning_rate if config.learning_rate else 0.0)]


def forked(run: Run, record: Mapping[str, Any]) -> Run:
    """The run with the learning rate and the data from which a fork, with this `record`, continues."""
    lengths = [*earlier_rate(record, run.config.optimizer), *run.lengths]
    run = dataclasses.replace(run, lengths=lengths)
    if "row" in record:  # of a run with `train.until`
        with run.placed():
            run.loader = run.loader.beginning(record["step"], record["row"])  # type: ignore[attr-defined]
    elif shift := record["batch"] - record["step"]:
        run.loader = Shifted(run.loader, shift)
    return run
