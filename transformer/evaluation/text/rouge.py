"""ROUGE of summaries against references."""

import functools
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from transformer.evaluation.text.text_metric import MetricOptions, TextMetric

KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")

ABBREVIATIONS = (
    "a.m al approx apr aug ave co corp dec dept dr e.g est etc feb fig gen gov i.e inc jan jr jul jun lt ltd "
    "mr mrs ms nov oct p.m ph.d prof rep rev sen sept sr st u.k u.n u.s vs"
)
"""Abbreviations, whose full stop need not end a sentence."""


class Rouge(TextMetric):
    """{"rouge1", "rouge2", "rougeL", "rougeLsum"}: 100 times the mean F1 of unigrams, bigrams, the longest
    common subsequence, and the union of the longest common subsequences of sentences. Words are lower-cased
    and stemmed.

    With several references, each score is the best over them. Sentences end at line breaks and where Punkt
    (Kiss and Strunk 2006) with `ABBREVIATIONS` finds an end.
    Source: Lin 2004, "ROUGE: a package for automatic evaluation of summaries", as computed by `rouge_score`.
    """

    def __init__(self, options: MetricOptions | None = None) -> None:
        """No options."""

    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """(n, 4): the F1 of each text."""
        best = [
            self._scorer.score_multi([*map(sentences, several)], sentences(text))
            for text, several in zip(texts, references, strict=True)
        ]
        return np.array([[scores[kind].fmeasure for kind in KINDS] for scores in best]).reshape(
            -1, len(KINDS)
        )

    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """In [0, 100]; 0 without texts."""
        return {kind: 100 * float(total) / max(count, 1) for kind, total in zip(KINDS, total_k, strict=True)}

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """In the format of sacreBLEU."""
        counts = {len(several) for several in references}
        version = metadata.version("rouge-score")
        return (
            f"nrefs:{counts.pop() if len(counts) == 1 else 'var'}|score:f1|stem:porter|sentences:punkt+lines|"
            f"package:rouge-score|version:{version}"
        )

    @functools.cached_property
    def _scorer(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer  # imported late: the import takes a second

        return RougeScorer(list(KINDS), use_stemmer=True)


def sentences(text: str) -> str:
    """The sentences of a text, one per line."""
    return "\n".join(part for line in text.splitlines() for part in _punkt().tokenize(line))


@functools.cache
def _punkt() -> Any:
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    known = PunktParameters()
    known.abbrev_types = set(ABBREVIATIONS.split())
    return PunktSentenceTokenizer(known)
