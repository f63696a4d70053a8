"""Linear maps in less than float32, with a backward pass of their own."""

import functools
import math

import jax
import jax.numpy as jnp

from transformer.devices import platform
from transformer.layers.dot import dot, last_axes


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def low_contract(x, kernel, dtype, out_dtype, axis, transposed):
    """`contract` of arrays of any types, rounded to `dtype`."""
    return _low_contract_forward(x, kernel, dtype, out_dtype, axis, transposed)[0]


def _low_contract_forward(x, kernel, dtype, out_dtype, axis, transposed):
    # Autodiff would compute the kernel's gradient in bfloat16, the type of the forward operands.
    low_x, low_kernel = x.astype(dtype), kernel.astype(dtype)
    over = last_axes(x, axis), last_axes(kernel, axis) if transposed else range(axis)
    one_row = x.ndim > axis and math.prod(x.shape[: x.ndim - axis]) == 1 and platform() == "nvidia"
    y = (_dot_of_one_row if one_row else dot)(low_x, low_kernel, *over, out_dtype)
    return y, (low_x, low_kernel, jnp.zeros(0, x.dtype), jnp.zeros(0, kernel.dtype))


def _dot_of_one_row(x, kernel, over_x, over_kernel, dtype):
    """`dot` of one row, filled up to eight. Of one, XLA on NVIDIA's GPUs would write its product with each
    weight, as large as all weights, and sum these in a second kernel."""
    axis = over_x.start - 1
    filled = jnp.pad(x, [(0, 7 if i == axis else 0) for i in range(x.ndim)])
    return jax.lax.slice_in_dim(dot(filled, kernel, over_x, over_kernel, dtype), 0, 1, axis=axis)


def _low_contract_backward(dtype, out_dtype, axis, transposed, residuals, dy):
    x, kernel, like_x, like_kernel = residuals
    dy, features, rows = dy.astype(dtype), kernel.ndim - axis, range(x.ndim - axis)
    over = last_axes(dy, features), range(features) if transposed else last_axes(kernel, features)
    factors = (dy, x) if transposed else (x, dy)
    return dot(dy, kernel, *over, like_x.dtype), dot(*factors, rows, rows, like_kernel.dtype)


low_contract.defvjp(_low_contract_forward, _low_contract_backward)


@jax.custom_vjp
def low_bias(y, bias):
    """y plus the bias, which is rounded to the type of y: a product's library adds it as it stores y."""
    return y + bias.astype(y.dtype)


def _low_bias_forward(y, bias):
    # Autodiff would sum the bias's gradient in the type of y.
    return low_bias(y, bias), jnp.zeros((0,) * bias.ndim, bias.dtype)


def _low_bias_backward(like_bias, dy):
    rows = tuple(range(dy.ndim - like_bias.ndim))
    return dy, jnp.sum(dy, axis=rows, dtype=like_bias.dtype)


low_bias.defvjp(_low_bias_forward, _low_bias_backward)
