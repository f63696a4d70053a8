"""BLEU of translations, as a function."""

import itertools
from collections.abc import Sequence

from transformer.evaluation.text.sacre import Bleu
from transformer.evaluation.text.text_metric import MetricOptions


def bleu(hypotheses: Sequence[str], references: Sequence[str], tokenizer: str = "13a") -> tuple[float, str]:
    """Corpus BLEU in [0, 100] of texts with one reference each, and the signature to report with it."""
    metric, lists = Bleu(MetricOptions(tokenizer)), [[reference] for reference in references]
    return metric.measure(hypotheses, lists)["bleu"], metric.signature(lists)


def bleu_by_length(
    hypotheses: Sequence[str], references: Sequence[str], source_lengths: Sequence[int], edges: Sequence[int]
) -> list[tuple[int, int, int, float]]:
    """(low, high, count, BLEU) of the pairs with source length in [low, high), for consecutive `edges`.

    Ranges without a pair are omitted.
    """
    ranges = []
    for low, high in itertools.pairwise(edges):
        indices = [i for i, length in enumerate(source_lengths) if low <= length < high]
        if indices:
            score, _ = bleu([hypotheses[i] for i in indices], [references[i] for i in indices])
            ranges.append((low, high, len(indices), score))
    return ranges
