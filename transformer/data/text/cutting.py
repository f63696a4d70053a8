"""Packed rows cut into shorter ones."""

import numpy as np

from transformer.data.loader import HostBatch


def cut_rows(batch: HostBatch, length: int) -> HostBatch:
    """Rows of packed text (b, T), as of `PackedRows`, cut into rows (b T / t, t) of t = `length` tokens.

    These are the rows that packing with a `sequence_length` of t gives: segments are numbered from 1 in each
    of them, and positions of a continued document count from its start.
    """
    rows = {name: values.reshape(-1, length) for name, values in batch.items()}
    segments_bt, positions_bt = rows["segments"], rows["positions"]
    there_bt, continued_bt = segments_bt > 0, segments_bt == segments_bt[:, :1]
    segments_bt = (segments_bt - segments_bt[:, :1] + 1) * there_bt
    positions_bt = np.where(continued_bt, positions_bt - positions_bt[:, :1], positions_bt)
    return rows | {"segments": segments_bt, "positions": positions_bt}
