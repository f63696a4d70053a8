"""Plots of a classifier: confusion matrix and reliability diagram."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transformer.visualization.attention_maps import COLORS
from transformer.visualization.label_texts import shortened, without_formulas
from transformer.visualization.report import MUTED, TRAIN

MOST_WRITTEN = 20
"""The most classes whose cells are labelled with their counts."""


def draw_classification(
    confusion_cc: np.ndarray, calibration_3n: np.ndarray, labels: Sequence[str], path: Path
) -> None:
    """Draws a PNG: on the left the confusion matrix (label, prediction), coloured by the share of its row; on
    the right the accuracy in each bin of confidence, where stronger bars have more predictions.

    `calibration_3n` has the count, the sum of confidences and the number of correct predictions of each bin.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # imported late: the import takes a second
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    classes = len(labels)
    side = min(12.0, max(3.6, 0.5 * classes + 1))
    figure = Figure(figsize=(side + 5.6, side + 0.6), dpi=110)
    figure.set_layout_engine("constrained", w_pad=0.15)
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=[side, 4.4])

    share_cc = confusion_cc / np.maximum(confusion_cc.sum(axis=1, keepdims=True), 1)
    left.imshow(share_cc, cmap=LinearSegmentedColormap.from_list("shares", COLORS), vmin=0, vmax=1)
    labels = [*map(shortened, labels)]
    left.set_xticks(range(classes), labels, rotation=60, ha="right", rotation_mode="anchor")
    left.set_yticks(range(classes), labels)
    without_formulas([*left.get_xticklabels(), *left.get_yticklabels()])
    left.set(xlabel="predicted", ylabel="label")
    if classes <= MOST_WRITTEN:
        for row, column in np.ndindex(classes, classes):
            if count := int(confusion_cc[row, column]):
                color = "white" if share_cc[row, column] > 0.5 else "black"
                left.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=9)

    counts, confidence, hits = calibration_3n
    present = counts > 0
    edges = np.linspace(0, 1, len(counts) + 1)
    strength = 0.25 + 0.75 * counts[present] / max(counts.max(), 1)
    bars = right.bar(
        edges[:-1][present],
        (hits / np.maximum(counts, 1))[present],
        1 / len(counts),
        align="edge",
        color=TRAIN,
    )
    for bar, alpha in zip(bars, strength, strict=True):
        bar.set_alpha(alpha)
    right.plot([0, 1], [0, 1], "--", color=MUTED, linewidth=1)
    error = np.abs(hits - confidence).sum() / max(counts.sum(), 1)
    right.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy")
    right.set_title(f"calibration error {error:.3f}", loc="left", fontsize=10, color=MUTED)
    for axes in (left, right):
        axes.tick_params(length=0, labelsize=9)
        axes.xaxis.label.set_color(MUTED)
        axes.yaxis.label.set_color(MUTED)
    figure.savefig(path)
