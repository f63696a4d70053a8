"""The loss of classifiers: cross-entropy over labels, smoothed and balanced where the config says so."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer.config import Bounded, Rate
from transformer.training.experiment import Batch
from transformer.training.metrics import Sum


@dataclass(frozen=True)
class LabelLossConfig(Bounded):
    """How the loss of a classifier is formed."""

    label_smoothing: Rate = 0.0  # share of the label's mass that is spread over all labels
    balance: bool = False  # weigh examples by inverse label frequency


def label_losses(
    logits: jax.Array, batch: Batch, weights: jax.Array, label_smoothing: float
) -> dict[str, Sum]:
    """`loss`, -sum_c q_c log p_c in nats with q = (1 - a) [c = label] + a / C for a = `label_smoothing`, each
    example counted as `weights` says, and `accuracy`, by the batch's own weights; logits are (..., c)."""
    log_p = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_p, batch["labels"][..., None], axis=-1)[..., 0]
    smoothed = (1 - label_smoothing) * nll - label_smoothing * log_p.mean(axis=-1)
    right = jnp.argmax(logits, axis=-1) == batch["labels"]
    return {"loss": Sum.of(smoothed, weights), "accuracy": Sum.of(right, batch["weights"])}


def balance(counts_c: np.ndarray) -> np.ndarray:
    """n / (C n_label) for each of C labels, so that all weigh the same together in n examples."""
    counts_c = np.maximum(counts_c, 1)
    return (counts_c.sum() / (len(counts_c) * counts_c)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class LabelLoss:
    """The loss of a classifier of `data`, which has `label_counts(split)`."""

    config: LabelLossConfig
    data: Any

    @functools.cached_property
    def balance_c(self) -> np.ndarray | None:
        """How much an example of each label counts, where `balance` says that not all count the same."""
        return balance(self.data.label_counts("train")) if self.config.balance else None

    def weights(self, batch: Batch) -> jax.Array:
        """How much each example counts: 1, or what `balance_c` says of its label."""
        weights = batch["weights"]
        return weights if self.balance_c is None else weights * jnp.asarray(self.balance_c)[batch["labels"]]

    def terms(self, logits: jax.Array, batch: Batch, train: bool) -> dict[str, Sum]:
        """`label_losses`, smoothed in training only."""
        smoothing = self.config.label_smoothing if train else 0.0
        return label_losses(logits, batch, self.weights(batch), smoothing)

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The number of examples, each counted as the loss counts it."""
        return {"loss": jnp.sum(self.weights(batch))}
