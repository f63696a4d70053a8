"""Word problems of groups: the products of all beginnings of a sequence of elements."""

import itertools

import numpy as np

from transformer.data.loader import HostBatch
from transformer.data.tasks.base import TokenTask, generators
from transformer.errors import UserError


class WordProblem(TokenTask):
    """Random elements g_1 ... g_t of the symmetric group of `degree` points -> the products g_1 ... g_i.

    Element number e is the permutation e of `itertools.permutations`, and the product a b is first b, then a:
    (a b)(x) = a(b(x)). A degree of 2 is parity. Training rows have `length` elements, all others `factor`
    times as many, whose answers are those behind the trained lengths.
    Source: Merrill et al. 2024, "The illusion of state in state-space models", section 5, for S_5; lengths
    beyond those of training as in Grazzi et al. 2025, "Unlocking state-tracking in linear RNNs", section 5.
    """

    def __init__(self, degree: int = 5, length: int = 32, factor: int = 8) -> None:
        if not 2 <= degree <= 5:
            raise UserError(f"degree: {degree}; expected 2 to 5")
        if length < 1 or factor < 2:
            raise UserError(f"length: {length} with factor {factor}; expected at least 1, and at least 2")
        elements = np.array([*itertools.permutations(range(degree))])
        self.vocab_size, self.length, self._factor = len(elements), length, factor
        digits = degree ** np.arange(degree)
        number = np.zeros(degree**degree, np.int32)
        number[elements @ digits] = np.arange(len(elements))
        self._product_aa = number[elements[:, elements] @ digits]

    @property
    def longest(self) -> int:
        """Elements of a row that is evaluated."""
        return self.length * self._factor

    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """`tokens`, `targets` (b, t) int32, `weights` (b, t), 1, and `answers` (b, t): in training all, else
        those behind the trained lengths."""
        t = self.length if split == "train" else self.longest
        tokens_bt = np.stack([rng.integers(self.vocab_size, size=t) for rng in generators(split, rows_b)])
        targets_bt = np.empty(tokens_bt.shape, np.int32)
        targets_bt[:, 0] = tokens_bt[:, 0]
        for i in range(1, t):
            targets_bt[:, i] = self._product_aa[targets_bt[:, i - 1], tokens_bt[:, i]]
        weights_bt = np.broadcast_to((rows_b >= 0)[:, None], targets_bt.shape).astype(np.float32)
        answers_bt = weights_bt * (np.arange(t) >= (0 if split == "train" else self.length))
        answers_bt = answers_bt.astype(np.float32)
        tokens_bt = tokens_bt.astype(np.int32)
        return {"tokens": tokens_bt, "targets": targets_bt, "weights": weights_bt, "answers": answers_bt}
