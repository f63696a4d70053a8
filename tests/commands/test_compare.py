"""Comparisons: what is trained, what is as much on both sides, and the answers."""

import argparse
import json
import re
import textwrap

import numpy as np
import pytest

import launch
from commands.sweeps import jobs as running
from commands.sweeps.comparison import Comparison
from tests.commands.test_table import write_run
from workdir.opening import open_without_data, read_config

pytestmark = pytest.mark.usefixtures("in_root")

TRAINER = """
    import json, pathlib, random, sys
    flags = dict(each.removeprefix("--").partition("=")[::2] for each in sys.argv[1:])
    folder = pathlib.Path(flags["workdir"])
    keys = {key.removeprefix("config."): value for key, value in flags.items() if key.startswith("config.")}
    seed, rate = int(keys.get("seed", 0)), float(keys.get("optimizer.learning_rate", 0.02))
    norm = keys.get("model.norm", "rms")
    noise = random.Random(seed).gauss(0, 1) + random.Random(f"{seed} {norm}").gauss(0, 0.01)
    loss = 5 + noise + {"rms": 0, "layer": -0.1, "none": 0.001}[norm] + abs(rate - 0.04)
    if keys.get("model.num_layers") == "3":
        sys.exit("error: out of memory")
    if float(keys.get("optimizer.weight_decay", 0)) > random.Random(f"gives up {seed}").random():
        sys.exit("error: train.max_skipped: the gradient was not finite in 20 steps in a row")
    steps, speed = int(keys.get("train.steps", 2)), 800 if norm == "rms" else 200
    with (folder / "metrics.jsonl").open("a") as file:
        loss = None if rate > 0.1 else loss
        file.write(json.dumps({"step": steps, "eval/loss": loss, "train/tokens_per_second": speed}) + "\\n")
    (folder / "keys.json").write_text(json.dumps(keys))
"""


