"""The cache of prepared data on disk, safe for concurrent processes, interrupted ones and damaged files."""

import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from tqdm import tqdm

from transformer.data.cache import checked_array
from transformer.data.cache.checked_array import DAMAGED, CheckedArray
from transformer.errors import UserError, first_line
from transformer.json_text import parse_json

CHECKSUMS = "checksums.json"
"""In each folder of prepared data: file -> [size in bytes, checksums of its blocks in hexadecimal digits]."""

SIZES = "sizes.json"
"""What folders of an earlier version have instead: file -> size in bytes. Older ones have neither."""

SMALL = 256 << 20
"""Files of up to that many bytes are read and checked when their folder is opened, which takes 0.1 s."""

Noted = dict[str, tuple[int, bytes]]
"""File -> its size, and the checksums of its blocks, 4 bytes each; b"" if only the size is known."""

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
    """The `data.cache_dir` of a run's folder, which may be from elsewhere: "", the user's cache, with a note,
    unless that folder holds prepared data. So no one's config has commands write where they should not."""
    if is_ours(cache_dir):
        return cache_dir
    note = f"{config}: data.cache_dir {cache_dir!r} has no prepared data and is not used"
    print(f"{note}; --config.data.cache_dir={cache_dir} uses it", file=sys.stderr)
    return ""


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
    which a file is gone or is not as it was written (`damage`) is made again, with a note.

    Raises:
      UserError: the folder cannot be written.
    """
    _mark(path.parent.parent)
    if is_made(path):
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


def is_made(path: Path) -> bool:
    """Whether the folder is there as it was made."""
    return path.exists() and not damage(path)


def _finish(folder: Path) -> None:
    """Notes the checksums of the files, and waits until all are on the disk."""
    for file in (*filter(Path.is_file, folder.iterdir()), note(folder)):
        flush(file)


def note(folder: Path) -> Path:
    """Writes the checksums of the files in a new folder; returns the file in which they are."""
    noted = {file.name: _described(file) for file in sorted(folder.iterdir()) if file.is_file()}
    (folder / CHECKSUMS).write_text(json.dumps(noted), encoding="utf-8")
    return folder / CHECKSUMS


def _described(file: Path) -> list:
    return [file.stat().st_size, checksums(file).hex()]


def checksums(file: Path) -> bytes:
    """The CRC-32 of each block of `checked_array.BLOCK` bytes, which finds every flipped bit and every 32 of
    them in a row, as 4 bytes each."""
    with open(file, "rb") as opened:
        blocks = iter(lambda: opened.read(checked_array.BLOCK), b"")
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
        found[file.stem] = _checked(mapped, file.stem in lazily)
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
        said = first_line(error)
        raise UserError(f"{path}: not a whole array ({said}); delete its folder") from None
    return _checked(mapped, lazily)


def _checked(values: np.memmap, lazily: bool) -> Any:
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
        return values.view(np.ndarray)  # whose slices are made in a third of the time
    found = CheckedArray(values, path, sums)
    return found if lazily else np.asarray(found)


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
