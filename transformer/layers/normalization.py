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
        scale_d = _width_param(self, "scale", nn.initializers.ones, x_btd.shape[-1])
        bias_d = _width_param(self, "bias", nn.initializers.zeros, x_btd.shape[-1]) if self.use_bias else None
        return _normalize(x_btd, scale_d, bias_d, self.epsilon, True)


class RMSNorm(nn.Module):
    """scale * x / sqrt(mean(x^2) + epsilon), over the last axis; it has no bias.

    Source: Zhang and Sennrich 2019, section 4. Statistics are in float32; the result has the type of x.
    """

    epsilon: float = 1e-6
    use_bias: bool = False

    @nn.compact
    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        scale_d = _width_param(self, "scale", nn.initializers.ones, x_btd.shape[-1])
        return _normalize(x_btd, scale_d, None, self.epsilon, False)


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
        offset_d = _width_param(self, "offset", nn.initializers.zeros, x_btd.shape[-1])
        return _normalize(x_btd, 1 + offset_d, None, self.epsilon, False)


class NoNorm(nn.Module):
    """x itself, for models without normalisation; `epsilon` and `use_bias` have no effect."""

    epsilon: float = 0.0
    use_bias: bool = False

    def __call__(self, x_btd: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        return x_btd


@functools.partial(jax.checkpoint, static_argnums=(3, 4))
def _normalize(
    x_btd: jax.Array, scale_d: jax.Array, bias_d: jax.Array | None, epsilon: float, centred: bool
) -> jax.Array:
    """Computed in float32, and rematerialised whole: the backward pass stores x_btd in its own type, and not
    the normalised float32 array of its size."""
    x = x_btd.astype(jnp.float32)
    if centred:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    x = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon) * scale_d
    return (x if bias_d is None else x + bias_d).astype(x_btd.dtype)


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
