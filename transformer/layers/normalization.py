"""Normalisation of the model width, with statistics in float32."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen as nn


class LayerNorm(nn.Module):
    """scale * (x - mean) / sqrt(variance + epsilon) + bias, over the last axis.

    Source: Ba et al. 2016, section 3. Statistics are in float32; the result has the type of x.
    """

    epsilon: float = 1e-6
    use_bias: bool = True

    @nn.compact
    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        x = _standardize(x_btd, self.epsilon, True)
        x = x * _width_param(self, "scale", nn.initializers.ones, x.shape[-1])
        if self.use_bias:
            x = x + _width_param(self, "bias", nn.initializers.zeros, x.shape[-1])
        return x.astype(x_btd.dtype)


class RMSNorm(nn.Module):
    """scale * x / sqrt(mean(x^2) + epsilon), over the last axis; it has no bias.

    Source: Zhang and Sennrich 2019, section 4. Statistics are in float32; the result has the type of x.
    """

    epsilon: float = 1e-6
    use_bias: bool = False

    @nn.compact
    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        x = _standardize(x_btd, self.epsilon, False)
        return (x * _width_param(self, "scale", nn.initializers.ones, x.shape[-1])).astype(x_btd.dtype)


class OffsetRMSNorm(nn.Module):
    """(1 + offset) * x / sqrt(mean(x^2) + epsilon), over the last axis: `RMSNorm` whose parameter is the
    distance of the scale from 1.

    Source: Gemma Team 2024 (Gemma), section 2, and its released code.
    """

    epsilon: float = 1e-6
    use_bias: bool = False

    @nn.compact
    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        x = _standardize(x_btd, self.epsilon, False)
        offset_d = _width_param(self, "offset", nn.initializers.zeros, x.shape[-1])
        return (x * (1 + offset_d)).astype(x_btd.dtype)


class NoNorm(nn.Module):
    """x itself, for models without normalisation; `epsilon` and `use_bias` have no effect."""

    epsilon: float = 0.0
    use_bias: bool = False

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        return x_btd


@functools.partial(jax.checkpoint, static_argnums=(1, 2))
def _standardize(x_btd: jax.Array, epsilon: float, centred: bool) -> jax.Array:
    """Computed in float32, and rematerialised: otherwise the backward pass would store several arrays of x's
    size."""
    x = x_btd.astype(jnp.float32)
    if centred:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)


def _width_param(module: nn.Module, name: str, init: nn.initializers.Initializer, width: int) -> jax.Array:
    return module.param(name, nn.with_logical_partitioning(init, ("norm",)), (width,), jnp.float32)


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": LayerNorm,
    "rms": RMSNorm,
    "rms_offset": OffsetRMSNorm,
    "none": NoNorm,
}

HEAD_NORMS: dict[str, Callable[..., nn.Module]] = {"rms_offset": OffsetRMSNorm}
"""Norms of blocks with which queries and keys have another than `RMSNorm`."""
