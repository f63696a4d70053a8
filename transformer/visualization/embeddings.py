"""A map of vectors: the plane in which they differ most, each point with its name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.visualization.report import GRID, MUTED, TRAIN

DISTANCES = (1, 3, 5, 7, 10, 14)
"""How far a label may stand from its point, in thirds of its height; the nearest free place is taken."""


def project(vectors_nd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) vectors -> their coordinates (n, 2) along the two directions in which they vary most, and the
    share (2,) of the whole variance that each direction has: principal components, from the singular values
    of the centred vectors. The coordinate that is farthest from 0 is positive in each.

    Raises:
      ValueError: fewer than three vectors, or of fewer than two dimensions.
    """
    vectors_nd = np.asarray(vectors_nd, np.float64)
    if vectors_nd.shape[0] < 3 or vectors_nd.shape[1] < 2:
        raise ValueError(f"vectors of shape (n, d) {vectors_nd.shape} span no plane")
    u_nk, s_k, _ = np.linalg.svd(vectors_nd - vectors_nd.mean(axis=0), full_matrices=False)
    places_n2 = u_nk[:, :2] * s_k[:2]
    farthest = places_n2[np.abs(places_n2).argmax(axis=0), [0, 1]]
    return places_n2 * np.where(farthest < 0, -1, 1), s_k[:2] ** 2 / max(np.sum(s_k**2), 1e-30)


def draw_map(vectors_nd: np.ndarray, labels: Sequence[str], path: Path) -> None:
    """Draws `project` of vectors (n, d), with a label for each: beside its point, or at the end of a line
    from there, where it covers neither points nor other labels; in pale grey where there is no such place.

    Raises:
      ValueError: there are not as many labels as vectors, or the vectors span no plane.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # takes a second: not where nothing is drawn
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    if len(labels) != len(vectors_nd):
        raise ValueError(f"{len(labels)} labels for {len(vectors_nd)} vectors")
    places_n2, shares = project(vectors_nd)
    side = 7.0 if len(labels) <= 40 else 11.0
    figure = Figure(figsize=(side, side), dpi=130, layout="constrained")
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes: Any = figure.add_subplot()
    axes.scatter(*places_n2.T, s=12, color=TRAIN, zorder=2)
    for name, share in zip("xy", shares, strict=True):
        axes.set(**{f"{name}label": f"{share:.0%} of the variance"})
    axes.margins(0.08)
    axes.tick_params(length=0, colors=MUTED, labelsize=8)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for line in axes.spines.values():
        line.set_visible(False)
    figure.draw_without_rendering()  # fixes where the points are
    points_n2 = axes.transData.transform(places_n2)
    boxes = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in points_n2]
    for place, label in zip(places_n2, labels, strict=True):
        text = axes.annotate(
            label,
            place,
            (0, 0),
            textcoords="offset points",
            fontsize=9,
            parse_math=False,  # a word may be a dollar sign
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2},
        )
        boxes.append(_put_beside(text, boxes, renderer))
    figure.savefig(path)


def _put_beside(text: Any, boxes: Sequence[Any], renderer: Any) -> Any:
    """Moves a label to where it covers none of the boxes; its own box there."""
    for distance in DISTANCES:
        for horizontal, vertical in (
            ("left", "bottom"),
            ("right", "bottom"),
            ("left", "top"),
            ("right", "top"),
        ):
            text.set(ha=horizontal, va=vertical)
            text.xyann = (
                3 * distance if horizontal == "left" else -3 * distance,
                3 * distance if vertical == "bottom" else -3 * distance,
            )
            box = text.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in boxes):
                return box
    text.set(color="#b6bcc6", zorder=1)
    return box
