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
from transformer.training.hooks import Evaluator, Hook
from transformer.training.metrics import Sum
from transformer.training.parallel import rows_here
from transformer.training.state import Params

Batch = Mapping[str, Any]
"""A batch in the step: named arrays whose leading axis is the batch."""

Put = Callable[[Mapping[str, np.ndarray]], Batch]
"""Puts this process's rows of a batch onto the devices, sharded."""


class Batches(Protocol):
    """Batches as a pure function of the step, so that resuming needs only an integer."""

    def __len__(self) -> int:
        """Number of batches in one pass over the data."""
        ...

    def iterate(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """The rows that this process holds of the batches of step `start`, `start + 1`, ..., prefetched in
        the background; endless if the data repeat, otherwise one pass."""
        ...


class Experiment(ABC):
    """One objective: a model, its data, its loss and its evaluators.

    A subclass sets `config`, `data` and `model` in its constructor. The protocols below are optional;
    commands use them.
    """

    config: Any
    data: Any
    model: nn.Module
    heads: tuple[str, ...] = ()
    """Names of parameters that `initialize_from` may leave newly initialised."""
    origin: Callable[[], Any] | None = None
    """Opens the `transformer.training.checkpoints.initialize.Origin` that `initialize_from` names; None: the
    checkpoint of the run of that name."""
    measures: Callable[[bool, bool], Any] | None = None
    """`measures(norms, attention)` is a flax method interceptor that sows measurements of the layers as terms
    of `loss`, with a method `finished(name, value)` (see `transformer.layers.measures.Measures`)."""
    cut: Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]] | None = None
    """`cut(batch, length)` cuts the rows of a batch into rows of `length` tokens, if the config's `scheduled`
    has "sequence_length"."""

    @abstractmethod
    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""

    @abstractmethod
    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """All terms, optimised or only reported, as `Sum`s over the examples of the batch. Those that `weigh`
        does not name have no gradient: `jax.lax.stop_gradient` of the values, not of their weights."""

    @abstractmethod
    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The terms of `loss` to optimise, with their total weights in the batch."""

    def initial_carry(self) -> Any:
        """The first carry of `loss_and_carry`, if each batch continues the one before: arrays with a leading
        batch axis. None if batches are independent."""
        return None

    def loss_and_carry(
        self, params: Params, batch: Batch, carry: Any, rng: jax.Array, train: bool
    ) -> tuple[dict[str, Sum], Any]:
        """The terms of `loss` given `carry`, and the carry for the next batch."""
        return self.loss(params, batch, rng, train), carry

    @property
    def tokens_per_example(self) -> int:
        """Tokens of one row of a batch, for throughput."""
        return self.config.data.sequence_length

    @abstractmethod
    def flops_per_token(self, params: Params) -> float:
        """FLOPs of training on one token, forward and backward; `params` may be abstract."""

    def converted(self, origin: Any) -> Any:
        """The `Origin` with its parameters as this model has them."""
        return origin

    def train_data(self) -> Batches:
        """Shuffled rows of the training split, repeated endlessly."""
        return self.loader("train", shuffle=True, repeat=True)

    def staged(self, rows: Any) -> Any:
        """The rows of training in a stage of `train.until`, of which this is the experiment, from those of
        the run: the same, unless something in them depends on what the stage changes."""
        return rows

    @abstractmethod
    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Prefix of logged results -> evaluator, `{"eval": ...}`. `split` is "train", "validation", "test",
        or a split of another source, "test of SOURCE"."""

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Further hooks, such as samples and plots."""
        return []

    def reduced(self, params: Params) -> Params:
        """The parameters as texts are decoded with them, in the type that the config says."""
        return params

    def loader(self, split: str, **order: bool) -> Any:
        """The loader of a split, with the batch size of training (`repeat`) or of evaluation, that reads the
        rows of this process; `order` are `shuffle` and `repeat` of `DataLoader`."""
        size = self.batch_size(**order)
        loader = self.data.loader(split, size, seed=self.config.seed, needed=rows_here(size), **order)
        self.note_uncounted(getattr(loader, "rows", None))
        return loader

    def batch_size(self, repeat: bool = False, **order: bool) -> int:
        """The number of rows of a training batch (`repeat`) or an evaluation batch."""
        c = self.config
        return c.train.batch_size if repeat else c.evaluate.batch_size or c.train.batch_size

    def blank(self) -> dict[str, np.ndarray] | None:
        """A row of padding, stacked, if its shapes are known without data."""
        return self.data.blank() if hasattr(self.data, "blank") else None

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of a training batch over all processes; those of the first one, where there is
        no `blank` row."""
        blank = self.blank()
        rows = next(iter(self.train_data().iterate(0))) if blank is None else blank
        size = self.batch_size(repeat=True)
        return {
            name: jax.ShapeDtypeStruct((size, *each.shape[1:]), jax.dtypes.canonicalize_dtype(each.dtype))
            for name, each in rows.items()
        }

    def note_uncounted(self, rows: Any) -> None:
        """Prints a note if bits per byte cannot be computed for the rows."""
        if why := getattr(rows, "why", ""):
            self.note("bytes", why)

    def note(self, kind: str, text: str) -> None:
        """Prints a note on standard error; only the first of each kind."""
        if kind not in self._noted and jax.process_index() == 0:
            tqdm.write(text, file=sys.stderr)  # above a progress bar
        self._noted.add(kind)

    @functools.cached_property
    def _noted(self) -> set[str]:
        return set()


class Predictor(Protocol):
    """An experiment that supports `--mode=predict`.

    Optional members: `continues = True`, if an answer continues the text; `problem(text)`, why a text cannot
    be answered, or ""; and `stream(params, text, seed)`, a single answer in pieces.
    """

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """The answers to each text, as many as the config says. `first` is the number of the first text (not
        0 after an interruption): random numbers depend on (seed, number)."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """An experiment that supports `--mode=score`: log p(continuation | text)."""

    def score(self, params: Params, pairs: Iterable[tuple[str, str]]) -> Iterator[Any]:
        """A `transformer.evaluation.scoring.Score` for each (text, continuation)."""
        ...


@runtime_checkable
class Contextual(Protocol):
    """An experiment that supports `--mode=analyze --contexts`: contextual token vectors."""

    def states(self, params: Params, text: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """The character span (start, end) of each token of a text, truncated to the model's context, and the
        last layer's states (t, d)."""
        ...


class Terminal(Protocol):
    """Lines that an experiment may print before and after training; each method is optional."""

    def data_lines(self) -> list[str]:
        """Facts about the data, before training."""
        ...

    def result_lines(self, measured: dict[str, float]) -> list[str]:
        """The last evaluation and a baseline, after training."""
        ...

    def example_flags(self) -> list[str]:
        """Flags of `--mode=predict` to try the trained model."""
        ...
