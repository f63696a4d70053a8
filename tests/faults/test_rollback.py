"""Numbers that go wrong: training goes back to a good checkpoint, and a replay names the layer."""

import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import launch
from tests import runs
from tests.training.optim.test_optimizer import expected_rate
from tests.training.toy import assert_same
from transformer.data.loader import DataLoader
from transformer.evaluation.nonfinite import first_nonfinite
from transformer.layers import feed_forward
from transformer.training.extras.divergence import RECENT, Diverged, Watch
from transformer.training.run_config import TrainConfig
from workdir.opening import reopen_run


@pytest.fixture
def corpus(tmp_path):
    return runs.write_corpus(tmp_path / "corpus")


def spoil(monkeypatch: pytest.MonkeyPatch, steps: range, name: str = "weights", value=np.nan) -> None:
    """Gives one of the arrays that these training steps read a single value."""
    batch_at = DataLoader.batch_at

    def spoilt(self, index):
        batch = batch_at(self, index)
        bad = self.repeat and index + 1 in steps
        return batch | {name: np.full_like(batch[name], value)} if bad else batch

    monkeypatch.setattr(DataLoader, "batch_at", spoilt)


KEYS = (
    "--config.train.steps=30", "--config.train.log_every=2", "--config.train.checkpoint_every=6",
    "--config.train.max_skipped=3", "--config.train.keep_last=9", "--config.optimizer.ema_decay=0.9",
)  # fmt: skip


@pytest.mark.thorough
def test_what_is_not_finite_is_passed_over_from_a_good_checkpoint(monkeypatch, corpus, tmp_path, capsys):
    """Of the steps 11 to 14 the last state is that of step 6: step 12 saved none."""
    spoil(monkeypatch, range(11, 15))
    folder = tmp_path / "run"
    assert runs.train(corpus, folder, *KEYS, "--config.train.rollbacks=1") == "finished"
    said = capsys.readouterr().err
    assert "not finite in 3 steps in a row, up to step 13; continuing from step 13" in said
    assert "with the parameters of step 6 (rollback 1 of 1)" in said
    (undone,) = json.loads((folder / "rollbacks.json").read_text())
    assert (undone["since"], undone["step"], undone["to"]) == (11, 13, 6)
    state, good = runs.state(folder, 13), runs.state(folder, 6)
    assert (int(state.step), int(state.skipped)) == (13, 7)
    for name in ("params", "opt_state", "ema"):
        assert_same(getattr(state, name), getattr(good, name))
    assert int(runs.state(folder, 30).skipped) == 8
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert steps == sorted({*steps})
    assert next(line for line in lines if line["step"] == 13)["train/rolled_back_to"] == 6
    with np.load(folder / "diverged" / "00000011.npz") as batch:
        assert np.isnan(batch["weights"]).any() and batch["tokens"].shape == batch["weights"].shape
    shutil.rmtree(folder / "checkpoints" / "13")  # from step 6 on, step 14 would be another
    assert launch.main([f"--workdir={folder}", "--mode=replay", "--step=14"]) == 2
    assert "there is no checkpoint from before it" in capsys.readouterr().err


FOLLOWED = {
    "constant": [],
    "inverse_sqrt": [],
    "cosine": ["decay_steps=9"],
    "wsd": ["decay_steps=4"],
}


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", FOLLOWED)
def test_the_rate_follows_the_steps(monkeypatch, corpus, tmp_path, schedule):
    """Through a rollback, an extension, a fork and sizes that change: each has the rate of the step beside it
    by the formula, and the decay of wsd ends with the run."""
    spoil(monkeypatch, range(9, 13))
    keys = [f"schedule={schedule}", "learning_rate=0.01", "warmup_steps=2", *FOLLOWED[schedule]]
    options = [*KEYS, *(f"--config.optimizer.{key}" for key in keys), "--config.train.rollbacks=1"]
    options += ["--config.train.log_every=1", "--config.train.until.batch_size={'8': 16}"]
    folder, (decay,) = tmp_path / "run", [int(key[12:]) for key in FOLLOWED[schedule]] or [0]
    for steps in (16, 22):
        given = [*options, f"--config.train.steps={steps}", f"--workdir={folder}"]
        assert launch.main(runs.tiny(corpus, folder, *given)) == 0
    assert [each["to"] for each in json.loads((folder / "rollbacks.json").read_text())] == [6]
    fork = ["--mode=fork", f"--workdir={folder}", "--at_step=16", f"--to={tmp_path / 'fork'}"]
    assert launch.main(fork) == 0

    def by_formula(step):
        rate = functools.partial(expected_rate, schedule, step, 0.01, 2, decay, 0.0)
        if step <= 16:
            return rate(steps=16)
        return min(rate(steps=22), expected_rate(schedule, 16, 0.01, 2, decay, 0.0, 16) + 0.005 * (step - 16))

    for place, first in ((folder, 1), (tmp_path / "fork", 17)):
        lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
        rates = {line["step"]: line["train/learning_rate"] for line in lines if "train/learning_rate" in line}
        wanted = {step: by_formula(step) for step in range(first, 23) if step != 11}  # the rollback's step
        assert {step: rate for step, rate in rates.items() if step != 11} == pytest.approx(wanted, abs=1e-9)
    if schedule == "wsd":
        assert rates[22] == 0


