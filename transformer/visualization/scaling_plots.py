"""Pictures of scaling laws: parabolas of equal budgets, the best size over the budget, and a forecast.

`study` is a `Study` of `transformer.evaluation.statistics.scaling_law`, and `runs` are those of law.json.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.visualization.report import EVAL, MUTED, TRAIN
from transformer.visualization.run_curves import COLOURS, figure_of, save


def draw_isoflop(runs: Sequence[dict[str, Any]], study: Any, path: Path) -> None:
    """Draws the loss over N for each budget: runs, parabolas with their minima, and L(N, D) dashed."""
    figure, axes = figure_of("loss of equal budgets", "N")
    _logarithmic(axes, "x")
    for curve, budget in reversed([*enumerate(study.isoflop.budget_c)]):
        colour = COLOURS[curve % len(COLOURS)]
        points = [(run["n"], run["loss"]) for run in runs if run["budget"] == budget]
        n = np.geomspace(min(points)[0], max(points)[0], 100)
        axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=4)
        axes.plot(
            n, np.exp(study.isoflop.log_loss(n, curve)[:, 0]), color=colour, label=f"{budget:.3g} FLOPs"
        )
        axes.plot(n, [study.law.loss(x, budget / 6 / x)[0] for x in n], "--", color=colour, linewidth=0.9)
        if study.isoflop.between_c[curve]:
            best = np.exp(study.isoflop.log_best_rc[0, curve])
            low = np.exp(study.isoflop.log_loss(np.array([best]), curve)[0, 0])
            axes.plot([best], [low], "*", color=colour, markersize=11)
    save(figure, axes, path)


def draw_optimum(study: Any, path: Path) -> None:
    """Draws N* and D* over the budget, with the 90 % intervals of L(N, D) as bands and the minima of the
    parabolas as points, where they are between the sizes."""
    figure, axes = figure_of("the best N and D", "FLOPs")
    _logarithmic(axes, "x", "y")
    budgets, there_c = study.isoflop.budget_c, study.isoflop.between_c
    seen_c, best_c = budgets[there_c], np.exp(study.isoflop.log_best_rc[0, there_c])
    c = np.geomspace(budgets[0], 5 * budgets[-1], 50)
    low, high = study.band(c)
    n = np.array([study.law.best_n(budget)[0] for budget in c])
    axes.fill_between(c, c / 6 / high, c / 6 / low, color=TRAIN, alpha=0.2, linewidth=0)
    axes.plot(c, c / 6 / n, color=TRAIN, label="D*, tokens")
    axes.plot(seen_c, seen_c / 6 / best_c, "o", color=TRAIN)
    axes.fill_between(c, low, high, color=EVAL, alpha=0.2, linewidth=0)
    axes.plot(c, n, color=EVAL, label="N*, training FLOPs of a token / 6")
    axes.plot(seen_c, best_c, "o", color=EVAL)
    save(figure, axes, path)


def draw_forecast(
    runs: Sequence[dict[str, Any]], study: Any, forecast: dict[str, Any], actual: float, path: Path
) -> None:
    """Draws the loss over the budget: all runs, the least by L(N, D), the forecast with its interval, and the
    run that was trained after it."""
    figure, axes = figure_of("loss, forecast and trained", "FLOPs")
    _logarithmic(axes, "x")
    axes.plot([run["budget"] for run in runs], [run["loss"] for run in runs], "o", color=MUTED, markersize=3)
    c = np.geomspace(min(run["budget"] for run in runs), forecast["budget"], 50)
    axes.plot(c, [study.law.least_loss(budget)[0] for budget in c], color=EVAL, label="L(N*, D*)")
    low, high = forecast["interval"]
    ends = [[forecast["loss"] - low], [high - forecast["loss"]]]
    x = forecast["budget"]
    axes.errorbar([x], [forecast["loss"]], ends, color=EVAL, marker="o", capsize=4, label="forecast, 90 %")
    axes.plot([x * math.exp(0.03)], [actual], "D", color=TRAIN, label="trained")
    save(figure, axes, path)


def _logarithmic(axes: Any, *names: str) -> None:
    for name in names:
        getattr(axes, f"set_{name}scale")("log")
    axes.tick_params(which="both", colors=MUTED, labelsize=9)
