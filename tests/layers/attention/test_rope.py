import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions import Rope
from transformer.layers.attention.positions.rope import SCALINGS
from transformer.layers.mixers import MultiHeadAttention
from transformer.models.decoder_config import StackConfig


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
    after, score_factor = SCALINGS["ntk"](half, 10000.0, 8.0, 128)
    assert score_factor == 1 and before[0] == after[0] == 1
    if half > 1:
        assert float(before[-1] / after[-1]) == pytest.approx(8.0, rel=1e-5)
    assert np.all(np.diff(before / after) > 0)


def test_yarn_divides_only_what_turns_slowly():
    half, base, factor, length = 32, 10000.0, 16.0, 4096
    before, _ = SCALINGS["none"](half, base, factor, length)
    after, score_factor = SCALINGS["yarn"](half, base, factor, length)
    turns, ratio = np.asarray(before) * length / (2 * math.pi), np.asarray(before / after)
    np.testing.assert_allclose(ratio[turns >= 32 * base ** (1 / half)], 1, rtol=1e-5)
    np.testing.assert_allclose(ratio[turns <= base ** (-1 / half)], factor, rtol=1e-5)
    assert np.all(np.diff(ratio) >= -1e-4) and len(np.unique(ratio.round(3))) > 10
    assert score_factor == pytest.approx((1 + math.log(factor) / 10) ** 2)


@pytest.mark.thorough(but=1)
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
    assert ours == pytest.approx(stretch**2)  # of queries and of keys


@pytest.mark.parametrize("scaling", SCALINGS)
def test_every_scaling_is_a_rotation(rng, scaling):
    """Lengths stay, and turning back by the position leaves the vector as it was."""
    x = jnp.asarray(rng.normal(size=(1, 3, 2, 64)), jnp.float32)
    positions = jnp.asarray(rng.integers(0, 500, (1, 3)))
    rope = Rope(scaling=scaling, scaling_factor=1.0 if scaling == "none" else 4.0, max_length=512)
    y = rope.rotate(x, positions)
    np.testing.assert_allclose(jnp.linalg.norm(y, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_allclose(rope.rotate(y, -positions), x, atol=1e-5)


def test_the_trained_length_is_the_longest_over_the_factor_unless_given(rng):
    x, positions = jnp.asarray(rng.normal(size=(1, 3, 2, 64)), jnp.float32), jnp.array([[0, 7, 300]])
    derived = Rope(scaling="yarn", scaling_factor=4.0, max_length=512)
    given = Rope(scaling="yarn", scaling_factor=4.0, max_length=7, original_length=128)
    np.testing.assert_array_equal(given.rotate(x, positions), derived.rotate(x, positions))
    config = StackConfig(position_scaling="yarn", position_factor=4.0, position_original_length=99)
    assert config.positions().original_length == 99
    with pytest.raises(UserError, match=r"position_original_length: 99 with position 't5', only with 'rope'"):
        StackConfig(position="t5", position_original_length=99)
    assert config.idle().keys() == StackConfig().idle().keys() - {"position_original_length"}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_yarn_in_multi_head_attention_stretches_queries_and_keys(rng, num_kv_heads):
    """Softmax of (s R q) . (s R k) / sqrt(k) with s = 0.1 ln(factor) + 1, in float64."""
    rope = Rope(scaling="yarn", scaling_factor=8.0, max_length=512)
    module = MultiHeadAttention(num_heads=4, head_dim=16, num_kv_heads=num_kv_heads, position=rope)
    x, positions = rng.normal(size=(2, 9, 32)), np.sort(rng.integers(0, 500, (2, 9)))
    inputs = {"mask": Mask(), "positions_bt": jnp.asarray(positions)}
    params = random_params(rng, module, x.astype(np.float32), scale=32**-0.5, **inputs)
    found, _ = module.apply({"params": params}, x.astype(np.float32), **inputs)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    frequency = np.asarray(SCALINGS["yarn"](8, 10000.0, 8.0, 64)[0], np.float64)
    turn = (0.1 * math.log(8) + 1) * np.exp(1j * positions[:, :, None, None] * frequency)

    def heads(name):
        y = np.einsum("btd,dhk->bthk", x, p[name]["kernel"]) + p[name]["bias"]
        return np.repeat(y, 4 // y.shape[2], axis=2)

    q, k = ((y[..., :8] + 1j * y[..., 8:]) * turn for y in (heads("query"), heads("key")))
    scores = np.einsum("bthk,bshk->bhts", q, k.conj()).real / 4
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("bhts,bshk->bthk", weights / weights.sum(-1, keepdims=True), heads("value"))
    expected = np.einsum("bthk,hkd->btd", out, p["output"]["kernel"]) + p["output"]["bias"]
    np.testing.assert_allclose(found, expected, atol=5e-5)


def test_a_fraction_is_rotated_as_a_narrower_head_and_the_rest_stays(rng):
    x = jnp.asarray(rng.normal(size=(2, 5, 3, 16)), jnp.float32)
    positions = jnp.asarray(rng.integers(0, 50, (2, 5)))
    y = Rope(fraction=0.25).rotate(x, positions)
    np.testing.assert_array_equal(y[..., :4], Rope().rotate(x[..., :4], positions))
    np.testing.assert_array_equal(y[..., 4:], x[..., 4:])


@pytest.mark.parametrize("keys,message", [
    ({"position_fraction": 0.3}, r"^position_fraction: 0.3 of 64 dimensions is 19.2; 'rope' rotates pairs"),
    ({"position_fraction": 0.5, "head_dim": 6}, r"^position_fraction: 0.5 of 6 dimensions is 3; "),
    ({"position_fraction": 0.5, "position": "alibi"}, r"^position_fraction: 0.5 with position 'alibi'"),
    ({"position_fraction": 0.0}, r"^position_fraction: 0.0"),
])  # fmt: skip
def test_a_fraction_must_be_of_whole_pairs(keys, message):
    with pytest.raises(UserError, match=message):
        StackConfig(**keys)
    StackConfig(head_dim=40, position_fraction=0.55)  # 22, but for rounding
