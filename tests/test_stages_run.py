"""A run with `train.until`: each stage is a run with those keys, resumed, forked, refused, on any devices."""

import dataclasses
import itertools
import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import launch
from commands import train
from tests import runs
from tests.test_resume import Send, measurements
from tests.training.toy import assert_same
from transformer.training.extras import stages
from workdir import opening

pytestmark = pytest.mark.usefixtures("in_root")

STEPS = 8
UNTIL = {
    "batch_size": {"2": 8, "5": 16},
    "sequence_length": {"3": 8, "6": 16},
    "window": {"7": 4},
}
KEYS = [f"train.steps={STEPS}", "train.log_every=1", "train.batch_size=24", "optimizer.schedule=constant"]
KEYS += ["model.dropout=0.2"]


def options(until=UNTIL, *more):
    return [f"--config.{key}" for key in [*KEYS, f"train.until={json.dumps(until)}", *more]]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return runs.write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def straight(tmp_path_factory, source):
    """The run that nothing stops, with all of its checkpoints."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    keep = ("train.checkpoint_every=1", "train.keep_last=99")
    assert launch.main(runs.tiny(source, folder, *options(UNTIL, *keep))) == 0
    return folder


def opened(source, *keys):
    """A run that is not trained, and without a folder."""
    overrides = [key.partition("=")[::2] for key in keys]
    values = opening.read_config("configs/lm.py:tiny")
    return opening.open_without_data(values, [("data.source", source), *overrides])


@pytest.mark.thorough
def test_a_run_stopped_in_every_stage_is_the_straight_one(tmp_path, source, straight):
    folder = tmp_path / "run"
    for step in (1, 2, 4, 7):
        assert runs.train(source, folder, *options(), hooks=[Send(step, signal.SIGTERM)]) == "SIGTERM"
    assert launch.main([f"--workdir={folder}"]) == 0
    assert_same(runs.state(folder), runs.state(straight))
    assert measurements(folder) == measurements(straight)


@pytest.mark.thorough
def test_each_step_logs_the_values_of_its_stage(straight):
    lines = measurements(straight)
    found = {name: [line[f"train/{name}"] for line in lines] for name in UNTIL}
    assert found == {
        "batch_size": [8, 8, 16, 16, 16, 24, 24, 24],
        "sequence_length": [8, 8, 8, 16, 16, 16, 32, 32],
        "window": [4, 4, 4, 4, 4, 4, 4, 32],
    }
    lines = [json.loads(line) for line in (straight / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "train/step_gb" in line] == [1, 3, 4, 6, 7, 8]


SAME = {
    "batch_size": ("batch_size", 8, ["train.batch_size=8"]),
    "window": ("window", 4, ["model.pattern=window", "model.pattern_size=4"]),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAME)
def test_a_stage_is_the_run_with_its_keys(tmp_path, source, name):
    name, value, keys = SAME[name]
    first = options({name: {"3": value}}, "train.steps=3")
    plain = options({}, "train.steps=3", *keys)
    for folder, given in (("staged", first), ("plain", plain)):
        assert launch.main(runs.tiny(source, tmp_path / folder, *given)) == 0
    assert_same(runs.state(tmp_path / "staged"), runs.state(tmp_path / "plain"))
    losses = [[line["train/loss"] for line in measurements(tmp_path / f)] for f in ("staged", "plain")]
    assert losses[0] == losses[1]


@pytest.mark.thorough
def test_the_loss_of_cut_rows_is_that_of_the_model_called_on_each(source):
    """Piece by piece, without the batch's positions; and with microbatches and a narrow window."""
    keys = ["train.until={'sequence_length': {'2': 8}, 'window': {'2': 3}}", "parallel.microbatches=2"]
    run = opened(source, *keys, "train.batch_size=16", "seed=5")
    with run.placed():
        whole = run.experiment.train_data().batch_at(1)
        batch = next(iter(run.loader.iterate(1)))
        assert batch["tokens"].shape == (16 * 4, 8)
        first = run.first_state()
        params = jax.device_get(first.params)
        step = run.stages.step(1)
        _, metrics = step(first, run.put(batch))
    stage = run.stages.at(1).run
    model = type(run.experiment.model)(
        dataclasses.replace(run.experiment.config.model, pattern="window", pattern_size=3),
        run.experiment.model.vocab_size,
    )
    assert stage.experiment.model == model
    apply = jax.jit(model.apply)
    total, count = 0.0, 0.0
    for row, piece in itertools.product(range(16), range(4)):
        at = slice(8 * piece, 8 * piece + 8)
        tokens, targets, weights, segments = (
            jnp.asarray(whole[name][row, at])[None] for name in ("tokens", "targets", "weights", "segments")
        )
        places = np.arange(8)
        starts = [next(j for j in places if segments[0, j] == segments[0, i]) for i in places]
        inputs = {"segments_bt": segments, "positions_bt": jnp.asarray(places - starts)[None]}
        logits = apply({"params": params}, tokens, **inputs)[..., : model.vocab_size]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        total, count = total + float(jnp.sum(losses * weights)), count + float(weights.sum())
    np.testing.assert_allclose(float(metrics["loss"].mean), total / count, rtol=1e-5)


