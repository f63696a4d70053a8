"""Measures of rankings: recall and nDCG of retrieval, and Spearman's correlation."""

from collections.abc import Iterable, Sequence

import numpy as np

AT_ONCE = 256
"""Queries whose scores are in memory at once."""


def rank_relevant(
    query_qd: np.ndarray, passage_nd: np.ndarray, relevant: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """For each query the ranks, from 1, of its relevant passages, whose numbers `relevant` has: by q . p, and
    of equal scores in the order of the passages."""
    ranks = []
    for start in range(0, len(query_qd), AT_ONCE):
        for score_n, numbers in zip(
            query_qd[start : start + AT_ONCE] @ passage_nd.T, relevant[start:], strict=False
        ):
            before = [np.sum(score_n > score_n[i]) + np.sum(score_n[:i] == score_n[i]) for i in numbers]
            ranks.append(1 + np.array(before))
    return ranks


def recall_at(k: int, ranks: Iterable[np.ndarray]) -> np.ndarray:
    """(q,): the share of the relevant passages of each query among its first k."""
    return np.array([np.mean(rank_r <= k) for rank_r in ranks])


def ndcg_at(k: int, ranks: Iterable[np.ndarray]) -> np.ndarray:
    """(q,): sum_r 1 / log2(1 + r) over the ranks r <= k of the relevant passages, divided by the sum if these
    were first. Source: Järvelin and Kekäläinen 2002, with relevance 0 or 1."""

    def gain(rank_r: np.ndarray) -> float:
        return float(np.sum(1 / np.log2(1 + rank_r[rank_r <= k])))

    return np.array([gain(rank_r) / gain(np.arange(1, len(rank_r) + 1)) for rank_r in ranks])


def spearman(x_n: np.ndarray, y_n: np.ndarray) -> float:
    """Spearman's correlation: that of ranks, of equal values the mean rank; NaN if all x or y are equal."""
    x_n, y_n = _mean_ranks(x_n), _mean_ranks(y_n)
    x_n, y_n = x_n - x_n.mean(), y_n - y_n.mean()
    length = np.sqrt(np.sum(x_n**2) * np.sum(y_n**2))
    return float(np.sum(x_n * y_n) / length) if length > 0 else float("nan")


def _mean_ranks(x_n: np.ndarray) -> np.ndarray:
    _, inverse_n, counts = np.unique(x_n, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse_n]
