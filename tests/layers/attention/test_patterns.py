"""Patterns inside models: packed documents, cached decoding, and what counts from the start of a text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.test_incremental import check_steps
from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.attention.masks import Mask
from transformer.layers.attention.patterns import PATTERNS, Blocks
from transformer.models.decoder import Decoder, DecoderConfig, DecoderStepper
from transformer.models.transformer_xl import TransformerXLConfig

CONFIG = DecoderConfig(d_model=16, num_layers=2, num_heads=2, d_ff=24)
VOCAB = 19


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_packed_document_is_that_document_alone_and_read_into_a_cache(rng, pattern):
    """A second document starts in the middle of a block of its row: its first tokens are global, its blocks
    start with it."""
    model = Decoder(dataclasses.replace(CONFIG, pattern=pattern, pattern_size=3, pattern_extra=2), VOCAB)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32))
    lengths = [11, 17]
    documents = [rng.integers(0, VOCAB, n) for n in lengths]
    places = {
        "segments_bt": jnp.asarray(np.repeat([1, 2, 0], [*lengths, 4]))[None],
        "positions_bt": jnp.asarray(np.concatenate([np.arange(n) for n in [*lengths, 4]]))[None],
    }
    apply = jax.jit(model.apply)
    row = jnp.asarray(np.concatenate([*documents, np.zeros(4, int)]))[None]
    packed = apply({"params": params}, row, **places)[0, :, :VOCAB]
    alone = [apply({"params": params}, jnp.asarray(text)[None])[0, :, :VOCAB] for text in documents]
    np.testing.assert_allclose(packed[: sum(lengths)], np.concatenate(alone), atol=2e-5)

    prompts = np.zeros((2, 7), int)
    read = [3, 7]
    for prompt, text, n in zip(prompts, documents, read, strict=True):
        prompt[:n] = text[:n]
    stepper = DecoderStepper.of(model, params)
    logits, cache = stepper.prefill(jnp.asarray(prompts), jnp.asarray(read), 8)
    rest = jnp.asarray([text[n : n + 8] for text, n in zip(documents, read, strict=True)])
    steps = [logits]
    step = jax.jit(stepper.step)
    for tokens_b in rest.T:
        logits, cache = step(tokens_b, cache)
        steps.append(logits)
    for i, (n, whole) in enumerate(zip(read, alone, strict=True)):
        got = np.stack([logits_bv[i] for logits_bv in steps])
        np.testing.assert_allclose(got, whole[n - 1 : n + 8], atol=2e-5)


DRAWS = {"pattern": "blocks", "pattern_size": 2, "pattern_draws": "each", "num_heads": 4, "num_kv_heads": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, {"mixer": "latent", "num_kv_heads": 0}, {"position": "alibi"}])
def test_each_head_of_each_layer_draws_its_blocks_however_the_model_runs(rng, changes):
    """The sequence form, scanned layers with a remainder, and decoding with a cache."""
    kinds = {"layers": ("a", "b"), "layer_kinds": {"a": {}, "b": {"soft_cap": 2.0}}}
    config = dataclasses.replace(CONFIG, **DRAWS | {"num_layers": 3} | changes)
    model = Decoder(dataclasses.replace(config, **kinds), 23)
    params = random_params(rng, model, jnp.zeros((1, 1), jnp.int32))
    check_steps(rng, model, params)
    tokens = rng.integers(0, 23, (2, 21))
    expected = jax.jit(model.apply)({"params": params}, tokens)
    for other in ({"scan_layers": True}, {"scan_layers": True, "remat": "full"}, {"kernel": "reference"}):
        apply = jax.jit(Decoder(dataclasses.replace(model.config, **other), 23).apply)
        np.testing.assert_allclose(apply({"params": params}, tokens), expected, atol=2e-5)


def test_a_model_attends_to_the_blocks_that_its_heads_and_layers_draw(rng):
    model = Decoder(dataclasses.replace(CONFIG, **DRAWS, scan_layers=True), VOCAB)
    params, t = random_params(rng, model, jnp.zeros((1, 1), jnp.int32)), 30
    _, sown = model.apply({"params": params}, rng.integers(0, VOCAB, (1, t)), mutable="intermediates")
    for layer, values in enumerate(sown["intermediates"]["blocks"][0]):
        (weights_bhts,) = jax.tree.leaves(values)
        for head, weights_ts in enumerate(weights_bhts[0]):
            pattern = Blocks(2, seed=2 * layer + head // 2)
            allowed = Mask(causal=True, pattern=pattern).dense(t, t)[0, 0]
            np.testing.assert_array_equal(weights_ts > 0, allowed)


def test_draws_are_for_patterns_that_draw():
    with pytest.raises(
        UserError, match=r"^layer_kinds\.near\.pattern_draws: 'each' does nothing with pattern"
    ):
        near = {"pattern": "window", "pattern_draws": "each"}
        DecoderConfig(layers=("near",), layer_kinds={"near": near})


def test_memory_refuses_patterns_that_count_from_the_start_of_a_text():
    with pytest.raises(UserError, match=r"^pattern: 'global' counts .* expected one of 'full', 'window', 's"):
        TransformerXLConfig(pattern="global")
    kinds = {"layers": ("far",), "layer_kinds": {"far": {"pattern": "blocks"}}}
    with pytest.raises(UserError, match=r"^layer_kinds.far.pattern: 'blocks' counts from"):
        TransformerXLConfig(**kinds)
    assert TransformerXLConfig(pattern="strided").pattern == "strided"
