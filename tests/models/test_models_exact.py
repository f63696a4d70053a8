"""Encoder-decoders and Transformer-XL, with random parameters, against float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import numpy_decoder
from tests.parameters import random_params
from tests.slopes import assert_slopes
from transformer.models.encoder_decoder import EncoderDecoderConfig
from transformer.models.transformer_xl import RELATIVE, Memory, TransformerXLConfig

SIZES = {"d_model": 16, "num_layers": 2, "num_heads": 4, "head_dim": 8, "d_ff": 12, "max_length": 32}
VOCAB = 19


def value_and_gradient(f, weights, params):
    value, backward = jax.jit(functools.partial(jax.vjp, f))(params)
    return value, backward(jnp.asarray(weights, jnp.float32))[0]


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {"num_kv_heads": 2, "num_encoder_layers": 1},
    {"parallel_sublayers": True, "logit_soft_cap": 3.0, "feed_forward": "relu2"},
    {"position": "t5", "norm": "layer", "norm_placement": "post"},
    {"position": "t5", "position_buckets": 8, "position_distance": 6, "share_position": True,
     "attention_scale": 1.0, "scale_logits": True, "feed_forward": "relu"},
    {"position": "sinusoidal_halves", "norm": "layer", "norm_placement": "post",
     "feed_forward": "silu", "scale_embeddings": True, "output_bias": True, "use_bias": True},
    {"position": "learned", "position_offset": 2, "embedding_norm": True, "norm": "layer",
     "norm_placement": "post", "use_bias": True},
    {"mixer": "latent", "latent_dim": 10, "soft_cap": 2.0},
    {"position": "learned", "share_embeddings": False, "tie_embeddings": False, "qk_norm": True},
    {"position": "transformer_xl", "sinks": True, "norm_placement": "sandwich",
     "num_encoder_layers": 3},
])  # fmt: skip
def test_an_encoder_decoder(rng, changes):
    config = EncoderDecoderConfig(**SIZES | changes)
    model = config.build(VOCAB)
    source, tokens = rng.integers(0, VOCAB, (2, 7)), rng.integers(0, VOCAB, (2, 5))
    params, weights = random_params(rng, model, source, tokens), rng.normal(size=(2, 5, VOCAB))

    def expected(params):
        rows = [
            numpy_decoder.encoder_decoder(params, config, *row) for row in zip(source, tokens, strict=True)
        ]
        return np.stack(rows)[..., :VOCAB]

    logits, gradient = value_and_gradient(
        lambda params: model.apply({"params": params}, source, tokens)[..., :VOCAB], weights, params
    )
    exact = numpy_decoder.exact(params)
    np.testing.assert_allclose(logits, expected(exact), atol=2e-5, rtol=2e-5)
    assert_slopes(rng, lambda p: np.sum(weights * expected(p)), exact, gradient)


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [
    {"position": "transformer_xl", "num_kv_heads": 2},
    *({"position": name, "sinks": True, "soft_cap": 3.0}
      for name in RELATIVE if name != "transformer_xl"),
    {"position": "alibi", "mixer": "latent", "latent_dim": 10},
    {"position": "rope", "position_fraction": 0.25, "parallel_sublayers": True},
    {"qk_norm": True, "position": "rope", "norm": "layer", "norm_placement": "sandwich"},
    {"layers": ("a", "b"), "position": "t5",
     "layer_kinds": {"a": {"pattern": "window", "pattern_size": 3}, "b": {}}},
])  # fmt: skip
def test_transformer_xl_behind_its_memory(rng, changes):
    """The third segment of a text, and its gradient, which does not go into the memory: NumPy remembers the
    inputs of all layers for the last tokens, as Dai et al. write it."""
    m, t = 6, 4
    config = TransformerXLConfig(**SIZES | {"memory_length": m} | changes)
    model, tokens = config.build(VOCAB), rng.integers(0, VOCAB, (2, 3 * t))
    segments = np.stack([np.sort(rng.integers(1, 4, 3 * t)), np.ones(3 * t, int)])
    params = random_params(rng, model, tokens[:1, :1])
    weights = rng.normal(size=(2, t, config.d_model))

    def read(params, memory, at):
        part, inputs = np.s_[:, at : at + t], {"segments_bt": segments[:, at : at + t], "method": "recur"}
        return model.apply({"params": params}, tokens[part], memory, **inputs)

    memory = Memory.empty(config, 2, m)
    for at in (0, t):
        _, memory = jax.jit(functools.partial(read, at=at))(params, memory)

    def last(params):
        return read(params, memory, 2 * t)[0]

    def rows(params, at, memories):
        """The states from `at` on, behind a memory for each row; and the memories for the next segment."""
        found = []
        for b, own in enumerate(memories):
            now, before = slice(at, at + t), slice(at - len(own[0][1]) if own else at, at)
            inputs = tokens[b, now], segments[b, now], own, segments[b, before]
            x_td, inputs_n = numpy_decoder.recurrent_decoder(params, config, *inputs)
            kept_n = [np.concatenate([own[n][1], x]) if own else x for n, x in enumerate(inputs_n)]
            blocks = [p for _, p in numpy_decoder.layers(config, params["blocks"])]
            found.append((x_td, [(p, x[-m:]) for p, x in zip(blocks, kept_n, strict=True)]))
        states, later = zip(*found, strict=True)
        return np.stack(states), later

    exact, earlier = numpy_decoder.exact(params), [[], []]
    for at in (0, t):
        _, earlier = rows(exact, at, earlier)
    states, gradient = value_and_gradient(last, weights, params)
    np.testing.assert_allclose(states, rows(exact, 2 * t, earlier)[0], atol=2e-5, rtol=2e-5)
    assert_slopes(rng, lambda p: np.sum(weights * rows(p, 2 * t, earlier)[0]), exact, gradient)
