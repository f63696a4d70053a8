"""Addition modulo a prime, from a part of its table."""

import numpy as np

from transformer.data.loader import HostBatch
from transformer.data.tasks.base import TokenTask
from transformer.errors import UserError


class ModularAddition(TokenTask):
    """a, b, = -> a + b mod n, for all n^2 pairs; only the sum is predicted. Token n is the sign "=".

    A random `train_fraction` of the pairs is for training, all others for validation and test.
    Source: Power et al. 2022, "Grokking"; in this form Nanda et al. 2023.
    """

    length = 3

    def __init__(self, modulus: int = 113, train_fraction: float = 0.3, split_seed: int = 0) -> None:
        if modulus < 2:
            raise UserError(f"modulus: {modulus}; expected at least 2")
        self.modulus, self.vocab_size = modulus, modulus + 1
        order = np.random.default_rng(split_seed).permutation(modulus**2)
        cut = int(train_fraction * modulus**2)
        if not 0 < cut < modulus**2:
            raise UserError(
                f"train_fraction: {train_fraction}; expected one that leaves pairs for both splits"
            )
        self._pairs = {"train": order[:cut], "validation": order[cut:], "test": order[cut:]}

    def size(self, split: str) -> int:
        """The number of pairs."""
        return len(self._pairs[split])

    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """`tokens`, `targets` (b, 3) int32, `weights` (b, 3), 1 for the sum, and equal to them `answers`."""
        a_b, b_b = np.divmod(self._pairs[split][np.maximum(rows_b, 0)], self.modulus)
        equals_b, sum_b = np.full_like(a_b, self.modulus), (a_b + b_b) % self.modulus
        row_b4 = np.stack([a_b, b_b, equals_b, sum_b], axis=1).astype(np.int32)
        weights_bt = np.array([0, 0, 1], np.float32) * (rows_b >= 0)[:, None].astype(np.float32)
        return {
            "tokens": row_b4[:, :-1],
            "targets": row_b4[:, 1:],
            "weights": weights_bt,
            "answers": weights_bt,
        }

    def prompt(self, numbers: list[int]) -> list[int]:
        """a, b, =.

        Raises:
          UserError: they are not two numbers below n.
        """
        if len(numbers) != 2 or not all(0 <= number < self.modulus for number in numbers):
            raise UserError(f"is not two numbers from 0 to {self.modulus - 1}")
        return [*numbers, self.modulus]

    @property
    def example(self) -> str:
        """A prompt to try."""
        return "1 1"
