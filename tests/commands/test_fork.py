"""A fork continues a run in a new folder: what is not changed continues bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import launch
from commands import train
from experiments.language_modeling import LanguageModeling
from tests import runs
from tests.test_resume import measurements
from tests.training.toy import assert_same
from transformer.errors import UserError
from transformer.training.optim.optax_optimizers import OPTIMIZERS
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

AT, STEPS = 4, 8

EVERY_RUN = [
    f"--config.train.steps={STEPS}",
    f"--config.train.checkpoint_every={AT}",
    "--config.train.keep_last=9",
    "--config.train.log_every=1",
    "--config.model.dropout=0.2",
    "--config.optimizer.warmup_steps=2",
]
CONSTANT = ["--config.optimizer.schedule=constant"]
WSD = ["--config.optimizer.schedule=wsd", "--config.optimizer.decay_steps=3"]

KILLED = """
import os, signal, sys
import launch
from commands import train
from workdir import forking

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

place, name = {"made": (forking, "rename"), "begun": (train, "run")}[sys.argv[1]]
setattr(place, name, die)
launch.main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def stable(tmp_path_factory, source):
    """A language model with a constant learning rate, and checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("stable") / "run"
    assert launch.main(runs.tiny(source, folder, *EVERY_RUN, *CONSTANT)) == 0
    return folder


def command(folder, to, *more):
    return ["--mode=fork", f"--workdir={folder}", f"--at_step={AT}", f"--to={to}", *more]


def fork(folder, to, *more):
    assert launch.main(command(folder, to, *more)) == 0
    return to


def rates(folder):
    return [line["train/learning_rate"] for line in measurements(folder)]


def record(folder):
    return json.loads((folder / "fork.json").read_text())


def begun(monkeypatch, folder, to, *more):
    """The state with which a fork starts, which is not trained, and its run."""
    with monkeypatch.context() as patch:
        patch.setattr(train, "run", lambda *_: 0)
        fork(folder, to, *more)
    return runs.state(to), opening.open_to_train(opening.RunFolder(to), (), "", False, ())


def first_rows(run, step=AT):
    return next(iter(run.loader.iterate(step)))["tokens"]


RUNS = {
    "language_model": ("configs/lm.py:tiny", ["--config.optimizer.ema_decay=0.5"]),
    "memory": ("configs/transformer_xl.py:tiny", ["--config.train.batch_size=16"]),
    "translation": ("configs/translation.py:tiny", ["--config.data.bpe_dropout=0.1"]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", RUNS)
def test_a_fork_with_nothing_changed_is_the_run_to_its_end(tmp_path, source, kind):
    """Also of a run that was extended: the learning rate warms up again where it did there."""
    config, options = RUNS[kind]
    options = [*options, *EVERY_RUN, "--config.optimizer.schedule=cosine"]
    options += ["--config.train.evaluate_every=3"]  # and so also where it ended at first
    if kind == "translation":
        lines = [f"number {i} of the lines\tZahl {i} der Zeilen\n" for i in range(200)]
        (tmp_path / "pairs.tsv").write_text("".join(["source\ttarget\n", *lines]))
        source = f"tsv:{tmp_path}/pairs.tsv"
        options += ["--config.data.tokenizer=bpe", "--config.data.vocab_size=300"]
    options += [f"--config.data.source={source}"]
    straight = tmp_path / "straight"
    for steps in (6, STEPS):
        again = [f"--config={config}", f"--workdir={straight}", *options, f"--config.train.steps={steps}"]
        assert launch.main(again) == 0
    for at in (AT, 6):  # before it was extended, and where
        to = fork(straight, tmp_path / f"from {at}", f"--at_step={at}")
        assert_same(runs.state(to), runs.state(straight))
        expected = [line for line in measurements(straight) if line["step"] > at]
        assert measurements(to) == expected and len(expected) == STEPS - at
        assert record(to)["changed"] == {} and record(to)["anew"] == {}
        for name in ("config.json", "data.json", "tokenizer.json"):
            assert (to / name).read_bytes() == (straight / name).read_bytes()


@pytest.mark.thorough
def test_cool_downs_of_a_stable_run_decay_to_their_ends(capfd, tmp_path, stable):
    """And a fork of a fork with a longer plan warms up again from the end of the decay, as does its fork."""
    one = fork(stable, tmp_path / "one", *WSD)
    out = capfd.readouterr().out
    assert f"{one}: a fork of {stable}, step 4: optimizer.schedule 'constant' -> 'wsd'" in out
    assert "continues: parameters, optimizer state, data from batch 4\n" in out
    np.testing.assert_allclose(rates(one), [0.02, 0.02 * 2 / 3, 0.02 / 3, 0], atol=1e-7)
    assert_same(runs.state(one, AT), runs.state(stable, AT))
    assert record(one)["changed"] == {
        "optimizer.schedule": ["constant", "wsd"],
        "optimizer.decay_steps": [0, 3],
    }
    half = fork(
        stable, tmp_path / "half", *WSD, "--config.train.steps=7", "--config.optimizer.learning_rate=0.01"
    )
    np.testing.assert_allclose(rates(half), [0.01 * 2 / 3, 0.01 / 3, 0], atol=1e-7)
    slowly = ["--config.optimizer.decay_steps=0", "--config.optimizer.warmup_steps=8"]
    more = fork(one, tmp_path / "more", "--at_step=8", "--config.train.steps=16", *CONSTANT, *slowly)
    np.testing.assert_allclose(rates(more), 0.02 * np.arange(1, 9) / 8, atol=1e-7)
    unchanged = fork(more, tmp_path / "unchanged", "--at_step=12")
    assert_same(runs.state(unchanged), runs.state(more))


@pytest.mark.thorough
def test_the_state_of_a_checkpoint_begins_the_fork(monkeypatch, tmp_path, stable):
    found, run = begun(monkeypatch, stable, tmp_path / "new", "--config.parallel.mesh.fsdp=2")
    assert_same(found, runs.state(stable, AT))
    assert run.mesh.shape["fsdp"] == 2 and not hasattr(run.loader, "shift")
    assert os.listdir(tmp_path) == ["new"] and record(tmp_path / "new")["rate"] == []


@pytest.mark.thorough
def test_another_batch_size_goes_on_at_the_same_row(monkeypatch, tmp_path, stable):
    whole = opening.reopen_run(stable).loader
    _, double = begun(monkeypatch, stable, tmp_path / "double", "--config.train.batch_size=16")
    expected = np.concatenate([whole.batch_at(4)["tokens"], whole.batch_at(5)["tokens"]])
    np.testing.assert_array_equal(first_rows(double), expected)
    # 32 rows were read: of 24 the second batch starts at row 24, the third at row 48.
    _, odd = begun(monkeypatch, stable, tmp_path / "odd", "--config.train.batch_size=24")
    rows = np.concatenate([whole.batch_at(step)["tokens"] for step in range(6, 9)])
    np.testing.assert_array_equal(first_rows(odd), rows)
    _, back = begun(monkeypatch, tmp_path / "odd", tmp_path / "back", "--config.train.batch_size=8")
    np.testing.assert_array_equal(first_rows(back), whole.batch_at(6)["tokens"])


OTHER_ROWS = {
    "source": "data.source={other}",
    "sequence_length": "data.sequence_length=64",
    "validation": "data.validation_source={other}",
    "seed": "seed=3",
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("key", OTHER_ROWS)
def test_other_rows_are_read_from_their_first(monkeypatch, capfd, tmp_path, stable, key):
    other = runs.write_corpus(tmp_path / "other", documents=20)
    given = OTHER_ROWS[key].format(other=other)
    _, run = begun(monkeypatch, stable, tmp_path / "new", f"--config.{given}")
    np.testing.assert_array_equal(first_rows(run), run.experiment.train_data().batch_at(0)["tokens"])
    out = capfd.readouterr().out
    assert (
        "continues: parameters, optimizer state\n" in out
        and f"reset: data ({given.split('=')[0]} is another)" in out
    )
    theirs, ours = (json.loads((folder / "data.json").read_text()) for folder in (stable, tmp_path / "new"))
    assert (theirs == ours) == (key not in ("source", "validation"))


@pytest.mark.thorough
def test_other_validation_data_leave_the_rows_as_they_are(monkeypatch, tmp_path, stable):
    """Unless the first ones were a part of the source."""
    for number in (1, 2):
        runs.write_corpus(tmp_path / f"texts{number}", documents=number)
    sources = [f"--config.data.validation_source=text:{tmp_path}/texts{number}/*.txt" for number in (1, 2)]
    begun(monkeypatch, stable, tmp_path / "one", sources[0])
    begun(monkeypatch, tmp_path / "one", tmp_path / "two", sources[1])
    assert record(tmp_path / "one")["anew"] == {"data": "data.validation_source is another"}
    assert record(tmp_path / "two")["anew"] == {}


def test_data_that_only_lie_elsewhere_are_the_same(monkeypatch, tmp_path, stable, source):
    shutil.copytree(source.removeprefix("text:").removesuffix("/*.txt"), tmp_path / "there")
    keys = [f"--config.data.source=text:{tmp_path}/there/*.txt", "--config.train.batch_size=16"]
    begun(monkeypatch, stable, tmp_path / "new", *keys)
    assert record(tmp_path / "new")["batch"] == 2 and record(tmp_path / "new")["anew"] == {}


@pytest.mark.thorough
def test_an_average_may_begin_and_end(monkeypatch, tmp_path, stable):
    found, _ = begun(monkeypatch, stable, tmp_path / "on", "--config.optimizer.ema_decay=0.9")
    assert_same(found.ema, found.params)
    kept = {"ema": "it starts with the parameters"}
    assert record(tmp_path / "on")["anew"] == kept
    found, _ = begun(monkeypatch, tmp_path / "on", tmp_path / "off", "--config.optimizer.ema_decay=0")
    assert_same(found, runs.state(stable, AT))


@pytest.mark.thorough
def test_another_optimizer_starts_again_when_asked_and_warms_up(monkeypatch, capfd, tmp_path, stable):
    keys = ["--config.optimizer.name=adamw", "--config.optimizer.learning_rate=0.001"]
    assert launch.main(command(stable, tmp_path / "new", *keys)) == 2
    assert "adamw cannot continue from the state of contrib.muon; --fresh_optimizer" in capfd.readouterr().err
    found, run = begun(monkeypatch, stable, tmp_path / "new", *keys, "--fresh_optimizer")
    assert_same(found.params, runs.state(stable, AT).params)
    adam, *_ = found.opt_state
    assert adam.count == 0 and not any(np.any(leaf) for leaf in jax.tree.leaves((adam.mu, adam.nu)))
    assert [float(run.schedule(step)) for step in (4, 5, 6)] == pytest.approx([0.0005, 0.001, 0.001])


WHOLE = [
    *(name for name in OPTIMIZERS if name != "contrib.muon"),
    "contrib.prodigy",
    "contrib.schedule_free_adamw",
]


@pytest.mark.thorough
@pytest.mark.parametrize("name", WHOLE)
def test_optimizers_of_whole_arrays_and_with_one_count_start_again_too(tmp_path, stable, name):
    keys = [f"--config.optimizer.{key}" for key in (f"name={name}", "weight_decay=0", "learning_rate=0.001")]
    to = fork(stable, tmp_path / "new", *keys, "--fresh_optimizer")
    np.testing.assert_allclose(rates(to), [0.0005, 0.001, 0.001, 0.001], rtol=1e-5)
    again = fork(to, tmp_path / "again", "--at_step=8", "--config.train.steps=9", "--fresh_optimizer")
    assert int(runs.state(again).step) == 9


def test_a_fork_whose_step_cannot_be_made_is_not_written(monkeypatch, capfd, tmp_path, stable):
    def refused(*_):
        raise UserError("config.model: these layers cannot")

    monkeypatch.setattr(LanguageModeling, "loss", refused)
    assert launch.main(command(stable, tmp_path / "new")) == 2
    assert capfd.readouterr().err == "error: config.model: these layers cannot\n"
    assert not os.listdir(tmp_path)


@pytest.mark.thorough
def test_the_same_arrays_of_another_optimizer_are_not_its_state(capfd, tmp_path, source):
    folder = tmp_path / "adam"
    keys = ["--config.optimizer.name=adam", "--config.optimizer.weight_decay=0", "--config.train.steps=4"]
    assert launch.main(runs.tiny(source, folder, *keys, *CONSTANT)) == 0
    keys = ["--config.optimizer.name=adamax", "--config.train.steps=6"]
    assert launch.main(command(folder, tmp_path / "new", *keys)) == 2
    assert "adamax cannot continue from the state of adam" in capfd.readouterr().err


@pytest.mark.thorough
def test_a_memory_of_other_rows_starts_again(monkeypatch, capfd, tmp_path, source):
    folder = tmp_path / "run"
    config = ["--config=configs/transformer_xl.py:tiny", f"--config.data.source={source}"]
    options = [*config, f"--workdir={folder}", "--config.train.batch_size=16", *EVERY_RUN, *CONSTANT]
    assert launch.main([*options, "--config.train.steps=4"]) == 0
    for number, keys in enumerate((["train.batch_size=8"], ["data.sequence_length=16"])):
        given = [f"--config.{key}" for key in [*keys, "train.steps=6"]]
        capfd.readouterr()
        found, _ = begun(monkeypatch, folder, tmp_path / str(number), *given)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(found.carry))
        assert f"reset: carry ({keys[0].split('=')[0]} is another)" in capfd.readouterr().out
        assert launch.main([f"--workdir={tmp_path / str(number)}"]) == 0
    found, _ = begun(monkeypatch, folder, tmp_path / "same", "--config.train.steps=6")
    assert any(np.any(leaf) for leaf in jax.tree.leaves(found.carry))


@pytest.mark.thorough
def test_what_lora_trains_may_change_with_a_fresh_optimizer(capfd, tmp_path, source, stable):
    folder = tmp_path / "lora"
    keys = ["--config.model.lora_rank=2", "--config.optimizer.train_only=lora", "--config.train.steps=4"]
    assert launch.main(runs.tiny(source, folder, *CONSTANT, *keys)) == 0
    keys = ["--config.optimizer.train_only=lora,embedding", "--config.train.steps=6"]
    assert launch.main(command(folder, tmp_path / "new", *keys)) == 2
    assert "has the state of another optimizer: missing: " in capfd.readouterr().err
    to = fork(folder, tmp_path / "new", *keys, "--fresh_optimizer")
    before, after = runs.state(folder).params, runs.state(to).params
    moved = jax.tree_util.tree_leaves_with_path(
        jax.tree.map(lambda x, y: bool(np.any(x != y)), before, after)
    )
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path, is_moved in moved if is_moved}
    assert names and all("lora" in name or "embedding" in name for name in names)
    assert any("lora" not in name for name in names)


REFUSED = {
    "--at_step=5": "no checkpoint of step 5; there are 4, 8",
    "--at_step=8": "config.train.steps: 8; a fork of step 8 needs more",
    "--at_step=x": "--at_step: 'x'; expected a number, best or latest",
    "--at_step=best": "no checkpoint was saved with train.keep_best",
    "--workdir={stable}@8": "--at_step: 4, but --workdir names 8; give one of them",
    "--workdir=/nowhere/run": "--workdir: /nowhere/run does not exist",
    "--to={stable}": "is the run itself",
    "--to={stable}/x/y": "is inside",
    "--to={stable}/..": "exists and is not a fork",
    "--to=": "--to: which new folder?",
    "--config=configs/lm.py": "--config: only --mode=train, config",
    "--config.train.stepz=9": "config.train.stepz: unknown key; did you mean --config.train.steps=9 or ",
    "--config.train.steps=4": "config.train.steps: 4; a fork of step 4 needs more",
    "--config.model.d_ff=32": "parameters of another model: blocks/feed_forward/down/kernel is float32[1, 64",
    "--config.data.tokenizer=characters": "'characters', but a fork has the tokenizer of",
    "--config.initialize_from={stable}": "but a fork has the parameters of",
    "--config.optimizer.decay_steps=5": "decay_steps: 5 does nothing with schedule 'constant'",
    "--config.train.batch_size=9": "train.batch_size: 9 is not a multiple of 2",
    "--config.optimizer.rules=[{{'match':'norm','weight_decay':0.5}}]": "state of another optimizer: ",
}


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("given", REFUSED)
def test_what_cannot_be_forked_is_one_line_and_nothing_is_written(capfd, tmp_path, stable, given):
    before = runs.listing(stable.parent)
    capfd.readouterr()
    given_flags = given.format(stable=stable).split()
    assert launch.main(command(stable, tmp_path / "new", *given_flags)) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1
    assert REFUSED[given] in error
    assert not os.listdir(tmp_path) and runs.listing(stable.parent) == before


def test_a_run_without_a_checkpoint_cannot_be_forked(capfd, tmp_path, stable):
    folder = shutil.copytree(stable, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    assert launch.main(command(folder, tmp_path / "new")) == 2
    assert f"--workdir: {folder} has no checkpoints yet; train first" in capfd.readouterr().err
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.thorough
def test_data_that_have_changed_unsaid_are_refused(monkeypatch, capfd, tmp_path, source, stable):
    copy = tmp_path / "there"
    shutil.copytree(source.removeprefix("text:").removesuffix("/*.txt"), copy)
    folder = shutil.copytree(stable, tmp_path / "run")
    config = folder / "config.json"
    config.write_text(config.read_text().replace(source, f"text:{copy}/*.txt"))
    (copy / "new.txt").write_text("something new")
    assert launch.main(command(folder, tmp_path / "new")) == 2
    assert "data.source: new.txt is new (13 bytes); --accept_data continues" in capfd.readouterr().err
    begun(monkeypatch, folder, tmp_path / "new", "--accept_data")
    assert record(tmp_path / "new")["batch"] == 0


@pytest.mark.thorough
def test_the_same_command_resumes_and_another_is_refused(capfd, tmp_path, stable):
    to = fork(stable, tmp_path / "new", *WSD)
    before = runs.state(to)
    capfd.readouterr()
    for other in ([], [*WSD, "--config.seed=1"], [*WSD, "--fresh_optimizer"], [*WSD, "--at_step=8"]):
        assert launch.main(command(stable, to, *other)) == 2
        error = capfd.readouterr().err
        assert f"--to: {to} is another fork, of {stable}, step 4: optimizer.schedule 'const" in error
    shutil.rmtree(to / "checkpoints" / "8")
    fork(stable, to, *WSD)
    assert "from step 4 to 8" in capfd.readouterr().out
    assert_same(runs.state(to), before)
    assert launch.main([f"--workdir={to}", "--config.optimizer.learning_rate=0.5"]) == 2
    assert "optimizer.learning_rate 0.02 (here 0.5); choose another folder, or" in capfd.readouterr().err


@pytest.mark.thorough
@pytest.mark.parametrize("at", ["made", "begun"])
def test_a_fork_that_is_killed_before_its_first_step_begins_with_the_checkpoint(tmp_path, stable, at):
    to = tmp_path / "new"
    flags = command(stable, to, *WSD)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, at, *flags],
        cwd=runs.ROOT,
        env=os.environ | {"JAX_NUM_CPU_DEVICES": str(runs.DEVICES)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert to.exists() == (at == "begun")
    if at == "begun":
        assert_same(runs.state(to), runs.state(stable, AT))
    assert launch.main(flags) == 0
    assert os.listdir(tmp_path) == ["new"]
    assert_same(runs.state(to), runs.state(fork(stable, tmp_path / "whole", *WSD)))