@pytest.mark.thorough
def test_each_shape_is_traced_once_also_after_a_resume(monkeypatch, tmp_path, source):
    traced = []
    make = stages.StagedStep._make

    def counted(self, run):
        traced.append((run.config.train.batch_size, self._done))
        return make(self, run)

    monkeypatch.setattr(stages.StagedStep, "_make", counted)
    given = options({"batch_size": {"1": 8, "3": 16, "5": 8, "6": 16}})
    folder = tmp_path / "run"
    assert runs.train(source, folder, *given, hooks=[Send(4, signal.SIGTERM)]) == "SIGTERM"
    assert traced == [(8, 0), (16, 1), (8, 3)][: len(traced)] and len(traced) == 2
    assert launch.main([f"--workdir={folder}"]) == 0
    assert traced[2:] == [(8, 4), (16, 5), (24, 6)]


@pytest.mark.thorough
def test_devices_and_measured_steps_change_nothing(tmp_path, source, straight):
    """On a mesh, in microbatches, with norms at every second step; but for rounding and dropout."""
    plain = ["optimizer.name=sgd", "model.dropout=0"]
    mesh = ["parallel.mesh.fsdp=2", "parallel.mesh.tensor=2", "parallel.mesh.context=2"]
    mesh += ["parallel.microbatches=4", "train.log_norms=True", "train.log_every=2"]
    for folder, more in (("a", plain), ("b", [*plain, *mesh])):
        assert launch.main(runs.tiny(source, tmp_path / folder, *options(UNTIL, *more))) == 0
    a, b = ({line["step"]: line for line in measurements(tmp_path / folder)} for folder in ("a", "b"))
    for step in (2, 4, 6, 8):
        both = (a[step - 1]["train/loss"] + a[step]["train/loss"]) / 2
        assert b[step]["train/batch_size"] == a[step]["train/batch_size"]
        assert any(name.startswith("train/norms/update/blocks") for name in b[step])
        if a[step]["train/batch_size"] == a[step - 1]["train/batch_size"]:
            np.testing.assert_allclose(b[step]["train/loss"], both, rtol=2e-3)


