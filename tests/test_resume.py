"""A run that is stopped and started again is, bit for bit, the run that was never stopped."""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import launch
from experiments.language_modeling import LanguageModeling
from tests import runs
from transformer.errors import UserError
from transformer.training.hooks import Hook
from transformer.training.run import Run
from workdir import opening, session
from workdir.lock import exclusive

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
import sys
from tests import runs
from tests.test_resume import OPTIONS, Kill

runs.train(*sys.argv[1:], *OPTIONS, hooks=[Kill(7, sys.argv[2])])
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


class Kill(Send):
    """Kills this very process after a step, once the checkpoint of step 5 is written."""

    def __init__(self, at: int, folder: str):
        super().__init__(at, signal.SIGKILL)
        self.written = Path(folder, "checkpoints", "5")

    def __call__(self, step, state, metrics):
        deadline = time.monotonic() + 60
        while not self.written.is_dir() and time.monotonic() < deadline:
            time.sleep(0.01)
        super().__call__(step, state, metrics)


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
    run = opening.reopen_run(folder)
    with run.checkpoints(write=False) as checkpoints:
        assert checkpoints.steps()[-1] == STEPS
        return jax.device_get(checkpoints.restore(run.abstract))


def measurements(folder):
    """What was logged at each step, without what depends on the clock or is logged once per start."""
    of_a_start = ("train/tokens_per_second", "train/seconds", "train/input_wait", "train/step_gb")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not name.startswith(of_a_start)} for line in lines
    ]


def assert_same_run(folder, straight):
    a, b = last_state(folder), last_state(straight)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))
    assert [line["step"] for line in measurements(folder)] == list(range(1, STEPS + 1))
    assert measurements(folder) == measurements(straight)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_same_command_goes_on(capfd, tmp_path, source, straight, number):
    folder = tmp_path / "run"
    assert runs.train(source, folder, *OPTIONS, hooks=[Send(2, number)]) == number.name
    out = capfd.readouterr().out
    assert f"Resume with: python launch.py --workdir={folder}" in out
    saved = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdecimal())
    assert 2 <= saved <= 3
    assert launch.main([f"--workdir={folder}"]) == 0  # as it said
    assert_same_run(folder, straight)


@pytest.mark.thorough
def test_a_killed_run_goes_on_from_its_last_checkpoint(tmp_path, source, straight):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", KILLED, source, str(folder)]
    environment = {"JAX_NUM_CPU_DEVICES": str(runs.DEVICES)}
    killed = subprocess.run(
        command, cwd=runs.ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (folder / "checkpoints" / str(CHECKPOINT_EVERY)).is_dir()
    assert len(measurements(folder)) > CHECKPOINT_EVERY  # later steps were logged, and are logged again
    assert launch.main(runs.tiny(source, folder, *OPTIONS)) == 0
    assert_same_run(folder, straight)


@pytest.mark.thorough
def test_a_second_interruption_leaves_at_once(tmp_path, source):
    class Twice(Send):
        def due(self, step, last):
            if step == 2:
                os.kill(os.getpid(), signal.SIGINT)  # between two steps: it is noted
            return step == 3

    with pytest.raises(KeyboardInterrupt):
        runs.train(source, tmp_path / "run", *OPTIONS, hooks=[Twice(3, signal.SIGINT)])


def test_the_exit_code_says_that_a_command_was_interrupted(monkeypatch, capfd, tmp_path, source):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "train", interrupted)
    assert launch.main(runs.tiny(source, tmp_path / "run")) == 130
    assert capfd.readouterr().err.endswith("interrupted\n")


@pytest.mark.thorough
def test_a_signal_in_an_evaluation_leaves_it_and_it_is_made_up_for(
    monkeypatch, capfd, tmp_path, source, straight
):
    """The evaluation is not waited for, nor lost; and the next command may be stopped in it just so."""
    folder = tmp_path / "run"
    original = LanguageModeling.evaluators

    def evaluators(self, *arguments, **options):
        measure = original(self, *arguments, **options)["eval"]

        def stopped(params):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
            return measure(params)

        return {"eval": stopped}

    start = time.monotonic()
    for command in (runs.tiny(source, folder, *OPTIONS), [f"--workdir={folder}"]):
        with monkeypatch.context() as patch:
            patch.setattr(LanguageModeling, "evaluators", evaluators)
            assert launch.main(command) == 143
        assert os.listdir(folder / "checkpoints") == ["4"]
        assert [line["step"] for line in measurements(folder)] == [1, 2, 3, 4]
    assert time.monotonic() - start < 60
    assert "SIGTERM: saved step 4 and leaving" in capfd.readouterr().out
    assert launch.main([f"--workdir={folder}"]) == 0
    assert_same_run(folder, straight)


