"""Language modelling with segment-level recurrence (Transformer-XL)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from experiments.language_modeling import LanguageModeling, LanguageModelingConfig
from transformer.data.loader import DataLoader
from transformer.data.text.packed_text import StreamRows
from transformer.errors import UserError
from transformer.evaluation.likelihood import LikelihoodEvaluator
from transformer.evaluation.terms_by_row import Rows, split_by_row
from transformer.models.transformer_xl import Memory, TransformerXLConfig
from transformer.training.experiment import Batch, Params, Put
from transformer.training.hooks import Evaluator
from transformer.training.losses.token_losses import token_losses
from transformer.training.metrics import Sum
from transformer.training.parallel import rows_here
from transformer.training.step import in_microbatches


@dataclass(frozen=True)
class SegmentRecurrenceConfig(LanguageModelingConfig):
    """The config of a language modelling run with memory."""

    model: TransformerXLConfig

    scheduled: ClassVar[tuple[str, ...]] = ("window",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data.sources:
            raise UserError(f"data.sources: {self.experiment} reads one text in its order; use data.source")


class SegmentRecurrence(LanguageModeling):
    """A decoder that reads streams of text, one segment per step; its memory is part of the training
    state."""

    Config = SegmentRecurrenceConfig
    counts_from_a_beginning = False

    @property
    def remembered(self) -> int:
        """The length of the memory."""
        return self.config.model.memory_length

    def initial_carry(self) -> Memory:
        """An empty memory for each row of a training batch."""
        c = self.config
        return Memory.empty(c.model, c.train.batch_size, c.model.memory_length)

    def loss_and_carry(
        self, params: Params, batch: Batch, carry: Memory, rng: jax.Array, train: bool
    ) -> tuple[dict[str, Sum], Memory]:
        """The terms of `loss`, with attention over the memory `carry`, and the new memory."""
        variables = {"params": params}
        (x_btd, carry), sown = self.model.apply(
            variables,
            batch["tokens"],
            carry.continued(batch["continues"]),
            segments_bt=batch["segments"],
            train=train,
            rngs={"dropout": rng},
            mutable="terms",
            method="recur",
        )
        unembed = functools.partial(self.model.apply, variables, method="unembed")
        vocab_size = self.model.vocab_size
        return token_losses(unembed, x_btd, batch, self.config.loss, vocab_size, train, sown), carry

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes and types of a training batch; whether its rows continue those before is one number."""
        shapes = super().batch_shapes()
        return shapes | {"continues": jax.ShapeDtypeStruct(shapes["tokens"].shape[:1], jnp.int32)}

    def loader(self, split: str, **order: bool) -> DataLoader:
        """Parallel streams of a split, each in the order of the text; `shuffle` is ignored.

        A pass without `repeat` reads before each stream what its first states depend on: the memory of every
        layer. So these, and what is measured, do not depend on the number of streams, the batch size.
        """
        size, repeat = self.batch_size(**order), order.get("repeat", False)
        rows = self.data.rows(split)
        self.note("bytes", rows.why)
        ahead = self.config.model.num_layers * -(-self._memory // self.config.data.sequence_length)
        return DataLoader(
            StreamRows(rows, size, 0 if repeat else ahead),
            size,
            workers=self.config.data.workers,
            repeat=repeat,
            needed=rows_here(size),
        )

    @property
    def _memory(self) -> int:
        """The length of the memory in evaluation."""
        return self.config.model.evaluation_memory or self.config.model.memory_length

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """The likelihood of a split, read in streams with a memory of `model.evaluation_memory` tokens."""
        loader, batches = self.loader(split), self.config.train.evaluate_batches
        rows: Any = loader.rows
        batches = batches and batches + rows.ahead
        likelihood = LikelihoodEvaluator(self._evaluation_step(), loader, put, batches)
        return {"eval": likelihood, **self.other_evaluators(put, split)}

    def _evaluation_step(self) -> Callable[[Params, Batch], Any]:
        """(params, batch) -> the terms, in total and per row; the memory is carried from batch to batch."""
        c = self.config
        carry: Any = Memory.empty(c.model, self.batch_size(), self._memory)

        def one(params: Params, batch: Batch, carry: Memory) -> tuple[dict[str, Sum], Rows, Memory]:
            def measure(part: Batch) -> tuple[dict[str, Sum], Memory]:
                return self.loss_and_carry(params, part, carry, jax.random.key(0), False)

            return split_by_row(measure, batch, self.weights)

        compiled = jax.jit(in_microbatches(one, c.parallel.microbatches))

        def step(params: Params, batch: Batch) -> tuple[dict[str, Sum], Rows]:
            nonlocal carry  # the first batch of a pass has `continues` 0, which clears it
            terms, rows, carry = compiled(params, batch, carry)
            return terms, rows

        return step
