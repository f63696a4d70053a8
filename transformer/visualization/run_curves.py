"""Pictures of several runs: curves with bands over seeds, and a metric over a key."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.visualization.label_texts import without_formulas
from transformer.visualization.report import EVAL, GRID, MUTED, TRAIN

Curve = tuple[np.ndarray, np.ndarray]
"""Steps, ascending, and values."""

Points = tuple[str, Sequence[float], Sequence[Sequence[float]]]
"""A label, values of a key, ascending, and for each of them values of a metric."""

COLOURS = (EVAL, TRAIN, "#3f8f5b", "#8a5fb0", "#b8892b", "#2a9d9d", "#c2517a", "#5b5f66")
"""Of the best rows, in this order."""

POINTS_TO_CUT = 20
"""A curve of that many points is cut off above, where its first steps are."""

LINE = 100
"""Characters of a legend that fit beside one another, with the handles."""

LEAST_SPACE = 0.08
"""Values of a key are written below their points if neighbours are this part of a logarithmic axis apart."""


def draw_curves(rows: Sequence[tuple[str, Sequence[Curve]]], metric: str, path: Path) -> None:
    """Draws the mean of each row's runs, and a band from their least to their greatest value. `rows` are
    (label, a curve of each run), best first; those beyond the colours are grey."""
    figure, axes = figure_of(metric, "step")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    everything = [np.zeros(0)]
    for number, (label, curves) in reversed([*enumerate(rows)]):
        by_step = [dict(zip(steps.tolist(), values.tolist(), strict=True)) for steps, values in curves]
        steps = sorted(set.intersection(*map(set, by_step))) if by_step else []
        if not steps:
            continue
        values = np.array([[curve[step] for step in steps] for curve in by_step])
        colour, label = (COLOURS[number], label) if number < len(COLOURS) else (GRID, "")
        alone = "o" if len(steps) == 1 else ""  # of one point there is no line
        axes.plot(steps, values.mean(0), alone, color=colour, linewidth=1.8, label=label or None)
        if len(values) > 1:
            axes.fill_between(steps, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
        everything.append(values.ravel())
    drawn = np.concatenate(everything)
    most = 95 if max(map(len, everything)) >= POINTS_TO_CUT else 100
    low, high = np.percentile(drawn, [0, most]) if len(drawn) else (0, 0)
    if high > low:  # the first of many steps would flatten the rest
        axes.set_ylim(low - 0.06 * (high - low), high + 0.1 * (high - low))
    save(figure, axes, path)


def draw_over_key(curves: Sequence[Points], key: str, metric: str, path: Path) -> None:
    """Draws the means and all values of a metric over the values of a key, on a logarithmic axis where these
    are positive and spread over a factor of 4. Curves of one value each, as of a search, are points of one
    colour. A cross at the top is where a run has diverged."""
    figure, axes = figure_of(metric, key)
    places = sorted({x for _, xs, _ in curves for x in xs})
    if places[0] > 0 and places[-1] >= 4 * places[0]:
        axes.set_xscale("log")
        logs = np.log(places)
        if np.diff(logs).min() >= LEAST_SPACE * (logs[-1] - logs[0]):
            axes.set_xticks(places, [f"{x:g}" for x in places])
            axes.minorticks_off()
    scattered = len(curves) > 1 and all(len(xs) == 1 for _, xs, _ in curves)
    for number, (label, xs, values) in reversed([*enumerate(curves)]):
        colour = COLOURS[number] if number < len(COLOURS) else GRID
        if scattered:
            colour, label = COLOURS[0], ""
        pairs = [(x, runs) for x, runs in zip(xs, values, strict=True) if len(runs)]
        axes.plot(
            [x for x, _ in pairs],
            [np.mean(runs) for _, runs in pairs],
            color=colour,
            linewidth=1.8,
            label=label or None,
        )
        for x, runs in pairs:
            axes.plot([x] * len(runs), runs, "o", color=colour, markersize=4, alpha=0.5)
    lost = sorted(
        {x for _, xs, values in curves for x, runs in zip(xs, values, strict=True) if np.isnan(runs).any()}
    )
    if lost:
        top = axes.get_xaxis_transform()
        axes.plot(lost, [1.0] * len(lost), "x", color=MUTED, transform=top, clip_on=False, label="diverged")
    save(figure, axes, path)


def draw_differences(rows: Sequence[tuple[str, float, tuple[float, float]]], metric: str, path: Path) -> None:
    """Draws mean differences with their intervals, from above in the order of `rows`, which are (label, mean,
    interval); those whose interval has zero in it are grey."""
    figure, axes = figure_of(metric, "difference")
    figure.set_figheight(1.4 + 0.3 * len(rows))
    axes.axvline(0.0, color=MUTED, linewidth=0.8)
    for place, (_, mean, (low, high)) in enumerate(rows):
        colour = MUTED if low <= 0 <= high else EVAL
        if np.isfinite(low):
            axes.plot([low, high], [place, place], color=colour, linewidth=1.8)
        axes.plot(mean, place, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(rows)), [label for label, _, _ in rows])
    without_formulas(axes.get_yticklabels())
    axes.invert_yaxis()
    save(figure, axes, path)


def figure_of(metric: str, under: str) -> tuple[Any, Any]:
    """An empty figure and its axes, titled with a metric and what is on the horizontal axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported late: the import takes a second
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    without_formulas([axes.set_title(metric, loc="left", fontsize=11, fontweight="bold")])
    axes.set_xlabel(under, color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines:
        axes.spines[side].set_visible(side == "bottom")
    axes.spines["bottom"].set_color(GRID)
    return figure, axes


def save(figure: Any, axes: Any, path: Path) -> None:
    """Writes a figure, with a legend in the order of the table below it, where it covers no curve."""
    handles, labels = axes.get_legend_handles_labels()
    if labels:
        columns = min(len(labels), max(1, LINE // (len(max(labels, key=len)) + 6)))
        figure.set_figheight(figure.get_figheight() + 0.2 * -(-len(labels) // columns))
        options = {"frameon": False, "fontsize": 9, "labelcolor": "linecolor", "ncols": columns}
        legend = figure.legend(handles[::-1], labels[::-1], loc="outside lower left", **options)
        without_formulas(legend.get_texts())
    figure.savefig(path)
