"""The loss of classifiers: cross-entropy with label smoothing and class weights."""

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
    """The loss of a classifier."""

    label_smoothing: Rate = 0.0  # share of the target probability that is spread over all labels
    balance: bool = False  # weigh examples by inverse label frequency


def label_losses(
    logits: jax.Array, batch: Batch, weights: jax.Array, label_smoothing: float
) -> dict[str, Sum]:
    """`loss`, -sum_c q_c log p_c in nats with q = (1 - a) [c = label] + a / C and a = `label_smoothing`,
    weighted by `weights`, and `accuracy`, weighted by the batch's own weights; logits are (..., c)."""
    log_p = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_p, batch["labels"][..., None], axis=-1)[..., 0]
    smoothed = (1 - label_smoothing) * nll - label_smoothing * log_p.mean(axis=-1)
    right = jnp.argmax(logits, axis=-1) == batch["labels"]
    return {"loss": Sum.of(smoothed, weights), "accuracy": Sum.of(right, batch["weights"])}


def balance(counts_c: np.ndarray) -> np.ndarray:
    """The weight n / (C n_label) of each of C labels, so that all labels have the same total weight."""
    counts_c = np.maximum(counts_c, 1)
    return (counts_c.sum() / (len(counts_c) * counts_c)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class LabelLoss:
    """The loss of a classifier of `data`, which has `label_counts(split)`."""

    config: LabelLossConfig
    data: Any

    @functools.cached_property
    def balance_c(self) -> np.ndarray | None:
        """The weight of an example of each label, or None without `balance`."""
        return balance(self.data.label_counts("train")) if self.config.balance else None

    def weights(self, batch: Batch) -> jax.Array:
        """The weight of each example: 1, or that of its label by `balance_c`."""
        weights = batch["weights"]
        return weights if self.balance_c is None else weights * jnp.asarray(self.balance_c)[batch["labels"]]

    def terms(self, logits: jax.Array, batch: Batch, train: bool) -> dict[str, Sum]:
        """`label_losses`, with label smoothing in training only."""
        smoothing = self.config.label_smoothing if train else 0.0
        return label_losses(logits, batch, self.weights(batch), smoothing)

    def weigh(self, batch: Batch) -> dict[str, jax.Array]:
        """The sum of the examples' weights in the loss."""
        return {"loss": jnp.sum(self.weights(batch))}
