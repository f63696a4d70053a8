"""That broken files of a run's folder, and disks without room, end a command with one line."""

import json
import shutil
from pathlib import Path

import pytest

import launch
from tests import runs

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    with runs.in_root(tmp_path_factory):
        source = runs.write_corpus(folder / "corpus")
        assert launch.main(runs.tiny(source, folder / "run")) == 0
    return folder / "run"


@pytest.fixture
def folder(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def refused(capfd, *arguments: str) -> str:
    """The line with which a command ends."""
    capfd.readouterr()
    assert launch.main([*arguments]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    return line


BROKEN = {
    "config.json": ("5", "expected the groups of a config", "evaluate"),
    "tokenizer.json": ("[]", "not a tokenizer.json", "evaluate"),
    "data.json": ("{", "not readable; --accept_data", "train"),
    "lengths.json": ("5", "expected a list of pairs of steps", "train"),
    "fork.json": ('{"step": 1, "batch": null}', "expected of which run this is a fork", "train"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(folder, capfd, name):
    content, said, mode = BROKEN[name]
    (folder / name).write_text(content)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    more = ["--config.train.steps=9"] if mode == "train" else [f"--mode={mode}"]
    line = refused(capfd, f"--workdir={folder}", *more)
    assert name in line and said in line
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.thorough
def test_an_experiment_that_is_no_name(folder, capfd):
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"experiment": ["x"]}))
    assert "config.experiment: ['x'] is not an experiment" in refused(
        capfd, f"--workdir={folder}", "--mode=evaluate"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("content", ["{", "5", "[3]"])
def test_names_of_labels(tmp_path, capfd, content):
    run = [f"--workdir={tmp_path}/run", "--config=configs/classification.py:tiny"]
    assert launch.main(run) == 0
    (tmp_path / "run" / "labels.json").write_text(content)
    assert "labels.json: " in refused(capfd, run[0], "--mode=predict", "--prompt=x")


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_an_output_without_room(folder, capfd):
    capfd.readouterr()
    arguments = [f"--workdir={folder}", "--mode=predict", "--prompt=x", "--output=/dev/full"]
    assert launch.main(arguments) == 1
    assert capfd.readouterr().err.splitlines()[-1] == "error: the output: No space left on device"


LARGE = {
    "model.d_ff": (200_000_000, "model: the training state takes"),
    "model.num_layers": (100_000, "model.num_layers: 100000; expected from 1 to 10,000"),
    "train.batch_size": (10**10, "train.batch_size: 10000000000; expected at most 2,147,483,647"),
}


@pytest.mark.parametrize("key", LARGE)
def test_what_cannot_be_held_is_refused_at_once(tmp_path, capfd, key):
    value, said = LARGE[key]
    source = runs.write_corpus(tmp_path / "corpus", 5)
    arguments = runs.tiny(source, tmp_path / "run", f"--config.{key}={value}")
    assert said in refused(capfd, *arguments) and not (tmp_path / "run").exists()
