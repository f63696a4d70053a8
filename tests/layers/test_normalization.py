import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.normalization import NORMS, LayerNorm, NoNorm, OffsetRMSNorm, RMSNorm


def test_layer_norm_against_float64(rng):
    x, scale, bias = rng.normal(2.0, 5.0, (3, 4, 16)), rng.normal(size=16), rng.normal(size=16)
    centred = x - x.mean(-1, keepdims=True)
    expected = scale * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) + bias
    params = {"scale": jnp.asarray(scale, jnp.float32), "bias": jnp.asarray(bias, jnp.float32)}
    y = LayerNorm().apply({"params": params}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y, expected, atol=2e-5)


def test_rms_norm_against_float64(rng):
    x, scale = rng.normal(2.0, 5.0, (3, 4, 16)), rng.normal(size=16)
    expected = scale * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    y = RMSNorm().apply({"params": {"scale": jnp.asarray(scale, jnp.float32)}}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y, expected, atol=2e-5)


def test_rms_norm_by_the_distance_of_its_scale_from_one(rng):
    x, offset = rng.normal(2.0, 5.0, (3, 4, 16)), rng.normal(0.0, 0.5, 16).astype(np.float32)
    params = {"offset": jnp.asarray(offset)}
    y = OffsetRMSNorm().apply({"params": params}, jnp.asarray(x, jnp.float32))
    expected = RMSNorm().apply({"params": {"scale": params["offset"] + 1}}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(y, expected, rtol=1e-6)


def test_no_norm_is_the_identity(rng):
    x = jnp.asarray(rng.normal(2.0, 5.0, (3, 4, 16)), jnp.bfloat16)
    y, variables = NoNorm(epsilon=1e-6, use_bias=True).init_with_output(jax.random.key(0), x)
    np.testing.assert_array_equal(y, x)
    assert y.dtype == jnp.bfloat16 and not variables


@pytest.mark.parametrize("name", NORMS)
def test_statistics_are_float32_for_half_precision_input(name):
    # In bfloat16 the squares of 1024 equal numbers near 100 would not add up to their mean.
    x = jnp.full((1, 1, 1024), 100.0, jnp.bfloat16).at[0, 0, 0].set(101.0)
    module = NORMS[name]()
    half = module.apply(module.init(jax.random.key(0), x), x)
    full = module.apply(module.init(jax.random.key(0), x), x.astype(jnp.float32))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), full, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("name", NORMS)
def test_equal_entries_give_no_nan(name):
    module, x = NORMS[name](), jnp.zeros((1, 2, 8))
    variables = module.init(jax.random.key(0), x)
    y, gradient = jax.value_and_grad(lambda x: module.apply(variables, x).sum())(x)
    assert np.isfinite(y) and np.isfinite(gradient).all()


@pytest.mark.parametrize("name", NORMS)
def test_the_backward_pass_stores_nothing_of_the_input_s_size_in_float32(name):
    module, x = NORMS[name](), jnp.ones((3, 5, 8), jnp.bfloat16)
    variables = module.init(jax.random.key(0), x)
    _, backward = jax.vjp(module.apply, variables, x)
    stored = [residual.dtype for residual in jax.tree.leaves(backward) if residual.size >= x.size]
    assert set(stored) <= {x.dtype}
