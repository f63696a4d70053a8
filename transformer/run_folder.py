"""The names of the files in a run's folder, and how a file is written whole."""

import os
import re
from pathlib import Path
from typing import Any

UNUSABLE = re.compile(r"[*?[\ud800-\udfff]")
"""What is a pattern to orbax, or stands for a byte that is not UTF-8."""


REMOTE = re.compile(r"[A-Za-z][\w+.-]*://")
"""What an address of another system has: gs://bucket, s3://bucket, https://host."""

HERE = "a path of this system; a bucket can be mounted (gcsfuse)"
"""What is expected instead of such an address."""


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


def why_not_local(path: str | os.PathLike) -> str:
    """Why a run's folder cannot be of this name, and what would be valid."""
    if REMOTE.search(str(path)):
        return f"is on another system; expected {HERE}"
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:
        return "is not UTF-8; expected a path that is, as orbax writes to no other"
    return "has *, ? or [ in its path, a pattern to orbax; expected a path without them"


def replace(path: Path, text: str) -> None:
    """Writes a file, or another one in its place, which is there whole or not at all.

    Raises:
      OSError: it cannot be written, and is named; what was there before stays.
    """
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8", errors="backslashreplace") as file:
            print(text, end="", file=file, flush=True)
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        error.filename = str(path)  # a failed write names none
        raise
    finally:
        part.unlink(missing_ok=True)
