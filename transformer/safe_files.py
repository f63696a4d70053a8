"""Files that other processes use at the same time, or that somebody else may have made: opened through no
link, replaced whole, locked."""

import functools
import os
import sys
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # not a POSIX system: without locks
    fcntl = None  # type: ignore[assignment]


def no_link(path: str, flags: int) -> int:
    """The `opener` of `open` for a name that may be planted: a link is an `OSError`, and no pipe blocks."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def replace(path: Path, content: str | bytes | memoryview) -> None:
    """Writes a file, or a new one in its place, which is there whole or not at all; a text as UTF-8.

    Raises:
      OSError: it cannot be written, and is named; what was there before stays.
    """
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb", opener=no_link) as file:
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        error.filename = str(path)  # a failed write names none
        raise
    finally:
        part.unlink(missing_ok=True)


def lock_file(file: IO[Any], wait: bool = False) -> bool:
    """Locks an open file until it is closed or the process dies; on a shared file system for all machines.
    Returns False if another process holds it, unless this should `wait`. Without locks in the file system it
    warns, and returns True."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        _warn_without_locks(Path(file.name).parent, error.strerror or "flock failed")
    return True


@functools.cache
def _warn_without_locks(folder: Path, reason: str) -> None:
    """Warns once that nothing keeps two commands apart in a folder."""
    print(
        f"warning: {folder}: its file system has no locks ({reason}); run one command at a time in it",
        file=sys.stderr,
    )
