"""The names of the files in a run's folder, and what they may be."""

import itertools
import os
import re
from pathlib import Path
from typing import Any

from transformer.errors import UserError

UNUSABLE = re.compile(r"[*?[\ud800-\udfff]")
"""Characters that are a pattern to orbax, or stand for a byte that is not UTF-8."""


REMOTE = re.compile(r"[A-Za-z][\w+.-]*://")
"""The beginning of an address of another system: gs://bucket, s3://bucket, https://host."""

HUB = "hf:"
"""Prefix of a folder of Hugging Face transformers, where a run may be named too."""

HERE = "a path of this system; a bucket can be mounted (gcsfuse)"
"""The expected value in place of such an address."""


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
        for top in (self.path / name for name in OWN):
            for path in itertools.chain([top], top.rglob("*")):  # which follows no links
                if not _is_fine(path, top.name not in UNREAD):
                    raise UserError(f"{path}: {_why_refused(path)}")

    def vet_checkpoints(self) -> None:
        """Raises `UserError` if `checkpoints` is a link to those of another run, which training deletes."""
        target = self.checkpoints.resolve()
        if self.checkpoints.is_symlink() and RunFolder(target.parent).config.exists():
            raise UserError(
                f"{self.checkpoints}: a link to the checkpoints of another run, {target}; remove it"
            )


OWN = {"lock"} | {entry.name for entry in vars(RunFolder).values() if isinstance(entry, Inside)}
OWN -= {"checkpoints"}
"""The names that `RunFolder.vet` checks, with all below them."""


def _is_fine(path: Path, is_read: bool) -> bool:
    """Whether a path in a run's folder is missing, a folder or a file; what is read has a bounded size."""
    if path.is_symlink() or not path.is_file():
        return not os.path.lexists(path) or (path.is_dir() and not path.is_symlink())
    return not is_read or path.stat().st_size <= LARGEST.get(path.name, LARGEST_OTHER)


def _why_refused(path: Path) -> str:
    if path.is_symlink():
        return f"a link to {os.readlink(path)}; expected a file of the run: remove it, or copy what it names"
    if not path.is_file():
        return "a pipe or a device; expected a file of the run: remove it"
    return f"{path.stat().st_size:,} bytes; expected at most {LARGEST.get(path.name, LARGEST_OTHER):,}"


def why_not_local(path: str | os.PathLike) -> str:
    """Why a run's folder cannot be of this name, and what would be valid."""
    if REMOTE.search(str(path)):
        return f"is on another system; expected {HERE}"
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:
        return "is not UTF-8; expected a path that is, as orbax writes to no other"
    return "has *, ? or [ in its path, a pattern to orbax; expected a path without them"
