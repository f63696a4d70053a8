"""Searches: what trials are drawn from, and that each is trained once, whatever happens in between."""

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest

import launch
from commands.sweeps.algebra import names
from commands.sweeps.halving import Halving
from commands.sweeps.jobs import Work
from commands.sweeps.spaces import Choices, Range, check_space, read_space
from tests import runs
from transformer.errors import UserError

pytestmark = pytest.mark.usefixtures("in_root")

TYPES = {"rate": "float", "layers": "int", "flag": "bool", "kind": "str", "some": "float or None"}


@pytest.mark.parametrize(
    ("text", "low", "high", "log", "whole"),
    [
        ("rate=1e-4..1e-2", 1e-4, 1e-2, False, False),
        ("rate=log:1e-4..1E+2", 1e-4, 100.0, True, False),
        ("rate=1..3", 1, 3, False, False),
        ("rate=-1.5..-0.5", -1.5, -0.5, False, False),
        ("layers=2..6", 2, 6, False, True),
        ("layers=log:16..1e3", 16, 1000, True, True),
        ("some=1..3", 1, 3, False, False),
        ("new=1..3", 1, 3, False, True),
        ("new=0.5..3", 0.5, 3, False, False),
    ],
)
def test_ranges(text, low, high, log, whole):
    (found,) = read_space([text], TYPES)
    name = text.partition("=")[0]
    assert found == Range(name, text, low, high, log, whole)
    assert found.extremes == [{name: low}, {name: high}]


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("kind=a,b", {"a": {"kind": "a"}, "b": {"kind": "b"}}),
        ("kind=../x,log:1..2", {"../x": {"kind": "../x"}, "log:1..2": {"kind": "log:1..2"}}),
        ("d,ff=1:2,3:4", {"1:2": {"d": "1", "ff": "2"}, "3:4": {"d": "3", "ff": "4"}}),
        ({"flag": [True, None]}, {"True": {"flag": True}, "None": {"flag": None}}),
    ],
)
def test_choices(text, settings):
    (found,) = read_space(text if isinstance(text, dict) else [text], TYPES)
    assert isinstance(found, Choices)
    assert (found.settings, found.extremes) == (settings, [*settings.values()])
    assert [found.setting(each) for each in settings] == [*settings.values()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (["rate"], "'rate='; expected KEY=LOW..HIGH, KEY=log:LOW..HIGH, KEY=VALUE,VALUE or KEY,KEY="),
        (["=1..2"], "expected KEY=LOW..HIGH"),
        (["rate=1"], "expected KEY=LOW..HIGH"),
        (["rate=1..x"], "expected KEY=LOW..HIGH"),
        (["rate=0...5"], "expected KEY=LOW..HIGH"),
        (["rate=nan..1"], "expected KEY=LOW..HIGH"),
        (["a,b=1..2"], "expected KEY=LOW..HIGH"),
        (["rate=2..1"], "'rate=2..1' is empty; expected LOW..HIGH with LOW below HIGH"),
        (["rate=1..1"], "is empty"),
        (["rate=log:0..1"], "takes the logarithm of 0; expected numbers above 0"),
        (["rate=log:-1..1"], "takes the logarithm of -1"),
        (["layers=1.5..3"], "'layers=1.5..3'; expected whole numbers, as layers is one"),
        (["kind=a,b,a"], "two of the values are the same"),
        ({"kind": "a"}, "expected KEY=LOW..HIGH"),
        ({"kind": 3}, "expected KEY=LOW..HIGH"),
        (["kind=a,b", "kind=c,d"], "kind is in two of the searches"),
        (["d,ff=1:2,3:4", "ff=1..2"], "ff is in two of the searches"),
    ],
)
def test_mistakes_in_a_space(text, said):
    with pytest.raises(UserError) as raised:
        read_space(text, TYPES)
    assert str(raised.value).startswith("--search: ") and said in str(raised.value)


