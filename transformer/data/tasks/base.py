"""The base class of tasks, and their data: from a config's `data` group to batches."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer.data.cache.disk_cache import digest
from transformer.data.corpus import SplitData
from transformer.data.loader import DataLoader, HostBatch, Rows
from transformer.data.sources.base import SPLITS
from transformer.errors import UserError


class Task(ABC):
    """A rule by which rows are generated. A row is a pure function of its split and its index, so that it is
    the same for any number of hosts and after resuming.

    Raises:
      UserError: an argument is out of range.
    """

    def size(self, split: str) -> int | None:
        """The number of rows of a split; None: endless."""
        return None

    @abstractmethod
    def batch(self, split: str, rows_b: np.ndarray) -> HostBatch:
        """The rows with these indices, stacked; index -1 is a row of padding, with weights 0."""


class TokenTask(Task):
    """A task whose prompts are rows of its own tokens, 0 to `vocab_size` - 1."""

    vocab_size: int
    length: int
    """Tokens of a training row."""

    @property
    def longest(self) -> int:
        """The most tokens of a row of any split."""
        return self.length

    def prompt(self, numbers: list[int]) -> list[int]:
        """The numbers themselves.

        Raises:
          UserError: there are none, too many, or some are not tokens.
        """
        if not 1 <= len(numbers) <= self.length or not all(0 <= x < self.vocab_size for x in numbers):
            raise UserError(f"is not 1 to {self.length} numbers from 0 to {self.vocab_size - 1}")
        return numbers

    @property
    def example(self) -> str:
        """A prompt to try: a row up to its last answer."""
        row = self.batch("train", np.array([0]))
        end = int(np.flatnonzero(row["answers"][0])[-1]) + 1
        return " ".join(map(str, row["tokens"][0, :end]))


def generators(split: str, rows_b: np.ndarray) -> list[np.random.Generator]:
    """A random generator for each row of a split."""
    part = [*SPLITS].index(split)
    return [np.random.default_rng([part, max(int(row), 0)]) for row in rows_b]


class TaskRows(Rows):
    """The first `size` rows of a split of a task."""

    def __init__(self, task: Task, split: str, size: int) -> None:
        self._task, self._split, self._size = task, split, size

    def __len__(self) -> int:
        return self._size

    def batch(self, rows: np.ndarray) -> HostBatch:
        """The rows with these indices; see `Task.batch`."""
        return self._task.batch(self._split, rows)


class TaskData(SplitData):
    """The rows of a task, without files: `config` has `evaluated_rows` and `workers`."""

    ENDLESS = 2**31 - 1
    """The number of training rows of an endless task, which no run reaches."""

    apart = True
    lines = ""
    kinds: Mapping[str, Any] = {}

    def __init__(self, config: Any, task: Task, name: str, arguments: Mapping[str, Any]) -> None:
        """`name` and `arguments` are those of the task."""
        self.config, self.task = config, task
        self.identity = {name: digest(name, sorted(arguments.items()))}
        self._name = name

    def kept(self) -> dict[str, Any]:
        """Nothing: the config has all."""
        return {}

    def sources(self, split: str) -> Sequence[Any]:
        """None: nothing is read."""
        return ()

    def contents(self) -> dict[str, dict[str, Any]]:
        """The task with its arguments."""
        return {"source": self.identity}

    def location(self, split: str) -> str:
        """The name of the task."""
        return self._name

    def division(self) -> list[str]:
        """Nothing to say: a task has its own splits."""
        return []

    def loader(self, split: str, batch_size: int, *, repeat: bool = False, **options: Any) -> DataLoader:
        """Batches of a split; `options` are those of `DataLoader`. Of an endless one evaluation has the first
        `evaluated_rows`."""
        size = self.task.size(split)
        if size is None:
            size = self.ENDLESS if repeat else self.config.evaluated_rows
        rows = TaskRows(self.task, split, size)
        return DataLoader(rows, batch_size, repeat=repeat, workers=self.config.workers, **options)


def make_task(kind: type[Task], name: str, arguments: Mapping[str, Any]) -> Any:
    """The task with its arguments.

    Raises:
      UserError: an argument that it does not take, of another type or out of range.
    """
    parameters = inspect.signature(kind).parameters
    for key, value in arguments.items():
        if key not in parameters:
            raise UserError(f"arguments.{key}: {name} takes only {', '.join(parameters)}")
        expected = type(parameters[key].default)
        if type(value) is not expected and not (expected is float and type(value) is int):
            raise UserError(f"arguments.{key}: {value!r}; expected {expected.__name__}")
    try:
        return kind(**arguments)
    except UserError as error:
        raise UserError(f"arguments.{error}") from None
