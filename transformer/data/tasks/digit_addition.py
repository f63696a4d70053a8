"""Addition of numbers digit by digit, evaluated on longer numbers than those of training."""

import numpy as np

from transformer.data.loader import HostBatch
from transformer.data.tasks.base import TokenTask, generators
from transformer.errors import UserError

PLUS, EQUALS, END = 10, 11, 12


class DigitAddition(TokenTask):
    """a + b = c, each number with its least significant digit first, so that carries move forwards.

    Digits are the tokens 0 to 9. In a training row a and b have equally many of them, 1 to `digits`, and c
    one more; in all other rows they have more, up to `factor` times `digits`. c and the end are predicted.
    Shorter rows are filled with ends.
    Source: Lee et al. 2023, "Teaching arithmetic to small transformers" (digits in reverse); Zhou et al.
    2024, "Transformers can achieve length generalization but not robustly" (longer numbers).
    """

    vocab_size = END + 1

    def __init__(self, digits: int = 8, factor: int = 2) -> None:
        if digits < 1 or factor < 2:
            raise UserError(f"digits: {digits} with factor {factor}; expected at least 1, and at least 2")
        self._digits, self._most = digits, digits * factor
        self.length = 3 * digits + 3

    @property
    def longest(self) -> int:
        """Tokens of a row that is evaluated."""
        return 3 * self._most + 3

    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """`tokens`, `targets` (b, t) int32, `weights` (b, t), 1 where c and the end are predicted, and equal
        to them `answers`."""
        least, most = (1, self._digits) if split == "train" else (self._digits + 1, self._most)
        row_bs = np.full((len(rows_b), 3 * most + 4), END, np.int32)
        weights_bt = np.zeros((len(rows_b), 3 * most + 3), np.float32)
        for i, rng in enumerate(generators(split, rows_b)):
            count = int(rng.integers(least, most + 1))
            a_n, b_n = rng.integers(0, 10, (2, count))
            c_n, carry = np.zeros(count + 1, np.int32), 0
            for place in range(count):
                carry, c_n[place] = divmod(int(a_n[place] + b_n[place]) + carry, 10)
            c_n[count] = carry
            row_bs[i, : 3 * count + 3] = [*a_n, PLUS, *b_n, EQUALS, *c_n]
            weights_bt[i, 2 * count + 1 : 3 * count + 3] = rows_b[i] >= 0
        tokens_bt, targets_bt = row_bs[:, :-1], row_bs[:, 1:]
        return {"tokens": tokens_bt, "targets": targets_bt, "weights": weights_bt, "answers": weights_bt}
