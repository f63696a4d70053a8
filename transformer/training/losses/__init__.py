"""What a target token costs by its log-probability, by the name a config gives: each one small function.

A loss takes float32 log-probabilities of any shape, and arguments of its own with defaults, which
`loss.arguments` sets; it gives back the cost of each in the same shape. Smoothing, z-loss and chunks are
`transformer.training.token_losses`' for all of them.
"""

from collections.abc import Callable

import jax

from transformer.training.losses.cross_entropy import cross_entropy
from transformer.training.losses.focal import focal

LOSSES: dict[str, Callable[..., jax.Array]] = {
    "cross_entropy": cross_entropy,
    "focal": focal,
}