def test_drawn_numbers_have_four_digits_and_stay_in_their_range(rng):
    for low in (10.0 ** rng.uniform(-6, 3, 200)).tolist():
        (found,) = read_space([f"rate={low!r}..{2 * low!r}"], TYPES)
        for value in (*rng.uniform(low, 2 * low, 5), low, 2 * low):
            drawn = found.setting(value)["rate"]
            assert low <= drawn <= 2 * low and drawn == pytest.approx(value, rel=5.1e-4)
            assert drawn in (low, 2 * low) or len(f"{drawn:e}".partition("e")[0].rstrip("0.")) <= 5
    (whole,) = read_space(["layers=2..6"], TYPES)
    assert whole.setting(3) == {"layers": 3} and type(whole.setting(3.0)["layers"]) is int


def test_keys_may_fit_together_only():
    def check(setting):
        heads, width = int(setting.get("heads", 4)), int(setting.get("width", 8))
        if width % heads:
            raise UserError(f"width: {width} and {heads} heads")
        return width

    space = read_space(["heads=3,6", "width=12,24"], {})
    assert check_space(space, check) == [12, 12, 12, 24]
    with pytest.raises(UserError, match=r"^--search: heads=5: width: 8 and 5 heads$"):
        check_space(read_space(["heads=3,5", "width=12,24"], {}), check)


class KilledError(BaseException):
    """Stands for the end of the process: nothing catches it."""


@pytest.fixture
def search(job, tmp_path):
    """Starts a search of the rates of a trainer that takes no time; returns its trials when it has ended."""
    pytest.importorskip("optuna")
    from commands.sweeps.trials import Trials, open_study

    def make(setting):
        if setting.get("layers") == 5:
            raise UserError("layers: 5 do not fit")
        return job(names([setting])[0], rate=setting["rate"])

    def start(trials, *texts, metric="eval/loss", at_once=1, halving=None, seed=0):
        space = read_space(texts or ["rate=log:1..100", "layers=2..6"], TYPES)
        if not texts:
            space[1] = Range("layers", "", 2, 4, False, True)
        (tmp_path / "runs").mkdir(exist_ok=True)
        study = open_study(tmp_path / "runs/search.db", {}, metric)
        found = Trials(study, space, make, metric, seed, trials, at_once, halving)
        found.code = found.run()
        return found

    return start


def drawn(found):
    return [(each.params, each.value) for each in found.study.trials]


def begun(folder):
    """Folder -> the steps from which its run was started."""
    files = sorted((folder / "runs").glob("*/starts"))
    return {each.parent.name: [line.split()[1] for line in each.read_text().splitlines()] for each in files}


@pytest.mark.thorough
def test_trials_are_those_of_a_search_that_was_never_stopped(search, tmp_path):
    whole = drawn(search(14))
    assert len({rate for params, _ in whole if (rate := params["rate"])}) == 14
    later = [params["rate"] for params, _ in whole[10:]]
    assert max(later) < 10  # the loss is the rate / 9: of 1 to 100 the sampler has learnt to draw small ones
    (tmp_path / "runs").rename(tmp_path / "whole")
    for trials in (1, 5, 12, 14):
        parts = search(trials)
    assert drawn(parts) == whole
    assert begun(tmp_path) == begun(tmp_path).fromkeys(begun(tmp_path), ["0"])
    (tmp_path / "runs").rename(tmp_path / "parts")
    assert drawn(search(3, seed=1)) != whole[:3]


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("place", ["drawn", "half_drawn", "started", "ended", "told"])
def test_a_killed_search_loses_no_trial_and_trains_none_twice(search, tmp_path, monkeypatch, place):
    """Killed at the third trial, at each place where something has just been written."""
    import optuna

    from commands.sweeps.jobs import Job

    owner, name, at = {
        "drawn": (optuna.Study, "ask", 3),
        "half_drawn": (optuna.Trial, "_suggest", 5),
        "started": (Job, "start", 3),
        "ended": (Job, "record", 3),
        "told": (optuna.Study, "tell", 3),
    }[place]
    original, calls = getattr(owner, name), []

    def kill(*arguments, **options):
        done = original(*arguments, **options)
        calls.append(name)
        if len(calls) == at:
            raise KilledError
        return done

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, kill)
        with pytest.raises(KilledError):
            search(6)
    time.sleep(0.3)  # the run of "started" continues by itself
    found = search(6)
    assert (found.code, found.total, found.ended) == (0, 6, 6)
    whole = [each for each in found.study.trials if found.is_whole(each)]
    assert len(whole) == 6 and {each.state.name for each in whole} == {"COMPLETE"}
    assert len(found.study.trials) == 6 + (place == "half_drawn")
    assert len(begun(tmp_path)) == 6
    assert all(starts in (["0"], ["0", "9"]) for starts in begun(tmp_path).values())
    for each in whole:
        assert each.value == pytest.approx(found.setting(each.params)["rate"] / 9, rel=1e-6)


