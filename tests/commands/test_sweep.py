"""Sweeps: which runs they have, and that each is trained once, whatever happens in between."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import launch
from commands.sweeps import jobs as running
from commands.sweeps.algebra import as_overrides, names, over, product, read_sweep, shortened, zipped
from commands.sweeps.halving import Halving
from commands.sweeps.jobs import Job, Work, work
from tests import runs
from transformer.errors import UserError
from workdir.lock import exclusive

pytestmark = pytest.mark.usefixtures("in_root")


def test_products_zips_and_sums():
    sizes = zipped(over("d", [1, 2]), over("ff", [4, 8]))
    assert sizes == [{"d": 1, "ff": 4}, {"d": 2, "ff": 8}]
    assert product(sizes, over("seed", [0, 1])) + over("seed", [7]) == [
        {"d": 1, "ff": 4, "seed": 0},
        {"d": 1, "ff": 4, "seed": 1},
        {"d": 2, "ff": 8, "seed": 0},
        {"d": 2, "ff": 8, "seed": 1},
        {"seed": 7},
    ]
    with pytest.raises(UserError, match="zipped: the sweeps have 2 and 1 runs"):
        zipped(over("a", [1, 2]), over("b", [1]))
    with pytest.raises(UserError, match="a: it is in two"):
        product(over("a", [1]), over("a", [2]))


def test_numbers_of_numpy_are_those_of_python():
    settings = product(over("optimizer.learning_rate", np.array([0.5, 2])), over("x", np.arange(1)))
    assert as_overrides(settings[0]) == [("optimizer.learning_rate", "0.5"), ("x", "0")]
    assert names(settings) == ["learning_rate=0.5,x=0", "learning_rate=2,x=0"]
    assert as_overrides({"x": np.bool_(True), "y": np.arange(2)}) == [("x", "True"), ("y", "[0, 1]")]


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("seed=0,1", [{"seed": "0"}, {"seed": "1"}]),
        ("a.b=x", [{"a.b": "x"}]),
        ("d,ff=64:256,128:512", [{"d": "64", "ff": "256"}, {"d": "128", "ff": "512"}]),
        ("data.source=text:/a/*.txt,stdlib", [{"data.source": "text:/a/*.txt"}, {"data.source": "stdlib"}]),
        ("a=[1,2],(3,4)", [{"a": "[1,2]"}, {"a": "(3,4)"}]),
        ("a='x,y',z", [{"a": "'x,y'"}, {"a": "z"}]),
    ],
)
def test_flags(text, settings):
    assert read_sweep(text) == settings


@pytest.mark.parametrize("text", ["seed", "seed=", "=1", "seed=0,,1", "a,b=1:2,3"])
def test_bad_flags(text):
    with pytest.raises(UserError, match="--sweep: "):
        read_sweep(text)


def test_names_are_short_and_apart():
    assert names(product(over("optimizer.learning_rate", ["1e-3", "3e-05"]), over("seed", [0]))) == [
        "learning_rate=0.001,seed=0",
        "learning_rate=3e-05,seed=0",
    ]
    assert names([{"model.name": "a", "data.name": "b"}]) == ["model.name=a,data.name=b"]
    stages = zipped(over("train.until.window.2", [4, 8]), over("train.until.batch_size.2", [6, 9]))
    assert names(stages) == ["window.2=4,batch_size.2=6", "window.2=8,batch_size.2=9"]
    shares = over("data.sources.text:data/b.txt", [0.5]) + over("data.sources.text:data-b.txt", [0.5])
    one, other = names(shares)
    assert "/" not in one + other and one != other and one.startswith("text-data-b.txt-")
    assert shortened(["data.sources.text:a.b", "seed", "x.until.1"]) == ["text:a.b", "seed", "until.1"]
    (long,) = names(over("data.source", ["text:" + "/folder" * 20]))
    assert long.startswith("source=text-folder-folder-") and len(long) < 50
    one, other = names(over("data.source", ["x" * 99, "x" * 98 + "y"]))
    assert one != other and len(one) == len(other) < 50
    numbers = ["1000001", "1e6", "12345678901234567890", "12345678901234567891", "1" * 5000]
    assert names(over("seed", numbers))[:-1] == [
        *("seed=1000001", "seed=1000000", "seed=12345678901234567890", "seed=12345678901234567891")
    ]
    with pytest.raises(UserError, match="two runs have a=1"):
        names(over("a", ["1", "1.0"]))
    folders = names(over("a", ["../..", "/", "..", "", "é"]))
    assert all("/" not in name and name.startswith("a=") for name in folders)


def starts(each):
    return [line.split() for line in (each.folder / "starts").read_text().splitlines()]


def test_a_failed_run_is_one_line_and_does_not_end_the_others(job, capsys):
    listed = [job("a"), job("bad", rate=13), job("c")]
    assert work(listed, 1) == 1
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "a: finished",
        f"bad: failed with exit code 1: error: config.rate: 13 is unlucky ({listed[1].output})",
        "c: finished",
    ]
    assert [each.outcome for each in listed] == ["finished", "failed", "finished"]


def test_what_has_finished_is_not_trained_again_and_what_failed_is(job, capsys):
    work([job("a"), job("bad", rate=13)], 2)
    (job("bad").folder / "metrics.jsonl").unlink()
    again = [job("a"), job("bad", rate=13)]
    assert work(again, 2) == 1
    assert "1 of 2 runs have ended before" in capsys.readouterr().out
    assert [len(starts(each)) for each in again] == [1, 2]
    longer = job("a", steps=12)
    assert work([longer], 1) == 0
    assert [begin for _, begin in starts(longer)] == ["0", "9"]


def test_more_seeds_train_what_is_missing_alone(tmp_path, job, capsys):
    """Also where the runs had the seed of the config, which is not in their names."""
    trainer = "import sys\nopen(sys.argv[1].removeprefix('--workdir=') + '/starts', 'a').write('.')"
    (tmp_path / "root" / "launch.py").write_text(trainer)
    command = ["--mode=sweep", "--config=configs/lm.py:tiny", "--sweep=optimizer.learning_rate=0.1,0.2"]

    def sweep(*flags, workdir):
        assert launch.main([*command, f"--workdir={tmp_path / workdir}", *flags]) == 0
        return {path.name: len((path / "starts").read_text()) for path in (tmp_path / workdir).iterdir()}

    assert [*sweep("--sweep=seed=0,1", workdir="s").values()] == [1] * 4
    again = sweep("--sweep=seed=0,1,2", workdir="s")
    assert again == {f"learning_rate={rate},seed={seed}": 1 for rate in (0.1, 0.2) for seed in range(3)}
    assert "4 of 6 runs have ended before" in capsys.readouterr().out
    assert [*sweep(workdir="plain").values()] == [1] * 2
    assert [*sweep("--sweep=seed=1,2", workdir="plain").values()] == [1] * 6


def test_runs_have_a_gpu_each(job, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    listed = [job(name, wait=0.02) for name in "abc"]
    assert work(listed, 2) == 0
    assert {starts(each)[0][0] for each in listed} == {"4", "6"}
    assert {starts(each)[0][0] for each in listed[:2]} == {"4", "6"}


def test_a_signal_stops_all_and_the_next_start_goes_on(job, monkeypatch, capsys):
    listed = [job(name, steps=200, wait=0.01) for name in "abc"]
    sleep, calls = time.sleep, []

    def interrupt(seconds):
        calls.append(seconds)
        sleep(seconds)
        if all((each.folder / "metrics.jsonl").exists() for each in listed[:2]) and len(calls) > 5:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(running.time, "sleep", interrupt)
    assert work(listed, 2) == 143
    assert "interrupted; 3 of 3 runs are left" in capsys.readouterr().out
    assert not (listed[2].folder / "starts").exists()
    monkeypatch.setattr(running.time, "sleep", sleep)
    assert work([job(name, steps=200) for name in "abc"], 3) == 0
    for each in listed[:2]:
        assert each.step == 200
        assert int(starts(each)[1][1]) > 0


def test_a_run_that_another_command_trains_is_left_to_it(job, capsys, monkeypatch):
    mine, other = job("mine"), job("other")
    other.folder.mkdir(parents=True)
    sleep, calls = time.sleep, []

    def finish(seconds):
        calls.append(seconds)
        sleep(seconds)
        if len(calls) == 20:
            other.record("finished")

    with exclusive(other.folder / "lock"):
        monkeypatch.setattr(running.time, "sleep", finish)
        assert work([other, mine], 1) == 0
    assert capsys.readouterr().out.splitlines() == [
        "mine: finished",
        "other: finished trained by another command",
    ]
    assert not (other.folder / "starts").exists()


def test_a_run_that_a_killed_command_has_left_is_waited_for(job, capsys, monkeypatch):
    """It had been started, but had no lock yet; then it takes the lock, and a second start of it fails."""
    left = job("left", rate=13)
    start, look = Job.start, Work.look

    def lock(each, *arguments):
        start(each, *arguments)
        locked.enter_context(exclusive(each.folder / "lock"))

    def finish(self, each):
        look(self, each)
        if each in self.queue:
            each.record("finished")

    monkeypatch.setattr(Job, "start", lock)
    monkeypatch.setattr(Work, "look", finish)
    with contextlib.ExitStack() as locked:
        assert work([left], 1) == 0
    assert capsys.readouterr().out == "left: finished trained by another command\n"
    assert len(starts(left)) == 1


def test_an_error_of_the_command_stops_its_runs(job, monkeypatch):
    def refuse(self, *_):
        raise UserError("no more")

    monkeypatch.setattr(Work, "end", refuse)
    listed = [job("short"), job("long", steps=10_000, wait=0.01)]
    with pytest.raises(UserError, match="no more"):
        work(listed, 2)
    assert listed[1].process.wait(timeout=20) in (143, -signal.SIGTERM)


def test_halving_stops_what_is_not_among_the_best(job, capsys):
    listed = [job(f"r{rate}", rate=rate, wait=0.01, steps=60) for rate in (1, 2, 3, 4)]
    halving = Halving.of("eval/loss", 10, 2, listed)
    assert work(listed, 1, halving) == 0
    assert [each.outcome for each in listed] == ["finished", "stopped", "stopped", "stopped"]
    assert {10, 20, 40} == {*halving.reached}
    assert all(10 <= each.step < 60 for each in listed[1:])
    capsys.readouterr()
    assert work([job("r2", rate=2, wait=0.01, steps=60)], 1, Halving.of("eval/loss", 10, 2, listed)) == 0
    assert capsys.readouterr().out == "1 of 1 runs have ended before\n"


def test_halving_by_a_metric_of_which_more_is_better(job):
    listed = [job(f"r{rate}", rate=rate, steps=60) for rate in (4, 3, 2, 1)]
    for each in listed:
        each.folder.mkdir(parents=True)
        (each.folder / "metrics.jsonl").write_text(json.dumps({"step": 10, "m": each.values["rate"]}) + "\n")
    halving = Halving.of("-m", 10, 4, listed)
    # Of fewer than 4 runs none is hopeless yet.
    assert [halving.is_hopeless(each) for each in listed] == [False, False, False, True]
    better = job("r5", rate=5, steps=60)
    better.folder.mkdir()
    (better.folder / "metrics.jsonl").write_text('{"step": 12, "m": 4.5}\n')
    assert not halving.is_hopeless(better)


@pytest.mark.parametrize("layers", [1, 100, 5000])
def test_halving_compares_runs_with_long_lines_of_metrics(job, layers):
    """Of as many layers, whose norms are longer than what is read of the file's end at first."""
    listed = [job(f"r{rate}", rate=rate, steps=60) for rate in (1, 2)]
    norms = {f"train/norms/activation/blocks/{number}": 1.2345678901234567 for number in range(layers)}
    for each in listed:
        each.folder.mkdir(parents=True)
        lines = [{"step": step, "m": each.values["rate"]} | norms for step in (5, 10)]
        (each.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    halving = Halving.of("m", 10, 2, listed)
    assert [each.step for each in listed] == [10, 10]
    assert [halving.is_hopeless(each) for each in listed] == [False, True]


def test_halving_lets_a_run_end_that_has_done_all_its_steps(job):
    halving, found = Halving.of("m", 10, 2, [job("r", rate=1, steps=60)]), []
    for value, last in ((1.0, 60), (2.0, 60), (2.0, 59)):
        each = job(f"r{value}-{last}", rate=1, steps=60)
        each.folder.mkdir(parents=True)
        lines = [{"step": 10, "m": value}, {"step": last, "m": value}]
        (each.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found.append(halving.is_hopeless(each))
    assert found == [False, False, True]


def test_halving_stops_what_has_diverged(job):
    halving = Halving.of("m", 10, 2, [job("r", rate=1, steps=60)])
    found = []
    for rate, value in enumerate((None, 3.0, None, 2.0)):
        each = job(f"r{rate}", rate=rate, steps=60)
        each.folder.mkdir(parents=True)
        lines = [{"step": 5, "m": 0.5}, {"step": 10, "m": value}, {"step": 11, "m": 0.1}]
        (each.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        found.append(halving.is_hopeless(each))
        assert math.isnan(each.measured("m")[1][1]) is (value is None)
    assert found == [False, False, True, False]


def test_halving_by_a_metric_that_no_run_measures_ends_with_the_first(job):
    listed = [job(f"r{rate}", rate=rate, steps=60) for rate in (1, 2)]
    with pytest.raises(UserError, match=r"--halving: .*r1 has not measured eval/los: no run can be compared"):
        work(listed, 1, Halving.of("-eval/los", 10, 2, listed))
    assert not listed[1].folder.exists()


SWEEP = ["--mode=sweep", "--config=configs/lm.py:tiny"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--sweep=seed=0,1", "--config.seed=3"], "--config.seed: it is a key of the sweep too"),
        (["--sweep=seed=0", "--sweep=seed=1"], "seed: it is in two of the sweeps"),
        (["--sweep=optimizer.learning_rat=1"], "learning_rat=1: config.optimizer.learning_rat: unknown key"),
        (["--sweep=seed=0,x"], "seed=x: config.seed: "),
        (["--sweep=model.lora_rank=0,8"], "config.optimizer.train_only: '' with model.lora_rank 8; expected"),
        (["--sweep=seed=0", "--jobs=0"], "--jobs: 0; expected 1 or more"),
        ([], "--sweep: none is given, and configs/lm.py: there is no sweep() in it"),
        (
            ["--sweep=seed=0", "--halving=eval/loss", "--halving_start=2"],
            "--halving_start: 2; expected 1 to 1",
        ),
        (["--sweep=seed=0", "--halving=eval/loss", "--halving_factor=1"], "--halving_factor: 1"),
        (
            ["--sweep=seed=0", "--halving=eval/loss", "--config.train.steps=50"],
            "train.evaluate_every=0 of 50",
        ),
        (
            ["--sweep=train.evaluate_every=10,20", "--halving=eval/loss", "--config.train.steps=50"],
            "--halving: runs are compared at the same steps, but train.evaluate_every differs, 10, 20",
        ),
        (
            ["--sweep=train.log_every=1,2", "--halving=train/loss", "--config.train.steps=50"],
            "but train.log_every differs, 1, 2",
        ),
        (["--sweep=seed=0", "--slurm=--comment='two words"], 'two words" has no closing quotation'),
    ],
)
def test_mistakes_are_told_before_anything_is_written(flags, said, capsys, tmp_path):
    assert launch.main([*SWEEP, f"--workdir={tmp_path / 'sweep'}", *flags]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file", "is a file"),
        ("file/sweep", "cannot be written (Not a directory)"),
        ("link", "cannot be written (a link to "),
    ],
)
def test_a_folder_that_cannot_be_written_is_told_before_a_run_begins(place, said, capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    folder = tmp_path / place
    assert launch.main([*SWEEP, f"--workdir={folder}", "--sweep=seed=0,1"]) == 2
    out, error = capsys.readouterr()
    assert out == "" and error.startswith(f"error: --workdir: {folder} {said}") and error.count("\n") == 1
    assert {each.name for each in tmp_path.iterdir()} == {"file", "link"}


def test_a_config_file_may_have_a_sweep(tmp_path, capsys):
    config = tmp_path / "mine.py"
    config.write_text(
        "from configs.lm import get_config\nfrom commands.sweeps.algebra import over, product\n"
        "def sweep():\n    rates = over('optimizer.learning_rate', [1e-3, 3e-3])\n"
        "    return product(rates, over('seed', [0, 1]))\n"
    )
    flags = ["--mode=sweep", f"--config={config}:tiny", f"--workdir={tmp_path / 'sweep'}", "--dry_run"]
    assert launch.main(flags) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].endswith("--config.optimizer.learning_rate=0.001 --config.seed=1")
    config.write_text(config.read_text().replace("return", "yield"))
    assert launch.main(flags) == 2
    assert "sweep() should return a list" in capsys.readouterr().err


def test_slurm_gets_an_array(tmp_path, capsys):
    flags = [*SWEEP, f"--workdir={tmp_path}", "--sweep=seed=0,1,2", "--config.train.steps=3"]
    assert launch.main([*flags, "--slurm=--gpus=1 --time=4:00:00", "--dry_run"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("sbatch --array=0-2 --gpus=1 --time=4:00:00 ")
    assert "cluster/slurm.sh --mode=sweep" in line
    assert line.endswith("--sweep=seed=0,1,2 --config.train.steps=3\n")
    assert launch.main([*flags, "--slurm=--array=0-2%1", "--dry_run"]) == 0
    assert capsys.readouterr().out.count("--array") == 1


@pytest.mark.thorough
def test_a_job_of_an_array_trains_its_run(tmp_path, capsys, monkeypatch):
    source = runs.write_corpus(tmp_path / "data")
    small = [each for each in runs.tiny(source, tmp_path / "s") if not each.startswith("--config.seed")]
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    flags = ["--mode=sweep", *small, "--sweep=seed=0,1"]
    assert launch.main(flags) == 0
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["seed=1"]
    assert json.loads((tmp_path / "s" / "seed=1" / "config.json").read_text())["seed"] == 1
    capsys.readouterr()
    assert launch.main(flags) == 0
    assert capsys.readouterr().out == "seed=1: finished before\n"
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert launch.main(flags) == 2
    assert "SLURM_ARRAY_TASK_ID: 2; expected 0 to 1" in capsys.readouterr().err


@pytest.mark.thorough
def test_runs_are_those_that_training_alone_gives(tmp_path):
    """Two runs at a time, then a table of them."""
    source = runs.write_corpus(tmp_path / "data")
    small = runs.tiny(source, tmp_path / "s", "--config.train.evaluate_every=1")
    flags = [sys.executable, "launch.py", "--mode=sweep", *small, "--sweep=optimizer.learning_rate=1e-3,1e-2"]
    subprocess.run([*flags, "--jobs=2"], cwd=runs.ROOT, check=True)
    assert launch.main([*runs.tiny(source, tmp_path / "alone"), "--config.optimizer.learning_rate=1e-2"]) == 0
    swept = (tmp_path / "s" / "learning_rate=0.01" / "metrics.jsonl").read_text()
    alone = losses((tmp_path / "alone" / "metrics.jsonl").read_text())
    assert losses(swept) == pytest.approx(alone, rel=1e-5)  # which is on several devices
    out = tmp_path / "table.json"
    assert launch.main(["--mode=table", "--runs", str(tmp_path / "s" / "*"), f"--output={out}"]) == 0
    rows = json.loads(out.read_text())
    assert [row["keys"] for row in rows] == [{"optimizer.learning_rate": rate} for rate in (0.01, 0.001)]
    assert [Path(path).name for row in rows for path in row["runs"]] == [
        "learning_rate=0.01",
        "learning_rate=0.001",
    ]


def losses(text):
    lines = map(json.loads, text.splitlines())
    return {line["step"]: line["train/loss"] for line in lines if "train/loss" in line}
