"""Packing: rows of one length cut from documents laid end to end, at random access."""

import numpy as np

from transformer.data.token_cache import TokenCache


class PackedRows:
    """Rows of `sequence_length` inputs with their successors as targets: a `__getitem__` away.

    Row r holds the tokens r t ... r t + t - 1 of all documents in order, and as targets those one further.
    Every token but the first is a target in exactly one row, with weight 1, except the start of a
    document, which nothing predicts, weight 0. A row is a dictionary of arrays (t,):

    - `tokens`, `targets`: int32;  `weights`: float32;
    - `segments`: int32, 1, 2, ... for the documents in the row, 0 for padding after the last one;
    - `positions`: int32, 0, 1, ... from the start of each document or, where that lies before, of the row;
    - `bytes`: int32, the UTF-8 bytes of text that the target stands for.
    """

    def __init__(self, cache: TokenCache, sequence_length: int) -> None:
        """`sequence_length` is t."""
        self.cache, self.sequence_length = cache, sequence_length

    def __len__(self) -> int:
        return -(-(len(self.cache.tokens) - 1) // self.sequence_length)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        return {name: values[0] for name, values in self.batch(np.array([row])).items()}

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the given numbers, stacked: arrays (b, t)."""
        t, offsets, total = self.sequence_length, self.cache.offsets, len(self.cache.tokens)
        place_bt = rows[:, None] * t + np.arange(t + 1)
        real_bt = place_bt < total
        place_bt = np.minimum(place_bt, total - 1)
        tokens_bt = self.cache.tokens[place_bt].astype(np.int32)
        document_bt = np.searchsorted(offsets, place_bt, side="right") - 1
        inside = document_bt[:, :-1] == document_bt[:, 1:]
        counted_bt = inside & real_bt[:, 1:]
        start_bt = np.maximum(offsets[document_bt[:, :-1]], rows[:, None] * t)
        # The last token of all is an input only where padding follows it, and then predicts nothing.
        input_bt = real_bt[:, :-1] & (place_bt[:, :-1] < total - 1)
        segments_bt = (document_bt - document_bt[:, :1] + 1)[:, :-1]
        return {
            "tokens": np.where(input_bt, tokens_bt[:, :-1], 0),
            "targets": np.where(counted_bt, tokens_bt[:, 1:], 0),
            "weights": counted_bt.astype(np.float32),
            "segments": np.where(input_bt, segments_bt, 0).astype(np.int32),
            "positions": np.where(input_bt, place_bt[:, :-1] - start_bt, 0).astype(np.int32),
            "bytes": np.where(counted_bt, self.cache.num_bytes[place_bt[:, 1:]], 0).astype(np.int32),
        }
