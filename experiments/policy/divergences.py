"""Divergences of a student's distribution p of the next token from a teacher's q, of logarithms (..., v)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Divergence = Callable[[jax.Array, jax.Array, float], jax.Array]


def kl(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """KL(p || q) = sum_v p_v (log p_v - log q_v), (...,), in nats."""
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def forward(log_p: jax.Array, log_q: jax.Array, beta: float) -> jax.Array:
    """KL(q || p), which covers all that the teacher may write; `beta` has no effect.

    Source: Hinton et al. 2015, "Distilling the knowledge in a neural network", up to the entropy of q.
    """
    return kl(log_q, log_p)


def reverse(log_p: jax.Array, log_q: jax.Array, beta: float) -> jax.Array:
    """KL(p || q), which avoids what the teacher would not write; `beta` has no effect.

    Source: Gu et al. 2024 (MiniLLM), section 2, here of each token.
    """
    return kl(log_p, log_q)


def jsd(log_p: jax.Array, log_q: jax.Array, beta: float) -> jax.Array:
    """beta KL(q || m) + (1 - beta) KL(p || m) with m = beta q + (1 - beta) p, for 0 < beta < 1: near 0 it is
    beta times `forward`, near 1 it is 1 - beta times `reverse`.

    Source: Agarwal et al. 2024 (GKD), equation 1.
    """
    log_m = jnp.logaddexp(log_q + jnp.log(beta), log_p + jnp.log1p(-beta))
    return beta * kl(log_q, log_m) + (1 - beta) * kl(log_p, log_m)


DIVERGENCES: dict[str, Divergence] = {"forward": forward, "reverse": reverse, "jsd": jsd}
"""The values of the key `loss.divergence`."""
