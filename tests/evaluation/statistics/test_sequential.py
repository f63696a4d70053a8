"""The sequential test: its formulas against numerical integration, and the rates that it promises."""

import math
import statistics

import pytest
from scipy import integrate, stats

from transformer.evaluation.statistics.sequential import (
    EFFECT,
    evidence,
    interval,
    pairs_needed,
    rate_interval,
    verdict,
)


def test_the_evidence_is_a_ratio_of_likelihoods_of_t(rng):
    """Against the noncentral t distribution, averaged over normal effects."""
    for n in (2, 5, 12):
        d = rng.normal(0.7, 1.3, n)
        t = math.sqrt(n) * d.mean() / d.std(ddof=1)

        def likelihood(effect, n=n, t=t):
            return stats.nct.pdf(t, n - 1, math.sqrt(n) * effect) * stats.norm.pdf(effect, 0, EFFECT)

        above, _ = integrate.quad(likelihood, -8 * EFFECT, 8 * EFFECT, limit=400, points=[0.0])
        assert evidence(list(d)) == pytest.approx(math.log(above / stats.t.pdf(t, n - 1)), rel=1e-5, abs=1e-6)


def test_the_ends_of_the_interval_have_that_evidence(rng):
    for n in (4, 7, 30):
        d = list(rng.normal(3.0, 0.5, n))
        for error in (0.05, 0.3):
            low, high = interval(d, error)
            assert (low + high) / 2 == pytest.approx(statistics.fmean(d))
            if math.isfinite(low):
                assert evidence(d, low) == pytest.approx(math.log(1 / error))
                assert evidence(d, high) == pytest.approx(math.log(1 / error))
                assert evidence(d, high + 0.1) > math.log(1 / error) > evidence(d, high - 0.01)


def shown_within(draws, pairs, error, smallest=0.0):
    """The first verdict on each row of differences, looked at after each pair."""
    found = []
    for row in draws:
        verdicts = (verdict(list(row[:n]), error, smallest) for n in range(1, pairs + 1))
        found.append(next((each for each in verdicts if each), ""))
    return found


@pytest.mark.parametrize("error", [0.05, 0.2])
def test_equal_ones_are_called_different_at_most_at_the_promised_rate(rng, error):
    wrong = sum(each != "" for each in shown_within(rng.normal(0, 3e-3, (300, 20)), 20, error))
    assert wrong <= 300 * error + 3 * math.sqrt(300 * error * (1 - error))
    assert wrong > 0


def test_planted_differences_are_found(rng):
    """An effect of two standard deviations in 12 pairs, nearly always, and with the right sign."""
    found = shown_within(rng.normal(-0.02, 0.01, (200, 12)), 12, 0.05)
    assert found.count("less") >= 190
    assert found.count("more") <= 3


def test_no_difference_that_matters_is_an_answer(rng):
    found = shown_within(rng.normal(0.001, 0.004, (50, 20)), 20, 0.05, smallest=0.01)
    assert found.count("same") >= 45


def test_of_few_or_equal_pairs_nothing_follows():
    assert interval([0.3], 0.05) == (-math.inf, math.inf)
    assert interval([0.3, 0.31], 0.05) == (-math.inf, math.inf)
    assert verdict([0.3, 0.31], 0.05) == ""
    assert verdict([0.0] * 9, 0.05) == ""
    assert evidence([0.0] * 9) == 0.0


def test_a_rate_is_where_its_likelihood_is_not_far_below_that_of_any_rate():
    for count, total in ((0, 5), (3, 9), (7, 7), (40, 100)):
        whole, _ = integrate.quad(lambda p, k=count, n=total: stats.binom.pmf(k, n, p), 0, 1)
        ends = rate_interval(count, total, 0.1)
        for end, has_end in zip(ends, (count == 0, count == total), strict=True):
            assert (
                end == round(end)
                if has_end
                else (stats.binom.pmf(count, total, end) == pytest.approx(0.1 * whole))
            )
        assert ends[0] <= count / total <= ends[1]
    assert rate_interval(0, 0, 0.1) == (0, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("p", [0.05, 0.5])
def test_a_rate_is_outside_at_any_time_at_most_as_often_as_promised(rng, p):
    """Looked at after each of 60 runs, where an interval for 60 alone would miss far more often."""
    missed = 0
    for row in rng.random((300, 60)) < p:
        ends = (rate_interval(int(row[:n].sum()), n, 0.1) for n in range(1, 61))
        missed += any(not low <= p <= high for low, high in ends)
    assert 0 < missed <= 300 * 0.1 + 3 * math.sqrt(300 * 0.1 * 0.9)


def test_how_many_more_are_needed(rng):
    """With as many more pairs of the same mean and spread there is a verdict, and not with one fewer."""
    d = [0.01, -0.005, 0.02, 0.004]
    more = pairs_needed(d, 0.05)
    mean, spread = statistics.fmean(d), statistics.stdev(d)
    for extra, shown in ((more - 1, ""), (more, "more")):
        n = len(d) + extra
        drawn = rng.normal(size=n)
        same = mean + spread * (drawn - drawn.mean()) / drawn.std(ddof=1)
        assert verdict(list(same), 0.05) == shown
    assert pairs_needed([1e-9, -1e-9, 1e-9, -1e-9], 0.05) == 0
    assert 0 < pairs_needed([1e-9, -1e-9, 1e-9, -1e-9], 0.05, smallest=1e-8) < 10
