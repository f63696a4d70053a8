"""`Experiment`, the base class of objectives: what the training loop and step ask for."""

import functools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from flax import linen as nn
from tqdm import tqdm

from transformer.run_folder import RunFolder
from transformer.training.checkpoint import Params
from transformer.training.hooks import Evaluator, Hook
from transformer.training.metrics import Sum

Batch = Mapping[str, Any]
"""A batch in the step: named arrays whose leading axis is the batch."""

Put = Callable[[Mapping[str, np.ndarray]], Batch]
"""Brings this process's rows of a batch onto the devices of the run."""


class Batches(Protocol):
    """Batches as a pure function of the step, so that resuming needs only an integer."""

    def __len__(self) -> int:
        """Number of batches in one pass over the data."""
        ...

    def iterate(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """This process's rows of the global batches of step `start`, `start + 1`, ..., made ahead of time in
        the background; endless where the data repeats, one pass where it does not."""
        ...


class Experiment(ABC):
    """One objective: a model, its data, its loss and its evaluators.

    A subclass sets `config`, `data` and `model` in its constructor. All else that a command may use is
    optional: see the protocols below.
    """

    config: Any
    data: Any
    model: nn.Module
    heads: tuple[str, ...] = ()
    """Names of parameters that `initialize_from` may leave as they are initialised."""

    @abstractmethod
    def init(self, rng: jax.Array) -> Any:
        """The model's initial `params`, boxed with the logical names of their axes."""

    @abstractmethod
    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """Every term, optimised or only reported, summed over the examples of the batch."""

    @abstractmethod
    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The terms of `loss` to optimise, with their weights over the whole batch."""

    def initial_carry(self) -> Any:
        """What `loss_and_carry` is given with the first batch, where each batch continues the one before it:
        arrays whose leading axis is the batch; None where batches have nothing to do with one another."""
        return None

    def loss_and_carry(
        self, params: Params, batch: Batch, carry: Any, rng: jax.Array, train: bool
    ) -> tuple[dict[str, Sum], Any]:
        """The terms of `loss` after what `carry` holds, and the carry for the next batch."""
        return self.loss(params, batch, rng, train), carry

    @property
    def tokens_per_example(self) -> int:
        """Tokens of one row of a batch, for throughput."""
        return self.config.data.sequence_length

    @abstractmethod
    def flops_per_token(self, params: Params) -> float:
        """FLOPs of training on one token, forward and backward; `params` may be abstract."""

    def train_data(self) -> Batches:
        """Shuffled rows of the training split, without end."""
        return self.loader("train", shuffle=True, repeat=True)

    @abstractmethod
    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """By the prefix under which their results are logged, `{"eval": ...}`. The split is "train",
        "validation", "test", or one of another source than the run's, "test of SOURCE"."""

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """What else to do between steps: samples, pictures."""
        return []

    def loader(self, split: str, **order: bool) -> Any:
        """Batches of this process's rows of a split, as large as the config says for training (`repeat`) or
        for evaluation; `order` is `shuffle` and `repeat` of `Loader`."""
        loader = self.data.loader(
            split,
            self.batch_size(**order),
            seed=self.config.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            **order,
        )
        self.note_uncounted(getattr(loader, "rows", None))
        return loader

    def batch_size(self, repeat: bool = False, **order: bool) -> int:
        """Rows of a training batch (`repeat`), or of an evaluation batch."""
        c = self.config
        return c.train.batch_size if repeat else c.evaluate.batch_size or c.train.batch_size

    def note_uncounted(self, rows: Any) -> None:
        """Says why the bytes of some rows cannot be counted."""
        if why := getattr(rows, "why", ""):
            self.note("bytes", why)

    def note(self, kind: str, text: str) -> None:
        """Prints a remark for the user on standard error; of each kind only the first."""
        if kind not in self._noted and jax.process_index() == 0:
            tqdm.write(text, file=sys.stderr)  # above a progress bar
        self._noted.add(kind)

    @functools.cached_property
    def _noted(self) -> set[str]:
        return set()


class Predictor(Protocol):
    """An experiment that answers texts: `--mode=predict`.

    It may also have `continues = True`, where an answer continues the text; `problem(text)`, why a text
    cannot be answered ("" where it can); and `stream(params, text, seed)`, its only answer in pieces.
    """

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """The answers to each text, as many as the config asks for. `first` is the number of the first text,
        not 0 where earlier ones were answered before: random numbers follow from (seed, number)."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """An experiment that gives log p(continuation | text): `--mode=score`."""

    def score(self, params: Params, pairs: Iterable[tuple[str, str]]) -> Iterator[Any]:
        """A `transformer.evaluation.scoring.Score` for each (text, continuation)."""
        ...


@runtime_checkable
class Contextual(Protocol):
    """An experiment whose model has contextual token vectors: `--mode=analyze --contexts`."""

    def states(self, params: Params, text: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """The span of characters (start, end) of each token of a text, and the last layer's state (t, d) at
        each; both without what exceeds the longest sequence of the model."""
        ...


class Terminal(Protocol):
    """What an experiment may print around training, each method by itself."""

    def opening_lines(self) -> list[str]:
        """Facts about the data, before training."""
        ...

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """The last evaluation beside a baseline, after training."""
        ...

    def example_flags(self) -> list[str]:
        """Flags of `--mode=predict` with which to try the trained model."""
        ...
