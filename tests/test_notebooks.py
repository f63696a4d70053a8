"""The notebooks run top to bottom, each in a kernel, and carry the outputs of what they hold now."""

import itertools
import json
import re

import pytest

from commands.sweeps.study import bands, rows
from tests import runs
from tests.commands.test_table import write_run
from tests.runs import SAVE
from transformer.errors import UserError
from transformer.visualization import run_curves
from workdir import curves, samples

NOTEBOOKS = sorted((runs.ROOT / "notebooks").glob("*.ipynb"))


def read(path) -> tuple[dict, list[dict]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return notebook, [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict) -> list[str]:
    """The words that a cell printed, without numbers, which differ between machines."""
    text = "".join("".join(each["text"]) for each in cell["outputs"] if each.get("name") == "stdout")
    return re.sub(r"[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?", "#", text).split()


def test_all_begin_with_the_cell_that_finds_the_library():
    assert "attention_from_scratch" in [path.stem for path in NOTEBOOKS]
    (first,) = {"".join(read(path)[1][0]["source"]) for path in NOTEBOOKS}
    assert "REPOSITORY" in first


@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_carries(path, monkeypatch, tmp_path, tmp_path_factory):
    """By nbclient, as `python -m benchmarks.notebooks` does, with all assertions of the notebook."""
    for name in ("nbclient", "nbformat", "ipykernel"):
        pytest.importorskip(name)
    import nbformat

    from benchmarks.notebooks import executed

    shared = tmp_path_factory.getbasetemp()  # nothing of the user's is read or written
    for name in ("XDG_CACHE_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(shared / name.lower()))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = runs.listing(path.parent)
    notebook = executed(nbformat.read(path, 4), path.parent)
    assert runs.listing(path.parent) == before, "it writes into the repository"
    now = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, carried in zip(now, read(path)[1], strict=True):
        assert printed(cell) == printed(carried), cell.id
        assert [each.get("data", {}).keys() for each in cell.outputs if "data" in each] == [
            each["data"].keys() for each in carried["outputs"] if "data" in each
        ], cell.id


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_saved_as_one_run_from_top_to_bottom(path):
    notebook, cells = read(path)
    assert notebook["nbformat"] == 4 and notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(each["output_type"] != "error" and each.get("name") != "stderr" for each in outputs)
    assert sum("image/png" in each.get("data", {}) for each in outputs) >= 3
    assert not re.search(r"/(?:home|work|tmp|usr|root|Users)/", path.read_text(encoding="utf-8"))


def test_a_metric_that_no_run_has_measured_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "eval/loss": 2.0}\n{"step": 2, "eval/loss": 1.0}\n')
    assert curves({"mine": tmp_path}, "eval/loss").png.startswith(b"\x89PNG")
    expected = f"^'eval/los': not measured in {tmp_path}; did you mean 'eval/loss'"
    with pytest.raises(UserError, match=expected):
        curves({"mine": tmp_path}, "eval/los")


def test_the_rows_of_a_table_are_data_with_bands_over_seeds(tmp_path, capsys, monkeypatch):
    for rate, seed in itertools.product((0.1, 0.2), range(3)):
        losses = [3.0, 10 * rate + seed]
        write_run(tmp_path / f"{rate}-{seed}", losses, seed=seed, optimizer={"rate": rate})
    write_run(tmp_path / "half", [1.5], seed=0, optimizer={"rate": 0.4})
    write_run(tmp_path / "lost", [1.5, None], seed=0, optimizer={"rate": 0.8})
    found = rows(f"{tmp_path}/*")
    notes = "not finished: 1 (half at 10)\ndiverged: 1 (lost)\n"
    assert capsys.readouterr().out == notes
    assert [row["keys"]["optimizer.rate"] for row in found] == [0.4, 0.1, 0.2, 0.8]
    assert found[1]["values"] == [1.0, 2.0, 3.0] and found[1]["seeds"] == [0, 1, 2]
    assert (found[1]["mean"], found[1]["spread"], found[3]["mean"]) == (2.0, 1.0, None)
    (changed,) = rows([tmp_path / f"0.2-{seed}" for seed in range(3)], against=f"{tmp_path}/0.1-*")
    assert changed["differences"] == pytest.approx([1.0] * 3)
    capsys.readouterr()
    drawn = []
    monkeypatch.setattr(
        run_curves, "save", lambda figure, axes, path: (drawn.append(axes), SAVE(figure, path))
    )
    assert bands(f"{tmp_path}/*").png.startswith(b"\x89PNG")
    assert capsys.readouterr().out == notes
    lines = {line.get_label(): [*line.get_ydata()] for line in drawn[0].get_lines()}
    assert lines["rate 0.1"] == [3.0, 2.0] and lines["rate 0.4"] == [1.5]
    low, high = drawn[0].collections[-1].get_paths()[0].get_extents().intervaly
    assert (low, high) == (1.0, 3.0)
    with pytest.raises(UserError, match="--metric: no run has measured 'eval/los'"):
        bands(tmp_path / "0.1-0", "eval/los")


def test_samples_are_those_of_a_run(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path}/run: it has no run; expected the folder of one"):
        samples(tmp_path / "run")
    (tmp_path / "run" / "samples").mkdir(parents=True)
    (tmp_path / "run" / "config.json").write_text("{}")
    assert samples(tmp_path / "run") == {}
    (tmp_path / "run" / "samples" / "00000020.txt").write_text("def f")
    assert samples(tmp_path / "run") == {20: "def f"}
