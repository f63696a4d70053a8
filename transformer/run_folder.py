"""The names of what a run keeps in its folder."""

import os
from pathlib import Path
from typing import Any


class Inside:
    """The path of a name in a folder: an attribute of `RunFolder`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, owner: type | None = None) -> Path:
        return folder.path / self.name


class RunFolder:
    """The paths in a run's folder; nothing is read, and they need not exist."""

    config = Inside("config.json")
    tokenizer = Inside("tokenizer.json")
    labels = Inside("labels.json")
    data = Inside("data.json")  # what the data were, to compare them when the run goes on
    lengths = Inside("lengths.json")  # earlier values of train.steps
    checkpoints = Inside("checkpoints")
    unmeasured = Inside("unmeasured")  # a stopped training's sums of metrics not yet written
    metrics = Inside("metrics.jsonl")
    events = Inside("events")
    samples = Inside("samples")
    attention = Inside("attention")  # pictures of attention weights
    classes = Inside("classes")  # pictures of confusion and calibration
    profile = Inside("profile")
    report = Inside("report.md")
    curves = Inside("report.png")
    evaluation = Inside("evaluation.json")

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = Path(path)