@pytest.mark.thorough
def test_a_leap_of_the_loss_is_undone_and_resuming_knows_what_is_usual(monkeypatch, corpus, tmp_path, capsys):
    """Steps with targets that no text has; the losses before are read from the metrics."""
    spoil(monkeypatch, range(25, 27), "targets", 3)
    keys = [*KEYS, "--config.train.rollbacks=2", "--config.train.spike=1", "--config.train.log_every=1"]
    folder = tmp_path / "run"
    keys += ["--config.optimizer.learning_rate=0.03", "--config.optimizer.warmup_steps=2"]
    assert runs.train(corpus, folder, *keys, "--config.train.steps=24") == "finished"
    assert runs.train(corpus, folder, *keys, "--config.train.steps=30") == "finished"
    undone = json.loads((folder / "rollbacks.json").read_text())
    assert [(each["step"], each["to"]) for each in undone] == [(25, 24), (26, 18)]
    said = capsys.readouterr().err
    assert f"the median of the {RECENT} logged before, by more than 1; continuing" in said
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    leaps = [line["step"] for line in lines[2:] if line.get("train/loss", 0) > 5]
    assert leaps == [25, 26]


@pytest.mark.thorough
def test_a_checkpoint_among_the_logged_steps_that_leapt_is_not_a_good_one(monkeypatch, corpus, tmp_path):
    """The loss of steps 29 to 32 is logged at steps 30, where a checkpoint is saved, and 32."""
    spoil(monkeypatch, range(31, 33), "targets", 3)
    keys = ("--config.train.log_every=4", "--config.train.steps=34", "--config.optimizer.warmup_steps=2")
    more = ("--config.train.spike=1", "--config.train.rollbacks=1", "--config.optimizer.learning_rate=0.03")
    assert runs.train(corpus, tmp_path / "run", *KEYS, *keys, *more) == "finished"
    (undone,) = json.loads((tmp_path / "run" / "rollbacks.json").read_text())
    assert (undone["since"], undone["step"], undone["to"]) == (29, 32, 24)


@pytest.mark.thorough
def test_the_run_stops_after_so_many_and_the_step_can_be_made_again(monkeypatch, corpus, tmp_path, capsys):
    spoil(monkeypatch, range(8, 31))
    folder = tmp_path / "run"
    command = runs.tiny(corpus, folder, *KEYS, "--config.train.rollbacks=2")
    assert launch.main(command) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: train.max_skipped: ") and "\n" not in said
    assert "went back 2 times before (train.rollbacks 2)" in said and "--mode=replay --step=14" in said
    undone = json.loads((folder / "rollbacks.json").read_text())
    assert [(each["step"], each["to"]) for each in undone] == [(10, 6), (13, 10)]
    before = runs.listing(folder)
    assert launch.main([f"--workdir={folder}", "--mode=replay", "--step=14"]) == 1
    out = capsys.readouterr().out
    assert "step 14: loss nan, gradient norm nan, skipped\n" in out
    assert "forward: the outputs of all modules are finite, but the loss is not finite" in out
    assert launch.main([f"--workdir={folder}", "--mode=replay", "--step=7"]) == 0
    assert "all modules are finite, and so are their gradients" in capsys.readouterr().out
    assert runs.listing(folder) == before
    assert launch.main(command) == 2  # and again, from the same state


