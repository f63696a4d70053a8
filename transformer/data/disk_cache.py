"""The cache of prepared data on disk, safe for concurrent processes."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from transformer.errors import UserError


def data_folder(cache_dir: str = "") -> Path:
    """The folder of prepared data: `cache_dir`, or the user's cache folder (`$XDG_CACHE_HOME`, ~/.cache)."""
    if cache_dir:
        return Path(cache_dir).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "transformer" / "data"


def digest(*parts: Any) -> str:
    """A short hash of the parts, which can be anything that JSON can represent."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Makes the folder `path` by calling `build(new)` on an empty folder, unless it exists.

    The folder is renamed into place when it is complete; other processes wait.

    Raises:
      UserError: the folder cannot be written.
    """
    if path.exists():
        return path
    with locked(path):
        name = f"{path.name}.new"
        for left_by_a_killed_process in path.parent.glob(f"{name}*"):
            shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=name, dir=path.parent, ignore_cleanup_errors=True) as new:
            if not path.exists():
                build(Path(new))
                os.rename(new, path)
    return path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file beside `path`, in a folder that is made if needed; the system frees it if the process
    dies.

    Raises:
      UserError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{path}.lock").acquire()
    except OSError as error:
        raise UserError(f"data.cache_dir: {path.parent} cannot be written ({error.strerror})") from None
    with lock:
        yield
