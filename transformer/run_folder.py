"""The names of the files in a run's folder, what they may be, and how a file is written whole."""

import contextlib
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from transformer.errors import UserError

UNUSABLE = re.compile(r"[*?[\ud800-\udfff]")
"""What is a pattern to orbax, or stands for a byte that is not UTF-8."""


REMOTE = re.compile(r"[A-Za-z][\w+.-]*://")
"""What an address of another system has: gs://bucket, s3://bucket, https://host."""

HERE = "a path of this system; a bucket can be mounted (gcsfuse)"
"""What is expected instead of such an address."""


LARGEST = {"metrics.jsonl": 1 << 30, "tokenizer.json": 1 << 28}
"""The most bytes of some files that are read whole; of others they are `LARGEST_OTHER`."""

LARGEST_OTHER = 1 << 26

UNREAD = {"events", "damaged", "diverged", "profile"}
"""Folders whose files are not read by a program that opens the run: their size does not matter."""


class Inside:
    """An attribute of `RunFolder`: the path of a file in the folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, owner: type | None = None) -> Path:
        return folder.path / self.name


class RunFolder:
    """The paths in a run's folder, which need not exist."""

    config = Inside("config.json")
    tokenizer = Inside("tokenizer.json")
    labels = Inside("labels.json")
    data = Inside("data.json")  # content of the data, to compare when the run is resumed
    starts = Inside("starts.json")  # each start of the training: command, hardware, versions
    lengths = Inside("lengths.json")  # earlier values of train.steps
    fork = Inside("fork.json")  # of which run this is a fork, and what is changed
    checkpoints = Inside("checkpoints")
    damaged = Inside("damaged")  # checkpoints that could not be read
    rollbacks = Inside("rollbacks.json")  # where training went back to an earlier checkpoint
    diverged = Inside("diverged")  # batches with which training went wrong
    unmeasured = Inside("unmeasured")  # sums of metrics that a stopped training had not yet written
    metrics = Inside("metrics.jsonl")
    events = Inside("events")
    trackers = Inside("trackers.json")  # ids of the run in experiment trackers
    samples = Inside("samples")
    attention = Inside("attention")  # attention maps
    classes = Inside("classes")  # plots of confusion and calibration
    maps = Inside("maps")  # maps of word vectors
    profile = Inside("profile")
    report = Inside("report.md")
    curves = Inside("report.png")
    page = Inside("report.html")
    evaluation = Inside("evaluation.json")

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)

    def vet(self) -> None:
        """Checks the folder, which may be from elsewhere, before its files are read and written; checkpoints
        are checked where they are restored.

        Raises:
          UserError: a link, a pipe or a device, or a file that is too large.
        """
        for entry in _walk(self.path, OWN):
            if not _is_fine(entry, Path(entry).relative_to(self.path).parts[0] not in UNREAD):
                raise UserError(f"{entry.path}: {_why_refused(entry)}")

    def vet_checkpoints(self) -> None:
        """Raises `UserError` if `checkpoints` is a link to those of another run, which training deletes."""
        target = self.checkpoints.resolve()
        if self.checkpoints.is_symlink() and RunFolder(target.parent).config.exists():
            raise UserError(
                f"{self.checkpoints}: it is a link to the checkpoints of another run, {target}; remove it"
            )


OWN = {"lock"} | {entry.name for entry in vars(RunFolder).values() if isinstance(entry, Inside)}
OWN -= {"checkpoints"}
"""The names that `RunFolder.vet` checks, with all below them."""


def _walk(folder: Path, names: Collection[str]) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder that have these names, or any name without them, and all below them."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if not names or entry.name in names:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(Path(entry), ())


def _is_fine(entry: os.DirEntry[str], is_read: bool) -> bool:
    """Whether an entry of a run's folder is a file or folder, and what is read of a bounded size."""
    if not entry.is_file(follow_symlinks=False):
        return entry.is_dir(follow_symlinks=False)
    return not is_read or entry.stat().st_size <= LARGEST.get(entry.name, LARGEST_OTHER)


def _why_refused(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"a link to {os.readlink(entry)}; expected a file of the run: remove it, or copy what it names"
    if not entry.is_file():
        return "a pipe or a device; expected a file of the run: remove it"
    return f"{entry.stat().st_size:,} bytes; expected at most {LARGEST.get(entry.name, LARGEST_OTHER):,}"


def why_not_local(path: str | os.PathLike) -> str:
    """Why a run's folder cannot be of this name, and what would be valid."""
    if REMOTE.search(str(path)):
        return f"is on another system; expected {HERE}"
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:
        return "is not UTF-8; expected a path that is, as orbax writes to no other"
    return "has *, ? or [ in its path, a pattern to orbax; expected a path without them"


def no_link(path: str, flags: int) -> int:
    """The `opener` of `open` for a name that may be planted: a link is an `OSError`, and no pipe blocks."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def replace(path: Path, text: str) -> None:
    """Writes a file, or another one in its place, which is there whole or not at all.

    Raises:
      OSError: it cannot be written, and is named; what was there before stays.
    """
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "w", encoding="utf-8", errors="backslashreplace", opener=no_link) as file:
            print(text, end="", file=file, flush=True)
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        error.filename = str(path)  # a failed write names none
        raise
    finally:
        part.unlink(missing_ok=True)
