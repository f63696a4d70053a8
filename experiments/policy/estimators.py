"""Estimators of the policy gradient: how rewards of a group of answers become weights of their tokens.

All have the same surrogate, `clipped`. With answers o_1 ... o_n to one prompt, of rewards r_i and |o_i|
tokens, the objective is

    J = sum_i w_i sum_t min(rho_it A_i, clip(rho_it, 1 - e_low, 1 + e_high) A_i) / sum_i z_i

where rho_it is the ratio of the probabilities of token t now and when it was drawn. An estimator is a
function (rewards_pn, counts_pn, longest) -> (A_pn, w_pn, z_pn) of the rewards and the numbers of tokens of n
answers to p prompts, and of the most tokens that an answer may have. Where all ratios are 1 the gradient of J
is that of sum_i w_i A_i log p(o_i) / sum_i z_i."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

Weighed = tuple[np.ndarray, np.ndarray, np.ndarray]
Estimator = Callable[[np.ndarray, np.ndarray, int], Weighed]

NO_SPREAD = 1e-6
"""A standard deviation of rewards, relative to the largest, below which all are taken as equal."""


def centred(rewards_pn: np.ndarray) -> np.ndarray:
    """r_i - mean r."""
    return rewards_pn - rewards_pn.mean(axis=1, keepdims=True)


def standardized(rewards_pn: np.ndarray) -> np.ndarray:
    """(r_i - mean r) / std r, with the standard deviation over n; 0 where all rewards are equal."""
    std_p1 = rewards_pn.std(axis=1, keepdims=True)
    equal_p1 = std_p1 <= NO_SPREAD * np.abs(rewards_pn).max(axis=1, keepdims=True)
    return np.where(equal_p1, 0.0, centred(rewards_pn) / np.where(equal_p1, 1.0, std_p1))


def grpo(rewards_pn: np.ndarray, counts_pn: np.ndarray, longest: int) -> Weighed:
    """A_i = (r_i - mean r) / std r, w_i = 1 / |o_i|, z_i = 1: the mean over answers of means over tokens.

    Source: Shao et al. 2024 (DeepSeekMath), equation 3 and section 4.1.2.
    """
    return standardized(rewards_pn), 1 / counts_pn, np.ones(counts_pn.shape)


def dr_grpo(rewards_pn: np.ndarray, counts_pn: np.ndarray, longest: int) -> Weighed:
    """A_i = r_i - mean r, w_i = 1, z_i = the most tokens of an answer: neither the length of an answer nor
    the spread of rewards changes the weight of a token. Its gradient is (1 - 1/n) / longest times that of
    `rloo`.

    Source: Liu et al. 2025, "Understanding R1-Zero-Like Training", section 3.2.
    """
    return centred(rewards_pn), np.ones(counts_pn.shape), np.full(counts_pn.shape, float(longest))


def rloo(rewards_pn: np.ndarray, counts_pn: np.ndarray, longest: int) -> Weighed:
    """A_i = r_i - mean of the other r_j, w_i = 1, z_i = 1: REINFORCE, whose baseline does not depend on o_i,
    so that the first update from each rollout has the gradient of the expected reward in expectation.

    Source: Ahmadian et al. 2024 (Back to Basics), section 2.2; Kool et al. 2019. Later updates, if
    `rollout.updates` is more than 1, are clipped as the others.
    """
    n = rewards_pn.shape[1]
    return centred(rewards_pn) * (n / (n - 1)), np.ones(counts_pn.shape), np.ones(counts_pn.shape)


def dapo(rewards_pn: np.ndarray, counts_pn: np.ndarray, longest: int) -> Weighed:
    """A_i = (r_i - mean r) / std r, w_i = 1, z_i = |o_i|: the mean over all tokens of the batch. The ratio is
    clipped higher above than below (`HIGHER`).

    Source: Yu et al. 2025 (DAPO), equations 8 and 9. Prompts with equal rewards are not drawn again.
    """
    return standardized(rewards_pn), np.ones(counts_pn.shape), counts_pn.astype(float)


ESTIMATORS: dict[str, Estimator] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "dapo": dapo}
"""The values of the key `loss.estimator`."""

HIGHER = {"dapo": 0.28}
"""The upper bound of the ratio, minus 1, of estimators that clip it elsewhere than at `loss.clip` by
default."""


def clipped(log_ratio: jax.Array, advantages: jax.Array, low: float, high: float) -> jax.Array:
    """min(rho A, clip(rho, 1 - low, 1 + high) A), rho = exp(log_ratio), to be maximised.

    Source: Schulman et al. 2017 (PPO), equation 7.
    """
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - low, 1 + high) * advantages)


def k3(log_p: jax.Array, log_q: jax.Array) -> jax.Array:
    """The estimator q/p - log(q/p) - 1 of KL(p || q) from a token that p has drawn: never negative, unbiased.

    Source: Schulman 2020, "Approximating KL divergence", k3; Shao et al. 2024, equation 4.
    """
    return jnp.expm1(log_q - log_p) - (log_q - log_p)
