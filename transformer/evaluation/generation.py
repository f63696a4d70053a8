"""Scores of what a model generates."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transformer.errors import UserError
from transformer.evaluation.bootstrap import said
from transformer.evaluation.text_metric import TextMetric, intervals
from transformer.training.experiment import Params


class GenerationEvaluator:
    """The scores by `metrics` of `generate(params, sources)` against the references of each source.

    `describe` says of the last call how many of how many it measured, in the words of `measured()`, and of
    each score its 95 % interval and the metric's signature.
    """

    def __init__(
        self,
        generate: Callable[[Params, Sequence[Any]], list[str]],
        sources: Sequence[Any],
        references: Sequence[Sequence[str]],
        metrics: Sequence[TextMetric],
        measured: Callable[[], str],
        may_be_empty: bool = False,
    ) -> None:
        """`may_be_empty` is whether to write nothing may be right.

        Raises:
          UserError: there is no source.
        """
        if not sources:
            raise UserError("evaluation: there is nothing to write from; expected at least 1 pair")
        self._may_be_empty = may_be_empty
        self._generate, self._metrics = generate, metrics
        self._sources, self._references = sources, list(references)
        self._measured = measured
        self._statistics: list[np.ndarray] = []
        self._silent = 0

    def names(self, params: Params) -> list[str]:
        """The names of the scores."""
        return [name for metric in self._metrics for name in metric.measure(["a"], [["a"]])]

    def __call__(self, params: Params) -> dict[str, float]:
        """{"bleu": ...}: whatever the metrics measure; NaN where nothing at all was written."""
        texts, count = self._generate(params, self._sources), len(self._sources)
        self._silent = sum(not text.strip() for text in texts)
        if self._silent == count and not self._may_be_empty:
            self._statistics = []
            return dict.fromkeys(self.names(params), math.nan)
        self._statistics = [metric.statistics(texts, self._references) for metric in self._metrics]
        scores: dict[str, float] = {}
        for metric, statistics_nk in zip(self._metrics, self._statistics, strict=True):
            scores |= metric.scores(statistics_nk.sum(axis=0), count)
        return scores

    def describe(self) -> dict[str, str]:
        """{"measured": "200 of 1,000 pairs", "bleu": "95 % interval 27.5 to 30.3 ...; its signature"}."""
        found = {"measured": self._measured()}
        if self._silent:
            found["measured"] += f"; for {self._silent:,} of them nothing is written"
        if not self._statistics:
            return found
        for metric, statistics_nk in zip(self._metrics, self._statistics, strict=True):
            for name, ends in intervals(metric, statistics_nk).items():
                sure = said(ends, f"{len(statistics_nk):,} texts")
                found[name] = f"{sure}; {metric.signature(self._references)}"
        return found