REFUSED = {
    "batch_sise={'2':8}": "train.until.batch_sise: unknown; did you mean 'batch_size'?",
    "batch_size={'2':13}": "config.train.until.batch_size: 13 in steps 1 to 2 is not a multiple of 2 = ",
    "batch_size={'x':8}": "train.until.batch_size: until 'x'; expected the number of a step",
    "batch_size={'0':8}": "train.until.batch_size: until '0'; expected",
    "batch_size={'2':0}": "train.until.batch_size: 0 until step 2; expected a whole number",
    "batch_size={'2':8.5}": "train.until.batch_size: 8.5 until step 2; expected a whole number",
    "batch_size=8": "train.until.batch_size: 8; expected values by the steps until which they hold",
    "sequence_length={'2':12}": "train.until.sequence_length: 12 tokens do not divide a row of data.",
    "sequence_length={'2':64}": "train.until.sequence_length: 64 tokens do not divide",
    "sequence_length={'2':2} --config.model.kernel=ring --config.parallel.mesh.context=2 "
    "--config.parallel.mesh.data=4": "train.until: in steps 1 to 2: kernel: 'ring' does not support these",
    "window={'2':8} --config.model.pattern=strided": "train.until.window: 8; expected model.pattern 'full'",
    "window={'2':8} --config.model.mixer=linear": "train.until.window: 8; no layer attends to more",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_cannot_be_is_one_line_and_nothing_is_written(capfd, tmp_path, source, given):
    first, *more = given.split()
    assert launch.main(runs.tiny(source, tmp_path / "run", f"--config.train.until.{first}", *more)) == 2
    assert [REFUSED[given] in line for line in capfd.readouterr().err.splitlines()] == [True]
    assert not (tmp_path / "run").exists()


OF_OTHERS = {
    "transformer_xl": ("batch_size", "not in a run of transformer_xl, where only window may change"),
    "bert": ("sequence_length", "not in a run of masked_lm, where only batch_size, window may change"),
    "word_embedding": ("window", "models of word_embedding have no windows of attention"),
}


@pytest.mark.parametrize("config", OF_OTHERS)
def test_other_runs_say_what_they_can_schedule(capfd, tmp_path, config):
    name, said = OF_OTHERS[config]
    given = [f"--config=configs/{config}.py:tiny", f"--workdir={tmp_path}/run"]
    assert launch.main([*given, f"--config.train.until.{name}.1=8"]) == 2
    assert f"config.train.until.{name}: " in (err := capfd.readouterr().err) and said in err


@pytest.mark.thorough
@pytest.mark.parametrize("config, name", [
    ("transformer_xl", "window"), ("bert", "batch_size"), ("bert", "window"), ("translation", "batch_size"),
    ("vision", "batch_size"), ("word_embedding", "batch_size"), ("classification", "batch_size"),
    ("studies/induction_heads/induction_heads", "batch_size"), ("studies/grokking/grokking", "batch_size"),
])  # fmt: skip
def test_other_runs_train_in_stages(tmp_path, config, name):
    given = [f"--config=configs/{config}.py:tiny", f"--workdir={tmp_path}/run", "--config.train.log_every=1"]
    given += ["--config.train.batch_size=16", "--config.train.steps=2"]
    assert launch.main([*given, f"--config.train.until.{name}.1=8"]) == 0
    assert measurements(tmp_path / "run")[0][f"train/{name}"] == 8


@pytest.mark.thorough
def test_a_run_goes_on_with_more_devices_than_its_first_batches_had_rows(capfd, tmp_path, source):
    """Which they must divide only until these are past."""
    keys = ("train.batch_size=24", "train.keep_last=9")
    folder, given = tmp_path / "run", options({"batch_size": {"2": 2, "3": 12}}, *keys)
    assert runs.train(source, folder, *given, hooks=[Send(1, signal.SIGTERM)]) == "SIGTERM"
    more = [f"--workdir={folder}", "--config.parallel.mesh.fsdp=4"]
    assert launch.main(more) == 2
    assert "train.until.batch_size: 2 in steps 1 to 2 is not a multiple of 8 = " in capfd.readouterr().err
    assert runs.train(source, folder, *given, hooks=[Send(2, signal.SIGTERM)]) == "SIGTERM"
    assert launch.main(more) == 2
    assert "train.until.batch_size: 12 in steps 3 to 3 is not a multiple of 8 = " in capfd.readouterr().err
    assert runs.train(source, folder, *given, hooks=[Send(3, signal.SIGTERM)]) == "SIGTERM"
    assert launch.main(more) == 0
    assert [line["train/batch_size"] for line in measurements(folder)] == [2, 2, 12, *[24] * 5]
    assert fork(folder, tmp_path / "fork", 1, "parallel.mesh.fsdp=4") == 2
    assert "train.until.batch_size: 2 in steps 1 to 2 is not a multiple of 8 = " in capfd.readouterr().err
    assert not (tmp_path / "fork").exists()


@pytest.mark.thorough
def test_another_schedule_is_refused_on_resume(capfd, straight):
    assert launch.main([f"--workdir={straight}", "--config.train.until.window.7=5"]) == 2
    assert "train.until.window.7 4 (here 5); choose another folder" in capfd.readouterr().err
    assert launch.main([f"--workdir={straight}", "--config.train.until.sequence_length.9=16"]) == 2
    assert "train.until.sequence_length.9 none (here 16)" in capfd.readouterr().err


def fork(folder, to, at, *more):
    flags = [f"--at_step={at}", f"--to={to}", *(f"--config.{key}" for key in more)]
    return launch.main(["--mode=fork", f"--workdir={folder}", *flags])


@pytest.mark.thorough
def test_a_fork_with_nothing_changed_is_the_run_to_its_end(tmp_path, straight):
    for at in (1, 4, 6):
        assert fork(straight, tmp_path / str(at), at) == 0
        assert_same(runs.state(tmp_path / str(at)), runs.state(straight))


@pytest.mark.thorough
def test_a_fork_goes_on_at_the_row_that_was_reached(monkeypatch, capfd, tmp_path, source, straight):
    """With another schedule, without one, and again with one."""
    monkeypatch.setattr(train, "run", lambda *_: 0)
    order = dataclasses.replace(opened(source).experiment.train_data(), batch_size=1, needed=None)

    def rows(folder, step):
        run = opening.open_to_train(opening.RunFolder(folder), (), "", False, ())
        return next(iter(run.loader.iterate(step)))["tokens"]

    def expected(first, count):
        return np.concatenate([order.batch_at(place)["tokens"] for place in range(first, first + count)])

    # 8 + 8 + 16 + 16 rows have been read.
    assert fork(straight, tmp_path / "other", 4, "train.until={'batch_size': {'6': 40}}") == 0
    assert "data from row 48\n" in capfd.readouterr().out
    np.testing.assert_array_equal(rows(tmp_path / "other", 4), expected(48, 40))
    np.testing.assert_array_equal(rows(tmp_path / "other", 6), expected(48 + 80, 24))
    assert fork(straight, tmp_path / "none", 3, "train.until={}") == 0
    # 32 rows have been read: of batches of 24 the second one had started.
    assert "data from batch 2\n" in capfd.readouterr().out
    np.testing.assert_array_equal(rows(tmp_path / "none", 3), expected(48, 24))
    again = ["train.until={'batch_size': {'5': 8}}", "train.steps=9"]
    assert fork(tmp_path / "none", tmp_path / "again", 3, *again) == 0
    np.testing.assert_array_equal(rows(tmp_path / "again", 3), expected(48, 8))
    np.testing.assert_array_equal(rows(tmp_path / "again", 4), expected(56, 8))
    assert fork(tmp_path / "again", tmp_path / "twice", 3, "train.until={'batch_size': {'4': 16}}") == 0
    np.testing.assert_array_equal(rows(tmp_path / "twice", 4), expected(64, 24))


@pytest.mark.thorough
def test_commands_have_the_keys_of_the_last_stage(capfd, straight):
    for flags in (["--mode=config"], ["--mode=evaluate"], ["--mode=plan"]):
        assert launch.main([f"--workdir={straight}", *flags]) == 0
    out = capfd.readouterr().out
    assert "train.until = {'batch_size': {'2': 8, '5': 16}, " in out
    assert f"{24 * 32:,} tokens" in out
    assert launch.main([f"--workdir={straight}", "--mode=batch", "--step=2"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert max(line["row"] for line in lines) == 8 * 4 - 1  # in rows of 8 tokens
    assert all(line["place"] for line in lines)


def test_budgets_and_equal_amounts_refuse_steps_that_differ(capfd, tmp_path, source):
    given = [f"--config.data.source={source}", "--config.train.until.batch_size.1=8"]
    tiny = ["--config=configs/lm.py:tiny", f"--workdir={tmp_path}/x", *given, "--config.train.batch_size=16"]
    assert launch.main(["--mode=compare", *tiny, "--b=model.norm=layer", "--basis=tokens"]) == 2
    assert "--basis: tokens, but the steps of a differ by config.train.until" in capfd.readouterr().err
