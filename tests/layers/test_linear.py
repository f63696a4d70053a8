"""The products of linear maps, in half precision too, against float64 NumPy."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.parameters import random_params
from transformer.layers import dot, low_contract
from transformer.layers.linear import Linear, contract


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "rows,contracted,features",
    [
        ((3, 5), (7,), (4,)),
        ((2, 8), (4, 6), (5, 3)),
        ((1,), (1,), (1,)),
        ((), (6,), (2, 3)),
        ((0, 3), (4,), (2,)),
    ],
)
def test_products_are_those_of_rounded_numbers_summed_in_float32(
    rng, dtype, transposed, rows, contracted, features
):
    rounded = lambda *shape: jnp.asarray(jnp.asarray(rng.normal(size=shape), dtype), jnp.float32)  # noqa: E731
    x, kernel, dy = rounded(*rows, *contracted), rounded(*contracted, *features), rounded(*rows, *features)
    axis = len(contracted)

    def product(x, kernel):
        if transposed:
            kernel = jnp.moveaxis(kernel, range(axis), range(-axis, 0))
        return contract(x, kernel, dtype=dtype, out_dtype="float32", axis=axis, transposed=transposed)

    y, back = jax.vjp(product, x, kernel)
    flat = lambda a, n: np.asarray(a, np.float64).reshape(-1, n)  # noqa: E731
    width, out = int(np.prod(contracted)), int(np.prod(features))
    x64, dy64, kernel64 = flat(x, width), flat(dy, out), flat(kernel, out)
    for ours, exact in zip((y, *back(dy)), (x64 @ kernel64, dy64 @ kernel64.T, x64.T @ dy64), strict=True):
        assert ours.dtype == jnp.float32
        np.testing.assert_allclose(np.asarray(ours).reshape(exact.shape), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("axis,features", [(1, (4,)), (1, (3, 5)), (2, (6,))])
def test_a_layer_is_a_product_and_a_bias(rng, axis, features, use_bias):
    module = Linear(features, names=(None,) * (axis + len(features)), axis=axis, use_bias=use_bias)
    x = rng.normal(size=(2, 3, 7)).astype(np.float32)
    params = random_params(rng, module, x)
    assert params.keys() == ({"kernel", "bias"} if use_bias else {"kernel"})
    exact = jax.tree.map(np.float64, params)
    expected = np.tensordot(x, exact["kernel"], axis) + exact.get("bias", 0)
    np.testing.assert_allclose(module.apply({"params": params}, x), expected, atol=1e-5)


def test_gradients_of_biases_are_sums_in_float32(rng):
    """bfloat16 would round sums of thousands of rows to one of 256 steps."""
    module = Linear((3,), names=(None, None), dtype="bfloat16")
    x = jnp.asarray(rng.normal(size=(2, 2000, 4)), jnp.bfloat16)
    dy = jnp.asarray(rng.uniform(size=(2, 2000, 3)), jnp.bfloat16)
    params = random_params(rng, module, x)
    grads = jax.vjp(lambda params: module.apply({"params": params}, x), params)[1](dy)[0]
    np.testing.assert_allclose(grads["bias"], np.sum(np.asarray(dy, np.float64), (0, 1)), rtol=1e-5)


def test_initial_kernels_have_their_variance_divided_by_all_inputs_and_biases_are_zero():
    """So the variance of y is `init_scale` times that of x, whatever its width and its number of axes."""
    module = Linear((64,), names=(None, None, None), axis=2, init_scale=0.25)
    params = nn.meta.unbox(module.init(jax.random.key(0), jnp.zeros((1, 8, 32))))["params"]
    assert float(jnp.std(params["kernel"])) == pytest.approx(0.5 / 16, rel=0.05)
    np.testing.assert_array_equal(params["bias"], 0)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 4, 8), (1, 4, 8), (4, 8), (2, 4, 8)])
def test_on_nvidia_one_row_in_half_precision_is_multiplied_as_eight(rng, monkeypatch, shape, transposed):
    monkeypatch.setattr(dot, "is_single_cpu", lambda: False)
    x = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    kernel = jnp.asarray(rng.normal(size=(6, 4, 8) if transposed else (4, 8, 6)), jnp.float32)

    def product(x, kernel):
        return contract(x, kernel, dtype="bfloat16", axis=2, transposed=transposed)

    expected, back = jax.vjp(product, x, kernel)
    monkeypatch.setattr(low_contract, "platform", lambda: "nvidia")
    text = str(jax.make_jaxpr(product)(x, kernel))
    y, back_of_eight = jax.vjp(product, x, kernel)
    assert ("pad" in text) == (shape[:-2] in ((1, 1), (1,))) and y.shape == expected.shape
    np.testing.assert_array_equal(y, expected)
    jax.tree.map(np.testing.assert_array_equal, back_of_eight(expected), back(expected))


@pytest.mark.parametrize("x_axes,kernel_axes", [(("data",), (None, "tensor")), (("data", "tensor"), ())])
def test_nothing_is_gathered_where_it_is_cut(rng, x_axes, kernel_axes):
    """In half precision, whose kernels' gradients one CPU lays out by hand. Nor is work repeated: each of
    eight devices does an eighth of the two products."""
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    place = lambda x, axes: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))  # noqa: E731
    x = place(jnp.asarray(rng.normal(size=(8, 16, 32)), jnp.bfloat16), x_axes)
    kernel = place(jnp.asarray(rng.normal(size=(32, 64)), jnp.float32), kernel_axes)

    def loss(kernel, x):
        return jnp.sum(jnp.sin(contract(x, kernel, dtype="bfloat16", out_dtype="float32")))

    with jax.set_mesh(mesh):
        program = jax.jit(jax.grad(loss)).lower(kernel, x).compile()
    assert "all-reduce" in program.as_text() and "all-gather" not in program.as_text()
    products = 2 * (2 * 8 * 16 * 32 * 64)
    assert program.cost_analysis()["flops"] < 1.2 * products / 8


def test_sums_over_devices_are_of_results_in_their_own_type(rng):
    """The network carries bfloat16: each device rounds its part of a sum, in the gradient of x too."""
    mesh = jax.make_mesh((2,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))
    x, kernel = jnp.ones((4, 8), jnp.bfloat16), jnp.ones((8, 6), jnp.float32)

    def types(x, kernel):
        y, back = jax.vjp(lambda x, kernel: contract(x, kernel, dtype="bfloat16"), x, kernel)
        return y, back(y)

    with jax.set_mesh(mesh):
        program = str(jax.make_jaxpr(types)(x, kernel))
    assert re.findall(r"preferred_element_type=(\w+)", program) == ["bfloat16", "bfloat16", "float32"]


def test_gradients_within_a_shard_map_of_ones_own(rng):
    layer, x_bd = Linear((3,), ("embed", "mlp")), jnp.asarray(rng.normal(size=(4, 5)), jnp.float32)
    params = random_params(rng, layer, x_bd)
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])

    def total(params, x_bd):
        return jnp.sum(jnp.sin(layer.apply({"params": params}, x_bd)), keepdims=True)

    specs = {"in_specs": (PartitionSpec(), PartitionSpec("data")), "out_specs": PartitionSpec("data")}
    divided = jax.shard_map(total, mesh=mesh, check_vma=False, **specs)
    found = jax.jit(jax.grad(lambda params: jnp.sum(divided(params, x_bd))))(params)
    expected = jax.jit(jax.grad(lambda params: jnp.sum(total(params, x_bd))))(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, expected)
