"""A test that may be looked at after every pair, and stopped at any time, with the error rate it promises.

For normal differences d_1 ... d_n of unknown mean and variance, and t = mean(d - m) / (s / sqrt n), the
evidence against the mean m is the ratio of the likelihoods of t if the mean is normal around m, with a
standard deviation of `EFFECT` times that of the differences, and if it is m:

    E_n = (1 + n g)^(-1/2) ((1 + t^2 / (n - 1)) / (1 + t^2 / ((n - 1) (1 + n g))))^(n / 2),   g = EFFECT^2.

If the mean is m, the probability that E_n is ever 1 / error or more is at most `error`.

Sources: Gonen et al. 2005, "The Bayesian two-sample t test" (the ratio); Perez-Ortiz et al. 2024,
"E-statistics, group invariance and anytime-valid testing" (that it holds at any time).
"""

import math
import statistics
from collections.abc import Sequence

EFFECT = 2.0
"""The mean difference that is expected if there is one, in standard deviations of the differences."""

BISECTIONS = 50
"""Halvings of the interval in which an end of `rate_interval` is."""

FURTHEST = 10_000
"""The largest number of pairs that `pairs_needed` looks at."""


def evidence(differences: Sequence[float], mean: float = 0.0) -> float:
    """The logarithm of the evidence that the mean of the differences is not `mean`."""
    n, g = len(differences), EFFECT**2
    spread = statistics.stdev(differences) if n > 1 else 0.0
    away = statistics.fmean(differences) - mean
    if not spread:
        return 0.0 if n < 2 or not away else math.inf
    ratio = n * (away / spread) ** 2 / (n - 1)
    return (n * (math.log1p(ratio) - math.log1p(ratio / (1 + n * g))) - math.log1p(n * g)) / 2


def interval(differences: Sequence[float], error: float) -> tuple[float, float]:
    """The means with less evidence against them than log(1 / error): with probability 1 - `error` or more the
    true one is in it for every number of differences at once."""
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return -math.inf, math.inf
    half = _half_width(len(differences), statistics.stdev(differences), error)
    return mean - half, mean + half


def _half_width(n: int, spread: float, error: float) -> float:
    """Where the evidence of n differences with a standard deviation is log(1 / error)."""
    wide = 1 + n * EFFECT**2
    needed = (math.sqrt(wide) / error) ** (2 / n)
    if needed >= wide:  # no t is enough
        return math.inf
    return spread * math.sqrt((n - 1) * (needed - 1) / (1 - needed / wide) / n)


def rate_interval(count: int, total: int, error: float) -> tuple[float, float]:
    """The probabilities p of an event that was seen `count` = k of `total` = n times, with evidence below
    1 / error against them:

        E_n = B(k + 1, n - k + 1) p^(-k) (1 - p)^(k - n),

    the ratio of the likelihoods of a uniform p and of this one. With probability 1 - `error` or more the true
    one is in it for every n at once. Source: Robbins 1970, "Statistical methods related to the law of the
    iterated logarithm".
    """
    k, n = count, total
    log_beta = math.lgamma(k + 1) + math.lgamma(n - k + 1) - math.lgamma(n + 2)

    def is_outside(p: float) -> bool:
        seen, unseen = (m * math.log(q) if m else 0.0 for m, q in ((k, p), (n - k, 1 - p)))
        return log_beta - seen - unseen >= -math.log(error)

    ends = []
    for end in (0.0, 1.0):
        inner, outer = k / n if n else 0.5, end
        for _ in range(BISECTIONS):
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if is_outside(middle) else (middle, outer)
        ends.append(outer)
    return ends[0], ends[1]


def verdict(differences: Sequence[float], error: float, smallest: float = 0.0) -> str:
    """The answer that differences b - a give: "less", "more", "same" (none is larger than `smallest`), or ""
    as long as nothing is shown."""
    low, high = interval(differences, error)
    if low > 0 or high < 0:
        return "more" if low > 0 else "less"
    return "same" if smallest and -smallest <= low and high <= smallest else ""


def pairs_needed(differences: Sequence[float], error: float, smallest: float = 0.0) -> int:
    """About how many more pairs give a verdict, if mean and spread stay; 0 if none of `FURTHEST` do."""
    n, mean = len(differences), abs(statistics.fmean(differences))
    spread = statistics.stdev(differences) if n > 1 else 0.0
    for more in range(1, FURTHEST):
        half = _half_width(n + more, spread, error)
        if half < mean or (smallest and mean + half <= smallest):
            return more
    return 0
