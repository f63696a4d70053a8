"""The cache of prepared data on disk, safe for concurrent processes, interrupted ones and damaged files."""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from transformer.data.checked_files import checked, damage, note
from transformer.errors import UserError

TAG = "CACHEDIR.TAG"
MARK = "Signature: 8a477f597d28d172789f06886806bc55\n# Prepared data of language models and others.\n"
"""What marks a folder of prepared data; backups leave out folders with this signature
(bford.info/cachedir)."""


def data_folder(cache_dir: str = "") -> Path:
    """The folder of prepared data: `cache_dir`, or the user's cache folder (`$XDG_CACHE_HOME`, ~/.cache)."""
    if cache_dir:
        return Path(cache_dir).expanduser().absolute()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "transformer" / "data"


def is_ours(cache_dir: str) -> bool:
    """Whether a folder holds prepared data already, so that it was named as `data.cache_dir` here before."""
    try:
        return (data_folder(cache_dir) / TAG).read_text(encoding="utf-8").startswith(MARK)
    except (OSError, ValueError):
        return False


def _mark(folder: Path) -> None:
    """Marks a folder as one of prepared data, unless it cannot be written."""
    if not (folder / TAG).exists():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / TAG).write_text(MARK, encoding="utf-8")


def digest(*parts: Any) -> str:
    """A short hash of the parts, which can be anything that JSON can represent."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Makes the folder `path`, DATA_FOLDER/KIND/NAME, by calling `build(new)` on an empty one, unless it
    exists.

    The folder is flushed to the disk and renamed into place when it is complete; other processes wait. One in
    which a file is gone or is not as it was written (`checked_files.damage`) is made again, with a note.

    Raises:
      UserError: the folder cannot be written.
    """
    _mark(path.parent.parent)
    if path.exists() and not damage(path):
        return path
    with locked(path):
        name = f"{path.name}.new"
        for left_by_a_killed_process in path.parent.glob(f"{name}*"):
            shutil.rmtree(left_by_a_killed_process, ignore_errors=True)
        if path.exists() and (said := damage(path)):
            tqdm.write(f"{path}: {said}; it is made again", file=sys.stderr)
            shutil.rmtree(path)
        with tempfile.TemporaryDirectory(prefix=name, dir=path.parent, ignore_cleanup_errors=True) as new:
            if not path.exists():
                build(Path(new))
                _finish(Path(new))
                os.rename(new, path)
    return path


def _finish(folder: Path) -> None:
    """Notes the checksums of the files, and waits until all are on the disk."""
    files = [file for file in folder.iterdir() if file.is_file()]
    for file in (*files, note(folder)):
        flush(file)


def flush(path: Path) -> None:
    """Waits until a file is on the disk, where the file system can say so."""
    with open(path, "rb") as file, suppress(OSError):
        os.fsync(file.fileno())


def map_arrays(folder: Path, lazily: Sequence[str] = ()) -> dict[str, Any]:
    """Name -> array of each file NAME.TYPE of a folder, tokens.uint16 for instance, as read-only memory maps.
    Large ones of the names in `lazily` are checked where they are read (`CheckedArray`).

    Raises:
      UserError: a file is not of whole numbers of its type, or is damaged.
    """
    found = {}
    for file in sorted(folder.glob("*.*int*")):
        try:
            mapped = np.memmap(file, file.suffix[1:], "r")
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file}: not a whole array ({error}); delete its folder") from None
        found[file.stem] = checked(mapped, file.stem in lazily)
    return found


def load_array(path: Path, lazily: bool = False) -> Any:
    """The array in a .npy file, as a read-only memory map, whose header cannot ask for more than is there; a
    large one is with `lazily` checked where it is read (`CheckedArray`).

    Raises:
      UserError: it is no such file, ends early, or is damaged.
    """
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")  # reads nothing but this format, and no objects
    except (OSError, ValueError, EOFError, SyntaxError, OverflowError) as error:
        said = str(error).splitlines()[0]
        raise UserError(f"{path}: not a whole array ({said}); delete its folder") from None
    return checked(mapped, lazily)


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
