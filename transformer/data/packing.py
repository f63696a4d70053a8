"""Packing: rows of one length cut from documents laid end to end, at random access."""

import numpy as np

from transformer.data.token_cache import TokenCache


class PackedRows:
    """Rows of `sequence_length` inputs with their successors as targets.

    Row r holds tokens r t ... r t + t - 1 of all documents laid end to end, and as targets those one further:
    every token but the first of all is a target in exactly one row. A row is a dictionary of arrays (t,):

    - `tokens`, `targets`: int32, 0 where there is none;
    - `weights`: float32, 1, or 0 where the target starts another document or is padding;
    - `segments`: int32, 1, 2, ... for the documents of the row, 0 for padding;
    - `positions`: int32, 0, 1, ... from the start of each document, or of the row for one begun before it;
    - `bytes`: int32, the UTF-8 bytes of text that the target stands for.
    """

    def __init__(self, cache: TokenCache, sequence_length: int) -> None:
        """`sequence_length` is t."""
        self.cache, self.sequence_length = cache, sequence_length

    def __len__(self) -> int:
        return -(-(len(self.cache.tokens) - 1) // self.sequence_length)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return {name: values[0] for name, values in self.batch(np.array([row % len(self)])).items()}

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the given numbers, stacked, (b, t); number -1 is a row of padding."""
        t, total = self.sequence_length, len(self.cache.tokens)
        first_b1 = np.where(rows < 0, total, rows * t)[:, None]
        place_bt = first_b1 + np.arange(t + 1)
        real_bt = place_bt < total
        place_bt = np.minimum(place_bt, total - 1)
        tokens_bt = self.cache.tokens[place_bt].astype(np.int32)
        offsets = self.cache.offsets
        document_bt = np.searchsorted(offsets, place_bt, side="right") - 1
        # The last token of all has no successor: as an input it is padding.
        inputs_bt = real_bt[:, 1:]
        counted_bt = inputs_bt & (document_bt[:, 1:] == document_bt[:, :-1])
        document_bt = document_bt[:, :-1]
        start_bt = np.maximum(offsets[document_bt], first_b1)
        integers = {
            "tokens": (tokens_bt[:, :-1], inputs_bt),
            "targets": (tokens_bt[:, 1:], inputs_bt),
            "segments": (document_bt - document_bt[:, :1] + 1, inputs_bt),
            "positions": (place_bt[:, :-1] - start_bt, inputs_bt),
            "bytes": (self.cache.num_bytes[place_bt[:, 1:]], counted_bt),
        }
        return {
            name: np.where(where, values, 0).astype(np.int32) for name, (values, where) in integers.items()
        } | {"weights": counted_bt.astype(np.float32)}
