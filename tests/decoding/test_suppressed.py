"""Tokens that are never written, and those that texts begin with."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.toy import Chain
from transformer.data.tokenization.tokenizers import Tokenizer
from transformer.decoding import generation
from transformer.decoding.beam import beam_search
from transformer.decoding.suppressed import suppressed, with_first_token
from transformer.errors import UserError

VOCAB, NEVER = 262, ("c", "d", "a")


def test_decoding_is_that_of_a_model_that_never_predicts_them(rng):
    tokenizer = Tokenizer.train("bytes")
    ids = [tokenizer.find(name) for name in NEVER]
    chain = Chain(jnp.asarray(rng.normal(size=(VOCAB, VOCAB)), jnp.float32).at[:, ids[0]].add(9.0))
    without = dataclasses.replace(chain, table_nv=chain.table_nv.at[:, ids].set(-jnp.inf))
    stepper = suppressed(chain, NEVER, tokenizer)
    prompts, lengths = jnp.asarray([[5, 6], [7, 0]]), jnp.asarray([2, 1])
    options = {"beam_size": 3, "max_new_tokens": 70, "length_penalty": 0.6, "eos_id": 3}  # it grows once
    for a, b in zip(
        *(beam_search(each, prompts, lengths, **options) for each in (stepper, without)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    keys = jax.random.split(jax.random.key(0), 2)
    for temperature in (0.0, 1.0):
        options = {"max_new_tokens": 40, "eos_id": 3, "temperature": temperature}
        a, b = (generation.generate(each, prompts, lengths, keys, **options) for each in (stepper, without))
        np.testing.assert_array_equal(a[0], b[0])
        assert not np.isin(a[0], ids).any()
    assert np.isin(generation.generate(chain, prompts, lengths, keys, **options)[0], ids).any()


def test_names_are_those_of_the_tokenizer():
    tokenizer = Tokenizer.train("bytes")
    assert suppressed(None, (), tokenizer) is None
    with pytest.raises(UserError, match=r"generate.suppress: '<pad>'; the tokenizer has no such token"):
        suppressed(None, ("c", "<pad>"), tokenizer)


def test_texts_begin_with_a_token_of_probability_1(rng):
    """The rest follows as after that token, and the score is that of the rest."""
    tokenizer = Tokenizer.train("bytes")
    first = tokenizer.find("c")
    chain = Chain(jnp.asarray(rng.normal(size=(VOCAB, VOCAB)), jnp.float32))
    prompts, lengths = jnp.asarray([[5, 6], [7, 0]]), jnp.asarray([2, 1])
    options = {"beam_size": 3, "max_new_tokens": 9, "length_penalty": 0.0, "eos_id": 3}
    found = beam_search(with_first_token(chain, "c", tokenizer), prompts, lengths, **options)
    rest = beam_search(chain, jnp.full((2, 1), first), jnp.ones(2, int), **options | {"max_new_tokens": 8})
    np.testing.assert_array_equal(np.asarray(found[0])[..., 0], first)
    np.testing.assert_array_equal(np.asarray(found[0])[..., 1:9], np.asarray(rest[0])[..., :8])
    np.testing.assert_allclose(found[2], rest[2], rtol=1e-5)
    assert with_first_token(chain, "", tokenizer) is chain
    with pytest.raises(UserError, match=r"generate.first: '<s>'; the tokenizer has no such token"):
        with_first_token(None, "<s>", tokenizer)
