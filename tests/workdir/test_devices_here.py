"""A run is read on other devices than those that it was trained on."""

import dataclasses
import math

import jax
import numpy as np
import pytest

import launch
from tests import runs
from transformer.errors import MeshError
from transformer.training import parallel
from transformer.training.parallel import AXES, ROWS
from workdir import opening
from workdir.compatibility import devices_here

pytestmark = pytest.mark.usefixtures("in_root")

MESH = ("fsdp=2", "tensor=2", "data=2")


@pytest.fixture
def here(monkeypatch):
    """Makes a machine with that many devices."""
    every = jax.devices()
    monkeypatch.setattr(parallel, "make_mesh", runs.MAKE_MESH)

    def set_number(number):
        monkeypatch.setattr(jax, "devices", lambda: every[:number])

    return set_number


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run over eight devices."""
    folder = tmp_path_factory.mktemp("eight")
    given = [f"--config.parallel.mesh.{size}" for size in MESH]
    assert launch.main(runs.tiny(runs.write_corpus(folder), folder / "run", *given)) == 0
    return folder / "run"


def test_the_nearest_mesh_divides_what_the_given_one_divides(rng, here):
    values = opening.read_config("configs/lm.py:tiny")
    for _ in range(50):
        number, parts = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        given = {axis: int(rng.choice([1, 2, 3, 4, 8])) for axis in AXES if axis != "slice"}
        if rng.random() < 0.5:
            given[str(rng.choice([*given]))] = -1
        rows = math.prod(given[axis] for axis in ROWS if given.get(axis, -1) > 0)
        sizes = {key: rows * parts * int(rng.integers(1, 4)) for key in ("train", "evaluate")}
        overrides = [(f"parallel.mesh.{axis}", str(size)) for axis, size in given.items()]
        overrides += [(f"{key}.batch_size", str(size)) for key, size in sizes.items()]
        config = opening.check_config(values, [*overrides, ("parallel.microbatches", str(parts))])
        here(number)
        found, devices = devices_here.nearest(config, [], MeshError("why"))
        mesh = parallel.make_mesh(found.parallel.mesh, devices)
        assert all(
            given[axis] % mesh.shape[axis] == 0 for axis in given if axis != "data" and given[axis] > 0
        )
        for size in sizes.values():
            parallel.check_batch_size("batch_size", size, mesh, parts)
        same = dataclasses.replace(found, parallel=config.parallel)
        assert same == config


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "mesh"), [
    (1, "data 1 x fsdp 1 x expert 1 x context 1 x tensor 1"),
    (3, "data 1 x fsdp 1 x expert 1 x context 1 x tensor 1"),
    (4, "data 1 x fsdp 2 x expert 1 x context 1 x tensor 2"),
])  # fmt: skip
def test_a_run_of_eight_devices_is_read(trained, here, capfd, number, mesh):
    here(8)
    assert launch.main([f"--workdir={trained}", "--mode=predict", "--prompt=alpha", "--temperature=0"]) == 0
    expected, said = capfd.readouterr()
    assert "warning" not in said
    here(number)
    assert launch.main([f"--workdir={trained}", "--mode=predict", "--prompt=alpha", "--temperature=0"]) == 0
    found, said = capfd.readouterr()
    assert found == expected
    assert said.startswith(
        "warning: parallel.mesh: data 2 x fsdp 2 x expert 1 x context 1 x tensor 2 does not divide "
        f"the {number} devices; data -1 with all others 1 fits any number; the run is read on {mesh}\n"
    )
    whole = opening.load(trained)[1]
    jax.tree.map(np.testing.assert_array_equal, whole, runs.state(trained).params)


@pytest.mark.thorough
def test_a_batch_of_fewer_rows_than_devices_is_read_by_as_many(tmp_path, here, capfd):
    here(1)
    source = runs.write_corpus(tmp_path)
    assert launch.main(runs.tiny(source, tmp_path / "run", "--config.train.batch_size=4")) == 0
    here(8)
    assert launch.main([f"--workdir={tmp_path}/run", "--mode=evaluate"]) == 0
    said = capfd.readouterr().err
    assert "train.batch_size: 4 is not a multiple of 8" in said and "is read on data 4 x fsdp 1" in said


@pytest.mark.thorough
def test_a_given_mesh_and_training_are_refused(trained, here, capfd):
    here(3)
    for flags in (["--mode=predict", "--prompt=a", "--config.parallel.mesh.fsdp=2"], []):
        assert launch.main([f"--workdir={trained}", *flags]) == 2
        assert "does not divide the 3 devices" in capfd.readouterr().err
