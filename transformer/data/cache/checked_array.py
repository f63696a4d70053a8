"""Arrays in files of prepared data that are too large to be checked when they are opened."""

import mmap
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from transformer.errors import UserError

DAMAGED = "damaged"
"""What a process writes into a folder in which it has read a damaged block: the file, and which bytes."""

BLOCK = 1 << 16
"""Bytes to a checksum: what is read about a row that is read at random."""


class DamagedBlock(UserError):
    """A block of a file that is not as it was written."""


class CheckedArray:
    """A memory-mapped array whose blocks are compared with their checksums when they are first read.

    It takes indices, slices and arrays of indices of its first axis, and is an array to NumPy's functions,
    which reads all of it.
    """

    def __init__(self, values: np.memmap, path: Path, sums: bytes) -> None:
        """`sums` has the checksums of the blocks of the file."""
        self._values, self._path, self._start = values.view(np.ndarray), path, int(values.offset)
        self.dtype, self.shape = values.dtype, values.shape
        self._sums = np.frombuffer(sums, ">u4")
        with open(path, "rb") as opened:
            self._bytes = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._unread = np.ones(len(self._sums), bool)
        self._is_read = False
        if len(self._sums) != -(-len(self._bytes) // BLOCK):
            self._refuse(0, len(self._bytes))
        self._check(np.zeros(1, np.int64))  # the header of a .npy file

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, key: Any) -> Any:
        if not self._is_read:
            self._check(self._blocks(key))
        return self._values[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._check(np.arange(len(self._sums)))
        return np.array(self._values, dtype, copy=bool(copy) or None)

    def sum(self) -> Any:
        """The sum of all elements."""
        return np.asarray(self).sum()

    def _blocks(self, key: Any) -> np.ndarray:
        """The blocks of the rows of this key."""
        row, start = self._values.strides[0], self._start
        if isinstance(key, slice):
            chosen = range(len(self))[key]
            if not chosen:
                return np.zeros(0, np.int64)
            first, last = sorted((chosen[0], chosen[-1]))
            return np.arange((start + first * row) // BLOCK, (start + (last + 1) * row - 1) // BLOCK + 1)
        rows_r = np.asarray(key).ravel()
        rows_r = np.where(rows_r < 0, rows_r + len(self), rows_r)
        first_r, last_r = (start + rows_r * row) // BLOCK, (start + (rows_r + 1) * row - 1) // BLOCK
        most = int((last_r - first_r).max(initial=0))
        return np.minimum(first_r[:, None] + np.arange(most + 1), last_r[:, None]).ravel()

    def _check(self, blocks: np.ndarray) -> None:
        for block in np.unique(blocks[self._unread[blocks]]).tolist():
            start = block * BLOCK
            if zlib.crc32(self._bytes[start : start + BLOCK]) != self._sums[block]:
                self._refuse(start, min(start + BLOCK, len(self._bytes)))
            self._unread[block] = False
        self._is_read = not self._unread.any()

    def _refuse(self, start: int, end: int) -> None:
        said = f"bytes {start:,} to {end:,} of {self._path.name} are not as they were written"
        again = "delete this folder"
        with suppress(OSError):
            (self._path.parent / DAMAGED).write_text(said, encoding="utf-8")
            again = "the same command makes them again"
        raise DamagedBlock(f"{self._path.parent}: {said}; {again}")
