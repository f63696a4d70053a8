"""The negative log-likelihood."""

import jax


def cross_entropy(log_p: jax.Array) -> jax.Array:
    """-log p, in nats."""
    return -log_p
