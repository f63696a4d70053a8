"""That no damage of a checkpoint passes unnoticed: it is named, moved aside, and the one before is taken."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

import launch
from tests import runs
from tests.training.checkpoints.test_checkpoint import trained
from tests.training.toy import assert_same
from transformer.training.checkpoints.checkpoint import Checkpoints
from transformer.training.checkpoints.checksums import checksums
from transformer.training.checkpoints.untrusted import DamagedCheckpoint

# Orbax leaves tasks whose errors no one reads.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Damage = Callable[[Path, random.Random], None]


def flip(file: Path, rng: random.Random) -> None:
    """One bit of a file becomes another."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut(file: Path, rng: random.Random) -> None:
    """A file loses its end."""
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def empty(file: Path, rng: random.Random) -> None:
    """A file has the right length, and only zeros."""
    file.write_bytes(bytes(file.stat().st_size))


def delete(file: Path, rng: random.Random) -> None:
    """A file is not there."""
    file.unlink()


def files_of(step: Path) -> list[Path]:
    """The files of a checkpoint, in a fixed order, that are not empty."""
    return sorted(path for path in step.rglob("*") if path.is_file() and path.stat().st_size)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    state, abstract = trained(3, ema=True)
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(3, state)
    return folder, jax.device_get(state), abstract


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("damage", [flip, cut, empty, delete])
def test_what_is_read_is_what_was_written_or_is_refused(saved, tmp_path, damage: Damage, rng):
    """Of every file, at random places; files that only repeat what others say may be lost."""
    source, state, abstract = saved
    noticed = 0
    for number in range(len(files_of(source / "3")) * (3 if damage is flip else 1)):
        folder = tmp_path / str(number)
        shutil.copytree(source, folder)
        files = files_of(folder / "3")
        damage(files[number % len(files)], random.Random(int(rng.integers(1 << 30))))
        try:
            with Checkpoints(folder, write=False) as checkpoints:
                restored = checkpoints.restore(abstract)
        except DamagedCheckpoint as error:
            assert str(error).startswith(f"{folder}/3: the checkpoint is damaged: ") and "\n" not in str(
                error
            )
            noticed += 1
        else:
            assert_same(state, jax.device_get(restored))
    assert noticed > 2


def test_checksums_by_hand(rng):
    tree = {
        "a": rng.normal(size=(3, 5, 7)).astype(np.float32),
        "b": [rng.integers(0, 256, 9).astype(np.uint8), np.array([True, False, True])],
        "c": jax.numpy.asarray(rng.normal(size=(4, 2)), jax.numpy.bfloat16),
        "d": np.int32(-7),
        "e": np.zeros((0, 3), np.float32),
    }
    for path, found in checksums(jax.tree.map(jax.numpy.asarray, tree)).items():
        (array,) = (leaf for each, leaf in jax.tree_util.tree_leaves_with_path(tree) if _name(each) == path)
        words = np.asarray(array).ravel().view(f"u{np.asarray(array).itemsize}").tolist()
        halves = [sum(word * (m * i % 2**32 | 1) for i, word in enumerate(words)) for m in (2, 2654435761)]
        assert found == "".join(f"{half % 2**32:08x}" for half in halves)