def test_equal_trials_are_trained_once(search, tmp_path):
    found = search(7, "rate=1,2")
    assert [each.state.name for each in found.study.trials] == ["COMPLETE"] * 7
    assert begun(tmp_path) == {"rate=1": ["0"], "rate=2": ["0"]}
    assert {(each.params["rate"], each.value) for each in found.study.trials} == {("1", 1 / 9), ("2", 2 / 9)}


def test_equal_trials_at_the_same_time_are_trained_once(search, tmp_path):
    search(6, "rate=1,2", at_once=3)
    assert begun(tmp_path) == {"rate=1": ["0"], "rate=2": ["0"]}


@pytest.mark.thorough
def test_failed_runs_are_failed_trials(search, tmp_path, capsys):
    found = search(8, "rate=13,2,3")
    said = capsys.readouterr().out
    failed = [each for each in found.study.trials if each.state.name == "FAIL"]
    assert failed and {each.params["rate"] for each in failed} == {"13"}
    assert said.count("rate=13: failed with exit code 1: error: config.rate: 13 is unlucky") == len(failed)
    assert (found.ended, len(found.study.trials)) == (8, 8)
    before = begun(tmp_path)
    assert search(8, "rate=13,2,3").ended == 8
    assert capsys.readouterr().out == "8 of 8 runs have ended before\n" and begun(tmp_path) == before


def test_values_that_do_not_fit_together_are_failed_trials(search, capsys):
    found = search(6, "rate=1..2", "layers=4,5")
    assert found.ended == 6
    states = {(each.params["layers"], each.state.name) for each in found.study.trials}
    assert states <= {("4", "COMPLETE"), ("5", "COMPLETE")}


def test_a_metric_that_is_not_finite_is_a_failed_trial(search, monkeypatch, capsys):
    from commands.sweeps.trials import Trials

    monkeypatch.setattr(Trials, "measure", lambda self, job: math.nan)
    found = search(2)
    assert [each.state.name for each in found.study.trials] == ["FAIL", "FAIL"]
    assert capsys.readouterr().out.count("finished, eval/loss nan: a failed trial") == 2


def test_a_metric_that_no_run_has_is_named_and_the_runs_are_stopped(search):
    with pytest.raises(UserError, match=r"^--metric: .*has no folder of a run with metrics"):
        search(4, metric="eval/los")


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("metric", ["eval/loss", "-eval/loss"])
def test_the_best_is_that_of_all_metrics(search, tmp_path, metric):
    best = search(12, metric=metric, at_once=2).study.best_trial
    lines = [path.read_text().splitlines()[-1] for path in tmp_path.glob("runs/*/metrics.jsonl")]
    last = [json.loads(line)["eval/loss"] for line in lines]
    assert len(last) == 12
    assert best.value == (max(last) if metric.startswith("-") else min(last))


@pytest.mark.thorough
def test_what_halving_has_stopped_is_pruned(search, job, tmp_path, monkeypatch):
    halving = Halving("eval/loss", 1, 3, 2)
    slow = Work.fill

    def fill(self):
        for each in self.queue:
            each.arguments[-1] = "--config.wait=0.03"
        slow(self)

    monkeypatch.setattr(Work, "fill", fill)
    found = search(8, "rate=1,2,3,4,5,6,7,8", halving=halving)
    states = {each.params["rate"]: each.state.name for each in found.study.trials}
    outcomes = {
        path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("runs/*/outcome.json")
    }
    for rate, state in states.items():
        outcome = outcomes[f"rate={rate}"]["outcome"]
        assert (outcome, state) in (("finished", "COMPLETE"), ("stopped", "PRUNED"))
    assert {*states.values()} == {"COMPLETE", "PRUNED"}
    again = Halving("eval/loss", 1, 3, 2)
    search(8, "rate=1,2,3,4,5,6,7,8", halving=again)
    assert again.reached[3] == halving.reached[3]


