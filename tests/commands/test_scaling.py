"""Scaling laws: what depth changes, what is trained, and that a forecast comes before its run."""

import errno
import functools
import json
import math
import re
import tempfile
import textwrap

import numpy as np
import pytest

import launch
from commands.scaling import study_lines, table
from commands.scaling_laws import forecast
from commands.scaling_laws.laws import fit, summary
from commands.scaling_laws.sizes import Family
from commands.sweeps import jobs as running
from workdir.opening import read_config

pytestmark = pytest.mark.usefixtures("in_root")

TRAINER = """
    import json, pathlib, random, sys
    flags = dict(each.removeprefix("--").partition("=")[::2] for each in sys.argv[1:])
    folder = pathlib.Path(flags["workdir"])
    root = pathlib.Path(sys.argv[0]).parent
    depth, steps = (int(flags["config.model.num_layers"]), int(flags["config.train.steps"]))
    if depth == 5 and (root / "fails").exists():
        sys.exit("error: out of memory")
    lost = (root / "diverges").read_text() if (root / "diverges").exists() else ""
    if folder.name in lost:
        sys.exit("error: train.max_skipped: the gradient was not finite in 20 steps in a row")
    n, d = json.loads((root / "sizes.json").read_text())[str(depth)], steps * 256
    loss = 1.2 + (4e4 / n) ** 0.4 + (2e5 / d) ** 0.35
    loss *= 1 + random.Random(folder.name).gauss(0, 0.001)
    (folder / "config.json").write_text("{}")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": steps, "eval/loss": loss, "train/loss": None}) + "\\n")
"""

TINY = "configs/lm.py:tiny"  # a width of 32 for its only layer, with two heads; 256 tokens a step
FAMILY = Family(TINY, ())
FIT = [f"--config={TINY}", "--budgets=5e10,1e11,2e11", "--depths=1,2,3,4"]


@pytest.fixture(scope="module")
def sizes():
    """N of each depth; a size is built once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Family, "size", functools.cache(Family.size))
        yield {depth: FAMILY.size(depth).n for depth in range(1, 8)}


@pytest.fixture
def scaling(tmp_path, monkeypatch, capsys, sizes):
    """Runs the command with a trainer that takes no time; returns what is printed."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "launch.py").write_text(textwrap.dedent(TRAINER))
    (tmp_path / "root" / "sizes.json").write_text(json.dumps(sizes))
    monkeypatch.setattr(running, "ROOT", tmp_path / "root")
    monkeypatch.setattr(running, "SECONDS", 0.02)

    def run(*flags, code=0):
        assert launch.main(["--mode=scaling", f"--workdir={tmp_path / 'law'}", "--jobs=4", *flags]) == code
        said = capsys.readouterr()
        return said.out.splitlines() if code != 2 else said.err

    run.folder = tmp_path / "law"
    run.read = lambda name: json.loads((tmp_path / "law" / name).read_text())
    return run


def test_the_config_is_the_member_of_its_own_depth():
    keys = Family("configs/lm.py", ()).keys(4)
    values = read_config("configs/lm.py")
    for key in ("num_layers", "d_model", "num_heads", "d_ff"):
        assert keys.pop(f"model.{key}") == values["model"][key]
    assert keys == {"optimizer.adam_learning_rate": values["optimizer"]["learning_rate"]}


def test_other_keys_follow_the_depth():
    keys = Family("configs/lm.py", (("model.num_kv_heads", "2"),)).keys(16)
    assert keys == {
        "model.num_layers": 16,
        "model.d_model": 768,
        "model.num_heads": 16,
        "model.num_kv_heads": 8,
        "model.d_ff": 3072,
        "optimizer.adam_learning_rate": 0.01,
    }
    keys = Family("configs/lm.py", (("optimizer.name", "adamw"),), width=20).keys(3)
    assert keys["model.d_model"] == 96 and keys["model.num_heads"] == 2  # rounded up to heads of 48
    assert keys["optimizer.learning_rate"] == pytest.approx(0.02 * 2**0.5, rel=1e-5)


