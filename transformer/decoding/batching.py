"""Lists of tokens of any length as arrays of few shapes, so that few programs are compiled."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def bucket(n: int, least: int = 1) -> int:
    """The next power of two, so that sizes that vary compile only so many programs."""
    return max(least, 1 << (int(n) - 1).bit_length())


def fill(batch: list[T], batch_size: int) -> list[T]:
    """The batch with its last row repeated up to the next power of two, or `batch_size` if that is less."""
    return batch + batch[-1:] * (min(bucket(len(batch)), batch_size) - len(batch))


def pad(rows: Sequence[Sequence[int]], room: int, fill_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Right-padded (b, t) int32, t a power of two or `room` if that is less, and the lengths (b,) int32."""
    lengths_b = np.array([len(row) for row in rows], np.int32)
    tokens_bt = np.full((len(rows), min(bucket(lengths_b.max(), least=16), room)), fill_id, np.int32)
    for padded_t, row in zip(tokens_bt, rows, strict=True):
        padded_t[: len(row)] = row
    return tokens_bt, lengths_b
