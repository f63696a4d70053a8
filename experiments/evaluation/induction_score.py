"""Whether attention heads are induction heads."""

from typing import Any

import jax
import jax.numpy as jnp

from transformer.errors import UserError
from transformer.evaluation.attention_weights import sown_weights
from transformer.evaluation.likelihood import LikelihoodEvaluator
from transformer.interpret.instruments.heads import follows
from transformer.training.experiment import Batch, Params, Put
from transformer.training.metrics import Sum


class InductionScore:
    """The attention to tokens that followed earlier occurrences of the present token, as a mean over answers:
    1 for a pure induction head. Of each layer, that of its highest head.

    Source: Olsson et al. 2022, the prefix-matching score.
    """

    def __init__(self, experiment: Any, put: Put, split: str) -> None:
        """The experiment is one of algorithmic tasks, with attention."""
        kind, model = experiment.config.experiment, experiment.model
        if kind != "algorithmic":
            raise UserError(f"evaluate.also: induction: {kind} has no answers to look up")
        if not experiment.config.model.has_attention:
            raise UserError("evaluate.also: induction: no layer of the model has attention weights")
        loader = experiment.loader(split)

        def step(params: Params, batch: Batch) -> dict[str, Sum]:
            tokens_bt = batch["tokens"]
            _, sown = model.apply({"params": params}, tokens_bt, mutable="intermediates")
            follows_bts = follows(tokens_bt)
            weight = jnp.sum(batch["answers"])
            return {
                f"layer_{i}_head_{h}": Sum(total, weight)
                for i, weights_bhts in enumerate(sown_weights(sown))
                for h, total in enumerate(
                    jnp.einsum("bhts,bts,bt->h", weights_bhts, follows_bts, batch["answers"])
                )
            }

        batches = experiment.config.train.evaluate_batches
        self._measure = LikelihoodEvaluator(jax.jit(step), loader, put, batches, perplexity=False)

    def names(self, params: Params) -> list[str]:
        """The name of each layer."""
        return [*_largest(dict.fromkeys(self._measure.names(params), 0.0))]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"layer_0": ..., "layer_1": ...}."""
        return _largest(self._measure(params))


def _largest(scores: dict[str, float]) -> dict[str, float]:
    """The largest score of the heads of each layer."""
    largest: dict[str, float] = {}
    for name, score in scores.items():
        layer = name.partition("_head")[0]
        largest[layer] = max(largest.get(layer, 0.0), score)
    return largest
