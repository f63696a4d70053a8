"""Output that continues without an error after its reader has exited (`| head -1`)."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class PipeSafe:
    """A stream that drops its output when its reader has exited."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes without buffering, so that later no flush can fail; or drops."""
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            _silence(self._stream)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _silence(stream: TextIO) -> None:
    """Redirects a stream to the null device, so that buffered output raises no error at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@contextlib.contextmanager
def ignore_closed_pipes() -> Iterator[None]:
    """A context in which `PipeSafe` streams stand for stdout and stderr."""
    out: Any = PipeSafe(sys.stdout)
    error: Any = PipeSafe(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        yield
