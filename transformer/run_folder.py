"""The names of the files in a run's folder, and what they may be."""

import itertools
import os
import re
import stat
import sys
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


class RunFile:
    """An attribute of `RunFolder`: the path of a file in the folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, owner: type | None = None) -> Path:
        return folder.path / self.name


class RunFolder:
    """The paths in a run's folder, which need not exist. `workdir.folder` reads and writes its files."""

    lock = RunFile("lock")  # held while training (see `workdir.lock`)
    config = RunFile("config.json")
    tokenizer = RunFile("tokenizer.json")
    labels = RunFile("labels.json")
    data = RunFile("data.json")  # content of the data, to compare when the run is resumed
    starts = RunFile("starts.json")  # each start of the training: command, hardware, versions
    lengths = RunFile("lengths.json")  # earlier values of train.steps
    fork = RunFile("fork.json")  # of which run this is a fork, and what is changed
    checkpoints = RunFile("checkpoints")
    damaged = RunFile("damaged")  # checkpoints that could not be read
    rollbacks = RunFile("rollbacks.json")  # where training went back to an earlier checkpoint
    diverged = RunFile("diverged")  # batches with which training went wrong
    metrics = RunFile("metrics.jsonl")
    earlier_events = RunFile("events")  # TensorBoard's events of runs that earlier versions have started
    trackers = RunFile("trackers.json")  # ids of the run in experiment trackers
    samples = RunFile("samples")
    attention = RunFile("attention")  # attention maps
    classes = RunFile("classes")  # plots of confusion and calibration
    maps = RunFile("maps")  # maps of word vectors
    profile = RunFile("profile")
    report = RunFile("report.md")
    curves = RunFile("report.png")
    page = RunFile("report.html")
    evaluation = RunFile("evaluation.json")

    def __init__(self, path: str | os.PathLike, is_written: bool = True) -> None:
        """`path` is a local folder, without the name of a checkpoint. Raises `UserError` for an address, and
        for a name that orbax cannot write to, unless the folder is only read."""
        if is_written and (REMOTE.search(str(path)) or UNUSABLE.search(os.path.abspath(path))):
            raise UserError(f"--workdir: {path} {why_not_local(path)}")
        self.path = Path(path)

    @property
    def events(self) -> Path:
        """The folder of TensorBoard's events: TensorBoard shows a run by the name of that folder."""
        return self.earlier_events if self.earlier_events.is_dir() else self.path

    @classmethod
    def names(cls) -> list[str]:
        """The names of all files and folders of a run."""
        return [entry.name for entry in vars(cls).values() if isinstance(entry, RunFile)]

    def vet(self) -> None:
        """Checks all files of the folder, which may be from elsewhere, before a command writes in it;
        checkpoints are checked where they are restored.

        Raises:
          UserError: a link, a pipe or a device, or a file that is too large.
        """
        for top in (self.path / name for name in self.names() if name != self.checkpoints.name):
            for path in itertools.chain([top], top.rglob("*")):  # which follows no links
                if path.is_symlink() or not path.is_dir():
                    check_run_file(path, is_read=top.name not in UNREAD)

    def vet_checkpoints(self) -> None:
        """Raises `UserError` if `checkpoints` is a link to those of another run, which training deletes."""
        target = self.checkpoints.resolve()
        if self.checkpoints.is_symlink() and RunFolder(target.parent).config.exists():
            raise UserError(
                f"{self.checkpoints}: a link to the checkpoints of another run, {target}; remove it"
            )


def check_run_file(path: Path, is_read: bool = True) -> None:
    """Checks a file of a run's folder, which may be from elsewhere, before it is opened. It may be missing.

    Raises:
      UserError: it is a link, a pipe or a device, or if it is read, too large.
    """
    most = LARGEST.get(path.name, LARGEST_OTHER) if is_read else sys.maxsize
    status = path.lstat() if os.path.lexists(path) else None
    if status and not (stat.S_ISREG(status.st_mode) and status.st_size <= most):
        raise UserError(f"{path}: {_why_refused(path, most)}")


def _why_refused(path: Path, most: int) -> str:
    if path.is_symlink():
        return f"a link to {os.readlink(path)}; expected a file of the run: remove it, or copy what it names"
    if not path.is_file():
        return "a pipe or a device; expected a file of the run: remove it"
    return f"{path.stat().st_size:,} bytes; expected at most {most:,}"


def why_not_local(path: str | os.PathLike) -> str:
    """Why a run's folder cannot be of this name, and what would be valid."""
    if REMOTE.search(str(path)):
        return f"is on another system; expected {HERE}"
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:
        return "is not UTF-8; expected a path that is, as orbax writes to no other"
    return "has *, ? or [ in its path, a pattern to orbax; expected a path without them"