@pytest.mark.thorough
def test_an_evaluation_that_fails_is_made_up_for(monkeypatch, tmp_path, source, straight):
    """The error may be one of the machine, such as a package that is gone or a full disk."""
    folder = tmp_path / "run"

    def evaluators(self, *arguments, **options):
        return {"eval": lambda params: 1 / 0}

    for command in (runs.tiny(source, folder, *OPTIONS), [f"--workdir={folder}"]):
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(LanguageModeling, "evaluators", evaluators)
            launch.main(command)
        assert [line["step"] for line in measurements(folder)] == [1, 2, 3, 4]
    assert launch.main([f"--workdir={folder}"]) == 0
    assert_same_run(folder, straight)


@pytest.mark.thorough
def test_a_signal_before_the_first_step_ends_saves_the_first_step(monkeypatch, tmp_path, source, straight):
    folder = tmp_path / "run"
    loader = Run.loader.func

    class Stop:
        def __init__(self, inner):
            self.inner = inner

        def iterate(self, start):
            os.kill(os.getpid(), signal.SIGTERM)
            yield from self.inner.iterate(start)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "loader", property(lambda run: Stop(loader(run))))
        assert launch.main(runs.tiny(source, folder, *OPTIONS)) == 143
    assert os.listdir(folder / "checkpoints") == ["1"]
    assert launch.main([f"--workdir={folder}"]) == 0
    assert_same_run(folder, straight)


