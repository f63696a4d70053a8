"""Each writer can be left out, and nothing else goes with it."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import launch
from tests import runs
from transformer.errors import UserError
from transformer.run_folder import RunFolder
from transformer.training.writers import WRITERS, make_writers, names_of

FILES = {"jsonl": "metrics.jsonl", "tensorboard": "events"}


@pytest.mark.parametrize("name", WRITERS)
def test_each_writes_its_own_and_nothing_else(tmp_path, name):
    for writer in make_writers(RunFolder(tmp_path), 0, names_of(f" {name},")):
        writer.write(1, {"train/loss": 1.0})
        writer.close()
    assert [path.name for path in tmp_path.iterdir()] == [FILES[name]]


def test_an_unknown_one_is_refused():
    with pytest.raises(UserError, match=r"^writers: 'csv' is none of jsonl, tensorboard$"):
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
def test_pictures_are_no_events_where_those_are_left_out(tmp_path):
    arguments = ["--config=configs/translation.py:tiny", f"--workdir={tmp_path}/run"]
    assert launch.main([*arguments, "--config.train.writers=jsonl"]) == 0
    assert list((tmp_path / "run" / "attention").glob("*.png"))
    assert not (tmp_path / "run" / "events").exists()


def test_events_are_written_without_pytorch_and_leave_it_to_others(tmp_path):
    (tmp_path / "torch.py").write_text("print('loaded')")
    code = """
        import sys
        from transformer.training.writers import open_events
        with open_events(sys.argv[1]) as events:
            events.add_scalar("a", 1.0, 1)
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
