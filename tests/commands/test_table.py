"""Tables of runs, from folders written here."""

import csv
import errno
import itertools
import json
import math
import os
import statistics
import tempfile

import numpy as np
import pytest
from scipy import stats

import launch
from commands.sweeps.table_files import FORMATS
from commands.table import read_runs, rows_of
from tests import runs
from tests.runs import SAVE
from transformer.visualization import run_curves

pytestmark = pytest.mark.usefixtures("in_root")


def write_run(path, losses, steps=20, **config):
    """A folder of a run that measured `losses` at steps 10, 20, ..."""
    path.mkdir(parents=True)
    groups = {"train": {"steps": steps}} | config
    (path / "config.json").write_text(json.dumps(groups))
    lines = [{"step": 10 * (i + 1), "eval/loss": loss, "train/loss": 9} for i, loss in enumerate(losses)]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path):
    for rate, losses in ((0.1, [3.0, 3.5]), (0.2, [2.0, 2.5]), (0.4, [4.0, 1.0])):
        for seed in (0, 1, 2):
            shifted = [loss + 0.1 * seed for loss in losses]
            write_run(tmp_path / f"{rate}-{seed}", shifted, seed=seed, optimizer={"rate": rate, "name": "a"})
    return tmp_path


def table(folder, *flags):
    return launch.main(["--mode=table", "--runs", str(folder / "*"), *flags])


def test_rows_have_the_mean_and_spread_over_seeds_best_first(folder, capsys):
    assert table(folder) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["rate", "eval/loss", "spread", "runs"],
        ["*", "0.4", "1.1", "0.1", "3"],
        ["0.2", "2.6", "0.1", "3"],
        ["0.1", "3.6", "0.1", "3"],
    ]


def test_the_best_value_of_a_run_and_more_that_is_better(folder, capsys):
    runs, _ = read_runs([str(folder / "*")])
    assert [row.keys["optimizer.rate"] for row in rows_of(runs, "eval/loss", 1, True)] == [0.4, 0.2, 0.1]
    assert [row.mean for row in rows_of(runs, "eval/loss", 1, True)] == pytest.approx([1.1, 2.1, 3.1])
    rows = rows_of(runs, "eval/loss", -1, True)
    assert [row.keys["optimizer.rate"] for row in rows] == [0.4, 0.1, 0.2]
    assert [row.mean for row in rows] == pytest.approx([4.1, 3.6, 2.6])
    assert [row.mean for row in rows_of(runs, "eval/loss", -1, False)] == pytest.approx([3.6, 2.6, 1.1])


def test_random_groups_against_the_standard_library(tmp_path, rng):
    expected: dict = {}
    for number in range(40):
        keys = {"model": {"d": int(rng.integers(3)), "kind": "ab"[rng.integers(2)]}}
        loss = float(rng.normal())
        write_run(tmp_path / f"{number:03}", [0.0, loss], seed=number, **keys)
        expected.setdefault((keys["model"]["d"], keys["model"]["kind"]), []).append(loss)
    runs, _ = read_runs([str(tmp_path / "*")])
    rows = rows_of(runs, "eval/loss", 1, False)
    assert {(*row.keys.values(),): sorted(row.values) for row in rows} == {
        key: sorted(values) for key, values in expected.items()
    }
    for row in rows:
        values = expected[(*row.keys.values(),)]
        assert row.mean == pytest.approx(statistics.fmean(values))
        spread = np.std(values, ddof=1) if len(values) > 1 else math.nan
        assert row.spread == pytest.approx(spread, nan_ok=True)
    assert [row.mean for row in rows] == sorted(row.mean for row in rows)


def test_what_is_missing_is_said(folder, capsys):
    write_run(folder / "half", [5.0], seed=0, optimizer={"rate": 0.8, "name": "a"})
    write_run(folder / "none", [], seed=0, optimizer={"rate": 0.9, "name": "a"})
    (folder / "nothing").mkdir()
    assert table(folder) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["without metrics: 1 (none)", "not finished: 1 (half at 10)"]
    assert lines[4].split() == ["0.8", "5", "1"]


