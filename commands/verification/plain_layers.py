"""Layers as their papers write them, for `--mode=verify`: each in place of the module that a model has."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.linear import Linear
from transformer.layers.normalization import LayerNorm, NoNorm, OffsetRMSNorm, RMSNorm
from transformer.layers.quantized import Quantized


def _layer_norm(module: Any, x: jax.Array) -> jax.Array:
    variance = jnp.var(x, axis=-1, keepdims=True)
    y = (x - jnp.mean(x, axis=-1, keepdims=True)) / jnp.sqrt(variance + module.epsilon) * _param(module, "scale")
    return y + _param(module, "bias") if module.use_bias else y


def _rms(module: Any, x: jax.Array) -> jax.Array:
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + module.epsilon)


def _linear(module: Any, x: jax.Array) -> jax.Array:
    y = jnp.tensordot(x, _param(module, "kernel"), module.axis)
    return y + _param(module, "bias") if module.use_bias else y


def _param(module: nn.Module, name: str) -> Any:
    return module.get_variable("params", name)


PLAIN: dict[type[nn.Module], Callable[[Any, jax.Array], jax.Array]] = {
    LayerNorm: _layer_norm,
    RMSNorm: lambda module, x: _rms(module, x) * _param(module, "scale"),
    OffsetRMSNorm: lambda module, x: _rms(module, x) * (1 + _param(module, "offset")),
    NoNorm: lambda module, x: x,
    Linear: _linear,
}
"""Module -> the same function of its parameters and inputs. Its own subclasses are not replaced."""


def plainly(function: Callable, args: Any, kwargs: Any, context: Any) -> Any:
    """A flax method interceptor that computes the modules of `PLAIN` by their definitions."""
    module = context.module
    called = context.method_name == "__call__" and not module.is_initializing()
    if not called or type(module) not in PLAIN or isinstance(_param(module, "kernel"), Quantized):
        return function(*args, **kwargs)
    return PLAIN[type(module)](module, *args)
