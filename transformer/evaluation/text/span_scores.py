"""SQuAD's metrics of answers: exact match and F1 of words."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from transformer.evaluation.text.text_metric import TextMetric


def normalize(answer: str) -> str:
    """An answer in lower case, without ASCII punctuation, articles (a, an, the) and repeated white space.

    Source: Rajpurkar et al. 2016, section 6.1, and the official evaluation script.
    """
    letters = "".join(character for character in answer.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact_match(answer: str, reference: str) -> float:
    """1 if both are equal after `normalize`, else 0."""
    return float(normalize(answer) == normalize(reference))


def f1(answer: str, reference: str) -> float:
    """2 P R / (P + R) of the bags of words after `normalize`; if one is empty (no answer), 1 if both are,
    else 0, as in SQuAD 2.0."""
    answered, expected = normalize(answer).split(), normalize(reference).split()
    if not answered or not expected:
        return float(answered == expected)
    shared = sum((Counter(answered) & Counter(expected)).values())
    return 2 * shared / (len(answered) + len(expected))


class SquadMetric(TextMetric):
    """{"exact_match", "f1"} in percent: the mean over answers of the best score over the references.

    A reference of which `normalize` leaves nothing does not count; without another, no answer is expected.
    Source: the official evaluation script of SQuAD 2.0.
    """

    def statistics(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
        """(n, 2): exact match and F1 of each answer."""
        return np.array(
            [
                [
                    max(score(answer, reference) for reference in _counting(expected))
                    for score in (exact_match, f1)
                ]
                for answer, expected in zip(texts, references, strict=True)
            ]
        ).reshape(-1, 2)

    def scores(self, total_k: np.ndarray, count: int) -> dict[str, float]:
        """In [0, 100]."""
        match, words = (100 * float(total) / max(count, 1) for total in total_k)
        return {"exact_match": match, "f1": words}

    def signature(self, references: Sequence[Sequence[str]]) -> str:
        """The normalisation, which is that of the official script."""
        return "normalised as SQuAD 2.0 does"


def _counting(references: Sequence[str]) -> Sequence[str]:
    return [reference for reference in references if normalize(reference)] or [""]
