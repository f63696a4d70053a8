"""Rows of a batch that go on where those of the batch before ended."""

import numpy as np

from transformer.data.packing import PackedRows


class StreamRows:
    """All rows, cut into `streams` equal parts to be read side by side: with n of them, the numbers s n ...
    s n + n - 1 are the s-th rows of all, so that a loader's batch s continues its batch s - 1.

    A row is as `PackedRows` has it, but `segments` number the documents of the whole corpus, 1, 2, ..., and
    `continues` (b,) is 1 except for the first row of a stream.
    """

    def __init__(self, rows: PackedRows, streams: int) -> None:
        """`streams` is the batch size."""
        self._rows, self._streams = rows, streams
        self._each = -(-len(rows) // streams)

    def __len__(self) -> int:
        return self._streams * self._each

    def batch(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The rows of the given numbers, stacked; number -1 is a row of padding, and so is what the last
        streams lack."""
        place, stream = np.divmod(numbers, self._streams)
        row = stream * self._each + place
        row = np.where((numbers < 0) | (row >= len(self._rows)), -1, row)
        batch = self._rows.batch(row)
        cache, first = self._rows.cache, np.maximum(row, 0) * self._rows.sequence_length
        before = np.searchsorted(cache.offsets, first, side="right")[:, None] - 1
        segments = np.where(batch["segments"] > 0, batch["segments"] + before, 0).astype(np.int32)
        return batch | {"segments": segments, "continues": (place > 0).astype(np.int32)}
