"""A run that is stopped and started again is, bit for bit, the run that was never stopped."""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import launch
from experiments import modes
from tests import runs
from transformer.training.hooks import Hook
from transformer.training.run import Run

STEPS, CHECKPOINT_EVERY = 10, 5

OPTIONS = [
    f"--config.train.steps={STEPS}",
    f"--config.train.checkpoint_every={CHECKPOINT_EVERY}",
    "--config.train.log_every=1",
    "--config.train.evaluate_every=4",
    "--config.model.dropout=0.2",
    "--config.optimizer.ema_decay=0.5",
    "--config.optimizer.decay_steps=5",
]

KILLED = """
import os, signal, sys, time
from pathlib import Path
import launch
from tests.test_resume import Send, with_hook
from transformer.training.run import Run

class Kill(Send):
    def __call__(self, step, state, metrics):
        deadline = time.monotonic() + 60
        while not Path(sys.argv[1], "checkpoints", "5").is_dir() and time.monotonic() < deadline:
            time.sleep(0.01)
        super().__call__(step, state, metrics)

Run.hooks = with_hook(Kill(7, signal.SIGKILL))
launch.main(sys.argv[2:])
"""


class Send(Hook):
    """Sends signals to this very process after a step."""

    def __init__(self, at: int, *signals: int):
        super().__init__()
        self.at, self.signals = at, signals

    def due(self, step, last):
        return step == self.at

    def __call__(self, step, state, metrics):
        for number in self.signals:
            os.kill(os.getpid(), number)


def with_hook(hook):
    """`Run.hooks` with one more hook."""
    hooks = Run.__dict__["hooks"]
    original = hooks.func if hasattr(hooks, "func") else hooks.fget
    return property(lambda run: [*original(run), hook])


pytestmark = pytest.mark.usefixtures("in_root")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, source):
    """The run that nothing stops."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    assert launch.main(runs.tiny(source, folder, *OPTIONS)) == 0
    return folder


def last_state(folder):
    run = modes.reopen_run(folder)
    with run.checkpoints(write=False) as checkpoints:
        assert checkpoints.steps()[-1] == STEPS
        return jax.device_get(checkpoints.restore(run.abstract))


def measurements(folder):
    """What was logged at each step, without what depends on the clock."""
    clocks = ("train/tokens_per_second", "train/seconds", "train/input_wait")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(clocks)} for line in lines]


def assert_same_run(folder, straight):
    a, b = last_state(folder), last_state(straight)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))
    assert [line["step"] for line in measurements(folder)] == list(range(1, STEPS + 1))
    assert measurements(folder) == measurements(straight)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(monkeypatch, capfd, tmp_path, source, straight, number):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "hooks", with_hook(Send(2, number)))
        assert launch.main(runs.tiny(source, folder, *OPTIONS)) == 0
    out = capfd.readouterr().out
    assert f"Go on with: python launch.py --workdir={folder}" in out
    saved = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    assert 2 <= saved <= 3
    assert launch.main([f"--workdir={folder}"]) == 0  # as it said
    assert_same_run(folder, straight)


def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path, source, straight):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", KILLED, str(folder), *runs.tiny(source, folder, *OPTIONS)]
    environment = {"JAX_NUM_CPU_DEVICES": "8"}
    killed = subprocess.run(
        command, cwd=runs.ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (folder / "checkpoints" / str(CHECKPOINT_EVERY)).is_dir()
    assert len(measurements(folder)) > CHECKPOINT_EVERY  # later steps were logged, and are logged again
    assert launch.main(runs.tiny(source, folder, *OPTIONS)) == 0
    assert_same_run(folder, straight)


def test_a_second_interruption_leaves_at_once(monkeypatch, capfd, tmp_path, source):
    monkeypatch.setattr(Run, "hooks", with_hook(Send(2, signal.SIGINT, signal.SIGINT)))
    assert launch.main(runs.tiny(source, tmp_path / "run", *OPTIONS)) == 130
    assert capfd.readouterr().err.endswith("interrupted\n")


def test_a_finished_run_can_be_extended_but_not_shortened(capfd, tmp_path, source):
    folder = tmp_path / "run"
    arguments = runs.tiny(source, folder, "--config.optimizer.schedule=constant")
    assert launch.main(arguments) == 0
    assert launch.main([*arguments, "--config.train.steps=4", "--config.train.log_every=1"]) == 0
    assert [line["step"] for line in measurements(folder)] == [2, 3, 4]
    assert json.loads((folder / "config.json").read_text())["train"]["steps"] == 4
    before = runs.listing(folder)
    capfd.readouterr()
    assert launch.main([*arguments, "--config.train.steps=3"]) == 2
    assert "config.train.steps: 3, but" in capfd.readouterr().err
    assert runs.listing(folder) == before
