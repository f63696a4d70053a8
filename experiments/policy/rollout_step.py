"""A train step that first draws answers from the parameters that it updates."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evaluation.mean_reward import reward_of
from experiments.policy.estimators import ESTIMATORS
from experiments.policy.rollouts import Drawn, draw_answers, fill
from transformer.data.loader import HostBatch
from transformer.devices import on_host
from transformer.evaluation.terms_by_row import replicated
from transformer.training.experiment import Batch, Params
from transformer.training.metrics import Sum
from transformer.training.parallel import rows_here
from transformer.training.run import Run
from transformer.training.state import State
from transformer.training.step import in_microbatches


class RolloutStep:
    """(state, prompts) -> (state, metrics): where a rollout starts, draws and scores answers, which become
    the carry of the state, and then makes `step` with them.

    Also measured are, of each rollout: `reward`; `informative`, the share of prompts whose answers differ in
    it; `length` of answers in tokens, and the share that `ended`; `logprob_gap` and `logprob_gap_max`, the
    mean and the largest |log p - log p'| of drawn tokens, where p is of training and p' was drawn from."""

    def __init__(self, experiment: Any, run: Run, step: Any) -> None:
        self.experiment, self.run, self.step = experiment, run, step
        self.source = experiment.data.source("train")

        def log_p(params: Params, batch: Batch) -> tuple[dict[str, Sum], jax.Array]:
            return {}, experiment.log_probabilities(params, batch)[0]

        in_parts = in_microbatches(log_p, run.config.parallel.microbatches)
        self._log_p = jax.jit(lambda params, batch: replicated(in_parts(params, batch)[1]))

    @property
    def memory_gb(self) -> float | None:
        """The memory of `step`."""
        return self.step.memory_gb

    def __call__(self, state: State, batch: Batch) -> tuple[State, dict[str, Sum]]:
        """The next step."""
        metrics: dict[str, Sum] = {}
        # After a fork or a rollback the carry is blank.
        if int(state.step) % self.experiment.config.rollout.updates == 0 or is_blank(state.carry):
            rows, metrics = self.roll(state, batch)
            placed, where = self.run.put(rows), self.run.shardings.carry
            state = dataclasses.replace(state, carry=jax.device_put(placed, where))
        # A copy, since the step donates the state.
        shardings = {name: x.sharding for name, x in batch.items()}
        rows = jax.device_put(jax.tree.map(jnp.copy, state.carry), shardings)
        state, terms = self.step(state, rows)
        return state, terms | metrics

    def roll(self, state: State, batch: Batch) -> tuple[HostBatch, dict[str, Sum]]:
        """The rows of this process with answers, and what is measured of them. With several processes all
        must call this, and all score all answers."""
        e, r = self.experiment, self.experiment.config.rollout
        rows, answers = drawn_rows(e, state, batch)
        rewards_pn = np.array([*self._rewards(rows, answers)]).reshape(-1, r.samples)
        estimator, counts_b = ESTIMATORS[e.config.loss.estimator], answers.counts_b
        values = estimator(rewards_pn, counts_b.reshape(-1, r.samples), r.max_new_tokens)
        rows["advantages"], weights_b, rows["normalizers"] = (
            x.reshape(-1).astype(np.float32) for x in values
        )
        rows["weights"] *= weights_b[:, None]
        local = rows_here(len(weights_b))
        placed = self.run.put({name: x[local] for name, x in rows.items()})
        trained_bt = np.asarray(self._log_p(state.params, placed))
        gap_m = np.abs(trained_bt - rows["sampled"])[rows["weights"] > 0]
        if e.config.loss.kl:
            rows["reference"] = np.asarray(self._log_p(e.reference, placed))
        last_b = answers.tokens_bn[np.arange(len(counts_b)), counts_b - 1]
        measured = {
            "reward": rewards_pn,
            "informative": rewards_pn.std(axis=1) > 0,
            "length": counts_b,
            "ended": np.isin(last_b, e.ends),
            "logprob_gap": gap_m,
            "logprob_gap_max": gap_m.max(),
        }
        return {name: x[local] for name, x in rows.items()}, {k: Sum.of(x) for k, x in measured.items()}

    def _rewards(self, rows: HostBatch, answers: Drawn) -> Iterator[float]:
        """The reward of each answer."""
        e, lengths_b = self.experiment, rows["lengths"]
        for i, (record, n) in enumerate(zip(rows["records"], answers.counts_b, strict=True)):
            ids = answers.tokens_bn[i, :n].tolist()
            ids = ids[:-1] if ids[-1] in e.ends else ids
            text = e.data.tokenizer.decode_after(rows["tokens"][i, : lengths_b[i]].tolist(), ids)
            yield reward_of(e.config.rollout.reward, self.source, int(record), text)


def drawn_rows(experiment: Any, state: State, batch: Batch) -> tuple[HostBatch, Any]:
    """The rows of a batch of prompts with answers that the parameters of the state draw, `weights` 1 at their
    tokens, and the answers (`Drawn`), all on the host: a function of the parameters and (seed, step, row)."""
    e, r = experiment, experiment.config.rollout
    rows = {name: on_host(x).copy() for name, x in batch.items()}
    rng = jax.random.fold_in(jax.random.key(e.config.seed), state.step)
    rngs_b = jax.vmap(jax.random.fold_in, (None, 0))(rng, jnp.arange(len(rows["records"])))
    room, ends = r.max_new_tokens, jnp.array(e.ends, jnp.int32)
    prompts_bt = batch["tokens"][:, : e.config.data.sequence_length + 1 - room]
    options: Any = {"room": room, "ends": ends, "temperature": r.temperature}
    drawn = draw_answers(e.stepper(state.params), prompts_bt, batch["lengths"], rngs_b, **options)
    answers: Any = Drawn(*map(on_host, drawn))  # type: ignore[arg-type]
    for i, (n, length) in enumerate(zip(answers.counts_b, rows["lengths"], strict=True)):
        here = np.s_[i, length - 1 : length - 1 + n]
        fill(rows, i, [*rows["tokens"][i, :length], *answers.tokens_bn[i, :n]])
        rows["weights"][here], rows["sampled"][here] = 1.0, answers.log_p_bn[i, :n]
    return rows, answers


def is_blank(rollout: Batch) -> bool:
    """Whether a rollout has no answers."""
    return not np.any(on_host(rollout["normalizers"]))
