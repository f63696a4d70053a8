"""Divergences of distributions against float64, and their limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from experiments.policy.divergences import DIVERGENCES


def expected(name: str, log_p: np.ndarray, log_q: np.ndarray, beta: float) -> np.ndarray:
    """Brute force, in float64."""
    p, q = np.exp(log_p), np.exp(log_q)
    between = lambda a, b: (a * np.log(a / b)).sum(axis=-1)  # noqa: E731
    if name == "jsd":
        m = beta * q + (1 - beta) * p
        return beta * between(q, m) + (1 - beta) * between(p, m)
    return between(q, p) if name == "forward" else between(p, q)


@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_each_is_its_equation_and_0_with_no_gradient_where_both_are_one(name, beta, rng):
    logits_p, logits_q = rng.normal(size=(2, 5, 7)) * 2
    log_p, log_q = log_softmax(logits_p, axis=-1), log_softmax(logits_q, axis=-1)
    found = DIVERGENCES[name](jnp.float32(log_p), jnp.float32(log_q), beta)
    np.testing.assert_allclose(found, expected(name, log_p, log_q, beta), rtol=1e-4, atol=1e-5)
    assert np.min(found) > 1e-3

    def of_logits(x, log_q):
        return DIVERGENCES[name](jax.nn.log_softmax(x), log_q, beta).sum()

    same = jnp.float32(logits_q)
    value, gradient = jax.value_and_grad(of_logits)(same, jax.nn.log_softmax(same))
    assert abs(float(value)) < 1e-5 and np.abs(gradient).max() < 1e-6
    step, gradient = 1e-5, jax.grad(of_logits)(jnp.float32(logits_p), jnp.float32(log_q))
    for place in np.ndindex(2, 3):
        moved = [logits_p.copy(), logits_p.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        up, down = (expected(name, log_softmax(x, axis=-1), log_q, beta).sum() for x in moved)
        assert float(gradient[place]) == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-5)


def test_jsd_tends_to_the_others_at_its_ends(rng):
    log_p, log_q = jnp.float32(log_softmax(rng.normal(size=(2, 4, 6)), axis=-1))
    near = DIVERGENCES["jsd"](log_p, log_q, 0.01) / 0.01
    np.testing.assert_allclose(near, DIVERGENCES["forward"](log_p, log_q, 0.0), rtol=0.05)
    near = DIVERGENCES["jsd"](log_p, log_q, 0.99) / 0.01
    np.testing.assert_allclose(near, DIVERGENCES["reverse"](log_p, log_q, 0.0), rtol=0.05)