HOLDER = """
import sys, time
from pathlib import Path
from workdir.lock import exclusive

with exclusive(Path(sys.argv[1], "lock")):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_folder_in_training_is_refused_to_a_second_training_until_the_first_is_gone(
    capfd, tmp_path, straight
):
    folder = shutil.copytree(straight, tmp_path / "run")
    before = runs.listing(folder)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=runs.ROOT, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        capfd.readouterr()
        assert launch.main([f"--workdir={folder}", "--config.train.steps=12"]) == 2
        error = capfd.readouterr().err
        assert error.count("\n") == 1
        assert (
            f"--workdir: {folder} is in training by process {holder.pid} on {socket.gethostname()}" in error
        )
        assert launch.main([f"--workdir={folder}", "--mode=predict", "--prompt=x"]) == 0
        assert runs.listing(folder).keys() == before.keys() | {"lock"}
    finally:
        holder.kill()
        holder.communicate()
    assert (folder / "lock").exists()  # left by the kill, and held by no one
    assert launch.main([f"--workdir={folder}"]) == 0
    assert not (folder / "lock").exists()


def test_the_lock_is_free_again_and_gone_whatever_ends_the_training(tmp_path):
    path = tmp_path / "new" / "lock"
    with pytest.raises(RuntimeError), exclusive(path):
        with pytest.raises(UserError, match="in training by process"), exclusive(path):
            pass
        assert path.exists()
        raise RuntimeError
    assert not path.exists()
    with exclusive(path):
        pass


@pytest.mark.thorough
@pytest.mark.parametrize("streams", ["stdout", "both"])
def test_training_goes_on_when_the_reader_of_what_it_says_has_left(tmp_path, source, streams):
    folder = tmp_path / "run"
    read, write = os.pipe()
    error = write if streams == "both" else subprocess.PIPE
    arguments = runs.tiny(source, folder, "--config.train.steps=30", "--config.train.evaluate_every=3")
    process = runs.start(arguments, stdout=write, stderr=error)
    os.close(write)
    assert os.read(read, 10)
    os.close(read)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0 and "Traceback" not in (said or "")
    assert os.listdir(folder / "checkpoints") == ["30"]


@pytest.mark.thorough
def test_what_has_no_checkpoint_yet_may_begin_otherwise(capfd, tmp_path, source, straight):
    """With other keys, another batch size and another tokenizer; and nothing of the first attempt remains."""
    folder = tmp_path / "run"

    class Interrupt(Hook):
        def __call__(self, step, state, metrics):
            raise KeyboardInterrupt

        def due(self, step, last):
            return step == 3

    other = ["--config.train.batch_size=16", "--config.data.tokenizer=characters", "--config.seed=3"]
    with pytest.raises(KeyboardInterrupt):
        runs.train(source, folder, *OPTIONS, *other, hooks=[Interrupt()])
    assert json.loads((folder / "config.json").read_text())["train"]["batch_size"] == 16
    assert (folder / "checkpoints").is_dir() and not os.listdir(folder / "checkpoints")
    capfd.readouterr()
    assert launch.main([f"--workdir={folder}", "--mode=evaluate"]) == 2
    assert "has no checkpoints yet" in capfd.readouterr().err
    assert launch.main(runs.tiny(source, folder, *OPTIONS)) == 0
    assert_same_run(folder, straight)
    for name in ("config.json", "tokenizer.json"):
        assert (folder / name).read_text() == (straight / name).read_text()


@pytest.mark.thorough
@pytest.mark.parametrize("lost", ["metrics", "numbers"])
def test_a_run_whose_last_lines_fail_is_finished_and_usable(monkeypatch, capfd, tmp_path, source, lost):
    folder = tmp_path / "run"
    original = LanguageModeling.evaluators

    def evaluators(self, *arguments, **options):
        names = original(self, *arguments, **options)["eval"]
        return {"eval": lambda params: dict.fromkeys(names(params), math.nan)}

    with monkeypatch.context() as patch:
        if lost == "numbers":
            patch.setattr(LanguageModeling, "evaluators", evaluators)
        assert launch.main(runs.tiny(source, folder)) == 0
    out = capfd.readouterr().out
    if lost == "numbers":
        assert "the last evaluation gave no number for eval/bits_per_byte" in out
    else:
        (folder / "metrics.jsonl").unlink()
    assert launch.main(runs.tiny(source, folder)) == 0
    out = capfd.readouterr().out
    assert "cannot be told" in out if lost == "metrics" else "gave no number for eval/bits_per_byte" in out
    assert "--mode=predict" in out and "Traceback" not in out
    assert launch.main([f"--workdir={folder}", "--mode=evaluate"]) == 0
    assert launch.main([f"--workdir={folder}", "--config.train.steps=3"]) == 0


def rates(folder):
    return [line["train/learning_rate"] for line in measurements(folder)]


@pytest.mark.thorough
def test_an_extended_run_warms_up_again_and_resumes_bit_for_bit(capfd, tmp_path, source):
    """With an average, microbatches and dropout: stopped twice on the way, and stopped never."""
    keys = ("optimizer.schedule=cosine", "optimizer.decay_steps=0", "optimizer.warmup_steps=3")
    keys += ("optimizer.final_fraction=0.0", "train.steps=6", "train.batch_size=16")
    keys += ("parallel.microbatches=2",)
    arguments = [*OPTIONS, *(f"--config.{key}" for key in keys)]
    folders = tmp_path / "whole", tmp_path / "stopped"
    longer = f"--config.train.steps={STEPS}"
    for folder in folders:
        assert launch.main(runs.tiny(source, folder, *arguments)) == 0
        assert "the learning rate rises again, from 0 to 0.0082" in capfd.readouterr().out
    for folder in folders:
        for at in (7, 9) if folder == folders[1] else ():
            runs.train(source, folder, *arguments, longer, hooks=[Send(at, signal.SIGTERM)])
        assert launch.main(runs.tiny(source, folder, *arguments, longer)) == 0
        assert json.loads((folder / "lengths.json").read_text()) == [[6, 6]]
    assert_same_run(folders[1], folders[0])
    found = rates(folders[0])
    assert found[5] == 0 and max(found) == found[2]
    assert found[6] == pytest.approx(
        found[2] / 3
    )  # not the 0.0083 of a run that had ten steps from the first
    assert found[7:] == sorted(found[7:], reverse=True) and found[9] == 0


@pytest.mark.thorough
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