def test_a_damaged_config_is_said(folder, tmp_path_factory, capsys):
    write_run(folder / "bad", [5.0])
    for text in ("{", "[]", '{"train": 3}'):
        (folder / "bad" / "config.json").write_text(text)
        assert table(folder) == 0
        assert capsys.readouterr().out.splitlines()[-1] == "with a damaged config.json: 1 (bad)"
    alone = tmp_path_factory.mktemp("alone")
    write_run(alone / "bad", [5.0])
    (alone / "bad" / "config.json").write_text("{")
    assert table(alone) == 2
    said = "has no folder of a run with metrics; with a damaged config.json: 1 (bad)"
    assert capsys.readouterr().err == f"error: --runs: {alone}/* {said}\n"


def test_a_folder_whose_name_is_a_pattern_is_that_folder(tmp_path):
    for name in ("run[1]", "run1"):
        write_run(tmp_path / name, [1.0])
    found, _ = read_runs([str(tmp_path / "run[1]")])
    assert [run.path.name for run in found] == ["run[1]"]
    assert len(read_runs([str(tmp_path / "run*")])[0]) == 2


def test_keys_of_one_name_are_told_apart(tmp_path, capsys):
    write_run(tmp_path / "a", [1.0], model={"rate": 1}, optimizer={"rate": 1})
    write_run(tmp_path / "b", [2.0], model={"rate": 2}, optimizer={"rate": 3})
    assert table(tmp_path) == 0
    assert capsys.readouterr().out.split()[:2] == ["model.rate", "optimizer.rate"]


def test_sources_of_a_mixture_have_their_whole_names(tmp_path, capsys, monkeypatch):
    """Which may have dots and slashes."""
    drawn = []
    monkeypatch.setattr(run_curves, "save", lambda figure, axes, path: drawn.append(path.name))
    for weight in (1, 3):
        sources = {"text:/my/a.txt": weight, "stdlib": 1}
        write_run(tmp_path / str(weight), [weight], data={"sources": sources})
    assert table(tmp_path, f"--pictures={tmp_path}/pictures") == 0
    assert capsys.readouterr().out.split()[0] == "text:/my/a.txt"
    assert drawn == ["curves.png", "data.sources.text-my-a.txt.png"]


def test_files(folder, tmp_path_factory, capsys):
    out = tmp_path_factory.mktemp("out")
    for suffix in ("csv", "json", "md", "tex"):
        assert table(folder, f"--output={out / 'table'}.{suffix}") == 0
    with (out / "table.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[:2] == [
        ["optimizer.rate", "eval/loss", "spread", "runs", "seed 0", "seed 1", "seed 2"],
        ["0.4", "1.1", "0.1", "3", "1", "1.1", "1.2"],
    ]
    values = json.loads((out / "table.json").read_text())
    assert values[0]["keys"] == {"optimizer.rate": 0.4}
    assert values[0]["values"] == pytest.approx([1.0, 1.1, 1.2])
    assert len(values[0]["runs"]) == 3 and values[0]["seeds"] == [0, 1, 2]
    assert (out / "table.md").read_text().splitlines()[2] == "| 0.4 | 1.1 | 0.1 | 3 |"
    assert (out / "table.tex").read_text().splitlines()[5] == r"$0.4$ & $1.1$ & $0.1$ & $3$ \\"


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_table_stays_where_the_disk_is_full(folder, tmp_path_factory, monkeypatch, suffix):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path_factory.mktemp("out") / f"table{suffix}"
    path.write_text("before")
    monkeypatch.setattr(os, "replace", refuse)
    assert table(folder, f"--output={path}") == 1
    assert path.read_text() == "before"


