"""Standard output and error whose readers may leave."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Lasting:
    """A stream that goes on when its reader has left: what is written from then on is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, or drops."""
        try:
            return self._stream.write(text)
        except OSError:
            silence(self._stream)
            return len(text)

    def flush(self) -> None:
        """Hands on what is buffered, or drops it."""
        try:
            self._stream.flush()
        except OSError:
            silence(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def silence(stream: TextIO) -> None:
    """Lets what is still buffered, and all that follows, go nowhere: no error is left for the exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Inside, no reader of standard output or error that leaves (`| head -1`) stops anything."""
    out: Any = Lasting(sys.stdout)
    error: Any = Lasting(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            yield
        finally:
            out.flush()
            error.flush()
