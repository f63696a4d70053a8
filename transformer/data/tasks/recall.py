"""Multi-query associative recall: values of keys that stand earlier in the row."""

import numpy as np

from transformer.data.loader import HostBatch
from transformer.data.tasks.base import TokenTask, generators
from transformer.errors import UserError


class Recall(TokenTask):
    """k_1 v_1 ... k_n v_n, then each key once more, at random even places among random values.

    Only the values of these n queries are predicted, each at its key. Keys are different tokens of the lower
    half of the vocabulary, values different ones of the upper half. The place x = 1, 2, ... of a query,
    counted from the end of the pairs, has a probability in proportion to x^(power - 1).
    Source: Arora et al. 2024, "Zoology", section 4, with vocabularies of 8,192 tokens and (length,
    pairs) = (64, 4), (128, 8) and (256, 16); there other tokens are drawn from the whole vocabulary.
    """

    def __init__(self, vocab_size: int = 8192, length: int = 64, pairs: int = 4, power: float = 0.01) -> None:
        if not 1 <= pairs <= min(vocab_size // 2, length // 4):
            sizes = f"pairs: {pairs} with length {length} and vocab_size {vocab_size}"
            raise UserError(f"{sizes}; expected at least 1, and at most length / 4 and vocab_size / 2")
        if not power > 0:
            raise UserError(f"power: {power}; expected a number above 0")
        self.vocab_size, self.length, self._pairs = vocab_size, length, pairs
        share_n = np.arange(1, length // 2 - pairs + 1) ** (power - 1.0)
        self._share_n = share_n / share_n.sum()

    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """`tokens`, `targets` (b, t) int32, `weights` (b, t), 1 for queries, and equal to them `answers`."""
        n, half, t = self._pairs, self.vocab_size // 2, self.length
        tokens_bt, targets_bt = np.zeros((2, len(rows_b), t), np.int32)
        weights_bt = np.zeros((len(rows_b), t), np.float32)
        for i, rng in enumerate(generators(split, rows_b)):
            keys_n = rng.choice(half, n, replace=False)
            values_n = half + rng.choice(self.vocab_size - half, n, replace=False)
            places_n = 2 * (n + rng.choice(len(self._share_n), n, replace=False, p=self._share_n))
            tokens_bt[i] = rng.integers(half, self.vocab_size, t)
            tokens_bt[i, : 2 * n] = np.stack([keys_n, values_n], axis=1).ravel()
            tokens_bt[i, places_n], targets_bt[i, places_n] = keys_n, values_n
            weights_bt[i, places_n] = rows_b[i] >= 0
        return {"tokens": tokens_bt, "targets": targets_bt, "weights": weights_bt, "answers": weights_bt}
