"""Speculative decoding against the target alone: the same tokens, or the same distribution of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.test_incremental import VOCAB, make
from tests.decoding.toy import Counter, Tree, chain, cycle, tree
from transformer.decoding.sampling import generate, probabilities
from transformer.decoding.speculative import generate_speculative
from transformer.errors import UserError
from transformer.models.decoder_stepper import DecoderStepper

EOS = 0


def keys(rng, b):
    return jax.random.split(jax.random.key(int(rng.integers(2**31))), b)


def roots(n):
    return np.arange(n, dtype=np.int32)[:, None], np.ones(n, np.int32)


@pytest.mark.parametrize("draft_tokens,max_new_tokens", [(1, 6), (4, 7), (6, 3)])
def test_greedy_is_the_target_s_whatever_the_draft(rng, draft_tokens, max_new_tokens):
    for trial in range(8):
        target = tree(rng, 5, 3, 7)
        noise = rng.choice([0.0, 0.3, 3.0]) * rng.normal(size=target.table_rnv.shape)
        draft = Tree(target.table_rnv + jnp.asarray(noise, jnp.float32))
        inputs = *roots(5), keys(rng, 5)
        options = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "eos_id": EOS if trial % 2 else -1}
        expected = generate(target, *inputs, **options)
        *got, passes = generate_speculative(target, draft, *inputs, draft_tokens=draft_tokens, **options)
        jax.tree.map(np.testing.assert_array_equal, tuple(got), expected)
        assert passes <= max_new_tokens - 1


@pytest.mark.parametrize("draft_tokens", [1, 5])
def test_a_perfect_draft_saves_all_passes_it_can(rng, draft_tokens):
    model, inputs = tree(rng, 4, 3, 8), (*roots(4), keys(rng, 4))
    for temperature in (0.0, 0.8):
        options = {"max_new_tokens": 8, "temperature": temperature, "top_k": 2}
        # Proposals are drawn with the keys of `generate`, so that nothing refused is nothing changed.
        expected, _ = generate(model, *inputs, **options)
        got, _, passes = generate_speculative(model, model, *inputs, draft_tokens=draft_tokens, **options)
        np.testing.assert_array_equal(got, expected)
        assert passes == -(-7 // (draft_tokens + 1))


def test_a_useless_draft_costs_a_pass_for_each_token():
    ahead, behind = cycle(7), cycle(7).replace(table_nv=cycle(7).table_nv.T)
    inputs = *roots(3), jax.random.split(jax.random.key(0), 3)
    got, _, passes = generate_speculative(ahead, behind, *inputs, max_new_tokens=9, temperature=0.0)
    np.testing.assert_array_equal(got, (np.arange(3)[:, None] + np.arange(1, 10)) % 7)
    assert passes == 8


@jax.jit
def samples(target, draft, tokens_mb, rngs_mb, options):
    """Texts of 4 tokens of m batches."""

    def batch(tokens_b, rngs_b):
        inputs = tokens_b[:, None], jnp.ones_like(tokens_b), rngs_b
        return generate_speculative(target, draft, *inputs, max_new_tokens=4, draft_tokens=2, **options)[0]

    return jax.vmap(batch)(tokens_mb, rngs_mb)


@pytest.mark.parametrize("eos_id", [-1, EOS])
@pytest.mark.parametrize(
    "options", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 2}, {"temperature": 1.3, "top_p": 0.8}]
)
def test_samples_are_distributed_as_the_target_s(rng, options, eos_id):
    """All texts' frequencies against their probabilities, rows of one batch holding one another up."""
    n, depth, v = 8_000, 4, 3
    target, draft = tree(rng, 2, v, depth), tree(rng, 2, v, depth)
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} | options
    tokens = rng.integers(0, 2, (n // 4, 4)).astype(np.int32)
    rngs = keys(rng, n).reshape(-1, 4)
    texts = np.asarray(samples(target, draft, tokens, rngs, options | {"eos_id": eos_id})).reshape(n, depth)
    p_rnv = np.asarray(probabilities(target.table_rnv.reshape(-1, v), **options), np.float64)
    p_rnv = p_rnv.reshape(target.table_rnv.shape)
    for root in (0, 1):
        mine = texts[tokens.reshape(-1) == root]
        total = 0.0
        for text in itertools.product(range(v), repeat=depth):
            p, node, ended = 1.0, 0, False
            for token in text:
                p *= float(token == eos_id) if ended else p_rnv[root, node, token]
                node, ended = node * v + token + 1, ended or token == eos_id
            count = (mine == text).all(axis=1).sum()
            assert p > 0 or not count
            # Six standard deviations of a binomial count, and where few are expected, a few more.
            assert abs(count - len(mine) * p) <= 6 * np.sqrt(len(mine) * p * (1 - p)) + 8
            total += p
        np.testing.assert_allclose(total, 1.0, atol=1e-5)


def test_rows_end_at_eos_and_hold_no_other_row_up():
    counter, model = Counter(), cycle(10)
    tokens = np.array([[2], [8], [9], [5]], np.int32)
    inputs = tokens, np.ones(4, np.int32), jax.random.split(jax.random.key(1), 4)
    got, lengths, passes = generate_speculative(
        cycle(10, counter), model, *inputs, max_new_tokens=20, draft_tokens=3, temperature=0.0, eos_id=9
    )
    expected, expected_lengths = generate(model, *inputs, max_new_tokens=20, temperature=0.0, eos_id=9)
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(lengths, expected_lengths)
    # The longest row's tokens 0 ... 9 are one of the prompt's pass, and then 4, 4 and 1 of three rounds.
    jax.effects_barrier()
    assert counter.calls == passes == 3


def test_a_row_does_not_depend_on_its_batch(rng):
    target, draft = tree(rng, 6, 3, 7), tree(rng, 6, 3, 7)
    (tokens, lengths), rngs = roots(6), keys(rng, 6)
    options = {"max_new_tokens": 7, "draft_tokens": 3, "temperature": 0.9, "eos_id": EOS}
    together, _, _ = generate_speculative(target, draft, tokens, lengths, rngs, **options)
    for i in range(6):
        row = slice(i, i + 1)
        alone, _, _ = generate_speculative(target, draft, tokens[row], lengths[row], rngs[row], **options)
        np.testing.assert_array_equal(alone[0], together[i])


@pytest.mark.parametrize("changes", [
    {"position": "rope"},
    {"position": "learned"},
    {"pattern": "window", "pattern_size": 3},
])  # fmt: skip
def test_decoders_up_to_the_last_position(rng, changes):
    """With caches that are really written, overwritten and read, and no position to spare."""
    model, params = make(rng, **changes, max_length=16)
    draft_model, draft_params = make(rng, **changes, num_layers=1, max_length=16)
    target = DecoderStepper.of(model, params)
    near = DecoderStepper.of(model, jax.tree.map(lambda p: p + 0.02 * rng.normal(size=p.shape), params))
    tokens = rng.integers(0, VOCAB, (3, 6)).astype(np.int32)
    inputs = tokens, np.array([2, 6, 4], np.int32), keys(rng, 3)
    options = {"max_new_tokens": 10, "temperature": 0.0}
    expected, _ = generate(target, *inputs, **options)
    for draft in (DecoderStepper.of(draft_model, draft_params), near, target):
        got, _, passes = generate_speculative(target, draft, *inputs, draft_tokens=4, **options)
        np.testing.assert_array_equal(got, expected)
        assert passes <= 9
    assert passes == 2  # the target as its own draft


def test_impossible_pairs_are_named(rng):
    inputs = *roots(2), keys(rng, 2)
    with pytest.raises(UserError, match=r"^vocab_size: the draft's 4; expected the target's 5"):
        generate_speculative(chain(rng, 5), chain(rng, 4), *inputs, max_new_tokens=3)
    with pytest.raises(UserError, match=r"^draft_tokens: 0; expected"):
        generate_speculative(chain(rng, 5), chain(rng, 5), *inputs, max_new_tokens=3, draft_tokens=0)
