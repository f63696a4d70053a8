"""Runs on images, as a user starts them."""

import json
import math
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

import launch
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root", "drawn")


def write(folder: Path, classes=("blue", "red"), count=20) -> Path:
    for number, label in enumerate(classes):
        (folder / label).mkdir(parents=True)
        for i in range(count):
            pixels = np.full((9, 7, 3), i, np.uint8)
            pixels[..., 2 - 2 * (number % 2)] = 200
            Image.fromarray(pixels).save(folder / label / f"{i}.{'jpg' if i % 2 else 'png'}")
    return folder


def tiny(source: Path | str, workdir: Path, *more: str) -> list[str]:
    keys = [f"--config.data.source={source}", "--config.data.channels=3", "--config.model.pooling=cls"]
    return ["--config=configs/vision.py:tiny", f"--workdir={workdir}", *keys, *more]


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("images") / "images")


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory) -> Path:
    """Of the source nothing is left but one image of each class."""
    copied = shutil.copytree(images, tmp_path_factory.mktemp("source") / "images")
    folder = tmp_path_factory.mktemp("run")
    cache = f"--config.data.cache_dir={folder / 'cache'}"
    assert launch.main(tiny(f"folder:{copied}", folder / "tiny", cache, "--config.train.steps=60")) == 0
    shutil.rmtree(folder / "cache")
    shutil.rmtree(copied)
    return folder / "tiny"


def fails(capfd, arguments: list[str]) -> str:
    capfd.readouterr()
    assert launch.main(arguments) == 2
    *notes, line = capfd.readouterr().err.splitlines()
    assert all("data.cache_dir" in note for note in notes)  # which is said once in a process
    return line.removeprefix("error: ")


