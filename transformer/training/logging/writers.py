"""Writers of a run's metrics: progress bar, JSON lines, TensorBoard events, experiment trackers.

A metric has the same name everywhere ("train/loss", "eval/bits_per_byte"). Only process 0 writes.
"""

import dataclasses
import importlib.util
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import jax
from tqdm import tqdm

from transformer.errors import UserError
from transformer.json_text import parse_json
from transformer.run_folder import RunFolder
from transformer.safe_files import replace
from transformer.training.checkpoints.storage import AppendFile
from transformer.training.logging.events import RunEvents


class Writer(Protocol):
    """Writes the values of steps in ascending order; several calls for the same step are merged."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values by name."""
        ...

    def close(self) -> None:
        """Called once, when training ends."""
        ...


class MetricsFile:
    """`metrics.jsonl`, one JSON object per line: `{"step": 100, "train/loss": 1.5, ...}`; non-finite values
    are null."""

    def __init__(self, folder: RunFolder, step: int):
        folder.metrics.parent.mkdir(parents=True, exist_ok=True)
        self._last = _cut_after(step, folder.metrics) if folder.metrics.exists() else ""
        self._file = AppendFile(folder.metrics)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Appends a line; values of the same step are merged into the last line."""
        line: dict[str, float | None] = {"step": step}
        start = self._file.size
        if _step_of(self._last) == step:
            line = json.loads(self._last)
            start -= len(self._last)  # JSON here is ASCII
        line |= {name: value if math.isfinite(value) else None for name, value in values.items()}
        text = json.dumps(line) + "\n"
        self._file.write(text.encode(), start)
        self._last = text

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """TensorBoard events, and the config as text and as hyperparameters. The first file is opened with the
    first values. Where there are some, a new one is opened at once: its mark of the steps to hide must come
    before samples and pictures of them, which are in files of their own."""

    def __init__(self, folder: RunFolder, step: int):
        self._folder, again = folder, any(folder.path.glob("events*"))
        self._events = RunEvents(folder, step) if again else None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes one scalar per value."""
        self._events = self._events or RunEvents(self._folder, step)
        self._events.add_scalars(step, values)

    def close(self) -> None:
        """Closes the file."""
        if self._events is not None:
            self._events.close()


def weights_and_biases(folder: RunFolder, step: int) -> Writer:
    """See `trackers.WeightsAndBiases`."""
    from transformer.training.logging.trackers import WeightsAndBiases

    return WeightsAndBiases(folder, step)


def mlflow(folder: RunFolder, step: int) -> Writer:
    """See `trackers.MLflow`."""
    from transformer.training.logging.trackers import MLflow

    return MLflow(folder, step)


WRITERS: dict[str, Callable[[RunFolder, int], Writer]] = {
    "jsonl": MetricsFile,
    "tensorboard": TensorBoard,
    "wandb": weights_and_biases,
    "mlflow": mlflow,
}
"""Name -> constructor, called with the run folder and the step to continue from; lines of later steps, which
a killed run has left, are dropped from files."""

EXTRAS = ("wandb", "mlflow")
"""Writers that need a package of the same name, which is also an extra of this one."""


def names_of(writers: str) -> list[str]:
    """The names in a comma-separated list.

    Raises:
      UserError: a name that is not a key of `WRITERS`.
    """
    names = [name.strip() for name in writers.split(",") if name.strip()]
    for name in names:
        if name not in WRITERS:
            raise UserError(f"writers: {name!r} is none of {', '.join(WRITERS)}")
    return names


def check_installed(names: Iterable[str]) -> None:
    """Raises `UserError` for a writer whose package is not installed."""
    for name in names:
        if name in EXTRAS and importlib.util.find_spec(name) is None:
            extra = f"pip install {name}, or the extra 'transformer-research[{name}]'"
            raise UserError(f"config.train.writers: {name!r} needs a package that is not installed: {extra}")


def make_writers(
    folder: RunFolder, step: int, names: Iterable[str] = ("jsonl", "tensorboard")
) -> list[Writer]:
    """The writers of a run folder by names, from `step` on; [] on all processes but the first."""
    return [WRITERS[name](folder, step) for name in names] if jax.process_index() == 0 else []


@dataclasses.dataclass
class LatestValues:
    """Keeps the last value of each name, for the summary at the end."""

    values: dict[str, float] = dataclasses.field(default_factory=dict)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Updates the values."""
        self.values |= values

    def close(self) -> None:
        """Does nothing."""


class Progress:
    """A progress bar: steps, the remaining time, loss, tokens/s, and MFU if known."""

    def __init__(self, step: int, steps: int):
        # Some containers have terminals of size 0 x 0, on which tqdm draws nothing.
        known = shutil.get_terminal_size((0, 0)).columns > 0
        self._bar = tqdm(
            initial=step,
            total=steps,
            disable=jax.process_index() != 0,
            dynamic_ncols=known,
            ncols=None if known else 100,
            nrows=None if known else 20,
            mininterval=0.2 if sys.stderr.isatty() else 30.0,  # two lines per minute in a log file
            bar_format="{n_fmt}/{total_fmt} steps |{bar}| {remaining} left{postfix[0]}",
            postfix=[" · compiling"],  # until the first step has run
        )

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Advances the bar to `step`, with the latest values."""
        shown = [
            text.format(values[name])
            for name, text in {
                "train/loss": "loss {:.4f}",
                "train/tokens_per_second": "{:,.0f} tokens/s",
                "train/mfu": "MFU {:.1%}",
            }.items()
            if name in values
        ]
        self._bar.postfix = ["".join(f" · {text}" for text in shown)]
        self._bar.update(step - self._bar.n)

    def line(self, step: int, values: Mapping[str, float]) -> None:
        """Prints the values on a line above the bar."""
        self.say(f"step {step}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))

    def say(self, text: str) -> None:
        """Prints a line above the bar."""
        if not self._bar.disable:
            self._bar.write(text)

    def warn(self, text: str) -> None:
        """Prints a warning above the bar."""
        if not self._bar.disable:
            self._bar.write(f"warning: {text}", file=sys.stderr)

    def close(self) -> None:
        """Closes the bar and leaves it on the screen."""
        self._bar.close()


def _cut_after(step: int, path: Path) -> str:
    """Drops the lines of later steps; returns the last remaining line or ""."""
    lines = [line + "\n" for line in whole_lines(path, step)]
    replace(path, "".join(lines))
    return lines[-1] if lines else ""


def whole_lines(path: Path, step: int) -> list[str]:
    """The lines of `metrics.jsonl` up to a step, without those that are incomplete or damaged."""
    return [line.decode() for line in path.read_bytes().splitlines() if 0 <= _step_of(line) <= step]


def logged(path: Path, step: int) -> dict[str, float | None]:
    """The values of a step in `metrics.jsonl`; {} if there are none."""
    lines = whole_lines(path, step) if path.exists() else []
    values = json.loads(lines[-1]) if lines and _step_of(lines[-1]) == step else {}
    return {name: value for name, value in values.items() if name != "step"}


def _step_of(line: str | bytes) -> int:
    try:
        return int(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return -1  # left incomplete by a killed process, or damaged