@pytest.mark.thorough
def test_without_a_good_checkpoint_nothing_is_changed(monkeypatch, corpus, tmp_path, capsys):
    spoil(monkeypatch, range(2, 31))
    command = runs.tiny(corpus, tmp_path / "run", *KEYS, "--config.train.rollbacks=2")
    assert launch.main(command) == 2
    assert "there is no checkpoint before it to go back to" in capsys.readouterr().err
    assert not (tmp_path / "run" / "rollbacks.json").exists()


@pytest.mark.thorough
def test_a_replay_makes_the_very_step(corpus, tmp_path, capsys):
    """The loss of a step in the middle, from the beginning and from a checkpoint, as it was logged."""
    folder = tmp_path / "run"
    keys = ("--config.train.log_every=1", "--config.parallel.microbatches=2", "--config.model.dropout=0.1",
            "--config.train.batch_size=16")  # fmt: skip
    runs.train(corpus, folder, *KEYS, *keys)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
    capsys.readouterr()
    for step in (4, 6, 20):
        assert launch.main([f"--workdir={folder}", "--mode=replay", f"--step={step}"]) == 0
        assert f"\nstep {step}: loss {logged[step]:.4g}, gradient norm " in capsys.readouterr().out


LEAVE_BEHIND = {
    "a memory from step to step": ("--config=configs/transformer_xl.py:tiny",),
    "stages": ('--config.train.until.sequence_length={"12": 16}', "--config.train.log_every=1"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("of", LEAVE_BEHIND)
def test_what_goes_on_after_a_rollback_is_what_a_run_does_that_begins_there(
    monkeypatch, corpus, tmp_path, capsys, of
):
    """With a memory, which starts again, and over the end of a stage: the steps 11 to 13 are not made."""
    spoil(monkeypatch, range(11, 15))
    folder = tmp_path / "run"
    keys = ("--config.train.rollbacks=1", "--config.train.steps=16", *LEAVE_BEHIND[of])
    command = runs.tiny(corpus, folder, *KEYS, *keys)
    assert launch.main(command) == 0
    assert (
        "continuing from step 13 with the parameters of step 6 (rollback 1 of 1)" in capsys.readouterr().err
    )
    state, good = runs.state(folder, 13), runs.state(folder, 6)
    assert_same(state.params, good.params)
    for old, new in zip(jax.tree.leaves(good.carry), jax.tree.leaves(state.carry), strict=True):
        assert np.any(old) and not np.any(new)
    last = runs.state(folder)
    assert (int(last.step), int(last.skipped)) == (16, 8)
    shutil.rmtree(folder / "checkpoints" / "16")
    assert launch.main(command) == 0
    assert_same(runs.state(folder), last)


@pytest.mark.thorough
def test_an_overflow_in_half_precision_skips_the_step_and_is_named(trained):
    """A layer of weights that are finite, and too large for the numbers of their products."""
    folder = trained[False].folder.path
    run = reopen_run(folder, [("model.dtype", "bfloat16")])

    def planted(path, leaf):
        return leaf.at[1].set(3e38) if "up" in jax.tree_util.keystr(path) else leaf

    with run.placed(), run.checkpoints(write=False) as checkpoints:
        state = checkpoints.restore(run.abstract)
        bad = state.replace(params=jax.tree_util.tree_map_with_path(planted, state.params))
        place = found_in(run, bad.params).forward
        assert (place.module, place.number, place.count) == ("blocks/feed_forward/up", 1, 3)
        before = jax.device_get(bad)
        batch = run.put(next(iter(run.loader.iterate(2))))
        after, metrics = run.jitted()(bad, batch)
    assert int(after.skipped) == int(before.skipped) + 1 and float(metrics["skipped_steps"].total) == 1
    assert_same(jax.device_get(after.params), before.params)
    assert_same(jax.device_get(after.opt_state), before.opt_state)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs with and without a scan over their layers."""
    source = runs.write_corpus(tmp_path_factory.mktemp("corpus"))
    found = {}
    for scan in (False, True):
        folder = tmp_path_factory.mktemp("run")
        runs.train(
            source, folder, "--config.train.steps=2", f"--config.model.scan_layers={scan}",
            "--config.model.num_layers=3", "--config.train.batch_size=16",
        )  # fmt: skip
        found[scan] = reopen_run(folder)
    return found


def found_in(run, params, parts=1, rows=()):
    """In the first batch, with byte 3 at the start of some rows."""
    with run.placed():
        batch = next(iter(run.loader.iterate(0)))
        batch["tokens"][list(rows), 0] = 3
        batch = run.put(batch)
        return first_nonfinite(run.experiment, params, batch, None, jax.random.key(0), parts)


@pytest.mark.thorough
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_layer_with_a_parameter_that_is_not_finite_is_named(trained, scan, parts):
    run = trained[scan]
    params = run.restore_params()
    assert found_in(run, params, parts) == found_in(run, params)  # nothing
    assert found_in(run, params).forward is found_in(run, params).backward is None
    for layer in (0, 2):

        def planted(path, leaf, layer=layer):
            return leaf.at[layer].set(jnp.nan) if "up" in jax.tree_util.keystr(path) else leaf

        place = found_in(run, jax.tree_util.tree_map_with_path(planted, params), parts).forward
        assert (place.module, place.number, place.count) == ("blocks/feed_forward/up", layer, 3)
        assert len(place.bad) == 16 // parts


@pytest.mark.thorough
@pytest.mark.parametrize("parts", [1, 2])
def test_the_rows_are_those_of_the_batch(trained, parts):
    """A token that only some rows have; the first microbatch has the even rows."""
    run = trained[False]
    params = run.restore_params()
    params["embedding"]["table"] = params["embedding"]["table"].at[3].set(jnp.nan)
    place = found_in(run, params, parts, rows=(2, 6, 12)).forward
    assert str(place) == "embedding, rows 2, 6, 12"


@pytest.mark.thorough
@pytest.mark.parametrize("scan", [False, True])
def test_the_gradient_that_is_not_finite_is_named(trained, scan, monkeypatch):
    """The square root of zero is finite, and its gradient is not."""
    run, original = trained[scan], feed_forward.FeedForward.__call__

    def rooted(self, x, *args, **kwargs):
        return original(self, x, *args, **kwargs) + jnp.sqrt(0 * jnp.abs(x))

    monkeypatch.setattr(feed_forward.FeedForward, "__call__", rooted)
    found = found_in(run, run.restore_params())
    assert found.forward is None and not found.loss
    assert (found.after.module, found.after.number) == ("blocks/feed_forward/up", 2)
    assert (found.backward.module, found.backward.number) == ("blocks/feed_forward_norm", 2)
    assert found.after.bad == () and found.backward.bad == tuple(range(16))


def test_the_rule_for_a_leap():
    watch = Watch(TrainConfig(rollbacks=1, spike=0.5))
    for step in range(RECENT):
        watch.window(10 * step, {"train/loss": {3: 99.0, 4: 0.5}.get(step, 2.0)})  # no rule before that many
    watch.window(200, {"train/loss": 2.5})
    with pytest.raises(Diverged) as error:
        watch.window(210, {"train/loss": 2.51})
    assert (error.value.since, error.value.step) == (201, 210)
    with pytest.raises(Diverged):
        watch.window(220, {"train/loss": float("nan")})
    watch.window(230, {"train/learning_rate": 1.0})


def test_the_state_after_a_skipped_step_is_doubtful():
    for rollbacks in (0, 1):
        watch = Watch(TrainConfig(rollbacks=rollbacks))
        found = []
        for step, skipped in enumerate([False, True, False]):
            watch.step(step, skipped)
            found.append(watch.doubtful)
        assert found == [False, bool(rollbacks), False]


@pytest.mark.thorough
def test_a_replay_from_the_checkpoint_of_a_rollback(monkeypatch, corpus, tmp_path, capsys):
    """That of step 10 has the parameters of step 6, which serves for steps before and after it."""
    spoil(monkeypatch, range(8, 11))
    folder = tmp_path / "run"
    keys = ("--config.train.rollbacks=1", "--config.train.keep_last=2", "--config.train.steps=11")
    runs.train(corpus, folder, *KEYS, *keys, "--config.train.log_every=1")
    capsys.readouterr()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    logged = {line["step"]: f"{line['train/loss']:.4g}" for line in lines if line.get("train/loss")}
    for step, code, loss in ((7, 0, logged[7]), (9, 1, "nan"), (11, 0, logged[11])):
        assert launch.main([f"--workdir={folder}", "--mode=replay", f"--step={step}"]) == code
        assert f"step {step}: loss {loss}," in capsys.readouterr().out
    for step, why in (
        (12, "the run has 11 steps"),
        (0, "expected 1 or more"),
        (6, "no checkpoint from before"),
    ):
        assert launch.main([f"--workdir={folder}", "--mode=replay", f"--step={step}"]) == 2
        assert why in capsys.readouterr().err