@pytest.mark.thorough
def test_a_run_leaves_what_it_needs_and_pictures(trained):
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"eval/loss", "eval/accuracy", "eval/f1", "eval/calibration_error"} <= last.keys()
    assert json.loads((trained / "labels.json").read_text()) == ["blue", "red"]
    assert (trained / "classes" / "00000060.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.thorough
def test_the_folder_of_a_run_is_enough_to_classify(trained, images, tmp_path, capfd):
    paths = [
        images / label / f"{i}.{end}" for label in ("red", "blue") for i, end in ((3, "jpg"), (4, "png"))
    ]
    (tmp_path / "in.txt").write_text("\n".join(map(str, [*paths, paths[0]])) + "\n")
    capfd.readouterr()
    assert launch.main([f"--workdir={trained}", "--mode=predict", f"--input={tmp_path / 'in.txt'}"]) == 0
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert len(lines) == 5 and lines[0] == lines[4] and lines[0] != lines[2]
    for label, *listed in lines:
        found = dict(each.split("=") for each in listed)
        assert found.keys() == {"blue", "red"} and math.isclose(
            sum(map(float, found.values())), 1, abs_tol=2e-4
        )
        assert label == max(found, key=lambda name: float(found[name])) == listed[0].split("=")[0]


@pytest.mark.thorough
def test_classes_are_learned_and_the_sample_is_what_the_model_was_asked(trained, capfd):
    """Red is told from blue after a few steps, and a file gives what the pixels in memory give."""
    run, params = opening.load(trained)
    (sample,) = (trained / "samples").glob("*.png")
    capfd.readouterr()
    assert launch.main([f"--workdir={trained}", "--mode=predict", f"--prompt={sample}"]) == 0
    label, *listed = capfd.readouterr().out.strip().split("\t")
    assert label == sample.stem
    batch = {"images": np.asarray(Image.open(sample))[None]}
    (logits,) = np.asarray(run.experiment.logits(params, batch, jax.random.key(0), False))
    p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    found = dict(each.split("=") for each in listed)
    assert [float(found[name]) for name in ("blue", "red")] == pytest.approx(p, abs=1e-4)


@pytest.mark.thorough
def test_the_test_split_is_measured_when_asked_for(images, tmp_path, capfd):
    source = f"folder:{images}"
    assert launch.main(tiny(source, tmp_path / "run")) == 0
    capfd.readouterr()
    found = []
    for split in ("validation", "test"):
        flags = ["--mode=evaluate", f"--split={split}", f"--output={tmp_path / split}.tsv"]
        assert launch.main([f"--workdir={tmp_path / 'run'}", *flags]) == 0
        found.append(capfd.readouterr().out)
    assert found[0] != found[1] and all("eval/accuracy" in each for each in found)
    header, *lines = (tmp_path / "test.tsv").read_text().splitlines()
    assert header.split("\t") == ["image", "label", "predicted", "p(blue)", "p(red)"]
    cells = [line.split("\t") for line in lines]
    assert cells and all(
        Path(path).is_file() and Path(path).parent.name == label for path, label, *_ in cells
    )
    share = sum(label == predicted for _, label, predicted, *_ in cells) / len(cells)
    assert f"eval/accuracy {share:.6g} " in found[1]


def test_what_is_wrong_is_one_line_and_nothing_is_written(images, tmp_path, capfd):
    workdir, source = tmp_path / "run", f"folder:{images}"
    one = write(tmp_path / "one", ["red"])
    other = write(tmp_path / "other", ["blue", "pink"])
    broken = write(tmp_path / "broken")
    (broken / "red" / "x.png").write_text("no image")
    for arguments, expected in [
        (tiny("folder:/no/such", workdir), "data.source: folder:/no/such: there is no such folder"),
        (
            tiny(f"folder:{one}", workdir),
            "data.source: all training data have the label 'red'; expected",
        ),
        (tiny(f"folder:{broken}", workdir), f"data.source: {broken}/red/x.png: it is not an image"),
        (
            tiny(source, workdir, f"--config.data.validation_source=folder:{other}"),
            f"data.validation_source: {other}/pink/0.png has the label 'pink'",
        ),
        (
            tiny(source, workdir, "--config.data.image_size=9"),
            "config.model.patch_size: 2 does not divide data.image_size 9",
        ),
        (
            tiny(source, workdir, "--config.data.image_size=18"),
            "config.model.max_length: 65; an image has 82 patches, [CLS] among them",
        ),
        (
            tiny(source, workdir, "--config.data.channels=4"),
            "config.data.channels: 4 (int); expected one of 1, 3",
        ),
        (tiny(source, workdir, "--config.data.shift=8"), "config.data.shift: 8; expected"),
        (
            tiny("folders:/x", workdir),
            "config.data.source: 'folders:/x'; did you mean 'folder:/x'?",
        ),
    ]:
        assert fails(capfd, arguments).startswith(expected)
        assert not workdir.exists()
    of_means = tiny(source, workdir, "--config.model.pooling=mean", "--config.model.max_length=8")
    assert fails(capfd, of_means) == "config.model.max_length: 8; an image has 16 patches"


@pytest.mark.thorough
def test_what_is_no_image_is_not_classified(trained, tmp_path, capfd):
    (tmp_path / "x.png").write_text("no image")
    predict = [f"--workdir={trained}", "--mode=predict"]
    expected = f"{tmp_path}/x.png: it is not an image, or of a format that is not known"
    assert fails(capfd, [*predict, f"--prompt={tmp_path}/x.png"]) == expected
    refused = "--prompt or --input: text 1 names 'some text', which is not a file"
    assert fails(capfd, [*predict, "--prompt=some text"]) == refused
    assert "which is not a file" in fails(capfd, [*predict, f"--prompt={tmp_path}"])
    (tmp_path / "in.txt").write_text(f"{next((trained / 'samples').glob('*.png'))}\n/no/such\n")
    line = fails(capfd, [*predict, f"--input={tmp_path}/in.txt", f"--output={tmp_path}/out.txt"])
    assert (
        line == f"--input: {tmp_path}/in.txt:2 names '/no/such', which is not a file"
        and not (tmp_path / "out.txt").exists()
    )
