"""Patterns inside models: packed documents, cached decoding, and what counts from the start of a text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.parameters import random_params
from transformer.errors import UserError
from transformer.layers.patterns import PATTERNS
from transformer.models.decoder import Decoder, DecoderConfig, DecoderStepper
from transformer.models.transformer_xl import TransformerXLConfig

CONFIG = DecoderConfig(d_model=16, num_layers=2, num_heads=2, d_ff=24)
VOCAB = 19


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_packed_document_is_that_document_alone_and_read_into_a_cache(rng, pattern):
    """A second document begins in the middle of a block of its row: its first tokens are global, its blocks
    begin with it."""
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


def test_memory_refuses_patterns_that_count_from_the_start_of_a_text():
    with pytest.raises(UserError, match=r"^pattern: 'global' counts .* expected one of 'full', 'window', 's"):
        TransformerXLConfig(pattern="global")
    kinds = {"layers": ("far",), "layer_kinds": {"far": {"pattern": "blocks"}}}
    with pytest.raises(UserError, match=r"^layer_kinds.far.pattern: 'blocks' counts from"):
        TransformerXLConfig(**kinds)
    assert TransformerXLConfig(pattern="strided").pattern == "strided"
