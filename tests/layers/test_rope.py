import math

import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.positions import Rope
from transformer.layers.positions.rope import SCALINGS


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


# Beyond the trained length.


def test_rope_without_scaling_is_rope_to_the_bit(rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 3, 8)), jnp.float32)
    positions = jnp.asarray(rng.integers(0, 500, (2, 5)))
    angle = positions[:, :, None, None].astype(jnp.float32) * 10000.0 ** (
        -jnp.arange(4, dtype=jnp.float32) / 4
    )
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    expected = [x[..., :4] * cosine - x[..., 4:] * sine, x[..., :4] * sine + x[..., 4:] * cosine]
    np.testing.assert_array_equal(Rope().rotate(x, positions), jnp.concatenate(expected, -1))


def test_linear_scaling_divides_positions(rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 3, 8)), jnp.float32)
    positions = jnp.asarray(rng.integers(0, 50, (2, 5)))
    scaled = Rope(scaling="linear", scaling_factor=4.0).rotate(x, 4 * positions)
    np.testing.assert_allclose(scaled, Rope().rotate(x, positions), atol=2e-5)
    assert not np.allclose(Rope(scaling="linear", scaling_factor=4.0).rotate(x, positions), scaled, atol=1e-2)


@pytest.mark.parametrize("half", [1, 2, 16])
def test_ntk_scaling_keeps_the_highest_frequency_and_divides_the_lowest(half):
    before, _ = SCALINGS["none"](half, 10000.0, 8.0, 128)
    after, stretch = SCALINGS["ntk"](half, 10000.0, 8.0, 128)
    assert stretch == 1 and before[0] == after[0] == 1
    if half > 1:
        assert float(before[-1] / after[-1]) == pytest.approx(8.0, rel=1e-5)
    assert np.all(np.diff(before / after) > 0)


def test_yarn_divides_only_what_turns_slowly():
    half, base, factor, length = 32, 10000.0, 16.0, 4096
    before, _ = SCALINGS["none"](half, base, factor, length)
    after, stretch = SCALINGS["yarn"](half, base, factor, length)
    turns, ratio = np.asarray(before) * length / (2 * math.pi), np.asarray(before / after)
    np.testing.assert_allclose(ratio[turns >= 32 * base ** (1 / half)], 1, rtol=1e-5)
    np.testing.assert_allclose(ratio[turns <= base ** (-1 / half)], factor, rtol=1e-5)
    assert np.all(np.diff(ratio) >= -1e-4) and len(np.unique(ratio.round(3))) > 10
    assert stretch == pytest.approx(1 + math.log(factor) / 10)


@pytest.mark.parametrize(
    ("width", "base", "factor", "length"), [(64, 1e4, 16.0, 4096), (16, 500.0, 2.0, 64), (8, 1e4, 4.0, 100)]
)
def test_yarn_as_transformers_has_it(width, base, factor, length):
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    llama = pytest.importorskip("transformers.models.llama.configuration_llama")
    scaling = {"rope_type": "yarn", "rope_theta": base, "factor": factor}
    config = llama.LlamaConfig(
        hidden_size=2 * width,
        num_attention_heads=2,
        head_dim=width,
        max_position_embeddings=int(factor * length),
        rope_parameters=scaling | {"original_max_position_embeddings": length},
    )
    expected, stretch = utils.ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")
    frequency, ours = SCALINGS["yarn"](width // 2, base, factor, length)
    np.testing.assert_allclose(frequency, expected.numpy(), rtol=1e-5)
    assert ours == pytest.approx(stretch)


def test_yarn_stretches_the_scores_by_its_temperature(rng):
    x = jnp.asarray(rng.normal(size=(1, 3, 2, 64)), jnp.float32)
    rope = Rope(scaling="yarn", scaling_factor=4.0, max_length=512)
    y = rope.rotate(x, jnp.array([[0, 7, 300]]))
    ratio = jnp.linalg.norm(y, axis=-1) / jnp.linalg.norm(x, axis=-1)
    np.testing.assert_allclose(ratio, 0.1 * math.log(4) + 1, rtol=1e-5)
    # The trained length is the longest one over the factor, unless it is given.
    given = Rope(scaling="yarn", scaling_factor=4.0, max_length=7, original_length=128)
    np.testing.assert_array_equal(given.rotate(x, jnp.array([[0, 7, 300]])), y)
