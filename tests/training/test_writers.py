"""Each writer can be left out, and nothing else goes with it."""

import json
import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

import launch
from tests import runs
from tests.faults.test_full_disks import shown
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.events import Events
from transformer.training.writers import EXTRAS, make_writers, names_of, whole_lines

FILES = {"jsonl": "metrics.jsonl", "tensorboard": "events"}


@pytest.mark.parametrize("name", FILES)
def test_each_writes_its_own_and_nothing_else(tmp_path, name):
    for writer in make_writers(RunFolder(tmp_path), 0, names_of(f" {name},")):
        writer.write(1, {"train/loss": 1.0})
        writer.close()
    assert [path.name for path in tmp_path.iterdir()] == [FILES[name]]


def test_an_unknown_one_is_refused():
    with pytest.raises(UserError, match=r"^writers: 'csv' is none of jsonl, tensorboard, wandb, mlflow$"):
        names_of("jsonl,csv")
    assert names_of("") == [] and names_of("tensorboard, jsonl") == ["tensorboard", "jsonl"]


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_run_without_any_still_says_what_it_measured_and_may_take_one_up_later(capfd, tmp_path):
    folder, source = tmp_path / "run", runs.write_corpus(tmp_path / "corpus")
    schedule = ["--config.optimizer.schedule=constant", "--config.optimizer.decay_steps=0"]
    assert launch.main(runs.tiny(source, folder, *schedule, "--config.train.writers=")) == 0
    assert not {"metrics.jsonl", "events", "report.md"} & {path.name for path in folder.iterdir()}
    said = capfd.readouterr().out
    assert "this model" in said and "Next, for example:" in said
    more = [f"--workdir={folder}", "--config.train.steps=4", "--config.train.log_every=1"]
    assert launch.main([*more, "--config.train.writers=jsonl"]) == 0
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 4]
    assert not (folder / "events").exists() and (folder / "report.md").exists()
    # A killed run had logged later steps: they go with the writer that has them.
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "train/loss": 0.0}\n{"st')
    assert launch.main([*more[:1], "--config.train.steps=5"]) == 0
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [3, 4, 5]
    assert json.loads(lines[-1])["train/loss"] > 0


@pytest.mark.thorough
@pytest.mark.usefixtures("in_root")
def test_a_resumed_run_leaves_out_lines_that_are_damaged(tmp_path):
    path = tmp_path / "metrics.jsonl"
    kept = [b'{"step": 1, "a": "\xc3\xa4"}', b'{"step": 3}']
    path.write_bytes(
        b"\n".join([kept[0], b'{"step": 2, "a\xff": 1}', b"[" * 100_000, kept[1], b'{"step": 4'])
    )
    assert whole_lines(path, 9) == [line.decode() for line in kept]
    assert whole_lines(path, 2) == [kept[0].decode()]


@pytest.mark.thorough
def test_pictures_are_no_events_where_those_are_left_out(tmp_path):
    arguments = ["--config=configs/translation.py:tiny", f"--workdir={tmp_path}/run"]
    assert launch.main([*arguments, "--config.train.writers=jsonl"]) == 0
    assert list((tmp_path / "run" / "attention").glob("*.png"))
    assert not (tmp_path / "run" / "events").exists()


def test_no_step_is_shown_twice_after_a_restart_and_none_is_hidden(tmp_path):
    """Of a run that was killed after step 7, whose last checkpoint is of step 4; it draws before it logs."""
    folder = RunFolder(tmp_path)
    pixels = np.zeros((2, 2, 3), np.uint8)
    for last, steps in ((0, range(1, 8)), (4, range(5, 10)), (9, range(10, 12))):
        (writer,) = make_writers(folder, last, ["tensorboard"])
        for step in steps:
            if step % 3 == 0:
                with Events(folder.events, suffix=".pictures") as pictures:
                    pictures.add_picture("b", pixels, step)
            if step != 5:
                writer.write(step, {"a": step})
        if last:  # else it is killed
            writer.close()
    found = shown(folder.events)
    assert [step for step, name in found if name == "a"] == [1, 2, 3, 4, *range(6, 12)]
    assert sorted(step for step, name in found if name == "b") == [3, 6, 9]


def test_events_are_written_without_pytorch_and_leave_it_to_others(tmp_path):
    (tmp_path / "torch.py").write_text("print('loaded')")
    code = """
        import sys
        import numpy as np
        from pathlib import Path
        from transformer.training.events import Events
        with Events(Path(sys.argv[1])) as events:
            events.add_scalars(1, {"a": 1.0})
            events.add_picture("b", np.zeros((2, 2, 3), np.uint8), 1)
        print("written")
        import torch
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "events")],
        cwd=runs.ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["written", "loaded"], done.stderr
    assert list((tmp_path / "events").iterdir())


def write_some(name, folder, steps, until):
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.config.write_text(json.dumps({"seed": 3, "model": {"d_model": 16}}))
    for writer in make_writers(folder, steps[0] - 1, names_of(name)):
        for step in steps:
            writer.write(step, {"train/loss": 1.0 / step, "train/norms/gradient/blocks/0": float(step)})
        writer.write(until, {"eval/loss": float("nan")})
        writer.close()


@pytest.mark.thorough
def test_wandb_writes_offline_and_goes_on_under_the_same_id(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true", "PROJECT": "letters"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    folder = RunFolder(tmp_path / "run")
    write_some("wandb", folder, [10, 20], 20)
    write_some("wandb", folder, [30], 30)
    ids = json.loads((tmp_path / "run/trackers.json").read_text())
    first, second = sorted((tmp_path / "run/wandb").glob("offline-run-*"))
    # Two starts in one second get the same name but for a number at its end.
    assert all(ids["wandb"] in each.name.split("-") for each in (first, second))
    # In a log of protocol buffers names and values are readable as they are. Another process writes it.
    expected = [b"train/loss", b"train/norms/gradient/blocks/0", b"eval/loss", b"letters", b"model.d_model"]
    expected += [b"0.1", b"0.05", b"0.0333", b"NaN"]
    missing, end = expected, time.monotonic() + 60
    while missing and time.monotonic() < end:
        written = b"".join(next(each.glob("*.wandb")).read_bytes() for each in (first, second))
        missing = [text for text in expected if text not in written]
        time.sleep(0.1)
    assert missing == []


@pytest.mark.thorough
def test_mlflow_writes_offline_and_goes_on_in_the_same_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "letters")
    folder = RunFolder(tmp_path / "run")
    write_some("mlflow", folder, [10, 20], 20)
    write_some("mlflow", folder, [30], 30)
    (run,) = mlflow.search_runs(experiment_names=["letters"], output_format="list")
    assert run.info.run_id == json.loads((tmp_path / "run/trackers.json").read_text())["mlflow"]
    assert run.data.params == {"seed": "3", "model.d_model": "16"} and run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [(step, 1.0 / step) for step in (10, 20, 30)]


@pytest.mark.parametrize("name", EXTRAS)
def test_a_package_that_is_not_installed_is_named_before_anything_is_written(
    tmp_path, monkeypatch, capsys, name
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.chdir(runs.ROOT)
    source = runs.write_corpus(tmp_path / "corpus")
    flags = runs.tiny(source, tmp_path / "run", f"--config.train.writers=jsonl,{name}")
    assert launch.main(flags) == 2
    said = capsys.readouterr().err
    assert f"config.train.writers: '{name}' needs" in said and f"pip install {name}" in said
    assert not (tmp_path / "run").exists()
