"""What all objectives share, whatever they predict."""

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from tqdm import tqdm

from experiments.evaluators import find_evaluator
from transformer.errors import UserError
from transformer.training.experiment import Evaluator, Loader, Params, Put


class Objective:
    """A model and its data; a subclass sets `config`, `data` and `model`.

    `heads` are the names of parameters that a pre-trained run need not have, `continues` is whether an answer
    goes on where the text that it answers ends (see `transformer.training.experiment`), and `sorts_rows`
    whether the rows of a split come in an order of length or label.
    """

    config: Any
    data: Any
    model: Any
    continues: bool = False
    sorts_rows: bool = False
    heads: tuple[str, ...] = ()

    @property
    def labels(self) -> Sequence[str] | None:
        """The names of the labels, in the order of the model's outputs; None where it has none."""
        return self.data.kept().get("labels")

    @property
    def dtype(self) -> str:
        """The compute type of the model."""
        return self.config.model.dtype

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """Those that `evaluate.also` names; a subclass adds its own."""
        return {name: find_evaluator(name)(self, put, split) for name in self.config.evaluate.others}

    @functools.cached_property
    def _noted(self) -> set[str]:
        return set()

    def note(self, kind: str, text: str) -> None:
        """Says something on standard error that the user should know, of each kind the first one."""
        if kind not in self._noted and jax.process_index() == 0:
            tqdm.write(text, file=sys.stderr)  # not into a progress bar
        self._noted.add(kind)

    def note_uncounted(self, rows: Any) -> None:
        """Says of rows whose bytes are not counted why that is so."""
        if why := getattr(rows, "why", ""):
            self.note("bytes", why)

    def stream(self, params: Params, text: str, seed: int = 0) -> Iterator[str] | None:
        """The one answer to a text in pieces, as they are written; None where answers come whole, or there
        are several."""
        return None

    def problem(self, text: str) -> str:
        """Why a text cannot be answered, as far as that is seen without the model; nothing where it can."""
        return ""

    def held_out(self, split: str) -> Loader:
        """The rows of a split to measure. Where `train.evaluate_batches` takes some and the first ones
        are the longest, or all of one label, they are a random part, always the same."""
        return self.loader(split, shuffle=self.sorts_rows and self.config.train.evaluate_batches > 0)

    def train_data(self) -> Loader:
        """Shuffled rows of the training split, without end."""
        return self.loader("train", shuffle=True, repeat=True)

    def batch_size(self, repeat: bool = False) -> int:
        """Rows of a batch to train on, which come without end, or of one to evaluate."""
        c = self.config
        return c.train.batch_size if repeat else c.evaluate.batch_size or c.train.batch_size

    def loader(self, split: str, **order: bool) -> Loader:
        """Batches of a split, of this process's rows."""
        loader = self.data.loader(
            split,
            self.batch_size(order.get("repeat", False)),
            seed=self.config.seed,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
            **order,
        )
        self.note_uncounted(getattr(loader, "rows", None))
        return loader


def check_row_length(config: Any) -> None:
    """Refuses rows that are longer than the model's longest text."""
    length, most = config.data.sequence_length, config.model.max_length
    if length > most:
        raise UserError(f"data.sequence_length: {length} is longer than model.max_length {most}")
