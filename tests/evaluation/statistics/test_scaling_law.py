"""Scaling laws: recovered from runs without noise, and intervals that hold what they promise with it."""

import math

import numpy as np
import pytest
from scipy import optimize

from transformer.evaluation.statistics.scaling_law import HUBER, Law, fit_isoflop, fit_law, interval, study

BUDGETS = np.array([1.5e11, 3e11, 6e11, 1.2e12])
SIZES = np.array([20e3, 48e3, 94e3, 162e3, 258e3])


def true_law(a=0.4, b=0.35, e=1.2):
    """A law whose terms are about one at 1e5 multiplications a token and at 2e6 tokens."""
    values = math.log(e), math.log(1e5) * a, math.log(2e6) * b, a, b
    return Law(*(np.array([value]) for value in values))


def drawn_runs(rng, law, noise=0.0, seeds=1):
    """N, D, budget and loss of every size and budget."""
    budget_k = np.repeat(BUDGETS, len(SIZES) * seeds)
    n_k = np.tile(np.repeat(SIZES, seeds), len(BUDGETS))
    d_k = budget_k / 6 / n_k
    loss_k = np.array([law.loss(n, d)[0] for n, d in zip(n_k, d_k, strict=True)])
    return n_k, d_k, budget_k, loss_k * np.exp(noise * rng.normal(size=len(n_k)))


def test_a_law_without_noise_is_recovered(rng):
    for _ in range(5):
        law = true_law(*rng.uniform([0.25, 0.25, 0.5], [0.7, 0.7, 2.0]))
        n_k, d_k, _, loss_k = drawn_runs(rng, law)
        found = fit_law(n_k, d_k, loss_k[None])
        for name in ("log_e", "log_a", "log_b", "a", "b"):
            assert getattr(found, name) == pytest.approx(getattr(law, name), rel=1e-3, abs=1e-3)
        c = 6e12
        assert found.loss(1e5, 1e7) == pytest.approx(law.loss(1e5, 1e7), rel=1e-6)
        assert found.best_n(c) == pytest.approx(law.best_n(c), rel=1e-3)


def test_the_best_size_has_the_least_loss(rng):
    a, b = rng.uniform(0.2, 0.8, 2)
    law, c = true_law(a, b), 3e12
    found = optimize.minimize_scalar(
        lambda u: law.loss(math.exp(u), c / 6 / math.exp(u))[0], bounds=(5, 25), options={"xatol": 1e-9}
    )
    assert law.best_n(c)[0] == pytest.approx(math.exp(found.x), rel=1e-4)
    assert law.least_loss(c)[0] == pytest.approx(found.fun, rel=1e-9)
    assert law.best_n(4 * c) / law.best_n(c) == pytest.approx(4**law.exponent)


def huber(p, n_k, d_k, loss_k):
    """The Huber loss of log L, as its definition says."""
    e, log_a, log_b, a, b = p
    fitted = np.exp(e) + np.exp(log_a) / n_k**a + np.exp(log_b) / d_k**b
    size = np.abs(np.log(fitted) - np.log(loss_k))
    return float(np.where(size < HUBER, size**2 / 2, HUBER * (size - HUBER / 2)).sum())


def test_a_fit_is_where_another_optimiser_ends(rng):
    """Nelder-Mead, started there and elsewhere, finds nothing lower; some runs are outliers."""
    for _ in range(3):
        n_k, d_k, _, loss_k = drawn_runs(rng, true_law(*rng.uniform(0.3, 0.6, 2)), noise=0.004)
        loss_k[rng.integers(len(loss_k))] *= 1.05
        law = fit_law(n_k, d_k, loss_k[None])
        ours = np.array([law.log_e, law.log_a, law.log_b, law.a, law.b])[:, 0]
        reached = huber(ours, n_k, d_k, loss_k)
        for start in (ours, ours * rng.uniform(0.95, 1.05, 5)):
            options = {"maxiter": 4000, "maxfev": 4000, "xatol": 1e-9, "fatol": 1e-13}
            other = optimize.minimize(huber, start, (n_k, d_k, loss_k), "Nelder-Mead", options=options)
            assert reached <= other.fun * (1 + 1e-3)


