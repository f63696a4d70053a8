"""A map of embeddings: a labelled scatter plot of their first two principal components."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer.visualization.label_texts import fonts_of, shortened
from transformer.visualization.report import GRID, MUTED, TRAIN

DISTANCES = (5, 16, 28, 42, 60, 80)
"""Pixels between a point and its label, along both axes; the nearest free position is taken."""

FAINT = "#b6bcc6"
"""The colour of a label that overlaps another."""

RADIUS = 5
"""Pixels around a point that labels keep free."""


def project(vectors_nd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first two principal components (n, 2) of vectors (n, d), by an SVD of the centred vectors, and the
    share (2,) of the variance that each explains. Signs are such that the coordinate of largest magnitude is
    positive.

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


def arrange(
    points_n2: np.ndarray, sizes_n2: np.ndarray, bounds_22: Any = ((-np.inf,) * 2, (np.inf,) * 2)
) -> tuple[np.ndarray, np.ndarray]:
    """Places labels of (width, height) at points, all in pixels: returns the lower left corner (n, 2) of each
    label, and whether (n,) it overlaps no point and no earlier label. Each label takes the nearest position
    among four corners at six distances that is free and within the bounds, the lower left and upper right
    corner of an area; or the nearest that is free, or that is within the bounds, or the nearest."""
    boxes = [np.concatenate([points_n2 - RADIUS, points_n2 + RADIUS], axis=1)]
    corners, free = np.zeros_like(points_n2), np.zeros(len(points_n2), bool)
    for i, (point, size) in enumerate(zip(points_n2, sizes_n2, strict=True)):
        places = [
            point + np.where(np.array(side) > 0, distance, -distance - size)
            for distance in DISTANCES
            for side in ((1, 1), (-1, 1), (1, -1), (-1, -1))
        ]
        low_k2, obstacles = np.stack(places), np.concatenate(boxes)
        high_k2 = low_k2 + size
        apart_km = (high_k2[:, None] <= obstacles[:, :2]) | (low_k2[:, None] >= obstacles[:, 2:])
        free_k = apart_km.any(axis=2).all(axis=1)
        inside_k = ((low_k2 >= bounds_22[0]) & (high_k2 <= bounds_22[1])).all(axis=1)
        best = int((2 * free_k + inside_k).argmax())
        corners[i], free[i] = low_k2[best], free_k[best]
        boxes.append(np.concatenate([low_k2[best], high_k2[best]])[None])
    return corners, free


def draw_map(vectors_nd: np.ndarray, labels: Sequence[str], path: Path) -> None:
    """Draws `project` of vectors (n, d) with labels, `shortened` and placed by `arrange`; labels that overlap
    are pale grey.

    Raises:
      ValueError: the numbers of labels and vectors differ, or the vectors do not span a plane.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported late: the import takes a second
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties

    if len(labels) != len(vectors_nd):
        raise ValueError(f"{len(labels)} labels for {len(vectors_nd)} vectors")
    labels = [*map(shortened, labels)]
    places_n2, shares = project(vectors_nd)
    side = 7.0 if len(labels) <= 40 else 11.0
    figure = Figure(figsize=(side, side), dpi=130, layout="constrained")
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes: Any = figure.add_subplot()
    axes.scatter(*places_n2.T, s=12, color=TRAIN, zorder=2)
    for name, share in zip("xy", shares, strict=True):
        axes.set(**{f"{name}label": f"{share:.0%} of the variance"})
    axes.margins(0.14)
    axes.tick_params(length=0, colors=MUTED, labelsize=8)
    axes.xaxis.label.set_color(MUTED)
    axes.yaxis.label.set_color(MUTED)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    for line in axes.spines.values():
        line.set_visible(False)
    figure.draw_without_rendering()  # determines the positions of the points
    figure.set_layout_engine("none")  # which labels would move
    points_n2 = axes.transData.transform(places_n2)
    font = FontProperties(family=fonts_of("".join(labels)), size=9)
    sizes = [renderer.get_text_width_height_descent(label, font, False)[:2] for label in labels]
    corners_n2, free = arrange(points_n2, np.array(sizes), axes.bbox.get_points())
    for place, point, corner, label, alone in zip(
        places_n2, points_n2, corners_n2, labels, free, strict=True
    ):
        axes.annotate(
            label,
            place,
            (corner - point) * 72 / figure.dpi,
            textcoords="offset points",
            fontproperties=font,
            va="bottom",
            color="black" if alone else FAINT,
            parse_math=False,  # a word may be a dollar sign
            arrowprops={"arrowstyle": "-", "color": MUTED, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2},
        )
    figure.savefig(path, bbox_inches="tight")
