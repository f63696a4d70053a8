"""The products of linear maps, in half precision too, against float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from transformer.layers.linear import contract


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "rows,contracted,features", [((3, 5), (7,), (4,)), ((2, 8), (4, 6), (5, 3)), ((1,), (1,), (1,))]
)
def test_products_are_those_of_rounded_numbers_summed_in_float32(rng, dtype, rows, contracted, features):
    rounded = lambda *shape: jnp.asarray(jnp.asarray(rng.normal(size=shape), dtype), jnp.float32)  # noqa: E731
    x, kernel, dy = rounded(*rows, *contracted), rounded(*contracted, *features), rounded(*rows, *features)
    axis = len(contracted)
    product = functools.partial(contract, dtype=dtype, out_dtype="float32", axis=axis)
    y, back = jax.vjp(product, x, kernel)
    flat = lambda a, n: np.asarray(a, np.float64).reshape(-1, n)  # noqa: E731
    width, out = int(np.prod(contracted)), int(np.prod(features))
    x64, dy64, kernel64 = flat(x, width), flat(dy, out), flat(kernel, out)
    for ours, exact in zip((y, *back(dy)), (x64 @ kernel64, dy64 @ kernel64.T, x64.T @ dy64), strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(np.asarray(ours).reshape(exact.shape), exact, rtol=1e-5, atol=1e-5)


def test_nothing_is_gathered_where_it_is_cut(rng):
    """In half precision, whose kernels' gradients one CPU lays out by hand."""
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))  # noqa: E731
    x = place(jnp.asarray(rng.normal(size=(8, 16, 32)), jnp.bfloat16), "data")
    kernel = place(jnp.asarray(rng.normal(size=(32, 64)), jnp.float32), None, "tensor")

    def loss(kernel, x):
        return jnp.sum(jnp.sin(contract(x, kernel, dtype="bfloat16", out_dtype="float32")))

    with jax.set_mesh(mesh):
        program = jax.jit(jax.grad(loss)).lower(kernel, x).compile().as_text()
    assert "all-reduce" in program and "all-gather" not in program
