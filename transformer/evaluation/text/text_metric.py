"""`TextMetric`, the base class of metrics of generated texts."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer.evaluation.statistics.bootstrap import interval, resampled


@dataclass(frozen=True)
class MetricOptions:
    """Options of the members of `METRICS`."""

    bleu_tokenizer: str = "13a"


class TextMetric(ABC):
    """A corpus metric of texts against references, computed from statistics that are summed over the
    texts."""

    @abstractmethod
    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """(n, k) float64: k statistics of each of n texts; a text has one or more references."""

    @abstractmethod
    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """The scores of `count` texts from the sum of their statistics, usually in [0, 100]."""

    @abstractmethod
    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """The signature of the scores, to be reported with them."""

    def measure(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """The scores of all the texts."""
        return self.scores(self.statistics(texts, references).sum(axis=0), len(texts))


def intervals(metric: TextMetric, statistics_nk: np.ndarray, seed: int = 0) -> dict[str, tuple[float, float]]:
    """The 95 % bootstrap interval of each score.

    Source: Koehn 2004, "Statistical significance tests for machine translation evaluation", section 3.
    """
    drawn: dict[str, list[float]] = {}
    for total_k in resampled(statistics_nk, seed):
        for name, score in metric.scores(total_k, len(statistics_nk)).items():
            drawn.setdefault(name, []).append(score)
    return {name: interval(scores) for name, scores in drawn.items()}