def _name(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def test_checksums_are_the_same_on_any_mesh():
    alone, divided = (trained(2, shape)[0].params for shape in ((1, 1, 1), (1, 4, 2)))
    moved = jax.tree.map(lambda x, y: jax.device_put(x, y.sharding), alone, divided)
    assert checksums(moved) == checksums(alone) and len({*checksums(alone).values()}) > 1


def test_an_older_checkpoint_without_checksums_is_read(saved, tmp_path):
    source, state, abstract = saved
    shutil.copytree(source, tmp_path / "old")
    written = tmp_path / "old" / "3" / "_CHECKPOINT_METADATA"
    written.write_text(json.dumps(json.loads(written.read_text()) | {"custom_metadata": {}}))
    with Checkpoints(tmp_path / "old", write=False) as checkpoints:
        assert_same(state, jax.device_get(checkpoints.restore(abstract)))


@pytest.fixture(scope="module")
def run(tmp_path_factory, request):
    """A run of 6 steps with checkpoints 2, 4 and 6, and its folder after 8 undisturbed steps."""
    folder = tmp_path_factory.mktemp("run")
    with runs.in_root(tmp_path_factory):
        source = runs.write_corpus(folder / "corpus")
        often = ["--config.train.checkpoint_every=2", "--config.train.keep_last=3"]
        schedule = ["--config.optimizer.schedule=constant"]
        arguments = runs.tiny(source, folder / "run", *often, *schedule, "--config.train.log_every=1")
        assert launch.main([*arguments, "--config.train.steps=6"]) == 0
        shutil.copytree(folder / "run", folder / "whole")
        assert launch.main([f"--workdir={folder}/whole", "--config.train.steps=8"]) == 0
    return folder


def largest(step: Path) -> Path:
    """The file with most of the arrays."""
    return max(files_of(step), key=lambda path: path.stat().st_size)


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("damage", [flip, delete])
def test_a_run_goes_on_from_the_checkpoint_before(run, tmp_path, capfd, damage):
    folder = tmp_path / "run"
    shutil.copytree(run / "run", folder)
    damage(largest(folder / "checkpoints" / "6"), random.Random(1))
    assert launch.main([f"--workdir={folder}", "--config.train.steps=8"]) == 0
    said = capfd.readouterr()
    assert f"warning: {folder}/checkpoints/6: the checkpoint is damaged: " in said.err
    assert f"moved to {folder}/damaged/6, continuing from the one before" in said.err
    assert "from step 4 to 8" in said.out and (folder / "damaged" / "6").is_dir()
    lines, whole = (
        [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        for path in (folder, run / "whole")
    )
    assert [(each["step"], each["train/loss"]) for each in lines] == [
        (each["step"], each["train/loss"]) for each in whole
    ]
    here, there = (
        json.loads((path / "checkpoints" / "8" / "_CHECKPOINT_METADATA").read_text())["custom_metadata"]
        for path in (folder, run / "whole")
    )
    assert here == there and len(here["checksums"]) > 10


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_where_none_is_sound_nothing_is_written(run, tmp_path, capfd):
    folder = tmp_path / "run"
    shutil.copytree(run / "run", folder)
    for step in (2, 4, 6):
        for file in files_of(folder / "checkpoints" / str(step)):
            flip(file, random.Random(step))
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=predict", "--prompt=x"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {folder}/checkpoints/6: the checkpoint is damaged: ")
    for _ in range(2):
        assert launch.main([f"--workdir={folder}", "--config.train.steps=8"]) == 2
        line = capfd.readouterr().err.splitlines()[-1]
        assert line.startswith(f"error: {folder}/checkpoints/2: the checkpoint is damaged: ")
        assert "there is no other" in line
        assert sorted(path.name for path in (folder / "damaged").iterdir()) == ["4", "6"]
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["2"]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_the_name_of_a_checkpoint_set_aside_may_be_taken(run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run / "run", folder)
    (folder / "damaged" / "6").mkdir(parents=True)
    delete(largest(folder / "checkpoints" / "6"), random.Random(1))
    assert launch.main([f"--workdir={folder}"]) == 0
    assert sorted(path.name for path in (folder / "damaged").iterdir()) == ["6", "6-1"]
    assert (folder / "checkpoints" / "6").is_dir()


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_an_empty_folder_of_a_step_is_no_checkpoint(run, tmp_path, capfd):
    folder = tmp_path / "run"
    shutil.copytree(run / "run", folder)
    (folder / "checkpoints" / "999").mkdir()
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=evaluate"]) == 0
    assert "step 6" in capfd.readouterr().out
    assert launch.main([f"--workdir={folder}", "--config.train.steps=7"]) == 0
    assert "from step 6 to 7" in capfd.readouterr().out
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["4", "6", "7"]
    assert not (folder / "damaged").exists()