def test_a_bar_in_a_value_or_a_heading_divides_no_cell(tmp_path, capsys):
    for number, layers in enumerate(("attention/|feed_forward/", "attention/")):
        path = tmp_path / str(number)
        write_run(path, [1.0 + number], model={"lora_layers": layers}, data={"a|b": number})
    for suffix in ("csv", "json", "md"):
        assert table(tmp_path, f"--output={tmp_path / 'table'}.{suffix}") == 0
    assert capsys.readouterr().out.split()[6] == "attention/|feed_forward/"
    assert (tmp_path / "table.md").read_text().splitlines() == [
        r"| lora_layers | a\|b | eval/loss | spread | runs |",
        "| --- | --- | --- | --- | --- |",
        r"| attention/\|feed_forward/ | 0 | 1 |  | 1 |",
        "| attention/ | 1 | 2 |  | 1 |",
    ]
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0][:2] == ["model.lora_layers", "data.a|b"] and rows[1][0] == "attention/|feed_forward/"
    values = json.loads((tmp_path / "table.json").read_text())
    assert values[0]["keys"] == {"model.lora_layers": "attention/|feed_forward/", "data.a|b": 0}


def test_pictures_have_bands_and_logarithmic_axes(folder, tmp_path_factory, monkeypatch):
    drawn = {}
    monkeypatch.setattr(run_curves, "save", lambda figure, axes, path: drawn.update({path.name: axes}))
    assert table(folder, f"--pictures={tmp_path_factory.mktemp('pictures')}") == 0
    assert {*drawn} == {"curves.png", "optimizer.rate.png"}
    curves, over = drawn["curves.png"], drawn["optimizer.rate.png"]
    last = {line.get_label(): line.get_ydata()[-1] for line in curves.get_lines()}
    assert last == pytest.approx({"rate 0.4": 1.1, "rate 0.2": 2.6, "rate 0.1": 3.6})
    assert len(curves.collections) == 3
    band = curves.collections[-1].get_paths()[0].vertices[:, 1]  # of the best row, drawn last
    assert (band.min(), band.max()) == pytest.approx((1.0, 4.2))
    assert over.get_xscale() == "log"
    means = max(over.get_lines(), key=lambda line: len({*line.get_xdata()}))
    assert (*means.get_xdata(),) == (0.1, 0.2, 0.4)
    assert (*means.get_ydata(),) == pytest.approx((3.6, 2.6, 1.1))


def test_pictures_are_drawn(folder, tmp_path_factory, monkeypatch):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", SAVE)
    out = tmp_path_factory.mktemp("pictures")
    assert table(folder, f"--pictures={out}") == 0
    assert all((out / name).stat().st_size > 5_000 for name in ("curves.png", "optimizer.rate.png"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--metric=eval/los"], "--metric: no run has measured 'eval/los'; did you mean 'eval/loss'?"),
        (["--output=table.pdf"], "--output: table.pdf; expected a name that ends in .csv, .json, .md"),
        (["--config.seed=1"], "--config.seed: --mode=table changes no keys"),
        (["--runs", "/nowhere/*"], "--runs: /nowhere/* has no folder of a run with metrics"),
    ],
)
def test_mistakes(folder, flags, said, capsys):
    assert table(folder, *flags) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--output={}/none/out.csv", "--output: there is no folder '{}/none'"),
        ("--output={}/file/out.csv", "--output: there is no folder '{}/file'"),
        ("--output={}/out.csv", "--output: {}/out.csv is a folder; expected a file"),
        ("--pictures={}/file", "--pictures: {}/file is a file; expected a folder"),
        ("--pictures={}/file/pictures/all", "--pictures: {}/file is a file; expected a folder"),
    ],
)
def test_places_that_cannot_be_are_told_before_the_table(folder, tmp_path_factory, capsys, flag, said):
    place = tmp_path_factory.mktemp("place")
    (place / "file").write_text("mine")
    (place / "out.csv").mkdir()
    assert table(folder, flag.format(place)) == 2
    assert capsys.readouterr() == ("", f"error: {said.format(place)}\n")
    assert {each.name for each in place.iterdir()} == {"file", "out.csv"}


@pytest.mark.parametrize("flag", ["--output={}/out.csv", "--pictures={}/new/pictures"])
def test_a_place_that_cannot_be_written_is_told_before_the_table(folder, monkeypatch, capsys, flag):
    def refuse(dir):
        raise PermissionError(errno.EACCES, "Permission denied", str(dir))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # no folder is closed to root
    before = runs.listing(folder)
    assert table(folder, flag.format(folder)) == 2
    name = flag.partition("=")[0]
    assert capsys.readouterr() == ("", f"error: {name}: {folder} cannot be written (Permission denied)\n")
    assert runs.listing(folder) == before


