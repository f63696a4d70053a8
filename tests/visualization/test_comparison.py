import numpy as np
import pytest

from transformer.visualization.run_curves import COLOURS, draw_curves


@pytest.mark.parametrize("label", ["a{}", "learning_rate 0.{}, a key with a long name 17, " + "x" * 40])
def test_the_legend_covers_no_curve_and_is_within_the_picture(tmp_path, rng, figures, label):
    rows = [(label.format(i), [(np.arange(9), rng.random(9))]) for i in range(len(COLOURS))]
    draw_curves(rows, "eval/loss", tmp_path / "curves.png")
    (figure,) = figures
    (axes,) = figure.axes
    boxes = [text.get_window_extent() for text in figure.legends[0].get_texts()]
    assert len(boxes) == len(rows)
    assert all(box.y1 < axes.get_window_extent().y0 for box in boxes)
    assert all(box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)


def test_runs_of_one_evaluation_are_points_at_its_step(tmp_path, figures):
    draw_curves([("a", [(np.array([5]), np.array([3.0]))])], "eval/loss", tmp_path / "curves.png")
    (axes,) = figures[0].axes
    assert [line.get_marker() for line in axes.lines] == ["o"]
    assert all(tick == int(tick) for tick in axes.get_xticks())
