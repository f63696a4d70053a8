"""The order of the rows of a mixture: which source each of them is from."""

from collections.abc import Sequence

import numpy as np

from transformer.errors import UserError

MAX_PERIOD = 100_000
"""The longest period of the order; weights are multiples of a 1/`MAX_PERIOD` or larger part of their sum."""

ROUNDING = 1e-10
"""Above the rounding error of `MAX_PERIOD` times a share, which is below 1."""


class Interleaving:
    """An endless order of k sources: of the first n places, for any n, source i has floor(n w_i) or
    ceil(n w_i), with w_i = weight_i / sum of weights.

    The order has a period of D places, the smallest number for which all D w_i are whole, so each place is
    known without those before it. Place n belongs, among the sources with fewer than ceil((n + 1) w_i) places
    so far, to the one that needs its next place the soonest to have floor(m w_i) after m places.

    Source: Baruah et al. 1996 ("Proportionate progress"), for one processor; the earliest deadline first.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """`weights` are positive. Raises as `whole_weights`."""
        self.counts_k = whole_weights(weights)
        parts, period = self.counts_k.tolist(), int(self.counts_k.sum())
        had, order = [0] * len(parts), []
        for place in range(period):
            _, i = min(
                (-(-(had[i] + 1) * period // part), i)
                for i, part in enumerate(parts)
                if had[i] * period < (place + 1) * part
            )
            order.append(i)
            had[i] += 1
        self._order_d = np.array(order)
        self._before_d = np.zeros(period, np.int64)  # places of the same source before, in the period
        for i, part in enumerate(parts):
            self._before_d[self._order_d == i] = np.arange(part)

    def __call__(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The source of each place, and how many places before it are of that source."""
        period, slot = np.divmod(places, len(self._order_d))
        sources = self._order_d[slot]
        return sources, period * self.counts_k[sources] + self._before_d[slot]


def whole_weights(weights: Sequence[float]) -> np.ndarray:
    """The smallest whole numbers (k,) in the proportions of the weights.

    Raises:
      UserError: their sum exceeds `MAX_PERIOD`.
    """
    shares_k = np.array(weights, float) / np.max(weights)
    shares_k /= shares_k.sum()
    products_dk = np.arange(1, MAX_PERIOD + 1)[:, None] * shares_k
    counts_dk = np.rint(products_dk)
    errors_d = np.abs(products_dk - counts_dk).max(axis=1)
    errors_d[~counts_dk.all(axis=1)] = 1
    if errors_d.min() > ROUNDING:
        listed, near = ", ".join(map(str, weights)), counts_dk[np.argmin(errors_d)]
        such = "such as " + ", ".join(f"{count:.0f}" for count in near) if near.all() else "or leave some out"
        raise UserError(
            f"the weights {listed} are not multiples of a 1/{MAX_PERIOD:,} or larger part of their sum; "
            f"round them, {such}"
        )
    return counts_dk[np.argmax(errors_d <= ROUNDING)].astype(np.int64)
