import json

import numpy as np
import pytest
from matplotlib.image import imread

from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.visualization.report import axis_limit, draw, last_values, read_metrics, smooth, write_report


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_smooth_is_the_mean_of_the_neighbours_there_are(rng):
    values = rng.normal(size=int(rng.integers(1, 30)))
    for window in (1, 3, 7):
        half = window // 2
        expected = [values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))]
        np.testing.assert_allclose(smooth(values, window), expected, atol=1e-12)


def test_metrics_are_read_by_name_without_what_was_no_number(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, [{"step": 1, "train/loss": 3.0}, {"step": 2, "train/loss": None, "eval/loss": 2.0}])
    series = read_metrics(path)
    assert {name: (s.tolist(), v.tolist()) for name, (s, v) in series.items()} == {
        "train/loss": ([1], [3.0]),
        "eval/loss": ([2], [2.0]),
    }


@pytest.mark.parametrize(
    "content", [None, b"", b"{}\n", b"[1]\n", b'{"step": 1', b'{"step": 1, "a\xff": 2}\n', b"[" * 100_000]
)
def test_metrics_that_cannot_be_read_are_named(tmp_path, content):
    path = tmp_path / "metrics.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"metrics\.jsonl"):
        read_metrics(path)


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    """As it is where a run was killed in it; inside of the file half a line is damage."""
    path = tmp_path / "metrics.jsonl"
    write(path, [{"step": 1, "train/loss": 3.0}, {"step": 2, "train/loss": 2.0}])
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert last_values(path) == {"train/loss": 3.0}
    path.write_bytes(whole[:-9] + b"\n" + whole)
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: not a JSON object"):
        read_metrics(path)


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steps", [1, 2, 60])
def test_the_report_has_a_picture_and_the_last_least_and_greatest_values(tmp_path, rng, steps):
    rows = [
        {
            "step": step,
            "train/loss": 3.0 / step,
            "eval/loss": abs(step - 2) + 1.5,
            "train/learning_rate": 1e-3,
            "train/tokens_per_second": float(rng.uniform(100, 200)),
        }
        for step in range(1, steps + 1)
    ]
    write(tmp_path / "metrics.jsonl", rows)
    page = write_report(RunFolder(tmp_path))
    text = page.read_text()
    last = f"{3 / steps:.5g} | {steps}"
    assert f"| train/loss | {last} | {last} | 3 | 1 |" in text
    least = 2 if steps > 1 else 1
    assert f"| {abs(least - 2) + 1.5:.5g} | {least} |" in text
    picture = imread(tmp_path / "report.png")
    assert min(picture.shape[:2]) > 300 and picture[..., :3].std() > 0.01


def test_an_axis_leaves_out_only_what_would_flatten_the_rest():
    curve = np.linspace(3, 2, 20)
    assert axis_limit(curve) == 3
    assert axis_limit(np.append(curve, 4.5)) == 4.5
    assert axis_limit(np.append(curve, 900)) == 3
    assert axis_limit(np.append(np.ones(20), 900)) == 900
    assert axis_limit(np.array([900, 3, 2])) == 900


def test_one_logged_step_is_a_point_at_it(tmp_path, figures):
    value = (np.array([1]), np.array([0.01]))
    draw({"train/loss": value, "train/learning_rate": value}, tmp_path / "report.png")
    for axes in figures[0].axes:
        (line,) = axes.lines
        assert line.get_marker() == "o"
        assert all(tick == int(tick) for tick in axes.get_xticks())
