"""Likelihood of a mixture of sources: of each of them, and in their proportions."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from transformer.training.experiment import Params
from transformer.training.metrics import Sum


class MixedLikelihood:
    """The results of every source, "stdlib/loss", and those of the mixture, "loss".

    With T_i the total and W_i the weight of a term over the data of source i, w_i the weight of the source,
    and N_i its number of targets (the weight of the loss, or where this is divided into terms, of all), the
    mixture has sum_i (w_i / N_i) T_i / sum_i (w_i / N_i) W_i. So the loss is the mean of the losses with
    weights w_i, and bits per byte are those of text whose targets are from the sources in these proportions,
    whatever the sizes of the validation data. A term that a source lacks is left out.
    """

    def __init__(self, parts: Mapping[str, Any], weights: Sequence[float]) -> None:
        """`parts` are the `LikelihoodEvaluator`s of the sources."""
        self._parts, self._weights = parts, weights

    def names(self, params: Params) -> list[str]:
        """The names of the results."""
        keys_by_part = {name: part.names(params) for name, part in self._parts.items()}
        return [
            *_common(keys_by_part.values()),
            *(f"{name}/{key}" for name, keys in keys_by_part.items() for key in keys),
        ]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"loss": nats, ..., "stdlib/loss": nats, ...}."""
        results_by_part = {name: part(params) for name, part in self._parts.items()}
        part, *_ = self._parts.values()
        common = _common(part.totals for part in self._parts.values())
        whole = {key: float(self._mixed(key).mean) for key in common}
        return part.with_perplexity(whole) | {
            f"{name}/{key}": value
            for name, results in results_by_part.items()
            for key, value in results.items()
        }

    def describe(self) -> dict[str, str]:
        """The details of every source, and the numbers of evaluated rows."""
        descriptions = {name: part.describe() for name, part in self._parts.items()}
        measured = [
            f"{name} {description.pop('measured')}"
            for name, description in descriptions.items()
            if "measured" in description
        ]
        described = {
            f"{name}/{key}": text
            for name, description in descriptions.items()
            for key, text in description.items()
        }
        return described | ({"measured": "; ".join(measured)} if measured else {})

    def _mixed(self, key: str) -> Sum:
        total = weight = 0.0
        for part, share in zip(self._parts.values(), self._weights, strict=True):
            terms = part.totals
            counted = [terms["loss"]] if "loss" in terms else terms.values()
            targets = sum(float(term.weight) for term in counted)
            scale = share / targets if targets else math.nan
            total += scale * float(terms[key].total)
            weight += scale * float(terms[key].weight)
        return Sum(total, weight)


def _common(parts: Iterable[Collection[str]]) -> list[str]:
    """The names that all parts have, in the order of the first."""
    first, *rest = parts
    return [name for name in first if all(name in part for part in rest)]