@pytest.fixture
def compare(tmp_path, monkeypatch, capsys):
    """Compares with a trainer that takes no time; returns what is printed."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "launch.py").write_text(textwrap.dedent(TRAINER))
    monkeypatch.setattr(running, "ROOT", tmp_path / "root")
    monkeypatch.setattr(running, "SECONDS", 0.02)

    def run(*flags, code=0):
        base = ["--mode=compare", f"--workdir={tmp_path / 'runs'}", "--jobs=4"]
        assert launch.main([*base, "--config=configs/lm.py:tiny", *flags]) == code
        return capsys.readouterr().out.splitlines()

    run.folder = tmp_path / "runs"
    return run


def keys_of(compare, name):
    return json.loads((compare.folder / name / "keys.json").read_text())


@pytest.mark.thorough
def test_what_is_better_is_said_as_soon_as_it_is_shown(compare):
    said = compare("--b=model.norm=layer")
    assert said[0] == "equal steps: 2 steps of a, 2 of b"
    found = re.fullmatch(
        r"b is better: b - a: (\S+) eval/loss \(95 % interval (\S+) to (\S+)\), (\d+) pairs", said[-1]
    )
    mean, low, high, pairs = map(float, found.groups())
    assert low < -0.1 < high < 0 and 3 <= pairs < 12
    assert mean == pytest.approx((low + high) / 2, abs=1e-3)
    kept = json.loads((compare.folder / "comparison.json").read_text())
    assert len(kept["differences"]) == pairs
    assert keys_of(compare, "a,seed=1") == {"seed": "1"}
    assert keys_of(compare, "b,seed=1") == {"model.norm": "layer", "seed": "1"}
    again = compare("--b=model.norm=layer")
    assert again[-1] == said[-1]
    assert not any("finished" in line for line in again)


def test_more_may_be_better(compare):
    assert compare("--b=model.norm=layer", "--metric=-eval/loss")[-1].startswith("a is better: b - a: -0.")


@pytest.mark.thorough
def test_no_difference_that_matters_and_no_decision(compare):
    said = compare("--b=model.norm=none", "--smallest=0.05")
    assert said[-1].startswith("no difference larger than 0.05: b - a: ")
    said = compare("--b=model.norm=none", "--pairs=3")
    assert re.search(r"^not decided: .*, 3 pairs; (about|more than) [\d,]+ more pairs needed$", said[-1])


def test_arms_may_be_files_and_keys_and_share_keys(compare):
    a, b = "--a=configs/lm.py:tiny model.norm=none", "--b=model.norm=layer optimizer.learning_rate=0.04"
    compare(a, b, "--config.train.batch_size=4", "--pairs=2")
    assert keys_of(compare, "a,seed=0") == {"model.norm": "none", "seed": "0", "train.batch_size": "4"}
    assert keys_of(compare, "b,seed=0")["optimizer.learning_rate"] == "0.04"
    assert keys_of(compare, "b,seed=0")["train.batch_size"] == "4"


@pytest.mark.thorough
def test_equal_tokens_and_flops(compare):
    steps = "--config.train.steps=60"
    said = compare("--b=train.batch_size=16", "--basis=tokens", "--pairs=1", steps)
    assert said[0] == "equal tokens: 60 steps of a, 30 of b"
    assert re.search(r"^not decided: .*, 1 pair; how much pairs differ is known from 2 on$", said[-1])
    assert keys_of(compare, "b,seed=0")["train.steps"] == "30"
    said = compare("--b=model.d_ff=512", "--basis=flops", "--pairs=1", steps, f"--workdir={compare.folder}2")
    assert said[0] == f"equal flops: 60 steps of a, {round(60 * flops() / flops(d_ff=512))} of b"
    assert flops(d_ff=512) > 1.5 * flops()


def flops(**model):
    """Of a token of the tiny language model with other keys."""
    overrides = [(f"model.{key}", str(value)) for key, value in model.items()]
    run = open_without_data(read_config("configs/lm.py:tiny"), overrides)
    return run.experiment.flops_per_token(run.abstract.params)


def test_equal_seconds_are_measured(compare):
    said = compare("--b=model.norm=layer", "--basis=seconds", "--pairs=1", "--config.train.steps=100")
    assert "equal seconds: 100 steps of a, 25 of b" in said
    assert keys_of(compare, "a,steps=40,log_every=10")["train.steps"] == "40"


def test_each_side_is_tuned_first(compare):
    said = compare("--b=model.norm=layer", "--tune", "--config.optimizer.learning_rate=0.01", "--pairs=2")
    assert (
        "a: optimizer.learning_rate=0.04 of 0.0025 to 0.04; at the end of the grid, a wider one"
        in " ".join(said)
    )
    assert keys_of(compare, "b,seed=0")["optimizer.learning_rate"] == "0.04"
    seeds = {keys_of(compare, path.name)["seed"] for path in compare.folder.glob("a,learning_rate*")}
    assert seeds == {"1000000"}


def test_a_rate_at_which_training_diverges_is_not_chosen(compare, capsys):
    """Of the rates 0.02 to 0.32 the last two; where all diverge there is none."""
    said = compare("--b=model.norm=layer", "--tune", "--config.optimizer.learning_rate=0.08", "--pairs=1")
    assert "a: optimizer.learning_rate=0.04 of 0.02 to 0.32; diverged at 0.16, 0.32" in said
    assert launch.main([
        *["--mode=compare", f"--workdir={compare.folder}2", "--config=configs/lm.py:tiny", "--pairs=1"],
        *["--b=model.norm=layer", "--tune", "--config.optimizer.learning_rate=2"],
    ]) == 2  # fmt: skip
    assert "is not finite: there is nothing to compare" in capsys.readouterr().err


def test_runs_that_diverge_are_an_answer(compare, capsys):
    """Of eight pairs in which B alone gives up that is shown; where some do, the others are compared."""
    said = compare("--b=optimizer.weight_decay=1", "--pairs=20", "--jobs=2")
    rates = "a 0 of 8 runs (95 % interval 0 to 0.48), b 8 of 8 runs (95 % interval 0.52 to 1)"
    assert said[-1].startswith(f"b diverges more often: diverged: {rates}, 0 pairs without the 8")
    assert any(line.startswith("b,seed=3: diverged: train.max_skipped: ") for line in said)
    assert json.loads((compare.folder / "comparison.json").read_text())["diverged"] == {"a": 0, "b": 8}
    again = compare("--b=optimizer.weight_decay=1", "--pairs=20", "--jobs=2")
    assert again[-1] == said[-1] and not any("diverged: train.max_skipped" in line for line in again)


def test_pairs_without_a_run_that_diverged_are_compared(compare):
    said = compare("--b=model.norm=layer optimizer.weight_decay=0.2", "--pairs=7")
    assert re.match(r"b is better: b - a: -0\.\d+ .*; diverged: a 0 of [67] runs .*, b 2 of [67]", said[-1])
    assert re.search(r", [45] pairs without the 2 of which a run has diverged$", said[-1])


def test_a_failed_run_ends_it(compare):
    said = compare("--b=model.num_layers=3", code=1)
    assert any("failed with exit code 1: error: out of memory" in line for line in said)


def test_runs_that_are_there_are_paired_by_seed(tmp_path, capsys, rng):
    for seed in range(8):
        shared = rng.normal()
        for arm, shift in (("a", 0.0), ("b", -0.2)):
            loss = shared + shift + 0.01 * rng.normal()
            write_run(tmp_path / f"{arm}{seed}", [9.0, loss], seed=seed)
    write_run(tmp_path / "b9", [9.0, 0.0], seed=9)
    flags = ["--mode=compare", f"--a={tmp_path}/a*", f"--b={tmp_path}/b*"]
    assert launch.main(flags) == 0
    said = capsys.readouterr().out
    assert said.startswith("b is better: b - a: -0.") and ", 8 pairs\n" in said
    assert said.endswith("in no pair, as --a has no value for the seed: 1 (b9)\n")
    assert launch.main([*flags, "--config.seed=1"]) == 2
    write_run(tmp_path / "b7" / "again", [0.0, None], seed=7)
    capsys.readouterr()
    assert launch.main([*flags[:2], f"--b={tmp_path}/b7/*"]) == 0
    said = capsys.readouterr().out.splitlines()
    rates = "a 0 of 1 runs (95 % interval 0 to 0.98), b 1 of 1 runs (95 % interval 0.025 to 1)"
    assert said[0].startswith(f"not decided: diverged: {rates}, 0 pairs without the 1 of which a run has")
    assert said[-1] == "diverged: 1 (again)"
    assert "in no pair, as --b has no value for the seed: 7 (a0, a1, a2, a3, ...)" in said
    write_run(tmp_path / "other" / "b", [9.0, 1.0], seed=0, model={"d": 1})
    write_run(tmp_path / "other" / "c", [9.0, 1.0], seed=1, model={"d": 2})
    assert launch.main([*flags[:2], f"--b={tmp_path}/other/*"]) == 2
    assert "--b: its runs differ in d; expected runs that differ in their seed" in capsys.readouterr().err
    write_run(tmp_path / "b10", [9.0, 0.0], seed=9)
    assert launch.main(flags) == 2
    assert "--b: two runs have seed 9" in capsys.readouterr().err
    assert launch.main([*flags[:2], "--b=model.norm=layer"]) == 2
    assert "both are folders, or none is" in capsys.readouterr().err
    assert launch.main([*flags[:2], f"--b={tmp_path}/c*"]) == 2
    assert capsys.readouterr().err == f"error: --b: {tmp_path}/c* has no folder of a run with metrics\n"


@pytest.mark.parametrize(("error", "level"), [(0.05, "95 %"), (0.01, "99 %"), (0.001, "99.9 %")])
def test_the_level_is_said_in_percent_and_a_difference_of_its_size_is_left_alone(error, level):
    flags = argparse.Namespace(metric="eval/loss", error=error)
    comparison = Comparison(flags, [(0.0, 10.94), (0.0, 10.96)])
    assert comparison.estimates().startswith(f"b - a: +10.95 eval/loss ({level} interval ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--b: what is it?"),
        (["--b=model.norm=rms"], "--b: it is the same as --a"),
        (["--b=model.nrm=rms"], "--b: config.model.nrm: unknown key"),
        (["--b=configs/none.py"], "there is no file 'configs/none.py'"),
        (["--b=model.norm='layer"], '--b: "model.norm=\'layer" has no closing quotation'),
        (["--b=configs/lm.py layer"], "--b: 'layer'; expected KEY=VALUE"),
        (["--b=seed=3"], "--b: the seeds are those of the pairs"),
        (["--b=model.norm=layer", "--pairs=0"], "--pairs: 0; expected 1 or more"),
        (["--b=model.norm=layer", "--error=1"], "--error: 1.0; expected above 0, below 1"),
        (["--b=model.norm=layer", "--smallest=-1"], "--smallest: -1.0; expected 0 or more"),
        (["--b=model.norm=layer", "--metric=eval/los", "--pairs=1"], "has not measured eval/los"),
    ],
)
def test_mistakes(compare, capsys, flags, said):
    base = ["--mode=compare", f"--workdir={compare.folder}", "--config=configs/lm.py:tiny"]
    assert launch.main([*base, *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_metric_that_the_first_run_has_not_measured_ends_it(compare, capsys):
    flags = ["--b=model.norm=layer", "--metric=eval/los", "--tune", "--jobs=1"]
    for _ in range(2):
        compare(*flags, code=2)
        assert len([*compare.folder.iterdir()]) == 1


@pytest.mark.parametrize("more", [[], ["--tune"]])
def test_a_folder_that_cannot_be_written_is_one_line(capsys, tmp_path, more):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "runs"):
        given = ["--mode=compare", "--config=configs/lm.py:tiny", f"--workdir={folder}", *more]
        assert launch.main([*given, "--b=model.norm=layer"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: --workdir: {folder} ") and error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_a_config_compared_with_other_seeds_of_itself(rng):
    """Differences of two draws of the same runs, as a change of no effect gives, are seldom called."""
    from transformer.evaluation.statistics.sequential import verdict

    losses = np.exp(rng.normal(0, 0.02, 400))  # skewed, as losses are
    wrong = 0
    for _ in range(200):
        d = list(rng.choice(losses, 12) - rng.choice(losses, 12))
        wrong += any(verdict(d[:n], 0.05) for n in range(2, 13))
    assert wrong <= 20  # 10 expected at most, of 200