@pytest.mark.parametrize(("heads", "groups"), [(32, 8), (4, 2), (6, 3), (4, 1), (12, 4), (5, 5)])
def test_key_value_heads_divide_the_heads_of_every_depth(heads, groups):
    """And are as near to the config's share of them as a divisor can be: a neighbour is never nearer."""
    given = {"num_heads": heads, "num_kv_heads": groups, "d_model": 8 * heads, "num_layers": 4}
    family = Family("configs/lm.py", tuple((f"model.{key}", str(value)) for key, value in given.items()))
    assert family.keys(4)["model.num_kv_heads"] == groups
    for depth in range(1, 17):
        keys = family.keys(depth)
        of, found = keys["model.num_heads"], keys["model.num_kv_heads"]
        share = of * groups / heads
        assert of % found == 0
        others = [each for each in range(1, of + 1) if of % each == 0]
        assert abs(math.log(found / share)) == pytest.approx(min(abs(math.log(n / share)) for n in others))


@pytest.mark.parametrize("optimizer", ["adamw", "contrib.muon"])
def test_learning_rates_are_left_to_mup(optimizer):
    given = {"optimizer.name": optimizer, "model.parametrization": "mup", "model.base_width": "192"}
    keys = Family("configs/lm.py", (*given.items(), ("model.head_dim", "48"))).keys(8)
    assert keys["model.d_model"] == 384
    assert not [key for key in keys if key.startswith("optimizer.")]


def test_a_budget_is_spent_with_the_schedule_stretched(tmp_path):
    size = FAMILY.size(2)
    assert size.tokens_per_step == 8 * 32
    job = FAMILY.job(str(tmp_path), size, 1e11, seed=3)
    assert job.steps == size.steps(1e11) == round(1e11 / 6 / size.n / 256)
    assert 6 * size.n * size.tokens(1e11) == pytest.approx(1e11, rel=0.5 / job.steps)
    assert job.values["seed"] == 3 and job.values["model"]["d_model"] == 64
    warmup, of = 1, 2  # of the config
    assert job.values["optimizer"]["warmup_steps"] == round(job.steps * warmup / of)
    assert job.name == "flops=1e+11,depth=2,seed=3"


@pytest.mark.thorough
def test_runs_are_trained_once_and_fitted(scaling):
    said = scaling(*FIT, "--seeds=2")
    assert sum("finished" in line for line in said) == 24
    law = scaling.read("law.json")
    assert len(law["runs"]) == 24 and {run["seed"] for run in law["runs"]} == {0, 1}
    assert law["exponents"]["law"]["n"][0] == pytest.approx(0.35 / 0.75, abs=0.1)
    assert law["exponents"]["law"]["n"][0] + law["exponents"]["law"]["d"][0] == pytest.approx(1)
    heading = next(i for i, line in enumerate(said) if line.startswith("depth"))
    assert said[heading].split() == ["depth", "d_model", "parameters", "N", "5e+10", "1e+11", "2e+11"]
    rows = [line.split() for line in said[heading + 1 : heading + 5]]
    for i in (4, 5, 6):
        values = [float(row[i].rstrip("*")) for row in rows]
        assert [row[i].endswith("*") for row in rows] == [value == min(values) for value in values]
    assert re.search(
        r"by L\(N, D\): N\* ~ C\^0\.\d{3} \(90 % interval 0\.\d+ to 0\.\d+\), D\* ~ C\^0", said[-4]
    )
    seeds = float(re.fullmatch(r"seeds differ by (.*)% \(standard deviation\)", said[-1])[1])
    pairs = np.log([run["loss"] for run in law["runs"]]).reshape(-1, 2)
    assert seeds == pytest.approx(100 * np.sqrt(pairs.var(axis=1, ddof=1).mean()), abs=0.01)
    assert {path.name for path in scaling.folder.glob("*.png")} == {"isoflop.png", "optimum.png"}
    again = scaling(*FIT, "--seeds=2")
    assert again[0] == "24 of 24 runs have ended before" and again[1:] == said[heading:]


