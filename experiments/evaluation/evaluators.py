"""Optional evaluators, which the key `evaluate.also` adds to those of an experiment."""

import gzip
import lzma
import math
import pkgutil
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evaluation.induction_score import InductionScore
from experiments.evaluation.mean_reward import MeanReward
from experiments.evaluation.multiple_choice import MultipleChoice
from transformer.data.text.packed_text import TextData
from transformer.errors import UnknownMember, UserError, suggest
from transformer.evaluation.likelihood import LikelihoodEvaluator
from transformer.evaluation.terms_by_row import by_target
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator
from transformer.training.metrics import Sum


class Compressors:
    """Bits per byte of gzip and xz on the text of a split, as baselines for a language model."""

    def __init__(self, experiment: Any, put: Put, split: str) -> None:
        """The experiment's data need a method `text`."""
        if not isinstance(experiment.data, TextData):
            raise UserError(f"evaluate.also: compressors: {experiment.config.experiment} has no plain text")
        self._experiment, self._split = experiment, split

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        return [f"{name}{kind}" for name in self._parts() for kind in ("gzip", "xz")]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"gzip": ..., "xz": ...}, or for the sources of a mixture {"stdlib/gzip": ..., ...}."""
        values: dict[str, float] = {}
        for name, data in self._parts().items():
            text = "".join(data.text(self._split)).encode()
            values |= {f"{name}{kind}": bits for kind, bits in compressed(text).items()}
        return values

    def _parts(self) -> dict[str, Any]:
        parts = self._experiment.data.parts(self._split)
        return {f"{name}/" if name else "": data for name, data in parts.items()}


def compressed(text: bytes) -> dict[str, float]:
    """{"gzip": ..., "xz": ...}: bits per byte at the highest compression level."""
    sizes = {
        "gzip": len(gzip.compress(text, 9)),
        "xz": len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)),
    }
    return {name: 8 * size / max(len(text), 1) for name, size in sizes.items()}


class Positions:
    """The loss by the position of a target in its document, which shows whether a model uses its context.

    `from_0`, `from_1`, `from_3`, `from_7` ... in nats per target: `from_3` is the mean over positions 3 to 6.
    """

    def __init__(self, experiment: Any, put: Put, split: str) -> None:
        """The experiment's batches need `positions` of each target, and no carry from batch to batch."""
        loader = experiment.loader(split)
        first = next(iter(loader.iterate(0)))
        shapes = [np.shape(first.get(name)) for name in ("positions", "weights")]
        if experiment.initial_carry() is not None or len(shapes[0]) != 2 or shapes[0] != shapes[1]:
            raise UserError(f"evaluate.also: positions: {experiment.config.experiment} has none of its own")

        cost = by_target(experiment)

        def step(params: Params, batch: Batch) -> dict[str, Sum]:
            weights_bt, positions_bt, cost_bt = batch["weights"], batch["positions"], cost(params, batch)
            place_bt = jnp.floor(jnp.log2(positions_bt + 1.0) + 1e-4).astype(jnp.int32)
            return {
                f"from_{2**i - 1}": Sum(jnp.sum(cost_bt * here_bt), jnp.sum(weights_bt * here_bt))
                for i in range(positions_bt.shape[1].bit_length())
                for here_bt in [place_bt == i]
            }

        batches = experiment.config.train.evaluate_batches
        self._measure = LikelihoodEvaluator(jax.jit(step), loader, put, batches, perplexity=False)

    def names(self, params: Params) -> list[str]:
        """The names of the results; a call omits those without a target."""
        return self._measure.names(params)

    def __call__(self, params: Params) -> dict[str, float]:
        """{"from_0": nats, ...}."""
        return {name: value for name, value in self._measure(params).items() if not math.isnan(value)}


EVALUATORS: dict[str, str | Callable[..., Evaluator]] = {
    "compressors": Compressors,
    "positions": Positions,
    "induction": InductionScore,
    "choices": MultipleChoice,
    "similarity": "experiments.evaluation.vector_scores:Similarity",
    "zero_shot": "experiments.evaluation.vector_scores:ZeroShot",
    "answers": MeanReward,
}
"""Prefix of the logged results -> constructor, called with the experiment, `put` and the split; or its module
and name, imported when it is asked for."""

OF_MORE = {"choices": "FILE", "similarity": "FILE", "zero_shot": "FILE", "answers": "REWARD"}
"""Those that are called with something more: `evaluate.also=choices:FILE`."""


def named_evaluators(experiment: Any, put: Put, split: str) -> dict[str, Evaluator]:
    """The evaluators that `evaluate.also` names.

    Raises:
      UserError: unknown name, or a file is missing or too much.
    """
    return dict(_named(experiment, put, split, name) for name in experiment.config.evaluate.others)


def _named(experiment: Any, put: Put, split: str, entry: str) -> tuple[str, Evaluator]:
    """The name and the evaluator of "name" or "name:FILE"."""
    name, _, file = entry.partition(":")
    if name not in EVALUATORS:
        raise UnknownMember(f"evaluate.also: {name!r} is not an evaluator; {suggest(name, EVALUATORS)}")
    if bool(file) != (name in OF_MORE):
        expected = f"{name}:{OF_MORE[name]}" if name in OF_MORE else f"{name} alone"
        raise UserError(f"evaluate.also: {entry!r}; expected {expected}")
    entry_point = EVALUATORS[name]
    kind = pkgutil.resolve_name(entry_point) if isinstance(entry_point, str) else entry_point
    return name, kind(experiment, put, split, *([file] if file else []))
