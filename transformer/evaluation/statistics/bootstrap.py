"""Bootstrap confidence intervals."""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000
"""The number of bootstrap samples."""

AT_ONCE = 1 << 24
"""Random numbers drawn at once, to bound the memory."""


def resampled(statistics_nk: np.ndarray, seed: int = 0) -> np.ndarray:
    """(RESAMPLES, k): sums of the statistics (n, k) over n examples drawn with replacement.

    Source: Efron 1979, "Bootstrap methods: another look at the jackknife".
    """
    rng, n = np.random.default_rng(seed), len(statistics_nk)
    rows = max(1, AT_ONCE // n)
    sums = []
    for start in range(0, RESAMPLES, rows):
        drawn_rn = rng.integers(n, size=(min(rows, RESAMPLES - start), n))
        counts_rn = np.stack([np.bincount(indices, minlength=n) for indices in drawn_rn])
        sums.append(counts_rn @ statistics_nk)
    return np.concatenate(sums)


def interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """The ends of the 95 % percentile interval of bootstrap values."""
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(low), float(high)


def interval_text(ends: tuple[float, float], of: str) -> str:
    """An interval in words; `of` says what was resampled, "1,000 pairs"."""
    low, high = (f"{end:.4g}" for end in ends)
    return f"95 % interval {low} to {high} (bootstrap over {of})"
