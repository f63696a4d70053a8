"""Linear maps over any number of axes, with float32 accumulation."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from transformer.layers.dot import dot, last_axes
from transformer.layers.low_contract import low_bias, low_contract
from transformer.layers.quantized import Quantized, contract_quantized


class Linear(nn.Module):
    """y = x . kernel + bias, contracting the last `axis` axes of x with the first of the kernel.

    The kernel's shape is (*contracted axes, *features), and `names` are the logical names of its axes; the
    bias has the trailing ones. Both are stored in float32 and used in `dtype`; their gradients are sums in
    float32. The kernel is initialised from
    a normal distribution of variance `init_scale` / fan-in, the bias with zeros.
    """

    features: tuple[int, ...]
    names: tuple[str | None, ...]
    axis: int = 1
    use_bias: bool = True
    dtype: str = "float32"
    init_scale: float = 1.0

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(..., *contracted axes) -> (..., *features), of type `dtype`."""
        contracted = x.shape[x.ndim - self.axis :]
        normal = nn.initializers.normal(math.sqrt(self.init_scale / math.prod(contracted)))
        init = nn.with_logical_partitioning(normal, self.names)
        kernel: Any = self.param("kernel", init, (*contracted, *self.features), jnp.float32)
        y = contract(x, kernel, axis=self.axis, dtype=self.dtype)
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.names[self.axis :])
            bias: Any = self.param("bias", zeros, self.features, jnp.float32)
            y = y + bias if y.dtype == bias.dtype else low_bias(y, bias)
        return y


def contract(
    x: jax.Array,
    kernel: jax.Array | Quantized,
    *,
    dtype: str,
    out_dtype: jax.typing.DTypeLike | None = None,
    axis: int = 1,
    transposed: bool = False,
) -> jax.Array:
    """The product of x and the kernel, summed over the last `axis` axes of x and the first of the kernel, or
    the last of a `transposed` kernel.

    Both are rounded to `dtype`, each device accumulates products in float32, and its part of the sum is
    rounded to `out_dtype` (None: `dtype`). The same holds for the two products of the backward pass, except
    that the kernel's gradient has the kernel's own type. (..., *contracted) . (*contracted, *features) ->
    (..., *features).
    """
    if isinstance(kernel, Quantized):
        return contract_quantized(x, kernel, dtype, out_dtype or dtype, axis, transposed)
    types = jnp.dtype(dtype), jnp.dtype(out_dtype or dtype)
    if {kernel.dtype, *types} != {jnp.dtype("float32")}:
        return low_contract(x, kernel, *types, axis, transposed)
    # In float32 autodiff may differentiate the product in any mode.
    over = last_axes(x, axis), last_axes(kernel, axis) if transposed else range(axis)
    return dot(x.astype(dtype), kernel, *over, types[1])
