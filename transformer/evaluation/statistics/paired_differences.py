"""The interval of a mean of paired differences whose number was fixed beforehand."""

import math
import statistics
from collections.abc import Sequence


def interval(differences: Sequence[float], error: float) -> tuple[float, float]:
    """mean(d) -+ t s / sqrt(n), t the 1 - error / 2 quantile of Student's t with n - 1 degrees of freedom.

    For normal differences the true mean is in it with probability 1 - `error`; infinite for fewer than two.
    If n depends on what was measured, `sequential.interval` holds instead. Source: Student 1908.
    """
    n, mean = len(differences), statistics.fmean(differences)
    if n < 2:
        return -math.inf, math.inf
    from scipy.special import stdtrit  # imported late: no other part of a run needs it

    half = float(stdtrit(n - 1, 1 - error / 2)) * statistics.stdev(differences) / math.sqrt(n)
    return mean - half, mean + half