def test_it_needs_runs(capsys):
    assert launch.main(["--mode=table"]) == 2
    assert capsys.readouterr().err == "error: --runs is required, such as 'runs/lm-sweep/*' (--mode=table)\n"


@pytest.mark.thorough
def test_a_thousand_runs(tmp_path, capsys):
    for number in range(1000):
        write_run(tmp_path / f"{number:04}", [2.0] * 20, seed=number % 10, model={"d": number // 10})
    assert table(tmp_path, f"--pictures={tmp_path / 'pictures'}") == 0
    assert len(capsys.readouterr().out.splitlines()) == 101


def test_runs_of_a_search_are_points_of_one_colour(tmp_path, tmp_path_factory, monkeypatch):
    drawn = {}
    monkeypatch.setattr(run_curves, "save", lambda figure, axes, path: drawn.update({path.name: axes}))
    for number in range(20):
        write_run(tmp_path / f"{number}", [1.0 + number], model={"rate": 1.3**number, "drop": number / 50})
    assert table(tmp_path, f"--pictures={tmp_path_factory.mktemp('pictures')}") == 0
    axes = drawn["model.rate.png"]
    assert axes.get_xscale() == "log" and len(axes.get_xticks()) < 20
    assert len({line.get_color() for line in axes.get_lines()}) == 1
    assert axes.get_legend_handles_labels() == ([], [])
    points = [line for line in axes.get_lines() if line.get_marker() == "o"]
    shown = sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in points)
    assert shown == [(1.3**number, 1.0 + number) for number in range(20)]


def write_arms(path, rng):
    """Plain runs of seeds 0 to 4, and two changes of them: {name: {seed: loss}}."""
    losses = {name: {seed: float(rng.normal()) for seed in range(5)} for name in ("plain", "wide", "deep")}
    del losses["deep"][1], losses["deep"][3]
    changed = {"plain": {}, "wide": {"d": 2}, "deep": {"n": 2, "kind": "b"}}
    for name, values in losses.items():
        for seed, loss in values.items():
            keys = {"d": 1, "n": 1, "kind": "a"} | changed[name]
            write_run(path / f"{name}-{seed}", [0.0, loss], seed=seed, model=keys)
    return losses


def test_differences_from_some_runs_by_pairs_of_one_seed(tmp_path, rng, capsys):
    losses = write_arms(tmp_path, rng)
    write_run(tmp_path / "unpaired", [0.0, 1.0], seed=5, model={"d": 3, "n": 1, "kind": "a"})
    out = tmp_path / "out.json"
    flags = [f"--against={tmp_path}/plain-*", f"--output={out}"]
    assert table(tmp_path, *flags) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["change", "eval/loss", "difference", "95%", "interval", "pairs"]
    rows = {tuple(row["keys"].items()): row for row in json.loads(out.read_text())}
    assert {*rows} == {(("model.d", 2),), (("model.n", 2), ("model.kind", "b"))}
    means = []
    for name, row in zip(("wide", "deep"), (rows[key] for key in sorted(rows, key=len)), strict=True):
        expected = [loss - losses["plain"][seed] for seed, loss in losses[name].items()]
        assert row["differences"] == pytest.approx(expected)
        low, high = stats.ttest_1samp(expected, 0).confidence_interval(0.95)
        assert row["interval"] == pytest.approx([low, high])
        means.append((statistics.fmean(expected), name, not low <= 0 <= high))
    assert " ".join(lines.pop()) == "in no difference, as --against has no value for the seed: 1 (unpaired)"
    for line, (mean, name, shown) in zip(lines[1:], sorted(means), strict=True):
        assert (line[0] == "*") is shown
        assert f"{mean:+.4f}" in line and line[-1] == str(len(losses[name]))
    assert table(tmp_path, f"--against={tmp_path}/plain-*", "--metric=-eval/loss") == 0
    turned = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert turned[1:-1] == lines[:0:-1]


def test_differences_in_files_and_a_picture(tmp_path, rng, monkeypatch, capsys):
    write_arms(tmp_path, rng)
    drawn = {}
    monkeypatch.setattr(run_curves, "save", lambda figure, axes, path: drawn.update({path.name: axes}))
    for suffix in ("csv", "md"):
        flags = [f"--against={tmp_path}/plain-*", f"--output={tmp_path}/out.{suffix}"]
        assert table(tmp_path, *flags, f"--pictures={tmp_path}") == 0
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.reader(file))
    singles = [f"seed {seed}" for seed in range(5)]
    assert rows[0] == ["change", "eval/loss", "difference", "95% interval", "pairs", *singles]
    deep = next(row for row in rows if row[0] == "n 2, kind b")
    assert [bool(value) for value in deep[5:]] == [True, False, True, False, True]
    assert {row[0] for row in rows[1:]} == {"d 2", "n 2, kind b"}
    assert (tmp_path / "out.md").read_text().splitlines()[2] == f"| {' | '.join(rows[1][:5])} |"
    axes = drawn["differences.png"]
    assert [each.get_text() for each in axes.get_yticklabels()] == [row[0] for row in rows[1:]]
    points = [line.get_xdata() for line in axes.get_lines() if line.get_marker() == "o"]
    assert [f"{each[0]:+.4f}" for each in points] == [row[2] for row in rows[1:]]


