"""Every member of `MIXERS`: a new one is tested without a line of tests. Whether documents of a row see one
another is asked in `tests/models/test_packed_documents.py`."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding import test_incremental as incremental
from tests.decoding.test_incremental import VOCAB
from transformer.layers.mixers import MIXERS


def make(rng, mixer, **changes):
    return incremental.make(rng, mixer=mixer, position="none", **changes)


def read(model, params, tokens, **row):
    return jax.jit(lambda tokens, **row: model.apply({"params": params}, tokens, **row))(tokens, **row)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("mixer", MIXERS)
def test_steps_after_a_ragged_prompt_are_the_sequence_form(rng, mixer):
    incremental.check_steps(rng, *make(rng, mixer))


@pytest.mark.thorough
@pytest.mark.parametrize("mixer", MIXERS)
def test_a_token_depends_on_those_before_it_and_on_nothing_else(rng, mixer):
    """Neither on later ones nor on padding, whatever is in it."""
    model, params = make(rng, mixer)
    tokens = rng.integers(0, VOCAB, (2, 11))
    later = np.where(np.arange(11) > 5, (tokens + 1) % VOCAB, tokens)
    earlier = np.where(np.arange(11) == 0, (tokens + 1) % VOCAB, tokens)
    whole = read(model, params, tokens)
    np.testing.assert_allclose(read(model, params, later)[:, :6], whole[:, :6], atol=1e-5)
    assert np.abs(read(model, params, earlier)[:, 5] - whole[:, 5]).max() > 1e-4
    segments = (np.arange(11) < 6).astype(np.int32)[None].repeat(2, axis=0)
    both = [read(model, params, each, segments_bt=segments)[:, :6] for each in (tokens, later)]
    np.testing.assert_array_equal(*both)


@pytest.mark.thorough
@pytest.mark.parametrize("mixer", MIXERS)
def test_scanned_and_rematerialised_layers_have_the_same_gradient(rng, mixer):
    model, params = make(rng, mixer)
    tokens = rng.integers(0, VOCAB, (2, 9))

    def gradient(**changes):
        other = dataclasses.replace(model.config, **changes).build(VOCAB)
        return jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(other.apply({"params": p}, tokens)))))(params)

    found, expected = gradient(scan_layers=True, remat="full"), gradient()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), found, expected)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(expected))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("mixer", MIXERS)
def test_states_have_the_type_of_the_residual_stream(rng, mixer):
    model, params = make(rng, mixer, dtype="bfloat16")
    tokens = rng.integers(0, VOCAB, (2, 9))
    exact, _ = make(rng, mixer)
    states = jax.jit(lambda p: model.apply({"params": p}, tokens, method="hidden"))(params)
    assert states.dtype == jnp.bfloat16
    wanted = jax.jit(lambda p: exact.apply({"params": p}, tokens, method="hidden"))(params)
    assert np.abs(states.astype(jnp.float32) - wanted).max() < 0.1 * np.abs(wanted).max()
