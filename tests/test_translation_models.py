"""The table of translation models: what is trained and evaluated, and what is not again."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import translation_models as models

SCORES = {"none": (10.0, 12.0), "additive": (30.0, 31.0), "transformer": (39.0, 39.0)}


@pytest.fixture
def launched(monkeypatch):
    """The commands that would be launched; each leaves the files that it would."""
    commands = []

    def launch(*flags):
        commands.append(flags)
        values = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
        folder = Path(values["workdir"])
        if "mode" not in values:
            (folder / "checkpoints" / "4").mkdir(parents=True)
            (folder / "config.json").write_text('{"train": {"steps": 4}}')
            return
        name, _, seed = folder.name.partition("-")
        there = folder / "evaluation.json"
        found = json.loads(there.read_text()) if there.exists() else []
        score = SCORES[name][int(seed)] + ("val" in values["input"])
        found.append({"source": values["input"], "steps": [2, 4], "results": {"generate/bleu": score}})
        there.write_text(json.dumps(found))

    monkeypatch.setattr(models, "launch", launch)
    monkeypatch.setattr(models, "sizes", lambda workdir: {"tokens": 4.0})
    return commands


def table(monkeypatch, capsys, folder, *flags):
    command = ["translation_models", f"--folder={folder}", "--data=here", "--seeds", "0", "1", *flags]
    monkeypatch.setattr(sys, "argv", command)
    models.main()
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if "|" in line]
    return {cells[0]: cells[1:] for cells in lines[2:]}


def test_the_table_has_means_and_intervals_and_finished_runs_stay(tmp_path, monkeypatch, capsys, launched):
    found = table(monkeypatch, capsys, tmp_path, "--config.train.steps=4")
    # Student's t of 1 degree of freedom is 12.706; the standard error of two values is half their distance.
    assert found == {
        "GRU, no attention": ["2", "4.00", "11.00 ± 12.71", "12.00 ± 12.71"],
        "GRU, additive attention": ["2", "4.00", "30.50 ± 6.35", "31.50 ± 6.35"],
        "Transformer": ["2", "4.00", "39.00 ± 0.00", "40.00 ± 0.00"],
    }
    trained = [flags for flags in launched if "--mode=evaluate" not in flags]
    assert len(trained) == 6 and len(launched) == 18
    assert all("--config.train.steps=4" in flags for flags in trained)
    assert ["--config.model.attention=none" in flags for flags in trained] == [True] * 2 + [False] * 4
    assert {flag for flags in trained for flag in flags if "source" in flag} == {
        "--config.data.source=aligned:here/train.en.gz,here/train.de.gz",
        "--config.data.validation_source=aligned:here/val.en.gz,here/val.de.gz",
    }
    launched.clear()
    assert table(monkeypatch, capsys, tmp_path) == found and launched == []
    (tmp_path / "additive-1" / "checkpoints" / "4").rename(tmp_path / "additive-1" / "checkpoints" / "2")
    table(monkeypatch, capsys, tmp_path)
    assert len(launched) == 1 and f"--workdir={tmp_path}/additive-1" in launched[0]


@pytest.mark.parametrize("flag", ["--only=transfomer", "--sedes=3"])
def test_unknown_names_are_refused(tmp_path, monkeypatch, capsys, launched, flag):
    with pytest.raises(SystemExit):
        table(monkeypatch, capsys, tmp_path, flag)
    assert flag.rpartition("=")[2] in capsys.readouterr().err and launched == []