@pytest.mark.thorough
def test_budgets_without_a_minimum_are_named(scaling):
    said = scaling(FIT[0], "--budgets=2e11,4e11", "--depths=4,5,6,7")
    missing = [line for line in said if line.endswith("the parabola has no minimum among these depths")]
    assert len(missing) == 2 and missing[0].startswith("at 2e+11 FLOPs")


def test_parabolas_without_a_minimum_have_no_power_law():
    n = np.tile(np.geomspace(1e4, 1e5, 5), 2)
    budget = np.repeat([1e11, 2e11], 5)
    bend = np.tile([-0.1, -0.05, 0, -0.05, -0.1], 2)
    runs = [
        {"n": n[i], "d": budget[i] / 6 / n[i], "budget": budget[i], "loss": 3 + bend[i]} for i in range(10)
    ]
    found = fit(runs)
    assert set(summary(found)["exponents"]) == {"law"}
    assert "by parabolas: no power law, since a budget has no minimum" in study_lines(found)


def test_a_folder_that_cannot_be_written_is_told_before_the_forecast(scaling, monkeypatch):
    def refuse(dir):
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    scaling.folder.mkdir()
    monkeypatch.setattr(forecast, "read_law", lambda folder: {"runs": "not read yet"})
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # no folder is closed to root
    said = f"error: --workdir: {scaling.folder} cannot be written (Permission denied)\n"
    assert scaling("--forecast=1e12", code=2) == said


@pytest.mark.thorough
def test_a_forecast_is_written_before_and_scored_after(scaling):
    assert "there is no" in scaling("--forecast=1e12", code=2)
    scaling(*FIT)
    assert "expected more than the largest budget, 2e+11" in scaling("--forecast=2e11", code=2)
    small = scaling("--forecast=2.1e11", "--forecast_depth=64", code=2)
    assert small.startswith("error: --forecast: 2.1e+11 FLOPs are ") and " steps at depth 64" in small
    assert "first --forecast=FLOPS" in scaling("--score", code=2)
    scaling("--forecast=1e12", "--forecast_depth=5")
    (said,) = scaling("--forecast=1e12")  # not yet trained: another
    forecast = scaling.read("forecast.json")
    assert said.startswith(f"forecast of {forecast['name']}: eval/loss {forecast['loss']:.4f} (90 % interval")
    low, high = forecast["interval"]
    assert low < forecast["loss"] < high
    assert not (scaling.folder / forecast["name"]).exists()
    before = (scaling.folder / "forecast.json").read_bytes()
    said = scaling("--score")
    score = scaling.read("score.json")
    assert score["forecast"] == forecast
    assert abs(score["error"]) < 0.01 and score["error"] == forecast["loss"] / score["actual"] - 1
    inside = "in" if low <= score["actual"] <= high else "outside"
    assert said[-1].endswith(f"error {score['error']:+.2%}, {inside} the 90 % interval")
    assert (scaling.folder / "forecast.png").exists()
    for flags in (["--forecast=1e12"], ["--forecast=3e12"]):
        assert "has started; a forecast comes before its run" in scaling(*flags, code=2)
    assert (scaling.folder / "forecast.json").read_bytes() == before
    assert scaling("--score")[-1] == said[-1]


@pytest.mark.thorough
def test_a_failed_run_ends_it_and_the_same_command_goes_on(scaling, tmp_path):
    (tmp_path / "root" / "fails").touch()
    flags = [*FIT[:2], "--depths=1,2,3,5"]
    said = scaling(*flags, code=1)
    assert any("failed with exit code 1: error: out of memory" in line for line in said)
    assert not (scaling.folder / "law.json").exists()
    (tmp_path / "root" / "fails").unlink()
    assert scaling(*flags)[0] == "9 of 12 runs have ended before"


