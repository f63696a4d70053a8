"""ROUGE of summaries against references."""

from collections.abc import Sequence


def rouge_scores(hypotheses: Sequence[str], references: Sequence[str | Sequence[str]]) -> dict[str, float]:
    """{"rouge1", "rouge2", "rougeL"}: the mean F1, in [0, 1], of the words that both have, of the pairs of
    neighbouring words, and of the longest common subsequence; words are lower-cased and stemmed.

    Where a text has several references the best one counts, for each score by itself. Means over no text
    are zero.
    Source: Lin 2004, "ROUGE: a package for automatic evaluation of summaries", as computed by `rouge_score`.
    """
    from rouge_score.rouge_scorer import RougeScorer  # takes a second: not where nothing is scored

    kinds = ["rouge1", "rouge2", "rougeL"]
    scorer = RougeScorer(kinds, use_stemmer=True)
    totals = dict.fromkeys(kinds, 0.0)
    for hypothesis, given in zip(hypotheses, references, strict=True):
        best = scorer.score_multi([given] if isinstance(given, str) else list(given), hypothesis)
        for kind in kinds:
            totals[kind] += best[kind].fmeasure
    return {kind: float(total) / max(len(hypotheses), 1) for kind, total in totals.items()}
