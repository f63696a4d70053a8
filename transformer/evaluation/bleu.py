"""BLEU of translations against references, as sacreBLEU counts it."""

import itertools
from collections.abc import Sequence


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Corpus BLEU = 100 BP exp(sum_{n=1}^{4} log p_n / 4) in [0, 100], and the signature to report with it.

    p_n is the share of the hypotheses' n-grams that their references have too, BP = min(1, exp(1 - r / c))
    the penalty for being shorter, c words, than the references, r. Texts are given as they are to be
    read, and split by sacreBLEU's 13a tokenizer; case counts.
    Source: Papineni et al. 2002; Post 2018, "A call for clarity in reporting BLEU scores".
    """
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="13a", lowercase=False)
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    return float(score), str(metric.get_signature())


def bleu_signature() -> str:
    """How `bleu` is counted, in sacreBLEU's words, for texts with one reference each."""
    return bleu(["a"], ["a"])[1]


def bleu_scores(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """{"bleu": ...}, for a `GenerationEvaluator`."""
    return {"bleu": bleu(hypotheses, references)[0]}


def bleu_by_length(
    hypotheses: Sequence[str], references: Sequence[str], source_lengths: Sequence[int], edges: Sequence[int]
) -> list[tuple[int, int, int, float]]:
    """(low, high, count, BLEU) of the pairs whose source length is in [low, high), for neighbouring `edges`.

    Ranges without a pair are left out.
    """
    ranges = []
    for low, high in itertools.pairwise(edges):
        there = [i for i, length in enumerate(source_lengths) if low <= length < high]
        if there:
            score, _ = bleu([hypotheses[i] for i in there], [references[i] for i in there])
            ranges.append((low, high, len(there), score))
    return ranges
