"""Every position encoding, with random parameters, in every kernel that runs anywhere, against float64 NumPy:
a model's logits and gradients."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models import numpy_decoder
from tests.parameters import random_params
from tests.slopes import assert_slopes
from transformer.layers.attention.positions import POSITIONS
from transformer.models.decoder import Decoder, DecoderConfig, DecoderStepper
from transformer.training import parallel

SIZES = {"d_model": 16, "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, "d_ff": 12, "max_length": 256}
VOCAB, T = 19, 136
"""More tokens than a block of the kernels has, and a number that 2 x 4 devices divide."""

KERNELS = ("reference", "unrolled", "blockwise", "ring")
QUICK = {
    "reference": "shaw",
    "unrolled": "t5",
    "blockwise": "transformer_xl",
    "ring": "alibi",
    "cached": "rope",
}


def pairs(*kernels):
    """Each kernel with each position; one pair of a kernel is quick."""
    return [
        pytest.param(kernel, position, marks=() if QUICK[kernel] == position else pytest.mark.thorough)
        for kernel, position in itertools.product(kernels, POSITIONS)
    ]


@contextlib.contextmanager
def around(devices):
    """Four devices over which the tokens of a row are cut."""
    mesh = parallel.make_mesh(parallel.MeshConfig(data=1, context=devices), jax.devices()[:devices])
    with parallel.placed(mesh, parallel.RULES["default"]):
        yield mesh


def program(f, params, weights):
    """Values of f, and the gradient of their sum with these weights, before it is compiled."""

    def weighed(params):
        value = f(params)
        return jnp.sum(jnp.asarray(weights, jnp.float32) * value), value

    return jax.jit(jax.grad(weighed, has_aux=True)).trace(params)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("kernel,position", pairs(*KERNELS))
def test_of_packed_rows(rng, kernel, position):
    config = DecoderConfig(**SIZES, kernel=kernel, position=position)
    model, tokens = Decoder(config, VOCAB), rng.integers(0, VOCAB, (2, T))
    # A row of documents, two of which reach over the end of a block, and padding; a row that is one document.
    lengths = np.array([[9, 100, 20, T - 129], [T, 0, 0, 0]])
    segments = np.stack([np.repeat([1, 2, 3, 0], row) for row in lengths])
    positions = np.stack([np.concatenate([np.arange(n) for n in row]) for row in lengths])
    params = random_params(rng, model, tokens[:1, :1])
    weights = rng.normal(size=(2, T, VOCAB)) * (segments > 0)[..., None]

    def logits(params):
        packed = {"segments_bt": jnp.asarray(segments), "positions_bt": jnp.asarray(positions)}
        return model.apply({"params": params}, jnp.asarray(tokens), **packed)[..., :VOCAB]

    def expected(params):
        rows = zip(tokens, segments, positions, strict=True)
        return np.stack([numpy_decoder.decoder(params, config, *row)[:, :VOCAB] for row in rows])

    with around(4 if kernel == "ring" else 1):
        traced = program(logits, params, weights)
        gradient, value = traced.lower().compile()(params)
    assert ("ppermute" in str(traced.jaxpr)) == (kernel == "ring")
    exact = numpy_decoder.exact(params)
    there = segments > 0
    np.testing.assert_allclose(value[there], expected(exact)[there], atol=2e-5, rtol=2e-5)
    assert_slopes(rng, lambda p: np.sum(weights * expected(p)), exact, gradient)


OVER_A_CACHE = [{"position": position} for position in POSITIONS if position != "rope"] + [
    {"mixer": "latent", "latent_dim": 10},
    {"mixer": "latent", "latent_dim": 4, "position": "alibi", "sinks": True, "soft_cap": 2.0},
    {"mixer": "plain", "num_kv_heads": 0},
    {"qk_norm": True, "sinks": True, "soft_cap": 2.0},
    {"pattern": "window", "pattern_size": 2, "pattern_extra": 2},
]


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, *OVER_A_CACHE])
def test_of_steps_over_a_cache(rng, changes):
    """Ragged prompts, then one token, then three at once: logits, and their gradients through all steps."""
    if changes.get("mixer"):
        changes = {"num_kv_heads": 0} | changes
    config = DecoderConfig(**SIZES | changes)
    model, tokens, lengths = Decoder(config, VOCAB), rng.integers(0, VOCAB, (2, 11)), np.array([7, 4])
    params, weights = random_params(rng, model, tokens), rng.normal(size=(2, 5, VOCAB))
    new = np.stack([row[n : n + 4] for row, n in zip(tokens, lengths, strict=True)])

    def logits(params):
        stepper = DecoderStepper.of(model, params)
        first, cache = stepper.prefill(jnp.asarray(tokens[:, :7]), jnp.asarray(lengths), room=4, rewound=2)
        second, cache = stepper.step(jnp.asarray(new[:, 0]), cache)
        others, _ = stepper.extend(jnp.asarray(new[:, 1:]), cache)
        return jnp.concatenate([first[:, None], second[:, None], others], axis=1)

    def expected(params):
        rows = [numpy_decoder.decoder(params, config, row)[:, :VOCAB] for row in tokens]
        return np.stack([row[n - 1 : n + 4] for row, n in zip(rows, lengths, strict=True)])

    gradient, value = program(logits, params, weights).lower().compile()(params)
    exact = numpy_decoder.exact(params)
    np.testing.assert_allclose(value, expected(exact), atol=2e-5, rtol=2e-5)
    assert_slopes(rng, lambda p: np.sum(weights * expected(p)), exact, gradient)
