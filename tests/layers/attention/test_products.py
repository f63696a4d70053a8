"""The products of attention, for model FLOPs, against masks written out and programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer.layers.attention import products
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import PATTERNS
from transformer.layers.attention.products import allowed_pairs, attention_products
from transformer.models.decoder import DecoderConfig
from transformer.models.encoder_decoder import EncoderDecoderConfig


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name, make in PATTERNS.items() if make])
def test_pairs_are_those_of_the_mask(rng, monkeypatch, name, causal):
    for _ in range(3):
        size, extra, t, start = (int(n) for n in rng.integers((4, 1, 20, 0), (12, 4, 60, 40)))
        monkeypatch.setattr(products, "PAIRS_AT_A_TIME", int(rng.integers(50, 5000)))
        pattern = PATTERNS[name](size, extra)
        mask = Mask(causal=causal, start=start, pattern=pattern)
        assert allowed_pairs(pattern, t, start, causal) == int(mask.dense(t, start + t).sum())


def test_layers_are_counted_by_their_own_pattern_and_width():
    kinds = {
        "window": {"pattern": "window", "pattern_size": 3, "num_kv_heads": 1},
        "latent": {"mixer": "latent", "num_heads": 4, "head_dim": 8},
        "full": {"pattern": "full", "mixer": "plain"},
    }
    shape = {"d_model": 16, "num_layers": 5, "num_heads": 2}
    config = DecoderConfig(**shape, layers=tuple(kinds), layer_kinds=kinds)
    t, start = 7, 4
    window = int(Mask(causal=True, start=start, pattern=PATTERNS["window"](3, 1)).dense(t, start + t).sum())
    # Two windows with two heads of 8, two latent layers with keys of 8 + 4 and values of 8, one plain layer.
    expected = 2 * 2 * 16 * window / t + (2 * 4 * (12 + 8) + 2 * 16) * (start + t)
    assert attention_products(config.stack(causal=True), t, start=start, causal=True) == expected
    pairs = EncoderDecoderConfig(**shape, layers=tuple(kinds), layer_kinds=kinds)
    across = (2 * 2 * 16 + 2 * 4 * (12 + 8) + 2 * 16) * 11
    found = attention_products(pairs.decoder_stack, t, start=start, causal=True, memory=11)
    assert found == expected + across


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("mixer", ["multi_head", "latent", "plain"])
def test_products_of_a_pair_are_those_of_the_program(mixer):
    """FLOPs grow with the square of the length by 2 x products, forward; a few more are of the softmax."""
    config = DecoderConfig(d_model=64, num_layers=1, num_heads=2, mixer=mixer, d_ff=8, kernel="reference")
    model, stack = config.build(8), config.stack(causal=True)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 4), jnp.int32))

    def flops(t):
        tokens = jax.ShapeDtypeStruct((1, t), jnp.int32)
        program = jax.jit(lambda params, tokens: model.apply(params, tokens)).lower(shapes, tokens)
        return program.cost_analysis()["flops"]

    t = 512
    quadratic = (flops(2 * t) - 2 * flops(t)) / (2 * t * t)
    np.testing.assert_allclose(quadratic, 2 * stack.mixers[0].products_per_pair, rtol=0.15)
