"""The lock of a run's folder: one command trains in it at a time."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import jax

from transformer.distributed import shared_errors
from transformer.errors import UserError
from transformer.safe_files import lock_file, no_link


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file `path`, which names its holder and is removed at the end; the system frees the lock
    if the process dies. With several processes the first one holds it for all.

    Raises:
      UserError: another process holds it, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with shared_errors():
            if jax.process_index() == 0:
                stack.enter_context(holding(path))
        yield


@contextlib.contextmanager
def holding(path: Path) -> Iterator[None]:
    """Holds a lock file as `exclusive` does, but for this process alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", errors="replace", opener=no_link)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"--workdir: {path.parent} cannot be written ({_why_not(path, error)})") from None
    with file:
        if not try_lock(file, path):
            raise UserError(_in_training(file, path))
        os.truncate(file.fileno(), 0)
        with contextlib.suppress(OSError):  # a full disk is noticed by what must be written
            os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            if _is_at(path, file):  # the folder may have been replaced
                path.unlink(missing_ok=True)


def _why_not(path: Path, error: OSError) -> str | None:
    """Why a lock file cannot be opened."""
    if path.parent.is_symlink() and not path.parent.exists():
        return f"a link to {path.parent.readlink()}, which is not there"
    return f"its {path.name} is a link" if path.is_symlink() else error.strerror


def free(path: Path) -> bool:
    """Whether no process holds the lock file `path`."""
    try:
        with open(path, "r+", opener=no_link) as file:
            return try_lock(file, path)
    except OSError:  # it is not there
        return True


def _in_training(file: TextIO, path: Path) -> str:
    file.seek(0)
    holder = file.read() or "another process"
    return f"--workdir: {path.parent} is in training by {holder}; stop it, or choose another folder"


def try_lock(file: TextIO, path: Path) -> bool:
    """Locks an open file. Returns False if another process holds it, or has removed it between opening and
    locking."""
    return lock_file(file) and _is_at(path, file)


def _is_at(path: Path, file: TextIO) -> bool:
    """Whether the path still names this open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
