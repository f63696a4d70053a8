"""The picture of a coordinate check."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from transformer.visualization.report import GRID, MUTED
from transformer.visualization.run_curves import COLOURS

NAMED = 6
"""The most layers with a colour and a name."""


def draw_coordinates(coordinates: Any, drifting: Collection[str], path: Path) -> None:
    """Draws the size of each layer's output at initialisation, and its change after each step, over the
    width, relative to that at the smallest. Layers that drift have colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported late: the import takes a second
    from matplotlib.figure import Figure

    steps = next(iter(coordinates.size.values())).shape[2]
    panels = [("size at initialisation", coordinates.size, 0)]
    panels += [
        (f"change after {step} step{'s' * (step > 1)}", coordinates.change, step) for step in range(1, steps)
    ]
    figure = Figure(figsize=(2.7 * len(panels), 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    colours = dict(
        zip([name for name in coordinates.size if name in drifting], COLOURS[:NAMED], strict=False)
    )
    for i, (title, sizes, step) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), i + 1)
        for name, values in sizes.items():
            mean, colour = values[:, :, step].mean(axis=1), colours.get(name, GRID)
            if not 0 < mean[0] < math.inf:
                continue  # there is no logarithm of it
            style: dict[str, Any] = {"linewidth": 1.8, "zorder": 3} if name in colours else {"linewidth": 1.0}
            axes.plot(
                coordinates.widths,
                mean / mean[0],
                color=colour,
                label=name if name in colours else None,
                **style,
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(coordinates.widths, [str(width) for width in coordinates.widths])
        axes.minorticks_off()
        axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("d_model", color=MUTED)
        axes.tick_params(colors=MUTED, labelsize=8)
        for side in axes.spines:
            axes.spines[side].set_visible(side == "bottom")
        axes.spines["bottom"].set_color(GRID)
    if colours:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": 3, "frameon": False, "fontsize": 8}
        figure.legend(handles, labels, labelcolor="linecolor", **place)
    figure.savefig(path)
