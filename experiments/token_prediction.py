"""What all objectives share that predict text, one token after another."""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.objective import Objective
from transformer.evaluation.likelihood import LikelihoodEvaluator, by_row
from transformer.training.experiment import Batch, Evaluator, Params, Put
from transformer.training.metrics import Sum
from transformer.training.step import in_parts, make_eval_step
from transformer.training.token_losses import token_losses


class TokenPrediction(Objective):
    """A model that predicts `targets` from `READS`, both names of a batch, with loss -log p in nats.

    `MARKS` says which of the batch's arrays are given to the model under which names: what keeps texts that
    share a row apart. `perplexity` is whether exp(loss) is one.
    """

    READS: tuple[str, ...] = ("tokens",)
    perplexity = True
    MARKS: dict[str, str] = {"segments_bt": "segments", "positions_bt": "positions"}  # noqa: RUF012

    def init(self, rng: jax.Array) -> Any:
        """The model's parameters, boxed with their logical axes."""
        return self.model.init(rng, *[jnp.zeros((1, 1), jnp.int32)] * len(self.READS))["params"]

    def loss(self, params: Params, batch: Batch, rng: jax.Array, train: bool) -> dict[str, Sum]:
        """`loss`, nats per target token (smoothed in training only); `bits_per_byte` of them; `z_loss`."""
        x_btd = self.hidden(params, batch, train=train, rngs={"dropout": rng})

        def unembed(x_btd: jax.Array) -> jax.Array:
            return self.model.apply({"params": params}, x_btd, method="unembed")

        return token_losses(unembed, x_btd, batch, self.config.loss, self.model.vocab_size, train)

    def hidden(self, params: Params, batch: Batch, **options: Any) -> jax.Array:
        """(b, t, d), what the model's `unembed` turns into logits of the batch's `targets`."""
        return self.model.apply(
            {"params": params},
            *(batch[name] for name in self.READS),
            **{argument: batch[name] for argument, name in self.MARKS.items()},
            method="hidden",
            **options,
        )

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of target tokens, for the loss and the optional z-loss alike."""
        weight = jnp.sum(batch["weights"])
        return {"loss": weight} | ({"z_loss": weight} if self.config.loss.z_loss else {})

    def evaluators(self, put: Put, split: str = "validation") -> dict[str, Evaluator]:
        """The likelihood of a split: loss, perplexity, bits per byte."""
        step = in_parts(by_row(make_eval_step(self)), self.config.parallel.microbatches)  # type: ignore[arg-type]
        batches, loader = self.config.train.evaluate_batches, self.held_out(split)
        likelihood = LikelihoodEvaluator(jax.jit(step), loader, put, batches, self.perplexity)
        return {"eval": likelihood} | super().evaluators(put, split)
