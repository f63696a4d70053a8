"""A train step with a teacher, whose parameters are an argument of the program and no part of the state."""

from typing import Any

import jax
import numpy as np

from experiments.policy.rollout_step import drawn_rows
from experiments.policy.rollouts import fill
from transformer.data.loader import HostBatch
from transformer.devices import on_host
from transformer.training.experiment import Batch, Params
from transformer.training.extras.measured import asks_measures, at_logged
from transformer.training.metrics import Sum
from transformer.training.parallel import rows_here
from transformer.training.run import Run
from transformer.training.state import State
from transformer.training.step import CompiledStep, TrainStep


class TaughtStep:
    """(state, batch) -> (state, metrics): of a batch of prompts, first draws answers from the parameters that
    it updates, or takes those of the data.

    Also measured: `drawn`, whether the answers are drawn; of drawn ones the `length` in tokens, and the share
    that `ended`."""

    def __init__(self, experiment: Any, run: Run, step: Any) -> None:
        self.experiment, self.run = experiment, run
        self.teacher: Params = experiment.teacher[1]  # read here, where no program is traced
        plain = CompiledStep(run.jitted(self._taught(run.make_step())), run.compiler_options)
        measures = asks_measures(run.config.train)
        self.step: Any = at_logged(run, plain, step.done, self._taught) if measures else plain

    @property
    def memory_gb(self) -> float | None:
        """The memory of `step`."""
        return self.step.memory_gb

    def __call__(self, state: State, batch: Batch) -> tuple[State, dict[str, Sum]]:
        """The next step."""
        metrics: dict[str, Sum] = {}
        if self.experiment.config.rollout.share:
            batch, metrics = self._answered(state, batch)
        state, terms = self.step(state, batch, self.teacher)
        return state, terms | metrics

    def _taught(self, step: TrainStep) -> Any:
        """The step as a function of (state, batch, the teacher's parameters)."""

        def taught(state: State, batch: Batch, teacher: Params) -> tuple[State, dict[str, Sum]]:
            with self.experiment.taught_by(teacher):
                return step(state, batch)

        return taught

    def _answered(self, state: State, batch: Batch) -> tuple[Batch, dict[str, Sum]]:
        """The prompts with their answers. With several processes all must call this."""
        e = self.experiment
        rng = jax.random.fold_in(jax.random.key(e.config.seed), int(state.step))
        # Of another key than the answers, which fold in the numbers of rows.
        drawn = float(jax.random.uniform(jax.random.split(rng)[0])) < e.config.rollout.share
        measured: dict[str, Any] = {"drawn": float(drawn)}
        if drawn:
            rows, answers = drawn_rows(e, state, batch)
            last_b = answers.tokens_bn[np.arange(len(answers.counts_b)), answers.counts_b - 1]
            measured |= {"length": answers.counts_b, "ended": np.isin(last_b, e.ends)}
        else:
            rows = self._of_data(batch)
        local = rows_here(len(rows["tokens"]))
        placed = self.run.put({name: x[local] for name, x in rows.items()})
        return placed, {name: Sum.of(x) for name, x in measured.items()}

    def _of_data(self, batch: Batch) -> HostBatch:
        """The rows with the answers of the data; of those that are too long the first tokens are dropped."""
        e, rows = self.experiment, {name: on_host(x).copy() for name, x in batch.items()}
        most, source = rows["tokens"].shape[1] + 1, e.prompts.source("train")
        for i, record in enumerate(rows["records"].tolist()):
            tokens, learned = e.prompts.chat.encode(source.conversations(record)[0], last_only=True)
            tokens, learned = tokens[-most:], learned[-most:]
            fill(rows, i, tokens.tolist())
            rows["weights"][i, : len(tokens) - 1] = learned[1:]
        return rows
