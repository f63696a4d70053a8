"""Generation against brute force on a Markov chain: what is drawn, when it stops, on what it depends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.toy import Counter, chain, cycle
from transformer.decoding.generation import generate
from transformer.decoding.sampling import (
    DecodingConfig,
    draw,
    keep_top_k,
    keep_top_p,
    pick,
    probabilities,
)
from transformer.errors import UserError

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def keys(seed: int, b: int):
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(seed), jnp.arange(b))


def prompts(rng, b, t, vocabulary):
    lengths = rng.integers(1, t + 1, b).astype(np.int32)
    return rng.integers(0, vocabulary, (b, t)).astype(np.int32), lengths


def test_greedy_follows_the_largest_logit_of_each_row(rng):
    model = chain(rng, 11)
    tokens, lengths = prompts(rng, 6, 5, 11)
    new, new_lengths = generate(model, tokens, lengths, keys(0, 6), max_new_tokens=9, temperature=None)
    best = np.asarray(model.table_nv).argmax(-1)
    for row, prompt, length in zip(np.asarray(new), tokens, lengths, strict=True):
        last = prompt[length - 1]
        for token in row:
            assert token == best[last]
            last = token
    np.testing.assert_array_equal(new_lengths, 9)


def test_rows_end_at_eos_and_are_filled_with_it(rng):
    model, eos = cycle(10), 9
    tokens, lengths = np.array([[2, 0], [0, 5], [8, 0], [7, 8]], np.int32), np.array([1, 2, 1, 1], np.int32)
    new, new_lengths = generate(
        model, tokens, lengths, keys(1, 4), max_new_tokens=8, temperature=None, eos_id=eos
    )
    expected = [[3, 4, 5, 6, 7, 8, 9, 9], [6, 7, 8, 9, 9, 9, 9, 9], [9] * 8, [8, 9, 9, 9, 9, 9, 9, 9]]
    np.testing.assert_array_equal(new, expected)
    np.testing.assert_array_equal(new_lengths, [6, 3, 0, 1])


def test_the_first_of_several_ends_ends_a_row(rng):
    inputs = np.array([[2], [5], [8], [7]], np.int32), np.ones(4, np.int32), keys(1, 4)
    options = {"max_new_tokens": 8, "temperature": None}
    new, lengths = generate(cycle(10), *inputs, eos_id=jnp.array([9, 5, 2]), **options)
    expected = [[3, 4, 9, 9, 9, 9, 9, 9], [6, 7, 8, 9, 9, 9, 9, 9], [9] * 8, [8, 9, 9, 9, 9, 9, 9, 9]]
    np.testing.assert_array_equal(new, expected)
    np.testing.assert_array_equal(lengths, [2, 3, 0, 1])


@pytest.mark.parametrize("starts,steps", [([2, 5], 6), ([8, 8], 0), ([9, 8], 9), ([7, 8], 1)])
def test_the_loop_leaves_when_every_row_has_ended(starts, steps):
    counter = Counter()
    tokens = np.array(starts, np.int32)[:, None]
    new, _ = generate(
        cycle(10, counter),
        tokens,
        np.ones(2, np.int32),
        keys(0, 2),
        max_new_tokens=50,
        temperature=None,
        eos_id=9,
    )
    jax.block_until_ready(new)
    jax.effects_barrier()
    assert counter.calls == steps


def test_without_an_end_one_step_less_than_tokens_is_taken():
    counter = Counter()
    tokens, lengths = np.zeros((1, 1), np.int32), np.ones(1, np.int32)
    new, new_lengths = generate(
        cycle(4, counter), tokens, lengths, keys(0, 1), max_new_tokens=7, temperature=None
    )
    jax.effects_barrier()
    np.testing.assert_array_equal(new, [[1, 2, 3, 0, 1, 2, 3]])
    assert counter.calls == 6 and new_lengths[0] == 7


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.7},
        {"top_k": 4, "top_p": 0.6},
        {"min_p": 0.3},
        {"top_k": 5, "min_p": 0.2, "temperature": 2.0},
    ],
)
def test_frequencies_are_those_of_the_filtered_distribution(rng, options):
    v, n = 8, 20_000
    logits = rng.normal(size=v, scale=1.5)
    options = OFF | options
    x = logits / options["temperature"]
    if options["top_k"]:
        x = np.where(x >= np.sort(x)[-options["top_k"]], x, -np.inf)
    p = np.exp(x) / np.exp(x).sum()
    above = np.array([p[x > xi].sum() for xi in x])
    p = np.where(above < options["top_p"], p, 0)
    p = np.where(p >= options["min_p"] * p.max(), p, 0)
    p /= p.sum()
    rows = jnp.broadcast_to(jnp.asarray(logits, jnp.float32), (n, v))
    tokens = np.asarray(draw(rows, keys(int(rng.integers(2**31)), n), **options))
    counts = np.bincount(tokens, minlength=v)
    assert not counts[p == 0].any()
    # Six standard deviations of a binomial count: one failure in 10^8 runs.
    assert (np.abs(counts - n * p) <= 6 * np.sqrt(n * p * (1 - p)) + 1e-6).all()


def test_a_filter_that_keeps_all_is_none():
    assert DecodingConfig(top_k=0, top_p=1.0, min_p=0.0).options == {"temperature": 1.0}
    assert DecodingConfig(temperature=0.0, top_k=3).options == {"temperature": None}
    rows = jax.random.normal(jax.random.key(0), (64, 30))
    np.testing.assert_array_equal(draw(rows, keys(1, 64), **OFF), draw(rows, keys(1, 64)))


@pytest.mark.parametrize("temperature", [None, 0.5])
def test_no_branch_is_in_the_loop(rng, temperature):
    """For which a GPU waits in each step."""
    inputs = *prompts(rng, 2, 6, 13), keys(5, 2)
    options = {"max_new_tokens": 4, "temperature": temperature, "top_p": 0.9}
    text = generate.lower(chain(rng, 13), *inputs, **options).as_text()
    assert "stablehlo.while" in text and "stablehlo.case" not in text and "stablehlo.if" not in text


@pytest.mark.parametrize("temperature", [1e-2, 1e-30, 1e-38, 0.0])
def test_a_temperature_near_zero_is_greedy(rng, temperature):
    logits = jnp.asarray(rng.permuted(np.tile(np.arange(30), (64, 1)), axis=1), jnp.float32)
    tokens = draw(logits, keys(0, 64), **(OFF | {"temperature": temperature, "top_p": 0.9}))
    np.testing.assert_array_equal(tokens, np.asarray(logits).argmax(-1))


@pytest.mark.parametrize("filters,expected", [
    ({}, [1 / 3, 1 / 3, 0, 1 / 3]),
    ({"top_k": 2}, [1 / 2, 1 / 2, 0, 0]),
    ({"min_p": 0.1}, [1 / 3, 1 / 3, 0, 1 / 3]),
])  # fmt: skip
@pytest.mark.parametrize("temperature", [1e37, 1e38, 3e38])
def test_a_temperature_of_any_size_gives_nothing_to_a_token_without_probability(
    temperature, filters, expected
):
    logits = jnp.array([[1.0, 2.0, -jnp.inf, 0.0]])
    np.testing.assert_allclose(
        jax.jit(probabilities)(logits, temperature=temperature, **filters), [expected], rtol=1e-6
    )


def test_a_token_without_probability_is_never_drawn(rng):
    v, n = 300, 4096
    x = np.where(rng.random((n, v)) < 0.02, 0.0, -np.inf)
    x[:, 17] = 0.0
    tokens = np.asarray(pick(jax.nn.softmax(jnp.asarray(x, jnp.float32)), keys(3, n)))
    assert np.isfinite(x[np.arange(n), tokens]).all()
    assert len(np.unique(tokens)) > v // 2


def test_a_row_does_not_depend_on_its_batch_or_on_padding(rng):
    model, (tokens, lengths), rngs = chain(rng, 13), prompts(rng, 7, 6, 13), keys(5, 7)
    options = {"max_new_tokens": 10, "temperature": 0.8, "top_k": 9, "top_p": 0.95, "eos_id": 4}
    together, _ = generate(model, tokens, lengths, rngs, **options)
    for row in range(7):
        wide = np.full((1, 11), 12, np.int32)
        wide[0, : lengths[row]] = tokens[row, : lengths[row]]
        alone, _ = generate(model, wide, lengths[row : row + 1], rngs[row : row + 1], **options)
        np.testing.assert_array_equal(alone[0], together[row])


def test_a_continuation_continued_is_the_longer_continuation(rng):
    model, (tokens, lengths), rngs = chain(rng, 13), prompts(rng, 4, 6, 13), keys(6, 4)
    whole, _ = generate(model, tokens, lengths, rngs, max_new_tokens=12)
    first, _ = generate(model, tokens, lengths, rngs, max_new_tokens=5)
    grown = np.zeros((4, 11), np.int32)
    for row in range(4):
        joined = [*tokens[row, : lengths[row]], *np.asarray(first[row])]
        grown[row, : len(joined)] = joined
    second, _ = generate(model, grown, lengths + 5, rngs, max_new_tokens=7)
    np.testing.assert_array_equal(np.concatenate([first, second], axis=1), whole)


def test_rows_with_equal_prompts_and_different_keys_differ(rng):
    model = chain(rng, 50, scale=0.1)
    new, _ = generate(model, np.zeros((8, 1), np.int32), np.ones(8, np.int32), keys(0, 8), max_new_tokens=12)
    assert len({tuple(row) for row in np.asarray(new).tolist()}) == 8


def test_options_do_not_compile_anew(rng):
    model, (tokens, lengths) = chain(rng, 9), prompts(rng, 2, 4, 9)
    generate(model, tokens, lengths, keys(0, 2), max_new_tokens=3, temperature=1.0, top_k=0, top_p=1.0)
    before = generate._cache_size()
    for temperature, top_k, top_p in [(0.0, 0, 1.0), (0.7, 5, 0.9), (1.3, 2, 0.5)]:
        generate(
            model,
            tokens,
            lengths,
            keys(1, 2),
            max_new_tokens=3,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
        )
    assert generate._cache_size() == before


@pytest.mark.parametrize(
    "key,value",
    [
        ("max_new_tokens", 0),
        ("num_samples", 0),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", 1.1),
    ],
)
def test_impossible_options_are_named(key, value):
    with pytest.raises(UserError, match=f"^{key}: {value}; expected"):
        DecodingConfig(**{key: value})


def test_tokens_of_probability_zero_are_not_drawn_by_the_lowest_random_number(monkeypatch):
    monkeypatch.setattr(jax.random, "uniform", lambda *_: jnp.float32(0))
    (token,) = pick(jnp.asarray([[0.0, 0.0, 0.4, 0.6]]), jax.random.split(jax.random.key(0), 1))
    assert token == 2


@pytest.mark.parametrize("keep", [lambda x: keep_top_k(x, 1), lambda x: keep_top_p(x, 0.1)])
def test_zeros_of_both_signs_are_a_tie(keep):
    """A hidden state of zeros has both, with kernels of both signs."""
    x = jnp.array([[0.0, -0.0, -1e-30, -1.0], [-0.0, -1.0, -0.0, -jnp.inf], [1.0, -0.0, 0.0, -2.0]])
    np.testing.assert_array_equal(np.isfinite(keep(x)), np.asarray(x == x.max(-1, keepdims=True)))


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_types_are_the_same_where_jax_has_64_bits(rng, temperature):
    model, inputs = chain(rng, 11), (*prompts(rng, 3, 4, 11), keys(0, 3))
    options = {"temperature": temperature, "top_k": 3, "min_p": 0.1}
    expected, _ = generate(model, *inputs, max_new_tokens=5, **options)
    with jax.enable_x64(True):
        new, _ = generate(model, *inputs, max_new_tokens=5, **options)
        assert probabilities(jnp.zeros((2, 5), jnp.float32), **options).dtype == jnp.float32
    assert new.dtype == jnp.int32
    if not temperature:  # uniform numbers of 64 bits are others
        np.testing.assert_array_equal(new, expected)