def write_grid(path, rng):
    """Runs of two norms at three widths, seeds 0 to 2: {(norm, width, seed): loss}."""
    losses = {}
    for norm, width, seed in itertools.product(("layer", "rms"), (8, 64, 128), range(3)):
        losses[norm, width, seed] = loss = float(rng.normal())
        keys = {"norm": norm, "d_model": width}
        write_run(path / f"{norm}-{width}-{seed}", [0.0, loss], seed=seed, model=keys)
    return losses


@pytest.mark.parametrize("name", ["d_model", "model.d_model"])
def test_the_effect_of_a_key_at_each_value_of_another(tmp_path, rng, capsys, name):
    losses = write_grid(tmp_path, rng)
    write_run(tmp_path / "alone", [0.0, 1.0], seed=0, model={"norm": "rms", "d_model": 512})
    write_run(tmp_path / "other", [0.0, 1.0], seed=0, model={"norm": "none", "d_model": 64})
    flags = [f"--against={tmp_path}/layer-*", f"--at={name}", f"--output={tmp_path / 'out'}"]
    assert table(tmp_path, *flags[:2], f"{flags[2]}.csv", f"--pictures={tmp_path}/p") == 0
    said = [line.replace("*", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert said[0] == ["d_model", "change", "eval/loss", "difference", "95%", "interval", "pairs"]
    assert [line[:3] for line in said[1:-1]].count(["64", "norm", "none"]) == 1
    assert [int(line[0]) for line in said[1:-1]] == [8, 64, 64, 128]
    assert " ".join(said[-1]) == (
        "in no difference, as no --against run with their d_model has measured eval/loss: 1 (alone)"
    )
    assert table(tmp_path, *flags[:2], f"{flags[2]}.json") == 0
    rows = {tuple(row["keys"].values()): row for row in json.loads((tmp_path / "out.json").read_text())}
    assert {*rows} == {(8, "rms"), (64, "rms"), (128, "rms"), (64, "none")}
    for width in (8, 64, 128):
        expected = [losses["rms", width, seed] - losses["layer", width, seed] for seed in range(3)]
        assert rows[width, "rms"]["differences"] == pytest.approx(expected)
        interval = stats.ttest_1samp(expected, 0).confidence_interval(0.95)
        assert rows[width, "rms"]["interval"] == pytest.approx([*interval])
    with (tmp_path / "out.csv").open() as file:
        heading, *lines = csv.reader(file)
    assert heading[:2] == ["model.d_model", "change"] and lines[0][:2] == ["8", "norm rms"]


def test_a_diverged_run_at_one_value_says_nothing_of_the_others(tmp_path, rng, capsys):
    write_grid(tmp_path, rng)
    for seed in range(3):
        (tmp_path / f"layer-8-{seed}" / "metrics.jsonl").write_text('{"step": 20, "eval/loss": null}\n')
        (tmp_path / f"layer-64-{seed}" / "metrics.jsonl").write_text('{"step": 20, "train/loss": 1}\n')
    assert table(tmp_path, f"--against={tmp_path}/layer-*", "--at=d_model") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.replace("*", " ").split()[:3] for line in said[1:3]] == [
        ["8", "norm", "rms"],
        ["128", "norm", "rms"],
    ]
    assert said[1].split()[-1] == "0" and said[2].split()[-1] == "3"
    assert said[3:] == [
        "left out without eval/loss: 3 (layer-64-0, layer-64-1, layer-64-2)",
        "in no difference, as the --against run of the seed has diverged: 3 (rms-8-0, rms-8-1, rms-8-2)",
        "in no difference, as no --against run with their d_model has measured eval/loss: 3 "
        "(rms-64-0, rms-64-1, rms-64-2)",
        "diverged: 3 (layer-8-0, layer-8-1, layer-8-2)",
    ]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--at=d_model"], "--at: --against is missing, the runs that the others are compared with"),
        (["--against={}/layer-*"], "in their seed alone; --at=KEY compares at each value of a key"),
        (["--against={}/layer-*", "--at=width"], "--at: the runs do not differ in 'width'; expected one of"),
        (["--against={}/*-8-*", "--at=d_model"], "--against: its runs differ in norm; expected runs that"),
    ],
)
def test_values_of_a_key_that_nothing_can_be_compared_at(tmp_path, rng, capsys, flags, said):
    write_grid(tmp_path, rng)
    assert table(tmp_path, *(flag.format(tmp_path) for flag in flags)) == 2
    assert said in capsys.readouterr().err


