"""The notebooks run top to bottom, without Jupyter, and carry the outputs of what they hold now."""

import functools
import json
import re
import sys
import tempfile

import jax
import matplotlib
import pytest

from commands import notebook as command
from commands import opening
from tests import runs
from transformer.training.run import Run

NOTEBOOKS = sorted((runs.ROOT / "notebooks").glob("*.ipynb"))


def read(path) -> tuple[dict, list[dict]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook, [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shape_of(printed: str) -> list[str]:
    """The words of it, without numbers, which differ between machines, and without how they are spaced."""
    return re.sub(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?", "#", printed).split()


def test_there_is_one():
    assert "attention_from_scratch" in [path.stem for path in NOTEBOOKS]


@pytest.fixture
def apart(monkeypatch, tmp_path_factory):
    """Keeps caches and temporary folders of a notebook apart, and the settings of this process."""
    shared = tmp_path_factory.getbasetemp()
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("notebook")))
    monkeypatch.setattr(command, "settle", lambda: None)


ON_EIGHT = ("scaling_out",)
"""Notebooks that want several devices; the others run on one of this process's, as for most users."""


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_carries(path, monkeypatch, capsys, apart):
    """Its cells in order in one namespace, in its own folder as Jupyter does, with all their assertions."""
    import matplotlib.pyplot as plt

    _, cells = read(path)
    if path.stem not in ON_EIGHT:
        monkeypatch.setattr(opening, "Run", functools.partial(Run, devices=jax.devices()[:1]))
    before = runs.listing(path.parent)
    monkeypatch.chdir(path.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    namespace = {"__name__": "__main__"}  # dataclasses ask for the module that a class says it is from
    precision = jax.config.jax_default_matmul_precision
    with matplotlib.rc_context({"backend": "agg"}):
        try:
            for cell in cells:
                exec(compile("".join(cell["source"]), f"{path.name}, {cell['id']}", "exec"), namespace)
                carried = ["".join(each["text"]) for each in cell["outputs"] if each.get("name") == "stdout"]
                assert shape_of(capsys.readouterr().out) == shape_of("".join(carried)), cell["id"]
        finally:
            plt.close("all")
            jax.config.update("jax_default_matmul_precision", precision)
    assert runs.listing(path.parent) == before, "it writes into the repository"


DRAWN = """
from commands.notebook import Picture, settle
from transformer.visualization.attention import draw_attention

settle()
print("one")
print("two")
Picture(draw_attention, [[[1.0]]], ["a"], ["b"])
"""


@pytest.mark.thorough
def test_the_first_cell_finds_the_library_from_a_kernel(monkeypatch, tmp_path):
    """As `python -m benchmarks.notebooks` runs notebooks, by nbclient."""
    for name in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(name)
    from nbformat import v4

    from benchmarks.notebooks import executed

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    firsts = {"".join(read(path)[1][0]["source"]) for path in NOTEBOOKS}
    assert len(firsts) == 1, "all begin with the same cell"
    cells = [v4.new_code_cell(source) for source in (*firsts, DRAWN)]
    first, drawn = executed(v4.new_notebook(cells=cells), runs.ROOT / "notebooks").cells
    assert (first.execution_count, first.outputs, drawn.execution_count) == (1, [], 2)
    printed, shown = drawn.outputs
    assert printed.text == "one\ntwo\n" and list(shown.data) == ["image/png"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_as_one_run_from_top_to_bottom(path):
    notebook, cells = read(path)
    assert notebook["nbformat"] == 4 and notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(each["output_type"] != "error" and each.get("name") != "stderr" for each in outputs)
    assert sum("image/png" in each.get("data", {}) for each in outputs) >= 3
    assert not re.search(r"/(?:home|work|tmp|usr|root|Users)/", path.read_text(encoding="utf-8"))