def test_runs_that_have_diverged_are_left_out_and_named(scaling, tmp_path):
    names = ["flops=5e+10,depth=1,seed=0", "flops=1e+11,depth=5,seed=0"]
    (tmp_path / "root" / "diverges").write_text(" ".join(names))
    said = scaling("--budgets=5e10,1e11", FIT[0], "--depths=1,2,3,4,5")
    assert f"diverged, and left out of the fits: 2 ({', '.join(names)})" in said
    law = scaling.read("law.json")
    assert law["diverged"] == names and len(law["runs"]) == 8
    cells = {line.split()[0]: line.split()[4:] for line in said if line.lstrip()[:1].isdigit()}
    assert [cell == "diverged" for depth in "12345" for cell in cells[depth]] == [
        *[True, False],
        *[False] * 7,
        True,
    ]
    (tmp_path / "root" / "diverges").write_text(names[0].replace("depth=1", "depth=2"))
    error = scaling(
        "--budgets=5e10,1e11", FIT[0], "--depths=1,2,3,4", "--workdir=" + f"{scaling.folder}2", code=2
    )
    assert error.startswith(
        "error: --depths: at 5e+10 FLOPs those with a finite loss are 1, 3, 4; expected 4 or"
    )
    assert "flops=5e+10,depth=2,seed=0" in error


def test_a_size_of_which_one_seed_has_diverged_has_no_mean_and_no_mark():
    size = {"budget": 1e9, "d_model": 8, "parameters": 100, "n": 50.0}
    runs = [size | {"depth": depth, "loss": loss} for depth, loss in ((1, 2.0), (1, 2.2), (2, 1.0))]
    assert [line.split()[-1] for line in table(runs, whole=2)][1:] == ["2.1000*", "diverged"]


def test_the_folder_is_named_after_the_config_or_must_be_given(capsys):
    assert launch.parse(["--mode=scaling", f"--config={TINY}"])[0].workdir == "runs/lm-tiny-scaling"
    assert launch.main(["--mode=scaling", "--score"]) == 2
    assert "of a law that exists, --workdir is required" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_config_that_has_changed_is_not_scored(scaling, tmp_path):
    config = tmp_path / "mine.py"
    text = """from configs import lm

def get_config():
    config = lm.get_config("tiny")
    config.model.dropout = {}
    return config
"""
    config.write_text(text.format(0.0))
    scaling(f"--config={config}", *FIT[1:], "--forecast=1e12")
    config.write_text(text.format(0.1))
    assert "has changed since" in scaling("--score", code=2)


def test_a_metric_that_the_first_run_has_not_measured_ends_it(scaling):
    assert "has not measured eval/los" in scaling(*FIT, "--metric=eval/los", "--jobs=1", code=2)
    assert len([*scaling.folder.iterdir()]) == 1


