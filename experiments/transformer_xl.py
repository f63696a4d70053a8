"""Language modelling with recurrence over segments: Transformer-XL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from experiments.language_modeling import LanguageModeling, LanguageModelingConfig
from transformer.data.loader import Loader
from transformer.data.streams import StreamRows
from transformer.evaluation.likelihood import LikelihoodEvaluator, Rows, split_by_row
from transformer.models.transformer_xl import Memory, TransformerXLConfig
from transformer.training.experiment import Batch, Evaluator, Params, Put
from transformer.training.metrics import Sum
from transformer.training.step import in_parts
from transformer.training.token_losses import token_losses


@dataclass(frozen=True)
class TransformerXLRunConfig(LanguageModelingConfig):
    """A language model's run, of a model with memory."""

    model: TransformerXLConfig


class TransformerXL(LanguageModeling):
    """A decoder that reads streams of text, a segment a step, and keeps what it remembers in the state."""

    Config = TransformerXLRunConfig
    counts_from_a_beginning = False

    @property
    def attended(self) -> int:
        """The memory and the segment."""
        return self.config.model.memory_length + self.config.data.sequence_length

    def initial_carry(self) -> Memory:
        """An empty memory for each row of a batch."""
        c = self.config
        return Memory.empty(c.model, c.train.batch_size, c.model.memory_length)

    def recur(
        self, params: Params, batch: Batch, carry: Memory, rng: jax.Array, train: bool
    ) -> tuple[dict[str, Sum], Memory]:
        """The terms of `loss` for tokens that also see the memory, and the memory after them."""
        variables = {"params": params}
        x_btd, carry = self.model.apply(
            variables,
            batch["tokens"],
            carry.continued(batch["continues"]),
            segments_bt=batch["segments"],
            train=train,
            rngs={"dropout": rng},
            method="recur",
        )

        def unembed(x_btd: jax.Array) -> jax.Array:
            return self.model.apply(variables, x_btd, method="unembed")

        return token_losses(unembed, x_btd, batch, self.config.loss, self.model.vocab_size, train), carry

    def loader(self, split: str, **order: bool) -> Loader:
        """Streams of a split, side by side; their order is that of the text, whatever is asked for."""
        size = self.batch_size(order.get("repeat", False))
        rows = self.data.rows(split)
        self.note_uncounted(rows)
        return Loader(
            StreamRows(rows, size),
            size,
            workers=self.config.data.workers,
            repeat=order.get("repeat", False),
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """The likelihood of a split, read in streams with a memory of `evaluation_memory`."""
        batches = self.config.train.evaluate_batches
        likelihood = LikelihoodEvaluator(self._remembering(), self.loader(split), put, batches)
        return super().evaluators(put, split) | {"eval": likelihood}

    def _remembering(self) -> Callable[[Params, Batch], Any]:
        c = self.config
        length = c.model.evaluation_memory or c.model.memory_length
        carry: Any = Memory.empty(c.model, self.batch_size(), length)

        def one(params: Params, batch: Batch, carry: Memory) -> tuple[dict[str, Sum], Rows, Memory]:
            def measure(part: Batch) -> tuple[dict[str, Sum], Memory]:
                return self.recur(params, part, carry, jax.random.key(0), False)

            return split_by_row(measure, batch)

        compiled = jax.jit(in_parts(one, c.parallel.microbatches))

        def step(params: Params, batch: Batch) -> tuple[dict[str, Sum], Rows]:
            nonlocal carry  # what a pass leaves, the first batch of the next one does not continue
            terms, rows, carry = compiled(params, batch, carry)
            return terms, rows

        return step
