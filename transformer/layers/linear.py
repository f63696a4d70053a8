"""Linear maps over any number of axes, with float32 accumulation."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental.layout import Layout, with_layout_constraint

from transformer.devices import is_single_cpu
from transformer.layers.quantized import Quantized, product_by_tiles


class Linear(nn.Module):
    """y = x . kernel + bias, contracting the last `axis` axes of x with the first of the kernel.

    The kernel's shape is (*contracted axes, *features), and `names` are the logical names of its axes; the
    bias has the trailing ones. Both are stored in float32 and used in `dtype`. The kernel is initialised from
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
            # In float32, in which XLA then also sums the bias's gradient.
            y = (y.astype(jnp.float32) + bias).astype(y.dtype)
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

    Of a `Quantized` kernel with one scale over the contracted axes, the product is (x . values) scale; the
    values of int8 and float8 are exact in bfloat16.
    """
    if isinstance(kernel, Quantized):
        features = kernel.shape[:-axis] if transposed else kernel.shape[axis:]
        if is_single_cpu():
            rows = x.astype(dtype).reshape(-1, math.prod(x.shape[x.ndim - axis :]))
            matrix = kernel.values.reshape(*((-1, rows.shape[1]) if transposed else (rows.shape[1], -1)))
            y = product_by_tiles(rows, matrix, transposed).reshape(*x.shape[: x.ndim - axis], *features)
        else:
            options: Any = {"out_dtype": jnp.float32, "axis": axis, "transposed": transposed}
            y = contract(x, kernel.values, dtype=dtype, **options)
        return (y * kernel.scale.reshape(features)).astype(out_dtype or dtype)
    types = jnp.dtype(dtype), jnp.dtype(out_dtype or dtype)
    if {kernel.dtype, *types} == {
        jnp.dtype("float32")
    }:  # whose products autodiff may differentiate in any mode
        over = _axes(x, -axis), _axes(kernel, -axis if transposed else axis)
        return dot(x.astype(dtype), kernel, *over, types[1])
    return _contract(x, kernel, *types, axis, transposed)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _contract(x, kernel, dtype, out_dtype, axis, transposed):
    return _contract_forward(x, kernel, dtype, out_dtype, axis, transposed)[0]


def _contract_forward(x, kernel, dtype, out_dtype, axis, transposed):
    # Autodiff would compute the kernel's gradient in bfloat16, the type of the forward operands.
    low_x, low_kernel = x.astype(dtype), kernel.astype(dtype)
    y = dot(low_x, low_kernel, _axes(x, -axis), _axes(kernel, -axis if transposed else axis), out_dtype)
    return y, (low_x, low_kernel, jnp.zeros(0, x.dtype), jnp.zeros(0, kernel.dtype))


def _contract_backward(dtype, out_dtype, axis, transposed, residuals, dy):
    x, kernel, like_x, like_kernel = residuals
    dy, features, rows = dy.astype(dtype), kernel.ndim - axis, range(x.ndim - axis)
    over = _axes(dy, -features), _axes(kernel, features if transposed else -features)
    factors = (dy, x) if transposed else (x, dy)
    return dot(dy, kernel, *over, like_x.dtype), dot(*factors, rows, rows, like_kernel.dtype)


_contract.defvjp(_contract_forward, _contract_backward)


def _axes(x: jax.Array, n: int) -> range:
    """The first n axes, or the last -n."""
    return range(n) if n > 0 else range(x.ndim + n, x.ndim)


def dot(a: jax.Array, b: jax.Array, over_a: range, over_b: range, dtype: jnp.dtype) -> jax.Array:
    """The product of a and b, of type `dtype` and summed in float32, over axes that are the first or the last
    ones of each."""
    if not is_single_cpu():
        # All axes stay: one that is divided over devices is gathered before it is flattened with others. Sums
        # over devices are of results in `dtype`, or the network would carry float32.
        return _dot_general(a, b, over_a, over_b, dtype)
    # With more than two axes, XLA on CPU would first copy the operands into another layout.
    free = [x.shape[i] for x, over in ((a, over_a), (b, over_b)) for i in range(x.ndim) if i not in over]
    (a, i), (b, j) = _matrix(a, over_a), _matrix(b, over_b)
    y = _dot_of_rows(a.T, b) if i == j == 0 and _needs_rows(a) else _dot_general(a, b, (i,), (j,))
    return y.reshape(free).astype(dtype)


def _dot_general(a, b, over_a: Sequence[int], over_b: Sequence[int], dtype=jnp.float32) -> jax.Array:
    return jax.lax.dot_general(a, b, ((over_a, over_b), ((), ())), preferred_element_type=dtype)


def _matrix(x: jax.Array, over: range) -> tuple[jax.Array, int]:
    """x as a matrix, and which of its axes holds `over`."""
    sizes = math.prod(x.shape[i] for i in over), math.prod(x.shape[i] for i in range(x.ndim) if i not in over)
    return (x.reshape(sizes[::-1]), 1) if over.start else (x.reshape(sizes), 0)


def by_rows(x: jax.Array) -> jax.Array:
    """x, row-major in memory where XLA has fast products only of such arrays: in bfloat16 on one CPU, where
    they take half the time of float32."""
    return _by_rows(x) if _needs_rows(x) else x


def _needs_rows(x: jax.Array) -> bool:
    return x.dtype == jnp.bfloat16 and is_single_cpu()


@jax.jit
def _by_rows(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


@jax.jit
def _dot_of_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    return _by_rows(_dot_general(_by_rows(a), _by_rows(b), (1,), (0,)))