@pytest.mark.thorough
def test_a_removed_study_is_drawn_again_and_nothing_is_trained_again(search, tmp_path):
    before, started = drawn(search(5)), begun(tmp_path)
    (tmp_path / "runs/search.db").unlink()
    assert drawn(search(5)) == before and begun(tmp_path) == started


def test_a_signal_stops_the_runs_and_the_same_search_goes_on(search, tmp_path, monkeypatch, capsys):
    fill, sent = Work.fill, list[bool]()

    def interrupt(self):
        fill(self)
        if self.ended >= 2 and not sent:  # two may end at once
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Work, "fill", interrupt)
    assert search(5, at_once=2).code == 143
    said = capsys.readouterr().out
    assert "interrupted; " in said and " of 5 runs are left: the same command continues" in said
    monkeypatch.setattr(Work, "fill", fill)
    found = search(5, at_once=2)
    assert (found.code, found.ended, len(found.study.trials)) == (0, 5, 5)
    assert {each.state.name for each in found.study.trials} == {"COMPLETE"}


def test_another_search_is_not_mixed_in(tmp_path):
    pytest.importorskip("optuna")
    from commands.sweeps.trials import open_study

    asked = {"--search": ["rate=1..2"], "--metric": "eval/loss", "train.steps": 3}
    open_study(tmp_path / "search.db", asked, "eval/loss")
    open_study(tmp_path / "search.db", asked | {"model.new": 1}, "eval/loss")  # a key of a later version
    for key, named in {
        "--search": "--search",
        "--metric": "--metric",
        "train.steps": "config.train.steps",
    }.items():
        with pytest.raises(
            UserError, match=f"has another search, of {named} .*, not 'x'; choose another folder"
        ):
            open_study(tmp_path / "search.db", asked | {key: "x"}, "eval/loss")
    (tmp_path / "search.db").write_text("no database\n" * 100)
    with pytest.raises(UserError, match=r"search.db: not readable as a study of Optuna \("):
        open_study(tmp_path / "search.db", asked, "eval/loss")


