"""`TextMetric`, the base class of metrics of generated texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer.evaluation.bootstrap import interval, resampled


@dataclass(frozen=True)
class MetricOptions:
    """What the members of `METRICS` may be told."""

    bleu_tokenizer: str = "13a"


class TextMetric(ABC):
    """Scores of texts against references, from numbers of each text that are added up over all of them."""

    @abstractmethod
    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """(n, k) float64, k numbers of each of n texts, which has one reference or more."""

    @abstractmethod
    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """The scores of `count` texts, most of them from 0 to 100, from the sum of their statistics."""

    @abstractmethod
    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """How the scores are counted, to be reported beside them."""

    def measure(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """The scores of all the texts."""
        return self.scores(self.statistics(texts, references).sum(axis=0), len(texts))


def intervals(metric: TextMetric, statistics_nk: np.ndarray, seed: int = 0) -> dict[str, tuple[float, float]]:
    """Of each score the ends of the middle 95 % of what other samples of as many texts would have given.

    Source: Koehn 2004, "Statistical significance tests for machine translation evaluation", section 3.
    """
    drawn: dict[str, list[float]] = {}
    for total_k in resampled(statistics_nk, seed):
        for name, score in metric.scores(total_k, len(statistics_nk)).items():
            drawn.setdefault(name, []).append(score)
    return {name: interval(scores) for name, scores in drawn.items()}
