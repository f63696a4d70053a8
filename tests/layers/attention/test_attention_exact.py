"""Every kind of attention, in a model and with all of its parameters random, against float64 NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import numpy_decoder
from tests.parameters import random_params
from tests.slopes import assert_slopes
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder import EncoderConfig, TextEncoder

SIZES = {"d_model": 16, "num_layers": 1, "num_heads": 4, "head_dim": 8, "d_ff": 12, "max_length": 32}
VOCAB, T = 19, 11
SEGMENTS = np.array([[1] * 4 + [2] * 5 + [3] * 2, [1] * T])
POSITIONS = np.array([[*range(4), *range(5), *range(2)], range(T)])

LATENT = {"mixer": "latent", "latent_dim": 10}
KINDS = {
    "multi_head": {},
    "grouped": {"num_kv_heads": 2, "use_bias": True},
    "multi_query": {"num_kv_heads": 1},
    "qk_norm": {"qk_norm": True},
    "qk_norm_joint": {"qk_norm": True, "qk_norm_joint": True, "num_kv_heads": 2},
    "qk_norm_grouped": {"qk_norm": True, "num_kv_heads": 2, "position": "t5"},
    "capped_with_sinks": {"soft_cap": 1.5, "sinks": True, "num_kv_heads": 2},
    "latent": LATENT,
    "latent_default": {"mixer": "latent", "use_bias": True, "position_base": 20.0},
    "latent_narrow": {"mixer": "latent", "latent_dim": 3, "sinks": True},  # fewer products over latents
    "latent_capped": LATENT | {"soft_cap": 1.5, "sinks": True, "position": "alibi"},
    "plain": {"mixer": "plain"},
    "plain_alibi": {"mixer": "plain", "position": "alibi", "sinks": True, "soft_cap": 2.0},
    "transformer_xl": {"position": "transformer_xl", "num_kv_heads": 2},
    "shaw": {"position": "shaw", "position_distance": 3, "soft_cap": 2.0},
    "partial_rotary": {"position_fraction": 0.5, "position_base": 20.0},
    "partial_rotary_latent": LATENT | {"position_fraction": 0.5},
    "window": {"pattern": "window", "pattern_size": 3},
    "dilated_latent": LATENT | {"pattern": "window", "pattern_size": 2, "pattern_extra": 3},
}
QUICK = ("capped_with_sinks", "latent", "partial_rotary", "qk_norm")


def kinds(quick=QUICK):
    return [
        pytest.param(changes, id=name, marks=() if name in quick else pytest.mark.thorough)
        for name, changes in KINDS.items()
    ]


def check(rng, f, expected, params, shape):
    """Values of f(params), and the gradient of a random sum of them, against `expected(params)` in
    float64."""
    weights = rng.normal(size=shape)

    @jax.jit
    def value_and_gradient(params):
        value, backward = jax.vjp(f, params)
        return value, backward(jnp.asarray(weights, jnp.float32))[0]

    value, gradient = value_and_gradient(params)
    exact = numpy_decoder.exact(params)
    np.testing.assert_allclose(value, expected(exact), atol=2e-5, rtol=2e-5)
    assert_slopes(rng, lambda p: np.sum(weights * expected(p)), exact, gradient)


@pytest.mark.parametrize("changes", kinds())
def test_in_a_decoder_of_packed_documents(rng, changes):
    config = DecoderConfig(**SIZES | changes)
    model, tokens = config.build(VOCAB), rng.integers(0, VOCAB, (2, T))
    packed = {"segments_bt": SEGMENTS, "positions_bt": POSITIONS}

    def logits(params):
        return model.apply({"params": params}, tokens, **packed)[..., :VOCAB]

    def expected(params):
        rows = zip(tokens, SEGMENTS, POSITIONS, strict=True)
        return np.stack([numpy_decoder.decoder(params, config, *row)[:, :VOCAB] for row in rows])

    check(rng, logits, expected, random_params(rng, model, tokens), (2, T, VOCAB))


@pytest.mark.parametrize("changes", kinds(quick=("qk_norm_grouped",)))
def test_in_an_encoder_of_packed_texts(rng, changes):
    config = EncoderConfig(**SIZES | changes)
    model, (tokens, types) = TextEncoder(config, VOCAB), rng.integers(0, [[[VOCAB]], [[2]]], (2, 2, T))
    inputs = {"segments_bt": SEGMENTS, "positions_bt": POSITIONS, "types_bt": types}

    def states(params):
        return model.apply({"params": params}, tokens, **inputs)

    def expected(params):
        rows = zip(tokens, types, SEGMENTS, POSITIONS, strict=True)
        return np.stack([numpy_decoder.encoder(params, config, *row) for row in rows])

    params = random_params(rng, model, tokens, types_bt=types)
    check(rng, states, expected, params, (2, T, config.d_model))


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {"norm": "layer", "norm_placement": "post", "feed_forward": "relu", "position": "sinusoidal"},
    {"norm_placement": "sandwich", "feed_forward": "swiglu", "tie_embeddings": False, "position": "learned"},
    {"norm": "layer", "norm_placement": "sandwich", "feed_forward": "geglu", "scale_embeddings": True},
    {"norm": "layer", "norm_epsilon": 0.1, "layers": ("a", "b"), "num_layers": 3,
     "layer_kinds": {"a": {"position_base": 10.0}, "b": {"pattern": "window", "pattern_size": 2}}},
    {"parallel_sublayers": True, "feed_forward": "relu2", "logit_soft_cap": 1.5},
    {"parallel_sublayers": True, "norm_placement": "sandwich", "logit_soft_cap": 4.0,
     "tie_embeddings": False},
    {"parallel_sublayers": True, "norm_placement": "post", "feed_forward": "swiglu"},
    {"norm_placement": "output", "feed_forward": "swiglu_clamped", "norm": "layer"},
    {"parallel_sublayers": True, "parallel_norms": True, "norm_placement": "sandwich"},
    {"parallel_sublayers": True, "norm_placement": "output"},
    {"norm": "none", "feed_forward": "relu"},
    {"skips": True, "num_layers": 5, "layers": ("window", "full"),
     "layer_kinds": {"window": {"pattern": "window", "pattern_size": 2}, "full": {}}},
    {"value_embeddings": (-1, 0), "num_layers": 3, "num_kv_heads": 2, "skips": True},
    {"value_embeddings": (1,), "scale_embeddings": True, "remat": "full", "norm_placement": "post"},
    {"pattern": "window", "num_layers": 3, "layers": ("two", "three", "six"), "layer_kinds":
        {"two": {"pattern_size": 2}, "three": {"pattern_size": 3}, "six": {"pattern_size": 6}}},
])  # fmt: skip
def test_around_attention(rng, changes):
    """The other parts of a decoder."""
    config = DecoderConfig(**SIZES | {"use_bias": True} | changes)
    config = dataclasses.replace(config, num_layers=max(config.num_layers, 2))
    model, tokens = config.build(VOCAB), rng.integers(0, VOCAB, (2, T))

    def expected(params):
        return np.stack([numpy_decoder.decoder(params, config, row)[:, :VOCAB] for row in tokens])

    scale = 0.2 if config.norm == "none" else 0.5  # without norms larger ones would grow in each layer
    params = random_params(rng, model, tokens, scale=scale)
    check(rng, lambda p: model.apply({"params": p}, tokens)[..., :VOCAB], expected, params, (2, T, VOCAB))
