"""Likelihood of held-out data, by the loss of training."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from transformer.evaluation.batch_results import batch_results
from transformer.evaluation.statistics.bootstrap import interval, interval_text, resampled
from transformer.evaluation.terms_by_row import WEIGHTS, Rows, split_by_row
from transformer.training.experiment import Batch, Batches, Objective, Params, Put
from transformer.training.metrics import Sum, merge
from transformer.training.step import in_microbatches, make_eval_step


@dataclasses.dataclass
class LikelihoodEvaluator:
    """The mean of every term over one pass of `loader`, and if `perplexity` exp of the term `nll`, or of
    `loss` if there is no `nll`.

    `step` is the compiled (params, batch) -> {name: Sum}, or ({name: Sum}, `Rows`) as `by_row` returns it.
    `put` puts a batch onto the devices, and `batches` limits the pass (0: all). Totals and weights are summed
    over all batches before they are divided, so the result does not depend on how the data are batched. They
    are the `totals` of the last call. For a loader with `parts` the results are those of `MixedLikelihood`.
    """

    step: Callable[[Params, Batch], Any]
    loader: Batches
    put: Put = lambda batch: batch
    batches: int = 0
    perplexity: bool = True
    totals: dict[str, Sum] = dataclasses.field(default_factory=dict, init=False)
    _rows: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, init=False)

    @functools.cached_property
    def _mixture(self) -> Any:
        """The evaluator of a mixture; None for one source."""
        loader: Any = self.loader
        if not loader.parts:
            return None
        from transformer.evaluation.mixed_likelihood import MixedLikelihood

        parts = {name: dataclasses.replace(self, loader=part) for name, part in loader.parts.items()}
        return MixedLikelihood(parts, loader.weights)

    def names(self, params: Params) -> list[str]:
        """The names of the results, by `jax.eval_shape`; `params` may be abstract."""
        if self._mixture:
            return self._mixture.names(params)
        batch = next(iter(self.loader.iterate(0)), None)
        results = jax.eval_shape(self.step, params, self.put(batch)) if batch else {}
        terms = results[0] if isinstance(results, tuple) else results
        return [*self.with_perplexity(dict.fromkeys(terms, 0.0))]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"loss": nats, "perplexity": ..., ...}: one entry for each term.

        Raises:
          UserError: the loader has no batch.
        """
        if self._mixture:
            return self._mixture(params)
        results = [
            result if isinstance(result, tuple) else (result, {})
            for result in batch_results(self.step, params, self.loader, self.put, self.batches)
        ]
        self.totals = merge(terms for terms, _ in results)
        parts = {name: [rows[name] for _, rows in results] for name in results[0][1]}
        self._rows = {name: np.concatenate(result) for name, result in parts.items()}
        return self.with_perplexity({name: float(term.mean) for name, term in self.totals.items()})

    def describe(self) -> dict[str, str]:
        """The number of evaluated rows, and a bootstrap interval of each result."""
        if self._mixture:
            return self._mixture.describe()
        counted = [rows_n2[:, 1] > 0 for rows_n2 in self._rows.values()]
        kept_n = np.any(counted, axis=0) if counted else np.zeros(0, bool)
        n = int(kept_n.sum())
        if not n:
            return {}
        loader: Any = self.loader
        description = {"measured": f"{n:,} of {max(n, loader.rows.counted):,} rows"}
        if "loss" in self._rows:
            description["measured"] += f", {self._rows['loss'][:, 1].sum():,.0f} targets in them"
        if n > 1:
            sums_r = resampled(np.concatenate([rows_n2[kept_n] for rows_n2 in self._rows.values()], axis=1))
            drawn = {
                name: sums_r[:, 2 * i] / np.where(sums_r[:, 2 * i + 1] > 0, sums_r[:, 2 * i + 1], np.nan)
                for i, name in enumerate(self._rows)
            }
            for name, values in self.with_perplexity(drawn).items():
                description[name] = interval_text(interval(values), f"{n:,} rows")
        return description

    def with_perplexity(self, results: dict[str, Any]) -> dict[str, Any]:
        """The results, with the perplexity if it is asked for."""
        if self.perplexity and "loss" in results:
            with np.errstate(over="ignore"):  # a diverged loss has infinite perplexity
                perplexity = np.exp(results["nll" if "nll" in results else "loss"])
            results["perplexity"] = float(perplexity) if np.ndim(perplexity) == 0 else perplexity
        return results


def likelihood_evaluator(
    experiment: Objective, loader: Batches, put: Put, perplexity: bool = True
) -> LikelihoodEvaluator:
    """The evaluator of an experiment's loss, in as many microbatches as in training."""
    c = experiment.config
    step = in_microbatches(by_row(make_eval_step(experiment), experiment.weights), c.parallel.microbatches)
    return LikelihoodEvaluator(jax.jit(step), loader, put, c.train.evaluate_batches, perplexity)


def by_row(
    step: Callable[[Params, Batch], dict[str, Sum]], weights: Sequence[str] = WEIGHTS
) -> Callable[[Params, Batch], Any]:
    """(params, batch) -> the terms, in total and per row (see `split_by_row`)."""

    def measure(params: Params, batch: Batch) -> tuple[dict[str, Sum], Rows]:
        terms, rows, _ = split_by_row(lambda part: (step(params, part), None), batch, weights)
        return terms, rows

    return measure
