"""Attention maps: heat maps of attention weights; and of other tables of numbers."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.visualization.label_texts import shortened, without_formulas
from transformer.visualization.report import MUTED, TRAIN

HEADS = 8
"""The number of heads that are drawn individually."""

CELL, SHORTEST, LONGEST = 0.36, 1.6, 14.0
"""Inches: the side of a cell of the large map, and the limits of the sides of that map."""

SMALLEST = 4.0
"""Points: the size of the smallest labels. Where they do not fit, every second or third token has one, or
fewer."""

SHORT = 8
"""Characters of a label for which every picture has room."""

COLORS = ("#ffffff", "#dbe6f4", "#8fb0da", TRAIN, "#173a6b")
"""The colour map, from weight 0 to the largest weight."""

SIGNED = ("#7d1d27", "#d9808a", "#ffffff", "#8fb0da", "#173a6b")
"""The colour map of numbers of both signs, from the most negative."""

VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥"})
"""Makes white space in tokens visible."""


def draw_attention(
    weights_hts: np.ndarray, target_tokens: Sequence[str], source_tokens: Sequence[str], path: Path
) -> None:
    """Draws attention weights (h, t, s) as a PNG: a row for each target token, a column for each source
    token.

    The large map is the mean over all heads; the first `HEADS` heads are drawn beside it. All maps share one
    colour scale, from 0 to the largest weight drawn.

    Raises:
      ValueError: the numbers of tokens do not match the weights.
    """
    weights_hts = np.asarray(weights_hts, np.float32)
    if weights_hts.shape[1:] != (len(target_tokens), len(source_tokens)):
        counts = f"{len(target_tokens)} target and {len(source_tokens)} source tokens"
        raise ValueError(f"weights of shape (h, t, s) {weights_hts.shape} do not fit {counts}")
    heads, t, s = weights_hts.shape
    shown = min(heads, HEADS) if heads > 1 else 0
    cell = min(CELL, LONGEST / max(t, s))
    width, height = max(cell * s, SHORTEST), max(cell * t, SHORTEST)
    columns = -(-shown // 2)
    maps = {"mean of all heads" if shown else "": weights_hts.mean(axis=0)}
    maps |= {f"head {head + 1}": weights_hts[head] for head in range(shown)}
    look = _look(maps.values())
    beside, above = _room(target_tokens, cell), _room(source_tokens, cell)
    figure = _figure(width * (1 + columns / 2) + 2.2 + beside, height + 1.4 + above)
    grid = figure.add_gridspec(2, 1 + columns, width_ratios=[2] + [1] * columns)
    for index, (title, weights_ts) in enumerate(maps.items()):
        place = grid[:, 0] if index == 0 else grid[(index - 1) // columns, 1 + (index - 1) % columns]
        axes = figure.add_subplot(place)
        picture = _map(axes, title, weights_ts, cell * (1 if index else 2), look)
        axes.set_aspect(height / t / (width / s))
        if index:
            axes.set(xticks=[], yticks=[])
        else:
            _label(axes, target_tokens, source_tokens, cell)
            main = axes
    main.set_ylabel("target", color=MUTED)
    _save(figure, picture, path)


def draw_beside(maps: Mapping[str, tuple[np.ndarray, Sequence[str], Sequence[str]]], path: Path) -> None:
    """Draws the attention maps of several models over the same source tokens, one above the other, as a PNG:
    under the name of each the mean over its heads, with a row for each of its own target tokens. All share
    one colour scale."""
    means = {name: np.asarray(attention[0], np.float32).mean(axis=0) for name, attention in maps.items()}
    rows, columns = (
        [len(mean_ts) for mean_ts in means.values()],
        max(mean_ts.shape[1] for mean_ts in means.values()),
    )
    cell = min(CELL, LONGEST / max(*rows, columns))
    look = _look(means.values())
    beside = max(_room(target_tokens, cell) for _, target_tokens, _ in maps.values())
    above = sum(_room(source_tokens, cell) for *_, source_tokens in maps.values())
    figure = _figure(max(cell * columns, SHORTEST) + 2.2 + beside, cell * sum(rows) + 1.1 * len(rows) + above)
    panels = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (name, weights_ts) in zip(panels, means.items(), strict=True):
        picture = _map(axes, name, weights_ts, 2 * cell, look)
        axes.set_aspect("equal")
        _label(axes, *maps[name][1:], cell)
        axes.set_xlabel("")
        axes.set_ylabel("target", color=MUTED)
    axes.set_xlabel("source", color=MUTED)
    _save(figure, picture, path)


def _look(weights: Iterable[np.ndarray]) -> dict[str, Any]:
    """The colours of maps, from 0 to the largest weight in any of them."""
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("weights", COLORS)
    return {"cmap": colors, "vmin": 0.0, "vmax": max(float(weights_ts.max()) for weights_ts in weights)}


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported late: the import takes a second
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    FigureCanvasAgg(figure)
    return figure


def _map(axes: Any, title: str, weights_ts: np.ndarray, line: float, look: dict[str, Any]) -> Any:
    picture = axes.pcolormesh(weights_ts, edgecolors="#f1f3f6", linewidth=line, **look)
    axes.invert_yaxis()
    axes.set_title(title, loc="left", fontsize=9, color=MUTED)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_color("#c9ced6")
    return picture


def _save(figure: Any, picture: Any, path: Path) -> None:
    bar = figure.colorbar(picture, ax=figure.axes, location="right", shrink=0.6, pad=0.02, aspect=25)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, colors=MUTED, labelsize=8)
    figure.savefig(path, bbox_inches="tight", pad_inches=0.15)


def _size(cell: float) -> float:
    """The size of the labels of cells, in points."""
    return min(10.0, max(SMALLEST, 0.5 * 72 * cell))


def _room(tokens: Sequence[str], cell: float) -> float:
    """Inches that labels take beyond those of `SHORT` characters."""
    longest = max(len(shortened(token)) for token in tokens)
    return max(0, longest - SHORT) * 0.6 * _size(cell) / 72


def _label(axes: Any, target_tokens: Sequence[str], source_tokens: Sequence[str], cell: float) -> None:
    size, every = _size(cell), math.ceil(max(1.0, SMALLEST / (0.5 * 72 * cell)))
    axes.xaxis.tick_top()
    axes.set_xlabel("source", color=MUTED)
    axes.xaxis.set_label_position("bottom")
    for axis, tokens in ((axes.xaxis, source_tokens), (axes.yaxis, target_tokens)):
        texts = [shortened(visible(token)) for token in tokens[::every]]
        axis.set_ticks(every * np.arange(len(texts)) + 0.5, texts, fontsize=size)
        without_formulas(axis.get_ticklabels())
    for label in axes.get_xticklabels():
        if len(label.get_text()) > 2:
            label.set(rotation=60, ha="left", va="bottom", rotation_mode="anchor")


def visible(token: str) -> str:
    """A token with visible white space, and a dot for unprintable characters, such as a part of one."""
    return "".join(c if c.isprintable() else "·" for c in token.translate(VISIBLE))


def draw_grid(
    values_rc: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    path: Path,
    title: str = "",
    texts: Sequence[Sequence[str]] | None = None,
) -> None:
    """Draws a table of numbers as a heat map, with a text in each cell if there are `texts`: white is 0, blue
    is positive, and red negative, if there are such numbers, on the same scale."""
    from matplotlib.colors import LinearSegmentedColormap

    values_rc = np.asarray(values_rc, np.float64)
    cell = min(CELL if texts is None else 2 * CELL, LONGEST / max(values_rc.shape))
    most = max(float(np.abs(values_rc).max()), 1e-9)
    look: dict[str, Any] = {"cmap": LinearSegmentedColormap.from_list("signed", SIGNED), "vmax": most}
    look = look | {"vmin": -most} if values_rc.min() < -0.01 * most else _look([values_rc])
    width, height = (max(cell * count, SHORTEST) for count in values_rc.shape[::-1])
    figure = _figure(width + 2.2 + _room(rows, cell), height + 1.1 + _room(columns, cell))
    axes = figure.subplots()
    picture = _map(axes, title, values_rc, 2 * cell, look)
    _label(axes, rows, columns, cell)
    axes.set_xlabel("")
    for row, column in np.ndindex(values_rc.shape) if texts else ():
        color = "white" if abs(values_rc[row, column]) > 0.6 * most else "black"
        label = axes.text(column + 0.5, row + 0.5, visible((texts or ())[row][column])[:SHORT], color=color)
        label.set(ha="center", va="center", fontsize=_size(cell) * 0.7)
        without_formulas([label])
    _save(figure, picture, path)
