"""Rows of texts that a tokenizer does not reproduce, for which bits per byte are not defined."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer.data.cache.token_cache import TokenCache


class WithoutBytes:
    """Rows without `bytes`, and `why`: if a tokenizer does not reproduce the text, bits per byte are not
    defined."""

    def __init__(self, rows: Any, caches: Sequence[TokenCache], split: str) -> None:
        """`rows` are those of the texts in `caches`, of this split."""
        self._rows = rows
        lost, lost_bytes = np.sum([cache.lost for cache in caches], axis=0)
        total = sum(len(cache.offsets) - 1 for cache in caches)
        share = lost_bytes / max(1, sum(int(cache.num_bytes.sum()) for cache in caches))
        self.why = (
            f"bits_per_byte is left out: of {lost:,} of {total:,} {split} texts, {share:.1%} of all bytes, "
            "the tokens do not give back what was read (case, spaces or unknown characters)"
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices, stacked; index -1 is a row of padding."""
        return {name: values for name, values in self._rows.batch(rows).items() if name != "bytes"}

    def batch_of_epochs(self, rows: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        """The rows with these indices in these epochs."""
        batch = self._rows.batch_of_epochs(rows, epochs)
        return {name: values for name, values in batch.items() if name != "bytes"}
