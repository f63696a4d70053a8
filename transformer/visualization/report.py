"""The report of a run: a plot of its curves and a table of its last values."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer.errors import UserError
from transformer.json_text import parse_json
from transformer.run_folder import RunFolder
from transformer.visualization.label_texts import in_markdown, without_formulas

Series = dict[str, tuple[np.ndarray, np.ndarray]]
"""Name of a metric -> its steps, ascending, and its values."""

TRAIN, EVAL, MUTED, GRID = "#3b6fb6", "#d95f30", "#6b7280", "#e5e7eb"
"""The blue and the orange also differ in lightness, for print and colour-blind readers."""

PANELS = {
    "Loss": ("train/loss", "eval/loss"),
    "Loss of answers": ("train/answer_loss", "eval/answer_loss"),
    "Accuracy": ("train/accuracy", "eval/accuracy"),
    "Learning rate": ("train/learning_rate",),
    "Gradient norm": ("train/gradient_norm",),
    "Tokens per second": ("train/tokens_per_second",),
}
"""Title -> the metrics drawn, training first."""


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if not path.is_file():
        raise UserError(f"{path}: there are no metrics")
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        try:
            values = parse_json(line)
            step = values.pop("step")
        except (ValueError, KeyError, TypeError, AttributeError):
            if not line.endswith(b"\n"):  # the last one, of a run that is writing it or was killed there
                return
            raise UserError(f"{path}:{number}: not a JSON object with a step") from None
        yield step, values


def write_report(folder: RunFolder) -> Path:
    """Writes `report.png` and `report.md` from `metrics.jsonl`, and returns the path of the latter.

    Raises:
      UserError: there are no metrics yet.
    """
    series = read_metrics(folder.metrics)
    draw(series, folder.curves)
    page = folder.report
    page.write_text(describe(series, folder.path.resolve().name), encoding="utf-8")
    return page


def last_values(path: Path) -> dict[str, float]:
    """The last value of each metric in a `metrics.jsonl`, NaN if it was not finite; raises as
    `read_metrics`."""
    return {name: float(values[-1]) for name, (_, values) in all_values(path).items()}


def read_metrics(path: Path) -> Series:
    """Every value of a `metrics.jsonl`, without non-finite ones.

    Raises:
      UserError: the file does not exist, is empty, or has a line in another format.
    """
    if not (series := finite_series(all_values(path))):
        raise UserError(f"{path}: there are no metrics in it")
    return series


def all_values(path: Path) -> Series:
    """Every value of a `metrics.jsonl`, NaN where it was not finite.

    Raises:
      UserError: the file does not exist, or has a line in another format.
    """
    points: dict[str, list[tuple[int, float]]] = {}
    for step, values in _lines(path):
        for name, value in values.items():
            points.setdefault(name, []).append((step, math.nan if value is None else value))
    arrays = {name: np.array(pairs) for name, pairs in points.items()}
    return {name: (pairs[:, 0].astype(int), pairs[:, 1]) for name, pairs in arrays.items()}


def finite_series(series: Series) -> Series:
    """The finite values, of the metrics that have some."""
    rows = ((name, steps, values, np.isfinite(values)) for name, (steps, values) in series.items())
    return {name: (steps[finite], values[finite]) for name, steps, values, finite in rows if finite.any()}


def draw(series: Series, path: Path) -> None:
    """Draws the panels that have values; noisy curves also with a running mean."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported late: the import takes a second
    from matplotlib.figure import Figure

    panels = {title: drawn for title, names in PANELS.items() if (drawn := [n for n in names if n in series])}
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(11, 3.6 * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for index, (title, names) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, 2, index + 1)
        for name in names:
            _draw_line(axes, name, *series[name])
        _frame(axes, title, np.concatenate([series[name][1] for name in names]))
        if len(names) > 1:
            axes.legend(frameon=False, loc="best", labelcolor="linecolor")
    figure.savefig(path)


def describe(series: Series, name: str) -> str:
    """The report in Markdown: the plot, and the last, the least and the greatest value of each metric."""
    lines = [
        f"# {in_markdown(name)}",
        "",
        "![Curves of the run](report.png)",
        "",
        "| value | last | at step | least | at step | greatest | at step |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for key, (steps, values) in sorted(series.items()):
        shown = [f"{values[i]:.5g} | {steps[i]}" for i in (-1, values.argmin(), values.argmax())]
        lines.append(f"| {in_markdown(key)} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """The running mean over `window // 2` neighbours on either side, truncated at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first = np.maximum(places - window // 2, 0)
    end = np.minimum(places + window // 2 + 1, len(values))
    return (sums[end] - sums[first]) / (end - first)


def axis_limit(values: np.ndarray) -> float:
    """The upper end of an axis: the greatest value, or their 98th percentile if that is out of proportion,
    as the first losses may be, which would flatten the rest. Of fewer than eight all are shown."""
    least, usual, most = np.percentile(values, (0, 98, 100), method="lower")
    return float(usual if len(values) >= 8 and most - least > 3 * (usual - least) > 0 else most)


def _draw_line(axes: Any, name: str, steps: np.ndarray, values: np.ndarray) -> None:
    if name.startswith("eval/"):
        axes.plot(
            steps, values, color=EVAL, marker="o", markersize=4, linewidth=1.6, label="validation", zorder=3
        )
        axes.annotate(
            f"{values[-1]:.4g}",
            (steps[-1], values[-1]),
            (0, 7),
            textcoords="offset points",
            ha="right",
            va="bottom",
            color=EVAL,
            fontsize=9,
        )
    elif name == "train/learning_rate" or len(values) < 20:
        alone = "o" if len(values) == 1 else ""  # of one point there is no line
        axes.plot(steps, values, alone, color=TRAIN, linewidth=1.6, markersize=4, label="training")
    else:
        axes.plot(steps, values, color=TRAIN, linewidth=0.8, alpha=0.3)
        axes.plot(steps, smooth(values, len(values) // 20 | 1), color=TRAIN, linewidth=1.8, label="training")


def _frame(axes: Any, title: str, values: np.ndarray) -> None:
    without_formulas([axes.set_title(title, loc="left", fontsize=11, fontweight="bold")])
    axes.set_xlabel("step", color=MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    for side in axes.spines:
        axes.spines[side].set_visible(side == "bottom")
    axes.spines["bottom"].set_color(GRID)
    if title == "Learning rate":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    elif title == "Tokens per second":
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
    elif (top := axis_limit(values)) > (bottom := values.min()):
        axes.set_ylim(bottom - 0.06 * (top - bottom), top + 0.1 * (top - bottom))
