"""Linear maps over any number of axes, with float32 accumulation."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.experimental.layout import Layout, with_layout_constraint

from transformer.layers.devices import is_single_cpu


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
        init = nn.initializers.normal(math.sqrt(self.init_scale / math.prod(contracted)))
        kernel: Any = self.param(
            "kernel",
            nn.with_logical_partitioning(init, self.names),
            (*contracted, *self.features),
            jnp.float32,
        )
        y = contract(x, kernel, axis=self.axis, dtype=self.dtype)
        if self.use_bias:
            zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.names[self.axis :])
            bias: Any = self.param("bias", zeros, self.features, jnp.float32)
            # In float32, in which XLA then also sums the bias's gradient.
            y = (y.astype(jnp.float32) + bias).astype(y.dtype)
        return y


def contract(
    x: jax.Array,
    kernel: jax.Array,
    *,
    dtype: str,
    out_dtype: jax.typing.DTypeLike | None = None,
    axis: int = 1,
    transposed: bool = False,
) -> jax.Array:
    """The product of x and the kernel, summed over the last `axis` axes of x and the first of the kernel, or
    the last of a `transposed` kernel.

    Both are rounded to `dtype`, products are accumulated in float32, and the result is rounded to `out_dtype`
    (None: `dtype`). The same holds for the two products of the backward pass, except that the kernel's
    gradient has the kernel's own type. (..., *contracted) . (*contracted, *features) -> (..., *features).
    """
    return _contract(x, kernel, jnp.dtype(dtype), jnp.dtype(out_dtype or dtype), axis, transposed)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4, 5))
def _contract(
    x: jax.Array, kernel: jax.Array, dtype: jnp.dtype, out_dtype: jnp.dtype, axis: int, transposed: bool
) -> jax.Array:
    return _contract_forward(x, kernel, dtype, out_dtype, axis, transposed)[0]


def _contract_forward(x, kernel, dtype, out_dtype, axis, transposed):
    # Autodiff would compute the kernel's gradient in bfloat16, the type of the forward operands. All three
    # products are of matrices: with more than two axes, XLA on CPU first copies the operands of the kernel's
    # gradient into another layout.
    low_x, low_kernel = x.astype(dtype), kernel.astype(dtype)
    features = kernel.shape[:-axis] if transposed else kernel.shape[axis:]
    rows, matrix = _matrices(low_x, low_kernel, axis, transposed)
    y = _dot(rows, matrix, (1, 1 if transposed else 0))
    y = y.reshape(*x.shape[: x.ndim - axis], *features).astype(out_dtype)
    empty = jnp.zeros(0, x.dtype), jnp.zeros(0, kernel.dtype)
    return y, (low_x, low_kernel, *empty)


def _contract_backward(dtype, out_dtype, axis, transposed, residuals, dy):
    low_x, low_kernel, like_x, like_kernel = residuals
    rows, matrix = _matrices(low_x, low_kernel, axis, transposed)
    dy = dy.astype(dtype).reshape(len(rows), -1)
    dx = _dot(dy, matrix, (1, 0 if transposed else 1)).reshape(low_x.shape)
    dkernel = _dot_over_rows(dy, rows) if transposed else _dot_over_rows(rows, dy)
    return dx.astype(like_x.dtype), dkernel.reshape(low_kernel.shape).astype(like_kernel.dtype)


_contract.defvjp(_contract_forward, _contract_backward)


def _matrices(x: jax.Array, kernel: jax.Array, axis: int, transposed: bool) -> tuple[jax.Array, jax.Array]:
    width = math.prod(x.shape[x.ndim - axis :])
    return x.reshape(-1, width), kernel.reshape((-1, width) if transposed else (width, -1))


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int]) -> jax.Array:
    left, right = contracted
    return jax.lax.dot_general(a, b, (((left,), (right,)), ((), ())), preferred_element_type=jnp.float32)


def _dot_over_rows(x: jax.Array, dy: jax.Array) -> jax.Array:
    """x^T dy."""
    if _needs_rows(x):
        return _dot_of_rows(x.T, dy)
    return _dot(x, dy, (0, 0))


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
    return _by_rows(_dot(_by_rows(a), _by_rows(b), (1, 0)))
