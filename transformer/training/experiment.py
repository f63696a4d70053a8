"""`Objective`, what is trained, as training and evaluation see it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import jax
import numpy as np

from transformer.run_folder import RunFolder
from transformer.training.hooks import Evaluator, Hook
from transformer.training.metrics import Sum
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

    def documents_at(self, step: int) -> list[np.ndarray] | None:
        """The documents of the rows of a batch (see `DataLoader`); None if they are not known."""
        ...

    def iterate(self, start: int) -> Iterator[dict[str, np.ndarray]]:
        """The rows that this process holds of the batches of step `start`, `start + 1`, ..., prefetched in
        the background; endless if the data repeat, otherwise one pass."""
        ...


class Objective(Protocol):
    """An objective, with the members that `transformer` asks for. Its subclass `experiments.base.Experiment`
    has a default for each of them but `init`, `loss` and `weigh`."""

    config: Any
    data: Any
    model: Any
    whole_batch: bool
    heads: tuple[str, ...]
    origin: Callable[[str], Any] | None
    measures: Callable[[bool, bool], Any] | None
    around: Callable[[Any, Any], Any] | None
    weights: tuple[str, ...]
    cut: Callable[[dict[str, np.ndarray], int], dict[str, np.ndarray]] | None

    def init(self, rng: jax.Array) -> Any:
        """The initial parameters, boxed with their logical axes."""

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """All terms, optimised or only reported, as `Sum`s over the examples of the batch."""
        ...

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The terms of `loss` to optimise, with their total weights in the batch."""
        ...

    def initial_carry(self) -> Any:
        """The first carry of `loss_and_carry`; None if batches are independent."""

    def loss_and_carry(
        self, params: Params, batch: Batch, carry: Any, rng: jax.Array, train: bool
    ) -> tuple[dict[str, Sum], Any]:
        """The terms of `loss` given `carry`, and the carry for the next batch."""
        ...

    @property
    def tokens_per_example(self) -> int:
        """Tokens of one row of a batch."""
        ...

    def flops_per_token(self, params: Params) -> float:
        """FLOPs of training on one token, forward and backward."""
        ...

    def converted(self, origin: Any) -> Any:
        """The `Origin` of a warm start with its parameters as this model has them."""

    def train_data(self) -> Batches:
        """Shuffled rows of the training split, repeated endlessly."""
        ...

    def loader(self, split: str, **order: bool) -> Any:
        """The loader of a split, which reads the rows of this process."""

    def staged(self, rows: Any) -> Any:
        """The rows of training in a stage of `train.until`."""

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of a training batch over all processes."""
        ...

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Prefix of logged results -> evaluator of a split."""
        ...

    def hooks(self, folder: RunFolder) -> list[Hook]:
        """Further hooks, such as samples and plots."""
        ...

    def note(self, kind: str, text: str) -> None:
        """Prints a note on standard error; only the first of each kind."""
