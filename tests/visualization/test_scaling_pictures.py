"""Pictures of scaling laws: what is drawn."""

import numpy as np
import pytest

from transformer.evaluation.statistics.scaling_law import study
from transformer.visualization.scaling_plots import draw_isoflop, draw_optimum


@pytest.mark.parametrize(("shift", "there"), [(0.0, [True, True]), (3.0, [False, True])])
def test_minima_are_drawn_where_they_are_between_the_sizes(tmp_path, rng, figures, shift, there):
    """Those of the first budget are at `shift` from the middle of log N, which has 1 to each side."""
    budgets, middles = np.array([1e12, 4e12]), np.log([1e5, 2e5])
    away_2k = np.tile(np.linspace(-1, 1, 5), (2, 1))
    n_k = np.exp(middles[:, None] + away_2k).ravel()
    loss_k = np.exp(0.1 * (away_2k - [[shift], [0]]) ** 2 - [[0], [0.1]]).ravel()
    budget_k, d_k = np.repeat(budgets, 5), np.repeat(budgets, 5) / 6 / n_k
    found = study(n_k, d_k, budget_k, loss_k * np.exp(0.001 * rng.normal(size=10)), samples=20)
    keys = ("n", "d", "budget", "loss")
    runs = [dict(zip(keys, each, strict=True)) for each in zip(n_k, d_k, budget_k, loss_k, strict=True)]
    draw_isoflop(runs, found, tmp_path / "isoflop.png")
    draw_optimum(found, tmp_path / "optimum.png")
    isoflop, optimum = ([*figure.axes[0].get_lines()] for figure in figures)
    assert sum(line.get_marker() == "*" for line in isoflop) == sum(there)
    points = [line.get_xdata() for line in optimum if line.get_marker() == "o"]
    assert [each.tolist() for each in points] == [budgets[there].tolist()] * 2
