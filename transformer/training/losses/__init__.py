"""Losses of a target token as functions of its log-probability, by the key `loss.name`.

A loss maps float32 log-probabilities of any shape to losses of that shape; further arguments have defaults,
and `loss.arguments` sets them. `transformer.training.token_losses` does label smoothing, z-loss and chunks
for all of them.
"""

import operator
from collections.abc import Callable

import jax

from transformer.training.losses.focal import focal

LOSSES: dict[str, Callable[..., jax.Array]] = {
    "cross_entropy": operator.neg,  # -log p, in nats
    "focal": focal,
}
