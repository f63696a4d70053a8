"""Focal loss."""

import jax
import jax.numpy as jnp

from transformer.errors import UserError


def focal(log_p: jax.Array, gamma: float = 2.0) -> jax.Array:
    """-(1 - p)^gamma log p; with gamma 0 the cross-entropy.

    Raises:
      UserError: a negative gamma.
    Source: Lin et al. 2017, "Focal loss for dense object detection", equation 4.
    """
    if not gamma >= 0:
        raise UserError(f"gamma: {gamma}; expected an exponent of at least 0")
    # 1 - p without cancellation, and kept above 0, where the gradient of the power is not finite.
    missing = jnp.maximum(-jnp.expm1(log_p), jnp.finfo(log_p.dtype).tiny)
    return -(missing**gamma) * log_p
