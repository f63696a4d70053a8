"""Checksums of files of prepared data, by blocks, so that large files can be checked where they are read."""

import functools
import json
import mmap
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from transformer.errors import UserError
from transformer.json_text import parse_json

CHECKSUMS = "checksums.json"
"""In each folder of prepared data: file -> [size in bytes, checksums of its blocks in hexadecimal digits]."""

SIZES = "sizes.json"
"""What folders of an earlier version have instead: file -> size in bytes. Older ones have neither."""

DAMAGED = "damaged"
"""What a process writes into a folder in which it has read a damaged block: the file, and which bytes."""

BLOCK = 1 << 16
"""Bytes to a checksum: what is read about a row that is read at random."""

SMALL = 256 << 20
"""Files of up to so many bytes are read and checked when their folder is opened, which takes 0.1 s."""

Noted = dict[str, tuple[int, bytes]]
"""File -> its size, and the checksums of its blocks, 4 bytes each; b"" if only the size is known."""


class DamagedBlock(UserError):
    """A block of a file that is not as it was written."""


def note(folder: Path) -> Path:
    """Writes the checksums of the files in a new folder; returns the file in which they are."""
    noted = {file.name: _described(file) for file in sorted(folder.iterdir()) if file.is_file()}
    (folder / CHECKSUMS).write_text(json.dumps(noted), encoding="utf-8")
    return folder / CHECKSUMS


def _described(file: Path) -> list:
    return [file.stat().st_size, checksums(file).hex()]


def checksums(file: Path) -> bytes:
    """The CRC-32 of each block of `BLOCK` bytes, which finds every flipped bit and every 32 of them in a row,
    as 4 bytes each."""
    with open(file, "rb") as opened:
        blocks = iter(lambda: opened.read(BLOCK), b"")
        return b"".join(zlib.crc32(block).to_bytes(4, "big") for block in blocks)


@functools.lru_cache(64)
def _checksums(file: Path, *_: int) -> bytes:
    """Those of a file of this time and number, read once in a process."""
    return checksums(file)


def noted(folder: Path) -> Noted:
    """What was noted of the files of a folder; nothing if its version did not do so.

    Raises:
      ValueError: it is not readable.
    """
    for name in (CHECKSUMS, SIZES):
        if not (folder / name).exists():
            continue
        try:
            read = parse_json((folder / name).read_bytes()).items()
            pairs = ((file, each if name == CHECKSUMS else [each, ""]) for file, each in read)
            found = {file: (int(size), bytes.fromhex(sums)) for file, (size, sums) in pairs}
        except (OSError, ValueError, AttributeError, TypeError):
            found = {"/": (0, b"")}
        if any(Path(file).name != file for file in found):
            raise ValueError(f"{name} is not readable")
        return found
    return {}


def damage(folder: Path) -> str:
    """In what the files of a folder are not those that were made: in their sizes, in the content of small
    ones, or in what was read of a large one before. "" if in nothing."""
    try:
        if (folder / DAMAGED).exists():
            return " ".join((folder / DAMAGED).read_text(encoding="utf-8", errors="replace")[:200].split())
        for name, (size, sums) in noted(folder).items():
            file = folder / name
            if not file.is_file():
                return f"{name} is gone"
            if (stat := file.stat()).st_size != size:
                return f"{name} has {stat.st_size:,} of {size:,} bytes"
            if sums and size <= SMALL and _checksums(file, stat.st_mtime_ns, stat.st_ino) != sums:
                return f"{name} is not as it was written"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    except ValueError as error:
        return str(error)
    return ""


def checked(values: np.memmap, lazily: bool) -> Any:
    """The array of a file of prepared data; if the file is large, its blocks are checked: `lazily` where they
    are read (a `CheckedArray`), or else all of them now.

    Raises:
      DamagedBlock: a block is not as it was written.
    """
    path = Path(str(values.filename))
    try:
        size, sums = noted(path.parent).get(path.name, (0, b""))
    except ValueError as error:
        raise UserError(f"{path.parent}: {error}") from None
    if not sums or size <= SMALL:
        return values
    found = CheckedArray(values, path, sums)
    return found if lazily else np.asarray(found)


class CheckedArray:
    """A memory-mapped array whose blocks are compared with their checksums when they are first read.

    It takes indices, slices and arrays of indices of its first axis, and is an array to NumPy's functions,
    which reads all of it.
    """

    def __init__(self, values: np.memmap, path: Path, sums: bytes) -> None:
        """`sums` has the checksums of the blocks of the file."""
        self._values, self._path = values, path
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
        return np.array(self._values, dtype, copy=bool(copy) or None, subok=False)

    def sum(self) -> Any:
        """The sum of all elements."""
        return np.asarray(self).sum()

    def _blocks(self, key: Any) -> np.ndarray:
        """The blocks of the rows of this key."""
        row, start = self._values.strides[0], int(self._values.offset)
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
