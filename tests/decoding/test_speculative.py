"""Speculative decoding against the target alone: the same tokens, or the same distribution of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from tests.decoding.test_incremental import VOCAB, make
from tests.decoding.toy import Counter, Tree, chain, cycle, tree
from transformer.decoding import speculative
from transformer.decoding.generation import generate
from transformer.decoding.sampling import probabilities
from transformer.decoding.speculative import generate_speculative
from transformer.errors import UserError
from transformer.models.decoder import DecoderStepper

EOS = 0


def keys(rng, b):
    return jax.random.split(jax.random.key(int(rng.integers(2**31))), b)


def roots(n):
    return np.arange(n, dtype=np.int32)[:, None], np.ones(n, np.int32)


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("draft_tokens,max_new_tokens", [(1, 6), (4, 7), (6, 3)])
def test_greedy_is_the_target_s_whatever_the_draft(rng, draft_tokens, max_new_tokens):
    for trial in range(8):
        target = tree(rng, 5, 3, 7)
        noise = rng.choice([0.0, 0.3, 3.0]) * rng.normal(size=target.table_rnv.shape)
        draft = Tree(target.table_rnv + jnp.asarray(noise, jnp.float32))
        inputs = *roots(5), keys(rng, 5)
        eos_id = (EOS, -1, jnp.array([EOS, 1]))[trial % 3]
        options = {"max_new_tokens": max_new_tokens, "temperature": None, "eos_id": eos_id}
        expected = generate(target, *inputs, **options)
        *got, passes = generate_speculative(target, draft, *inputs, draft_tokens=draft_tokens, **options)
        jax.tree.map(np.testing.assert_array_equal, tuple(got), expected)
        assert passes <= max_new_tokens - 1


@pytest.mark.thorough(but=1)
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


@pytest.mark.thorough
def test_it_decodes_where_jax_has_64_bits(rng):
    model, inputs = tree(rng, 2, 3, 4), (*roots(2), keys(rng, 2))
    expected, _ = generate(model, *inputs, max_new_tokens=4, temperature=None)
    with jax.enable_x64(True):
        got, *_ = generate_speculative(model, model, *inputs, max_new_tokens=4, temperature=None)
    np.testing.assert_array_equal(got, expected)


def test_a_useless_draft_costs_a_pass_for_each_token():
    ahead, behind = cycle(7), cycle(7).replace(table_nv=cycle(7).table_nv.T)
    inputs = *roots(3), jax.random.split(jax.random.key(0), 3)
    got, _, passes = generate_speculative(ahead, behind, *inputs, max_new_tokens=9, temperature=None)
    np.testing.assert_array_equal(got, (np.arange(3)[:, None] + np.arange(1, 10)) % 7)
    assert passes == 8


P, Q = np.array([0.36, 0.52, 0.07, 0.05]), np.array([0.34, 0.54, 0.01, 0.11])
"""What target and draft give four tokens: near one another, so that what is left of P - Q is little, and
changes most when a little too much is left."""

LONG, DRAWN = 3, 20_000
"""Tokens of a text, texts that are drawn."""

OPTIONS = {
    "plain": {},
    "top_k": {"temperature": 0.7, "top_k": 3},
    "top_p": {"temperature": 1.3, "top_p": 0.8},
    "min_p": {"temperature": 1.1, "min_p": 0.15},
}


def p_value(options, eos_id):
    """Of Pearson's chi-square test: how probably texts of the target differ by so much from their
    probabilities. All is drawn from fixed seeds, in batches of 4 rows that hold one another up."""
    rng = np.random.default_rng(17)
    nodes, v = sum(4**i for i in range(LONG + 1)), 4
    order_rnv = rng.permuted(np.tile(np.arange(v), (2, nodes, 1)), axis=2)  # another for each history
    target, draft = (Tree(jnp.asarray(np.log(each)[order_rnv], jnp.float32)) for each in (P, Q))
    options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options

    @jax.jit
    def texts(tokens_mb, rngs_mb):
        def batch(tokens_b, rngs_b):
            inputs = tokens_b[:, None], jnp.ones_like(tokens_b), rngs_b
            return generate_speculative(
                target, draft, *inputs, max_new_tokens=LONG, draft_tokens=2, eos_id=eos_id, **options
            )[0]

        return jax.vmap(batch)(tokens_mb, rngs_mb)

    tokens = rng.integers(0, 2, (DRAWN // 4, 4)).astype(np.int32)
    found = np.asarray(texts(tokens, jax.random.split(jax.random.key(17), tokens.shape)))
    found = found.reshape(DRAWN, LONG)
    p_rnv = np.asarray(probabilities(target.table_rnv.reshape(-1, v), **options), np.float64)
    p_rnv = p_rnv.reshape(target.table_rnv.shape)
    statistic, freedom = 0.0, 0
    for root in (0, 1):
        mine = found[tokens.reshape(-1) == root]
        counts = np.zeros((v,) * LONG)
        np.add.at(counts, tuple(mine.T), 1)
        expected = np.zeros_like(counts)
        for text in itertools.product(range(v), repeat=LONG):
            p, node, ended = float(len(mine)), 0, False
            for token in text:
                p *= float(token == eos_id) if ended else p_rnv[root, node, token]
                node, ended = node * v + token + 1, ended or token == eos_id
            expected[text] = p
        np.testing.assert_allclose(expected.sum(), len(mine), rtol=1e-5)
        assert not counts[expected == 0].any()
        # Cells in which few are expected count as one, as the test asks for.
        few = (expected > 0) & (expected < 10)
        many = expected >= 10
        pairs = [*zip(counts[many], expected[many], strict=True)]
        pairs += [(counts[few].sum(), expected[few].sum())] if few.any() and expected[few].sum() > 1 else []
        statistic += sum((count - mean) ** 2 / mean for count, mean in pairs)
        freedom += len(pairs) - 1
    return float(stats.chi2.sf(statistic, freedom))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind,eos_id", [("plain", -1), ("plain", EOS), ("top_k", EOS), ("top_p", -1), ("min_p", EOS)]
)
def test_samples_are_distributed_as_the_target_s(kind, eos_id):
    assert p_value(OPTIONS[kind], eos_id) > 1e-3


def keep_too_many(p_bnv, q_bnv, tokens_bn, rngs_bn):
    return ACCEPTED(1.1 * p_bnv, q_bnv, tokens_bn, rngs_bn)


def replace_from_too_many(p_bv, q_bv, rngs_b):
    return REPLACEMENT(p_bv, 0.9 * q_bv, rngs_b)


ACCEPTED, REPLACEMENT = speculative._accepted, speculative._replacement


def forget():
    for program in (speculative.advance, speculative.generate_speculative):
        program.clear_cache()


@pytest.mark.thorough
@pytest.mark.parametrize("eos_id", [-1, EOS])
@pytest.mark.parametrize(
    "name,wrong", [("_accepted", keep_too_many), ("_replacement", replace_from_too_many)]
)
def test_that_test_sees_a_tenth_too_much(monkeypatch, eos_id, name, wrong):
    """A draft's token kept at 1.1 p / q, or replaced by one of max(p - 0.9 q, 0)."""
    monkeypatch.setattr(speculative, name, wrong)
    forget()  # what was compiled before has the right one in it
    assert p_value({}, eos_id) < 1e-9
    forget()


def test_rows_end_at_eos_and_hold_no_other_row_up():
    counter, model = Counter(), cycle(10)
    tokens = np.array([[2], [8], [9], [5]], np.int32)
    inputs = tokens, np.ones(4, np.int32), jax.random.split(jax.random.key(1), 4)
    got, lengths, passes = generate_speculative(
        cycle(10, counter), model, *inputs, max_new_tokens=20, draft_tokens=3, temperature=None, eos_id=9
    )
    expected, expected_lengths = generate(model, *inputs, max_new_tokens=20, temperature=None, eos_id=9)
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


@pytest.mark.thorough
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
    options = {"max_new_tokens": 10, "temperature": None}
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
