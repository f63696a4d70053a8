"""What a metric of written texts is, and how sure its value is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
"""How often an interval draws its texts anew."""


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
    """Of each score the interval that holds the middle 95 % of `RESAMPLES` values, each of n texts drawn from
    the n with replacement: how far another sample of as many texts might have moved it.

    Source: Koehn 2004, "Statistical significance tests for machine translation evaluation", section 3.
    """
    rng, n = np.random.default_rng(seed), len(statistics_nk)
    drawn: dict[str, list[float]] = {}
    for _ in range(RESAMPLES):
        counts_n = np.bincount(rng.integers(n, size=n), minlength=n)
        for name, score in metric.scores(counts_n @ statistics_nk, n).items():
            drawn.setdefault(name, []).append(score)
    limits = {name: np.percentile(scores, [2.5, 97.5]) for name, scores in drawn.items()}
    return {name: (float(low), float(high)) for name, (low, high) in limits.items()}