RUN = {"depth": 2, "n": 1e4, "d": 1e6, "loss": 2.0}
LAW = {"config": TINY, "overrides": [], "width": 0.0, "metric": "eval/loss"}
LAW["runs"] = [RUN | {"budget": budget} for budget in (1e11, 2e11) for _ in range(4)]
FORECAST = {"name": "a", "written": "b", "config": "c", "depth": 5, "seed": 0, "budget": 1e12, "loss": 2.0}
FORECAST["interval"] = [1.9, 2.1]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("law.json", {}, "config is missing; expected what --mode=scaling writes there"),
        ("law.json", [], "config is missing"),
        ("law.json", {"runs": []}, "config is missing"),
        ("law.json", LAW | {"runs": []}, "runs: expected those of 2 or more budgets, 4 or more of each"),
        ("law.json", LAW | {"runs": {}}, "runs is {}"),
        ("law.json", LAW | {"runs": [*LAW["runs"], 3]}, "runs[8].depth is missing"),
        ("law.json", LAW | {"runs": [RUN | {"budget": "x"}]}, "runs[0].budget is 'x'"),
        ("law.json", LAW | {"runs": [RUN | {"budget": -1}]}, "runs[0].budget is -1"),
        ("law.json", LAW | {"overrides": [["seed"]]}, "overrides: expected pairs of a key and its value"),
        ("forecast.json", {}, "name is missing"),
        ("forecast.json", [], "name is missing"),
        ("forecast.json", FORECAST | {"depth": 0}, "depth is 0"),
        ("forecast.json", FORECAST | {"interval": [1]}, "interval: [1]; expected two losses"),
    ],
)
def test_files_of_another_form_are_named(tmp_path, capsys, name, values, said):
    (tmp_path / "law.json").write_text(json.dumps(LAW))
    (tmp_path / name).write_text(json.dumps(values))
    for flag in ["--score", "--forecast=1e13"][: 1 + (name == "law.json")]:
        assert launch.main(["--mode=scaling", f"--workdir={tmp_path}", flag]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {tmp_path / name}: {said}") and error.count("\n") == 1


def test_a_law_below_a_file_is_not_there(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert launch.main(["--mode=scaling", f"--workdir={tmp_path / 'file'}", "--score"]) == 2
    assert f"there is no {tmp_path / 'file' / 'law.json'}; first fit" in capsys.readouterr().err


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize("place", ["file", "file/law"])
def test_a_folder_that_cannot_be_written_is_told_before_a_run_begins(scaling, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    said = scaling(*FIT, f"--workdir={tmp_path / place}", code=2)
    assert said.startswith(f"error: --workdir: {tmp_path / place} ") and said.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.thorough(but=1)
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "--config is required"),
        (["--forecast=1e12", "--depths=2"], "--depths: it is for the runs of a fit"),
        (["--score", "--config.seed=1"], "--config.seed: it is for the runs of a fit"),
        (["--forecast=-1"], "--forecast: -1; expected FLOPs above 0"),
        (["--score", "--forecast_depth=3"], "--forecast_depth: 3; expected 1 or more, with --forecast"),
        (["--score", "--jobs=0"], "--jobs: 0; expected 1 or more"),
        ([FIT[0]], "--budgets: ''; expected 2 or more positive numbers, as in 1e12,2e12,4e12"),
        ([*FIT[:2], "--depths=1,2,3"], "--depths: '1,2,3'; expected 4 or more positive numbers"),
        ([*FIT[:2], "--depths=1,2,3,4.5"], "--depths: 1,2,3,4.5; expected whole numbers"),
        ([*FIT[:2], "--depths=1,2,3,x"], "--depths: '1,2,3,x'; expected 4 or more"),
        ([*FIT, "--forecast=2e11"], "--forecast: 2e+11; expected more than the largest budget, 2e+11"),
        ([*FIT, "--score"], "first --forecast=FLOPS"),
        ([*FIT, "--width=-2"], "--width: -2; expected a width above 0"),
        ([*FIT, "--seeds=0"], "--seeds: 0; expected 1 or more"),
        ([*FIT, "--config.seed=1"], "--config.seed: --seeds sets it"),
        ([*FIT, "--config.model.nrm=rms"], "config.model.nrm: unknown key"),
        ([FIT[0], "--budgets=1e8,1e11", FIT[2]], "steps at depth 1; expected 20 or more"),
        (["--config=configs/word_embedding.py", *FIT[1:]], "word_embedding has no model.num_layers"),
        ([*FIT, "--metric=eval/los"], "has not measured eval/los"),
    ],
)
def test_mistakes(scaling, flags, said):
    error = scaling(*flags, code=2)
    assert said in error and error.count("\n") == 1
    assert "has not measured" in said or not [*scaling.folder.glob("flops=*")]
