"""Exact match of generated texts with their references."""

from collections.abc import Sequence

import numpy as np

from transformer.evaluation.text_metric import MetricOptions, TextMetric


class ExactMatch(TextMetric):
    """{"exact_match"}: the percentage of texts that are one of their references, white space at the ends and
    its amount elsewhere left out."""

    def __init__(self, options: MetricOptions | None = None) -> None:
        """There is nothing to choose."""

    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """(n, 1): 1 where a text is right."""
        pairs = zip(texts, references, strict=True)
        found = [text.split() in [each.split() for each in given] for text, given in pairs]
        return np.array(found, np.float64)[:, None]

    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """In [0, 100]."""
        return {"exact_match": 100 * float(total_k[0]) / max(count, 1)}

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """In the form of sacreBLEU's."""
        return "case:mixed|space:any"
