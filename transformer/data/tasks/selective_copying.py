"""Selective copying: symbols among blanks, to be written in their order."""

import numpy as np

from transformer.data.loader import HostBatch
from transformer.data.tasks.base import TokenTask, generators
from transformer.errors import UserError

BLANK, MARK = 0, 1


class SelectiveCopying(TokenTask):
    """`symbols` random tokens at random places of `length`, blanks at the others, then as many marks.

    The i-th mark predicts the i-th symbol; nothing else is predicted. What a layer keeps must depend on what
    it reads, since the places of the symbols differ from row to row.
    Source: Gu and Dao 2023, "Mamba", section 4.1.1 (length 4,096, 16 symbols, a vocabulary of 16), after Jing
    et al. 2019, "Gated orthogonal recurrent units".
    """

    def __init__(self, vocab_size: int = 16, length: int = 4096, symbols: int = 16) -> None:
        if vocab_size < MARK + 2:
            raise UserError(
                f"vocab_size: {vocab_size}; expected at least {MARK + 2}, a blank, a mark, a symbol"
            )
        if not 1 <= symbols <= length:
            raise UserError(f"symbols: {symbols} with length {length}; expected 1 to length")
        self.vocab_size, self.length, self._symbols = vocab_size, length + symbols, symbols

    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """`tokens`, `targets` (b, t) int32, `weights` (b, t), 1 at marks, and equal to them `answers`."""
        before = self.length - self._symbols
        tokens_bt = np.full((len(rows_b), self.length), BLANK, np.int32)
        targets_bt = np.zeros_like(tokens_bt)
        weights_bt = np.zeros(tokens_bt.shape, np.float32)
        tokens_bt[:, before:] = MARK
        weights_bt[:, before:] = (rows_b >= 0)[:, None]
        for i, rng in enumerate(generators(split, rows_b)):
            places_n = np.sort(rng.choice(before, self._symbols, replace=False))
            symbols_n = rng.integers(MARK + 1, self.vocab_size, self._symbols)
            tokens_bt[i, places_n] = targets_bt[i, before:] = symbols_n
        return {"tokens": tokens_bt, "targets": targets_bt, "weights": weights_bt, "answers": weights_bt}