def test_no_row_is_the_best_if_all_have_diverged(tmp_path, capsys):
    for number in range(2):
        write_run(tmp_path / str(number), [None], steps=10, seed=0, model={"d": number})
    assert table(tmp_path) == 0
    assert "*" not in capsys.readouterr().out


@pytest.mark.parametrize("sign", ["", "-"])
def test_a_run_that_has_diverged_is_not_ranked_by_what_it_measured_before(tmp_path, capsys, sign):
    for number, losses in enumerate(([2.5, 2.0, 2.2], [1.0, 1.5, None], [1.7, 1.8, 1.9], [None] * 3)):
        for seed in (0, 1):
            shifted = [loss if loss is None else loss + seed / 10 for loss in losses]
            write_run(tmp_path / f"{number}-{seed}", shifted, 30, seed=seed, model={"d": number})
    out = tmp_path / "out.json"
    assert table(tmp_path, f"--metric={sign}eval/loss", f"--output={out}", f"--pictures={tmp_path}/p") == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    finite = [["2", "1.95", "0.070711", "2"], ["0", "2.25", "0.070711", "2"]][:: -1 if sign else 1]
    assert listed[1:3] == [["*", *finite[0]], finite[1]]
    assert sorted(listed[3:5]) == [[number, "diverged", "2"] for number in "13"]
    assert listed[5:] == [["diverged:", "4", "(1-0,", "1-1,", "3-0,", "3-1)"]]
    rows = {row["keys"]["model.d"]: row for row in json.loads(out.read_text())}
    assert rows[1]["values"] == [None, None] and rows[1]["mean"] is rows[1]["spread"] is None
    assert table(tmp_path, f"--metric={sign}eval/loss", f"--against={tmp_path}/0-*", f"--output={out}") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1][-2:] == ["-0.3000", "2"] or "to" in lines[1]
    assert sorted(lines[2:4]) == [["d", number, "diverged", "2"] for number in "13"]
    assert [row["differences"] for row in json.loads(out.read_text())[1:]] == [[None, None]] * 2
    assert table(tmp_path, f"--against={tmp_path}/3-*", f"--output={out}") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    means = {"0": "2.2500", "1": "diverged", "2": "1.9500"}  # there is no difference from what has diverged
    assert sorted(lines[1:4]) == [
        ["d", number, mean, "0" if number != "1" else "2"] for number, mean in means.items()
    ]
    assert [row["mean"] for row in json.loads(out.read_text())].count(None) == 1


