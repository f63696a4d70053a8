"""Exact match of generated texts with their references."""

from collections.abc import Sequence

import numpy as np

from transformer.evaluation.text.text_metric import MetricOptions, TextMetric


class ExactMatch(TextMetric):
    """{"exact_match"}: the percentage of texts equal to one of their references, up to the amount of white
    space."""

    def __init__(self, options: MetricOptions | None = None) -> None:
        """No options."""

    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """(n, 1): 1 for a match, else 0."""
        pairs = zip(texts, references, strict=True)
        matches = [text.split() in [reference.split() for reference in several] for text, several in pairs]
        return np.array(matches, np.float64)[:, None]

    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """In [0, 100]."""
        return {"exact_match": 100 * float(total_k[0]) / max(count, 1)}

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """In the format of sacreBLEU."""
        return "case:mixed|space:any"
