"""The estimators of the policy gradient against policies whose gradients are known, in float64."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.policy.estimators import ESTIMATORS, clipped, k3


def surrogate(name, log_p, rewards_pn, counts_pn, longest, low=0.2, high=0.2):
    """J (p,) of batches of one prompt each: (p, n, t) log-probabilities, which were drawn with the same."""
    advantages, weights, normalizers = ESTIMATORS[name](rewards_pn, counts_pn, longest)
    there = np.arange(log_p.shape[-1]) < counts_pn[..., None]
    ratio = log_p - jax.lax.stop_gradient(log_p)
    values = clipped(ratio, advantages[..., None], low, high) * weights[..., None] * there
    return jnp.sum(values, axis=(1, 2)) / normalizers.sum(axis=1)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_gradient_of_a_two_armed_bandit_is_the_closed_form(name):
    """Arm 1 is drawn with p = sigmoid(theta) and has reward 1, arm 0 has reward 0; answers of one token."""
    n, theta, longest = 5, 0.3, 4
    arms_pn = np.array([*itertools.product((0.0, 1.0), repeat=n)])

    def j(theta):
        log_p = jnp.where(arms_pn == 1, jax.nn.log_sigmoid(theta), jax.nn.log_sigmoid(-theta))
        return surrogate(name, log_p[..., None], arms_pn, np.ones_like(arms_pn), longest)

    with jax.enable_x64(True):
        gradient_p = np.asarray(jax.jacobian(j)(theta))
    p, share_p = 1 / (1 + math.exp(-theta)), arms_pn.mean(axis=1)
    variance_p = share_p * (1 - share_p)
    known = {"grpo": variance_p**0.5, "dapo": variance_p**0.5, "dr_grpo": variance_p / longest}
    known["rloo"] = variance_p * n / (n - 1)
    np.testing.assert_allclose(gradient_p, known[name], rtol=1e-12, atol=1e-15)
    # E[k/n (1 - k/n)] = p (1 - p) (n - 1) / n, and the gradient of the expected reward is p (1 - p).
    expected = np.prod(np.where(arms_pn == 1, p, 1 - p), axis=1) @ gradient_p
    unbiased = {"rloo": p * (1 - p), "dr_grpo": p * (1 - p) * (n - 1) / n / longest}
    if name in unbiased:
        assert expected == pytest.approx(unbiased[name], rel=1e-12)


ANSWERS = [(2,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
"""All answers of at most two tokens over the vocabulary 0, 1 and an end, 2."""


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_expectation_over_all_sequences_is_the_gradient_of_the_reward_without_standardization(name, rng):
    """E of the gradient over all pairs of answers, of a policy theta[last token, or 2 at the start, next]."""
    longest, counts_s = 2, np.array([len(answer) for answer in ANSWERS])
    rewards_s, theta = (np.float64(rng.normal(size=size)) for size in (7, (3, 3)))
    tokens_st = np.array([(*answer, 0)[:longest] for answer in ANSWERS])
    before_st = np.stack([np.full(7, 2), tokens_st[:, 0]], axis=1)
    there_st = np.arange(longest) < counts_s[:, None]
    pairs_p2 = np.array([*itertools.product(range(7), repeat=2)])

    def log_p(theta):
        return jax.nn.log_softmax(theta, axis=1)[before_st, tokens_st] * there_st

    def value(theta):
        return jnp.exp(log_p(theta).sum(axis=1)) @ rewards_s

    def mean_surrogate(theta):
        p_s = jax.lax.stop_gradient(jnp.exp(log_p(theta).sum(axis=1)))
        of_pairs = log_p(theta)[pairs_p2], rewards_s[pairs_p2], counts_s[pairs_p2]
        return p_s[pairs_p2].prod(axis=1) @ surrogate(name, *of_pairs, longest)

    with jax.enable_x64(True):
        assert float(jnp.exp(log_p(theta).sum(axis=1)).sum()) == pytest.approx(1, rel=1e-12)
        true, found = (np.asarray(jax.jit(jax.grad(f))(theta)) for f in (value, mean_surrogate))
    scale = {"rloo": 1, "dr_grpo": 2 * longest}  # n / (n - 1) times the longest
    if name in scale:
        np.testing.assert_allclose(found * scale[name], true, rtol=1e-9, atol=1e-12)
    else:
        assert np.abs(found - true).max() > 1e-3 * np.abs(true).max()


def test_weights_of_tokens_are_those_of_the_papers():
    """Two answers of 1 and 3 tokens, of which the second is right."""
    rewards, counts = np.array([[0.0, 1.0]]), np.array([[1, 3]])
    per_token = {}
    for name, estimator in ESTIMATORS.items():
        advantages, weights, normalizers = estimator(rewards, counts, 8)
        per_token[name] = (advantages * weights / normalizers.sum())[0].tolist()
    assert per_token["grpo"] == pytest.approx([-1 / 2, 1 / 6])
    assert per_token["dr_grpo"] == pytest.approx([-0.5 / 16, 0.5 / 16])
    assert per_token["rloo"] == pytest.approx([-1 / 2, 1 / 2])
    assert per_token["dapo"] == pytest.approx([-1 / 4, 1 / 4])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_rewards_teach_nothing_whatever_their_size(name):
    for value in (0.0, 1.0, 0.1, -1e6):
        advantages, *_ = ESTIMATORS[name](np.full((3, 7), value), np.ones((3, 7)), 4)
        np.testing.assert_allclose(advantages, 0, atol=1e-9)


@pytest.mark.parametrize("name", ("grpo", "dapo"))
def test_standardized_advantages_do_not_depend_on_the_scale_of_rewards(name, rng):
    rewards = rng.normal(size=(4, 6))
    one, *_ = ESTIMATORS[name](rewards, np.ones((4, 6)), 4)
    other, *_ = ESTIMATORS[name](1e-3 * rewards + 7, np.ones((4, 6)), 4)
    np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_allclose(one.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(one.std(axis=1), 1)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "slope"),
    [
        (1.1, 2.0, 2.2, 2.0),  # inside of the bounds
        (1.3, 2.0, 2.56, 0.0),  # a better answer is not made likelier beyond 1 + 0.28
        (0.7, 2.0, 1.4, 2.0),  # but may come back from below
        (0.7, -2.0, -1.6, 0.0),  # a worse answer is not made less likely beyond 1 - 0.2
        (1.3, -2.0, -2.6, -2.0),
    ],
)
def test_the_surrogate_is_clipped_on_the_side_of_its_advantage(ratio, advantage, value, slope):
    with jax.enable_x64(True):
        found, gradient = jax.value_and_grad(clipped)(jnp.log(ratio), advantage, 0.2, 0.28)
    assert float(found) == pytest.approx(value, rel=1e-12)
    assert float(gradient) == pytest.approx(slope * ratio, rel=1e-12)


def test_k3_is_unbiased_and_never_negative(rng):
    logits_p, logits_q = rng.normal(size=(2, 6))
    with jax.enable_x64(True):
        log_p, log_q = jax.nn.log_softmax(logits_p), jax.nn.log_softmax(logits_q)
        values = np.asarray(k3(log_p, log_q))
        exact = float(jnp.sum(jnp.exp(log_p) * (log_p - log_q)))
        assert (values >= 0).all() and float(k3(log_p, log_p).max()) == 0
        assert float(jnp.sum(jnp.exp(log_p) * values)) == pytest.approx(exact, rel=1e-12)
