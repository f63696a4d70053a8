"""One training at a time on a run's folder."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from transformer.errors import UserError

try:
    import fcntl
except ImportError:  # no POSIX system: nothing to lock with
    fcntl = None  # type: ignore[assignment]

LONGEST = 1024
"""Bytes of an error that the first process tells the others."""


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock file `path`, which names its holder and is there only as long; the system frees it when
    the process ends, however that is. In a run of several processes the first one holds it for all.

    Raises:
      UserError: another process holds it, or the folder cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with together():
            if jax.process_index() == 0:
                stack.callback(_release, _acquire(path), path)
        yield


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What is refused on the first process is refused on all, so that none waits for one that has left."""
    refused = ""
    try:
        yield
    except UserError as error:
        refused = str(error)
    if jax.process_count() > 1:
        from jax.experimental import multihost_utils

        told = np.zeros(LONGEST, np.uint8)
        text = np.frombuffer(refused.encode()[:LONGEST], np.uint8)
        told[: len(text)] = text
        told = multihost_utils.broadcast_one_to_all(told)
        refused = refused or bytes(told).rstrip(b"\0").decode(errors="ignore")
    if refused:
        raise UserError(refused)


def _acquire(path: Path) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise UserError(f"--workdir: {path.parent} cannot be written ({error.strerror})") from None
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(file, LONGEST).decode(errors="replace") or "another process"
            os.close(file)
            raise UserError(
                f"--workdir: {path.parent} is in training by {holder}; stop it, or choose another folder"
            ) from None
        except OSError:
            pass  # a file system without locks: what it cannot do is not asked of it
        if _is_there(file, path):
            os.truncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
            return file
        os.close(file)  # its holder has left, and taken the file away, between the two calls


def _release(file: int, path: Path) -> None:
    if _is_there(file, path):
        path.unlink()
    os.close(file)


def _is_there(file: int, path: Path) -> bool:
    """Whether the open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
