"""Dropout of attention weights, two of which share a random word."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.attention.kernels.scores import drop

SHAPE = (4, 4, 64)


@pytest.fixture
def key(rng):
    return jax.random.key(int(rng.integers(1 << 30)))


@pytest.mark.parametrize("s", [64, 63, 1])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_each_weight_is_dropped_for_itself(key, rate, s):
    """Shares at even and at odd places, and of neighbours that are dropped together, within five standard
    deviations."""
    ones = jnp.ones((*SHAPE, s))
    draws = 200
    kept = np.asarray(jax.vmap(lambda key: drop(ones, rate, key))(jax.random.split(key, draws)))
    assert {*np.unique(kept)} <= {np.float32(0), kept.max()}
    assert kept.max() == pytest.approx(1 / (1 - rate), rel=2**-13)
    dropped = kept == 0
    for places in (dropped[..., ::2], dropped[..., 1::2]):
        if places.size:
            assert abs(places.mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / places.size)
    both = dropped[..., 1:] & dropped[..., :-1]
    if both.size:
        assert abs(both.mean() - rate**2) < 5 * np.sqrt(2 * rate**2 / both.size)


def test_rates_next_to_none_and_to_all_are_finite(key):
    ones = jnp.ones((8, 64))
    assert (drop(ones, 2.0**-18, key) == 1).all()
    almost = drop(ones, 1 - 2.0**-18, key)
    assert jnp.isfinite(almost).all() and float(almost.max()) <= 2**16
    assert drop(ones, 0.5, None) is ones and drop(ones, 0.0, key) is ones


def test_a_mesh_drops_the_same_weights(key):
    weights = jax.random.normal(key, (8, 4, 16, 32))
    mesh = jax.make_mesh((4, 2), ("a", "b"))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", "b"))
    alone = jax.jit(lambda x: drop(x, 0.3, key))(weights)
    divided = jax.jit(lambda x: drop(x, 0.3, key), out_shardings=place)(jax.device_put(weights, place))
    np.testing.assert_array_equal(alone, divided)
