"""The gate of feed-forward networks whose values are limited."""

import jax
import jax.numpy as jnp


def clamped_gate(x: jax.Array) -> jax.Array:
    """x / (1 + exp(-1.702 x)) of min(x, 7). Source: OpenAI 2025 (gpt-oss), section 2.2, its released code."""
    x = jnp.minimum(x, 7)
    return x * jax.nn.sigmoid(1.702 * x)


def clamped_up(x: jax.Array) -> jax.Array:
    """1 + x with x limited to [-7, 7], for `clamped_gate`."""
    return jnp.clip(x, -7, 7) + 1
