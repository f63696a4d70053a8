"""How well answers agree with references: exact match and F1 of words, as SQuAD measures them."""

import re
import string
from collections import Counter
from collections.abc import Sequence


def normalize(answer: str) -> str:
    """Lower case, without punctuation (ASCII), the articles a, an and the, and white space beyond one space.

    Source: Rajpurkar et al. 2016, section 6.1, and the official evaluation script.
    """
    kept = "".join(character for character in answer.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact_match(answer: str, reference: str) -> float:
    """1 where both are the same when normalised, else 0."""
    return float(normalize(answer) == normalize(reference))


def f1(answer: str, reference: str) -> float:
    """2 P R / (P + R) of the words of both, each counted as often as it occurs in both; where one of them
    has no words (an impossible question, say) 1 if the other has none either, else 0, as in SQuAD 2.0."""
    found, wanted = normalize(answer).split(), normalize(reference).split()
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))


def span_scores(answers: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """{"exact_match", "f1"} in percent: each answer's best over its references, the mean of all."""
    pairs = list(zip(answers, references, strict=True))
    return {
        name: 100 * sum(max(score(answer, each) for each in wanted) for answer, wanted in pairs) / len(pairs)
        for name, score in (("exact_match", exact_match), ("f1", f1))
    }
