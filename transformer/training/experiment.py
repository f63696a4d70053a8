"""What the loop and the step ask of an experiment, and nothing more."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from flax import linen as nn

from transformer.training.hooks import Evaluator, Hook
from transformer.training.metrics import Sum
from transformer.training.state import Params

Batch = Mapping[str, Any]
"""Named arrays whose leading axis is the batch: NumPy on the host, jax.Array in the step."""

Put = Callable[[Mapping[str, np.ndarray]], Batch]
"""Brings this process's rows of a batch onto the devices of the run."""


class Loader(Protocol):
    """Batches as a pure function of the step: resuming is an integer."""

    def batch_at(self, step: int) -> dict[str, np.ndarray]:
        """This process's rows of the global batch of `step`."""
        ...

    def __len__(self) -> int:
        """Number of batches in one pass over the data."""
        ...

    def iterate(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """`batch_at(start), batch_at(start + 1), ...`, made ahead of time in the background;
        endless where the data repeats, one pass where it does not."""
        ...


class Experiment(Protocol):
    """One objective: a model, its losses, its data and its measurements."""

    model: nn.Module
    continues: bool
    """Whether an answer goes on where the text that it answers ends."""
    heads: tuple[str, ...]
    """Names of the parameters that may be new in a run that begins with another one's."""

    @property
    def labels(self) -> Sequence[str] | None:
        """What the outputs of the head stand for, in their order; None where it has no labels."""
        ...

    def init(self, rng: jax.Array) -> Any:
        """The model's initial `params`, boxed with the logical names of their axes."""
        ...

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """Every term, optimised or only reported, summed over the batch's examples."""
        ...

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The terms of `loss` to optimise, with their weights over the whole batch."""
        ...

    @property
    def dtype(self) -> str:
        """The type that matrix products are computed in: "float32" or "bfloat16"."""
        ...

    @property
    def tokens_per_example(self) -> int:
        """Tokens of one row of a batch, for throughput."""
        ...

    def flops_per_token(self, params: Params) -> float:
        """FLOPs that training on one token needs, forward and backward; `params` may be abstract."""
        ...

    def train_data(self) -> Loader:
        """The batches to train on."""
        ...

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """By the prefix under which their results are logged, `{"eval": ...}`. The split is "train",
        "validation", "test", or one of another source than the run's, "test of SOURCE"."""
        ...

    def hooks(self, workdir: Path) -> list[Hook]:
        """What else to do between steps: samples, pictures."""
        ...

    def predict(
        self, params: Params, texts: Iterable[str], seed: int = 0, first: int = 0
    ) -> Iterator[list[str]]:
        """The answers to each text: as many as the config asks for. `first` is the number of the first text,
        which is not 0 where others were answered before: what is random depends on (seed, number)."""
        ...

    def stream(self, params: Params, text: str, seed: int = 0) -> Iterator[str] | None:
        """The one answer to a text in pieces, as they are written; None where answers come whole, or there
        are several."""
        ...

    def opening_lines(self) -> list[str]:
        """What is worth knowing of the data before training begins."""
        ...

    def example_flags(self) -> list[str]:
        """Flags of `--mode=predict` with which to try the trained model."""
        ...

    def closing_lines(self, measured: dict[str, float]) -> list[str]:
        """What puts the last evaluation into proportion, for the end of training."""
        ...


@runtime_checkable
class Recurrent(Protocol):
    """What an experiment has besides, where a batch goes on where the one before it ended."""

    def initial_carry(self) -> Any:
        """What the first batch is given: arrays whose leading axis is the batch."""
        ...

    def recur(
        self, params: Params, batch: Batch, carry: Any, rng: jax.Array, train: bool
    ) -> tuple[dict[str, Sum], Any]:
        """The terms of `loss`, and what the next batch is given."""
        ...


@runtime_checkable
class Contextual(Protocol):
    """What an experiment has besides, where its model gives a word another vector in each context."""

    def states(self, params: Params, text: str) -> tuple[list[tuple[int, int]], np.ndarray]:
        """Where each token of a text stands in it, from one character to another, and the last layer's state
        (t, d) at each; both without what is too long for the model."""
        ...