def test_a_run_that_went_wrong_does_not_decide(rng):
    law = true_law()
    n_k, d_k, _, loss_k = drawn_runs(rng, law, noise=0.001)
    loss_k[7] *= 1.3
    found = fit_law(n_k, d_k, loss_k[None])
    assert found.loss(2e5, 5e6) == pytest.approx(law.loss(2e5, 5e6), rel=0.01)
    assert found.exponent == pytest.approx(law.exponent, abs=0.05)


def test_parabolas_are_recovered_with_the_power_law_of_their_minima(rng):
    x, log_g = rng.uniform(0.3, 0.7), rng.normal(-3, 0.1)
    n_k, best_k, budget_k, loss_k = parabolic(rng, x, log_g)
    found = fit_isoflop(n_k, budget_k, loss_k[None])
    assert np.exp(found.log_best_rc[0]) == pytest.approx(best_k[::5])
    assert found.exponent[0] == pytest.approx(x)
    assert found.best_n(1e14)[0] == pytest.approx(math.exp(log_g) * 1e14**x)
    assert np.exp(found.log_loss(n_k[5:10], 1)[:, 0]) == pytest.approx(loss_k[5:10])
    upside_down = fit_isoflop(n_k, budget_k, 1 / loss_k[None])
    assert np.isnan(upside_down.exponent).all()


def parabolic(rng, x, log_g):
    """N, budget and loss where the loss of each budget is a parabola in log N around N* = exp(log_g) C^x."""
    budget_k = np.repeat(BUDGETS, 5)
    best_k = np.exp(log_g + x * np.log(budget_k))
    n_k = best_k * np.tile(np.exp(rng.uniform(-1, 1, 5)), len(BUDGETS))
    return n_k, best_k, budget_k, 2 * budget_k**-0.02 * np.exp(0.1 * np.log(n_k / best_k) ** 2)


def covered(rng, trials, samples, noise, law):
    """The shares of studies whose intervals have the exponent, N* and the loss of a run for 5 times the
    budget, and the exponent by parabolas where these are the truth."""
    hits, c = np.zeros(4), 5 * BUDGETS[-1]
    best = law.best_n(c)[0]
    for _ in range(trials):
        found = study(*drawn_runs(rng, law, noise), samples)
        n_k, _, budget_k, loss_k = parabolic(rng, 0.45, -3)
        loss_k = loss_k * np.exp(noise * rng.normal(size=len(loss_k)))
        isoflops = study(n_k, budget_k / 6 / n_k, budget_k, loss_k, samples).isoflops
        new = law.loss(best, c / 6 / best)[0] * math.exp(noise * rng.normal())
        for i, (truth, ends) in enumerate(
            (
                (law.exponent[0], interval(found.laws.exponent)),
                (best, interval(found.laws.best_n(c))),
                (new, found.forecast(best, c / 6 / best)[1:]),
                (0.45, interval(isoflops.exponent)),
            )
        ):
            hits[i] += ends[0] <= truth <= ends[1]
    return hits / trials


def test_intervals_are_about_right(rng):
    shares = covered(rng, 12, 100, 0.004, true_law())
    assert (shares >= 0.5).all() and shares.mean() < 1


@pytest.mark.thorough
def test_intervals_of_90_percent_cover_90_percent(rng):
    """In 200 studies, with 4 standard deviations of a count on both sides."""
    shares = covered(rng, 200, 100, 0.004, true_law())
    away = 4 * math.sqrt(0.9 * 0.1 / 200)
    assert (np.abs(shares - 0.9) < away).all(), shares


def test_few_runs_have_wide_intervals(rng):
    """The same errors in twice as many runs halve the variance, and in few runs Student's t is wide."""
    law = true_law()
    widths = []
    for seeds in (1, 4):
        each = [study(*drawn_runs(rng, law, 0.004, seeds), 200) for _ in range(8)]
        widths.append(np.mean([np.subtract(*interval(one.laws.exponent)[::-1]) for one in each]))
    assert 1.5 < widths[0] / widths[1] < 3
