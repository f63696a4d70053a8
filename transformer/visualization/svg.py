"""Curves as inline SVG, in the colours of the page (`transformer.visualization.html`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transformer.visualization.html import Markup, tag
from transformer.visualization.report import axis_limit, smooth

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 12, 26
"""The picture, and the margins around its axes, in pixels of a picture that is not scaled."""

MAX_DRAWN_POINTS = 300
"""Points of a curve that are drawn."""

MIN_SMOOTHED_POINTS = 20
"""Curves of fewer points are not smoothed."""

COLOURS = ("eval", "train", "c2", "c3", "c4", "c5", "c6", "c7")
"""Names of the page's colours."""


@dataclass(frozen=True)
class Curve:
    """A name, steps, ascending, and values; `marked` curves have a mark at each point, others are smoothed
    where they have many."""

    name: str
    colour: str
    steps: np.ndarray
    values: np.ndarray
    marked: bool = False


def plot(title: str, curves: Sequence[Curve], zero: bool = False) -> Markup:
    """A figure of curves over steps, with a legend if there are several. The axis ends at `axis_limit`; with
    `zero` it starts at 0."""
    values = np.concatenate([curve.values for curve in curves])
    low, high = limits(values, zero)
    first = min(0, *(int(curve.steps[0]) for curve in curves))
    last = max(int(curve.steps[-1]) for curve in curves)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(last - first, 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    parts = []
    for value in ticks(low, high, 5):
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_n(y(value)), y2=_n(y(value)), class_="rule"))
        parts.append(tag("text", number(value), x=LEFT - 6, y=_n(y(value) + 4), text_anchor="end"))
    for step in ticks(first, last, 4):
        if step == int(step):
            anchor = "end" if x(step) > WIDTH - 30 else "middle"
            parts.append(tag("text", number(step), x=_n(x(step)), y=HEIGHT - 5, text_anchor=anchor))
    for curve in curves:
        parts += _drawn(curve, x, lambda value: y(min(max(value, low), high)))
    picture = tag("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title)
    return tag(
        "figure", tag("h3", title), picture, legend(curves) if len(curves) > 1 else None, class_="card"
    )


def _drawn(curve: Curve, x, y) -> list[Markup]:  # type: ignore[no-untyped-def]
    colour = f"var(--{curve.colour})"

    def line(values: np.ndarray, kind: str) -> Markup:
        chosen = np.unique(np.linspace(0, len(values) - 1, MAX_DRAWN_POINTS).round().astype(int))
        points = " ".join(f"{_n(x(curve.steps[i]))},{_n(y(values[i]))}" for i in chosen)
        return tag("polyline", points=points, class_=kind, stroke=colour)

    if not curve.marked and len(curve.values) >= MIN_SMOOTHED_POINTS:
        window = len(curve.values) // 20 | 1
        return [line(curve.values, "line faint"), line(smooth(curve.values, window), "line")]
    marks = [
        tag(
            "circle",
            tag("title", f"{curve.name} at step {step}: {value:.5g}"),
            cx=_n(x(step)),
            cy=_n(y(value)),
            r=2.6,
            fill=colour,
        )
        for step, value in zip(curve.steps, curve.values, strict=True)
    ]
    return [line(curve.values, "line"), *(marks if len(marks) <= 60 or not curve.marked else [])]


def legend(curves: Sequence[Curve]) -> Markup:
    """The names of the curves in their colours."""
    styles = {curve.name: f"color: var(--{curve.colour}); margin-right: 1em" for curve in curves}
    return tag("figcaption", [tag("span", name, style=style) for name, style in styles.items()])


def limits(values: np.ndarray, zero: bool) -> tuple[float, float]:
    """The ends of an axis for values: from the least to `axis_limit`, with a margin."""
    low, high = float(values.min()), axis_limit(values)
    low = min(low, 0.0) if zero else low
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (low if zero else low - margin), high + margin


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers, multiples of 1, 2 or 5 times a power of 10, from `low` to `high`."""
    rough = (high - low) / most or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    spacing = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    return [place * spacing for place in range(first, last + 1)]


def number(value: float) -> str:
    """A short form for an axis: 12k, 0.003, 2.5."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.4g}"


def _n(value: float) -> str:
    return f"{value:.1f}"
