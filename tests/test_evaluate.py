"""What is measured of which data, in training and by --mode=evaluate."""

import json
from pathlib import Path

import pytest

import launch
from experiments import modes
from tests import runs

pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> str:
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("other") / "other.txt"
    path.write_text("what is not like the rest\n" * 40)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory, corpus, other) -> Path:
    """A language model that measures a second set besides, and compressors on both."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    keys = [f"evaluate.sets.other=text:{other}", "evaluate.also=compressors", "evaluate.batch_size=16"]
    assert launch.main(runs.tiny(corpus, folder, *(f"--config.{key}" for key in keys))) == 0
    return folder


def measured(capfd, folder: Path, *arguments: str) -> dict[str, float]:
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=evaluate", *arguments]) == 0, capfd.readouterr().err
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    return {name: float(value) for name, value, *_ in lines if "/" in name}


def test_several_sets_are_measured_while_training(trained):
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"eval/loss", "other/loss", "compressors/gzip", "other/compressors/xz"} <= last.keys()
    assert last["other/compressors/gzip"] < 1 < last["compressors/gzip"]


def test_each_split_is_measured_by_itself(capfd, trained):
    found = [measured(capfd, trained, f"--split={split}") for split in ("train", "validation", "test")]
    assert len({each["eval/loss"] for each in found}) == 3
    assert len({each["other/loss"] for each in found}) == 1  # files of another set are measured whole


def test_the_batch_size_changes_nothing(capfd, trained):
    whole = "--config.train.evaluate_batches=0"
    sizes = [f"--config.evaluate.batch_size={size}" for size in (0, 8, 32)]
    found = [measured(capfd, trained, whole, size) for size in sizes]
    for each in found[1:]:
        assert each == pytest.approx(found[0], rel=1e-5)


ERRORS = {
    "--config.evaluate.also=gzip": "evaluate.also: 'gzip' is no evaluator; expected one of compressors",
    "--config.evaluate.sets.eval=text:x": "config.evaluate.sets: 'eval' names a set; expected a name of",
    "--config.evaluate.sets.far=text:/no/such": "evaluate.sets.far: text:/no/such: no such file",
    "--config.evaluate.sets.far=xls:x": "evaluate.sets.far: 'xls:x': no such source",
    "--config.evaluate.batch_size=9": "evaluate.batch_size: 9 is not a multiple of 8",
}


@pytest.mark.parametrize("argument", ERRORS)
def test_what_is_wrong_with_the_keys_is_one_line_before_anything_is_written(
    capfd, tmp_path, corpus, argument
):
    assert launch.main(runs.tiny(corpus, tmp_path / "run", argument)) == 2
    error = capfd.readouterr().err
    assert ERRORS[argument] in error and error.count("\n") == 1, error
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_key_that_is_gone_still_opens(trained, tmp_path):
    values = json.loads((trained / "config.json").read_text())
    values["data"]["evaluate_on"] = "test"
    del values["evaluate"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = modes.check_config(modes.Workdir(tmp_path).read_config())
    assert config.evaluate.batch_size == 0 and dict(config.evaluate.sets) == {}