def test_a_baseline_that_diverged_is_not_said_of_the_change(tmp_path, capsys):
    for seed in range(3):
        write_run(
            tmp_path / f"plain-{seed}",
            [None if seed == 0 else 3.0 + seed, 3.0][::-1],
            seed=seed,
            model={"d": 1},
        )
        write_run(tmp_path / f"wide-{seed}", [3.0, 2.0 + 2 * seed], seed=seed, model={"d": 2})
    assert table(tmp_path, f"--against={tmp_path}/plain-*") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["d", "2", "4.0000", "+0.5000", "-5.8531", "to", "+6.8531", "2"]
    assert said[2:] == [
        "in no difference, as the --against run of the seed has diverged: 1 (wide-0)",
        "diverged: 1 (plain-0)",
    ]


def test_a_run_that_gave_up_before_its_first_evaluation_has_diverged(tmp_path, capsys):
    """Or after its last one: the mean of the other seeds is not that of the row."""
    for seed, lines in enumerate(([], [{"step": 10, "eval/loss": 2.0}], [{"step": 20, "eval/loss": 2.0}])):
        write_run(tmp_path / f"{seed}", [], 20, seed=seed)
        lines = [*lines, {"step": 15, "train/loss": None}][: 1 + (seed < 2)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{seed}" / "metrics.jsonl").write_text(text)
    assert table(tmp_path) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["diverged", "3"] and said[-1] == "diverged: 2 (0, 1)"
    write_run(tmp_path / "3", [], 20, seed=3)  # all its steps were skipped, and no loss was logged
    (tmp_path / "3" / "metrics.jsonl").write_text('{"step": 10, "train/skipped_steps": 9}\n')
    assert table(tmp_path) == 0
    assert "diverged: 3 (0, 1, 3)" in capsys.readouterr().out


def test_a_mean_is_of_runs_at_the_same_step_and_of_each_seed_once(tmp_path, capsys):
    for seed in range(3):
        write_run(tmp_path / f"{seed}", [5.0, 1.0 + seed][: 1 + (seed < 2)], seed=seed)
    write_run(tmp_path / "again", [5.0, 3.0], seed=1)
    write_run(tmp_path / "other", [], seed=4)
    (tmp_path / "other" / "metrics.jsonl").write_text('{"step": 20, "train/loss": 1}\n')
    out = tmp_path / "out.json"
    assert table(tmp_path, f"--output={out}") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["2", "1", "3"]
    assert said[2:] == [
        "left out without eval/loss: 1 (other)",
        "left out at an earlier step than the others of their row: 1 (2 at 10)",
        "with a seed that another run of their row has: 1 (again)",
        "not finished: 1 (2 at 10)",
    ]
    (row,) = json.loads(out.read_text())
    assert [path.rpartition("/")[2] for path in row["runs"]] == ["0", "1", "again"]
    assert [path.rpartition("/")[2] for path in row["left_out"]] == ["2", "other"]


def test_differences_are_between_runs_at_the_same_place(tmp_path, capsys):
    """Of equal length at the same step, of other lengths at the end."""
    write_run(tmp_path / "plain", [3.0, 3.0], seed=0, model={"d": 1})
    write_run(tmp_path / "half", [2.0], seed=0, model={"d": 2})
    write_run(tmp_path / "longer", [3.0, 2.0, 1.0], 30, seed=0, model={"d": 1})
    write_run(tmp_path / "half-longer", [3.0, 2.0], 30, seed=0, model={"d": 2})
    assert table(tmp_path, f"--against={tmp_path}/plain") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["steps", "30", "1.0000", "-2.0000", "1"]
    reason = "in no difference, as the --against run of the seed was measured at another step"
    assert said[2] == f"{reason}: 2 (half at 10, not 20, half-longer at 20, not 20)"


def test_keys_that_do_not_change_what_is_trained_or_measured_divide_no_row(tmp_path, capsys):
    for number, train in enumerate(({}, {"log_every": 5}, {"evaluate_every": 7}, {"keep_last": 2})):
        write_run(
            tmp_path / str(number), [1.0, 2.0], seed=number, train={"steps": 20, "log_every": 1} | train
        )
    for flags, keys in (
        ([], []),
        (["--best"], ["evaluate_every"]),
        (["--metric=train/loss"], ["log_every"]),
    ):
        assert table(tmp_path, *flags) == 0
        heading = capsys.readouterr().out.splitlines()[0].split()
        assert heading[: heading.index("spread") - 1] == keys


def test_runs_with_skipped_steps_are_listed(tmp_path, capsys):
    """A run whose gradients were not finite has a finite loss, of the parameters before."""
    for name in ("a", "b"):
        write_run(tmp_path / name, [2.0, 1.5], model={"d": ord(name)})
    with (tmp_path / "b" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 20, "train/skipped_steps": 15}) + "\n")
    assert table(tmp_path) == 0
    assert capsys.readouterr().out.splitlines()[3:] == ["with skipped steps: 1 (b: 15 of 20)"]


