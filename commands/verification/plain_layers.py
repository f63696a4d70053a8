"""Layers as their papers write them, which `--mode=verify` computes in place of those that a model has."""

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.linear import Linear
from transformer.layers.normalization import LayerNorm, OffsetRMSNorm, RMSNorm


class PlainLayerNorm(LayerNorm):
    """Ba et al. 2016, section 3."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        y = centred / jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + self.epsilon) * _param(self, "scale")
        return y + _param(self, "bias") if self.use_bias else y


class PlainRMSNorm(RMSNorm):
    """Zhang and Sennrich 2019, section 4."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * _param(self, "scale")


class PlainOffsetRMSNorm(OffsetRMSNorm):
    """Gemma Team 2024, section 2."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(..., d) -> (..., d)."""
        y = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + self.epsilon)
        return y * (1 + _param(self, "offset"))


class PlainLinear(Linear):
    """A product, and a sum."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(..., *contracted axes) -> (..., *features)."""
        y = jnp.tensordot(x, _param(self, "kernel"), self.axis)
        return y + _param(self, "bias") if self.use_bias else y


def _param(module: nn.Module, name: str) -> Any:
    return module.get_variable("params", name)


PLAIN: tuple[type[nn.Module], ...] = (PlainLayerNorm, PlainRMSNorm, PlainOffsetRMSNorm, PlainLinear)
"""Subclasses with the same function of parameters and inputs as their base class."""


@contextlib.contextmanager
def plain_layers() -> Iterator[None]:
    """The context in which the base classes of `PLAIN` compute what these do."""
    with contextlib.ExitStack() as context:
        for kind in PLAIN:
            method: Any = kind.__call__
            context.enter_context(mock.patch.object(kind.__base__, "__call__", method))
        yield
