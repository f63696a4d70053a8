"""The cache of prepared data on disk, safe for concurrent and interrupted processes.

The name of a folder is a digest of what it was made from, and a folder gets its name when it is complete. So
what is there is right, unless the disk lost some of it: `build_once` compares the sizes of the files, and
`python -m transformer.data.cache.verify` their content.
"""

import functools
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from transformer.errors import UserError, first_line
from transformer.json_text import parse_json
from transformer.safe_files import lock_file, no_link

CHECKSUMS = "checksums.json"
"""In each folder of prepared data: file -> [size in bytes, its `file_digest`]. Folders of earlier versions
have other checksums, or no such file: then they are made again."""

DAY = 24 * 60 * 60
"""Seconds after which an unfinished folder of another host is removed."""

TAG = "CACHEDIR.TAG"
MARK = "Signature: 8a477f597d28d172789f06886806bc55\n# Prepared data of language models and others.\n"
"""Mark of a folder of prepared data; backups leave out folders with this signature
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


@functools.cache
def own_cache(cache_dir: str, config: Path) -> str:
    """The `data.cache_dir` of a run's folder, which may be from elsewhere; "", the user's cache, with a note,
    unless that folder holds prepared data: a config from elsewhere does not choose where commands write."""
    if is_ours(cache_dir):
        return cache_dir
    note = f"{config}: data.cache_dir {cache_dir!r} has no prepared data and is not used"
    print(f"{note}; --config.data.cache_dir={cache_dir} uses it", file=sys.stderr)
    return ""


def digest(*parts: Any) -> str:
    """A short hash of the parts, which can be anything that JSON can represent."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def file_digest(file: Path) -> str:
    """A short hash of a file's content."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=10)).hexdigest()


def build_once(path: Path, build: Callable[[Path], None]) -> Path:
    """Makes the folder `path`, DATA_FOLDER/KIND/NAME, by calling `build(new)` on an empty one, unless it
    exists.

    The folder is flushed to the disk and renamed into place when it is complete; other processes wait. One in
    which a file is missing or has another size than it was made with is made again, with a note.

    Raises:
      UserError: the folder cannot be written.
    """
    if not is_made(path):
        with locked(path):
            if not is_made(path):
                _build(path, build)
    return path


def is_made(path: Path) -> bool:
    """Whether the folder is there, with all its files in the sizes that they were made with."""
    return path.exists() and not damage(path)


def _build(path: Path, build: Callable[[Path], None]) -> None:
    """Makes a folder that is locked."""
    own = f"{path.name}.new-{platform.node()}-"
    for unfinished in path.parent.glob(f"{path.name}.new*"):
        # A killed process left it, or where a file system has no locks another host is at it.
        if unfinished.name.startswith(own) or _age(unfinished) > DAY:
            shutil.rmtree(unfinished, ignore_errors=True)
    if path.exists():
        tqdm.write(f"{path}: {damage(path)}; it is made again", file=sys.stderr)
        shutil.rmtree(path)
    tag = path.parent.parent / TAG
    if not tag.exists():
        with suppress(OSError):
            tag.write_text(MARK, encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix=own, dir=path.parent, ignore_cleanup_errors=True) as name:
        new = Path(name)
        build(new)
        files = sorted(filter(Path.is_file, new.iterdir()))
        sums = {file.name: [file.stat().st_size, file_digest(file)] for file in files}
        (new / CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")
        for file in (*files, new / CHECKSUMS):
            flush(file)
        try:
            new.rename(path)
        except OSError:  # without locks, or where a directory is seen late, another host was faster
            if not is_made(path):
                raise


def _age(path: Path) -> float:
    """The seconds since a folder was changed; 0 if it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def damage(path: Path) -> str:
    """The first file of a folder that is missing or has another size than it was made with, in words; "" if
    there is none."""
    try:
        for name, (size, *_) in read_sums(path).items():
            if (actual := (path / name).stat().st_size) != size:
                return f"{name} has {actual:,} of {size:,} bytes"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    except (ValueError, TypeError, AttributeError):
        return f"{CHECKSUMS} is not readable"
    return ""


def read_sums(folder: Path) -> dict[str, list]:
    """File -> [size, checksum] of the files of a folder, which may be anything where the disk is damaged."""
    return parse_json((folder / CHECKSUMS).read_bytes())


def flush(path: Path) -> None:
    """Waits until a file is on the disk, where the file system can say so."""
    with open(path, "rb") as file, suppress(OSError):
        os.fsync(file.fileno())


def map_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Name -> array of each file NAME.TYPE of a folder, tokens.uint16 for instance, as read-only memory maps.

    Raises:
      UserError: a file does not have whole numbers of its type.
    """
    arrays = {}
    for file in folder.glob("*.*int*"):
        try:
            # A plain array, whose slices are made in a third of the time that those of np.memmap take.
            arrays[file.stem] = np.memmap(file, file.suffix[1:], "r").view(np.ndarray)
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file}: not a whole array ({error}); delete its folder") from None
    return arrays


def load_array(path: Path) -> np.ndarray:
    """The array in a .npy file, as a read-only memory map, whose header cannot ask for more than is there.

    Raises:
      UserError: it is not such a file, or ends early.
    """
    try:  # reads nothing but this format, and no objects
        return np.lib.format.open_memmap(path, mode="r").view(np.ndarray)
    except (OSError, ValueError, EOFError, SyntaxError, OverflowError) as error:
        raise UserError(f"{path}: not a whole array ({first_line(error)}); delete its folder") from None


def load_values(path: Path) -> Any:
    """The values in a JSON file; raises `UserError` if it is not readable."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable ({first_line(error)}); delete its folder") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock file beside `path`, in a folder that is made if needed; waits until no other process holds
    it. The system frees it if the process dies.

    Raises:
      UserError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(f"{path}.lock", "a", opener=no_link)  # noqa: SIM115 (closed below)
    except OSError as error:
        raise UserError(f"data.cache_dir: {path.parent} cannot be written ({error.strerror})") from None
    with file:
        lock_file(file, wait=True)
        yield
