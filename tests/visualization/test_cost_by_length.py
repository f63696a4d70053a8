"""The benchmark of mixers by length: its table, and its picture."""

import sys

import pytest

from benchmarks import state_mixers
from tests.runs import SAVE
from transformer.visualization import run_curves

pytestmark = pytest.mark.thorough


def test_times_of_the_mixers_asked_for_are_in_the_table_and_the_picture(monkeypatch, capsys, tmp_path):
    drawn = []
    monkeypatch.setattr(
        run_curves, "save", lambda figure, axes, path: (drawn.append(axes), SAVE(figure, path))
    )
    flags = ["--only", "multi_head", "window", "--lengths", "8", "16", "--width", "8", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["state_mixers", *flags, f"--picture={tmp_path / 'cost.png'}"])
    state_mixers.main()
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line.split()[1] for line in table[2:]] == ["multi_head", "window"]
    assert "8 tokens, ms" in table[0] and "16 tokens, MB" in table[0]
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = drawn
    lines = {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}
    assert lines.keys() == {"multi_head", "window"} and [*lines["window"].get_xdata()] == [8, 16]
    assert all(line.get_ydata().min() > 0 for line in lines.values())


def test_the_window_of_the_benchmark_is_a_window():
    length = 2 * state_mixers.KEYS["window"]["pattern_size"]
    sizes = {name: state_mixers.gradient(name, 8, length)[1] for name in ("multi_head", "window")}
    assert sizes["window"] < sizes["multi_head"]