def test_a_picture_has_a_cross_where_a_run_has_diverged(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(run_curves, "save", lambda figure, axes, path: drawn.update({path.name: axes}))
    for rate, loss in ((1, 3.0), (2, 2.0), (4, None)):
        for seed in (0, 1):
            each = 2.5 if seed and loss is None else loss  # one of two has diverged
            write_run(tmp_path / f"{rate}-{seed}", [5.0, each], seed=seed, optimizer={"rate": rate})
    assert table(tmp_path, f"--pictures={tmp_path}/p") == 0
    axes = drawn["optimizer.rate.png"]
    (crosses,) = (line for line in axes.get_lines() if line.get_marker() == "x")
    assert crosses.get_xdata() == [4] and crosses.get_label() == "diverged"
    assert axes.get_xlim()[0] < 1 and axes.get_xlim()[1] > 4
    points = [y for line in axes.get_lines() if line.get_marker() == "o" for y in line.get_ydata()]
    assert sorted(y for y in points if math.isfinite(y)) == [2.0, 2.0, 2.5, 3.0, 3.0]


def test_the_best_value_of_a_run_may_be_from_before_it_diverged(tmp_path, capsys):
    for number, losses in enumerate(([2.0, 2.2], [1.5, None], [None, None])):
        write_run(tmp_path / str(number), losses, seed=0, model={"d": number})
    assert table(tmp_path, "--best") == 0
    rows = [line.replace("*", " ").split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1:4] == [["1", "1.5", "1"], ["0", "2", "1"], ["2", "diverged", "1"]]


def test_one_pair_has_no_interval(tmp_path, capsys):
    for number, loss in enumerate((1.0, 3.0)):
        write_run(tmp_path / str(number), [loss], steps=10, seed=3, model={"d": number})
    assert table(tmp_path, f"--against={tmp_path}/0") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["d", "1", "3.0000", "+2.0000", "1"]


@pytest.mark.parametrize(
    ("against", "said"),
    [
        ("[pw]*-0", "--against: its runs differ in d; expected runs that differ in their seed alone"),
        ("nothing", "--against: {}/nothing has no folder of a run with metrics"),
        ("unmeasured", "--against: no run has measured eval/loss"),
        ("single", "--against: no other run has measured eval/loss with one of its seeds, 9"),
        ("plain*", "--against: two runs have seed 0, {}/plain-again is one; expected one of each"),
    ],
)
def test_runs_that_nothing_can_be_compared_with(tmp_path, rng, capsys, against, said):
    write_arms(tmp_path, rng)
    if against == "unmeasured":
        write_run(tmp_path / against, [], seed=0, model={"d": 1, "n": 1, "kind": "z"})
        (tmp_path / against / "metrics.jsonl").write_text('{"step": 10, "train/loss": 1}\n')
    if against == "single":
        write_run(tmp_path / against, [1.0], seed=9, model={"d": 1, "n": 1, "kind": "z"})
    if against == "plain*":
        keys = {"d": 1, "n": 1, "kind": "a"}
        write_run(tmp_path / "plain-again", [0.0, 1.0], seed=0, model=keys)
    assert table(tmp_path, f"--against={tmp_path}/{against}") == 2
    assert said.format(tmp_path) in capsys.readouterr().err
