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


def pad_framed(
    frames: Sequence[tuple[Sequence[int], Sequence[int]]], batch_size: int, room: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts as an encoder reads them, tokens and their types, as arrays of few shapes: tokens, types and
    segments, which are 1 where there is a text and 0 where there is padding, all (b, t) int32. There are as
    many rows as `fill` makes of them."""
    filled = fill(list(frames), batch_size)
    tokens_bt, lengths_b = pad([tokens for tokens, _ in filled], room, 0)
    types_bt, _ = pad([types for _, types in filled], room, 0)
    return tokens_bt, types_bt, (np.arange(tokens_bt.shape[1]) < lengths_b[:, None]).astype(np.int32)
