"""Losses of a target token as functions of its log-probability, by the value of `loss.name`.

A loss maps float32 log-probabilities of any shape to losses of the same shape and type; `loss.arguments`
sets its further arguments. `transformer.training.losses.token_losses` implements label smoothing, z-loss and
chunks for all.
"""

import operator
from collections.abc import Callable

import jax

from transformer.training.losses.focal import focal

LOSSES: dict[str, Callable[..., jax.Array]] = {
    "cross_entropy": operator.neg,  # -log p, in nats
    "focal": focal,
}
