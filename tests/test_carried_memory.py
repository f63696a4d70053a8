"""Whole runs of a model that carries its memory from step to step."""

import json

import jax
import numpy as np
import pytest

import launch
from tests import runs
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

STEPS = 4


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


def run(source, folder, *options, steps=STEPS):
    """A short run; tests have several devices, over which the rows of a batch are spread."""
    command = [
        "--config=configs/transformer_xl.py:tiny",
        f"--workdir={folder}",
        f"--config.data.source={source}",
        "--config.train.batch_size=16",
        "--config.optimizer.schedule=constant",
        "--config.model.dropout=0.1",
        "--config.train.log_every=1",
    ]
    assert launch.main([*command, f"--config.train.steps={steps}", *options]) == 0
    opened = opening.reopen_run(folder)
    with opened.checkpoints(write=False) as checkpoints:
        return opened, jax.device_get(checkpoints.restore(opened.abstract))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, source):
    return run(source, tmp_path_factory.mktemp("straight") / "run")


@pytest.mark.thorough
def test_the_memory_lies_where_the_rows_do_and_is_filled(straight):
    opened, state = straight
    carry = opened.shardings.carry
    assert all("data" in str(leaf.spec[0]) for leaf in jax.tree.leaves(carry))
    assert (state.carry.segments_bm > 0).all() and all(np.any(leaf) for leaf in jax.tree.leaves(state.carry))


@pytest.mark.thorough
def test_a_run_in_two_parts_is_the_run_in_one(tmp_path, source, straight):
    run(source, tmp_path / "run", steps=STEPS // 2)
    _, state = run(source, tmp_path / "run")
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(straight[1]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
@pytest.mark.parametrize(("axes", "microbatches", "dropout"), [
    ({"data": 2, "fsdp": 2, "tensor": 2}, 1, 0.1),
    ({}, 2, 0.0),  # each part of a batch draws numbers of its own
])  # fmt: skip
def test_neither_the_mesh_nor_microbatches_change_it(tmp_path, source, axes, microbatches, dropout):
    # Muon and Adam make a whole step even of a gradient that is nothing but a rounding error.
    same = [f"--config.model.dropout={dropout}", "--config.optimizer.name=sgd"]
    same += ["--config.optimizer.learning_rate=0.5", "--config.optimizer.warmup_steps=0"]
    cut = [f"--config.parallel.mesh.{axis}={size}" for axis, size in axes.items()]
    cut += [f"--config.parallel.microbatches={microbatches}"]
    _, state = run(source, tmp_path / "run", *same, *cut)
    _, expected = run(source, tmp_path / "whole", *same)
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.thorough
def test_a_step_is_made_again_with_its_memory(straight, capsys):
    opened, _ = straight
    *_, last = [json.loads(line) for line in opened.folder.metrics.read_text().splitlines()]
    capsys.readouterr()
    assert launch.main([f"--workdir={opened.workdir}", "--mode=replay", f"--step={STEPS}"]) == 0
    shown = f"step {STEPS}: loss {last['train/loss']:.4g}, gradient norm "
    assert shown in capsys.readouterr().out