SEARCH = ["--mode=sweep", "--config=configs/lm.py:tiny"]
RATE = "--search=optimizer.learning_rate=log:1e-4..1e-2"
MEASURED = "--config.train.evaluate_every=1"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([RATE], "--trials: how many? --trials=20, say"),
        ([RATE, "--trials=0"], "--trials: 0; expected 1 or more"),
        (["--trials=2"], "--search: none is given, and configs/lm.py: there is no search() in it"),
        (["--metric=eval/loss", "--sweep=seed=0"], "--sweep: it comes with --search"),
        ([RATE, "--trials=2", "--sweep=seed=0"], "--sweep: it comes with --search"),
        ([RATE, "--trials=2", "--jobs=0"], "--jobs: 0; expected 1 or more"),
        ([RATE, "--trials=2", "--slurm=--gpus=1"], "--slurm: the jobs of an array start together, but"),
        ([RATE, "--trials=2", "--dry_run"], "--dry_run: which runs a search has is known only as it goes"),
        ([RATE, "--trials=2"], "--metric: eval/loss is not measured with train.evaluate_every=0"),
        (
            [RATE, "--trials=2", MEASURED, "--config.optimizer.learning_rate=1"],
            "--config.optimizer.learning_rate: it is a key of the search too",
        ),
        (
            ["--search=optimizer.learning_rat=1..2", "--trials=2", MEASURED],
            "--search: optimizer.learning_rat=1: config.optimizer.learning_rat: unknown key; did you mean",
        ),
        (
            ["--search=model.num_layers=0..2", "--trials=2", MEASURED],
            "--search: model.num_layers=0: config.model.num_layers: 0; expected from 1 to 10,000",
        ),
        (
            ["--search=model.feed_forward=gelu,swigl", "--trials=2", MEASURED],
            "--search: model.feed_forward=swigl: config.model.feed_forward: 'swigl'; ",
        ),
        (
            ["--search=model.scale_embeddings=0..1", "--trials=2", MEASURED],
            "--search: model.scale_embeddings=0: config.model.scale_embeddings: 0 (int); expected bool",
        ),
        (
            [RATE, "--trials=2", MEASURED, "--halving=eval/loss", "--halving_start=2"],
            "--halving_start: 2; expected 1 to 1",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_written(flags, said, capsys, tmp_path):
    pytest.importorskip("optuna")
    assert launch.main([*SEARCH, f"--workdir={tmp_path / 'search'}", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize("place", ["file", "file/search"])
def test_a_folder_that_cannot_be_written_is_told_before_a_trial_is_drawn(capsys, tmp_path, place):
    pytest.importorskip("optuna")
    (tmp_path / "file").write_text("mine")
    assert launch.main([*SEARCH, f"--workdir={tmp_path / place}", RATE, "--trials=2", MEASURED]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith(f"error: --workdir: {tmp_path / place} ") and error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_missing_package_is_named_before_anything_is_written(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert launch.main([*SEARCH, f"--workdir={tmp_path / 'search'}", RATE, "--trials=2"]) == 2
    assert "--search: it needs a package that is not installed: pip install optuna" in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


def test_a_task_of_an_array_and_one_of_several_processes_draw_no_trials(capsys, tmp_path, monkeypatch):
    flags = [*SEARCH, f"--workdir={tmp_path / 'search'}", RATE, "--trials=2"]
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_ARRAY_TASK_ID", "1")
        assert launch.main(flags) == 2
    assert "--slurm: the jobs of an array start together" in capsys.readouterr().err
    monkeypatch.setattr("commands.sweeps.trials.are_several", lambda environment: True)
    assert launch.main(flags) == 2
    assert "--search: one process draws the trials, but this is one of several" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_killed_search_of_real_runs_goes_on(tmp_path, capsys):
    """By the `search()` of a config file; its runs outlive the command for a while, as nothing tells them."""
    pytest.importorskip("optuna")
    config = tmp_path / "mine.py"
    config.write_text(
        "from configs.lm import get_config\n"
        "def search():\n"
        "    return {'optimizer.learning_rate': 'log:1e-3..1e-1', 'model.feed_forward': ['gelu', 'swiglu']}\n"
    )
    source = runs.write_corpus(tmp_path / "data")
    folder = tmp_path / "s"
    keys = [f"--config.data.source={source}", MEASURED, "--config.train.sample_every=0"]
    flags = [
        "--mode=sweep",
        f"--config={config}:tiny",
        f"--workdir={folder}",
        "--trials=4",
        "--jobs=2",
        *keys,
    ]
    first = subprocess.Popen([sys.executable, "launch.py", *flags], cwd=runs.ROOT)
    end = time.monotonic() + 300
    while len([*folder.glob("*/outcome.json")]) < 1 and time.monotonic() < end:
        time.sleep(0.05)
    first.kill()
    first.wait()
    assert 1 <= len([*folder.glob("*/outcome.json")]) < 4
    assert launch.main(flags) == 0
    said = capsys.readouterr().out.splitlines()
    outcomes = [json.loads(path.read_text())["outcome"] for path in folder.glob("*/outcome.json")]
    assert outcomes == ["finished"] * 4
    for path in folder.glob("*/metrics.jsonl"):  # each step once
        steps = [
            line["step"] for line in map(json.loads, path.read_text().splitlines()) if "eval/loss" in line
        ]
        assert steps == [1, 2]
    out = tmp_path / "table.json"
    assert launch.main(["--mode=table", "--runs", str(folder / "*"), f"--output={out}"]) == 0
    rows = json.loads(out.read_text())
    assert len(rows) == 4 and rows[0]["keys"].keys() == {"optimizer.learning_rate", "model.feed_forward"}
    best = rows[0]["runs"][0].rpartition("/")[2]
    assert said[-3] == f"best of 4 trials: {best}, eval/loss {rows[0]['mean']:.5g}"
    assert said[-2].startswith(f"python launch.py --workdir={folder}-best --config={config}:tiny ")
    assert f"--config.optimizer.learning_rate={rows[0]['keys']['optimizer.learning_rate']}" in said[-2]
