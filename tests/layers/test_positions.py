import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.positions import POSITIONS, Learned, Rope, Sinusoidal, sinusoid


@pytest.mark.parametrize("width", [8, 9])
def test_sinusoid_against_its_formula(width):
    positions = np.array([[0, 1, 5, 100, 4095]])
    table = np.asarray(sinusoid(jnp.asarray(positions), width))
    for column in range(width):
        wavelength = 10000.0 ** (2 * (column // 2) / width)
        f = np.sin if column % 2 == 0 else np.cos
        np.testing.assert_allclose(table[0, :, column], f(positions[0] / wavelength), atol=5e-4)


def test_sinusoidal_adds_the_table(rng):
    x = rng.normal(size=(2, 3, 8)).astype(np.float32)
    positions = np.array([[0, 1, 2], [4, 0, 1]])
    y = Sinusoidal().embed(jnp.asarray(x), jnp.asarray(positions))
    np.testing.assert_allclose(y, x + np.asarray(sinusoid(jnp.asarray(positions), 8)), atol=1e-6)


def test_learned_adds_its_own_rows(rng):
    module, positions = Learned(max_length=5), jnp.array([[0, 4, 2]])
    x = jnp.asarray(rng.normal(size=(1, 3, 4)), jnp.float32)
    table = rng.normal(size=(5, 4)).astype(np.float32)
    y = module.apply({"params": {"table": table}}, x, positions, method="embed")
    np.testing.assert_allclose(y - x, table[[0, 4, 2]][None], atol=1e-6)


def test_rope_scores_depend_on_the_distance_alone(rng):
    q, k = rng.normal(size=(2, 1, 1, 1, 16)).astype(np.float32)
    rotate = Rope().rotate

    def score(m: int, n: int) -> float:
        return float(jnp.sum(rotate(q, jnp.array([[m]])) * rotate(k, jnp.array([[n]]))))

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-3)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3


def test_rope_against_complex_numbers(rng):
    x = rng.normal(size=(2, 5, 3, 8))
    positions = rng.integers(0, 50, (2, 5))
    frequency = 10000.0 ** (-np.arange(4) / 4)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(1j * positions[:, :, None, None] * frequency)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    y = Rope().rotate(jnp.asarray(x, jnp.float32), jnp.asarray(positions))
    np.testing.assert_allclose(y, expected, atol=2e-5)


@pytest.mark.parametrize("name", POSITIONS)
def test_every_encoding_keeps_shape_and_type(name):
    module = POSITIONS[name](max_length=16)
    x, positions = jnp.ones((2, 4, 8), jnp.bfloat16), jnp.broadcast_to(jnp.arange(4), (2, 4))
    variables = module.init(jax.random.key(0), x, positions, method="embed")
    embedded = module.apply(variables, x, positions, method="embed")
    rotated = module.apply(variables, x[:, :, None], positions, method="rotate")
    assert embedded.shape == x.shape and embedded.dtype == x.dtype
    assert rotated.shape == (2, 4, 1, 8) and rotated.dtype == x.dtype
    assert module.apply(variables, positions, positions, 2, method="bias") is None
