"""Products of two arrays over their first or last axes, with the layouts that are fast on a CPU."""

import math

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from transformer.devices import is_single_cpu


def dot(a: jax.Array, b: jax.Array, over_a: range, over_b: range, dtype: jax.typing.DTypeLike) -> jax.Array:
    """The product of a and b, of type `dtype` and summed in float32, over axes that are the first or the last
    ones of each."""
    if is_single_cpu():
        return _dot_of_matrices(a, b, over_a, over_b).astype(dtype)
    # All axes stay: one that is divided over devices is gathered before it is flattened with others. Sums
    # over devices are of results in `dtype`, or the network would carry float32.
    return jax.lax.dot_general(a, b, ((over_a, over_b), ((), ())), preferred_element_type=dtype)


def _dot_of_matrices(a: jax.Array, b: jax.Array, over_a: range, over_b: range) -> jax.Array:
    """`dot` in float32. With more than two axes, XLA on CPU would first copy the operands into another
    layout."""
    free = [x.shape[i] for x, over in ((a, over_a), (b, over_b)) for i in range(x.ndim) if i not in over]
    (a, i), (b, j) = _matrix(a, over_a), _matrix(b, over_b)
    if i == j == 0 and a.dtype == jnp.bfloat16:
        return _dot_of_rows(a.T, b).reshape(free)
    y = jax.lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=jnp.float32)
    return y.reshape(free)


def _matrix(x: jax.Array, over: range) -> tuple[jax.Array, int]:
    """x as a matrix, and which of its axes holds `over`."""
    sizes = math.prod(x.shape[i] for i in over), math.prod(x.shape[i] for i in range(x.ndim) if i not in over)
    return (x.reshape(sizes[::-1]), 1) if over.start else (x.reshape(sizes), 0)


def last_axes(x: jax.Array, n: int) -> range:
    """The last n axes."""
    return range(x.ndim - n, x.ndim)


def by_rows(x: jax.Array) -> jax.Array:
    """x, row-major in memory where XLA has fast products only of such arrays: in bfloat16 on one CPU, where
    they take half the time of float32."""
    return _by_rows(x) if x.dtype == jnp.bfloat16 and is_single_cpu() else x


@jax.jit
def _by_rows(x: jax.Array) -> jax.Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


@jax.jit
def _dot_of_rows(a: jax.Array, b: jax.Array) -> jax.Array:
    over = ((1,), (0,)), ((), ())
    return _by_rows(jax.lax.dot_general(_by_rows(a), _by_rows(b), over, preferred_element_type=jnp.float32))
