"""Random sequences that repeat themselves."""

import numpy as np

from transformer.data.loader import HostBatch
from transformer.data.tasks.base import TokenTask, generators
from transformer.errors import UserError


class Repeats(TokenTask):
    """x_1 ... x_n x_1 ... x_n x_1 ..., with different random tokens x_i and a random period n.

    From its second repetition on, a token is known: the one after the earlier occurrence of the token before
    it. Because n differs from row to row, its distance is not known, and a model must look for the earlier
    occurrence. Source: Olsson et al. 2022, "In-context learning and induction heads", repeated random tokens.
    """

    def __init__(self, vocab_size: int = 64, length: int = 96, shortest: int = 16, longest: int = 32) -> None:
        if not 1 <= shortest <= longest <= min(vocab_size, length - 1):
            raise UserError(
                f"longest: {longest} with shortest {shortest}; expected shortest <= longest <= vocab_size "
                f"{vocab_size}, and less than length {length}"
            )
        self.vocab_size, self.length = vocab_size, length
        self._shortest, self._longest = shortest, longest

    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """`tokens`, `targets` (b, t) int32, `weights` (b, t), 1, and `answers` (b, t), 1 for targets that are
        known from an earlier occurrence."""
        t = self.length
        row_bt1, known_bt = np.zeros((len(rows_b), t + 1), np.int32), np.zeros((len(rows_b), t), np.float32)
        for i, rng in enumerate(generators(split, rows_b)):
            period = int(rng.integers(self._shortest, self._longest + 1))
            row_bt1[i] = np.resize(rng.permutation(self.vocab_size)[:period], t + 1)
            known_bt[i, period:] = 1
        weights_bt = np.broadcast_to((rows_b >= 0)[:, None], (len(rows_b), t)).astype(np.float32)
        return {
            "tokens": row_bt1[:, :-1],
            "targets": row_bt1[:, 1:],
            "weights": weights_bt,
            "answers": known_bt * weights_bt,
        }

    @property
    def example(self) -> str:
        """A prompt to try, whose next token is known."""
        tokens = self.batch("test", np.array([0]))["tokens"][0]
        return " ".join(map(str, tokens[: self._longest + 4]))
