"""Files that stay whole where the disk is full or fails."""

import contextlib
import errno
import os
from pathlib import Path

FAILING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE)
"""Error numbers of a disk that is full, or cannot be written for now."""


def is_failing(error: BaseException) -> bool:
    """Whether the error says that a disk is full or fails."""
    return isinstance(error, OSError) and error.errno in FAILING


def reason(error: BaseException) -> str:
    """Why something could not be written, in a line."""
    message = getattr(error, "strerror", None) or str(error).partition("\n")[0][:200] or type(error).__name__
    number = str(error).rpartition("os_error_code='")[2].partition("'")[0]  # as TensorStore says it
    return os.strerror(int(number)) if number.isdecimal() else message


class AppendFile:
    """A file that grows by whole pieces: a piece that cannot be written leaves nothing behind.

    Raises:
      OSError: it cannot be opened or written.
    """

    def __init__(self, path: Path) -> None:
        path.touch()
        self._file = path.open("r+b", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def write(self, piece: bytes, at: int | None = None) -> None:
        """Writes a piece at the end, or in place of all that follows the byte `at`."""
        start = self.size if at is None else at
        self._file.seek(start)
        before = self._file.read(self.size - start)
        try:
            self._put(piece, start)
        except OSError:
            with contextlib.suppress(OSError):
                self._put(before, start)  # in blocks that the file has already
                self._file.truncate(self.size)
            raise
        self.size = start + len(piece)
        self._file.truncate(self.size)

    def _put(self, piece: bytes, start: int) -> None:
        self._file.seek(start)
        while piece:
            piece = piece[self._file.write(piece) :]

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
