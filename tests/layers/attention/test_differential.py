"""Differential attention, against its equations in float64, head by head."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.positions.rope import Rope
from transformer.layers.mixers import DifferentialAttention
from transformer.models.decoder import DecoderConfig

SIZES = {"num_heads": 4, "head_dim": 8, "num_kv_heads": 2}


def make(rng, layer, **changes):
    mixer = DifferentialAttention(position=Rope(parent=None), **SIZES | changes)
    x_btd = np.float32(rng.normal(size=(2, 9, 5)))
    inputs = {"mask": Mask(causal=True, layer=layer), "positions_bt": jnp.arange(9)[None].repeat(2, axis=0)}
    return mixer, random_params(rng, mixer, x_btd, **inputs), x_btd, inputs


def rotated(x_tk):
    half = x_tk.shape[1] // 2
    angle_tk = np.arange(len(x_tk))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    a, b = x_tk[:, :half], x_tk[:, half:]
    return np.concatenate(
        [a * np.cos(angle_tk) - b * np.sin(angle_tk), a * np.sin(angle_tk) + b * np.cos(angle_tk)], 1
    )


def rms(x_tk, scale_k):
    return x_tk / np.sqrt(np.mean(x_tk**2, axis=1, keepdims=True) + 1e-6) * scale_k


def expected(params, x_btd, layer, qk_norm, heads=4, kv_heads=2, width=8):
    p, x_btd = jax.tree.map(np.float64, params), np.float64(x_btd)
    start = 0.8 - 0.6 * np.exp(-0.3 * layer)
    vectors = [p[f"balance_{name}"] for name in ("query_a", "key_a", "query_b", "key_b")]
    share = np.exp(vectors[0] @ vectors[1]) - np.exp(vectors[2] @ vectors[3]) + start
    y_btd = np.zeros_like(x_btd)
    for b, x_td in enumerate(x_btd):
        for h in range(heads):
            g, weights = h * kv_heads // heads, []
            for half in (slice(0, width // 2), slice(width // 2, width)):
                q, k = (
                    x_td @ p[n]["kernel"][:, i, half] + p[n]["bias"][i, half]
                    for n, i in (("query", h), ("key", g))
                )
                if qk_norm:
                    q, k = rms(q, p["query_norm"]["scale"]), rms(k, p["key_norm"]["scale"])
                scores = rotated(q) @ rotated(k).T / np.sqrt(width // 2)
                weights.append(special.softmax(np.where(np.tri(len(x_td)), scores, -np.inf), axis=1))
            value = x_td @ p["value"]["kernel"][:, g] + p["value"]["bias"][g]
            out = rms((weights[0] - share * weights[1]) @ value, p["output_norm"]["scale"])
            y_btd[b] += (1 - start) * out @ p["output"]["kernel"][h]
    return y_btd + p["output"]["bias"]


@pytest.mark.parametrize(("layer", "qk_norm"), [(0, False), (3, True)])
def test_outputs_are_those_of_the_equations(rng, layer, qk_norm):
    mixer, params, x_btd, inputs = make(rng, layer, qk_norm=qk_norm)
    y_btd, _ = jax.jit(lambda params: mixer.apply({"params": params}, x_btd, **inputs))(params)
    np.testing.assert_allclose(y_btd, expected(params, x_btd, layer, qk_norm), atol=1e-4)


def test_every_parameter_has_a_finite_gradient(rng):
    mixer, params, x_btd, inputs = make(rng, 1)
    gradient = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(mixer.apply({"params": p}, x_btd, **inputs)[0]))))
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradient(params)):
        assert np.isfinite(leaf).all() and np.abs(leaf).max() > 1e-7, path


def test_a_shifted_cache_is_that_of_later_tokens(rng):
    mixer, params, x_btd, inputs = make(rng, 1)

    def keys(mixer, by):
        cache = mixer.empty_cache(2, 9)
        key, value = mixer.keys_values(x_btd, inputs["positions_bt"] + by)
        return type(cache).of(key, value)

    first, later = (mixer.apply({"params": params}, by, method=keys) for by in (0, 5))
    shifted = mixer.apply({"params": params}, first, 5, method="shift")
    np.testing.assert_allclose(shifted.key_bgsk, later.key_bgsk, atol=1e-5)


def test_products_are_those_of_the_halves():
    mixer = DifferentialAttention(position=Rope(parent=None), **SIZES)
    assert mixer.products_per_pair == 4 * (2 * 4 + 2 * 8) and mixer.heads_that_draw == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 6}, r"head_dim: 3 is odd; rope rotates pairs"),
        ({"head_dim": 5, "position": "none"}, r"head_dim: 5 is odd; mixer 'differential' halves it"),
        ({"position": "shaw"}, r"position: 'shaw' with mixer 'differential'; only 'multi_head'"),
    ],
)
def test_what_halves_cannot_have_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        DecoderConfig(mixer="differential", **changes)
